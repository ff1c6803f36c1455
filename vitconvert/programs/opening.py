"""Opening an output with the programs that it is for, and comparing what they compute."""

import importlib.util
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vitconvert.checkpoint import Checkpoint, ReadOptions, read_checkpoint
from vitconvert.comparison import TOLERANCE, relative_difference
from vitconvert.config import TextConfig, ViTConfig, field_names
from vitconvert.documents import JsonDict
from vitconvert.errors import MissingPackage, NotRepresentable, ParityFailed, VitConvertError
from vitconvert.file_formats import written_formats
from vitconvert.formats import Container, bytes_of, written_module
from vitconvert.programs.isolation import (
    isolated,
    side_by_side,
    silent_transformers,
)
from vitconvert.programs.program import build_reference, explained_refusal, program_of
from vitconvert.programs.reference import ConfigNotTaken, TensorsNotTaken
from vitconvert.sources import locate
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from vitconvert.model import ViT

Result = TypeVar("Result")
OnceOpened = Callable[[str, "Callable[[Tensor], Tensor]"], object]

_REPORT = "nothing was written. Please report this with the checkpoint's name."
# What timm and transformers raise for weights or arguments that they do not take.
_REFUSALS = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, OSError, AssertionError)


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
    left, differs = set(container.manifest), ""
    for path in sorted(directory.glob(f"*{Path(form.output).suffix}")):
        for name, shape, data in module.read_plainly(path, table.wrapper):
            ours = container.read(name) if name in left else None
            if ours is None or tuple(ours.shape) != shape or bytes_of(ours).tobytes() != data:
                differs = differs or name
            left.discard(name)
    if differs or left:
        raise ParityFailed(
            f"{module.READER} reads other tensors in the output than were written.",
            evidence={"tensor": differs or min(left)},
            hint=_REPORT,
        )
    return module.READER


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
        if self.relative is not None and not math.isfinite(self.relative):
            raise ParityFailed(
                f"{self.consumer} loads the output and computes NaN or infinite numbers.",
                hint="nothing was written. --dtype float32 holds what lower precision cannot.",
            )
        if self.relative is not None and not self.relative <= TOLERANCE:
            raise ParityFailed(
                f"{self.consumer} loads the output and computes something else.",
                evidence={"relative difference": f"{self.relative:.3g}", "tolerance": TOLERANCE},
                hint=_REPORT,
            )

    def summary(self, *, to: str = "") -> str:
        """The verdict in one line; `to` says what the output should compute, if not the source."""
        if self.why_not is not None:
            return f"{self.consumer}: not tried, {self.why_not}"
        if self.relative is None:
            return f"{self.consumer}: every tensor as it was written"
        equal = "bit-equal" if self.bit_equal else f"relative difference {self.relative:.1e}"
        return f"{self.consumer}: {f'the output, {equal} to {to}' if to else equal}"

    def to_dict(self) -> JsonDict:
        """For `vitconvert.json` and `--json`."""
        return {**asdict(self), "of": "output"}


def open_output(
    directory: Path, table: Table, model: "ViT", *, once_opened: OnceOpened = lambda *_: None
) -> tuple[Opened, ...]:
    """Load an output with the programs that it is for, and compare what they compute.

    Some programs load the directory by themselves. For other projects, the function that they use
    to read such files reads it, and their own class, where it can be installed, computes with the
    tensors.

    Args:
        directory: The output.
        table: The dialect that it was written in.
        model: What it should compute.
        once_opened: Given the name of the first program that opened it and what that computes of
            images, after the comparison.

    Raises:
        ParityFailed: A program cannot load the output, or reads other tensors in it.
    """

    openers = program_of(table).openers(model.config)
    if not openers:
        return _open_as_their_project(directory, table, model, once_opened)
    model, images = model.float(), random_images(model.config)
    with isolated(), silent_transformers():
        opened = {
            consumer: _open(consumer, opener, directory)
            for consumer, opener in openers.items()
            if importlib.util.find_spec(consumer)
        }
        theirs = (partial(run, images) for run in opened.values())
        wanted, *found = side_by_side(partial(model, images), *theirs)
        verdicts = {}
        for consumer, output in zip(opened, found, strict=True):
            # A bare transformers model gives the tokens.
            as_tokens = output.shape != wanted.shape
            ours = model.forward_features(images) if as_tokens else wanted
            verdicts[consumer] = verdict(consumer, ours, output)
        for consumer, run in [*opened.items()][:1]:
            once_opened(consumer, run)
    missing = partial(Opened, relative=None, why_not="not installed")
    return tuple(verdicts.get(name) or missing(consumer=name) for name in openers)


