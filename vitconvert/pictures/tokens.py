"""Names of a model's tokens, and which of them a query means. Everything is counted from 0."""

from collections.abc import Sequence

from vitconvert.config import ViTConfig
from vitconvert.errors import UsageError

CLASS, POOLING, MEAN, PATCH = "class", "pooling", "mean", "patch:"

Query = str | tuple[int, int] | None


def prefix_names(config: ViTConfig) -> tuple[str, ...]:
    """The tokens before the patches, in their order: class, distillation, register:0, ..."""
    named = [CLASS] * config.class_token + ["distillation"] * config.dist_token
    return (*named, *(f"register:{i}" for i in range(config.num_registers)))


def default_query(prefix: tuple[str, ...], *, pooling: bool) -> str:
    """The class token; without one, the query of map pooling, or the mean over all patches."""
    if CLASS in prefix:
        return CLASS
    return POOLING if pooling else MEAN


def query_name(query: Query, default: str) -> str:
    """One spelling for a query: `register 0` and `register:0`, `(3, 7)` and `patch:3,7`.

    Raises:
        UsageError: It is neither a name nor a row and a column.
    """
    if query is None:
        return default
    if not isinstance(query, str):
        if not isinstance(query, Sequence) or len(query) != 2:
            raise UsageError(
                f"{query!r} is no query.",
                hint='a name such as "class" or "patch:3,7", or a row and a column: (3, 7).',
            )
        return f"{PATCH}{query[0]},{query[1]}"
    word, _, rest = query.strip().lower().replace(" ", ":", 1).partition(":")
    return f"{word}:{''.join(rest.lstrip(':').split())}" if rest else word


def tokens_of(name: str, prefix: tuple[str, ...], grid: tuple[int, int]) -> list[int]:
    """Numbers of the tokens that are asked: one, or all patches for the mean over them.

    Raises:
        UsageError: The model has no such token.
    """
    rows, columns = grid
    first = len(prefix)
    if name == MEAN:
        return list(range(first, first + rows * columns))
    if name in prefix:
        return [prefix.index(name)]
    if name.startswith(PATCH):
        place = [part.strip() for part in name.removeprefix(PATCH).split(",")]
        if len(place) == 2 and all(part.isdecimal() and len(part) < 6 for part in place):
            row, column = map(int, place)
            if row < rows and column < columns:
                return [first + row * columns + column]
    patches = f"patch:0,0 to patch:{rows - 1},{columns - 1} (row, column)"
    raise UsageError(
        f"The model has no token {name!r}.",
        evidence={"tokens": ", ".join((*prefix, patches)), "or": f"{MEAN} (over all patches)"},
    )
