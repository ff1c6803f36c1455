"""Opening an output with the programs that it is for, and comparing what they compute."""

import importlib.util
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint, ReadOptions, read_checkpoint
from vitconvert.comparison import TOLERANCE, relative_difference
from vitconvert.config import ViTConfig, field_names
from vitconvert.errors import MissingPackage, NotRepresentable, ParityFailed
from vitconvert.file_formats import written_formats
from vitconvert.formats import Container, bytes_of, written_module
from vitconvert.programs.program import Opener, build_reference, program_of
from vitconvert.sources import locate
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from vitconvert.model import ViT


def open_plainly(directory: Path, table: Table, container: Container) -> str:
    """Read an output as its users do, and compare every tensor with what vitconvert reads.

    Args:
        directory: The output.
        table: The dialect that it was written in.
        container: The output as vitconvert reads it.

    Returns:
        The name of the function that read it.

    Raises:
        ParityFailed: It finds other names, shapes or bytes.
    """
    form, module = written_formats()[table.container], written_module(table.container)
    left = set(container.manifest)
    for path in sorted(directory.glob(f"*{Path(form.output).suffix}")):
        for name, shape, data in module.read_plainly(path, table.wrapper):
            if name not in left or (shape, data) != _contents(container.read(name)):
                raise _differs(module.READER, name)
            left.remove(name)
    if left:
        raise _differs(module.READER, min(left))
    return module.READER


def _contents(tensor: "Tensor") -> tuple[tuple[int, ...], bytes]:
    return tuple(tensor.shape), bytes_of(tensor).tobytes()


def _differs(reader: str, key: str) -> ParityFailed:
    return ParityFailed(
        f"{reader} reads other tensors in the output than were written.",
        evidence={"tensor": key},
        hint="nothing was written. Please report this with the checkpoint's name.",
    )


# What timm and transformers raise for weights or arguments that they do not take.
REFUSALS = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, OSError, AssertionError)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """One program's verdict on an output.

    Attributes:
        consumer: The program.
        relative: max |difference| over max |output|, or None if it computes nothing.
        bit_equal: Whether what it computes, or else what it reads, is the same bit by bit.
        why_not: Why it computed nothing, if it should have.
    """

    consumer: str
    relative: float | None
    bit_equal: bool = False
    why_not: str | None = None

    def raise_if_failed(self) -> None:
        """Raise ParityFailed if the program computes something else."""
        if self.relative is not None and not self.relative <= TOLERANCE:
            raise ParityFailed(
                f"{self.consumer} loads the output and computes something else.",
                evidence={"relative difference": f"{self.relative:.3g}", "tolerance": TOLERANCE},
                hint="nothing was written. Please report this with the checkpoint's name.",
            )

    def summary(self, *, to: str = "") -> str:
        """The verdict in one line; `to` says what the output should compute, if not the source."""
        if self.why_not is not None:
            return f"{self.consumer}: not tried, {self.why_not}"
        if self.relative is None:
            return f"{self.consumer}: every tensor as it was written"
        equal = "bit-equal" if self.bit_equal else f"relative difference {self.relative:.1e}"
        return f"{self.consumer}: {f'the output, {equal} to {to}' if to else equal}"

    def to_dict(self) -> dict[str, Any]:
        """For `vitconvert.json` and `--json`."""
        return {**asdict(self), "of": "output"}


def open_output(directory: Path, table: Table, model: "ViT") -> tuple[Opened, ...]:
    """Load an output with the programs that it is for, and compare what they compute.

    Some programs load the directory by themselves. For other projects, the function that they use
    to read such files reads it, and their own class, where it can be installed, computes with the
    tensors.

    Args:
        directory: The output.
        table: The dialect that it was written in.
        model: What it should compute.

    Raises:
        ParityFailed: A program cannot load the output, or reads other tensors in it.
    """
    openers = program_of(table).openers(model.config)
    if not openers:
        return _open_as_their_project(directory, table, model)
    return tuple(
        _compare_opened(consumer, opener, directory, model) for consumer, opener in openers.items()
    )


