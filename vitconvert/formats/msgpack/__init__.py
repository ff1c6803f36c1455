"""msgpack: trees of arrays, as Flax writes them (`flax_model.msgpack`, `checkpoint_0`).

A tree is a map of text to maps or leaves; names of tensors are the keys on the way to them, joined
by "/". Arrays are mapped when somebody needs them.

Format: https://github.com/msgpack/msgpack/blob/master/spec.md; arrays: flax 0.12,
`flax/serialization.py`: an extension whose data are msgpack again, (shape, dtype, elements in
row-major order), and arrays of more than 2^30 bytes in chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitconvert.formats.container import Container
from vitconvert.formats.content import Content
from vitconvert.formats.format_modules import Array, Surroundings
from vitconvert.formats.msgpack.reading import read_header

READER = "msgpack.unpackb"
EXAMPLE = """\
from pathlib import Path

from flax.serialization import msgpack_restore

params = msgpack_restore(Path("flax_model.msgpack").read_bytes())"""

_WEIGHTS = "params"  # of flax.core variables, flax.training.TrainState and big_vision
_ARRAY = 1  # flax.serialization._MsgpackExtType.ndarray


def open_file(path: Path, _members: object, prefer: tuple[str, ...], *_: object) -> Container:
    """Read the tree of a msgpack file, and map the elements.

    Args:
        path: The file.
        prefer: Keys of branches to try before "params".

    Raises:
        CorruptFile: The file is truncated or contradicts itself.
    """
    return _branch_of_weights(read_header(path), prefer)


def _branch_of_weights(container: Container, prefer: tuple[str, ...]) -> Container:
    """A tree's weights under the names that they have in their branch.

    Args:
        container: The whole tree; its names have the keys of branches, joined by "/".
        prefer: Keys of branches to try before "params".

    Returns:
        The branch, with the key as wrapper and what else there is as extras; or the whole tree if
        it has no such branch.
    """
    for key in (*prefer, _WEIGHTS):
        names = {n.removeprefix(f"{key}/"): n for n in container.manifest if _is_in(n, key)}
        if not names:
            continue
        others = Counter(n.partition("/")[0] for n in container.manifest if not _is_in(n, key))
        told = {other: f"{count} arrays" for other, count in others.items()}
        branch = replace(
            container.renamed(names),
            wrapper=(*container.wrapper, key),
            extras={**container.extras, **told},
        )
        return _branch_of_weights(branch, prefer)
    return container


def _is_in(name: str, branch: str) -> bool:
    return name.startswith(f"{branch}/")


def write_file(
    path: Path, contents: Mapping[str, Content], _surroundings: Surroundings, read_soon: bool
) -> str:
    """Write a tree as `flax.serialization.to_bytes` does, its keys sorted.

    Raises:
        UsageError: A name that is a branch of the tree too, or a dtype that Flax has no word for.
    """
    from vitconvert.formats.msgpack.writing import write_tree

    return write_tree(path, contents, read_soon=read_soon)


def read_plainly(path: Path, _wrapper: str) -> Iterator[Array]:
    """Read a file with the msgpack package, which Flax itself uses."""
    import msgpack

    def unpacked(data: bytes) -> Any:
        return msgpack.unpackb(
            data,
            ext_hook=lambda code, inner: unpacked(inner) if code == _ARRAY else inner,
            max_bin_len=2**32 - 1,
            max_ext_len=2**32 - 1,
        )

    yield from _arrays(unpacked(path.read_bytes()), ())


def _arrays(tree: Any, keys: tuple[str, ...]) -> Iterator[Array]:
    if isinstance(tree, list):
        shape, _, data = tree
        yield "/".join(keys), tuple(shape), data
    elif "__msgpack_chunked_array__" in tree:
        parts = (tree["chunks"][str(index)][2] for index in range(len(tree["chunks"])))
        shape = tuple(tree["shape"][str(axis)] for axis in range(len(tree["shape"])))
        yield "/".join(keys), shape, b"".join(parts)
    else:
        for key, branch in tree.items():
            yield from _arrays(branch, (*keys, key))
