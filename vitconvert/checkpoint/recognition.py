"""Which dialect a checkpoint has: by its tensors, and where several fit, by what is said of it."""

from collections.abc import Mapping
from dataclasses import replace

from vitconvert.checkpoint.companions import Companions
from vitconvert.checkpoint.options import ReadOptions
from vitconvert.errors import AmbiguousDialect, VitConvertError
from vitconvert.facts.derivation import Gathered, gather_facts
from vitconvert.facts.statements import Statements
from vitconvert.formats import Container
from vitconvert.tables.architectures import architectures
from vitconvert.tables.detection import ambiguous
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.parts import Header, Part
from vitconvert.tables.towers import find_part


def recognise_part(container: Container, companions: Companions, options: ReadOptions) -> Part:
    """The ViT in a file; vitconvert.json names its dialect in a directory that vitconvert wrote."""
    shapes = {name: info.shape for name, info in container.manifest.items()}
    tables = options.tables(companions.own.get("target"))
    ignored = options.ignored(shapes, container.path)
    header = Header(
        shapes={name: shape for name, shape in shapes.items() if name not in ignored},
        config=companions.config,
        tables=None if tables is None else tuple(tables),
        ignored=ignored,
    )
    try:
        return find_part(header, options.tower)
    except AmbiguousDialect as error:
        said = statements_on(companions, options, container.extras)
        return _told_apart(error, header, options, said)


def _told_apart(
    error: AmbiguousDialect, header: Header, options: ReadOptions, said: Statements
) -> Part:
    """The one of several dialects that fits the number of positions, and what is said.

    Raises:
        AmbiguousDialect: Nothing tells them apart. Names those that are left.
    """
    found = [
        find_part(replace(header, tables=(builtin_tables()[name],)), options.tower)
        for name in error.dialects
        if name in builtin_tables()
    ]
    left = [part for part in found if _possible(part, said)] or found
    if name := said.architecture or said.name:
        rows = architectures()
        tables = [part.recognised.table.name for part in left]
        having = [name.split(".")[0] in rows.get(table, ()) for table in tables]
        without = [table not in rows for table in tables]
        wanted = having if any(having) else without
        left = [part for part, is_wanted in zip(left, wanted, strict=True) if is_wanted] or left
    if len(left) == 1:
        return left[0]
    raise ambiguous([part.recognised.binding for part in left]) if left else error


def _possible(part: Part, said: Statements) -> bool:
    """Whether a dialect has a model of so many positions of which all that is said is true."""
    try:
        gathered = gather(part, said)
    except VitConvertError:
        return False
    return not gathered.conflicts and "image_size" not in gathered.asked


def statements_on(
    companions: Companions, options: ReadOptions, beside: Mapping[str, object] | None = None
) -> Statements:
    """Everything that is stated about a checkpoint besides its tensors.

    Args:
        companions: The files beside it.
        options: What the user states.
        beside: What lay in the file beside the tensors.
    """
    located = companions.located
    return Statements(
        user=options.overrides or {},
        own=companions.own.get("config", {}),
        own_origins=companions.record.origins,
        own_first="config" not in companions.unspoken,
        config=companions.config,
        config_file=companions.name_of("config"),
        architecture=options.architecture,
        name=located.name,
        trained=beside or {},
        file_name=located.weights.name if located.weights else "",
        doubts=companions.record.doubts,
    )


def gather(part: Part, statements: Statements) -> Gathered:
    """What is known of the ViT.

    Raises:
        VitConvertError: As `Statements.facts`.
    """
    recognised = part.recognised
    gathered = gather_facts(recognised.binding, statements.facts(recognised.table))
    return replace(gathered, notes=(*gathered.notes, *statements.doubts))
