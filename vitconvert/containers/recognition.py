"""What a file is, by its first bytes. A suffix says what a file is called."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vitconvert.containers.safetensors_file import LONGEST_HEADER
from vitconvert.errors import CorruptFile, SourceError, UnsafeFile, nearest

if TYPE_CHECKING:
    from vitconvert.containers.zip_directory import Member

Kind = Literal["safetensors", "zip", "torch legacy", "index"]

_TORCH_LEGACY_MAGIC = bytes.fromhex("8a0a6cfc9c46f920 6aa85019")  # torch.serialization.MAGIC_NUMBER

# First bytes, what they mean, and what to do about it.
_FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the weights", "run `git lfs pull`."),
    (
        b"\x89HDF\r\n\x1a\n",
        "an HDF5 file, as Keras and TensorFlow write",
        "load it with its own library and save the arrays with numpy.savez or safetensors.",
    ),
    (
        b"GGUF",
        "a GGUF file, as llama.cpp reads",
        "convert the checkpoint that it was made from; GGUF weights are often quantised.",
    ),
    (b"lmgg", "an old ggml file", "convert the checkpoint that it was made from."),
    (b"\x1f\x8b", "compressed with gzip", "unpack it first."),
    (b"BZh", "compressed with bzip2", "unpack it first."),
    (b"\xfd7zXZ\x00", "compressed with xz", "unpack it first."),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it first."),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first."),
    (
        b"\x93NUMPY",
        "a single .npy array without a name",
        "save named arrays with numpy.savez.",
    ),
)


def recognise(path: Path) -> Kind:
    """Tell which container a file is.

    Raises:
        SourceError: There is no file to read at this path, or it is a part of a distributed
            checkpoint.
        CorruptFile: The file is empty, or something else; says what it looks like.
        UnsafeFile: The file is a bare pickle.
    """
    start = _first_bytes(path)
    if path.suffix == ".distcp" or (path.name == ".metadata" and is_distributed(path.parent)):
        raise distributed(path.parent)
    if start[:4] in (b"PK\3\4", b"PK\5\6"):
        return "zip"
    if start[:1] == b"\x80" and _TORCH_LEGACY_MAGIC in start[:32]:
        return "torch legacy"
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= LONGEST_HEADER:
        return "safetensors"
    if start.lstrip()[:1] == b"{":
        return "index"
    raise _foreign(path, start)


def is_distributed(directory: Path) -> bool:
    """Whether torch.distributed.checkpoint wrote a directory."""
    return (directory / ".metadata").is_file() and any(directory.glob("*.distcp"))


def distributed(directory: Path) -> SourceError:
    """A checkpoint of which each process wrote its part."""
    return SourceError(
        "This is a distributed checkpoint: each process wrote its part of the tensors.",
        evidence={"directory": directory},
        hint="torch makes one file of it: python -m torch.distributed.checkpoint.format_utils "
        "dcp_to_torch DIRECTORY model.pth",
    )


def _first_bytes(path: Path) -> bytes:
    if path.is_dir():
        raise SourceError(
            "This is a directory, not a weights file.",
            evidence={"path": path},
            hint="name one file in it.",
        )
    try:
        with path.open("rb") as file:
            start = file.read(512) if path.is_file() else b""
    except FileNotFoundError as error:
        raise _missing(path) from error
    except OSError as error:
        raise SourceError(
            "The file cannot be read.", evidence={"file": path, "reason": error.strerror}
        ) from error
    if not start:
        raise CorruptFile("The file is empty.", evidence={"file": path}, hint="download it again.")
    return start


def _missing(path: Path) -> SourceError:
    beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, sorted(beside), 3)
    return SourceError(
        "There is no such file.",
        evidence={"file": path},
        hint=f"nearest names there: {', '.join(near)}." if near else None,
    )


def _foreign(path: Path, start: bytes) -> CorruptFile | UnsafeFile:
    if start[:1] == b"\x80" and start[1:2] in b"\2\3\4\5" and len(start) > 1:
        return UnsafeFile(
            "This is a Python pickle that torch.save did not write.",
            evidence={"file": path},
            meaning="Reading a pickle can run any code, so it was not opened.",
            hint="where you trust the file, load it with the program that wrote it and save the "
            "arrays with numpy.savez or safetensors.",
        )
    what, hint = _look(start)
    return CorruptFile(
        f"This is {what}." if what else "This is no checkpoint format known here.",
        evidence={"file": path, "begins": start[:16].hex(" ")},
        hint=hint or "safetensors, torch checkpoints (.pth, .pt, .bin) and npz are read.",
    )


def _look(start: bytes) -> tuple[str | None, str | None]:
    """What a file that is not ours looks like, and what to do about it."""
    for magic, what, hint in _FOREIGN:
        if start.startswith(magic):
            return what, hint
    if start.lstrip()[:1] == b"<":
        return "an HTML or XML page", "the download led to a web page; look at its address."
    if start[257:262] == b"ustar":
        return "a tar archive", "unpack it first."
    if start[:1] == b"\x08" and (b"pytorch" in start[:64] or b"onnx" in start[:64]):
        return "an ONNX graph", "convert the checkpoint that it was exported from."
    # A msgpack map (of 1 to 15, or of up to 2^16 or 2^32 entries) whose first key is text.
    key = {0xDE: start[3:4], 0xDF: start[5:6]}.get(start[0], start[1:2])
    if (0x81 <= start[0] <= 0x8F or start[0] in (0xDE, 0xDF)) and (
        b"\xa0" <= key <= b"\xbf" or key in (b"\xd9", b"\xda")
    ):
        return (
            "a msgpack file, as Flax writes",
            "load it with Flax and save the arrays with numpy.savez or safetensors.",
        )
    return None, None


def recognise_archive(
    path: Path, members: "Mapping[str, Member]"
) -> Literal["torch", "torchscript", "npz"]:
    """Tell which container a zip archive is.

    Raises:
        CorruptFile: It is none that is read here; says what it looks like.
    """
    names = list(members)
    if any(name.endswith("/data.pkl") for name in names):
        # torch.jit.save writes constants beside the data, torch.save does not.
        scripted = any(name.endswith("/constants.pkl") for name in names)
        return "torchscript" if scripted else "torch"
    if any(name.endswith(".npy") for name in names):
        return "npz"
    raise CorruptFile(
        "This is a zip archive, but neither a torch checkpoint nor an npz.",
        evidence={"file": path, "members": ", ".join(names[:5]) or "none"},
        hint="if it is a zipped checkpoint, unpack it first.",
    )
