"""From a file of unknown names and a known ViT to the draft of a table."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint, ReadOptions, read_checkpoint
from vitconvert.checkpoint.reading import open_weights
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonObject
from vitconvert.drafting.draft_text import draft_text, facts_of, parse_draft
from vitconvert.drafting.entries import Entry, entries_of, no_part
from vitconvert.drafting.matching import Matching
from vitconvert.drafting.rows import DraftRow, rows_of
from vitconvert.drafting.slots import Values, sizes_of, slots_of
from vitconvert.drafting.stems import Stem, stems_of
from vitconvert.errors import ConflictingFact, UsageError, VitConvertError, some
from vitconvert.facts.accounts import check_accounts
from vitconvert.facts.gathering import gather_facts
from vitconvert.facts.statements import Statements
from vitconvert.formats import Container
from vitconvert.sources import Located, locate
from vitconvert.sources.references import published
from vitconvert.sources.timm_names import shapes_of_timm
from vitconvert.tables.architectures import named
from vitconvert.tables.axes import Shape
from vitconvert.tables.binding import bind
from vitconvert.tables.canonical import instances
from vitconvert.tables.detection import common_prefix, recognise
from vitconvert.tables.others import refuse_quantised
from vitconvert.wrappers import why_beside

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A ViT that is known.

    Attributes:
        name: As reports call it.
        config: Its configuration.
        tensors: Its weights by canonical name, or None for an architecture alone.
    """

    name: str
    config: ViTConfig
    tensors: "Mapping[str, torch.Tensor] | None"


def read_reference(
    like: str | PathLike[str] | Located | Checkpoint, overrides: JsonObject | None = None
) -> Reference:
    """Read the reference that `--like` names: an architecture of timm, or a checkpoint.

    Args:
        like: The reference.
        overrides: Facts that its tensors do not show.

    Raises:
        SourceError: It leads to neither.
        VitConvertError: One of the errors of `vitconvert.load_checkpoint`.
    """
    if isinstance(like, str | PathLike) and is_architecture(fspath(like)):
        name = fspath(like)
        recognised = recognise(shapes_of_timm(name))
        stated = Statements(architecture=name, user=overrides or {}).facts(recognised.table)
        config = gather_facts(recognised.binding, stated).config()
        return Reference(name=f"timm's {name}, shapes alone", config=config, tensors=None)
    options = ReadOptions(overrides=overrides)
    if isinstance(like, Checkpoint):
        options.refuse("the reference was read already")
    else:
        like = read_checkpoint(like if isinstance(like, Located) else locate(like), options)
    return Reference(
        name=published(like.located.reference),
        config=like.config,
        tensors=None if like.random else like.tensors,
    )


def is_architecture(like: str) -> bool:
    """Whether this names an architecture of timm, and no file that is here."""
    return like in named("timm") and not Path(like).exists()


_MOST = 1000  # names, those of blocks counted once
_TAKEN = "other tensors took the places that it fits"
_UNLIKE = "nothing of the reference is like it"
_MAY_DIFFER = ("num_classes", "image_size")  # fine-tuning changes these, and the file shows them
_ENOUGH = 0.5  # of the tensors: with fewer equal ones, the weights are not taken for the same


@dataclass(frozen=True, kw_only=True, repr=False)
class Draft:
    """A proposal of a table.

    Attributes:
        source: The file, as reports call it.
        like: The ViT that it was compared with.
        rows: What was found, in the order of our tensors; guesses are commented out in the text.
        ignored: Names of theirs that play no part, and why.
        left: Names of theirs that no row uses, and why.
        unfilled: Tensors of the reference for which nothing was found.
        config: What the reference says, and no tensor tells: these are lines of the table too.
        values: How many tensors have the reference's values, or why none were compared.
        problem: Why the table does not read the file as it stands; None if it does.
        text: The table.
    """

    source: str
    like: str
    rows: tuple[DraftRow, ...]
    ignored: Mapping[str, str]
    left: Mapping[str, str]
    unfilled: tuple[str, ...]
    config: Mapping[str, object]
    values: str
    problem: VitConvertError | None
    text: str

    @property
    def certain(self) -> tuple[DraftRow, ...]:
        """Rows that are no guesses."""
        return tuple(row for row in self.rows if row.certain)

    @property
    def guesses(self) -> tuple[DraftRow, ...]:
        """Rows that somebody has to look at."""
        return tuple(row for row in self.rows if not row.certain)

    def __repr__(self) -> str:
        ready = "ready" if self.problem is None else "not complete"
        return (
            f"<Draft {self.source!r}: {len(self.certain)} rows certain, {len(self.guesses)} "
            f"guessed, {len(self.left)} tensors left, {ready}>"
        )

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "source": self.source,
            "like": self.like,
            "rows": [row.to_dict() for row in self.rows],
            "ignored": dict(self.ignored),
            "left": dict(self.left),
            "unfilled": list(self.unfilled),
            "config": dict(self.config),
            "values": self.values,
            "problem": self.problem.to_dict() if self.problem else None,
            "text": self.text,
        }


