"""KerasHub: presets, which are directories with the backbone and the task apart."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.documents import read_object
from vitconvert.errors import NotRepresentable, OtherFunction
from vitconvert.facts.project_config import written_config
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.steps import departures_of
from vitconvert.programs.example import Example
from vitconvert.programs.keras_hub.preset import (
    image_converter,
    preset_files,
    tokenizer_config,
    with_preprocessor,
)
from vitconvert.programs.program import (
    TOKENIZER_CONFIG,
    UNKNOWN,
    CompanionFiles,
    DescribedModel,
    Opener,
    Program,
    Tokenizer,
)
from vitconvert.programs.target import Target, check_place, fit_target
from vitconvert.sources.located import KERAS_TOKENIZERS
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from vitconvert.programs.program import BothTowers, Preparation
    from vitconvert.programs.reference import Reference


# The files of their tokenizers that both have, by transformers' names.
_CLIP, _SIGLIP = ("vocab.json", "merges.txt"), ("spiece.model",)
_END = "<|endoftext|>"  # of CLIP's vocabulary
_SHAPE = "[:2]"  # ends a path of the tables to height and width; the channels come third


class KerasHub(Program):
    """KerasHub, in the layout of `save_to_preset`."""

    one_file = True
    packages = ("keras_hub",)

    def fit(self, table: Table, model: DescribedModel) -> Target:
        """With files that name the classes of a backbone, and of a task or of both towers."""
        check_place(table, model.config)
        theirs = preset_config(table, model.config)
        target = fit_target(table, model.config, theirs, text=model.text)
        if table.text_towers and target.text is None:
            raise OtherFunction(
                f"{table.title} is a part of a model of both towers: "
                f"{target.left or 'there is no text tower beside this one'}",
                evidence={"table": table.file},
            )
        return target

    def companions(
        self, target: Target, preprocessing: Preprocessing | None, dtypes: Iterable[str]
    ) -> CompanionFiles:
        """`config.json` of the backbone, and what there is of its task and of images."""
        files = preset_files(target.their_config)
        converter, departures = _converter(files["config.json"], preprocessing)
        if converter:
            files["image_converter.json"] = converter
            if task := files.get("task.json"):
                files["task.json"] = with_preprocessor(task, converter)
        return CompanionFiles(files=files, departures=departures)

    def tokenizer(self, files: Mapping[str, Path], target: Target) -> Tokenizer:
        """The assets of a preset: `tokenizer.json` of other programs is none of KerasHub's."""
        backbone = preset_files(target.their_config)["config.json"]
        kinds = {"CLIPBackbone": _CLIP, "SigLIPBackbone": _SIGLIP}
        names = kinds.get(backbone["class_name"], ())
        if not names or not all(name in files for name in names):
            return {}
        said = (
            {"pad_with_end_token": _fills_with_end(files.get(TOKENIZER_CONFIG))}
            if names is _CLIP
            else {}
        )
        assets = {KERAS_TOKENIZERS[name]: files[name] for name in names}
        return {**assets, "tokenizer.json": tokenizer_config(backbone, said or {"proto": None})}

    def openers(self, config: ViTConfig) -> Mapping[str, Opener]:
        """The classes that the preset names."""
        return {"keras_hub": open_preset}

    def reference(self, checkpoint: Checkpoint) -> "Reference":
        """The class that the tensors are of, which reads them as a preset."""
        from vitconvert.programs.keras_hub.reference import keras_hub_reference

        return keras_hub_reference(checkpoint)

    def open_both(self, directory: Path) -> "BothTowers":
        """The class that the preset names."""
        from vitconvert.programs.keras_hub.reference import both_towers

        return both_towers(directory)

    def texts(self, checkpoint: Checkpoint) -> "Callable[[Tensor], Tensor]":
        """The class of both towers."""
        from vitconvert.programs.keras_hub.reference import own_model, run_texts

        model = own_model(checkpoint)
        return lambda ids: run_texts(model, ids)

    def preparation(self, checkpoint: Checkpoint) -> "Preparation | None":
        """The layer that `image_converter.json` names."""
        from vitconvert.programs.keras_hub.reference import keras_hub_preparation

        stated = checkpoint.companions.preprocessor
        return keras_hub_preparation(stated, checkpoint.config) if stated else None

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """With the class for tasks, or for backbones."""
        config, text = source.config, target.text
        kind = "ImageClassifier" if config.num_classes and not text else "Backbone"
        height, width = config.image_size
        lines = [
            "import keras_hub\nimport numpy\n",
            f'model = keras_hub.models.{kind}.from_preset(".")',
            f"images = numpy.zeros((1, {height}, {width}, {config.in_channels}))",
            f"output = model{'.get_vision_embeddings' if text else ''}(images)",
        ]
        if text:
            length = text.plan.sizes["position"]
            lines += [
                f'ids = numpy.zeros((1, {length}), "int32")  # of your tokenizer',
                "texts = model.get_text_embeddings(ids)",
            ]
        code = "\n".join(lines)
        return [Example(title="With KerasHub, on JAX, PyTorch or TensorFlow", code=code)]


def _converter(
    backbone: Mapping[str, Any], source: Preprocessing | None
) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The `image_converter.json`, or None, and what departs from the source."""
    if source is None:
        return None, (UNKNOWN,)
    if not backbone["class_name"].endswith("Backbone"):
        return None, ("image_converter.json is left out: KerasHub has none for an encoder alone",)
    try:
        arguments = source.to_keras_hub()
    except NotRepresentable as error:
        return None, (f"image_converter.json is left out: {error.fact}",)
    converter = image_converter(backbone, arguments)
    theirs = Preprocessing.from_keras_hub(
        converter, image_size=source.image_size, channels=source.channels
    )
    return converter, departures_of("KerasHub", source, theirs)


def open_preset(directory: Path) -> "Callable[[Tensor], Tensor]":
    """Load a preset with the class that it names: images to logits, or to tokens."""
    from vitconvert.programs.keras_hub.reference import load_preset, run

    model = load_preset(directory)
    return lambda images: run(model, images)


def _fills_with_end(stated: Path | None) -> bool:
    """Whether a tokenizer of CLIP fills texts up with their end, by its configuration.

    Raises:
        SourceError, CorruptFile: It cannot be read.
    """
    said = {} if stated is None else read_object(stated)
    if isinstance(own := said.get("config"), Mapping):
        return bool(own.get("pad_with_end_token"))
    pad = said.get("pad_token", _END)
    return (pad.get("content") if isinstance(pad, Mapping) else pad) == _END


def preset_config(table: Table, config: ViTConfig) -> dict[str, Any]:
    """A `task.json`, with the backbone's `config.json` in it; or that, where none has tasks."""
    written = _with_shapes(written_config(table, config), config)
    if backbone := written["config"].get("backbone"):
        backbone["config"]["patch_size"] = list(config.patch_size)
    if not written["config"].get("intermediate_dim"):
        written["config"].pop("intermediate_dim", None)
    return written


def _with_shapes(written: Mapping[str, Any], config: ViTConfig) -> dict[str, Any]:
    shape = [*config.image_size, config.in_channels]
    return {
        key.removesuffix(_SHAPE): shape
        if key.endswith(_SHAPE)
        else _with_shapes(value, config)
        if isinstance(value, Mapping)
        else value
        for key, value in written.items()
    }


PROGRAM = KerasHub()
