"""KerasHub: presets, which are directories with the backbone and the task apart."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonObject, read_object
from vitconvert.errors import NotRepresentable, OtherFunction
from vitconvert.facts.project_config import written_config
from vitconvert.formats import written_module
from vitconvert.formats.content import content_of
from vitconvert.formats.format_modules import Surroundings
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.departures import departures_of
from vitconvert.programs.example import Example
from vitconvert.programs.program import (
    TOKENIZER_CONFIG,
    UNKNOWN,
    BothTowers,
    CompanionFiles,
    DescribedModel,
    Foreign,
    Opener,
    Preparation,
    Program,
    Tokenizer,
    opened,
)
from vitconvert.programs.reference import Reference, TensorsNotTaken, own_tensors, package
from vitconvert.programs.target import DescribedText, Target, check_place, fit_target
from vitconvert.sources.located import KERAS_TOKENIZERS
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor


# The files of their tokenizers that both have, by transformers' names.
_CLIP, _SIGLIP = ("vocab.json", "merges.txt"), ("spiece.model",)
_END = "<|endoftext|>"  # of CLIP's vocabulary
_SHAPE = "[:2]"  # ends a path of the tables to height and width; the channels come third
_CONVERTS = ("image_size", "scale", "offset", "interpolation", "antialias", "crop_to_aspect_ratio")


class KerasHub(Program):
    """KerasHub, in the layout of `save_to_preset`."""

    one_file = True
    packages = ("keras_hub",)

    def fit(self, table: Table, model: DescribedModel) -> Target:
        """With files that name the classes of a backbone, and of a task or of both encoders."""
        check_place(table, model.config)
        written = _with_shapes(written_config(table, model.config), model.config)
        if not _named(written):
            raise NotRepresentable(
                f"{table.title}: KerasHub has no class of it alone.", evidence={"table": table.file}
            )
        if backbone := written["config"].get("backbone"):
            backbone["config"]["patch_size"] = list(model.config.patch_size)
        if not written["config"].get("intermediate_dim"):
            written["config"].pop("intermediate_dim", None)
        target = fit_target(table, model.config, written, text=model.text)
        if table.text_towers and target.text is None:
            raise OtherFunction(
                f"{table.title} is a part of a model of both encoders: "
                f"{target.left or 'this model has no text encoder'}",
                evidence={"table": table.file},
            )
        return target

    def other_sizes(self, table: Table) -> str:
        """DINOv2's backbone alone resamples positions."""
        return "program" if table.name.startswith("keras_dinov") else "none"

    def companions(
        self, target: Target, preprocessing: Preprocessing | None, dtypes: Iterable[str]
    ) -> CompanionFiles:
        """`config.json` of the backbone, and the files of its task and of its images."""
        files = _preset_files(target.their_config)
        backbone = files["config.json"]
        if preprocessing is None:
            return CompanionFiles(files=files, departures=(UNKNOWN,))
        left_out = "image_converter.json is left out: "
        if not backbone["class_name"].endswith("Backbone"):
            reason = "KerasHub has none for only a vision encoder"
            return CompanionFiles(files=files, departures=(left_out + reason,))
        try:
            arguments = preprocessing.to_keras_hub()
        except NotRepresentable as error:
            return CompanionFiles(files=files, departures=(left_out + error.fact,))
        converter = _beside(backbone, "image_converter", "ImageConverter", arguments)
        files["image_converter.json"] = converter
        if task := files.get("task.json"):  # its class prepares images itself
            name = "image_classifier_preprocessor", "ImageClassifierPreprocessor"
            own = {"image_converter": converter, "config_file": "preprocessor.json"}
            preprocessor = _beside(backbone, *name, own)
            files["task.json"] = {
                **task,
                "config": {**task["config"], "preprocessor": preprocessor},
            }
        theirs = Preprocessing.from_keras_hub(
            converter, image_size=preprocessing.image_size, channels=preprocessing.channels
        )
        departures = departures_of("KerasHub", preprocessing, theirs)
        return CompanionFiles(files=files, departures=departures)

    def tokenizer(self, files: Mapping[str, Path], target: Target) -> Tokenizer:
        """The assets of a preset, whose `tokenizer.json` is not that of other programs."""
        backbone = _preset_files(target.their_config)["config.json"]
        kinds = {"CLIPBackbone": _CLIP, "SigLIPBackbone": _SIGLIP}
        names = kinds.get(backbone["class_name"], ())
        if not names or not all(name in files for name in names):
            return {}
        arguments: dict[str, object] = {"proto": None}
        if names is _CLIP:
            stated = files.get(TOKENIZER_CONFIG)
            said = read_object(stated) if stated else {}
            if isinstance(own := said.get("config"), Mapping):
                fills_with_end = bool(own.get("pad_with_end_token"))
            else:
                pad = said.get("pad_token", _END)
                fills_with_end = (pad.get("content") if isinstance(pad, Mapping) else pad) == _END
            arguments = {"pad_with_end_token": fills_with_end}
        assets = {KERAS_TOKENIZERS[name]: files[name] for name in names}
        return {**assets, "tokenizer.json": _beside(backbone, "tokenizer", "Tokenizer", arguments)}

    def openers(self, config: ViTConfig) -> Mapping[str, Opener]:
        """The class that the preset names: images to logits, or to tokens."""

        def opened(directory: Path) -> "Callable[[Tensor], Tensor]":
            model = _load_preset(directory)
            return lambda images: _run(model, images)

        return {"keras_hub": opened}

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """The class that the tensors are of, keras-hub 0.32.0, which reads them as a preset."""
        from torch import nn

        model = _model_of(checkpoint)
        # CLIP and SigLIP have no class for tokens.
        pooled = hasattr(model, "get_vision_embeddings") or _kind(model).endswith("VisionEncoder")
        return Reference(
            name=_name(model),
            model=nn.Identity(),  # stands for the model, which is not PyTorch's
            taps={},
            run=lambda _, images: _run(model, images),
            reads="output" if checkpoint.config.num_classes or pooled else "tokens",
            dtypes=("float32",),
            told=("image_size", "norm_eps", "pooling"),
        )

    def open_both(self, directory: Path) -> BothTowers:
        """The class that the preset names."""
        model = _load_preset(directory)
        return BothTowers(
            name=_name(model),
            images=lambda images: _run(model, images),
            texts=lambda ids: _run_texts(model, ids),
        )

    def texts(self, checkpoint: Checkpoint) -> "Callable[[Tensor], Tensor]":
        """The class of both encoders."""
        model = _model_of(checkpoint)
        return lambda ids: _run_texts(model, ids)

    def preparation(self, checkpoint: Checkpoint) -> Preparation | None:
        """The layer that `image_converter.json` names, keras-hub 0.32, in whole numbers."""
        import numpy as np
        import torch

        stated, config = checkpoint.companions.preprocessor, checkpoint.config
        if not stated:
            return None
        hub = _keras_hub()
        steps = Preprocessing.from_keras_hub(
            stated, image_size=config.image_size, channels=config.in_channels
        )
        arguments = {key: value for key, value in stated["config"].items() if key in _CONVERTS}
        layer = hub.layers.ImageConverter(**arguments, dtype="float32")

        def prepare(image: "Path | Image.Image") -> "Tensor":
            with opened(image) as found:
                converted = found.convert("L" if steps.channels == 1 else "RGB")
            pixels = np.atleast_3d(np.array(converted))
            return torch.from_numpy(np.array(layer(pixels))).permute(2, 0, 1)

        name = f"keras-hub {hub.__version__}'s ImageConverter"
        return Preparation(name=name, prepare=prepare, steps=steps)

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


