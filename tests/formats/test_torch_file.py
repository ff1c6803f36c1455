"""Reading torch checkpoints: wrappers, both formats, and pickles that must not run."""

import argparse
import collections
import pathlib
import pickle
import zipfile
import zlib
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path, PureWindowsPath
from uuid import UUID

import numpy as np
import pytest
import torch
from torch import nn

from tests.formats.made import Canary, rewritten
from vitconvert.errors import CorruptFile, MissingFact, UnsafeFile
from vitconvert.formats import open_container, zip_archive

Save = Callable[[object, Path], None]


def _save_legacy(value: object, path: Path) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False)


LINEAR = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)).state_dict()
OTHER_LINEAR = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)).state_dict()

every_format = pytest.mark.parametrize("save", [torch.save, _save_legacy], ids=["zip", "legacy"])


@every_format
def test_a_training_checkpoint_is_unwrapped_and_the_rest_kept_as_extras(tmp_path, save):
    checkpoint = {
        "model": {"head.weight": torch.randn(2, 3), "version": 4},
        "optimizer": {"state": {0: {"exp_avg": torch.randn(2, 3), "step": 7}}, "lr": 0.1},
        "args": argparse.Namespace(lr=0.1, blocks=[1, 2], nested=argparse.Namespace(a=None)),
        "epoch": 3,
        "sizes": torch.Size([2, 3]),
        "dtype": torch.float16,
    }
    save(checkpoint, tmp_path / "checkpoint.pth")
    container = open_container(tmp_path / "checkpoint.pth")
    assert container.wrapper == ("model",)
    assert list(container.manifest) == ["head.weight"]
    assert container.extras == {
        "optimizer": "dict with 1 tensor",
        "args": {"lr": 0.1, "blocks": [1, 2], "nested": {"a": None}},
        "epoch": 3,
        "sizes": [2, 3],
        "dtype": "dtype",
        "model.version": 4,
    }


@every_format
def test_what_nests_too_deeply_beside_the_weights_ends_in_a_name(tmp_path, save):
    found: object = []
    for _ in range(50):
        found = [found]
    save({"model": {"w": torch.ones(1)}, "args": found}, tmp_path / "x.pth")
    found, depth = open_container(tmp_path / "x.pth").extras["args"], 0
    while isinstance(found, list):
        (found,), depth = found, depth + 1
    assert (found, depth) == ("list", 33)


W = {"w": torch.ones(1)}
OTHER = {"w": torch.zeros(1)}


@pytest.mark.parametrize(
    ("checkpoint", "prefer", "wrapper"),
    [
        ({"state_dict": OTHER, "state_dict_ema": W}, (), ("state_dict_ema",)),
        ({"model": OTHER, "model_ema": W}, (), ("model_ema",)),
        ({"model": W, "model_ema": OTHER}, ("model",), ("model",)),
        ({"model": OTHER, "ema": W}, (), ("ema",)),
        ({"state_dict": OTHER, "averaged_model": W}, (), ("averaged_model",)),
        ({"state_dict": W, "schema": OTHER}, (), ("state_dict",)),
        ({"model": W, "ema": {"shadow_params": [torch.ones(1)], "decay": 0.9}}, (), ("model",)),
        ({"model": W, "callbacks": {"a": {"ema_x": OTHER}}}, (), ("model",)),
        (
            {
                "model": OTHER,
                "callbacks": {"Averaging": {"average_model_state": W}},
            },
            ("average_model_state",),
            ("callbacks", "Averaging", "average_model_state"),
        ),
        ({"state_dict": W, "state_dict_ema": None}, (), ("state_dict",)),
        ({"state_dict": W, "state_dict_ema": {}}, (), ("state_dict",)),
        ({"student": OTHER, "teacher": W}, (), ("teacher",)),
        ({"encoder": OTHER, "target_encoder": W, "opt": {}}, (), ("target_encoder",)),
        ({"target_encoder": OTHER, "encoder": W, "predictor": OTHER}, (), ("encoder",)),
        (
            {"target_encoder": W, "encoder": OTHER, "predictor": OTHER},
            ("target_encoder",),
            ("target_encoder",),
        ),
        ({"state_dict": {"model": {"module": W}}}, (), ("state_dict", "model", "module")),
        ({"model_state_dict": W, "epoch": 3}, (), ("model_state_dict",)),
        ({"net": W, "optimizer": {"state": {0: OTHER}}}, (), ("net",)),
        ({"w": torch.ones(1), "epoch": 3}, (), ()),
        ({"model": [torch.ones(2)], "module": W}, (), ("module",)),
        ({"model": "vit_base", "module": W}, (), ("module",)),
    ],
)
def test_wrappers_by_precedence(tmp_path, checkpoint, prefer, wrapper):
    torch.save(checkpoint, tmp_path / "x.pth")
    container = open_container(tmp_path / "x.pth", prefer=prefer)
    assert container.wrapper == wrapper
    assert list(container.manifest) == ["w"]
    assert container.read("w").item() == 1


