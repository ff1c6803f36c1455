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
from torch import Tensor, nn

from vitconvert.checkpoint import Checkpoint
from vitconvert.containers import written_module
from vitconvert.containers.content import content_of
from vitconvert.containers.format_modules import Surroundings
from vitconvert.errors import NotRepresentable
from vitconvert.programs.keras_hub.preset import preset_config, preset_files
from vitconvert.programs.reference import Reference, TensorsNotTaken, own_tensors, package


def keras_hub_reference(checkpoint: Checkpoint) -> Reference:
    """Write the checkpoint's own tensors as a preset, and have KerasHub load it.

    keras-hub 0.32.0. The files of somebody else are not opened: neither HDF5's library nor Keras'
    unpacking of configurations is meant for those of somebody hostile.

    Raises:
        MissingPackage: keras-hub is not installed.
        NotRepresentable: Its class needs more than these tensors.
        TensorsNotTaken: It does not take them.
    """
    if not (checkpoint.table.config_file and checkpoint.table.config_file.writes):
        raise NotRepresentable(
            f"{checkpoint.table.title}: its class needs more of a preset than vitconvert reads."
        )
    hub = _keras_hub()
    with TemporaryDirectory() as folder:
        _write_preset(Path(folder), checkpoint)
        try:
            model = load_preset(Path(folder))
        except (ValueError, KeyError, TypeError) as error:
            problem = str(error).strip().partition("\n")[0]
            raise TensorsNotTaken(f"KerasHub does not take these tensors: {problem}") from error
    name = f"keras-hub {hub.__version__} {type(model).__name__} on {_backend()}"
    tokens = not checkpoint.config.num_classes
    return Reference(
        name=name,
        model=nn.Identity(),  # the model is none of PyTorch
        taps={},
        run=lambda _, images: run(model, images),
        reads="tokens" if tokens else "output",
        dtypes=("float32",),
        told=("image_size", "norm_eps", "pooling"),
    )


def load_preset(directory: Path) -> Any:
    """The model of a directory, in float32."""
    models = _keras_hub().models
    has_task = (directory / "task.json").exists()
    kind = models.ImageClassifier if has_task else models.Backbone
    return kind.from_preset(str(directory), dtype="float32")


def run(model: Any, images: Tensor) -> Tensor:
    """Logits of a task, or tokens of a backbone; images are as ours, (B, C, H, W)."""
    output = model(images.permute(0, 2, 3, 1).numpy())
    return torch.from_numpy(np.array(output))


def _keras_hub() -> ModuleType:
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
    table = checkpoint.table
    names = {n.removeprefix(_base(table)): t for n, t in own_tensors(checkpoint).items()}
    parts: dict[str, dict[str, Tensor]] = {"model.weights.h5": {}}
    for name, tensor in names.items():
        of = (file for file, begin in table.files.items() if name.startswith(begin))
        parts.setdefault(next(of, "model.weights.h5"), {})[name] = tensor
    for file, tensors in parts.items():
        contents = {name: content_of(name, tensor) for name, tensor in tensors.items()}
        written_module("hdf5").write_file(folder / file, contents, Surroundings(), True)
    files: Mapping[str, Any] = preset_files(preset_config(table, checkpoint.config))
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))


def _base(table: Any) -> str:
    """What stands before a backbone's names in a file of the whole model."""
    return str(table.reader.words["base"][1])