def draft_located(located: Located, reference: Reference, options: ReadOptions) -> Draft:
    """Draft a table for the names of a file.

    Args:
        located: The file.
        reference: What it is like.
        options: `prefer` and `ignore` count.

    Raises:
        SourceError, CorruptFile, UnsafeFile: The file cannot be read, or not safely.
        TensorMismatch: Its weights are quantised.
        UsageError: Nothing in the file is like the reference.
    """
    container = open_weights(located, options)
    passed = options.ignored(container.manifest, container.path)
    kept = {
        name: info.shape
        for name, info in container.manifest.items()
        if name not in passed and not why_beside(name)
    }
    prefix = common_prefix(kept)
    shapes = {name[len(prefix) :]: shape for name, shape in kept.items()}
    refuse_quantised(shapes)
    floats = {  # whole numbers are no weights
        key: shape
        for key, shape in shapes.items()
        if container.manifest[prefix + key].dtype.startswith(("float", "bfloat"))
    }
    names = entries_of(floats, reference.config.depth)
    if len(names.entries) > _MOST:  # each is compared with every other
        raise UsageError(
            "The file has too many names to draft a table for.",
            evidence={
                "names": f"{len(names.entries)}, those of blocks counted once; {_MOST} at most",
                "such as": some(entry.text for entry in names.entries),
            },
            hint="--ignore PATTERN leaves those out that are no ViT's.",
        )
    stems, values, told = _stems(names.entries, container, prefix, reference)
    fitting = {key for s in stems if s.options for e in s.entries.values() for key in e.keys}
    matches = Matching(stems, by_values=values is not None).matches()
    source = published(located.reference)
    # Heads and positions of any model match; only blocks tell that it is a ViT of this kind.
    if not any(match.slot.looped for match in matches):
        raise _not_like(source, reference, shapes)
    rows, parts = rows_of(matches, values)
    used = {key for match in matches for key in match.entry.keys}
    unused = {key: _TAKEN if key in fitting else _UNLIKE for key in shapes if key not in used}
    unused |= {**names.left, **parts}
    ignored = {key: why for key in unused if (why := no_part(key))}
    left = {key: why for key, why in unused.items() if key not in ignored}
    filled = {row.name.replace("{p}", kind) for row in rows for kind in ("weight", "bias")}
    ours = instances(reference.config).items()
    unfilled = tuple(name for name, several in ours if several and name not in filled)
    same_weights = values is not None
    facts = facts_of(reference.config, rows, ignored, shapes, same_weights=same_weights)
    text = draft_text(source, reference.name, rows, ignored, left, unfilled, facts)
    return Draft(
        source=source,
        like=reference.name,
        rows=tuple(rows),
        ignored=ignored,
        left=left,
        unfilled=unfilled,
        config=facts,
        values=told,
        problem=_problem(text, shapes, reference.config),
        text=text,
    )


def _stems(
    entries: Sequence[Entry], container: Container, prefix: str, reference: Reference
) -> tuple[list[Stem], Values | None, str]:
    """Their modules, the values of both sides if the weights are the same, and how many are."""
    slots, sizes = slots_of(reference.config), sizes_of(reference.config)
    told = "none to compare"
    if reference.tensors is not None:

        def read(key: str) -> "torch.Tensor":
            return container.read(prefix + key)

        values = Values(theirs=read, ours=reference.tensors, sizes=sizes)
        stems = stems_of(entries, slots, sizes, values)
        fitting = [stem for stem in stems if stem.options]
        equal = sum(stem.valued for stem in fitting)
        told = f"{equal} of {len(fitting)} modules that fit have the reference's"
        if equal > _ENOUGH * len(fitting):
            return stems, values, told
        told += ": other weights"
    return stems_of(entries, slots, sizes, None), None, told


def _not_like(source: str, reference: Reference, shapes: Mapping[str, Shape]) -> UsageError:
    config = reference.config
    widths = Counter(size for shape in shapes.values() for size in shape)
    counts = Counter(number for key in shapes for number in set(re.findall(r"[0-9]+", key)))
    return UsageError(
        "Nothing in this file is like the blocks of the reference.",
        evidence={
            "reference": f"{reference.name}: {config.depth} blocks of width {config.embed_dim}",
            "file": f"{source}: {len(shapes)} tensors, such as {some(shapes, 2)}",
            "sizes": ", ".join(str(size) for size, _ in widths.most_common(4)) + " are frequent",
            "numbers": f"up to {max(map(int, counts), default=0)} in names",
        },
        hint="--like names a ViT of the same depth and width; `vitconvert inspect` shows shapes. "
        "torch.save of the state_dict() of timm.create_model(NAME, embed_dim=..., depth=..., "
        "num_heads=...) makes a file of one.",
    )


def _problem(text: str, shapes: Mapping[str, Shape], config: ViTConfig) -> VitConvertError | None:
    """Why a draft does not read the file that it was made of, or None."""
    try:
        binding = bind(parse_draft(text), shapes)
        found = gather_facts(binding, {}).config()
        check_accounts(binding, found, "the file")
    except VitConvertError as error:
        return error
    theirs, ours = found.function(), config.function()
    other = [
        f"{name}: {theirs.get(name)}, not {ours.get(name)}"
        for name in {**ours, **theirs}
        if name not in _MAY_DIFFER and theirs.get(name) != ours.get(name)
    ]
    if not other:
        return None
    return ConflictingFact("Read by the draft, the file is another model.", details=other)
