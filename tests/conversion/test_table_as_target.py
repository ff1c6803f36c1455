"""`--to team --table team.toml`: a table of one's own is written, and loads in one's own class."""

import pytest
import torch
from safetensors.torch import load_file

import vitconvert
from tests.packages import timm
from tests.parity.team import TABLE, TeamViT
from tests.small_models import randomise
from vitconvert.cli import main
from vitconvert.errors import NotRepresentable, UnknownDialect, UsageError

SIZES = {"img_size": (32, 24), "patch_size": 8, "in_chans": 4, "embed_dim": 30, "depth": 11}
SIZES |= {"num_heads": 3, "mlp_ratio": 50 / 30, "num_classes": 7}


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "team.toml"
    file.write_text(TABLE)
    return file


@pytest.fixture
def source(tmp_path):
    model = randomise(timm.create_model("vit_tiny_patch16_224", **SIZES))
    folder = tmp_path / "source"
    timm.models.save_for_hf(model, str(folder), model_args=SIZES, safe_serialization=True)
    return folder, model


def _agree(state_dict, model):
    theirs = TeamViT()
    theirs.load_state_dict(state_dict)
    x = torch.randn(2, 4, 32, 24, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        found, wanted = theirs(x), model(x)
    assert (found - wanted).abs().max() <= 2e-5 * wanted.abs().max()


def test_the_output_loads_in_the_teams_class(source, table, tmp_path):
    folder, model = source
    out = tmp_path / "out"
    plan = vitconvert.plan_conversion(folder, to="team", table=table)
    conversion = vitconvert.convert(folder, to="team", table=table, output=out)
    assert (plan.target_dialect, conversion.target_dialect) == ("team", "team")
    assert conversion.parity.ok
    assert conversion.opened[0].bit_equal
    _agree(load_file(out / "model.safetensors"), model)
    back = vitconvert.load_model(out, table=table)
    assert all(torch.equal(v, back.state_dict()[k]) for k, v in _canonical(folder).items())


def _canonical(folder):
    return dict(vitconvert.load_checkpoint(folder).tensors)


def test_the_command_line(source, table, tmp_path, monkeypatch, capsys):
    folder, model = source
    out = tmp_path / "out"
    arguments = ["timm", folder, "--to", "team", "--table", table, "-o", out, "--no-verify"]
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    assert not exit_.value.code, capsys.readouterr().err
    _agree(load_file(out / "model.safetensors"), model)


def test_a_state_dict_goes_there_and_back(source, table):
    _, model = source
    stated = {"overrides": {"num_heads": 3, "norm_eps": 1e-6, "rope": "none"}, "table": table}
    stated["overrides"] |= {"image_size": (32, 24), "patch_size": (8, 8)}
    theirs = vitconvert.convert_state_dict(model.state_dict(), to="team", **stated)
    _agree(theirs, model)
    back = vitconvert.convert_state_dict(theirs, to="timm", **stated)
    assert back.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, back[name]) for name, tensor in model.state_dict().items())


def test_a_model_that_the_table_cannot_hold_is_refused(tmp_path, table):
    sizes = SIZES | {"init_values": 0.5}
    model = timm.create_model("vit_tiny_patch16_224", **sizes)
    stated = {"num_heads": 3, "norm_eps": 1e-6, "rope": "none", "image_size": (32, 24)}
    with pytest.raises(NotRepresentable, match="has no place for 22 tensors"):
        vitconvert.convert_state_dict(model.state_dict(), to="team", table=table, overrides=stated)


def test_a_table_of_another_name_is_how_the_source_is_read(source, table, tmp_path):
    folder, _ = source
    with pytest.raises((UnknownDialect, UsageError)):
        vitconvert.convert(folder, to="timm", table=table, output=tmp_path / "out")
    with pytest.raises(UsageError, match="There is no dialect 'crew'"):
        vitconvert.convert(folder, to="crew", output=tmp_path / "out", verify=False)
