"""Reading and writing GGUF: agreement with the gguf package, and hostile headers."""

import struct

import gguf
import numpy as np
import pytest
import torch

from vitconvert.errors import CorruptFile, UsageError
from vitconvert.formats import TensorInfo, open_container
from vitconvert.formats import gguf as gguf_module
from vitconvert.formats.format_modules import Surroundings
from vitconvert.formats.gguf import DTYPES, read_plainly, write_file


def test_types_are_those_of_the_package():
    sizes = {kind.name: size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    lengths = {kind: (1, getattr(torch, dtype).itemsize) for kind, dtype in DTYPES.items()}
    assert lengths == {kind: size for kind, size in sizes.items() if size[0] == 1}


def test_numbers_of_every_type(tmp_path):
    """The largest and the smallest of each, as the package writes it."""
    path, said = tmp_path / "x", {}
    writer = gguf.GGUFWriter(path, "clip")
    for width in (8, 16, 32, 64):
        said |= {f"u{width}": 2**width - 1, f"i{width}": -(2 ** (width - 1))}
        getattr(writer, f"add_uint{width}")(f"u{width}", 2**width - 1)
        getattr(writer, f"add_int{width}")(f"i{width}", -(2 ** (width - 1)))
    writer.add_bool("on", True)
    for digits in ("0.5", "0.33333334", "123456.79", "1.1754944e-38"):  # shortest, of a float32
        writer.add_float32(f"f.{digits.replace('.', '_')}", float(digits))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with open_container(path) as container:
        assert container.config.items() >= said.items()
        assert container.config["on"] is True
        floats = {key.replace("_", "."): value for key, value in container.config["f"].items()}
        assert floats == {digits: float(digits) for digits in floats} and len(floats) == 4


def test_reads_what_the_package_wrote(tmp_path):
    path, values = tmp_path / "x", np.random.default_rng(0).normal(size=(2, 3, 64))
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_array("some", [1, 2, 3])
    writer.add_array("words", ["a", "b"])
    writer.add_array("long", list(range(2000)))
    writer.add_array("tokens", [str(number) for number in range(2000)])
    writer.add_string("a.b", "text")
    writer.add_string("a.b.c", "within")
    writer.add_float32("eps", 1e-5)
    writer.add_float64("exact", 0.1)
    writer.add_int64("far", -(2**40))
    writer.add_string("essay", "x" * 20_000)
    writer.add_custom_alignment(64)
    writer.add_tensor("float", values.astype(np.float32))
    writer.add_tensor("half", values[0, :, :5].astype(np.float16))
    writer.add_tensor("whole", np.arange(3, dtype=np.int32))
    writer.add_tensor("packed", gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0), raw_dtype=8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_container(path) as container:
        assert container.format == "gguf"
        assert container.manifest == {
            "float": TensorInfo(dtype="float32", shape=(2, 3, 64)),
            "half": TensorInfo(dtype="float16", shape=(3, 5)),
            "whole": TensorInfo(dtype="int32", shape=(3,)),
            "packed.eight_bit_blocks": TensorInfo(dtype="uint8", shape=(2, 3, 2, 34)),
        }
        assert np.array_equal(container.read("float").numpy(), values.astype(np.float32))
        assert np.array_equal(container.read("half").numpy(), values[0, :, :5].astype(np.float16))
        assert container.config == {
            "general": {"architecture": "clip", "alignment": 64},
            "some": [1, 2, 3],
            "words": ["a", "b"],
            "a": {"b": {"c": "within"}},
            "long": "2,000 numbers",
            "tokens": "2,000 texts",
            "eps": 1e-5,
            "exact": 0.1,
            "far": -(2**40),
            "essay": "text of 20,000 bytes",
        }
        assert container.metadata["a.b"] == "text"


def test_the_package_reads_what_is_written(tmp_path):
    tensors = {
        "b": torch.randn(3, 5, 2, 2),
        "a": torch.randn(7).bfloat16(),
        "half": torch.randn(3, 5).half(),
        "none": torch.empty(0, 3),
        "x" * 63: torch.zeros(3, dtype=torch.int8),
    }
    said = {"clip": {"on": True, "eps": 1e-6, "count": 3, "mean": [0.5, 0.25], "name": "é"}}
    write_file(tmp_path / "x", tensors, Surroundings(config=said))
    theirs = {name: (shape, data) for name, shape, data in read_plainly(tmp_path / "x", "")}
    with open_container(tmp_path / "x") as container:
        assert container.config == said
        assert list(container.manifest) == sorted(tensors) == list(theirs)
        for name, tensor in tensors.items():
            assert torch.equal(container.read(name), tensor)
            data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
            assert theirs[name] == (tuple(tensor.shape), data)
    fields = gguf.GGUFReader(tmp_path / "x").fields
    assert fields["clip.name"].contents() == "é" and fields["clip.on"].contents() is True
    assert fields["GGUF.version"].contents() == gguf.GGUF_VERSION


def test_only_words_with_a_section_are_written_of_the_origin(tmp_path):
    """A word without a dot is of another format's header."""
    origin = {"general.source": "x", "format": "pt"}
    around = Surroundings(metadata=origin, config={"clip": {"count": 3}})
    write_file(tmp_path / "x", {"a": torch.zeros(3)}, around)
    with open_container(tmp_path / "x") as container:
        assert container.config == {"clip": {"count": 3}, "general": {"source": "x"}}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1, 1, 1, 1, 1),
        torch.zeros(1, dtype=torch.bool),
        torch.tensor(1, dtype=torch.bfloat16),  # the package cannot read it
    ],
)
def test_what_gguf_cannot_hold(tmp_path, tensor):
    with pytest.raises(UsageError):
        write_file(tmp_path / "x", {"a": tensor})
    with pytest.raises(UsageError, match="GGUF cannot hold"):
        write_file(tmp_path / "x", {"a" * 64: torch.zeros(1)})
    assert not (tmp_path / "x").exists()


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def tensor(name: bytes = b"a", axes=(8,), kind: int = 0, offset: int = 0) -> bytes:
    lengths = struct.pack(f"<I{len(axes)}Q", len(axes), *axes)
    return text(name) + lengths + struct.pack("<IQ", kind, offset)


