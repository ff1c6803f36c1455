"""Whole models that torch.save wrote: their tensors are read as data, and nothing is run."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitconvert
from tests.packages import timm, torchvision, transformers
from tests.sampling import sampled
from tests.small_models import randomise, small_timm
from vitconvert.cli import run
from vitconvert.cli import vitconvert as command_line
from vitconvert.errors import CorruptFile, MissingFact, UnsafeFile, VitConvertError
from vitconvert.formats import open_container

Save = Callable[..., None]
every_format = pytest.mark.parametrize(
    "save",
    [torch.save, partial(torch.save, _use_new_zipfile_serialization=False)],
    ids=["zip", "legacy"],
)


def of_timm() -> nn.Module:
    return small_timm(depth=11)


def of_transformers() -> nn.Module:
    sizes = {"hidden_size": 30, "intermediate_size": 50, "num_hidden_layers": 2}
    config = transformers.ViTConfig(num_attention_heads=3, image_size=24, patch_size=8, **sizes)
    return transformers.ViTForImageClassification(config)


def of_torchvision() -> nn.Module:
    return torchvision.models.VisionTransformer(24, 8, 2, 3, 30, 50, num_classes=7)


class Learner:
    """As fastai's, which is pickled with its model among callbacks that know it."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.lr = model, 0.1
        self.callbacks = [self]
        self.learner = self


MODELS: dict[str, Callable[[], Any]] = {
    "timm": of_timm,
    "transformers": of_transformers,
    "torchvision": of_torchvision,
    "parallel": lambda: nn.DataParallel(of_timm()),
    "batch norm": lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.ParameterList([])),
}


def rescued(path: Path) -> dict[str, torch.Tensor]:
    with open_container(path, rescue=True) as container:
        return {name: container.read(name) for name in container.manifest}


