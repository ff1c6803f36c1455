"""Plain pickles of NumPy's arrays, against those that Python's own pickler and NumPy write."""

import io
import pickle
from collections import OrderedDict
from struct import pack
from typing import ClassVar

import numpy as np
import pytest

from vitconvert.errors import CorruptFile, UnsafeFile, VitConvertError
from vitconvert.formats import open_container


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    dtypes = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "?", "c8")
    numbers = {f"of.{dtype}": random.integers(0, 2, 5).astype(dtype) for dtype in dtypes}
    shared = random.normal(size=(3, 5)).astype("f4")
    return {
        **numbers,
        "rows": random.normal(size=(2, 3, 4, 5)).astype("f4"),
        "columns": np.asfortranarray(random.normal(size=(4, 3, 2)).astype("f4")),
        "view": random.normal(size=(6, 6)).astype("f4")[::2, 1:],
        "one": np.array(0.5, "f4"),
        "none": np.zeros((0, 3), "f4"),
        "large": random.normal(size=20_000),
        "twice.a": shared,
        "twice.b": shared,
    }


class Python2(pickle._Pickler):
    """What Python 2 writes in protocol 2: its text is bytes, and NumPy's modules have old names."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_text(self, value: str | bytes) -> None:
        data = value if isinstance(value, bytes) else value.encode()
        head = pickle.BINSTRING + pack("<i", len(data))
        if len(data) < 256:
            head = pickle.SHORT_BINSTRING + bytes([len(data)])
        self.write(head + data)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_text


def python2(value: object) -> bytes:
    file = io.BytesIO()
    Python2(file, 2, fix_imports=True).dump(value)
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def written(value: object, protocol: int) -> bytes:
    return python2(value) if protocol == 2 else pickle.dumps(value, protocol)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_array_is_read_as_it_was_saved(tmp_path, protocol):
    beside = {"__author__": "somebody", "matching_heuristics": True, "best": np.float64(0.5)}
    data = written({"model": OrderedDict(arrays()), **beside}, protocol)
    if protocol == 2:
        assert np.array_equal(
            pickle.loads(data, encoding="latin1")["model"]["rows"], arrays()["rows"]
        )
    (tmp_path / "x.pkl").write_bytes(data)
    with open_container(tmp_path / "x.pkl") as container:
        assert (container.format, container.wrapper) == ("pickle", ("model",))
        assert set(container.extras) == set(beside)
        assert list(container.manifest) == list(arrays())
        for name, array in arrays().items():
            read = container.read(name).numpy()
            assert read.dtype == array.dtype
            assert np.array_equal(read, array), name


def test_numbers_stay_in_the_file(tmp_path):
    array = np.arange(2**21, dtype="f4")
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"a": array}))
    with open_container(tmp_path / "x.pkl") as container:
        place = container.places["a"]
    data = (tmp_path / "x.pkl").read_bytes()
    assert data[place.offset : place.offset + array.nbytes] == array.tobytes()


@pytest.mark.parametrize(
    ("value", "fact"),
    [
        (np.arange(3, dtype=">f4"), "'a' has a dtype that is not read here."),
        (np.array(["x", None]), "'a' has a dtype that is not read here."),
        (np.array(["x", "yz"]), "'a' has a dtype that is not read here."),
        (np.float32(3), "'a' is among the tensors, but is a numpy scalar."),
    ],
    ids=["big-endian", "objects", "text", "scalar"],
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_an_array_of_other_values_is_named(tmp_path, protocol, value, fact):
    (tmp_path / "x.pkl").write_bytes(written({"a": value, "b": np.ones(3)}, protocol))
    with pytest.raises(CorruptFile) as error:
        open_container(tmp_path / "x.pkl")
    assert error.value.fact == fact


def test_bytes_as_text_are_refused_by_name(tmp_path):
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"a": np.ones(3)}, 2))
    with pytest.raises(CorruptFile) as error:
        open_container(tmp_path / "x.pkl")
    assert "protocol 2" in error.value.evidence["reason"]


def test_records_are_refused(tmp_path):
    records = np.zeros(2, [("x", "f4"), ("y", "i4")])
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"a": records}))
    with pytest.raises(CorruptFile) as error:
        open_container(tmp_path / "x.pkl")
    assert "not a plain one" in error.value.evidence["reason"]


def test_buffers_outside_the_pickle_are_refused(tmp_path):
    data = pickle.dumps({"a": np.ones(3)}, 5, buffer_callback=[].append)
    (tmp_path / "x.pkl").write_bytes(data)
    with pytest.raises(CorruptFile) as error:
        open_container(tmp_path / "x.pkl")
    assert "NEXT_BUFFER" in error.value.evidence["reason"]


class Strange:
    """What no program keeps beside arrays."""


@pytest.mark.parametrize(
    "value",
    [Strange(), Strange, eval, np.random.default_rng],
    ids=["an object", "a class", "a function", "a name of NumPy"],
)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_whatever_is_more_than_an_array_is_refused(tmp_path, protocol, value):
    (tmp_path / "x.pkl").write_bytes(written({"a": np.ones(3), "b": value}, protocol))
    with pytest.raises(UnsafeFile) as error:
        open_container(tmp_path / "x.pkl")
    assert error.value.fact == "This Python pickle asks for more than arrays of NumPy."


NUMPY = b"cnumpy._core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85C\1btR"
LESS = b"J\xff\xff\xff\xff"  # -1
DTYPE = b"cnumpy\ndtype\nX\2\0\0\0f4\x89\x88\x87R(K\3X\1\0\0\0<NNN" + LESS + LESS + b"K\0tb"


def hostile(state: bytes) -> bytes:
    return b"\x80\3}X\1\0\0\0a" + NUMPY + b"(K\1" + state + b"tbs."


@pytest.mark.parametrize(
    "state",
    [
        b"K\5\x85" + DTYPE + b"\x89C\4abcd",
        b"J\xff\xff\xff\xff\x85" + DTYPE + b"\x89C\4abcd",
        b"X\1\0\0\0a\x85" + DTYPE + b"\x89C\4abcd",
        b"K\1" + DTYPE + b"\x89C\4abcd",
        b"(" + b"K\1" * 65 + b"t" + DTYPE + b"\x89C\4abcd",
        b"(" + b"\x8a\x09" + b"\xff" * 8 + b"\0" + b"K\0t" + DTYPE + b"\x89C\0",
        b"K\1\x85" + DTYPE + b"\x89C\5abcde",
        b"K\1\x85" + DTYPE + b"\x89N",
        b"K\1\x85" + b"N" + b"\x89C\4abcd",
        b"K\1\x85" + b"cnumpy\ndtype\n)\x81" + b"\x89C\4abcd",
        b"K\1\x85" + DTYPE + b"\x89\x8e" + b"\xff" * 7 + b"\x7f",
        b"K\1\x85" + DTYPE + b"\x89T\xff\xff\xff\x7f",
    ],
    ids=[
        *("more", "negative", "no number", "no shape", "axes", "huge", "rest"),
        *("no bytes", "no dtype", "made", "endless bytes", "endless text"),
    ],
)
def test_a_hostile_array_is_an_error(tmp_path, state):
    (tmp_path / "x.pkl").write_bytes(hostile(b"K\1\x85" + DTYPE + b"\x89C\4abcd"))
    with open_container(tmp_path / "x.pkl") as container:  # the same with nothing wrong
        assert container.read("a").numpy().tobytes() == b"abcd"
    (tmp_path / "y.pkl").write_bytes(hostile(state))
    with pytest.raises(VitConvertError):
        open_container(tmp_path / "y.pkl")
