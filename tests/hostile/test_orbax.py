"""Hostile directories of Orbax: a message and an exit code, in 10 s and 1 GiB."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.harness import call_limited
from tests.hostile.test_containers import CORRUPT, UNSAFE, check, read_all
from tests.sampling import sampled
from vitconvert.errors import UnsafeFile
from vitconvert.formats import open_container
from vitconvert.formats.orbax import most_inflated

HEADER: dict[str, Any] = {
    "chunks": [2, 3],
    "compressor": None,
    "dimension_separator": ".",
    "dtype": "<f4",
    "fill_value": None,
    "filters": None,
    "order": "C",
    "shape": [2, 3],
    "zarr_format": 2,
}
ORDER = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 3}}
THIRD: dict[str, Any] = {
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
    "chunk_key_encoding": {"name": "default"},
    "codecs": [ORDER],
    "data_type": "float32",
    "fill_value": 0.0,
    "node_type": "array",
    "shape": [2, 3],
    "zarr_format": 3,
}
KIND = {"value_type": "np.ndarray", "skip_deserialize": False}


class Directory:
    """An array in its folder, and the tree that names it."""

    def __init__(self, place: Path) -> None:
        self.place, self.header, self.chunk = place, dict(HEADER), bytes(24)
        self.tree: dict[str, Any] = {"use_ocdbt": False, "use_zarr3": False}
        self.tree["store_array_data_equal_to_fill_value"] = True
        entry = {"key_metadata": [{"key": "a", "key_type": 2}], "value_metadata": dict(KIND)}
        self.tree["tree_metadata"] = {"('a',)": entry}

    @property
    def entry(self) -> Any:
        return self.tree["tree_metadata"]["('a',)"]

    def write(self) -> Path:
        third = self.tree["use_zarr3"]
        chunk = self.place / "a" / ("c/0/0" if third else "0.0")
        chunk.parent.mkdir(parents=True)
        chunk.write_bytes(self.chunk)
        header = self.place / "a" / ("zarr.json" if third else ".zarray")
        header.write_text(json.dumps(self.header))
        text = json.dumps({"tree_metadata": self.tree.pop("tree_metadata"), **self.tree})
        (self.place / "_METADATA").write_text(text)
        return self.place / "_METADATA"


def changed(**header: Any) -> Callable[[Directory], None]:
    return lambda made: made.header.update(header)


def zstd(made: Directory) -> None:
    made.header["compressor"] = {"id": "zstd", "level": 1}


def repeated(blocks: int, times: int = 2**17) -> bytes:
    """A frame of zstd that repeats a zero so often in each block."""
    block = ((times << 3) | (1 << 1)).to_bytes(3, "little") + b"\0"
    last = ((times << 3) | (1 << 1) | 1).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * (blocks - 1) + last


def bomb(made: Directory) -> None:
    zstd(made)
    made.chunk = repeated(100_000)


def damaged(made: Directory) -> None:
    zstd(made)
    made.chunk = b"\x28\xb5\x2f\xfd\x00\x58" + ((5 << 3) | 4 | 1).to_bytes(3, "little") + b"xxxxx"


def short(made: Directory) -> None:
    made.chunk = bytes(23)


def missing(made: Directory) -> None:
    made.header.update(shape=[4, 3])


def keys(*found: object) -> Callable[[Directory], None]:
    def change(made: Directory) -> None:
        made.entry["key_metadata"] = [{"key": key, "key_type": 2} for key in found]

    return change


def twice(made: Directory) -> None:
    made.tree["tree_metadata"]["again"] = made.entry


def one_name(made: Directory) -> None:
    for keys in (["b", "c"], ["b.c"]):
        entry = {"key_metadata": [{"key": key} for key in keys], "value_metadata": KIND}
        made.tree["tree_metadata"][str(keys)] = entry


def third(**header: Any) -> Callable[[Directory], None]:
    def change(made: Directory) -> None:
        made.tree["use_zarr3"], made.header = True, {**THIRD, **header}

    return change


def crc32c(data: bytes) -> bytes:
    """The checksum of RFC 3720, section 12.1."""
    value = 2**32 - 1
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return (value ^ 2**32 - 1).to_bytes(4, "little")


def sharding(codec: Any = ORDER, pieces: Any = (1, 3), **settings: Any) -> dict[str, Any]:
    codecs = [ORDER, codec] if codec is ZSTD else [codec]
    index = [ORDER, {"name": "crc32c"}]
    within = {"chunk_shape": pieces, "codecs": codecs, "index_codecs": index}
    return {"name": "sharding_indexed", "configuration": {**within, **settings}}


def in_pieces(
    index: list[int], data: bytes = bytes(24), **settings: Any
) -> Callable[[Directory], None]:
    """An array in one chunk of two pieces, with this index."""

    def change(made: Directory) -> None:
        third(codecs=[sharding(**settings)])(made)
        numbers = b"".join(number.to_bytes(8, "little") for number in index)
        made.chunk = data + numbers + crc32c(numbers)

    return change


NONE = 2**64 - 1
FRAME = repeated(100_000)
CASES = {
    "2^60 elements": (changed(shape=[2**60], chunks=[2**60]), UNSAFE, "far more"),
    "no memory": (changed(shape=[2**62, 2**62], chunks=[1, 1]), CORRUPT, "no memory"),
    "a bomb": (bomb, UNSAFE, "would inflate"),
    "a damaged chunk": (damaged, CORRUPT, "tensorstore cannot read"),
    "a short chunk": (short, CORRUPT, "tensorstore cannot read"),
    "a missing chunk": (missing, CORRUPT, "is missing"),
    "outside": (keys("..", "a"), UNSAFE, "another place"),
    "a missing array": (keys("b"), CORRUPT, "tensorstore cannot read"),
    "twice": (twice, CORRUPT, "twice"),
    "one name": (one_name, CORRUPT, "under one name"),
    "3: pieces of pieces": (in_pieces([0, 12, 12, 12], codec=sharding()), CORRUPT, "compressed"),
    "3: outside the chunk": (in_pieces([0, 12, 12, 13]), CORRUPT, "an index"),
    "3: one over another": (in_pieces([0, 12, 6, 12]), CORRUPT, "an index"),
    "3: a piece is missing": (in_pieces([0, 12, NONE, NONE]), CORRUPT, "lacks a piece"),
    "3: a short piece": (in_pieces([0, 12, 12, 11]), CORRUPT, "tensorstore cannot read"),
    "3: two bombs": (
        in_pieces([0, len(FRAME), len(FRAME), len(FRAME)], 2 * FRAME, codec=ZSTD),
        UNSAFE,
        "would inflate",
    ),
}


@pytest.mark.parametrize("case", sampled(CASES, 5, "slow"))
def test_an_orbax_directory_that_lies(tmp_path, case):
    change, word, said = CASES[case]
    made = Directory(tmp_path / "x")
    change(made)
    answer = call_limited(read_all, made.write(), mebibytes=2048)  # threads of tensorstore
    check(answer, word)
    assert said in answer.err


BIG = {"name": "bytes", "configuration": {"endian": "big"}}
SOUND = {
    "big-endian": changed(dtype=">f4"),
    "columns first": changed(order="F"),
    "3: big-endian": third(codecs=[BIG]),
    "zarr 2": lambda _: None,
    "zarr 3": third(),
    "pieces": in_pieces([12, 12, 0, 12]),
    "zstd": in_pieces([0, 10, 10, 10], 2 * repeated(1, 12), codec=ZSTD),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SOUND)
def test_a_sound_one(tmp_path, case):
    made = Directory(tmp_path / "x")
    SOUND[case](made)
    answer = call_limited(read_all, made.write(), mebibytes=2048)
    assert answer.code == 0, answer.err


@pytest.mark.parametrize("damage", ["zeros", "cut", "none"])
def test_a_store_that_is_damaged(tmp_path, damage):
    made = Directory(tmp_path / "x")
    made.tree["use_ocdbt"] = True

    def write_and_read() -> None:
        import tensorstore  # here: it starts threads

        path = made.write()
        base = {"driver": "file", "path": f"{made.place}/"}
        store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
        store.write("a/.zarray", json.dumps(made.header)).result()
        store.write("a/0.0", made.chunk).result()
        manifest = made.place / "manifest.ocdbt"
        data = manifest.read_bytes()
        if damage != "none":
            manifest.write_bytes(data[:-9] if damage == "cut" else bytes(len(data)))
        read_all(path)

    answer = call_limited(write_and_read, mebibytes=2048)
    if damage == "none":
        assert answer.code == 0, answer
    else:
        check(answer, CORRUPT)


def test_how_much_a_frame_may_inflate_to():
    assert most_inflated(repeated(3)) == 3 * 2**17
    assert most_inflated(repeated(3)[:-1]) is None
    assert most_inflated(repeated(3) + b"x") is None
    assert most_inflated(b"") is None


@pytest.mark.parametrize("letter", ["/", "\\", "\0", ":", "|", '"'])
def test_a_key_that_would_be_more_than_a_name(tmp_path, letter):
    """Parts of a path, drives of Windows, and what tensorstore reads as another store."""
    made = Directory(tmp_path / "x")
    keys(f"a{letter}b")(made)
    with pytest.raises(UnsafeFile, match="leads to another place"):
        open_container(made.write())
