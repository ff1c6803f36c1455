"""From local files to a checkpoint: open, recognise, weigh statements, prove.

Only headers and the JSON files beside them are read.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint.adapters import Adapter, separated, with_base
from vitconvert.checkpoint.checkpoint import Checkpoint
from vitconvert.checkpoint.companions import Companions
from vitconvert.checkpoint.larger_model import what_is_read
from vitconvert.checkpoint.merging import Merge, merge_into
from vitconvert.checkpoint.options import ReadOptions
from vitconvert.checkpoint.photographs import preprocessing_of
from vitconvert.checkpoint.recognition import gather, recognise_part, statements_on
from vitconvert.checkpoint.stored_rotations import with_stored_grid
from vitconvert.checkpoint.text_tower import find_text
from vitconvert.checkpoint.unchanged import State, states_of
from vitconvert.checkpoint.weights import Weights
from vitconvert.config import ViTConfig
from vitconvert.errors import MissingFact, Quantised, SourceError, UsageError, VitConvertError, some
from vitconvert.facts.accounts import (
    Ledger,
    check_accounts,
    check_dtypes,
    check_required,
    open_ledger,
)
from vitconvert.facts.derivation import Gathered
from vitconvert.facts.statements import Statements
from vitconvert.file_formats import directory_names
from vitconvert.formats import Container, open_container, weights_in
from vitconvert.labels import Labels, stated_labels
from vitconvert.sources import Located
from vitconvert.tables.detection import recognise
from vitconvert.tables.parts import Part

if TYPE_CHECKING:
    from vitconvert.checkpoint.quantised import Dequantised


def read_checkpoint(located: Located, options: ReadOptions | None = None) -> Checkpoint:
    """Read the header of a checkpoint, and prove that it is understood.

    Args:
        located: The files.
        options: How to read them.

    Raises:
        VitConvertError: One of the errors of `vitconvert.load_checkpoint`.
    """
    located, options = with_base(located, options or ReadOptions())
    before = states_of(_may_be_read(located))
    read = explained(open_weights(located, options), located, options)
    _check_fetched(located, read.part)
    companions, merge, config = read.companions, read.merge, read.weights.config
    preprocessing, said = preprocessing_of(
        companions, read.part, config, read.statements, read.weights.container
    )
    notes = (*read.ledger.notes, *what_is_read(companions, read.part), *said)
    text, text_problem = find_text(read.weights, companions)
    other_classes = merge and merge.base.config.num_classes != config.num_classes
    return Checkpoint(
        tensors=read.weights.tensors,
        config=config,
        preprocessing=preprocessing,
        own_labels=None if other_classes else _own_labels(companions, config.num_classes),
        ledger=replace(read.ledger, notes=notes),
        weights=read.weights,
        merge=merge,
        companions=companions,
        opened=_opened((*read.weights.container.files, *located.companions), before),
        text=text,
        text_problem=text_problem,
    )


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Weights whose header is proved, and what was found on the way."""

    weights: Weights
    ledger: Ledger
    merge: Merge | None
    part: Part
    companions: Companions
    statements: Statements


@dataclass
class Progress:
    """How far a header is explained, which is all that is known of one that cannot be.

    Attributes:
        companions: What lies beside the weights, and what of it is about the ViT.
        part: The ViT in the file, or None if it was not found.
        gathered: What is known of it.
        changes: What reading does to the numbers of tensors, a sentence each.
    """

    companions: Companions
    part: Part | None = None
    gathered: Gathered | None = None
    changes: tuple[str, ...] = ()

    @classmethod
    def begin(cls, container: Container, located: Located) -> "Progress":
        """Nothing is explained yet."""
        return cls(companions=Companions(located=located, container=container))


def explained(
    container: Container, located: Located, options: ReadOptions, progress: Progress | None = None
) -> Explained:
    """Recognise the tensors, weigh statements, prove.

    Args:
        container: The open file.
        located: What lies beside it.
        options: How to read them.
        progress: Is told how far that comes.

    Raises:
        VitConvertError: As `read_checkpoint`.
    """
    progress = progress or Progress.begin(container, located)
    try:
        return _explained(container, located, options, progress)
    except VitConvertError as error:
        with suppress(VitConvertError):  # of the record itself
            for doubt in progress.companions.record.doubts:
                error.evidence["note"] = doubt
        raise