def check_equal(found: dict[str, torch.Tensor], model: nn.Module) -> None:
    wanted = model.state_dict()
    assert list(found) == list(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@every_format
@pytest.mark.parametrize("kind", sampled(MODELS, 4, "slow"))
@pytest.mark.filterwarnings("ignore:.*source code.*")
def test_the_state_dict_of_a_pickled_model(kind, save, tmp_path):
    model = randomise(MODELS[kind]())
    model.register_buffer("passing", torch.ones(3), persistent=False)
    model.register_forward_hook(_hook)
    for wrap in (lambda m: m, lambda m: {"model": m, "epoch": 3, "best": _Strange()}, Learner):
        save(wrap(model), tmp_path / "x.pt")
        with pytest.raises(UnsafeFile) as error:
            open_container(tmp_path / "x.pt")
        count = len(model.state_dict())
        assert error.value.rescuable
        assert (
            f"--rescue (in Python, rescue=True) takes its tensors as data ({count} of"
            in error.value.hint
        )
        check_equal(rescued(tmp_path / "x.pt"), model)
    notes = open_container(tmp_path / "x.pt", rescue=True).notes
    name = f"{type(model).__module__}.{type(model).__qualname__}"
    assert notes[0].startswith(f"rescued: the tensors of {name}, read as data; ")
    assert notes[0].endswith("; 1 of their hooks were ignored")
    assert "code of these classes was not read" in notes[1]


def _hook(*_: object) -> None:
    """A function, which a pickle names."""


class _Strange:
    """Some object."""


def test_objects_beside_a_state_dict_are_passed_over(tmp_path):
    torch.save({"state_dict": {"w": torch.ones(2)}, "hparams": _Strange()}, tmp_path / "x.ckpt")
    with open_container(tmp_path / "x.ckpt", rescue=True) as container:
        (note,) = container.notes
        assert note.startswith("rescued: 1 objects of 1 classes and functions beside the tensors")
        assert container.extras == {"hparams": f"{__name__}._Strange"}
        assert list(container.manifest) == ["w"]


def test_a_plain_file_is_read_as_ever(tmp_path):
    torch.save(of_timm().state_dict(), tmp_path / "x.pt")
    assert open_container(tmp_path / "x.pt", rescue=True).notes == ()


class _Canary:
    """Sings when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,), {"_modules": {}, "_parameters": {}, "_buffers": {}})


@every_format
@pytest.mark.filterwarnings("ignore:.*source code.*")
def test_nothing_is_run(save, tmp_path):
    model = randomise(of_timm())
    model.canary = _Canary(tmp_path / "canary")
    save(model, tmp_path / "evil.pt")
    check_equal(rescued(tmp_path / "evil.pt"), model)
    vitconvert.inspect(tmp_path / "evil.pt", rescue=True)
    assert not (tmp_path / "canary").exists()
    with pytest.raises(AttributeError):  # None, which touch returns, takes no attributes
        torch.load(tmp_path / "evil.pt", weights_only=False)
    assert (tmp_path / "canary").exists()  # it sings where it is let


class _Subclass(torch.Tensor):
    """A tensor whose numbers may mean anything."""


def _circle() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    model._modules["1"] = model
    return model


def _no_module() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    model._modules["1"] = _Strange()
    return model


def _both() -> nn.Module:
    model = nn.Linear(2, 2)
    model._buffers["bias"] = torch.ones(2)
    return model


def _doubling() -> nn.Module:
    model: nn.Module = nn.Linear(1, 1)
    for _ in range(30):
        model = nn.Sequential(model, model)
    return model


def _odd_parameter() -> nn.Module:
    model = nn.Linear(2, 2)
    model._parameters["weight"] = torch.ones(2, 2).as_subclass(_Subclass)
    return model


def _no_tensor() -> nn.Module:
    model = nn.Linear(2, 2)
    model._parameters["weight"] = _Strange()
    return model


@every_format
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_circle, "circle"),
        (_no_module, "1 is not a module"),
        (_both, "bias is a parameter and a buffer"),
        (_doubling, "circle|places"),
        (_odd_parameter, "class whose code would be needed"),
        (_no_tensor, "is among the tensors, but is a .*_Strange"),
        (
            lambda: {"w": torch.ones(2), "best": _Strange()},
            "is among the tensors, but is a .*_Strange",
        ),
        (_Strange, "no named tensors"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*source code.*")
def test_what_cannot_be_rebuilt_is_refused(make, message, save, tmp_path):
    save(make(), tmp_path / "x.pt")
    with pytest.raises(CorruptFile, match=message):
        open_container(tmp_path / "x.pt", rescue=True)
    with pytest.raises(VitConvertError) as error:
        open_container(tmp_path / "x.pt")
    assert "--rescue" not in str(error.value)


@pytest.mark.slow
@torch.no_grad()
def test_the_command_of_the_refusal_works(tmp_path, capsys):
    model = randomise(timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=5)).eval()
    torch.save(model, tmp_path / "x.pt")
    arguments = [
        "timm",
        str(tmp_path / "x.pt"),
        "--set",
        "num_heads=3",
        "-o",
        str(tmp_path / "out"),
    ]
    assert run(command_line, arguments) == 4
    (line,) = [text for text in capsys.readouterr().err.split("\n") if text.startswith("  command")]
    assert line.endswith(" --rescue")
    assert run(command_line, [*arguments, "--rescue"]) == 0
    assert "note           rescued: the tensors of timm.models.vision" in capsys.readouterr().out
    images = torch.randn(2, 3, 224, 224)
    for source, options in (("out", {}), ("x.pt", {"rescue": True, "overrides": {"num_heads": 3}})):
        ours = vitconvert.load_model(tmp_path / source, **options)
        assert torch.equal(ours(images), model(images))
    assert "code of these classes was not read" in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(MissingFact):  # the classes would know, and they were not read
        vitconvert.load_model(tmp_path / "x.pt", rescue=True)
