"""The table of loads that lost weights says what releases answered, and a loss is found."""

import json
import re
from datetime import date
from importlib.metadata import version

import pytest
import torch
from packaging.version import Version
from safetensors.torch import load_file, save_file

from benchmarks import lost
from benchmarks.lost import NAMES, PAGE, RESULTS, as_markdown, as_rows, kind, mended, ranges
from benchmarks.lost_child import difference, grouped, is_named, slug

WHOLE = {"complete": True, "lost": [], "unused": [], "told": "", "difference": 3e-7}
LOST = {
    "complete": False,
    "lost": ["encoder.{0..1}.bias"],
    "unused": ["encoder.{0..1}.q_bias"],
    "told": "silent",
    "difference": 0.83,
}
LOADERS = ["4.9.1", "5.0.0", "5.1.2", "5.2.0", "5.3.0"]


def of(name, *answers, saver="4.9.1"):
    pairs = zip(LOADERS, answers, strict=True)
    return [(name, saver, loader, answer) for loader, answer in pairs]


def found(*answers):
    return {
        "date": "2026-01-02",
        "with": "torch 2",
        "savers": ["4.9.1"],
        "loaders": LOADERS,
        "classes": sorted({name for name, *_ in answers}),
        "rows": as_rows(answers),
    }


def test_a_loss_is_a_row_with_its_range_and_the_release_that_mends_it():
    lines = as_markdown(
        "transformers",
        found(*of("ViT", *[WHOLE] * 5), *of("VideoMAE", WHOLE, LOST, LOST, WHOLE, LOST)),
    )
    (row,) = [line for line in lines.splitlines() if line.startswith("| VideoMAE |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:6] == [
        "4.9.1",
        "5.0.0 to 5.1.2, 5.3.0",
        "`encoder.{0..1}.bias`",
        "silent",
        "not yet",
    ]
    assert "transformers 48675](https://github.com/huggingface/transformers/issues/48675)" in row
    assert "2 models, saved by 4.9.1; 1 lost nothing" in lines
    assert "### Nothing lost\n\nViT." in lines


def test_mended_is_the_first_release_after_the_last_that_lost():
    rows = as_rows(of("A", LOST, LOST, WHOLE, WHOLE, WHOLE))
    (row,) = [row for row in rows if row["kind"] == "lost"]
    assert mended(row, rows) == "5.1.2"
    other = as_rows(of("B", *[WHOLE] * 5)) + as_rows(of("A", *[WHOLE] * 5, saver="5.0.0"))
    alone = as_rows(of("A", *[LOST] * 5))
    assert mended(alone[0], [*alone, *other]) == "not yet"


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (WHOLE, "whole"),
        (LOST, "lost"),
        (WHOLE | {"unused": ["scale"], "difference": 0.5}, "lost"),
        (LOST | {"difference": 1e-6}, "no effect"),
        (WHOLE | {"difference": 0.01}, "otherwise"),
        (WHOLE | {"error": "forward: TypeError: no"}, "crash"),
        ({"error": "ValueError: no"}, "crash"),
        ({"error": "absent"}, "absent"),
    ],
)
def test_a_finding_needs_the_audit_and_the_outputs(answer, word):
    assert kind(answer) == word


def test_releases_are_told_as_ranges():
    assert ranges(["5.0.0"], LOADERS) == "5.0.0"
    assert ranges(LOADERS, LOADERS) == "4.9.1 to 5.3.0"
    assert ranges(["4.9.1", "5.1.2", "5.2.0"], LOADERS) == "4.9.1, 5.1.2 to 5.2.0"


def test_names_that_differ_in_a_number_are_one():
    names = [f"a.{block}.b{part}" for block in range(11) for part in ("", "2")] + ["a.x", "c.4.w"]
    assert grouped(names) == ["a.x", "a.{0..10}.b", "a.{0..10}.b2", "c.4.w"]
    assert grouped(["a.0.b.1", "a.2.b.1", "a.5.b.1"]) == ["a.{0,2,5}.b.1"]


