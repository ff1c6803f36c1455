"""The weights of an output: moved as bytes where that will do, through memory where it will not."""

import re
from collections.abc import Mapping
from pathlib import Path

from vitconvert.containers import Content, content_of, write_npz, write_shards, write_torch
from vitconvert.conversion.gauges import GAUGES
from vitconvert.conversion.plan import compose, plan_reading
from vitconvert.conversion.target import Target
from vitconvert.errors import NotRepresentable, UsageError
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
        reading = plan_reading(recognised.binding, source.config)
        moved = stream(compose(reading, target.plan), source.container, recognised.prefix)
        if moved is not None:
            return moved
        source = checkpoint_of(source)
    return _materialised(target, source)


def _materialised(target: Target, checkpoint: Checkpoint) -> dict[str, Content]:
    from vitconvert.conversion.materialise import materialise

    try:
        tensors = materialise(target.plan, checkpoint.tensors.__getitem__)
    except NotRepresentable as error:
        gauge = GAUGES["drop-key-bias"]
        if gauge.config(checkpoint.config):
            error.hint = (
                f"--allow {gauge.name} sets it to zero, which softmax makes no difference of."
            )
        raise
    return {name: content_of(name, tensor) for name, tensor in tensors.items()}


def parse_size(text: int | str | None) -> int | None:
    """Bytes: a number, or one with a unit as in "5GB" (1000s) or "5GiB" (1024s).

    Raises:
        UsageError: It is no size.
    """
    if text is None or isinstance(text, int):
        return text
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if not match:
        raise UsageError(f"{text!r} is no size.", hint="Write bytes, or as in 5GB or 500MiB.")
    number, unit, binary = match.groups()
    power = " KMGT".index(unit.upper() or " ")
    return int(float(number) * (1024 if binary else 1000) ** power)


def weights_file(container: str, most: int | None = None) -> str:
    """What the file of weights is called, if it is one.

    Raises:
        UsageError: Files of this kind are not split.
    """
    name = _FILES[container]
    if most is not None and container != "safetensors":
        raise UsageError(
            f"Only safetensors are written in several files, and this target has {name}."
        )
    return name


def write_weights(
    directory: Path,
    container: str,
    contents: Mapping[str, Content],
    most: int | None = None,
    *,
    metadata: Mapping[str, str],
) -> dict[str, str]:
    """Write the file (or files) of weights.

    Args:
        directory: Where.
        container: "safetensors", "npz" or "torch".
        contents: What, by name.
        most: Bytes of tensors in a file of safetensors; None is one file.
        metadata: What the header of safetensors says besides; the other kinds have no place.

    Returns:
        The sha256 of each file, by its name.

    Raises:
        UsageError: Files of this kind are not split.
    """
    path = directory / weights_file(container, most)
    match container:
        case "safetensors":
            # transformers refuses files that do not say which framework they are for.
            stated = {**metadata, "format": "pt"}
            return write_shards(path, contents, metadata=stated, most=most)
        case "npz":
            return {path.name: write_npz(path, contents)}
        case _:
            return {path.name: write_torch(path, contents)}
