"""KerasHub's models, in whatever arithmetic Keras has here: PyTorch's, if nobody says otherwise."""

import json
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.formats import written_module
from vitconvert.formats.content import content_of
from vitconvert.formats.format_modules import Surroundings
from vitconvert.preprocessing import Preprocessing
from vitconvert.programs.keras_hub.preset import preset_files
from vitconvert.programs.program import BothTowers, DescribedModel, Preparation, program_of
from vitconvert.programs.reference import Reference, TensorsNotTaken, own_tensors, package
from vitconvert.programs.target import DescribedText, Target
from vitconvert.tables.table import Table

_CONVERTS = ("image_size", "scale", "offset", "interpolation", "antialias", "crop_to_aspect_ratio")


def keras_hub_reference(checkpoint: Checkpoint) -> Reference:
    """Write the checkpoint's own tensors as a preset, and have KerasHub load it.

    keras-hub 0.32.0. The files of somebody else are not opened: neither HDF5's library nor Keras'
    unpacking of configurations is meant for those of somebody hostile.

    Raises:
        MissingPackage: keras-hub is not installed.
        NotRepresentable: Its class needs more than these tensors.
        TensorsNotTaken: It does not take them.
    """
    model = own_model(checkpoint)
    hub = keras_hub()
    name = f"keras-hub {hub.__version__} {type(model).__name__} on {_backend()}"
    tokens = not checkpoint.config.num_classes and not _pools(model)
    return Reference(
        name=name,
        model=nn.Identity(),  # the model is none of PyTorch
        taps={},
        run=lambda _, images: run(model, images),
        reads="tokens" if tokens else "output",
        dtypes=("float32",),
        told=("image_size", "norm_eps", "pooling"),
    )


def own_model(checkpoint: Checkpoint) -> Any:
    """KerasHub's model of a checkpoint, as `keras_hub_reference` loads it."""
    keras_hub()
    with TemporaryDirectory() as folder:
        _write_preset(Path(folder), checkpoint)
        try:
            return load_preset(Path(folder))
        except (ValueError, KeyError, TypeError) as error:
            problem = str(error).strip().partition("\n")[0]
            raise TensorsNotTaken(f"KerasHub does not take these tensors: {problem}") from error


def load_preset(directory: Path) -> Any:
    """The model of a directory, in float32."""
    models = keras_hub().models
    has_task = (directory / "task.json").exists()
    kind = models.ImageClassifier if has_task else models.Backbone
    return kind.from_preset(str(directory), dtype="float32")


def both_towers(directory: Path) -> BothTowers:
    """The model of a directory, which has both."""
    model = load_preset(directory)
    return BothTowers(
        name=f"keras-hub {keras_hub().__version__} {type(model).__name__} on {_backend()}",
        images=lambda images: run(model, images),
        texts=lambda ids: run_texts(model, ids),
    )


def run(model: Any, images: Tensor) -> Tensor:
    """Logits of a task, features, or tokens of a backbone; images are as ours, (B, C, H, W)."""
    inputs = images.permute(0, 2, 3, 1).numpy()
    if hasattr(model, "get_vision_embeddings"):
        return torch.from_numpy(np.array(model.get_vision_embeddings(inputs)))
    output = np.array(model({"images": inputs} if isinstance(model.input, dict) else inputs))
    pooled = output[:, 0] if type(model).__name__ == "CLIPVisionEncoder" else output
    return torch.from_numpy(pooled)


def run_texts(model: Any, ids: Tensor) -> Tensor:
    """What a model of both towers makes of texts, (B, L), before it is normed."""
    return torch.from_numpy(np.array(model.get_text_embeddings(ids.numpy())))


def _pools(model: Any) -> bool:
    """Whether `run` leads to features: CLIP and SigLIP have no class for tokens."""
    return hasattr(model, "get_vision_embeddings") or type(model).__name__.endswith("VisionEncoder")


def keras_hub() -> ModuleType:
    """The package, on PyTorch where neither Keras was imported nor the user has chosen."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # it imports TensorFlow, if that is there
    # Triton, with an LLVM of its own, ends a process that has TensorFlow's already, which KerasHub
    # imports where it is; the other way round they get on (torch 2.15, TensorFlow 2.21).
    import_module("torch._dynamo")
    return package("keras_hub", install="keras-hub")


def _backend() -> str:
    import keras

    return str(keras.backend.backend())


def _write_preset(folder: Path, checkpoint: Checkpoint) -> None:
    table, text = checkpoint.table, checkpoint.text
    described = DescribedModel(
        config=checkpoint.config,
        text=DescribedText(config=text.config, table=text.table) if text else None,
    )
    target = program_of(table).fit(table, described)
    names = {n.removeprefix(_base(table)): t for n, t in own_tensors(checkpoint).items()}
    if text and target.text:
        names |= {key: text.read(key).float() for key in text.keys}
    names |= _constants(checkpoint, target)
    parts: dict[str, dict[str, Tensor]] = {"model.weights.h5": {}}
    for name, tensor in names.items():
        of = (file for file, begin in table.files.items() if name.startswith(begin))
        parts.setdefault(next(of, "model.weights.h5"), {})[name] = tensor
    for file, tensors in parts.items():
        contents = {name: content_of(name, tensor) for name, tensor in tensors.items()}
        written_module("hdf5").write_file(folder / file, contents, Surroundings(), True)
    for file, content in preset_files(target.their_config).items():
        (folder / file).write_text(json.dumps(content))


def _constants(checkpoint: Checkpoint, target: Target) -> dict[str, Tensor]:
    """The file's own tensors that play no part, where the class asks for them."""
    weights, plans = checkpoint.weights, [target.plan]
    plans += [target.text.plan] if target.text else []
    inert = {a.target for plan in plans for a in plan.assemblies if not a.pieces}
    found = inert & weights.recognised.binding.shapes.keys()
    return {name: weights.read(name) for name in found}


def _base(table: Table) -> str:
    """What stands before a backbone's names in a file of the whole model, where two are read."""
    _, *others = table.words.get("base", ("",))
    return others[0] if others else ""


def keras_hub_preparation(said: Mapping[str, Any], config: ViTConfig) -> Preparation:
    """keras-hub 0.32, ImageConverter with the arguments of the file, in whole numbers.

    Raises:
        MissingPackage: keras-hub is not installed.
    """
    hub, size = keras_hub(), config.image_size
    steps = Preprocessing.from_keras_hub(said, image_size=size, channels=config.in_channels)
    arguments = {key: value for key, value in said["config"].items() if key in _CONVERTS}
    layer = hub.layers.ImageConverter(**arguments, dtype="float32")

    def prepare(image: Image.Image) -> Tensor:
        pixels = np.atleast_3d(np.array(image.convert("L" if steps.channels == 1 else "RGB")))
        return torch.from_numpy(np.array(layer(pixels))).permute(2, 0, 1)

    return Preparation(
        name=f"keras-hub {hub.__version__}'s ImageConverter", prepare=prepare, steps=steps
    )
