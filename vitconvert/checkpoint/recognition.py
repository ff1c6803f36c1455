"""From a header to a configuration: the ViT and its dialect, whom to believe, and the proof.

A `Reading` is what is known of a checkpoint so far. Each stage of `checkpoint.reading` gives the
next one.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vitconvert.checkpoint.companions import Companions, statements_on
from vitconvert.checkpoint.options import ReadOptions
from vitconvert.checkpoint.weights import Text, Weights
from vitconvert.config import ViTConfig
from vitconvert.errors import (
    AmbiguousDialect,
    ConflictingFact,
    MissingFact,
    NotRepresentable,
    Quantised,
    TensorMismatch,
    VitConvertError,
    some,
)
from vitconvert.facts.accounts import (
    Ledger,
    check_accounts,
    check_explained,
    check_float_dtypes,
    open_ledger,
)
from vitconvert.facts.answers import possible_answers
from vitconvert.facts.fact import TENSORS, USER, show
from vitconvert.facts.gathering import Gathered, gather_facts
from vitconvert.facts.statements import Statements
from vitconvert.formats import FLOATS_OF_8_BITS, Container
from vitconvert.tables.architectures import architectures
from vitconvert.tables.detection import Recognised, ambiguous
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.others import refuse_quantised
from vitconvert.tables.parts import FoundViT, Header
from vitconvert.tables.towers import find_part

if TYPE_CHECKING:
    from torch import Tensor

    from vitconvert.checkpoint.adapters.merging import Adapter, Merge

_SMALL = (*FLOATS_OF_8_BITS, "int8", "uint8")  # dtypes of quantised weights
_DOUBT = "the architecture that the training script names is not this one: it was not believed"
_LARGEST_GRID = 128  # patches a side to which positions may be scaled
_ROUNDING = 1e-2  # of a cosine or sine in bfloat16, of an angle that was rounded too


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The state of reading a checkpoint after some of the stages.

    Attributes:
        container: The open file, as the stages so far see it.
        companions: The small files next to it, and which part of them is about the ViT.
        options: How to read them.
        adapter: To be merged.
        part: The ViT in the file.
        merge: How the adapter was merged.
        changes: What reading does to the numbers of tensors, a sentence each.
        statements: The facts that files and the user state.
        gathered: All facts that are known.
        weights, ledger: The proof that all of it fits.
        text, text_problem: The text tower of the file, or why it cannot be carried over.
    """

    container: Container
    companions: Companions
    options: ReadOptions
    adapter: "Adapter | None" = None
    part: FoundViT | None = None
    merge: "Merge | None" = None
    changes: tuple[str, ...] = ()
    statements: Statements | None = None
    gathered: Gathered | None = None
    weights: Weights | None = None
    ledger: Ledger | None = None
    text: Text | None = None
    text_problem: str = ""

    @property
    def found(self) -> FoundViT:
        """The ViT in the file, once it is found."""
        assert self.part is not None
        return self.part


def find_vit(reading: Reading) -> FoundViT:
    """The ViT in a file; vitconvert.json names its dialect in a directory that vitconvert wrote.

    Raises:
        UnknownDialect, AmbiguousDialect, TensorMismatch, Quantised: There is none, or several.
    """
    container, options = reading.container, reading.options
    shapes = {name: info.shape for name, info in container.manifest.items()}
    tables = options.tables(reading.companions.own.get("target"))
    ignored = options.ignored(shapes, container.path)
    header = Header(
        shapes={name: shape for name, shape in shapes.items() if name not in ignored},
        config=reading.companions.config,
        tables=None if tables is None else tuple(tables),
        ignored=ignored,
        settings=container.extras,
    )
    try:
        part = find_part(header, options.tower)
    except AmbiguousDialect as error:
        part = _told_apart(error, header, reading)
    _check_numbers(part, reading)
    return part


