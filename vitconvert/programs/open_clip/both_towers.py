"""open_clip's models of two towers, and its text towers by themselves."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitconvert.checkpoint import Checkpoint
from vitconvert.checkpoint.text_tower import Text
from vitconvert.errors import NotRepresentable
from vitconvert.facts.project_config import look_up
from vitconvert.programs.both_towers import BothTowers
from vitconvert.programs.isolation import silent
from vitconvert.programs.reference import check_size, load_strictly, package


def open_directory(directory: Path) -> BothTowers:
    """As `open_clip.create_model("local-dir:...")` loads an output, strictly.

    Raises:
        MissingPackage: open_clip is not installed.
    """
    open_clip = _open_clip()
    with silent("root"):
        model = open_clip.create_model(f"local-dir:{directory}", precision="fp32").eval()
    return _both(open_clip, model)


def open_state_dict(file: Path) -> BothTowers:
    """As open_clip loads OpenAI's state dicts.

    It rounds the weights to half precision, which OpenAI's have: then it is given the others again.

    Raises:
        MissingPackage: open_clip is not installed.
    """
    open_clip = _open_clip()
    with silent("root"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tries torch.jit first, which warns
        model = open_clip.load_openai_model(str(file), precision="fp32", device="cpu").eval()
    tensors = torch.load(file, map_location="cpu", weights_only=True)
    exact = {name: t.float() for name, t in tensors.items() if t.is_floating_point()}
    model.load_state_dict(exact, strict=True)
    return _both(open_clip, model)


def _both(open_clip: Any, model: Any) -> BothTowers:
    name = f"open_clip {open_clip.__version__} {type(model).__name__}"
    return BothTowers(name=name, images=model.encode_image, texts=model.encode_text)


def texts_by_config(checkpoint: Checkpoint) -> Callable[[Tensor], Tensor]:
    """The text tower of a checkpoint, as open_clip builds it by open_clip_config.json.

    Raises:
        MissingPackage: open_clip is not installed.
        NotRepresentable: There is no such file, or the class does not take the tensors.
    """
    model_cfg = look_up(checkpoint.companions.whole_config, "model_cfg")
    if not isinstance(model_cfg, Mapping):
        raise NotRepresentable("There is no open_clip_config.json to build the text tower by.")
    return _texts(checkpoint.text, model_cfg)


def texts_of_openai(checkpoint: Checkpoint) -> Callable[[Tensor], Tensor]:
    """The text tower of OpenAI's CLIP, by the sizes of its tensors, as open_clip builds it.

    Raises:
        MissingPackage: open_clip is not installed.
    """
    text = checkpoint.text
    assert text is not None
    shapes = text.binding.shapes
    length, width = shapes["positional_embedding"]
    text_cfg = {
        "context_length": length,
        "vocab_size": shapes["token_embedding.weight"][0],
        "width": width,
        "heads": width // 64,
        "layers": sum(name.endswith("ln_1.weight") for name in shapes),
    }
    features = shapes["text_projection"][1]
    return _texts(text, {"embed_dim": features, "text_cfg": text_cfg, "quick_gelu": True})


def _texts(text: Text | None, model_cfg: Mapping[str, Any]) -> Callable[[Tensor], Tensor]:
    assert text is not None
    open_clip = _open_clip()

    def build() -> nn.Module:
        stated = model_cfg["embed_dim"], dict(model_cfg["text_cfg"])
        tower: nn.Module = open_clip.model._build_text_tower(
            *stated, bool(model_cfg.get("quick_gelu"))
        )
        return tower

    own = (key for key in text.keys if not key.startswith("logit_"))
    tensors = {key.removeprefix("text."): text.read(key).float() for key in own}
    with torch.device("meta"):
        check_size(build(), tensors, "TextTransformer")
    tower = build()  # its mask is in no file, so open_clip must compute it
    load_strictly(tower, tensors, "TextTransformer")
    return tower.eval()


def _open_clip() -> Any:
    return package("open_clip", install="open-clip-torch")
