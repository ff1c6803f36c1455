"""Images of sources, whatever these are, as they are wanted."""

from collections.abc import Callable, Iterator

from vitconvert.embedding import parquet, tars
from vitconvert.embedding.sources import (
    TARS,
    Item,
    Layout,
    Sources,
    Wanted,
    is_archive,
    lowered,
    no_columns,
    picture,
    reason,
)
from vitconvert.errors import CorruptFile, SourceError, UnsafeFile


def items(
    sources: Sources,
    layout: Layout,
    wanted: Wanted,
    mine: Wanted,
    abandoned: Callable[[str, str], None],
) -> Iterator[Item]:
    """The images that are wanted, in order.

    Args:
        sources: Where they are.
        layout: Of the output.
        wanted: Says of each key whether the image is to be computed.
        mine: Says of each file's key whether this run computes it, and not another part.
        abandoned: Is told of an archive that cannot be read further, and why; others go on.
    """
    for found in sources.found():
        key = layout.key(found.name)
        if not mine(key):
            continue
        if not is_archive(found.name):
            if sources.keep:
                raise no_columns(sources.keep, found.name)
            if wanted(key):
                yield Item(key, picture(found.name), {"class": found.group})
            continue
        try:
            yield from archive(found.name, key, sources, layout, wanted)
        except (SourceError, CorruptFile, UnsafeFile) as error:
            abandoned(key, reason(error))


def archive(
    name: str, key: str, sources: Sources, layout: Layout, wanted: Wanted
) -> Iterator[Item]:
    """The images of a tar or of a Parquet file that are wanted, in order.

    Raises:
        SourceError, CorruptFile, UnsafeFile: It cannot be read, or not further.
    """
    if lowered(name).endswith(TARS):
        return tars.read(name, key, layout.kept, wanted)
    return parquet.read(name, key, sources.image_column, layout, wanted)
