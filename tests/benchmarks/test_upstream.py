"""The watch of other packages' releases tells what a release changed, and says nothing else."""

import re
import subprocess
from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import goldens, upstream
from benchmarks.upstream import PACKAGES, PAGE, changed, chosen, followed, last_of, unknown

LOGITS, FEATURES = np.array([1, -2, 4], np.float32), np.array([[3, 5]], np.float32)
SAME = {"logits": LOGITS, "features": FEATURES}
BY_ONE_BIT = np.array([1, -2, np.nextafter(np.float32(4), np.float32(5))], np.float32)


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (SAME, []),
        (SAME | {"logits": LOGITS + 0}, []),
        (SAME | {"logits": BY_ONE_BIT}, ["logits 1.2e-07"]),
        (SAME | {"logits": LOGITS * [1, 1, 0.5]}, ["logits 5.0e-01"]),
        (SAME | {"logits": LOGITS * np.float32("nan")}, ["logits nan"]),
        (SAME | {"logits": LOGITS[:2]}, ["logits of shape (3,) has shape (2,)"]),
        ({"logits": LOGITS}, ["features gone"]),
        (SAME | {"tokens": LOGITS}, ["tokens new"]),
        ("TypeError: no", ["TypeError: no"]),
        (None, ["gone"]),
    ],
)
def test_what_a_release_changes_is_told_and_nothing_else(after, told):
    if isinstance(after, dict):
        after = {name: np.asarray(array, np.float32) for name, array in after.items()}
    assert list(changed(SAME, after)) == told


def test_each_change_is_the_release_s_that_made_it():
    other = SAME | {"logits": BY_ONE_BIT}
    releases = [
        {"ViT": SAME, "BEiT": "KeyError: a"},
        {"ViT": other, "BEiT": "KeyError: a"},
        {"ViT": other, "BEiT": SAME, "DINOv3": SAME},
        {"ViT": "TypeError: b", "BEiT": SAME},
        {"ViT": SAME, "BEiT": SAME},
    ]
    newest, history = followed(["1.0", "1.1", "1.2", "1.9", "1.10"], releases)
    assert newest is releases[-1]
    assert history == {
        "ViT": [("1.1", "logits 1.2e-07"), ("1.9", "TypeError: b"), ("1.10", "works")],
        "BEiT": [("1.0", "KeyError: a"), ("1.2", "works")],
        "DINOv3": [("1.2", "new"), ("1.9", "gone")],
    }
    assert unknown("timm", history, "1.10") == []
    assert unknown("timm", history, "1.9") == ["timm 1.10, ViT: works"]
    assert "timm 1.2, DINOv3: new" not in unknown("timm", history, "0")


def test_the_last_releases_are_taken_and_those_that_the_page_has_not():
    releases = ["1.8", "1.9", "1.10", "1.11", "1.12"]
    options = Namespace(last=2, all=False)
    assert chosen(releases, "1.12", options) == ["1.11", "1.12"]
    assert chosen(releases, "1.9", options) == releases[1:]
    assert chosen(releases, "0", options) == releases
    assert chosen(releases, "1.12", Namespace(last=2, all=True)) == releases


@pytest.fixture
def main(monkeypatch):
    """The command, for a package of two releases that compute what is given."""

    def run(*releases):
        monkeypatch.setattr(upstream, "published", lambda _: ["1000.1", "1000.2"])
        monkeypatch.setattr(
            upstream, "computed", lambda _, names, __: iter(releases[-len(names) :])
        )
        monkeypatch.setattr("sys.argv", ["upstream", "timm"])
        upstream.main()

    return run


def test_a_change_that_the_page_has_not_ends_with_what_it_is(main, capsys):
    main({"ViT": SAME}, {"ViT": SAME, "DINOv4": SAME})
    whole = capsys.readouterr().out
    assert "## timm 1000.1 to 1000.2\n\nReleases: 1000.1, 1000.2.\n" in whole
    assert re.search(
        r"\| ViT \| features, logits \| `[0-9a-f]{8}` \| -?\d\.\d{5} \| bit-equal \|", whole
    )
    with pytest.raises(SystemExit, match=r"\ntimm 1000\.2, ViT: logits 1\.2e-07$"):
        main({"ViT": SAME}, {"ViT": SAME | {"logits": BY_ONE_BIT}})


def test_what_is_installed_is_compared_with_the_page_but_for_rounding(monkeypatch, capsys):
    page = upstream.as_markdown("timm", ["1.0"], found := {"ViT": SAME, "BEiT": SAME}, found, {
        "ViT": [], "BEiT": [],
    })  # fmt: skip
    monkeypatch.setattr(upstream, "version", lambda _: "1.1")
    monkeypatch.setattr(upstream, "answers", lambda *_: found)
    found["ViT"] = {name: array * np.float32(1 + 1e-6) for name, array in SAME.items()}
    assert upstream.others("timm", page) == []
    assert capsys.readouterr().out == "timm 1.1: 2 of 2 families compute what 1.0 did.\n"
    found["ViT"] = SAME | {"logits": LOGITS + np.float32([0, 0.004 * 4, 0])}
    found["BEiT"] = "TypeError: no"
    assert upstream.others("timm", page) == ["ViT", "BEiT"]
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "timm 1.1: 0 of 2 families compute what 1.0 did."
    number = f"{upstream.along(SAME):.5f}"
    assert told[1].startswith("  ViT: ") and told[1].endswith(f", not {number}")
    assert told[2] == f"  BEiT: nan, not {number}"
    found["ViT"] = {name: array * np.float32(1.001) for name, array in SAME.items()}
    assert upstream.others("timm", page) == ["ViT", "BEiT"]
    monkeypatch.setattr("sys.argv", ["upstream", "--installed", "timm"])
    with pytest.raises(SystemExit) as ended:
        upstream.main()
    assert ended.value.code == 1