def header(*tensors: bytes, words: tuple[bytes, ...] = (), version: int = 3) -> bytes:
    counts = struct.pack("<IQQ", version, len(tensors), len(words))
    start = b"GGUF" + counts + b"".join(words) + b"".join(tensors)
    return start.ljust(-(-len(start) // 32) * 32, b"\0") + bytes(32)


def aligned(form: str, *values: float) -> bytes:
    return header(words=(text(b"general.alignment") + struct.pack(form, *values),))


FAR = 2**64 - 1
HOSTILE = {
    "highest bytes first": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "highest bytes"),
    "a word twice": (header(words=(text(b"a") + b"\7\0\0\0\1",) * 2), "Duplicate a already"),
    "one over the other": (header(tensor(), tensor(b"b")), "does not begin where"),
    "a hole": (header(tensor(offset=32)) + bytes(32), "does not begin where"),
    "beyond the end": (header(tensor(axes=(9,))), "truncated"),
    "no such memory": (header(tensor(axes=(2**40, 2**40))), "no memory can hold"),
    "an unknown type": (header(tensor(kind=99)), "is not a valid GGMLQuantizationType"),
    "a name without end": (header(struct.pack("<Q", FAR)), "truncated"),
    "a name that is no Unicode": (header(tensor(b"\xff")), "can't decode"),
    "all tensors of the world": (b"GGUF" + struct.pack("<IQQ", 3, FAR, 0), "truncated"),
    **{f"an alignment of {n}": (aligned("<II", 4, n), "power of two") for n in (0, 3)},
    "bytes behind the last tensor": (header(tensor()) + bytes(32), "Bytes follow the last tensor"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers(tmp_path, case):
    data, said = HOSTILE[case]
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(CorruptFile) as error:
        open_container(tmp_path / "x")
    assert said in str(error.value)
    assert len(str(error.value)) < 1000


def test_error_more_values_than_any(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_module, "_MOST_PARTS", 100)
    (tmp_path / "x").write_bytes(header(*(tensor(bytes([i])) for i in range(97, 122))))
    with pytest.raises(CorruptFile, match="more values than any"):
        open_container(tmp_path / "x")


def test_version_2_and_text_that_is_no_unicode(tmp_path):
    word = text(b"a") + struct.pack("<I", 8) + text(b"\xff!")
    (tmp_path / "x").write_bytes(header(tensor(), words=(word,), version=2))
    with open_container(tmp_path / "x") as container:
        assert container.config == {"a": "\\xff!"}
        assert container.read("a").tolist() == [0] * 8
