"""Other projects' models as vit-pytorch's: its older releases, and its current class changed."""

import pytest
import torch
from torch import nn

import vitconvert
from tests.conversion.conftest import fill
from tests.packages import timm, transformers, vit_pytorch
from tests.small_models import small_config
from vitconvert.errors import NotRepresentable, ParityFailed, UsageError
from vitconvert.tables.dialects import find_tables

SMALL = {"depth": 11, "embed_dim": 30, "num_heads": 3, "mlp_ratio": 1.7, "num_classes": 7}
SMALL |= {"img_size": (48, 32), "in_chans": 4}
BOTH = ["fold-qkv-bias", "adapted-module"]


def images(channels, size):
    return torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(1))


def relative(ours, theirs):
    return float((ours - theirs).detach().abs().max() / theirs.detach().abs().max())


def test_half_precision_has_no_room_for_a_folded_bias(timm_directory, tmp_path):
    source = timm_directory(**SMALL)
    vitconvert.convert(source, output=tmp_path / "half", dtype=torch.bfloat16, verify=False)
    options = {"to": "lucidrains", "allow": BOTH, "output": tmp_path / "out"}
    with pytest.raises(ParityFailed) as caught:
        vitconvert.convert(tmp_path / "half", **options)
    assert caught.value.meaning == "The weights are bfloat16, so the sums are rounded to that."
    assert caught.value.hint == "nothing was written. --dtype float32 avoids that rounding."
    vitconvert.convert(tmp_path / "half", **options, dtype=torch.float32, verify=False)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_the_current_class_computes_what_timm_does(activation, timm_directory, tmp_path):
    source, output = timm_directory(**SMALL, act_layer=activation), tmp_path / "out"
    conversion = vitconvert.convert(source, to="lucidrains", output=output, allow=BOTH)
    assert conversion.target_dialect == "lucidrains_adapted"
    assert [o.consumer.split()[0] for o in conversion.opened] == ["torch.load", "vit-pytorch"]
    assert conversion.opened[1].relative <= 2e-5
    assert conversion.ledger.changed[0].startswith("fold-qkv-bias: ")

    theirs = timm.create_model(f"local-dir:{source}", pretrained=True).eval()
    model = vitconvert.build_lucidrains(output)
    assert type(model) is vit_pytorch.ViT and not model.training
    x = images(4, (48, 32))
    assert relative(model(x), theirs(x)) <= 2e-5
    written = torch.load(output / "model.pt", weights_only=True)
    assert {name: tuple(t.shape) for name, t in written.items()} == {
        name: tuple(t.shape) for name, t in model.state_dict().items()
    }
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_configuration_alone_builds_what_loads_the_weights(timm_directory, tmp_path):
    source, output = timm_directory(**SMALL), tmp_path / "out"
    to = "lucidrains_adapted"  # named in full, it need not be allowed
    conversion = vitconvert.convert(source, to=to, output=output, allow=BOTH[:1], verify=False)
    model = vitconvert.build_lucidrains(conversion.config)
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert {norm.eps for norm in norms} == {1e-6} and len(norms) == 2 * 11 + 1
    model.load_state_dict(torch.load(output / "model.pt", weights_only=True))
    x = images(4, (48, 32))
    assert relative(model(x), vitconvert.load_model(source)(x)) <= 2e-5


def test_what_the_class_has_is_loaded_by_it_as_it_is(tmp_path):
    model = fill(
        vit_pytorch.ViT(
            image_size=24, patch_size=8, num_classes=5, dim=20, depth=2, heads=3, mlp_dim=50
        )
    )
    torch.save(model.state_dict(), tmp_path / "vit.pt")
    stated = {"num_heads": 3, "image_size": (24, 24)}
    vitconvert.convert(
        tmp_path / "vit.pt", to="lucidrains", output=tmp_path / "out", overrides=stated
    )
    x = images(3, (24, 24))
    assert torch.equal(vitconvert.build_lucidrains(tmp_path / "out")(x), model(x))


