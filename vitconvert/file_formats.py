"""The file formats of weights: one entry for each, and everybody asks this list.

An entry holds what is known before a file is opened: names, first bytes, members of an archive.
The format's module reads and writes its files, and is imported when a file of that format is met
(`vitconvert/formats/format_modules.py` defines what a module has). This file itself imports
nothing that takes time.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

LONGEST_SAFETENSORS_HEADER = 100_000_000  # bytes; the limit that the safetensors library sets
INDEX = ".index.json"
"""Ends the name of an index: JSON that maps each tensor to one of several files."""


def _never(_: object) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Format:
    """A file format.

    Attributes:
        name: What `--json` and tables (`container = "npz"`) call it.
        module: Reads and writes it.
        suffixes: Of its files; only a hint, because the content decides.
        standard: File names that libraries look for, best first.
        begins: Whether a file that begins with these 512 bytes has this format.
        holds: Whether a zip archive whose members have these names has this format.
        output: Name of the file of weights in an output; "" for a format that is only read.
        package: What writes it, if that is not installed with vitconvert.
        sharded: Whether its readers accept several files and an index.
        nested: Whether tensors may lie under a key, with other values beside them.
        fills: Whether a directory with files of these names is one checkpoint of this format; the
            first of the standard names is then the file to open.
        parts: Of such a directory, whether a name below it is that of a file of the checkpoint.
    """

    name: str
    module: str
    suffixes: tuple[str, ...]
    standard: tuple[str, ...] = ()
    begins: Callable[[bytes], bool] = _never
    holds: Callable[[Collection[str]], bool] = _never
    output: str = ""
    package: str = ""
    sharded: bool = False
    nested: bool = False
    fills: Callable[[Collection[str]], bool] = _never
    parts: Callable[[str], bool] = _never


def _begins_safetensors(start: bytes) -> bool:
    """The length of a JSON header, then the header."""
    length = int.from_bytes(start[:8], "little")
    return start[8:9] == b"{" and length <= LONGEST_SAFETENSORS_HEADER


def _begins_legacy_torch(start: bytes) -> bool:
    """A pickle of torch.serialization.MAGIC_NUMBER, as torch.save wrote before 1.6."""
    return start[:1] == b"\x80" and bytes.fromhex("8a0a6cfc9c46f9206aa85019") in start[:32]


def _holds_pickle(members: Collection[str]) -> bool:
    return any(name.endswith("/data.pkl") for name in members)


def _holds_arrays(members: Collection[str]) -> bool:
    return any(name.endswith(".npy") for name in members) and not _holds_pickle(members)


def _holds_program(members: Collection[str]) -> bool:
    """torch.jit.save writes constants beside the data; torch.save does not."""
    return _holds_pickle(members) and any(name.endswith("/constants.pkl") for name in members)


def _begins_msgpack(start: bytes) -> bool:
    """A map, of 1 to 15 entries or of up to 2^16 or 2^32, whose first key is text."""
    key = {0xDE: start[3:4], 0xDF: start[5:6]}.get(start[0], start[1:2])
    is_map = 0x81 <= start[0] <= 0x8F or start[0] in (0xDE, 0xDF)
    return is_map and (b"\xa0" <= key <= b"\xbf" or key in (b"\xd9", b"\xda"))


FORMATS: tuple[Format, ...] = (
    Format(
        name="safetensors",
        module="vitconvert.formats.safetensors",
        suffixes=(".safetensors",),
        standard=("model.safetensors", "open_clip_model.safetensors"),
        begins=_begins_safetensors,
        output="model.safetensors",
        sharded=True,
    ),
    Format(
        name="torch",
        module="vitconvert.formats.torch.checkpoint",
        suffixes=(".pth", ".pt", ".bin", ".ckpt", ".pth.tar"),
        standard=("pytorch_model.bin", "open_clip_pytorch_model.bin"),
        begins=_begins_legacy_torch,
        holds=lambda members: _holds_pickle(members) and not _holds_program(members),
        output="model.pt",
        nested=True,
    ),
    Format(
        name="torchscript",
        module="vitconvert.formats.torch.torchscript",
        suffixes=(".pt",),
        holds=_holds_program,
    ),
    Format(
        name="npz",
        module="vitconvert.formats.npz",
        suffixes=(".npz",),
        holds=_holds_arrays,
        output="model.npz",
    ),
    Format(
        name="equinox",
        module="vitconvert.formats.equinox",
        suffixes=(".eqx",),
        standard=("weights.eqx",),
        begins=lambda start: start.startswith(b"\x93NUMPY"),
        output="weights.eqx",
    ),
    Format(
        name="hdf5",
        module="vitconvert.formats.hdf5",
        suffixes=(".h5", ".hdf5"),
        standard=("model.weights.h5", "tf_model.h5"),
        begins=lambda start: start.startswith(b"\x89HDF\r\n\x1a\n"),
        output="model.weights.h5",
        package="h5py",
    ),
    Format(
        name="keras",
        module="vitconvert.formats.keras",
        suffixes=(".keras",),
        holds={"config.json", "model.weights.h5"}.issubset,
    ),
    Format(
        name="keras_2",
        module="vitconvert.formats.keras",
        suffixes=(),  # it is read as hdf5, which it is
        output="model.h5",
        package="h5py",
    ),
    Format(
        name="msgpack",
        module="vitconvert.formats.msgpack",
        suffixes=(".msgpack",),
        standard=("flax_model.msgpack",),
        begins=_begins_msgpack,
        output="flax_model.msgpack",
        package="msgpack",
        sharded=True,
    ),
    Format(
        name="gguf",
        module="vitconvert.formats.gguf",
        suffixes=(".gguf",),
        begins=lambda start: start.startswith(b"GGUF"),
        output="mmproj.gguf",
        package="gguf",
    ),
    Format(
        name="orbax",
        module="vitconvert.formats.orbax",
        suffixes=(),
        standard=("_METADATA",),
        begins=lambda start: start.lstrip()[:1] == b"{" and b'"tree_metadata"' in start[:64],
        nested=True,
        fills=lambda names: "_METADATA" in names,
        parts=lambda name: not name.startswith(".git"),
    ),
    Format(
        name="pickle",
        module="vitconvert.formats.torch.pickled_arrays",
        suffixes=(".pkl",),
        # The protocols 2 to 5, of whatever other programs wrote it.
        begins=lambda start: start[:1] == b"\x80" and start[1:2] in (b"\2", b"\3", b"\4", b"\5"),
    ),
)
"""In the order in which they are preferred where the same weights exist in several."""

JOINED = {"model.weights.h5": "task.weights.h5"}
"""Standard names -> the file beside it that has the rest of the tensors, if it is there.