@pytest.mark.parametrize(
    ("present", "taken"),
    [
        (("encoder", "target_encoder", "predictor"), "target_encoder"),
        (("encoder", "ema_encoder", "target_encoder", "predictor"), "ema_encoder"),
        (("predictor", "encoder"), "encoder"),
    ],
)
def test_v_jepa_2_1_comes_from_the_key_that_its_authors_load(tmp_path, present, taken):
    weights = {"module.backbone.video_mod_embed": torch.ones(1, 1, 4), **LINEAR}
    torch.save(dict.fromkeys(present, weights), tmp_path / "x.pt")
    assert open_container(tmp_path / "x.pt").wrapper == (taken,)


def test_nothing_tells_which_of_several_models_is_meant(tmp_path):
    path = tmp_path / "x.pth"
    torch.save({"net": LINEAR, "shadow": OTHER_LINEAR, "args": {"a.b": 1}, "epoch": 3}, path)
    with pytest.raises(MissingFact) as error:
        open_container(path)
    assert str(error.value) == (
        "error: missing-fact\n"
        "  The file holds several sets of tensors with the same names.\n"
        f"  file  {path}\n"
        "  sets  net, shadow\n"
        "  hint: --prefer net (in Python, prefer='net') takes that one."
    )
    container = open_container(path, prefer=("net",))
    assert torch.equal(container.read("1.bias"), LINEAR["1.bias"])
    assert len(container.notes) == 1


@pytest.mark.parametrize(
    ("checkpoint", "wrapper", "names", "extras"),
    [
        # As MSN keeps its prototypes beside its encoders.
        ({"model": W, "bias": torch.ones(2)}, ("model",), ["w"], {"bias": "Tensor"}),
        ({"mine": W, "bias": torch.ones(2)}, (), ["mine.w", "bias"], {}),
        (
            {"params": {"block": {"kernel": W["w"], "rate": 0.5}, "head": {"bias": W["w"]}}},
            ("params",),
            ["block.kernel", "head.bias"],
            {"params.block.rate": 0.5},
        ),
    ],
    ids=["a tensor beside a wrapper", "beside an unknown mapping", "nested mappings"],
)
def test_what_lies_beside_or_within_mappings(tmp_path, checkpoint, wrapper, names, extras):
    torch.save(checkpoint, tmp_path / "x.pth")
    container = open_container(tmp_path / "x.pth")
    assert (container.wrapper, container.extras) == (wrapper, extras)
    assert list(container.manifest) == names


@every_format
def test_an_evil_pickle_is_refused_and_not_executed(tmp_path, save):
    canary = tmp_path / "canary"
    save({"weight": torch.ones(1), "evil": Canary(canary)}, tmp_path / "evil.pth")
    with pytest.raises(UnsafeFile, match="classes that are not plain data") as error:
        open_container(tmp_path / "evil.pth")
    assert "pathlib.Path.touch" in error.value.evidence["classes"] or (
        "getattr" in error.value.evidence["classes"]
    )
    assert not canary.exists()
    torch.load(tmp_path / "evil.pth", weights_only=False)
    assert canary.exists()  # the canary sings where it is let


def _never(*_: object) -> None:
    raise AssertionError("called")


@every_format
@pytest.mark.parametrize(
    ("note", "told"),
    [
        (np.float64(83.1), "numpy scalar"),
        (np.bool_(True), "numpy scalar"),
        (np.str_("best"), "numpy scalar"),
        (np.dtype("f4"), "numpy dtype"),
        (np.random.RandomState(0).get_state(), ["MT19937", "numpy array", 624, 0, 0.0]),
        (argparse.Namespace(output_dir=Path("/runs/1")), {"output_dir": "path"}),
        (PureWindowsPath("C:/runs"), "path"),
        (datetime(2024, 1, 2, tzinfo=UTC), "datetime"),
        (timedelta(days=3), "timedelta"),
        (defaultdict(list, {"loss": [0.5]}), {"loss": [0.5]}),
        (defaultdict(int, {"loss": 2}), {"loss": 2}),
        (deque([0.5, np.float32(0.25)], maxlen=9), [0.5, "numpy scalar"]),
        (frozenset([1]), "frozenset"),
        (torch.device("cuda:1"), "device"),
        (torch.Size([2, 3]), [2, 3]),
        ([b"", b"ab\xff"], ["bytes", "bytes"]),
        ({np.int64(3): 0.5}, {"numpy scalar": 0.5}),
    ],
)
def test_notes_beside_the_weights_are_told_and_not_made(tmp_path, save, note, told, monkeypatch):
    weights = torch.randn(3)
    save({"model": {"w": weights}, "note": note}, tmp_path / "x.pth")
    with monkeypatch.context() as patched:
        for owner, name in [(np, "dtype"), (pathlib, "PureWindowsPath"), (collections, "deque")]:
            patched.setattr(owner, name, _never)
        container = open_container(tmp_path / "x.pth")
    assert torch.equal(container.read("w"), weights)
    assert container.extras == {"note": told}


