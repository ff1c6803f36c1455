"""Hostile directories of Orbax: a message and an exit code, in 10 s and 1 GiB."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.harness import call_limited
from tests.hostile.test_containers import CORRUPT, UNSAFE, check, read_all
from vitconvert.containers.orbax.arrays import most_inflated

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
        (self.place / "a").mkdir(parents=True)
        (self.place / "a" / ".zarray").write_text(json.dumps(self.header))
        (self.place / "a" / "0.0").write_bytes(self.chunk)
        text = json.dumps({"tree_metadata": self.tree.pop("tree_metadata"), **self.tree})
        (self.place / "_METADATA").write_text(text)
        return self.place / "_METADATA"


def changed(**header: Any) -> Callable[[Directory], None]:
    return lambda made: made.header.update(header)


def zstd(made: Directory) -> None:
    made.header["compressor"] = {"id": "zstd", "level": 1}


def repeated(blocks: int) -> bytes:
    """A frame of zstd that repeats a zero 2^17 times in each block."""
    block = ((2**17 << 3) | (1 << 1)).to_bytes(3, "little") + b"\0"
    last = ((2**17 << 3) | (1 << 1) | 1).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * (blocks - 1) + last


def bomb(made: Directory) -> None:
    zstd(made)
    made.chunk = repeated(100_000)


def damaged(made: Directory) -> None:
    zstd(made)
    made.chunk = b"\x28\xb5\x2f\xfd\x00\x58" + ((5 << 3) | 4 | 1).to_bytes(3, "little") + b"xxxxx"


def no_frame(made: Directory) -> None:
    zstd(made)


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


def no_type(made: Directory) -> None:
    made.entry["value_metadata"] = {"value_type": [1]}


def empty_store(made: Directory) -> None:
    made.tree["use_ocdbt"] = True


CASES = {
    "2^60 elements": (changed(shape=[2**60], chunks=[2**60]), UNSAFE, "far more"),
    "2^60 chunks": (changed(shape=[2**60], chunks=[1]), CORRUPT, "100,000 chunks"),
    "no memory": (changed(shape=[2**62, 2**62], chunks=[1, 1]), CORRUPT, "no memory"),
    "a chunk of 2^60": (changed(chunks=[2**30, 2**30]), CORRUPT, "do not go with its shape"),
    "chunks of nothing": (changed(chunks=[0, 3]), CORRUPT, "do not go with its shape"),
    "other axes": (changed(chunks=[2]), CORRUPT, "do not go with its shape"),
    "objects": (changed(dtype="|O"), CORRUPT, "dtype"),
    "fields": (changed(dtype=[["x", "<f4"]]), CORRUPT, "dtype"),
    "big-endian": (changed(dtype=">f4"), CORRUPT, "dtype"),
    "filters": (changed(filters=[{"id": "pickle"}]), CORRUPT, "does not write"),
    "columns first": (changed(order="F"), CORRUPT, "does not write"),
    "another compressor": (changed(compressor={"id": "bz2"}), CORRUPT, "compressed"),
    "a separator": (changed(dimension_separator="/../"), CORRUPT, "names"),
    "a bomb": (bomb, UNSAFE, "would inflate"),
    "a damaged chunk": (damaged, CORRUPT, "tensorstore cannot read"),
    "no frame": (no_frame, CORRUPT, "no frame"),
    "a short chunk": (short, CORRUPT, "wrong size"),
    "a missing chunk": (missing, CORRUPT, "is missing"),
    "outside": (keys("..", "a"), UNSAFE, "another place"),
    "outside, in one": (keys("../a"), UNSAFE, "another place"),
    "absolute": (keys("/etc"), UNSAFE, "another place"),
    "a missing array": (keys("b"), CORRUPT, "no header"),
    "a long name": (keys("b" * 5000), CORRUPT, ""),
    "a key that is no text": (keys(1), CORRUPT, "no text"),
    "no key": (keys(), CORRUPT, "no keys"),
    "twice": (twice, CORRUPT, "twice"),
    "one name": (one_name, CORRUPT, "under one name"),
    "no type": (no_type, CORRUPT, "no type"),
    "an empty store": (empty_store, CORRUPT, "no header"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_orbax_directory_that_lies(tmp_path: Path, case: str) -> None:
    change, word, said = CASES[case]
    made = Directory(tmp_path / "x")
    change(made)
    answer = call_limited(read_all, made.write(), mebibytes=2048)  # threads of tensorstore
    check(answer, word)
    assert said in answer.err


def test_a_sound_one(tmp_path: Path) -> None:
    assert call_limited(read_all, Directory(tmp_path / "x").write(), mebibytes=2048).code == 0


@pytest.mark.parametrize("damage", ["zeros", "cut", "none"])
def test_a_store_that_is_damaged(tmp_path: Path, damage: str) -> None:
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


def test_how_much_a_frame_may_inflate_to() -> None:
    assert most_inflated(repeated(3)) == 3 * 2**17
    assert most_inflated(repeated(3)[:-1]) is None
    assert most_inflated(repeated(3) + b"x") is None
    assert most_inflated(b"") is None