def _explained(
    container: Container, located: Located, options: ReadOptions, progress: Progress
) -> Explained:
    companions = progress.companions
    container, adapter = separated(container, located, options)
    container, progress.part, quantised = computed_part(container, companions, options)
    container, companions = narrowed(container, companions, progress.part)
    progress.companions = companions
    container, part, merge = with_adapter(container, companions, progress.part, adapter, options)
    done = [quantised.description(part.names)] if quantised else []
    done += [merge.description] if merge else []
    progress.part, progress.changes = part, tuple(filter(None, done))
    statements = believed(part, statements_on(companions, options, container.extras))
    progress.gathered = gather(part, statements)
    config, ledger = prove(container, part, progress.gathered, statements)
    weights = Weights(
        container=container,
        recognised=part.recognised,
        config=config,
        tower=part.tower,
        head=part.head,
    )
    return Explained(
        weights=weights,
        ledger=ledger.with_changes(progress.changes),
        merge=merge,
        part=part,
        companions=companions,
        statements=statements,
    )


def _check_fetched(located: Located, part: Part) -> None:
    """Refuse to read tensors of which only the place is here.

    Raises:
        SourceError: Another part of the repository was fetched.
    """
    fetched = located.fetched
    if fetched is not None and fetched.tower != part.tower.prefix:
        raise SourceError(
            "Another part of this repository was fetched than the one that is to be read.",
            evidence={"fetched": fetched, "to read": part.tower.prefix or "the whole file"},
            hint="give the reference itself; with locate(), tower= says what to fetch.",
        )


def _may_be_read(located: Located) -> list[Path]:
    """The files, as far as they are known before any is opened."""
    path = _path(located)
    several = path.suffix == ".json" or path.name in directory_names()
    siblings = path.parent.iterdir() if several and path.parent.is_dir() else [path]
    return [*siblings, *located.companions]


def _opened(files: Collection[Path], before: Mapping[Path, State]) -> Mapping[Path, State]:
    """What the files that were read were like before; shards elsewhere than expected, now."""
    return {**states_of(files), **{file: before[file] for file in files if file in before}}


def open_weights(located: Located, options: ReadOptions) -> Container:
    """Open the file of weights, and read its header only.

    Raises:
        SourceError: There is no such file.
        UsageError: It has no weights under the preferred key.
    """
    prefer = options.prefer
    container = open_container(
        _path(located), prefer=(prefer,) if prefer else (), rescue=options.rescue
    )
    if prefer and prefer not in container.wrapper:
        raise UsageError(
            f"The checkpoint has no weights under {prefer!r}.",
            evidence={
                "file": container.path,
                "found": ".".join(container.wrapper) or "tensors at the top",
                "beside": ", ".join(container.extras) or "nothing",
            },
            hint="leave out --prefer (in Python, prefer) to read those that were found.",
        )
    return container


def _path(located: Located) -> Path:
    if located.weights is None:
        raise SourceError(f"{located.reference} has no weights.")
    return weights_in(located.weights) if located.weights.is_dir() else located.weights


def computed_part(
    container: Container, companions: Companions, options: ReadOptions
) -> "tuple[Container, Part, Dequantised | None]":
    """The ViT in a file, among the weights that quantised ones stand for if that is asked for.

    Raises:
        Quantised: They are, and it is not asked for.
        UsageError: They are not, and it is asked for.
        VitConvertError: As `recognise_part` and `quantised.dequantised`.
    """
    dtype = options.dequantise or options.cast_to
    try:
        part = recognise_part(container, companions, options)
    except Quantised as error:
        # Of a header alone, what says how weights are packed is not here.
        if dtype is None or companions.located.fetched or not error.computable:
            raise
        from vitconvert.checkpoint.quantised import dequantised  # few files have such weights

        computed = dequantised(container, dtype)
    else:
        if options.dequantise:
            raise not_quantised(options.dequantise, container.path)
        return container, part, None
    container = computed.container
    return container, recognise_part(container, companions, options), computed