@every_format
def test_an_array_among_the_weights_is_not_left_out(tmp_path, save):
    path = tmp_path / "x.pth"
    save({"model": {"w": torch.ones(2), "b": np.ones(2)}}, path)
    with pytest.raises(CorruptFile) as error:
        open_container(path)
    assert str(error.value) == (
        "error: corrupt-file\n"
        "  'b' is among the tensors, but is a numpy array.\n"
        f"  file  {path}\n"
        "  hint: save it as a tensor or apart from them, with the program that wrote it."
    )


NOTES = {"lr": Decimal("0.1"), "run": UUID(int=3), "best": np.float64(3)}
HOLDS_MODULES = "The file holds modules, as torch.save(model, path) writes them. "


@every_format
@pytest.mark.parametrize(
    ("value", "classes", "meaning", "count"),
    [
        ({"model": W, **NOTES}, "decimal.Decimal, uuid.UUID", "", 1),
        (nn.Linear(2, 2), "torch.nn.modules.linear.Linear", HOLDS_MODULES, 2),
        ({"ema": nn.Linear(2, 2)}, "torch.nn.modules.linear.Linear", HOLDS_MODULES, 2),
    ],
    ids=["notes", "a model", "a model in a mapping"],
)
@pytest.mark.filterwarnings("ignore:.*source code.*")
def test_other_classes_are_refused_by_name(tmp_path, save, value, classes, meaning, count):
    path = tmp_path / "checkpoint.pth"
    save(value, path)
    with pytest.raises(UnsafeFile) as error:
        open_container(path)
    assert str(error.value) == (
        "error: unsafe-file\n"
        "  The pickle asks for classes that are not plain data.\n"
        f"  file     {path}\n"
        f"  classes  {classes}\n"
        f"  {meaning}Unpickling them could run any code, so nothing was loaded.\n"
        f"  hint: --rescue (in Python, rescue=True) takes its tensors as data ({count} of them) and"
        " runs nothing; what the classes compute stays unknown. If you trust the file, the "
        "program that wrote it can save only the tensors: torch.save(model.state_dict(), path)."
    )
    assert error.value.exit_code == 4


def test_the_state_of_an_optimizer_is_not_taken_for_weights(tmp_path):
    path = tmp_path / "optimizer.pt"
    torch.save(torch.optim.Adam([torch.ones(2)]).state_dict(), path)
    with pytest.raises(CorruptFile) as error:
        open_container(path)
    assert str(error.value) == (
        "error: corrupt-file\n"
        "  The file holds the state of an optimizer, not the weights of a model.\n"
        f"  file  {path}\n"
        "  hint: name the file of the weights; training programs write it to the same folder."
    )


@pytest.mark.parametrize(
    ("beside", "told"),
    [
        ({"current_model_state": OTHER_LINEAR, "epoch": 3}, ("current_model_state",)),
        (
            {"callbacks": {"Averaging": {"average_model_state": OTHER_LINEAR}}},
            ("average_model_state",),
        ),
        ({"shadow": {"params": OTHER_LINEAR, "decay": 0.5}}, ("shadow",)),
        ({"model": OTHER_LINEAR, "teacher": {"w": torch.ones(1)}}, ("model", "teacher")),
        ({"loss": {"center": torch.ones(1)}}, ()),
        ({"optimizer": {"state": {0: OTHER_LINEAR, 1: OTHER_LINEAR}, "param_groups": []}}, ()),
    ],
)
def test_other_weights_than_those_that_were_taken_are_told(tmp_path, beside, told):
    torch.save({"state_dict": LINEAR, **beside}, tmp_path / "x.pth")
    container = open_container(tmp_path / "x.pth")
    assert torch.equal(container.read("1.bias"), LINEAR["1.bias"])
    names = ", ".join(told)
    note = f"the weights are those under state_dict; the file also has {names} (--prefer)"
    assert container.notes == ((note,) if told else ())
    for name in told[:1]:
        other = open_container(tmp_path / "x.pth", prefer=(name,))
        assert torch.equal(other.read("1.bias"), OTHER_LINEAR["1.bias"])


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_plain_pickle_is_not_opened(tmp_path, protocol):
    canary = tmp_path / "canary"
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"evil": Canary(canary)}, protocol))
    with pytest.raises((UnsafeFile, CorruptFile)) as error:
        open_container(tmp_path / "x.pkl")
    assert not canary.exists()
    if protocol >= 2:
        assert error.value.fact == "This Python pickle asks for more than arrays of NumPy."