@pytest.mark.coverage
def test_what_is_installed_computes_what_the_page_has():
    page = PAGE.read_text(encoding="utf-8")
    assert [upstream.others(package, page) for package in PACKAGES] == [[]] * 4


def test_what_a_release_requires_is_installed_where_this_environment_has_it_not(tmp_path):
    info = tmp_path / "made-1.0.dist-info"
    info.mkdir()
    required = ["numpy>=1", "numpy<1", "no-such-package>2", "absent; extra == 'more'"]
    lines = [f"Requires-Dist: {one}" for one in required]
    text = "\n".join(["Metadata-Version: 2.1", "Name: made", "Version: 1.0", *lines])
    (info / "METADATA").write_text(text)
    assert list(upstream.lacking(tmp_path)) == ["numpy<1", "no-such-package>2"]


def test_another_version_than_was_asked_for_is_refused(tmp_path, monkeypatch):
    def run(command, **_):
        arrays = {"ViT/logits": LOGITS, "BEiT/raises": np.array("KeyError: a")}
        np.savez(command[-1], release="1.1", **arrays)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    found = upstream.answers("timm", "1.1", tmp_path, tmp_path)
    assert found["BEiT"] == "KeyError: a"
    assert (found["ViT"]["logits"] == LOGITS).all()
    with pytest.raises(SystemExit, match=r"timm 1\.2 was asked for, and 1\.1 ran"):
        upstream.answers("timm", "1.2", tmp_path, tmp_path)


def test_a_process_that_ends_says_so_of_every_family(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=-11))
    found = upstream.answers("open_clip", "3.0.0", tmp_path, tmp_path)
    assert found == dict.fromkeys(goldens.GOLDENS["open_clip"], "the process ends with -11")


def test_a_family_that_raises_does_not_hide_the_others(tmp_path, monkeypatch):
    def raising(*_):
        raise ValueError("one\ntwo")

    made = {"a": raising, "b": lambda *_: {"x": [1.0]}, "c": lambda *_: None}
    made["d"] = lambda *_: {"x": [1.0], "y": [float("nan")]}
    monkeypatch.setitem(goldens.GOLDENS, "json", made)
    found = dict(goldens.computed("json", tmp_path))
    assert str(found.pop("a/raises")) == "ValueError: one"
    assert str(found.pop("d/raises")) == "ValueError: some numbers are not finite"
    assert list(found) == ["b/x"]


@torch.no_grad()
def test_a_golden_is_the_same_twice_and_not_of_another_file(tmp_path):
    timm = pytest.importorskip("timm")
    golden = goldens.of_timm("vit_base_patch16_224")
    first, second = (golden(timm, tmp_path / "ViT") for _ in range(2))
    as_arrays = [
        {name: np.asarray(value) for name, value in one.items()} for one in (first, second)
    ]
    assert list(changed(*as_arrays)) == []
    state = torch.load(tmp_path / "ViT.pth")
    state["head.bias"][3] += 1
    torch.save(state, tmp_path / "ViT.pth")
    third = {name: np.asarray(value) for name, value in golden(timm, tmp_path / "ViT").items()}
    assert [one.split()[0] for one in changed(as_arrays[0], third)] == ["larger", "logits"]
    assert golden(SimpleNamespace(list_models=list), tmp_path) is None


def test_transformers_may_not_leave_out_a_tensor(tmp_path):
    class Net:
        @staticmethod
        def from_pretrained(*_, **__):
            keys = {"missing_keys": ["a"], "unexpected_keys": [], "mismatched_keys": []}
            return None, keys

    golden = goldens.of_transformers("Net", {})
    with pytest.raises(ValueError, match=r"from_pretrained leaves \['a'\]"):
        golden(SimpleNamespace(Net=Net), tmp_path)
    assert golden(SimpleNamespace(), tmp_path) is None


def test_the_page_has_every_package_and_a_workflow_asks_monthly():
    page = PAGE.read_text(encoding="utf-8")
    for package, families in goldens.GOLDENS.items():
        section = page.partition(f"## {package} ")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| (.+?) \| .* \|$", section, re.M)[2:]
        assert rows == sorted(families) == list(upstream.recorded(package, page))
        assert last_of(package, page) in section.partition("Releases: ")[2]
    assert set(PACKAGES) == set(goldens.GOLDENS)
    flow = (PAGE.parents[2] / ".github" / "workflows" / "upstream.yml").read_text(encoding="utf-8")
    assert "python -m benchmarks.upstream" in flow
    assert re.search(r'cron: "\d+ \d+ 1 \* \*"', flow)
