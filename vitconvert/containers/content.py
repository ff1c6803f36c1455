"""A tensor on its way into a file: what the header will say of it, and its bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.containers.boxes import Room
from vitconvert.containers.container import TensorInfo
from vitconvert.errors import UsageError

if TYPE_CHECKING:
    import torch

_LONGEST_NPZ_NAME = 2**16 - 1 - len(".npy")  # bytes; zip counts them in two


@dataclass(frozen=True, kw_only=True)
class Content:
    """One tensor, row-major and little-endian, in chunks that are each good until the next.

    Attributes:
        info: What the header says.
        chunks: Its bytes; whoever asks gives room for what has none of its own.
        origin: The file that the bytes are from, and where there the first of them lies.
    """

    info: TensorInfo
    chunks: Callable[[Room], Iterable[memoryview]]
    origin: tuple[Path, int] | None = None


def content_of(name: str, tensor: torch.Tensor) -> Content:
    """A tensor in memory.

    Raises:
        UsageError: It has no numbers to write.
    """
    import torch

    if tensor.is_meta or tensor.layout != torch.strided:
        raise UsageError(f"{name!r} has no plain numbers to write: it is meta or sparse.")
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Content(
        info=TensorInfo(dtype=dtype, shape=tuple(tensor.shape)),
        chunks=lambda _: [_bytes_of(tensor)],
    )


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The elements of a tensor, row-major, without a copy where they lie so already."""
    import torch

    plain = tensor.detach().cpu().contiguous()
    flat = plain.as_strided((plain.numel(),), (1,))  # one element is contiguous by any stride
    return flat.view(torch.uint8).numpy().data


def checked_contents(
    tensors: Mapping[str, torch.Tensor | Content], dtypes: Collection[str], format_name: str
) -> dict[str, Content]:
    """Everything that is to be written, once it is known that the format can hold it.

    Raises:
        UsageError: A name or a dtype that the format cannot hold.
    """
    contents = {}
    for name, tensor in tensors.items():
        _check_name(name, format_name)
        content = tensor if isinstance(tensor, Content) else content_of(name, tensor)
        if content.info.dtype not in dtypes:
            raise UsageError(
                f"{name!r} has a dtype that {format_name} files do not get here.",
                evidence={"dtype": content.info.dtype, "known": " ".join(dtypes)},
            )
        contents[name] = content
    return contents


def _check_name(name: object, format_name: str) -> None:
    if not isinstance(name, str):
        raise UsageError("A tensor has a name that is not text.", evidence={"name": repr(name)})
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise UsageError(
            "A tensor has a name that is not valid Unicode.", evidence={"name": ascii(name)}
        ) from error
    if format_name == "npz" and ("\0" in name or size > _LONGEST_NPZ_NAME):
        raise UsageError(
            "A tensor has a name that npz cannot hold.", evidence={"name": ascii(name)[:80]}
        )