def _with_shapes(written: JsonObject, config: ViTConfig) -> dict[str, Foreign]:
    shape = [*config.image_size, config.in_channels]
    return {
        key.removesuffix(_SHAPE): shape
        if key.endswith(_SHAPE)
        else _with_shapes(value, config)
        if isinstance(value, Mapping)
        else value
        for key, value in written.items()
    }


def _named(written: JsonObject) -> bool:
    """Whether what is written names a class, of a task or a backbone."""
    return bool(written.get("class_name") or written.get("config", {}).get("backbone"))


def _preset_files(their_config: JsonObject) -> dict[str, JsonObject]:
    """The files of a preset, by name; a backbone alone has no `task.json`."""
    backbone = their_config["config"].get("backbone", their_config)
    has_task = backbone is not their_config and "class_name" in their_config
    return {"config.json": backbone} | ({"task.json": their_config} if has_task else {})


def _beside(backbone: JsonObject, module: str, kind: str, arguments: JsonObject) -> JsonObject:
    """Another class for the model of a backbone: KerasHub names them all alike."""
    name = backbone["class_name"].removesuffix("Backbone") + kind
    return {
        "module": backbone["module"].removesuffix("backbone") + module,
        "class_name": name,
        "config": dict(arguments),
        "registered_name": f"keras_hub>{name}",
    }


