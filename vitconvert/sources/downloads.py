"""The fixed addresses of `weights_map/downloads.toml`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from vitconvert.errors import SourceError, nearest
from vitconvert.toml_files import tables_dir


@dataclass(frozen=True, kw_only=True)
class Collection:
    """Files under one base address.

    Attributes:
        base: What every address begins with.
        files: Name to the rest of the address.
        sha256_in_name: A file's name ends in the first digits of its sha256, torch.hub's habit.
    """

    base: str
    files: Mapping[str, str]
    sha256_in_name: bool


@cache
def collections() -> Mapping[str, Collection]:
    """Every collection, by the prefix of its references."""
    import tomllib

    text = (tables_dir() / "downloads.toml").read_text(encoding="utf-8")
    return {
        prefix: Collection(
            base=table["base"],
            files=table["files"],
            sha256_in_name=table.get("sha256_in_name", False),
        )
        for prefix, table in tomllib.loads(text).items()
    }


def address(prefix: str, name: str) -> str:
    """The address of a name.

    Raises:
        SourceError: The collection has no such name. Names the nearest.
    """
    collection = collections()[prefix]
    if name in collection.files:
        return collection.base + collection.files[name]
    lowered = {known.lower(): known for known in collection.files}
    near = nearest(name.lower(), lowered, 3)
    known = ", ".join(collection.files)
    hint = f"did you mean {' or '.join(f'{prefix}:{lowered[match]}' for match in near)}?"
    raise SourceError(
        f"{prefix}: has no checkpoint {name}.",
        hint=hint if near else f"one of {known}",
    )


def publishes_sha256_in_name(url: str) -> bool:
    """Whether an address belongs to a collection whose file names hold hashes."""
    return any(c.sha256_in_name and url.startswith(c.base) for c in collections().values())