def huggingface(folder, **changes):
    sizes = {"hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 50, "image_size": 24, "patch_size": 8, "num_labels": 7}
    config = transformers.ViTConfig(**sizes | changes)
    fill(transformers.ViTForImageClassification(config)).save_pretrained(folder)
    return folder


def test_the_release_that_fits_is_found_and_named(tmp_path):
    source = huggingface(tmp_path / "source", layer_norm_eps=1e-5)
    output = tmp_path / "out"
    conversion = vitconvert.convert(source, to="lucidrains", output=output, allow=BOTH[:1])
    assert conversion.target_dialect == "lucidrains_0_10"
    assert [change.split(":")[0] for change in conversion.ledger.changed] == [
        "fold-qkv-bias",
        "norm-after-pooling",
    ]
    assert float(conversion.ledger.changed[1].rpartition(" ")[2]) <= 1e-6
    assert conversion.opened[1].summary() == (
        "lucidrains: not tried, lucidrains vit-pytorch ViT, 0.10.1 to 0.40: vit-pytorch==0.40.2 "
        "computes it, and not the release that is installed"
    )
    x = images(3, (24, 24))
    ours = vitconvert.load_model(output)
    assert relative(ours(x), vitconvert.load_model(source)(x)) <= 2e-5
    with pytest.raises(NotRepresentable, match=r"vit-pytorch==0\.40\.2 computes it"):
        vitconvert.build_lucidrains(output)


def test_the_norm_moves_back_where_a_target_has_it_before_pooling(tmp_path):
    source = huggingface(tmp_path / "source", layer_norm_eps=1e-5, qkv_bias=False)
    there = vitconvert.convert(source, to="lucidrains", output=tmp_path / "there")
    assert [change.split(":")[0] for change in there.ledger.changed] == ["norm-after-pooling"]
    back = vitconvert.convert(there.output, to="hf", output=tmp_path / "back")
    assert [change.split(":")[0] for change in back.ledger.changed] == ["norm-before-pooling"]
    assert vitconvert.diff(source, back.output).equal


def refusal(source, tmp_path, **options):
    with pytest.raises(NotRepresentable) as error:
        vitconvert.convert(source, output=tmp_path / "no", verify=False, **options)
    return error.value


@pytest.mark.slow
def test_a_refusal_offers_the_changed_class(timm_directory, tmp_path):
    source = timm_directory(**SMALL)
    hint = "makes it fit, with the same function and other bytes."
    offered = "--allow fold-qkv-bias --allow adapted-module"
    assert refusal(source, tmp_path, to="lucidrains").hint == f"{offered} {hint}"
    unbiased = timm_directory(**SMALL, qkv_bias=False)
    assert refusal(unbiased, tmp_path, to="lucidrains").hint == f"--allow adapted-module {hint}"
    assert "adapted" not in (refusal(source, tmp_path, to="jax").hint or "")


def test_a_step_of_another_target_is_unknown(timm_directory, tmp_path):
    with pytest.raises(UsageError) as error:
        vitconvert.convert(timm_directory(**SMALL), output=tmp_path / "no", allow=BOTH)
    assert error.value.fact == "There is no step 'adapted-module' to allow."


def test_checkpoints_of_other_projects_are_converted_first(timm_directory):
    source = timm_directory(**SMALL)
    with pytest.raises(UsageError) as error:
        vitconvert.build_lucidrains(source)
    assert str(error.value) == (
        "error: usage\n"
        "  This checkpoint does not have vit-pytorch's layout.\n"
        f"  source   {source}\n"
        "  dialect  timm (weights_map/timm.toml)\n"
        '  hint: convert it first: --to lucidrains (in Python, to="lucidrains").'
    )


def test_configurations_that_no_change_makes_fit():
    config = small_config(
        image_size=(24, 24),
        num_classes=5,
        embed_dim=20,
        depth=2,
        num_heads=1,
        head_dim=20,
        mlp_dim=30,
        qkv_bias=False,
    )
    with pytest.raises(NotRepresentable) as error:
        vitconvert.build_lucidrains(config)
    reason = (
        "attention_proj != (num_heads == 1 and head_dim == embed_dim) is always True there, and "
        "False here (attention_proj = True, num_heads = 1, head_dim = 20, embed_dim = 20): "
        "Attention projects unless one head is as wide as the model"
    )
    assert f"lucidrains_adapted: {reason}" in error.value.details
    model = vitconvert.build_lucidrains(config.replace(attention_proj=False, proj_bias=False))
    assert isinstance(model.transformer.layers[0][0].to_out, nn.Identity)


def test_older_lines_all_name_their_release():
    current = {"lucidrains", "lucidrains_adapted", "lucidrains_mean", "lucidrains_simple"}
    # Of 1.4 to 1.16.0 the installed release computes what reads the class token.
    assert {t.name for t in find_tables("lucidrains") if not t.install} == current | {
        "lucidrains_1_4"
    }
