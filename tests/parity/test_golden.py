"""Golden outputs: recorded once, replayed where neither the project nor a network is."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.parity.conftest import save_timm
from tests.parity.team import BUGS, STATED, team
from tests.sampling import sampled
from vitconvert.api import check_golden, load_checkpoint, load_model, record_golden
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import (
    CorruptFile,
    OutputExists,
    ParityFailed,
    SourceError,
    UnsafeFile,
    UsageError,
)
from vitconvert.formats import open_container, write_safetensors
from vitconvert.parity import golden as golden_module
from vitconvert.parity.golden import NUMBERS, digest

KEY = "vitconvert.golden"


@pytest.fixture(scope="module")
def timm_golden(tmp_path_factory):
    folder = tmp_path_factory.mktemp("timm")
    path = save_timm(folder)
    record_golden(path, folder / "vit.golden")
    return path, folder / "vit.golden"


def test_a_right_module_gives_the_golden_outputs(weights, golden, table):
    report = check_golden(team(weights), golden, table=table)
    assert report.ok
    assert len({layer.layer for layer in report.layers}) == 2 + 2 * 11 + 3
    assert {c.images for c in report.comparisons} == {
        *("noise", "photograph", "constant", "large", "1 channel", "batch of 1", "batch of 3"),
    }
    exact = [c.relative for c in report.comparisons if c.dtype == "float64"]
    assert exact and max(exact) < 1e-13
    assert "all its weights are those that were recorded" in report.notes
    assert report.summary().startswith("equal to team.golden, recorded of team.pth (not verified)")
    assert any("the golden outputs themselves are not verified" in note for note in report.notes)
    # The dtype in which weights are stored plays no part.
    assert check_golden(team(weights).double(), golden, table=table).ok


FEW = ("GELU", "off-by-one position", "missing final norm")  # test_own_models.py has them all


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug", [bug if bug in FEW else pytest.param(bug, marks=pytest.mark.coverage) for bug in BUGS]
)
def test_planted_bugs_are_found_from_digests(bug, weights, golden, table):
    report = check_golden(team(weights, bug), golden, table=table, dtypes=("float64",))
    layer, cause = BUGS[bug]
    assert not report.ok
    assert report.first_divergence.layer == layer
    assert cause in report.first_divergence.cause


@pytest.mark.slow
def test_a_checkpoint_with_a_wrong_fact_is_found_from_digests(timm_golden):
    path, golden = timm_golden
    right = check_golden(path, golden)
    assert right.ok and "not verified" not in right.summary()
    assert any("equal to timm 1." in note for note in right.notes)
    assert str(golden.parent) not in json.dumps(_metadata(golden)), "a place on this machine"
    model = load_model(path)
    wrong = golden_module.ViT(model.config.replace(activation="gelu_tanh"), device="meta")
    wrong.load_state_dict(model.state_dict(), strict=True, assign=True)
    divergence = check_golden(wrong.eval(), golden).first_divergence
    assert divergence.layer == "blocks.0.mlp"
    assert divergence.cause == "activation is gelu, not gelu_tanh"


@pytest.mark.slow
def test_modules_can_be_named(weights, golden, table):
    layers = {f"layers.{i}.attention": f"blocks.{i}.attn" for i in range(11)}
    right = check_golden(team(weights), golden, table=table, layers=layers)
    assert right.ok
    assert {layer.layer for layer in right.layers} >= {f"blocks.{i}.attn output" for i in range(11)}
    wrong = check_golden(team(weights, "head order"), golden, table=table, layers=layers)
    assert wrong.first_divergence.layer == "blocks.0.attn output"
    assert "the heads are joined (dim head)" in wrong.first_divergence.cause


@pytest.mark.slow
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_functions_are_compared_and_their_weights_are_said_to_be_unknown(weights, golden, library):
    def compute(images):
        model = team(weights).to(torch.float64 if images.dtype == np.float64 else torch.float32)
        if library == "torch":
            return team(weights).to(images.dtype)(images)
        assert isinstance(images, np.ndarray)
        return model(torch.from_numpy(images)).detach().numpy()

    report = check_golden(compute, golden)
    assert report.ok
    assert any("its layers, and whether its weights" in fact for fact in report.not_tested)
    assert not check_golden(lambda x: compute(x) + 1e-9, golden).ok


def test_other_weights_are_refused(weights, golden, table, timm_golden):
    weights["layers.7.attention.out.bias"][3] += 1e-4
    with pytest.raises(ParityFailed, match="other weights") as error:
        check_golden(team(weights), golden, table=table)
    recorded, found = (error.value.evidence[f"sha256 {side}"] for side in ("recorded", "found"))
    assert recorded == _metadata(golden)["weights"] != found
    path, of_timm = timm_golden
    with pytest.raises(ParityFailed, match="other weights"):
        check_golden(path, golden)
    with pytest.raises(ParityFailed, match="tensors of other sizes"):
        check_golden(team(weights), of_timm, table=table)


def test_other_images_are_refused_but_not_another_rounding_of_the_fft(timm_golden, monkeypatch):
    path, golden = timm_golden
    draw = golden_module.sample_images

    def rounded(**arguments):
        return {kind: np.nextafter(x, 9) for kind, x in draw(**arguments).items()}

    monkeypatch.setattr(golden_module, "sample_images", rounded)
    assert check_golden(path, golden).ok
    monkeypatch.setattr(golden_module, "sample_images", lambda **a: draw(**(a | {"seed": 1})))
    with pytest.raises(UsageError, match="images that are drawn here") as error:
        check_golden(path, golden)
    assert f"(NumPy {np.__version__})" in error.value.evidence["sha256 here"]


def test_a_golden_file_is_not_replaced_without_being_asked(timm_golden, tmp_path):
    path, golden = timm_golden
    with pytest.raises(OutputExists, match="exists already"):
        record_golden(path, golden)
    before = golden.read_bytes()
    record_golden(path, golden, overwrite=True)
    assert golden.read_bytes() == before, "the same golden file on every run"
    _rewritten(golden, _set("format", 0))  # of another version
    record_golden(path, golden, overwrite=True)
    assert golden.read_bytes() == before
    (tmp_path / "precious.golden").write_text("precious")
    with pytest.raises(OutputExists, match="is not replaced"):
        record_golden(path, tmp_path / "precious.golden", overwrite=True)
    with pytest.raises(UsageError, match=r"ends with \.golden"):
        record_golden(path, tmp_path / "vit.safetensors")


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {"timm", "transformers", "torchvision", "open_clip"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
import socket
def none(*_, **__): raise OSError("no network")
socket.socket.connect = none
from vitconvert.cli import main
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_replay_needs_neither_the_project_nor_a_network(timm_golden):
    path, golden = timm_golden
    command = [sys.executable, "-c", BLOCKED, "verify", path, "--against", golden, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["verdict"] == "equal"


def test_any_difference_shows_in_a_digest():
    torch.manual_seed(3)
    values = torch.randn(2, 13, 30, dtype=torch.float64)
    found = digest(values)
    assert found.shape == (2, NUMBERS)
    changed = values.clone()
    changed[1, 7, 29] += 1e-7
    apart = (digest(changed) - found).abs()
    assert apart[0].max() == 0
    assert apart[1].max() > 1e-8
    assert torch.equal(digest(values), found)


def _metadata(path):
    with open_container(path) as container:
        return json.loads(container.metadata[KEY])


def _rewritten(path, change, **tensors):
    """The golden file with something changed in it."""
    with open_container(path) as container:
        kept = {name: container.read(name).clone() for name in container.manifest}
        stated = json.loads(container.metadata[KEY])
    text = change(stated)
    kept = {n: t for n, t in (kept | tensors).items() if t is not None}
    write_safetensors(path, kept, metadata={KEY: text or json.dumps(stated)})


def _set(*path_and_value):
    *path, last, value = path_and_value

    def change(stated):
        for key in path:
            stated = stated[key]
        stated[last] = value

    return change


HOSTILE = {
    "another format": _set("format", 2),
    "no JSON": lambda _: "{",
    "huge images": _set("drawn", "size", [10**9, 10**9]),
    "channels of another model": _set("drawn", "channels", 1),
    "a negative seed": _set("drawn", "seed", -1),
    "a std of zero": _set("drawn", "std", [0]),
    "many blocks": _set("config", "depth", 900),
    "no such field": _set("config", "colour", "red"),
    "a verdict of its own": _set("verdict", "perfect"),
    "shapes of text": _set("shapes", "norm", "x"),
    "a digest of no tokens": _set("shapes", "absent", [10]),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("recorded") / "digits.golden"
    record_golden(DIGITS, path)
    return path


@pytest.fixture
def spoiled(recorded, tmp_path):
    """A sound one, to be spoiled."""
    return Path(shutil.copy(recorded, tmp_path / "digits.golden"))


TENSORS = {
    "a layer less": {"large/norm": None},
    "no output": {f"{k}/output": None for k in ("noise", "large")},
    "a kind of its own": {"odd/output": torch.zeros(2, 7, dtype=torch.float64)},
    "another dtype": {"noise/output": torch.zeros(2, 7)},
}


@pytest.mark.parametrize("what", sampled([*HOSTILE, *TENSORS], 4, "slow"))
def test_hostile_files_are_refused(what, spoiled):
    _rewritten(spoiled, HOSTILE.get(what, lambda _: None), **TENSORS.get(what, {}))
    with pytest.raises((CorruptFile, UsageError)) as error:
        check_golden(DIGITS, spoiled)
    assert len(str(error.value)) < 2000
    if what in TENSORS:
        assert error.value.fact == "The golden file is damaged or incomplete."


def test_what_is_no_golden_file_is_refused(spoiled, tmp_path):
    whole = spoiled.read_bytes()
    for content in (b"", b"x", whole[:-1], whole[:100], b"\x80\x04K\x01."):
        spoiled.write_bytes(content)
        with pytest.raises((CorruptFile, UnsafeFile)):
            check_golden(DIGITS, spoiled)
    write_safetensors(spoiled, {"x": torch.zeros(2)})
    with pytest.raises(CorruptFile, match="not a golden file"):
        check_golden(DIGITS, spoiled)
    with pytest.raises(SourceError):
        check_golden(DIGITS, tmp_path / "absent.golden")


def test_impossible_sizes_are_refused_for_modules(golden, weights, table, tmp_path):
    golden = Path(shutil.copy(golden, tmp_path))
    _rewritten(golden, _set("config", "mlp_dim", 2**31 - 1))
    with pytest.raises((ParityFailed, UsageError), match="sizes"):
        check_golden(team(weights), golden, table=table)


def test_numbers_that_equal_nothing_are_not_recorded(weights, table, tmp_path):
    weights["answer.bias"][2] = torch.nan
    torch.save(weights, tmp_path / "team.pth")
    checkpoint = load_checkpoint(tmp_path / "team.pth", table=table, overrides=STATED)
    with pytest.raises(UsageError, match="NaN or infinite"):
        record_golden(checkpoint, tmp_path / "nan.golden")
    assert not (tmp_path / "nan.golden").exists()
