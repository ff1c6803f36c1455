"""What a report proves, of which weights, and what stays an assumption when it is read back."""

import json

import pytest
import torch

import vitconvert
from tests.packages import timm, transformers
from tests.small_models import SMALL_TIMM
from vitconvert.cli.convert import full_report

SMALL = SMALL_TIMM | {"img_size": 48}


def record_of(directory):
    return json.loads((directory / "vitconvert.json").read_text())


def _report(conversion):
    return "\n".join(filter(None, full_report(conversion)))


def lines_of(report, title):
    """What stands behind a title, down to the next one."""
    lines = iter(report.splitlines())
    found = [line for line in lines if line.startswith(title)]
    return [line.removeprefix(title).strip() for line in found]


def twice(source, tmp_path, first=None, second=None):
    """A conversion, and the conversion of its output."""
    one = vitconvert.convert(source, output=tmp_path / "one", **{"to": "timm", **(first or {})})
    two = vitconvert.convert(
        tmp_path / "one", output=tmp_path / "two", **{"to": "timm", **(second or {})}
    )
    return one, two


def test_an_assumption_and_a_users_word_stay_such(timm_directory, tmp_path):
    source = timm_directory(**SMALL)
    (source / "config.json").unlink()
    said = {"num_heads": 3, "norm_eps": 1e-6, "activation": "gelu", "pooling": "token"}
    one, two = twice(source, tmp_path, {"to": "timm", "overrides": said}, {"to": "hf"})
    assert one.config.origins["norm_eps"] == "user"
    assert two.config.origins["norm_eps"] == "user, recorded in vitconvert.json"
    for field in one.ledger.assumed:
        assert (
            two.config.origins[field] == f"{one.config.origins[field]}, recorded in vitconvert.json"
        )
    shared = [fact for fact in one.parity.not_tested if "which the reference uses too" in fact]
    assert any("norm_eps 1e-06" in fact and "(stated by you)" in fact for fact in shared)
    assert {f"{fact} (when it was converted before)" for fact in shared} <= {*two.parity.not_tested}
    report = _report(two)
    assert "before, from timm-model (timm)" in report
    assert "user, recorded in vitconvert.json: " in report
    card = (tmp_path / "two" / "README.md").read_text()
    assert "before, from timm-model (timm)" in card
    facts = vitconvert.inspect(tmp_path / "two").facts
    assert facts["norm_eps"] == (1e-6, "user, recorded in vitconvert.json")  # said once, not twice
    first = record_of(tmp_path / "one")["source"]
    assert record_of(tmp_path / "two")["converted_from"] == first


def test_defaults_of_a_table_stay_assumed(timm_directory, tmp_path):
    source, table = timm_directory(**SMALL), tmp_path / "mine.toml"
    table.write_text('[dialect]\nextends = "timm"\n[config]\nnorm_eps = 0.25\n')
    (source / "config.json").unlink()
    said = {"num_heads": 3, "activation": "gelu", "pooling": "token"}
    first = {"to": "vit", "table": table, "overrides": said, "verify": False}
    _, two = twice(source, tmp_path, first, {"to": "hf"})
    assert two.config.origins["norm_eps"] == "assumed: mine.toml, recorded in vitconvert.json"
    told = _report(two).split("\nassumed")[1]
    assert "norm_eps 0.25 (mine.toml, recorded in vitconvert.json)" in told
    assert two.ledger.assumed["norm_eps"].endswith("mine.toml, recorded in vitconvert.json)")
    assert "assumed  norm_eps 0.25" in (tmp_path / "two" / "README.md").read_text()
    assert "the conversion that wrote it: it was not verified" in two.parity.not_tested


@pytest.mark.parametrize("to", ["timm", "hf"])
def test_names_of_classes_stay_assumed(to, timm_directory, tmp_path):
    source = timm_directory(**SMALL | {"num_classes": 1000})
    for classes in (None, [3, 1]):
        output = tmp_path / f"{classes}"
        vitconvert.convert(source, to=to, output=output, classes=classes, verify=False)
        labels = vitconvert.load_checkpoint(output).labels
        names = vitconvert.load_checkpoint(source).labels
        assert labels == (names if classes is None else (names[3], names[1]))
        assert labels.doubtful
        assert "ImageNet-1k, as timm orders it" in labels.origin
    assert "labels of assumed: ImageNet-1k" in (output / "README.md").read_text()


CHANGES = {
    "classes": {"classes": [5, 2]},
    "image size": {"image_size": 64},
    "dtype": {"dtype": torch.bfloat16},
    "a step": {"allow": ["norm-eps"]},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_each_number_is_of_the_source_or_of_the_output(name, huggingface_directory, tmp_path):
    eps = 1e-3 if name == "a step" else 1e-6
    source = huggingface_directory(image_size=48, layer_norm_eps=eps)
    done = vitconvert.convert(source, output=tmp_path / "out", to="timm", **CHANGES[name])
    report, card = _report(done), (tmp_path / "out" / "README.md").read_text()
    for text in (report, card):
        (parity,) = lines_of(text, "parity")
        assert parity.startswith("the source, before it was changed: equal to transformers")
        assert all(", bit-equal to the changed model" in t for t in lines_of(text, "opened by")[:1])
    stated = record_of(tmp_path / "out")
    assert stated["parity"]["of"] == "source"
    assert {opened["of"] for opened in stated["opened_by"]} == {"output"}
    model = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    images = torch.randn(2, 3, *done.config.image_size, generator=torch.Generator().manual_seed(1))
    ours = vitconvert.load_model(tmp_path / "out").eval()
    assert torch.allclose(model.float()(images), ours(images), atol=1e-5)


def test_unchanged_weights_need_no_such_words(huggingface_directory, tmp_path):
    source = huggingface_directory(image_size=48, layer_norm_eps=1e-6)
    done = vitconvert.convert(source, to="hf", output=tmp_path / "out")
    name = f"transformers {transformers.__version__} ViTForImageClassification"
    assert lines_of(_report(done), "parity") == [f"equal to {name}"]
