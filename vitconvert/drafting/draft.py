"""From a file of unknown names and a known ViT to the draft of a table."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint, ReadOptions, read_checkpoint
from vitconvert.checkpoint.reading import in_memory, open_weights
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonObject
from vitconvert.drafting.draft_text import (
    draft_text,
    facts_of,
    only_of,
    parse_draft,
    row_as_certain,
)
from vitconvert.drafting.entries import Entry, entries_of, no_part
from vitconvert.drafting.matching import DraftMatch, Matching
from vitconvert.drafting.rows import (
    DraftRow,
    orders_of,
    reordered,
    rows_of,
    with_fc_norm,
    with_shared_norm,
)
from vitconvert.drafting.slots import ComparedValues, sizes_of, slots_of
from vitconvert.drafting.stems import Stem, stems_of
from vitconvert.errors import (
    ConflictingFact,
    TensorMismatch,
    UnknownDialect,
    UsageError,
    VitConvertError,
    some,
)
from vitconvert.facts.accounts import check_accounts
from vitconvert.facts.fact import USER, Fact
from vitconvert.facts.gathering import gather_facts
from vitconvert.facts.plan import plan_reading
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
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.others import refuse_quantised
from vitconvert.wrappers import why_beside

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vitconvert.drafting.own_module import OwnModule


@dataclass(frozen=True, kw_only=True)
class DraftReference:
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
) -> DraftReference:
    """Read the reference that `--like` names: an architecture of timm, or a checkpoint.

    Args:
        like: The reference.
        overrides: Facts that its tensors do not show.

    Raises:
        SourceError: It leads to neither.
        VitConvertError: One of the errors of `vitconvert.load_checkpoint`.
    """
    if isinstance(like, str | PathLike):
        check_no_dialect(fspath(like))
    if isinstance(like, str | PathLike) and is_architecture(fspath(like)):
        name = fspath(like)
        recognised = recognise(shapes_of_timm(name))
        stated = Statements(architecture=name, user=overrides or {}).facts(recognised.table)
        config = gather_facts(recognised.binding, stated).config()
        return DraftReference(name=f"timm's {name}, only shapes", config=config, tensors=None)
    options = ReadOptions(overrides=overrides)
    if isinstance(like, Checkpoint):
        options.refuse("the reference was read already")
    else:
        located = like if isinstance(like, Located) else locate(like)
        try:
            like = read_checkpoint(located, options)
        except (TensorMismatch, UnknownDialect) as error:
            if "--table" not in (error.hint or ""):
                raise
            raise type(error)(  # a table of the reference's own is no help here
                error.fact,
                evidence=error.evidence,
                details=error.details,
                meaning=error.meaning,
                hint="the reference must be a ViT that `vitconvert inspect` reads: an architecture "
                "of timm, such as vit_base_patch16_224, or another file.",
            ) from None
    return DraftReference(
        name=published(like.located.reference),
        config=like.config,
        tensors=None if like.random else like.tensors,
    )


def is_architecture(like: str) -> bool:
    """Whether this names an architecture of timm, and no file that is here."""
    return like in named("timm") and not Path(like).exists()


def check_no_dialect(like: str) -> None:
    """Refuse the name of a dialect, which has no sizes.

    Raises:
        UsageError: It is one.
    """
    tables = builtin_tables()
    if like in {*tables, *(t.ecosystem for t in tables.values())} and not Path(like).exists():
        raise UsageError(
            f"{like!r} is a dialect, not a ViT of certain sizes.",
            hint="--like names an architecture of timm, such as vit_base_patch16_224, or a "
            "checkpoint; --module the code that builds your model.",
        )


_MOST = 1000  # names, those of blocks counted once
_TAKEN = "other tensors took the places that it fits"
_SLICES = "each head reads a slice of the tokens, and not all of a token as in a ViT"
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
        config: What the reference says, and no tensor shows: these are lines of the table too.
        values: How many tensors have the reference's values, or why none were compared.
        computed: Whether the module's own code computes what the draft says; "" without a module.
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
    computed: str = ""
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
            "computed": self.computed,
            "problem": self.problem.to_dict() if self.problem else None,
            "text": self.text,
        }


def draft_of(
    located: Located | None,
    like: "str | PathLike[str] | Located | Checkpoint | None",
    module: "nn.Module | None",
    options: ReadOptions,
    overrides: JsonObject | None = None,
) -> Draft:
    """Draft a table for the names of a file, or of a module.

    Args:
        located: The file; of a module alone, a ViT that is known, or None.
        like: A ViT that is known, as for `read_reference`.
        module: A model of the user's own.
        options: `prefer`, `rescue`, `tower` and `ignore` count.
        overrides: Fields that the reference's tensors, or the module, do not show.

    Raises:
        SourceError, CorruptFile, UnsafeFile: The file cannot be read, or not safely.
        TensorMismatch: Its weights are quantised.
        UsageError: Nothing in the file is like the reference, or too little is given.
        MissingFact: The module does not show a size.
    """
    own = None
    if module is not None:
        from vitconvert.drafting.own_module import own_module

        own = own_module(type(module).__name__, module, overrides)
    if located is None:
        if own is None:
            raise UsageError(
                "There are no tensor names to draft a table for.",
                hint="name the file that has them, or the code that builds the model (--module).",
            )
    else:
        container = open_weights(located, options)
        prefix = options.tower or common_prefix(container.manifest)
        inside = {name.removeprefix(prefix) for name in container.manifest}
        if own is None or own.tensors.keys() & {*container.manifest, *inside}:
            reference = _reference(like, own, overrides)
            source = published(located.reference)
            return _draft(container, source, reference, options, own)
        like = like or located  # of other names than the module's
    assert own is not None
    reference = _reference(like, own, overrides)
    return _draft(in_memory(own.tensors), own.name, reference, options, own)


def _reference(
    like: "str | PathLike[str] | Located | Checkpoint | None",
    own: "OwnModule | None",
    overrides: JsonObject | None,
) -> DraftReference:
    if like is not None:
        return read_reference(like, overrides)
    if own is None:
        raise UsageError(
            "A ViT of the same sizes is needed, and none is named.",
            hint="--like names a ViT of the same sizes, or --module the code that builds yours.",
        )
    return DraftReference(name=f"{own.name}, the code itself", config=own.config, tensors=None)


def _draft(
    container: Container,
    source: str,
    reference: DraftReference,
    options: ReadOptions,
    own: "OwnModule | None",
) -> Draft:
    passed = options.ignored(container.manifest, container.path)
    kept = {
        name: info.shape
        for name, info in container.manifest.items()
        if name not in passed and not why_beside(name)
    }
    if tower := options.tower:
        kept = {name: shape for name, shape in kept.items() if name.startswith(tower)}
        if not kept:
            raise UsageError(
                f"No tensor's name begins with {tower!r}.",
                evidence={"file": source, "names": some(container.manifest, 4)},
            )
    prefix = tower or common_prefix(kept)
    shapes = {name[len(prefix) :]: shape for name, shape in kept.items()}
    refuse_quantised(shapes)
    floats = {  # whole numbers are no weights
        key: shape
        for key, shape in shapes.items()
        if container.manifest[prefix + key].dtype.startswith(("float", "bfloat"))
    }
    depth, heads = reference.config.depth, reference.config.num_heads
    names = entries_of(floats, depth, heads, whole=own is not None)
    if len(names.entries) > _MOST:  # each is compared with every other
        raise UsageError(
            "The file has too many names to draft a table for.",
            evidence={
                "names": f"{len(names.entries)}, those of blocks counted once; {_MOST} at most",
                "such as": some(entry.text for entry in names.entries),
            },
            hint="--ignore PATTERN leaves out those of other models.",
        )
    stems, values, told = _stems(names.entries, container, prefix, reference, exact=own is not None)
    fitting = {key for s in stems if s.options for e in s.entries.values() for key in e.keys}
    matches = Matching(stems, by_values=values is not None).matches()
    # Heads and positions of any model match; only blocks tell that it is a ViT of this kind.
    if not any(match.slot.looped for match in matches):
        raise _not_like(source, reference, shapes)
    rows, parts = rows_of(matches, values)
    rows = with_shared_norm(_doubtful_head(rows, matches, names.entries))
    used = {key for match in matches for key in match.entry.keys}
    unused = {key: _TAKEN if key in fitting else _UNLIKE for key in shapes if key not in used}
    unused |= {**names.left, **parts}
    unused |= dict.fromkeys(_slices(names.entries, reference.config) & unused.keys(), _SLICES)
    ignored = {key: why for key in unused if (why := no_part(key))}
    left = {key: why for key, why in unused.items() if key not in ignored}
    filled = {row.name.replace("{p}", kind) for row in rows for kind in ("weight", "bias")}
    ours = instances(reference.config).items()
    unfilled = tuple(name for name, several in ours if several and name not in filled)
    config, computed = reference.config, ""
    if own is not None:
        rows, config, computed = _tried(own, rows, ignored, shapes, config, prefix)
    # The module's own numbers were computed, where it was tried with success.
    same_weights = values is not None or computed.startswith("equal")
    facts = facts_of(config, rows, ignored, shapes, same_weights=same_weights)
    sections = {"only": only_of(config, rows)}
    if computed.startswith("equal"):  # no row shows what no tensor holds
        sections["only"]["position_embedding"] = config.position_embedding
    if computed.startswith(_OTHER):  # the table must not be used in silence
        locked = f"{computed}; once the rows are right, delete this line and its twin in [ask]"
        sections["ask"] = {"block_order": computed}
        sections["only"] = {"depth == 0": locked}
    guessed = own.tried if own is not None and not computed.startswith("equal") else frozenset()
    text = draft_text(
        source, reference.name, rows, ignored, left, unfilled, facts, sections, guessed=guessed
    )
    return Draft(
        source=source,
        like=reference.name,
        rows=tuple(rows),
        ignored=ignored,
        left=left,
        unfilled=unfilled,
        config={name: value for name, value in facts.items() if name not in guessed},
        values=told,
        computed=computed,
        problem=_problem(text, shapes, config),
        text=text,
    )


def _doubtful_head(
    rows: Sequence[DraftRow], matches: Sequence[DraftMatch], entries: Sequence[Entry]
) -> list[DraftRow]:
    """The head as a guess, where a matrix behind it reads what it gives."""
    head = next(
        (m.entry for m in matches if m.slot.module == "head" and len(m.entry.shape) > 1), None
    )
    if head is None:
        return [*rows]
    used = {match.entry.text for match in matches}
    for other in entries:
        behind = other.place > head.place and not other.looped and other.text not in used
        if behind and len(other.shape) > 1 and other.shape[-1] in head.shape:
            why = f"{other.text} may read what it gives, and be the last layer"
            return [
                replace(row, certain=False, reason=why) if row.name.startswith("head.") else row
                for row in rows
            ]
    return [*rows]


def _slices(entries: Sequence[Entry], config: ViTConfig) -> set[str]:
    """Matrices of heads that read no more than what they make."""
    own = (config.head_dim, config.head_dim)
    stems = {e.stem for e in entries if e.heads and e.shape == own != (config.embed_dim,) * 2}
    return {key for entry in entries if entry.stem in stems for key in entry.keys}


def _stems(
    entries: Sequence[Entry],
    container: Container,
    prefix: str,
    reference: DraftReference,
    *,
    exact: bool,
) -> tuple[list[Stem], ComparedValues | None, str]:
    """Their modules, the values of both sides if the weights are the same, and how many are."""
    slots, sizes = slots_of(reference.config), sizes_of(reference.config, exact=exact)
    told = "none to compare"
    if reference.tensors is not None:

        def read(key: str) -> "torch.Tensor":
            return container.read(prefix + key)

        values = ComparedValues(theirs=read, ours=reference.tensors, sizes=sizes)
        stems = stems_of(entries, slots, sizes, values)
        fitting = [stem for stem in stems if stem.options]
        equal = sum(stem.valued for stem in fitting)
        told = f"{equal} of {len(fitting)} modules that fit have the reference's"
        if equal > _ENOUGH * len(fitting):
            return stems, values, told
        told += ": other weights"
    return stems_of(entries, slots, sizes, None), None, told


_TRIES_OF_ORDERS = 200  # each order of q, k and v, with one or two answers that are less likely
_OTHER = "the module computes another function than each variant of the draft that was tried"


def _tried(
    own: "OwnModule",
    rows: Sequence[DraftRow],
    ignored: Mapping[str, str],
    shapes: Mapping[str, Shape],
    config: ViTConfig,
    prefix: str,
) -> tuple[list[DraftRow], ViTConfig, str]:
    """The rows and the configuration with which our ViT computes what the module does."""
    from vitconvert.drafting.own_module import try_out, where_departs
    from vitconvert.facts.materialise import materialise

    orders = [*orders_of(rows)]
    several = [(one, config) for one in orders]
    if config.final_norm and not config.fc_norm:
        pooled = config.replace(pooling="avg", final_norm=False, fc_norm=True)
        several += [(with_fc_norm(one), pooled) for one in orders]
    held = own.tensors
    start = (
        prefix if any(prefix + key in held for key in shapes) else ""
    )  # a wrapper's, of the file
    inside = {key: held[start + key] for key in shapes if start + key in held}
    if lacking := sorted(shapes.keys() - inside.keys()):
        why = f"not run: the module has no place for tensors of the file: {some(lacking, 4)}"
        return [*rows], config, why

    def made(
        believed: Sequence[DraftRow], like: ViTConfig
    ) -> "tuple[ViTConfig, Mapping[str, torch.Tensor]]":
        facts = facts_of(like, believed, ignored, shapes, same_weights=True)
        text = draft_text("", "", [*map(row_as_certain, believed)], ignored, {}, (), facts)
        binding = bind(parse_draft(text), shapes)
        # What no tensor holds is tried, and need not be known before.
        unstored = {} if like.learned_positions else {"position_embedding": Fact("none", USER)}
        found = gather_facts(binding, unstored).config()
        check_accounts(binding, found, "the module")
        return found, materialise(plan_reading(binding, found), inside.__getitem__)

    try:
        made(*several[0])
    except VitConvertError as error:
        details = "; ".join([error.fact, *error.details[:2]])
        return [*rows], config, f"not run: {details}"
    trial = try_out(own, [partial(made, *one) for one in several])
    vit = trial.vit
    if vit is None:
        return [*rows], config, f"not run: {trial.why}"
    if not trial.equal:
        nearest, like = several[trial.choice]
        others = [(one, like) for one in reordered(nearest)]
        again = try_out(own, [partial(made, *one) for one in others], tries=_TRIES_OF_ORDERS)
        if again.vit is not None and again.equal:
            trial, several, vit = again, others, again.vit
    if not trial.equal:
        believed = [*map(row_as_certain, several[trial.choice][0])]
        like = vit.config
        facts = facts_of(like, believed, ignored, shapes, same_weights=True)
        table = draft_text("", "", believed, ignored, {}, (), facts)
        where = where_departs(own, vit, table)
        return [*rows], config, f"{_OTHER} ({trial.difference:.2g} off at the nearest{where})"
    reason = "with it, the module's own numbers are computed"
    believed = [
        row if row.certain and row in rows else replace(row, certain=True, reason=reason)
        for row in several[trial.choice][0]
    ]
    return believed, vit.config, f"equal to the module on noise ({trial.difference:.1g} off)"


def _not_like(source: str, reference: DraftReference, shapes: Mapping[str, Shape]) -> UsageError:
    config = reference.config
    widths = Counter(size for shape in shapes.values() for size in shape)
    counts = Counter(number for key in shapes for number in set(re.findall(r"[0-9]+", key)))
    return UsageError(
        "This file has no blocks like those of the reference.",
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