def _open_as_their_project(
    directory: Path, table: Table, model: "ViT", once_opened: OnceOpened
) -> tuple[Opened, Opened]:
    """The function that reads such files, and the project's own class with the tensors."""

    own = None if builtin_tables().get(table.name) is table else table.file
    fields = {name: getattr(model.config, name) for name in field_names()}
    stated = {name: value for name, value in fields.items() if value is not None}
    options = ReadOptions(dialect=table.name, table=own, overrides=stated)
    written = read_checkpoint(locate(directory), options)
    with written.weights.container as container:
        try:
            reader = open_plainly(directory, table, container)
            read = Opened(consumer=reader, relative=None, bit_equal=True)
        except ModuleNotFoundError as error:
            why_not = f"{error.name} is not installed"
            reader = written_module(table.container).READER
            read = Opened(consumer=reader, relative=None, why_not=why_not)
        with isolated():
            try:
                reference = build_reference(written)
            except (ConfigNotTaken, TensorsNotTaken) as error:  # vitconvert wrote both
                raise _cannot_load(error.fact, "; ".join(error.details)) from error
            except (MissingPackage, NotRepresentable) as error:
                return read, _not_tried(written.table.ecosystem, error)
            theirs = reference.model.float()
            ours = reference.adapt(model).float()
            images = random_images(ours.config)
            reads_output = reference.reads == "output"
            found, wanted = side_by_side(
                lambda: reference.run(theirs, images),
                lambda: ours(images) if reads_output else ours.forward_features(images),
            )
            if reference.any_size:
                once_opened(reference.name, partial(reference.run, theirs))
            return read, verdict(reference.name, wanted, found)


def _open(consumer: str, opener: Callable[[Path], Result], directory: Path) -> Result:
    from vitconvert.programs.undrawn import Undrawn

    try:
        with Undrawn():
            return opener(directory)
    except (MissingPackage, NotRepresentable):
        raise
    except _REFUSALS as error:
        problem = str(error).partition("\n")[0]
        raise _cannot_load(f"{consumer} cannot load the output.", problem) from error


def _cannot_load(fact: str, problem: str) -> ParityFailed:
    return ParityFailed(fact, evidence={"problem": problem}, hint=_REPORT)


def _not_tried(consumer: str, error: VitConvertError) -> Opened:
    return Opened(consumer=consumer, relative=None, why_not=error.fact.rstrip("."))


def verdict(consumer: str, ours: "Tensor", theirs: "Tensor") -> Opened:
    """The difference of two outputs, as the verdict on a program."""
    import torch

    ours, theirs = ours.double(), theirs.double()
    return Opened(
        consumer=consumer,
        relative=relative_difference(theirs, ours),
        bit_equal=torch.equal(ours, theirs),
    )


def open_both_towers(
    directory: Path, table: Table, source: Checkpoint, model: "ViT"
) -> tuple[Opened, ...]:
    """Load an output with the program that has both encoders, and compare both.

    vitconvert computes no texts: the source's own program does, from the source's own files, and
    the target's from the output.

    Args:
        directory: The output.
        table: How the text encoder was written.
        source: What it was made of, with a text encoder.
        model: What the vision encoder should compute.

    Raises:
        ParityFailed: The program cannot load the output.
    """

    text, program = source.text, program_of(table)
    assert text is not None
    ids = random_ids(text.config)
    with isolated(), silent_transformers():
        try:
            towers = _open(f"{table.title}: its program", program.open_both, directory)
        except (MissingPackage, NotRepresentable) as error:
            return (_not_tried(f"{table.title}, both encoders", error),)
        of_images = []
        if not program.openers(model.config):  # those were asked for images already
            model, images = model.float(), random_images(model.config)
            theirs, ours = side_by_side(lambda: towers.images(images), lambda: model(images))
            of_images = [verdict(f"{towers.name}, images", ours, theirs)]
        consumer = f"{towers.name}, texts"
        try:
            with explained_refusal(source):
                texts = program_of(text.table).texts(source)
        except (MissingPackage, NotRepresentable) as error:
            of_texts = _not_tried(consumer, error)
        else:
            theirs, wanted = side_by_side(lambda: towers.texts(ids), lambda: texts(ids))
            of_texts = verdict(consumer, wanted, theirs)
    return (*of_images, of_texts)


def random_images(config: ViTConfig) -> "Tensor":
    """Two images of noise, the same for the same configuration."""
    import torch

    generator = torch.Generator(device="cpu").manual_seed(0)
    size = (2, config.in_channels, *config.image_size)
    return torch.randn(size, generator=generator, dtype=torch.float32, device="cpu")


def random_ids(config: TextConfig) -> "Tensor":
    """Three texts of noise, as long as they may be, that end where the encoder looks for it.

    Where the id of the end is outside the vocabulary, as with the defaults of a small
    `CLIPConfig`, no text can end.
    """
    import torch

    generator = torch.Generator(device="cpu").manual_seed(0)
    most, length = config.vocab_size - 1, config.context_length
    ids = torch.randint(0, max(most, 1), (3, length), generator=generator, device="cpu")
    if config.read_token == "last" or not 0 <= config.end_id < config.vocab_size:
        return ids
    end = config.end_id if config.read_token == "end" else most
    if config.read_token == "end":
        ids[ids == end] = 0 if end else most
    ids[torch.arange(3), torch.tensor([length - 1, length // 2, 0])] = end
    return ids
