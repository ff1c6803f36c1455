"""Files as their projects save them: read, computed as others compute them, and written back."""

import pytest
import torch

import vitconvert
from tests.originals import goldens, make_mmpretrain_files, make_originals
from tests.originals.rows import ALL, GOLDENS, MMPRETRAIN, OF_CODE
from tests.sampling import sampled
from tests.small_models import relative
from vitconvert.formats import open_container


def test_every_file_that_was_kept_has_a_row():
    assert {path.stem for path in goldens.FOLDER.glob("*.safetensors")} == set(GOLDENS)
    kept = {path.stem for path in make_originals.FOLDER.glob("*.pth")}
    # In test_originals.py, test_audio.py and towers/test_detectors.py.
    others = {"dino", "m2d_short", "eat_short"}
    others |= {"depth_anything_3", "rf_detr", "rf_detr_registers"}
    assert kept == {row.file().stem for row in OF_CODE.values()} | others
    assert kept == set(make_originals.ORIGINALS)
    assert set(make_mmpretrain_files.BACKBONES) == set(MMPRETRAIN)


@pytest.mark.parametrize("name", sampled(ALL, 3, "slow"))
@torch.no_grad()
def test_computes_what_others_make_of_it(name, tmp_path):
    row = ALL[name]
    path = row.saved(tmp_path)
    checkpoint = vitconvert.load_checkpoint(path, **row.how)
    ledger = checkpoint.ledger
    assert checkpoint.dialect == row.dialect
    assert ledger.read == len(ledger.used) + len(ledger.ignored)
    assert row.notes is None or ledger.notes == row.notes
    found = {field: getattr(checkpoint.config, field) for field in row.expected}
    assert found == dict(row.expected)
    if row.kept:
        images, wanted = row.kept()
    else:
        torch.manual_seed(1)
        images = torch.randn(2, 3, *checkpoint.config.image_size)
        theirs = row.model()
        tokens, wanted = theirs.forward_features(images), theirs(images)
        if checkpoint.config.rope == "dinov3":  # of which timm reads the mean of the patches
            wanted = tokens[:, 0]
    for fast in (False, True):
        ours = vitconvert.load_model(path, fast=fast, **row.how)
        as_tokens = wanted.ndim == 3 and ours.config.pooling != "none"
        output = ours.forward_features(images) if as_tokens else ours(images)
        assert relative(output, wanted) <= row.rounding
        if not (fast or row.kept):
            assert relative(ours.forward_features(images), tokens) <= row.rounding


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled([name for name, row in ALL.items() if row.back], 2))
def test_comes_back_from_vitconverts_own_names(name, tmp_path):
    """Every tensor that plays a part, byte by byte; proved by timm's own loader where it can."""
    row = ALL[name]
    there = {"overrides": row.stated, "dialect": row.dialect if row.named else None}
    source = vitconvert.convert(
        row.saved(tmp_path), to="vit", output=tmp_path / "vit", verify=False, **there
    )
    back = vitconvert.convert(
        tmp_path / "vit", to=row.back, output=tmp_path / "back", verify=bool(row.timm)
    )
    with open_container(next((tmp_path / "back").glob("model.*"))) as container:
        found = {key: container.read(key) for key in container.manifest}
    wanted = {k: t for k, t in row.tensors().items() if not any(part in k for part in row.left)}
    assert found.keys() == wanted.keys()
    inert = source.ledger.ignored.keys()  # as a mask token, written as zeros
    assert all(torch.equal(found[key], wanted[key]) for key in found.keys() - inert)
    if row.timm:
        read, computed = back.opened
        assert read.bit_equal and computed.relative is not None
        assert computed.consumer.endswith("which reads the original's names")