def _check_numbers(part: FoundViT, reading: Reading) -> None:
    """Refuse small numbers that are weights only with scales, whoever ignores these.

    Raises:
        Quantised: That is so.
    """
    manifest, stated = reading.container.manifest, reading.companions.quantisation
    small = [name for name in part.used if manifest[name].dtype in _SMALL]
    if not small:
        return
    prefix = part.tower.prefix
    refuse_quantised({n: info.shape for n, info in manifest.items() if n.startswith(prefix)})
    modules, used = {name.rpartition(".")[0] for name in small}, set(part.used)
    scales = [
        name
        for name in manifest
        if name not in used
        and any(
            name.startswith(f"{module}.") and "scale" in name[len(module) :].lower()
            for module in (name.rsplit(".", 1)[0], name.rsplit(".", 2)[0])
            if module in modules
        )
    ]
    said = stated.get("quant_method", "some") if stated else ""
    if scales or said:
        found = {"scales": some(scales, 4)} if scales else {}
        raise Quantised(
            f"{len(small)} weights are numbers of 8 bits, and nothing here knows their scales.",
            evidence={
                "weights": some(small, 4),
                **found,
                **({"config.json": f"quantization_config, {said}"} if said else {}),
            },
            meaning="They are small numbers, and become weights by the scales that belong to them.",
            hint="convert the checkpoint that it was quantised from.",
        )


def _told_apart(error: AmbiguousDialect, header: Header, reading: Reading) -> FoundViT:
    """The one of several dialects that fits the number of positions, and what is stated.

    Raises:
        AmbiguousDialect: Nothing tells them apart. Names those that are left.
    """
    said = statements_on(reading.companions, reading.options)

    def is_possible(part: FoundViT) -> bool:
        try:
            known = _gather(part, said)
        except VitConvertError:
            return False
        return not known.conflicts and "image_size" not in known.asked

    found = [
        find_part(replace(header, tables=(builtin_tables()[name],)), reading.options.tower)
        for name in error.dialects
        if name in builtin_tables()
    ]
    left = [part for part in found if is_possible(part)] or found
    if name := said.architecture or said.name:
        rows = architectures()
        tables = [part.recognised.table.name for part in left]
        having = [name.split(".")[0] in rows.get(table, ()) for table in tables]
        wanted = having if any(having) else [table not in rows for table in tables]
        left = [part for part, is_wanted in zip(left, wanted, strict=True) if is_wanted] or left
    if len(left) == 1:
        return left[0]
    raise ambiguous([part.recognised.binding for part in left]) if left else error


def gathered(reading: Reading) -> Reading:
    """Gather what is stated and shown of the ViT, and decide whom to believe.

    Raises:
        VitConvertError: As `Statements.facts`.
    """
    part, said = reading.found, statements_on(reading.companions, reading.options)
    known = _gather(part, said)
    if said.trained and known.conflicts:
        # A training script names the architecture before its arguments changed it.
        untold = replace(said, trained={})
        if not _gather(part, untold).conflicts:
            said = replace(untold, doubts=(*said.doubts, _DOUBT))
            known = _gather(part, said)
    if "image_size" in known.asked and (size := reading.options.image_size):
        said = replace(said, user={**said.user, "image_size": size})
        known = _gather(part, said)
    return replace(reading, statements=said, gathered=known)


def _gather(part: FoundViT, said: Statements) -> Gathered:
    recognised = part.recognised
    known = gather_facts(recognised.binding, said.facts(recognised.table))
    return replace(known, notes=(*known.notes, *said.doubts))


