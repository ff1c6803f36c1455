"""A quantised weight, and what is proved of the parts of every one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitconvert.documents import parse_object
from vitconvert.errors import CorruptFile, TensorMismatch
from vitconvert.facts.quantised_names import QuantisedNames
from vitconvert.formats import Container, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

Read = Callable[[str], "Tensor"]  # reads a tensor of the file
Compute = Callable[[Read], "Tensor"]

_COMPUTED = ("float32", "float16", "bfloat16")  # in which the libraries themselves compute them


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A quantised weight whose parts add up.

    Attributes:
        title: How it was quantised, in words.
        parts: The names of its parts in the file.
        shape: Of the weight.
        dtype: In which the library itself gives it.
        rounds_inputs: Whether the library rounds what the weight is multiplied with, too.
        compute: Gives the weight in float32, from what reads a tensor of the file.
    """

    title: str
    parts: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    rounds_inputs: bool
    compute: Compute


def parts_of(container: Container, name: str, found: QuantisedNames, *roles: str) -> list[str]:
    """The names of these parts of a weight, all of which must be there."""
    if lacking := [role for role in roles if role not in found.parts]:
        raise TensorMismatch(
            "A quantised weight lacks a part.",
            evidence={
                "file": container.path,
                "weight": f"{name} ({found.scheme})",
                "has": ", ".join(found.parts.values()),
                "lacks": f"its {' and its '.join(lacking)}",
            },
            hint="the file is incomplete; get it again.",
        )
    return [found.parts[role] for role in roles]


def parsed(container: Container, name: str, text: bytes) -> Mapping[str, Any]:
    """The words on how a weight was packed, which are JSON."""
    try:
        return parse_object(text)
    except ValueError as error:
        raise CorruptFile(
            "What says how a quantised weight is packed cannot be read.",
            evidence={"file": container.path, "of": name, "problem": str(error)[:160]},
            hint="the file is damaged or incomplete; get it again.",
        ) from None


def check_list(container: Container, key: str, dtype: str, count: int) -> None:
    """Make sure that a tensor has so many numbers in a row."""
    if container.manifest[key] != TensorInfo(dtype=dtype, shape=(count,)):
        raise unfit(container, key, f"is not {count} numbers of {dtype}")


def dtype_of(container: Container, name: str, dtype: object) -> str:
    """In which the library gives a weight, as the file says."""
    if dtype not in _COMPUTED:
        raise unfit(container, name, f"says no dtype of weights, but {str(dtype)[:40]!r}")
    return str(dtype)


def unfit(container: Container, key: str, fact: str) -> TensorMismatch:
    """A part that cannot be understood."""
    return TensorMismatch(
        f"{key!r} {fact}.",
        evidence={"file": container.path},
        meaning="So it is not known which weights these numbers stand for.",
        hint="convert the checkpoint that it was quantised from.",
    )
