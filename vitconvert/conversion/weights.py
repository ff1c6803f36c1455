"""The weights of an output: moved as bytes where possible, through memory otherwise."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.checkpoint.weights import Explained
from vitconvert.conversion.steps import STEPS
from vitconvert.conversion.stream import stream
from vitconvert.documents import JsonObject
from vitconvert.errors import NotRepresentable, UsageError
from vitconvert.facts.plan import Plan, compose
from vitconvert.file_formats import INDEX, written_formats
from vitconvert.formats import (
    Content,
    Surroundings,
    TensorInfo,
    content_of,
    split,
    write_index,
    written_module,
)
from vitconvert.programs.program import program_of
from vitconvert.programs.target import Target
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor


def contents_for(target: Target, source: Checkpoint, allow: Sequence[str]) -> dict[str, Content]:
    """Every tensor of the target, from a file as it is or from a checkpoint that was changed.

    Those of a text encoder are among them, where the target has a place for it.

    Raises:
        NotRepresentable: A step that the target leaves out is not zero. The hint names what would
            help beside what is allowed.
    """
    try:
        found = _contents(target.plan, source.weights, None if source.as_read else source.tensors)
    except NotRepresentable as error:
        step = STEPS["drop-key-bias"]
        if step.applies(source.config):
            error.steps = (*allow, step.name)
            names = " ".join(f"--allow {name}" for name in error.steps)
            error.hint = (
                f"{names} makes it fit: the bias of the keys, which softmax cancels, becomes zero."
            )
        raise
    if (text := source.text) and target.text:
        found |= _contents(target.text.plan, text, text.tensors if text.dtype else None)
    return found


def _contents(
    writing: Plan, file: Explained, changed: "Mapping[str, Tensor] | None"
) -> dict[str, Content]:
    """What a plan writes: bytes of the file, where those are enough and nothing was changed."""
    if changed is None:
        contents = stream(compose(file.plan, writing), file.container, file.prefix)
        if contents is not None:
            return contents
    from vitconvert.facts.materialise import materialise

    tensors = materialise(writing, (file.tensors if changed is None else changed).__getitem__)
    return {name: content_of(name, tensor) for name, tensor in tensors.items()}


def weights_files(
    table: Table, infos: Mapping[str, TensorInfo], most: int | None
) -> dict[str, list[str]]:
    """The files of weights by name, and which tensors go into each.

    Raises:
        UsageError: The program of this dialect reads a single file.
    """
    form = written_formats()[table.container]
    name = form.output
    if table.files:  # the project keeps some tensors in files of their own
        files: dict[str, list[str]] = {name: []}
        for tensor in infos:
            files.setdefault(table.file_of(tensor, name), []).append(tensor)
    else:
        files = split(name, infos, most)
    if most is not None and (not form.sharded or program_of(table).one_file):
        raise UsageError(
            f"{table.title} is read from one file, {name}.",
            evidence={"asked for": f"at most {most:,} bytes", "would be": f"{len(files)} files"},
            hint="leave out --max-shard-size (in Python, max_shard_size).",
        )
    return files


def index_name(table: Table, files: Collection[str]) -> str:
    """The file that says which of these each tensor is in; "" where the names alone say it."""
    split_by_size = len(files) > 1 and not table.files
    return written_formats()[table.container].output + INDEX if split_by_size else ""


def write_weights(
    directory: Path,
    table: Table,
    contents: Mapping[str, Content],
    most: int | None,
    *,
    metadata: Mapping[str, str],
    config: JsonObject,
) -> dict[str, str]:
    """Write the file (or files) of weights.

    Args:
        directory: Where.
        table: The dialect.
        contents: What, by name.
        most: Bytes of tensors in a file, where the format allows several; None is one file.
        metadata: What the header says besides, where the format has a place for it.
        config: What the file itself says of the model, where the format has a place for it.

    Returns:
        The sha256 of each file, by its name.

    Raises:
        UsageError: As `weights_files`.
    """
    infos = {name: content.info for name, content in contents.items()}
    files = weights_files(table, infos, most)
    surroundings = Surroundings(
        metadata={**metadata, "format": program_of(table).framework},
        wrapper=table.wrapper,
        extras=program_of(table).beside.get(table.name, {}),
        config=config,
    )
    write = written_module(table.container).write_file
    found = {}
    for file, names in files.items():
        part = {name: contents[name] for name in names}
        found[file] = write(directory / file, part, surroundings)
    if index := index_name(table, files):
        found[index] = write_index(directory / index, files, infos)
    return found