def proved(reading: Reading) -> Reading:
    """Prove from headers alone that every fact is known and every tensor accounted for.

    Raises:
        MissingFact, ConflictingFact, TensorMismatch: That is not so.
        NotRepresentable: The project's class computes another function from the tensors, or the
            rotary embedding that is stored is none of ours.
    """
    container, part, known = reading.container, reading.found, reading.gathered
    assert known is not None
    assert reading.statements is not None
    recognised, file = part.recognised, str(container.path)
    binding = recognised.binding
    try:
        config = _with_stored_grid(container, recognised, known.config())
    except MissingFact:
        _check_answerable(part, reading.statements, known, file)
        check_explained(binding, file, part.called)
        raise
    check_accounts(binding, config, file, part.called)
    manifest, prefix = container.manifest, recognised.prefix
    check_float_dtypes(binding, {key: manifest[prefix + key].dtype for key in binding.shapes}, file)
    reading.statements.check_class(recognised.table, config)
    notes = (*known.notes, *container.notes, *part.notes)
    ledger = open_ledger(binding, config, notes, part.beside)
    weights = Weights(
        container=container,
        recognised=recognised,
        config=config,
        tower=part.tower,
        head=part.head,
    )
    return replace(reading, weights=weights, ledger=ledger.with_changes(reading.changes))


def _check_answerable(part: FoundViT, said: Statements, known: Gathered, file: str) -> None:
    """Make sure that an answer to the questions makes the tensors a model.

    Raises:
        TensorMismatch: None does. Says what is wrong with the tensors, whatever the answer.
    """
    problem: TensorMismatch | None = None
    for answer in possible_answers(known, part.recognised.binding):
        told = replace(said, user={**said.user, **answer})
        try:
            config = _gather(part, told).config()
            check_accounts(part.recognised.binding, config, file, part.called)
        except TensorMismatch as error:  # that of the answer which leaves least wrong
            if problem is None or len(error.details) < len(problem.details):
                problem = error
        except MissingFact:
            return  # the next question
        except VitConvertError:
            continue
        else:
            return
    if problem:
        raise problem


def _with_stored_grid(container: Container, recognised: Recognised, config: ViTConfig) -> ViTConfig:
    """The configuration with the grid to which positions are scaled in the stored tables.

    Raises:
        ConflictingFact: The user states another grid.
        NotRepresentable: The tables are of no square grid.
    """
    keys = {
        key: kind
        for key in recognised.binding.ignored
        for template, kind in recognised.table.rotations
        if template.match(key) is not None
    }
    if not keys or config.rope != "axial":
        return config
    stored = [(container.read(recognised.prefix + key), kind) for key, kind in keys.items()]
    squares = ((side, side) for side in range(1, _LARGEST_GRID + 1))
    off = {
        grid: _difference(config.replace(rope_reference=grid), stored[:1])
        for grid in dict.fromkeys((config.rope_reference, *squares))
    }
    found = min(off, key=lambda grid: off[grid])
    if not (most := _difference(config.replace(rope_reference=found), stored)) <= _ROUNDING:
        raise NotRepresentable(
            "The rotary embedding that the file stores is of no square grid of patches.",
            evidence={
                "tensors": f"{next(iter(keys))} {list(stored[0][0].shape)}",
                "images": show(config.image_size),
                "nearest": f"positions scaled to {show(found)}, off by {most:.2g}",
            },
            hint="--set image_size=... states the size, if it is another one.",
        )
    if found == config.rope_reference:
        return config
    if config.origins.get("rope_reference") == USER:
        raise ConflictingFact(
            "What is stated contradicts the tensors.",
            details=[
                f"rope_reference = {show(config.rope_reference)} ({USER}), but "
                f"{next(iter(keys))} has {show(found)}"
            ],
            hint="leave it out.",
        )
    return config.replace(
        rope_reference=found, origins={**config.origins, "rope_reference": TENSORS}
    )


def _difference(config: ViTConfig, stored: "list[tuple[Tensor, str]]") -> float:
    """The largest difference between what the model computes and tables of cosines or sines."""
    import torch

    from vitconvert.model.rope import RotaryEmbedding

    computed = next(RotaryEmbedding(config).tables(torch.empty(0, dtype=torch.float32)))
    of_kind = dict(zip(("sin", "cos"), computed.chunk(2, dim=-1), strict=True))
    if any(table.shape != of_kind[kind].shape for table, kind in stored):
        return float("inf")
    return max(float((table.float() - of_kind[kind]).abs().max()) for table, kind in stored)
