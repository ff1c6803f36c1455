"""What was assumed of a checkpoint stays assumed in whatever was converted from it."""

import pytest
import torch

import vitconvert
from tests.packages import timm
from tests.small_models import randomise
from vitconvert.errors import MissingFact

HEADS = {"num_heads": 2}
CHAINS = [("timm",), ("hf", "timm"), ("timm", "hf", "dinov2"), ("equimo", "mmpretrain", "timm")]


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    """As DINOv2 or timm write one: nothing says whose it is."""
    sizes = {"img_size": 24, "patch_size": 8, "embed_dim": 30, "num_heads": 2, "depth": 3}
    model = randomise(timm.models.VisionTransformer(**sizes, num_classes=0, init_values=1.0))
    path = tmp_path_factory.mktemp("source") / "backbone.pth"
    torch.save(model.state_dict(), path)
    return path


def converted(source, chain, folder, **reading):
    for number, to in enumerate(chain):
        output = folder / f"{number}_{to}"
        vitconvert.convert(source, to=to, output=output, verify=False, **reading)
        source, reading = output, {}
    return source


@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
def test_a_rule_that_nobody_stated_is_asked_for_after_any_conversion(chain, backbone, tmp_path):
    before = vitconvert.load_checkpoint(backbone, overrides=HEADS).ledger.assumed
    output = converted(backbone, chain, tmp_path, overrides=HEADS)
    after = vitconvert.load_checkpoint(output).ledger.assumed
    assert before.keys() == after.keys()
    assert all("assumed" in said or "weights_map/timm.toml" in said for said in after.values())
    with pytest.raises(MissingFact) as error:
        vitconvert.load_model(output, image_size=32)
    assert "position_resampling" in str(error.value)
    with pytest.raises(MissingFact):
        vitconvert.convert(output, to="timm", output=tmp_path / "x", image_size=32, verify=False)
    # What answers the question does so for good.
    answer = {"position_resampling": "bicubic_offset"}
    vitconvert.convert(
        output, to="dinov2", output=tmp_path / "y", image_size=32, overrides=answer, verify=False
    )
    config = vitconvert.load_model(tmp_path / "y", image_size=40).config
    assert config.position_resampling == "bicubic_offset"


@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
def test_a_rule_that_was_stated_is_not_asked_for(chain, backbone, tmp_path):
    stated = HEADS | {"position_resampling": "bicubic"}
    output = converted(backbone, chain, tmp_path, overrides=stated)
    checkpoint = vitconvert.load_checkpoint(output)
    assert "position_resampling" not in checkpoint.ledger.assumed
    assert vitconvert.load_model(output, image_size=32).config.position_resampling == "bicubic"


def test_without_the_record_only_what_the_layout_shows_is_known(backbone, tmp_path):
    output = converted(backbone, ("dinov2",), tmp_path, overrides=HEADS)
    (output / "vitconvert.json").unlink()
    with pytest.raises(MissingFact) as error:
        vitconvert.load_checkpoint(output)
    assert "num_heads" in str(error.value)


def test_defaults_of_a_users_own_table_stay_assumed(tmp_path, backbone):
    (tmp_path / "team.toml").write_text(
        '[dialect]\nextends = "timm"\n[config]\nactivation = "relu"\nnorm_eps = 3e-6\n'
    )
    reading = {"table": tmp_path / "team.toml", "overrides": HEADS}
    output = converted(backbone, ("hf", "equimo"), tmp_path, **reading)
    assumed = vitconvert.load_checkpoint(output).ledger.assumed
    assert "assumed: team.toml" in assumed["activation"]
    assert "assumed: team.toml" in assumed["norm_eps"]
