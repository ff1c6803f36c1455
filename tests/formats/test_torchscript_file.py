"""Reading TorchScript archives: the weights without the program."""

import pickle
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.formats.made import Canary, rewritten, tensor, text
from vitconvert.errors import CorruptFile, UnsafeFile
from vitconvert.formats import TensorInfo, open_container


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


def test_reads_what_torch_loads(archive):
    wanted = loaded(archive)
    with open_container(archive) as container:
        assert container.format == "torchscript"
        assert set(container.manifest) == set(wanted) and len(wanted) == 9
        assert container.manifest["inner.weight"] == TensorInfo(dtype="float16", shape=(4, 3))
        for name, tensor in wanted.items():
            read = container.read(name)
            assert read.dtype == tensor.dtype and not read.requires_grad
            assert torch.equal(read, tensor)


def test_numbers_and_texts_are_beside_the_tensors(tmp_path):
    with warnings.catch_warnings(action="ignore"):
        torch.jit.save(torch.jit.script(Model()), tmp_path / "m.pt")
    extras = open_container(tmp_path / "m.pt").extras
    assert extras == {"input_resolution": 224, "inner.sizes": [1, 2], "inner.text": "x"}


def test_reads_a_deflated_archive(archive):
    wanted = loaded(archive)
    rewritten(archive, zipfile.ZIP_DEFLATED)
    container = open_container(archive)
    assert all(torch.equal(container.read(name), t) for name, t in wanted.items())


def test_the_program_is_never_opened(archive):
    rewritten(archive, change=lambda m: {k: v for k, v in m.items() if "/code/" not in k})
    assert set(open_container(archive).manifest) >= {"inner.weight", "layers.2.bias"}


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


def attribute(value: bytes, name: bytes = b"w") -> bytes:
    return text(name) + value


def test_the_pickle_of_these_tests_is_as_torch_writes(tmp_path):
    data = MODULE + attribute(tensor((2, 2), (1, 2))) + END
    numbers = torch.arange(4.0)
    path = write(tmp_path / "m.pt", data, s0=numbers.numpy().tobytes())
    assert torch.equal(open_container(path).read("w"), numbers.view(2, 2).t())


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_that_would_run_code_runs_none(tmp_path, protocol):
    path = write(tmp_path / "m.pt", pickle.dumps(Canary(tmp_path / "canary"), protocol))
    with pytest.raises((UnsafeFile, CorruptFile)):
        open_container(path)
    assert not (tmp_path / "canary").exists()


def test_the_whole_message_for_a_foreign_class(tmp_path):
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
        (tensor((2,), (1,), key=b"7"), "not have the size"),
        (tensor((2,), (1,), kind=b"device"), "pickle of this"),
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
def test_lies_are_found(tmp_path, value, fact):
    path = write(tmp_path / "m.pt", MODULE + attribute(value) + END, s0=bytes(16))
    with pytest.raises(CorruptFile, match=fact):
        open_container(path)


def test_modules_nested_a_billion_times_end(tmp_path):
    doubled = b"}q\0"  # each level holds the one before twice
    for level in range(30):
        inside = b"h" + bytes([level])
        doubled += b"}q" + bytes([level + 1]) + attribute(inside, b"a") + b"s"
        doubled += attribute(inside, b"b") + b"s"
    path = write(tmp_path / "m.pt", b"\x80\x02" + doubled + b".")
    with pytest.raises(CorruptFile, match="in a circle, or too deeply"):
        open_container(path)


def test_a_frozen_program_has_no_names(tmp_path):
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


def test_big_endian_numbers_are_refused(archive):
    rewritten(archive, change=lambda members: members | {"model/byteorder": b"big"})
    with pytest.raises(CorruptFile, match="big-endian"):
        open_container(archive)


def test_the_package_never_loads_a_program():
    package = Path(__file__).parents[2] / "vitconvert"
    assert not [path for path in package.rglob("*.py") if "jit.load(" in path.read_text()]