# Running it: in whatever arithmetic Keras has here, which is PyTorch's if nobody says otherwise.


def _keras_hub() -> ModuleType:
    """The package, on PyTorch where neither Keras was imported nor the user has chosen."""

    os.environ.setdefault("KERAS_BACKEND", "torch")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # it imports TensorFlow, if that is there
    # Triton, with an LLVM of its own, ends a process that has TensorFlow's already, which KerasHub
    # imports where it is; the other way round they get on (torch 2.15, TensorFlow 2.21).
    import_module("torch._dynamo")
    return package("keras_hub", install="keras-hub")


def _load_preset(directory: Path) -> Foreign:
    """The model of a directory, in float32; of a task, without what comes after its logits."""
    models = _keras_hub().models
    if (directory / "task.json").exists():
        return models.ImageClassifier.from_preset(str(directory), dtype="float32", activation=None)
    return models.Backbone.from_preset(str(directory), dtype="float32")


def _model_of(checkpoint: Checkpoint) -> Foreign:
    """KerasHub's model of the checkpoint's own tensors, which are written as a preset for it.

    The files of somebody else are not opened: neither HDF5's library nor Keras' unpacking of
    configurations is meant for those of somebody hostile.
    """
    _keras_hub()
    table, text, weights = checkpoint.table, checkpoint.text, checkpoint.weights
    described = DescribedModel(
        config=checkpoint.config,
        text=DescribedText.of(text) if text else None,
    )
    target = PROGRAM.fit(table, described)
    # What stands before a backbone's names in a file of the whole model, where two are read.
    base = next(iter(table.words.get("base", ("",))[1:]), "")
    tensors = {name.removeprefix(base): t for name, t in own_tensors(checkpoint).items()}
    plans = [target.plan]
    if text and target.text:
        tensors |= {key: text.read(key).float() for key in text.keys}
        plans.append(target.text.plan)
    # The file's own tensors that play no part, where the class asks for them.
    inert = {a.target for plan in plans for a in plan.assemblies if not a.pieces}
    found = inert & weights.recognised.binding.shapes.keys()
    tensors |= {name: weights.read(name) for name in found}
    parts: dict[str, dict[str, Tensor]] = {"model.weights.h5": {}}
    for name, tensor in tensors.items():
        parts.setdefault(table.file_of(name, "model.weights.h5"), {})[name] = tensor
    with TemporaryDirectory() as folder:
        for file, part in parts.items():
            contents = {name: content_of(name, tensor) for name, tensor in part.items()}
            path = Path(folder, file)
            written_module("hdf5").write_file(path, contents, Surroundings())
        for file, content in _preset_files(target.their_config).items():
            Path(folder, file).write_text(json.dumps(content), encoding="utf-8", newline="\n")
        try:
            return _load_preset(Path(folder))
        except (ValueError, KeyError, TypeError) as error:
            problem = str(error).strip().partition("\n")[0]
            raise TensorsNotTaken(f"KerasHub does not take these tensors: {problem}") from error


def _kind(model: Foreign) -> str:
    return type(model).__name__


def _name(model: Foreign) -> str:
    import keras

    return f"keras-hub {_keras_hub().__version__} {_kind(model)} on {keras.backend.backend()}"


def _run(model: Foreign, images: "Tensor") -> "Tensor":
    """Logits of a task, features, or tokens of a backbone; images are as ours, (B, C, H, W)."""
    import numpy as np
    import torch

    inputs = images.permute(0, 2, 3, 1).numpy()
    if hasattr(model, "get_vision_embeddings"):
        return torch.from_numpy(np.array(model.get_vision_embeddings(inputs)))
    named = dict.fromkeys(model.input, inputs) if isinstance(model.input, dict) else inputs
    output = np.array(model(named))
    return torch.from_numpy(output[:, 0] if _kind(model) == "CLIPVisionEncoder" else output)


def _run_texts(model: Foreign, ids: "Tensor") -> "Tensor":
    """Features of texts, (B, L), of a model of both encoders, before they are normed."""
    import numpy as np
    import torch

    return torch.from_numpy(np.array(model.get_text_embeddings(ids.numpy())))


PROGRAM = KerasHub()
