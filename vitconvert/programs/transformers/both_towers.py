"""transformers' models of two towers, and its text towers by themselves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitconvert.checkpoint import Checkpoint
from vitconvert.checkpoint.text_tower import Text
from vitconvert.errors import NotRepresentable
from vitconvert.programs.both_towers import BothTowers
from vitconvert.programs.reference import check_size, package
from vitconvert.programs.transformers.loading import load_named_class
from vitconvert.programs.transformers.reference import run_opened, without_code

# The class of a text tower by itself, with what leads to the space of images.
_TEXTS = {
    "clip": "CLIPTextModelWithProjection",
    "siglip": "SiglipTextModel",
    "siglip2": "Siglip2TextModel",
}


def open_directory(directory: Path) -> BothTowers:
    """As `from_pretrained` of the class that `config.json` names loads an output.

    Raises:
        MissingPackage: transformers is not installed.
    """
    transformers = package("transformers", install="transformers")
    model = load_named_class(directory)
    return BothTowers(
        name=f"transformers {transformers.__version__} {type(model).__name__}",
        images=lambda images: run_opened(model, images),
        texts=lambda ids: model.get_text_features(input_ids=ids).pooler_output,
    )


def texts_by_config(checkpoint: Checkpoint) -> Callable[[Tensor], Tensor]:
    """The text tower of a checkpoint, as transformers builds it by config.json.

    Raises:
        MissingPackage: transformers is not installed.
        NotRepresentable: config.json is of another model, or the class does not take the tensors.
    """
    transformers = package("transformers", install="transformers")
    text = checkpoint.text
    assert text is not None
    whole = without_code(checkpoint.companions.whole_config)
    name = _TEXTS.get(str(whole.get("model_type")))
    if name is None:
        raise NotRepresentable("config.json is of no model whose text tower transformers names.")
    theirs = transformers.AutoConfig.for_model(**whole)
    config = theirs.text_config
    if "Projection" in name:
        config.projection_dim = theirs.projection_dim  # CLIPModel reads that of the whole
    return _texts(getattr(transformers, name), config, text)


def _texts(kind: Any, config: Any, text: Text) -> Callable[[Tensor], Tensor]:
    tensors = {key: text.read(key).float() for key in text.keys if not key.startswith("logit_")}
    with torch.device("meta"):
        check_size(kind(config), tensors, kind.__name__)
    model, problems = kind.from_pretrained(
        None, config=config, state_dict=tensors, dtype="float32", output_loading_info=True
    )
    if found := [f"{problem}: {names}" for problem, names in problems.items() if names]:
        raise NotRepresentable(f"{kind.__name__} does not take these tensors.", details=found)
    model.eval()

    def texts(ids: Tensor) -> Tensor:
        output = model(input_ids=ids)
        found: Tensor = output.text_embeds if "Projection" in kind.__name__ else output[1]
        return found

    return texts