KerasHub keeps the head apart from what heads are put on.
"""

DISTRIBUTED = ".distcp"
"""Suffix of what one process wrote of a checkpoint, by torch.distributed.checkpoint."""

GATHER = (
    "`python -m torch.distributed.checkpoint.format_utils dcp_to_torch DIR FILE` makes one file "
    "of its directory."
)
"""What to do about a distributed checkpoint of torch."""

FOREIGN_SUFFIXES = (".onnx", ".tflite", ".ckpt.index", ".pb", DISTRIBUTED)
"""Suffixes of weights in formats that are not read: TensorFlow's, ONNX and torch's distributed."""


def written_formats() -> dict[str, Format]:
    """The formats that outputs are written in, by name."""
    return {form.name: form for form in FORMATS if form.output}


def suffixes() -> tuple[str, ...]:
    """All suffixes of files that are read, each once."""
    return tuple(dict.fromkeys(suffix for form in FORMATS for suffix in form.suffixes))


def of_directory(names: Collection[str]) -> Format | None:
    """The format of a directory that is one checkpoint, by the names of its files."""
    return next((form for form in FORMATS if form.fills(names)), None)


def directory_names() -> list[str]:
    """The names of files that stand for the directory that they are in."""
    return [form.standard[0] for form in FORMATS if form.fills is not _never]


def standard_names() -> list[str]:
    """File names that libraries look for, best first: each name, then its index."""
    names = (name for form in FORMATS if form.fills is _never for name in form.standard)
    return [variant for name in names for variant in (name, name + INDEX)]


def in_words() -> str:
    """The formats that are read, and suffixes that differ from their names, for messages."""
    read = [form for form in FORMATS if form.suffixes or form.standard]
    own = ((form.name, [s for s in form.suffixes if s != f".{form.name}"]) for form in read)
    *some, last = (f"{name} ({', '.join(found)})" if found else name for name, found in own)
    return f"{', '.join(some)} and {last}"
