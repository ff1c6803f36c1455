"""The table of weights_map/ANY_VIT.md names every class of the packages that are installed."""

from importlib.metadata import version
from pathlib import Path

import pytest
import torch

import vitconvert
from tests.make_any_vit import DOCUMENT, PACKAGES, ROOT, STATED, Row, section
from tests.packages import ONLY_IN_CI, needed, transformers
from tests.small_models import randomise_calmly, relative
from vitconvert.tables.dialects import builtin_tables

TEXT = DOCUMENT.read_text(encoding="utf-8")
_DISTRIBUTIONS = {"open_clip": "open_clip_torch"}


@pytest.mark.parametrize(
    "package",
    [pytest.param(p, marks=pytest.mark.slow if p == "transformers" else ()) for p in PACKAGES],
)
def test_every_class_of_a_package_is_named(package):
    if package in ONLY_IN_CI:
        needed(package)
    if version(_DISTRIBUTIONS.get(package, package)) != PACKAGES[package][0]:
        pytest.skip(f"the table is of {package} {PACKAGES[package][0]}")
    assert section(package) in TEXT, "run: python -m tests.make_any_vit"


def test_a_class_that_nothing_names_is_seen():
    with pytest.raises(KeyError):
        Row(name="NewVisionTransformer").line("mmpretrain")


@pytest.mark.parametrize("package", STATED)
def test_a_class_that_is_called_read_is_named_in_its_test(package):
    for said in STATED[package].get("read", ()):
        text = (ROOT / said["test"]).read_text(encoding="utf-8")
        for name, tables in said["tables"].items():
            assert name in text and builtin_tables().keys() >= set(tables)


def test_every_test_that_proves_a_row_is_there():
    proofs = {line.split("|")[-2].strip(" `") for line in TEXT.splitlines() if "read as" in line}
    assert proofs and all(Path(ROOT, "tests", proof).is_file() for proof in proofs)


@pytest.mark.slow
@torch.no_grad()
def test_sapiens2_of_transformers_is_saved_in_its_authors_names(tmp_path):
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2}
    config = transformers.Sapiens2Config(
        **sizes, num_attention_heads=2, num_key_value_heads=2, image_size=32, patch_size=8
    )
    torch.manual_seed(5)
    model = randomise_calmly(transformers.Sapiens2Model(config)).eval()
    model.save_pretrained(tmp_path)
    for size in ((32, 32), (48, 32)):
        ours = vitconvert.load_model(tmp_path, overrides={"image_size": size})
        images = torch.randn(2, 3, *size)
        found = ours.forward_features(images)
        assert relative(found, model(images).last_hidden_state) <= 1e-6
