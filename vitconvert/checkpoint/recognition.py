"""From a header to a configuration: the ViT and its dialect, whom to believe, and the proof."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vitconvert.checkpoint.companions import Companions, statements_on
from vitconvert.checkpoint.options import ReadOptions
from vitconvert.checkpoint.weights import Weights
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonObject
from vitconvert.errors import (
    AmbiguousDialect,
    ConflictingFact,
    MissingFact,
    NotRepresentable,
    Quantised,
    TensorMismatch,
    UsageError,
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
from vitconvert.facts.fact import TENSORS, USER, show, state
from vitconvert.facts.gathering import Gathered, gather_facts
from vitconvert.facts.statements import Statements, parse_fields
from vitconvert.formats import FLOATS_OF_8_BITS, Container
from vitconvert.tables.architectures import architectures
from vitconvert.tables.detection import Recognised, ambiguous
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.others import refuse_quantised
from vitconvert.tables.parts import FoundViT, Header
from vitconvert.tables.towers import find_part

if TYPE_CHECKING:
    from torch import Tensor

_SMALL = (*FLOATS_OF_8_BITS, "int8", "uint8")  # dtypes of quantised weights
_DOUBT = "the training script names another architecture, which was not used"
_LARGEST_GRID = 128  # patches a side to which positions may be scaled
_ROUNDING = 1e-2  # of a cosine or sine in bfloat16, of an angle that was rounded too


@dataclass(frozen=True, kw_only=True)
class RecognisedViT:
    """The ViT of an open file, which a table explains.

    Attributes:
        container: Its tensors alone, under the names of its dialect.
        part: Which part of the file it is.
        companions: The small files beside it, and which part of them is about it.
        changes: What reading does to the numbers of tensors, a sentence each.
    """

    container: Container
    part: FoundViT
    companions: Companions
    changes: tuple[str, ...] = ()


def recognise_vit(
    container: Container, companions: Companions, options: ReadOptions
) -> RecognisedViT:
    """Find the ViT in a file, among the weights that quantised ones stand for if that is asked for.

    Raises:
        UnknownDialect, AmbiguousDialect, TensorMismatch: There is none, or several.
        Quantised: The weights are quantised, and it is not asked for.
        UsageError: They are not, and it is asked for.
        VitConvertError: As `quantised.dequantised`.
    """
    asked = options.dequantise
    dtype = asked or options.cast_to
    changes: tuple[str, ...] = ()
    try:
        part = _find_vit(container, companions, options)
    except Quantised as error:
        # Of a header alone, what says how weights are packed is not here.
        if dtype is None or companions.located.fetched or not error.computable:
            raise
        from vitconvert.checkpoint import quantised  # few files have such weights

        packed = container
        container, weights = quantised.dequantised(packed, dtype, companions.quantisation)
        part = _find_vit(container, companions, options)
        quantised.check_unscaled(packed, weights, part.used)
        changes = quantised.describe_changes(part, weights, dtype)
    else:
        stored = {container.manifest[name].dtype for name in part.used}
        if stored.intersection(FLOATS_OF_8_BITS):
            container = _widened(container, part, asked or "float32")
        elif asked:
            raise not_quantised(asked, container.path)
    if not part.is_whole:
        container = container.renamed(part.names)
        companions = replace(companions, section=part.tower.section)
    return RecognisedViT(container=container, part=part, companions=companions, changes=changes)


def _widened(container: Container, part: FoundViT, dtype: str) -> Container:
    """The file with its numbers of 8 bits, which are weights by themselves, in a wider dtype."""
    from vitconvert.checkpoint.quantised.scaled import widened

    stored = Counter(container.manifest[name].dtype for name in part.used)
    small = [name for name in FLOATS_OF_8_BITS if name in stored]
    count = sum(stored[name] for name in small)
    note = f"{count} tensors of {' and '.join(small)} are read as {dtype}, which is exact"
    return widened(replace(container, notes=(*container.notes, note)), dtype)


def not_quantised(dtype: str, *files: object) -> UsageError:
    """The error for a dtype of quantised weights where no file has any."""
    return UsageError(
        f"dequantise = {dtype!r} is for a quantised file, and this one is not.",
        evidence={"read": ", ".join(map(str, files))},
        hint="leave out --dtype (in Python, dequantise).",
    )


def _find_vit(container: Container, companions: Companions, options: ReadOptions) -> FoundViT:
    """The ViT in a file; vitconvert.json names its dialect in a directory that vitconvert wrote.

    Raises:
        UnknownDialect, AmbiguousDialect, TensorMismatch, Quantised: There is none, or several.
    """
    shapes = {name: info.shape for name, info in container.manifest.items()}
    tables = options.tables(companions.own)
    ignored = options.ignored(shapes, container.path)
    header = Header(
        shapes={name: shape for name, shape in shapes.items() if name not in ignored},
        config=companions.config,
        tables=None if tables is None else tuple(tables),
        ignored=ignored,
        settings=container.extras,
    )
    try:
        part = find_part(header, options.tower)
    except AmbiguousDialect as error:
        part = _told_apart(error, header, companions, options)
    _check_numbers(part, container, companions.quantisation)
    return part


def _check_numbers(part: FoundViT, container: Container, stated: JsonObject) -> None:
    """Refuse small numbers that are weights only with scales, whoever ignores these.

    Raises:
        Quantised: That is so.
    """
    manifest = container.manifest
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
            f"{len(small)} weights are numbers of 8 bits, and their scales are unknown.",
            evidence={
                "weights": some(small, 4),
                **found,
                **({"config.json": f"quantization_config, {said}"} if said else {}),
            },
            meaning="They are small numbers, and become weights by the scales that belong to them.",
            hint="convert the checkpoint that it was quantised from.",
        )


def _told_apart(
    error: AmbiguousDialect, header: Header, companions: Companions, options: ReadOptions
) -> FoundViT:
    """The one of several dialects that fits the number of positions, and what is stated.

    Raises:
        AmbiguousDialect: Nothing tells them apart. Names those that are left.
    """
    said = statements_on(companions, options)

    def is_possible(part: FoundViT) -> bool:
        try:
            known = _facts_of(part, said)
        except VitConvertError:
            return False
        return not known.conflicts and "image_size" not in known.asked

    found = [
        find_part(replace(header, tables=(builtin_tables()[name],)), options.tower)
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


def gather(vit: RecognisedViT, options: ReadOptions) -> tuple[Statements, Gathered]:
    """What is stated of the ViT, and the facts that are known of it by statements and tensors.

    Raises:
        VitConvertError: As `Statements.facts`.
    """
    part, said = vit.part, statements_on(vit.companions, options)
    known = _facts_of(part, said)
    if said.trained and known.conflicts:
        # A training script names the architecture before its arguments changed it.
        untold = replace(said, trained={})
        if not _facts_of(part, untold).conflicts:
            said = replace(untold, doubts=(*said.doubts, _DOUBT))
            known = _facts_of(part, said)
    if "image_size" in known.asked and (size := options.image_size):
        said = replace(said, user={**said.user, "image_size": size})
        known = _facts_of(part, said)
    return said, known


def _facts_of(part: FoundViT, said: Statements) -> Gathered:
    """The facts of a ViT by its tensors and by some statements, and what these got wrong."""
    recognised = part.recognised
    of_tower = state(parse_fields(part.tower.facts), f"the code of {part.tower.model}")
    known = gather_facts(recognised.binding, of_tower | said.facts(recognised.table))
    return replace(known, notes=(*known.notes, *said.doubts))


def prove(vit: RecognisedViT, said: Statements, known: Gathered) -> tuple[Weights, Ledger]:
    """Prove that every fact is known and every tensor accounted for, from headers alone.

    Tables of rotations that a file stores are read besides: they show their grid.

    Raises:
        MissingFact, ConflictingFact, TensorMismatch: That is not so.
        NotRepresentable: The project's class computes another function from the tensors, or the
            rotary embedding that is stored is none of ours.
    """
    container, part = vit.container, vit.part
    recognised, file = part.recognised, str(container.path)
    binding = recognised.binding
    try:
        config = _with_stored_grid(container, recognised, known.config())
    except MissingFact:
        _check_answerable(part, said, known, file)
        check_explained(binding, file, part.called)
        raise
    check_accounts(binding, config, file, part.called)
    manifest, prefix = container.manifest, recognised.prefix
    check_float_dtypes(binding, {key: manifest[prefix + key].dtype for key in binding.shapes}, file)
    said.check_class(recognised.table, config)
    notes = (*known.notes, *container.notes, *part.notes)
    ledger = open_ledger(binding, config, notes, part.beside)
    weights = Weights(
        container=container,
        recognised=recognised,
        config=config,
        tower=part.tower,
        head=part.head,
    )
    return weights, ledger.with_changes(vit.changes)


def _check_answerable(part: FoundViT, said: Statements, known: Gathered, file: str) -> None:
    """Make sure that an answer to the questions makes the tensors a model.

    Raises:
        TensorMismatch: None does. Says what is wrong with the tensors, whatever the answer.
    """
    problem: TensorMismatch | None = None
    for answer in possible_answers(known, part.recognised.binding):
        told = replace(said, user={**said.user, **answer})
        try:
            config = _facts_of(part, told).config()
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

    like = torch.empty(0, dtype=torch.float32)
    computed = RotaryEmbedding(config).tables(like, config.grid_size)[0]
    of_kind = dict(zip(("sin", "cos"), computed.chunk(2, dim=-1), strict=True))
    if any(table.shape != of_kind[kind].shape for table, kind in stored):
        return float("inf")
    return max(float((table.float() - of_kind[kind]).abs().max()) for table, kind in stored)