@pytest.mark.parametrize(
    ("name", "said", "named"),
    [
        ("vit.layer.1.bias", "newly initialized: ['vit.layer.1.bias']", True),
        ("vit.layer.1.bias", "vit.layer.{0, 1}.bias | MISSING |", True),
        ("vit.layer.11.bias", "layer.{0...11}.bias | MISSING |", True),
        ("vit.layer.1.bias", "vit.layer.{0, 1}.bias_mask | MISSING |", False),
        ("vit.layer.1.bias", "vit.layer.2.bias", False),
        ("vit.layer.1.bias", "", False),
    ],
)
def test_what_a_loader_said_is_found_in_its_own_spelling(name, said, named):
    assert is_named(name, said) is named


def test_each_minor_release_of_a_year_loads_and_the_ends_of_lines_save():
    days = {
        Version(release): date.fromisoformat(day)
        for release, day in {
            "4.8.0": "2025-01-01",
            "4.9.1": "2025-07-01",
            "5.0.0": "2025-08-01",
            "5.1.0": "2025-09-01",
            "5.1.2": "2026-02-01",
            "5.10.0": "2026-05-01",
        }.items()
    }
    today = date(2026, 8, 30)
    expected = ["4.9.1", "5.0.0"], ["4.9.1", "5.0.0", "5.1.2", "5.10.0"]
    assert lost.chosen("transformers", days, today) == expected
    assert lost.chosen("timm", days, today) == (
        ["5.0.0"],
        ["5.0.0", "5.1.0", "5.1.2", "5.10.0"],
    )


def test_only_a_loss_that_is_not_known_is_news():
    known = {"transformers": found(*of("A", WHOLE, LOST, WHOLE, WHOLE, WHOLE))}
    again = {"transformers": found(*of("A", WHOLE, LOST, LOST, WHOLE, WHOLE))}
    assert [*lost.unknown(known, again)] == []
    more = LOST | {"lost": ["head.weight"]}
    news = {"transformers": found(*of("A", WHOLE, LOST, more, more, WHOLE))}
    assert [*lost.unknown(known, news)] == ["transformers 5.1.2 to 5.2.0, A: head.weight"]
    assert len([*lost.unknown({}, news)]) == 2


def test_the_page_is_made_of_the_results_and_a_workflow_asks_monthly():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    assert results.keys() == NAMES.keys()
    for package, one in results.items():
        assert as_markdown(package, one) in page
        assert one["classes"] == NAMES[package]
        assert {row["name"] for row in one["rows"]} == {*NAMES[package]}
    assert lost.as_json(results) == RESULTS.read_text(encoding="utf-8")
    flow = (PAGE.parents[2] / ".github" / "workflows" / "upstream.yml").read_text(encoding="utf-8")
    assert "python -m benchmarks.lost" in flow
    assert re.search(r'cron: "\d+ \d+ 1 \* \*"', flow)


def test_outputs_of_the_same_name_and_shape_are_compared():
    expected = {"logits": torch.tensor([1.0, -4.0]), "pooled": torch.ones(2, 3)}
    apart = {"logits": torch.tensor([1.0, -3.0]), "pooled": torch.ones(2, 5)}
    assert difference(expected, expected) == 0
    assert difference(apart, expected) == 0.25
    assert difference(apart | {"logits": torch.tensor([torch.nan, 1])}, expected) > 1e8
    with pytest.raises(ValueError, match="no output"):
        difference({"pooled": torch.ones(2, 5)}, expected)


@pytest.mark.slow
def test_a_loss_by_the_release_that_is_installed(tmp_path):
    release, files = version("transformers"), tmp_path / "files"
    (tmp_path / f"transformers-{release}").mkdir()  # nothing to install: this environment has it

    def asked(*tasks):
        answers = lost.asked("transformers", release, tasks, files, tmp_path)
        return [answers[task] for task in tasks]

    here = f"load:{release}:VideoMAE"
    saved, loaded, unknown = asked(f"save:{release}:VideoMAE", here, f"load:{release}:nothing")
    assert saved == {}
    assert (kind(loaded), loaded["difference"]) == ("whole", 0)
    assert unknown["error"].startswith("KeyError")

    file = files / release / slug("VideoMAE") / "model" / "model.safetensors"
    tensors = load_file(file)
    weights = {name: tensors.pop(name) for name in [*tensors] if name.endswith("fc_norm.weight")}
    assert weights
    save_file(tensors | {f"other.{name}": t for name, t in weights.items()}, file, {"format": "pt"})
    (loaded,) = asked(here)
    assert (kind(loaded), loaded["lost"], loaded["told"]) == ("lost", [*weights], "reported")
    assert loaded["unused"] == [f"other.{name}" for name in weights]
