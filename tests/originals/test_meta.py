"""Meta's files beside the usual: masks of biases, periods, and what no row explains."""

import pytest
import torch

from tests.originals.rows import META, vit
from tests.originals.spelling import HEADS, SIZES, WIDTH, deit3, dinov3, filled, pair
from tests.packages import timm
from tests.small_models import relative
from vitconvert import load_checkpoint, load_model
from vitconvert.errors import (
    AmbiguousDialect,
    ConflictingFact,
    MissingFact,
    NotRepresentable,
    ShapeMismatch,
    TensorMismatch,
    UnknownDialect,
)

ROUNDING = 2e-5
STATED = {"num_heads": HEADS}


@torch.no_grad()
def test_beit_as_it_pre_trains(tmp_path):
    """microsoft/unilm/beit, modeling_pretrain.py: a head predicts the visual tokens."""
    options = {"use_abs_pos_emb": False, "use_shared_rel_pos_bias": True, "init_values": 0.1}
    model = timm.models.beit.Beit(**SIZES, **options, global_pool="token", num_classes=0)
    for tensor in model.parameters():
        tensor.copy_(torch.randn(tensor.shape) * 0.2 + 0.1)
    extra = {"mask_token": (1, 1, WIDTH), **pair("lm_head", 11, WIDTH)}
    torch.save({"model": model.state_dict() | filled(extra)}, tmp_path / "file.pth")
    images = torch.randn(2, 3, 24, 24)
    assert relative(load_model(tmp_path / "file.pth")(images), model.eval()(images)) <= ROUNDING


def test_a_bias_under_a_mask_counts_for_queries_and_values_only(tmp_path):
    torch.save(dinov3(), tmp_path / "file.pth")
    checkpoint = load_checkpoint(tmp_path / "file.pth")
    bias = checkpoint.tensors["blocks.10.attn.qkv.bias"].view(3, WIDTH)
    stored = dinov3()["blocks.10.attn.qkv.bias"].view(3, WIDTH)
    assert torch.equal(bias[[0, 2]], stored[[0, 2]])
    assert stored[1].count_nonzero() == WIDTH and not bias[1].count_nonzero()


def test_a_bias_without_its_mask_counts_whole(tmp_path):
    tensors = {name: t for name, t in dinov3().items() if not name.endswith("bias_mask")}
    torch.save(tensors, tmp_path / "file.pth")
    with pytest.raises(MissingFact, match="norm_eps"):
        load_checkpoint(tmp_path / "file.pth")
    checkpoint = load_checkpoint(tmp_path / "file.pth", overrides={"norm_eps": 1e-6})
    bias = checkpoint.tensors["blocks.10.attn.qkv.bias"]
    assert torch.equal(bias, dinov3()["blocks.10.attn.qkv.bias"])


def test_periods_tell_the_heads(tmp_path):
    torch.save(dinov3(), tmp_path / "file.pth")
    config = load_checkpoint(tmp_path / "file.pth").config
    assert (config.num_heads, config.head_dim, config.origins["head_dim"]) == (3, 16, "tensors")
    with pytest.raises(ConflictingFact, match="num_heads = 6"):
        load_checkpoint(tmp_path / "file.pth", overrides={"num_heads": 6})


@torch.no_grad()
def test_periods_are_those_of_the_file(tmp_path):
    """Meta published them rounded to bfloat16; timm computes them, rounded to float32."""
    rounded = dinov3()["rope_embed.periods"].bfloat16().float()
    torch.save(dinov3() | {"rope_embed.periods": rounded}, tmp_path / "file.pth")
    ours = load_model(tmp_path / "file.pth", overrides={"image_size": (24, 24)})
    theirs = META["DINOv3"].model()
    torch.manual_seed(1)
    images = torch.randn(2, 3, 24, 24)
    tokens = ours.forward_features(images)
    assert relative(tokens, theirs.forward_features(images)) > 2 * ROUNDING
    theirs.rope.periods.copy_(rounded)
    assert relative(tokens, theirs.forward_features(images)) <= ROUNDING


@pytest.mark.parametrize(
    ("step", "value", "different"),
    [
        (1, 1.0, "48 of 144 values, the first 1"),
        (2, float("nan"), "48 of 144 values, the first nan"),
    ],
    ids=["keys count", "never initialised"],
)
def test_another_mask_of_the_bias_is_refused(step, value, different, tmp_path):
    tensors = dinov3()
    tensors["blocks.10.attn.qkv.bias_mask"].view(3, WIDTH)[step] = value
    torch.save(tensors, tmp_path / "file.pth")
    checkpoint = load_checkpoint(tmp_path / "file.pth")
    with pytest.raises(NotRepresentable) as error:
        dict(checkpoint.tensors)
    assert str(error.value) == (
        "error: not-representable\n"
        "  A tensor that is ignored because it is always the same is another one here.\n"
        '  row        weights_map/dinov3.toml: "{block}.attn.qkv.bias_mask" = '
        '"1 0 1 : (qkv head dim)"\n'
        "  tensor     blocks.10.attn.qkv.bias_mask\n"
        f"  different  {different}"
    )


def test_a_mask_of_another_shape_is_found_in_the_header(tmp_path):
    torch.save(dinov3() | {"blocks.3.attn.qkv.bias_mask": torch.ones(3)}, tmp_path / "file.pth")
    with pytest.raises(ShapeMismatch) as error:
        load_checkpoint(tmp_path / "file.pth")
    assert "blocks.3.attn.qkv.bias_mask  found [3], wanted [144]" in str(error.value)


def test_deit_iii_and_a_timm_model_with_rope_have_the_same_tensors(tmp_path):
    torch.save({"model": deit3()}, tmp_path / "file.pth")
    with pytest.raises(AmbiguousDialect, match="deit3"):
        load_checkpoint(tmp_path / "file.pth", overrides=STATED)


def test_what_another_stem_leaves_untold_names_its_first_tensor(tmp_path):
    """MoCo v3's and MSN's convolutions, DeiT III's hMLP: no row reads their patches."""
    tensors = {name: t for name, t in vit().items() if not name.startswith("patch_embed")}
    stem = {"patch_embed.proj.0.weight": (6, 3, 3, 3), **pair("patch_embed.proj.3", WIDTH, 6)}
    torch.save(tensors | filled(stem), tmp_path / "file.pth")
    with pytest.raises(TensorMismatch) as error:
        load_checkpoint(tmp_path / "file.pth", overrides=STATED)
    told = "\n".join(error.value.details)
    assert "missing    patch_embed.proj.weight  " in told
    assert all(f"left over  {name}  " in told for name in stem)


@pytest.mark.parametrize(
    "extra",
    [
        {"blocks.0.norm11.weight": (WIDTH,), "blocks.0.gamma_1_1": (WIDTH,)},
        {"patch_embed.proj.4.weight": (WIDTH, WIDTH, 1, 1)},
        {"cls_norm.weight": (WIDTH,)},
    ],
    ids=["parallel blocks", "convolutional stem", "untied norms"],
)
def test_what_has_no_row_is_named(extra, tmp_path):
    torch.save(deit3() | filled(extra), tmp_path / "file.pth")
    with pytest.raises(
        (TensorMismatch, UnknownDialect), match=next(iter(extra)).replace(".", r"\.")
    ):
        load_checkpoint(tmp_path / "file.pth", overrides=STATED)