def not_quantised(dtype: str, *files: object) -> UsageError:
    """That no weights are computed in a dtype, since none of the files has quantised ones."""
    return UsageError(
        f"dequantise = {dtype!r} computes the weights of a quantised file, and there is none.",
        evidence={"read": ", ".join(map(str, files))},
        hint="leave out --dtype (in Python, dequantise).",
    )


def narrowed(
    container: Container, companions: Companions, part: Part
) -> tuple[Container, Companions]:
    """The tensors of a tower alone, under its own names, and what the files say of it."""
    if part.is_whole:
        return container, companions
    return container.renamed(part.names), replace(companions, section=part.tower.section)


def with_adapter(
    container: Container,
    companions: Companions,
    part: Part,
    adapter: Adapter | None,
    options: ReadOptions,
) -> tuple[Container, Part, Merge | None]:
    """The tensors as they are with an adapter, whose head may make another dialect of them.

    Raises:
        TensorMismatch: The adapter does not fit the model, or the model is not one without it.
    """
    if adapter is None:
        return container, part, None
    statements = believed(part, statements_on(companions, options, container.extras))
    config, _ = prove(container, part, gather(part, statements), statements)
    base = Weights(container=container, recognised=part.recognised, config=config)
    merge = merge_into(base, adapter, part)
    container = merge.container()
    shapes = {name: info.shape for name, info in container.manifest.items()}
    tables = options.tables(companions.own.get("target"))
    recognised = recognise(shapes, tables, companions.config)
    return container, replace(part, recognised=recognised), merge


_DOUBT = "the architecture that the training script names is not this one: it was not believed"


def believed(part: Part, said: Statements) -> Statements:
    """What is said, without a training script's name that the tensors contradict.

    It is of the model before arguments of the user's changed it.

    Raises:
        VitConvertError: As `Statements.facts`.
    """
    if not said.trained or not gather(part, said).conflicts:
        return said
    untold = replace(said, trained={})
    return (
        said if gather(part, untold).conflicts else replace(untold, doubts=(*said.doubts, _DOUBT))
    )


def prove(
    container: Container, part: Part, gathered: Gathered, statements: Statements
) -> tuple[ViTConfig, Ledger]:
    """Prove from headers alone that every fact is known and every tensor accounted for.

    Raises:
        MissingFact, ConflictingFact, TensorMismatch: That is not so.
        NotRepresentable: The project's class computes another function from the tensors, or the
            rotary embedding that is stored is none of ours.
    """
    recognised = part.recognised
    try:
        config = with_stored_grid(container, recognised, gathered.config())
    except MissingFact as error:
        check_required(recognised.binding, str(container.path))
        if left := recognised.binding.unexplained:  # of which an answer makes nothing
            error.evidence["left over"] = some(left)
        raise
    check_accounts(recognised.binding, config, str(container.path))
    manifest, prefix = container.manifest, recognised.prefix
    dtypes = {key: manifest[prefix + key].dtype for key in recognised.binding.shapes}
    check_dtypes(recognised.binding, dtypes, str(container.path))
    statements.check_class(recognised.table, config)
    notes = (*gathered.notes, *container.notes)
    return config, open_ledger(recognised.binding, config, (*notes, *part.notes()), part.beside)


def _own_labels(companions: Companions, num_classes: int) -> Labels | None:
    """Names that the checkpoint itself gives its classes, or None.

    A record that is believed knows better than its config.json whose names these are.
    """
    config, record = companions.config, companions.record
    names = config.get("id2label") or config.get("label_names")
    recorded = record.labels(num_classes)
    if "config" not in record.unspoken and (recorded or record.assumes_labels):
        return recorded
    stated = stated_labels(num_classes, names, descriptions=config.get("label_descriptions"))
    return stated or recorded