def _open_as_their_project(directory: Path, table: Table, model: "ViT") -> tuple[Opened, ...]:
    own = None if builtin_tables().get(table.name) is table else table.file
    options = ReadOptions(dialect=table.name, table=own, overrides=_stated(model.config))
    written = read_checkpoint(locate(directory), options)
    with written.weights.container as container:
        return _open_plainly(directory, table, container), _compute(written, model)


def _open_plainly(directory: Path, table: Table, container: Container) -> Opened:
    try:
        reader = open_plainly(directory, table, container)
    except ModuleNotFoundError as error:
        reader, why_not = written_module(table.container).READER, f"{error.name} is not installed"
        return Opened(consumer=reader, relative=None, why_not=why_not)
    return Opened(consumer=reader, relative=None, bit_equal=True)


def _stated(config: ViTConfig) -> dict[str, Any]:
    fields = {name: getattr(config, name) for name in field_names()}
    return {name: value for name, value in fields.items() if value is not None}


def _compute(written: Checkpoint, model: "ViT") -> Opened:
    """The project's own class with the tensors of the output."""
    from vitconvert.programs.isolation import isolated, side_by_side
    from vitconvert.programs.reference import ConfigNotTaken, TensorsNotTaken

    with isolated():
        try:
            reference = build_reference(written)
        except (ConfigNotTaken, TensorsNotTaken) as error:  # vitconvert wrote both
            raise cannot_load(error.fact, "; ".join(error.details)) from error
        except (MissingPackage, NotRepresentable) as error:
            ecosystem = written.table.ecosystem
            return Opened(consumer=ecosystem, relative=None, why_not=error.fact.rstrip("."))
        theirs = reference.model.float()
        ours = reference.adapt(model).float()
        images = random_images(ours.config)
        reads_output = reference.reads == "output"
        found, wanted = side_by_side(
            lambda: reference.run(theirs, images),
            lambda: ours(images) if reads_output else ours.forward_features(images),
        )
        return verdict(reference.name, wanted, found)


def _compare_opened(consumer: str, opener: Opener, directory: Path, model: "ViT") -> Opened:
    from vitconvert.programs.isolation import isolated, side_by_side, silent_transformers

    if importlib.util.find_spec(consumer) is None:
        return Opened(consumer=consumer, relative=None, why_not="not installed")
    model = model.float()
    images = random_images(model.config)
    with isolated(), silent_transformers():
        opened = _open(consumer, opener, directory)
        theirs, ours = side_by_side(lambda: opened(images), lambda: model(images))
        if ours.shape != theirs.shape:  # a bare transformers model gives the tokens
            ours = model.forward_features(images)
    return verdict(consumer, ours, theirs)


def random_images(config: ViTConfig) -> "Tensor":
    """Two images of noise, the same for the same configuration."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, config.in_channels, *config.image_size, generator=generator)


def verdict(consumer: str, ours: "Tensor", theirs: "Tensor") -> Opened:
    """How near what a program computed comes."""
    import torch

    ours, theirs = ours.double(), theirs.double()
    return Opened(
        consumer=consumer,
        relative=relative_difference(theirs, ours),
        bit_equal=torch.equal(ours, theirs),
    )


def _open(consumer: str, opener: Opener, directory: Path) -> "Callable[[Tensor], Tensor]":
    try:
        return opener(directory)
    except REFUSALS as error:
        problem = str(error).partition("\n")[0]
        raise cannot_load(f"{consumer} cannot load the output.", problem) from error


def cannot_load(fact: str, problem: str) -> ParityFailed:
    """What to say of an output that a program does not take."""
    return ParityFailed(
        fact,
        evidence={"problem": problem},
        hint="nothing was written. Please report this with the checkpoint's name.",
    )