@pytest.mark.parametrize(
    ("value", "fact"),
    [
        ({"a": torch.empty(3, device="meta")}, "'a' is a meta tensor: a shape without numbers."),
        ({"a": torch.eye(3).to_sparse()}, "'a' is stored sparse"),
        ({"a": torch.ones(2, dtype=torch.complex128)}, "'a' has a dtype that is not read here."),
        ({1: torch.ones(2)}, "A tensor has a name that is not text."),
        ({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, "'a.b' appears twice"),
        ([torch.ones(2)], "The file holds no named tensors."),
        (torch.ones(2), "The file holds no named tensors."),
        ({"epoch": 3}, "The file holds no named tensors."),
    ],
)
def test_what_cannot_be_named_tensors(tmp_path, value, fact):
    torch.save(value, tmp_path / "x.pth")
    with pytest.raises(CorruptFile) as error:
        open_container(tmp_path / "x.pth")
    assert error.value.fact.startswith(fact)


def _circle(key: str, **beside: object) -> dict[str, object]:
    circle: dict[str, object] = beside
    circle[key] = circle
    return circle


def _doubled() -> dict[str, object]:
    value: dict[str, object] = {"w": torch.ones(1)}
    for _ in range(25):
        value = {"a": value, "b": value}
    return value


@pytest.mark.parametrize(
    "value",
    [_circle("self", a=torch.ones(1)), _circle("model", other={"w": torch.ones(1)}), _doubled()],
    ids=["mappings", "wrappers", "doublings"],
)
def test_a_mapping_in_several_places_is_an_error(tmp_path, value):
    torch.save(value, tmp_path / "x.pth")
    with pytest.raises(CorruptFile, match="one mapping in several places"):
        open_container(tmp_path / "x.pth")


def test_wrappers_beside_wrappers_are_looked_at_once(tmp_path):
    value: dict[str, object] = {"w": torch.ones(1)}
    for _ in range(30):
        value = {"model": value, "module": value}
    torch.save(value, tmp_path / "x.pth")
    container = open_container(tmp_path / "x.pth")
    assert container.wrapper == ("model",) * 30
    assert container.extras["module"] == "dict with 1 named tensor"


def test_extras_that_would_never_end_are_cut(tmp_path):
    value: list[object] = [1]
    for _ in range(60):
        value = [value, value]
    loop: list[object] = []
    loop.append(loop)
    torch.save({"w": torch.ones(1), "laughs": value, "loop": loop}, tmp_path / "x.pth")
    container = open_container(tmp_path / "x.pth")
    assert container.extras["loop"] == ["list"]
    assert len(str(container.extras["laughs"])) < 1000


def test_a_torch_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(zip_archive, "FREE_INFLATION", 0)
    monkeypatch.setattr(zip_archive, "MOST_INFLATION", 100)
    torch.save({"a": torch.zeros(2**20), "b": torch.zeros(3)}, tmp_path / "x")
    rewritten(tmp_path / "x", zipfile.ZIP_DEFLATED)
    with pytest.raises(UnsafeFile, match="far more memory"):
        open_container(tmp_path / "x")


def test_a_damaged_pickle_gives_its_reason_without_advice_to_load_it_unsafely(tmp_path):
    path = tmp_path / "x.pth"
    torch.save({"a": torch.ones(3)}, path)
    data = path.read_bytes()
    at, begin, end = (data.index(part) for part in (b"ctorch._utils", b"\x80\x02", b"PK\7\x08"))
    changed = data[:at] + b"\xfe" + data[at + 1 :]
    crcs = [zlib.crc32(old[begin:end]).to_bytes(4, "little") for old in (data, changed)]
    path.write_bytes(changed.replace(*crcs))
    with pytest.raises(CorruptFile) as error:
        open_container(path)
    assert str(error.value) == (
        "error: corrupt-file\n"
        "  The file begins as a torch checkpoint, but cannot be unpickled.\n"
        f"  file    {path}\n"
        "  reason  at position 13, opcode b'\\xfe' unknown\n"
        "  It is truncated or changed, or torch.save did not write it.\n"
        "  hint: download it again."
    )
