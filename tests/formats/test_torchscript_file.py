"""Reading TorchScript archives: the weights without the program."""

import pickle
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from vitconvert.errors import CorruptFile, UnsafeFile, VitConvertError
from vitconvert.formats import TensorInfo, open_container

Members = dict[str, bytes]


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3).half())
        self.kernel = nn.Parameter(torch.randn(2, 3, 2, 2).permute(0, 2, 3, 1))
        self.register_buffer("count", torch.tensor(224))
        self.register_buffer("none", torch.empty(0, 3))
        self.sizes = [1, 2]
        self.text = "x"

    def forward(self, x: Tensor) -> Tensor:
        scale = self.count + self.kernel.sum() + self.none.sum() + len(self.sizes) + len(self.text)
        return x @ self.weight.t().float() * scale


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.act = nn.GELU()
        self.layers = nn.Sequential(nn.Linear(4, 2), self.act, nn.Linear(2, 2), self.act)
        self.tied = self.inner.weight
        self.input_resolution = 224

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.inner(x)) + self.input_resolution + self.tied.sum()


@pytest.fixture(params=["script", "trace"])
def archive(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "model.pt"
    with warnings.catch_warnings(action="ignore"):  # torch.jit is deprecated
        if request.param == "script":
            torch.jit.save(torch.jit.script(Model()), path)
        else:
            torch.jit.save(torch.jit.trace(Model(), torch.randn(1, 3)), path)
    return path


def loaded(path: Path) -> dict[str, Tensor]:
    with warnings.catch_warnings(action="ignore"):
        return dict(torch.jit.load(path).state_dict())


def test_reads_what_torch_loads(archive: Path) -> None:
    wanted = loaded(archive)
    with open_container(archive) as container:
        assert container.format == "torchscript"
        assert set(container.manifest) == set(wanted) and len(wanted) == 9
        assert container.manifest["inner.weight"] == TensorInfo(dtype="float16", shape=(4, 3))
        for name, tensor in wanted.items():
            read = container.read(name)
            assert read.dtype == tensor.dtype and not read.requires_grad
            assert torch.equal(read, tensor)


def test_numbers_and_texts_are_beside_the_tensors(tmp_path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):
        torch.jit.save(torch.jit.script(Model()), tmp_path / "m.pt")
    extras = open_container(tmp_path / "m.pt").extras
    assert extras == {"input_resolution": 224, "inner.sizes": [1, 2], "inner.text": "x"}


def test_tensors_outlive_the_container_and_do_not_write_to_the_file(archive: Path) -> None:
    before = archive.read_bytes()
    with open_container(archive) as container:
        weight = container.read("layers.0.weight")
    weight.zero_()
    assert archive.read_bytes() == before and not weight.count_nonzero()


def test_reads_a_deflated_archive(archive: Path) -> None:
    wanted = loaded(archive)
    rewrite(archive, lambda members: members, zipfile.ZIP_DEFLATED)
    container = open_container(archive)
    assert all(torch.equal(container.read(name), t) for name, t in wanted.items())


def test_the_program_is_never_opened(archive: Path) -> None:
    rewrite(archive, lambda members: {k: v for k, v in members.items() if "/code/" not in k})
    assert set(open_container(archive).manifest) >= {"inner.weight", "layers.2.bias"}


def rewrite(
    path: Path, change: Callable[[Members], Members], how: int = zipfile.ZIP_STORED
) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in change(members).items():
            archive.writestr(name, data)


def write(path: Path, data: bytes, **storages: bytes) -> Path:
    """An archive around this pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", data)
        archive.writestr("m/constants.pkl", pickle.dumps((), 2))
        for name, numbers in storages.items():
            archive.writestr(f"m/data/{name.removeprefix('s')}", numbers)
    return path


MODULE = b"\x80\x02c__torch__\nM\n)\x81}("  # up to the attributes
END = b"ub."


def tensor(
    shape: tuple[int, ...], stride: tuple[int, ...], *, offset: int = 0, length: int = 4
) -> bytes:
    """A float32 tensor on storage 0, as torch's pickler writes it."""

    def integers(*numbers: int) -> bytes:
        return b"(" + b"".join(b"J" + n.to_bytes(4, "little", signed=True) for n in numbers) + b"t"

    storage = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0\x30X\3\0\0\0cpu"
    storage += b"J" + length.to_bytes(4, "little", signed=True) + b"tQ"
    whole = storage + b"J" + offset.to_bytes(4, "little", signed=True)
    whole += integers(*shape) + integers(*stride) + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + whole + b"tR"


def attribute(value: bytes, name: bytes = b"w") -> bytes:
    return b"X" + len(name).to_bytes(4, "little") + name + value


def test_the_pickle_of_these_tests_is_as_torch_writes(tmp_path: Path) -> None:
    data = MODULE + attribute(tensor((2, 2), (1, 2))) + END
    numbers = torch.arange(4.0)
    path = write(tmp_path / "m.pt", data, s0=numbers.numpy().tobytes())
    assert torch.equal(open_container(path).read("w"), numbers.view(2, 2).t())


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (sys.exit, ("ran",))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_that_would_run_code_runs_none(tmp_path: Path, protocol: int) -> None:
    path = write(tmp_path / "m.pt", pickle.dumps(Evil(), protocol))
    with pytest.raises((UnsafeFile, CorruptFile)):
        open_container(path)


def test_the_whole_message_for_a_foreign_class(tmp_path: Path) -> None:
    path = write(tmp_path / "m.pt", MODULE + attribute(b"cos\nsystem\n") + END)
    with pytest.raises(UnsafeFile) as error:
        open_container(path)
    assert str(error.value) == (
        "error: unsafe-file\n"
        "  The TorchScript archive asks for a class that is neither a module nor a tensor.\n"
        f"  file   {path}\n"
        "  class  os.system\n"
        "  torch writes no such archive of a plain model, so nothing was loaded."
    )


@pytest.mark.parametrize(
    ("value", "fact"),
    [
        (tensor((3, 2), (2, 1)), "reaches beyond its storage"),
        (tensor((2,), (1,), offset=3), "reaches beyond its storage"),
        (tensor((2,), (1,), offset=-1), "reaches beyond its storage"),
        (tensor((2,), (-1,), offset=3), "a stride that does not go with its shape"),
        (tensor((2, 2), (1,)), "a stride that does not go with its shape"),
        (tensor((-2,), (1,)), "an axis of negative length"),
        (tensor((2,), (1,), length=400), "not have the size that the pickle declares"),
        (tensor((2,), (1,), length=-4), "pickle of this"),
        (tensor((2,), (1,)).replace(b"\x30X\3", b"\x37X\3"), "not have the size"),
        (tensor((2,), (1,)).replace(b"FloatStorage", b"device"), "pickle of this"),
        (b"K\1", "holds no named tensors"),
        (b"}X\1\0\0\0a}X\1\0\0\0bK\1ss", "holds no named tensors"),
        (b"h\x09", "pickle of this"),
        (b"R", "pickle of this"),
        (b"(l", "pickle of this"),
        (b"}}" + attribute(tensor((1,), (1,)), b"b") + b"sb", "pickle of this"),
        (b"}q\0X\1\0\0\0ah\0s", "nest in a circle"),
        (tensor((1,), (1,)) + attribute(b"}" + attribute(tensor((1,), (1,)), b"b") + b"s", b"a")
         + attribute(tensor((1,), (1,)), b"a.b"), "appears twice"),
    ],
)  # fmt: skip
def test_lies_are_found(tmp_path: Path, value: bytes, fact: str) -> None:
    path = write(tmp_path / "m.pt", MODULE + attribute(value) + END, s0=bytes(16))
    with pytest.raises(CorruptFile, match=fact):
        open_container(path)


def test_modules_nested_a_billion_times_end(tmp_path: Path) -> None:
    doubled = b"}q\0"  # each level holds the one before twice
    for level in range(30):
        inside = b"h" + bytes([level])
        doubled += b"}q" + bytes([level + 1]) + attribute(inside, b"a") + b"s"
        doubled += attribute(inside, b"b") + b"s"
    path = write(tmp_path / "m.pt", b"\x80\x02" + doubled + b".")
    with pytest.raises(CorruptFile, match="in a circle, or too deeply"):
        open_container(path)


def test_a_cut_or_changed_pickle_is_damaged(archive: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        data = file.read("model/data.pkl")
    for end in range(0, len(data), 7):
        with pytest.raises(VitConvertError):
            open_container(write(archive, data[:end]))
    for place in range(0, len(data), 3):
        changed = data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]
        with pytest.raises(VitConvertError):  # without storages nothing can be read
            open_container(write(archive, changed))


def test_a_frozen_program_has_no_names(tmp_path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):
        frozen = torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Linear(3, 2))).eval())
        torch.jit.save(frozen, tmp_path / "f.pt")
    with pytest.raises(CorruptFile) as error:
        open_container(tmp_path / "f.pt")
    assert str(error.value) == (
        "error: corrupt-file\n"
        "  The TorchScript archive holds no named tensors.\n"
        f"  file       {tmp_path / 'f.pt'}\n"
        "  constants  2\n"
        "  The weights of a frozen program are constants, which have no names any more."
    )


def test_big_endian_numbers_are_refused(archive: Path) -> None:
    rewrite(archive, lambda members: members | {"model/byteorder": b"big"})
    with pytest.raises(CorruptFile, match="big-endian"):
        open_container(archive)


def test_the_package_never_loads_a_program() -> None:
    package = Path(__file__).parents[2] / "vitconvert"
    assert not [path for path in package.rglob("*.py") if "jit.load(" in path.read_text()]
