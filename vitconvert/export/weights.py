"""The weights of an output: moved as bytes where that will do, through memory where it will not."""

from pathlib import Path

from vitconvert.containers import Content, content_of, write_npz, write_safetensors, write_torch
from vitconvert.conversion.plan import compose, plan_reading
from vitconvert.conversion.target import Target
from vitconvert.export.stream import stream
from vitconvert.loading import Checkpoint, Reading, checkpoint_of

_FILES = {"safetensors": "model.safetensors", "npz": "model.npz", "torch": "model.pt"}


def contents_for(target: Target, source: Reading | Checkpoint) -> dict[str, Content]:
    """Every tensor of the target, from a file as it is or from a checkpoint that was changed.

    Raises:
        NotRepresentable: A step that the target leaves out is not zero.
    """
    if isinstance(source, Reading):
        recognised = source.recognised
        reading = plan_reading(recognised.binding.links, source.config)
        moved = stream(compose(reading, target.plan), source.container, recognised.prefix)
        if moved is not None:
            return moved
        source = checkpoint_of(source)
    return _materialised(target, source)


def _materialised(target: Target, checkpoint: Checkpoint) -> dict[str, Content]:
    from vitconvert.conversion.materialise import materialise

    tensors = materialise(target.plan, checkpoint.tensors.__getitem__)
    return {name: content_of(name, tensor) for name, tensor in tensors.items()}


def write_weights(directory: Path, container: str, contents: dict[str, Content]) -> dict[str, str]:
    """Write the file (or files) of weights.

    Args:
        directory: Where.
        container: "safetensors", "npz" or "torch".
        contents: What, by name.

    Returns:
        The sha256 of each file, by its name.
    """
    path = directory / _FILES[container]
    match container:
        case "safetensors":
            # transformers refuses files that do not say which framework they are for.
            sha256 = write_safetensors(path, contents, metadata={"format": "pt"})
        case "npz":
            sha256 = write_npz(path, contents)
        case _:
            sha256 = write_torch(path, contents)
    return {path.name: sha256}
