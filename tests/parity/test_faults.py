"""Faults that are planted in our model are found: the right layer, the right cause."""

import pytest
import torch
from torch import nn

from tests.packages import timm
from vitconvert.checkpoint import ReadOptions, build_model, read_checkpoint
from vitconvert.model import ViT
from vitconvert.model.resampling import resample_positions
from vitconvert.parity.verification import verify_checkpoint
from vitconvert.sources import locate

STATED = {"num_heads": 3, "image_size": (32, 24), "patch_size": (8, 8)}


@pytest.fixture
def checkpoint(randomise, tmp_path):
    """Three blocks of width 30, as wide within the MLP; 4 patches down, 3 across."""

    def save(**arguments):
        small = {
            "img_size": (32, 24),
            "patch_size": 8,
            "embed_dim": 30,
            "depth": 3,
            "num_heads": 3,
            "mlp_ratio": 1.0,
            "num_classes": 30,
        }
        model = timm.models.VisionTransformer(**(small | arguments))
        torch.save(randomise(model).state_dict(), tmp_path / "vit.pth")
        return locate(tmp_path / "vit.pth")

    return save


def divergence(located, *, plant=None, overrides=None, **fields):
    """Load a checkpoint, plant a fault in the weights or the configuration, and verify."""
    stated = STATED | (overrides or {})
    healthy = build_model(read_checkpoint(located, ReadOptions(overrides=stated)))
    weights = {name: tensor.clone() for name, tensor in healthy.state_dict().items()}
    if plant is not None:
        plant(weights)
    model = ViT(healthy.config.replace(**fields), device="meta").eval()
    model.load_state_dict(weights, strict=True, assign=True)
    report = verify_checkpoint(read_checkpoint(located, ReadOptions(overrides=stated)), model=model)
    assert report.verified
    assert not report.ok
    assert report.first_divergence is not None
    return report.first_divergence.layer, report.first_divergence.cause


def test_weights_that_are_not_finite(checkpoint):
    def plant(weights):
        weights["blocks.1.mlp.fc1.weight"][3, 4] = torch.nan
        weights["head.bias"][1] = torch.inf

    assert divergence(checkpoint(), plant=plant) == (
        "blocks.1.mlp",
        "the weights themselves are NaN or infinite, in blocks.1.mlp.fc1.weight and 1 more",
    )


def exchange(name, order):
    def plant(weights):
        for kind in ("weight", "bias"):
            parts = weights[f"{name}.{kind}"].chunk(3)
            weights[f"{name}.{kind}"] = torch.cat([parts["qkv".index(letter)] for letter in order])

    return plant


def transpose(name):
    def plant(weights):
        weights[name] = weights[name].T.clone()

    return plant


def test_no_fault_no_divergence(checkpoint):
    located = checkpoint()
    model = build_model(read_checkpoint(located, ReadOptions(overrides=STATED)))
    report = verify_checkpoint(read_checkpoint(located, ReadOptions(overrides=STATED)), model=model)
    assert report.ok
    assert report.first_divergence is None


@pytest.mark.parametrize("wrong", [1e-12, 1e-5])
def test_norm_eps(wrong, checkpoint):
    assert divergence(checkpoint(), norm_eps=wrong) == (
        "blocks.0.attn",
        f"norm_eps is 1e-06, not {wrong:g}",
    )


@pytest.mark.parametrize("right", ["gelu", "gelu_tanh", "quick_gelu", "relu", "silu"])
def test_activation(right, checkpoint):
    wrong = "silu" if right == "gelu" else "gelu"
    located = checkpoint(act_layer=right)
    assert divergence(located, overrides={"activation": right}, activation=wrong) == (
        "blocks.0.mlp",
        f"activation is {right}, not {wrong}",
    )


@pytest.mark.parametrize("order", ["kqv", "vkq", "qvk", "kvq", "vqk"])
def test_order_of_q_k_v(order, checkpoint):
    assert divergence(checkpoint(), plant=exchange("blocks.1.attn.qkv", order)) == (
        "blocks.1.attn",
        f"the thirds of blocks.1.attn.qkv are {', '.join(order)}, not q, k, v",
    )


@pytest.mark.parametrize(
    "order", [("head", "qkv", "dim"), ("head", "dim", "qkv"), ("qkv", "dim", "head")]
)
def test_rows_of_q_k_v(order, checkpoint):
    def plant(weights):
        axes = ("qkv", "head", "dim")
        for name in ("blocks.2.attn.qkv.weight", "blocks.2.attn.qkv.bias"):
            rows = weights[name].reshape(3, 3, 10, *weights[name].shape[1:])
            moved = [axes.index(axis) for axis in order]
            weights[name] = rows.permute(*moved, *range(3, rows.ndim)).flatten(0, 2)

    assert divergence(checkpoint(), plant=plant) == (
        "blocks.2.attn",
        f"the rows of blocks.2.attn.qkv are ({' '.join(order)}), not (qkv head dim)",
    )


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("blocks.1.attn.proj.weight", "blocks.1.attn"),
        ("blocks.2.mlp.fc1.weight", "blocks.2.mlp"),
        ("blocks.0.mlp.fc2.weight", "blocks.0.mlp"),
        ("head.weight", "output"),
    ],
)
def test_transposed_square_matrix(name, layer, checkpoint):
    assert divergence(checkpoint(), plant=transpose(name)) == (layer, f"{name} is transposed")


@pytest.mark.parametrize("letter", "qkv")
def test_transposed_third(letter, checkpoint):
    def plant(weights):
        parts = list(weights["blocks.1.attn.qkv.weight"].chunk(3))
        place = "qkv".index(letter)
        parts[place] = parts[place].T
        weights["blocks.1.attn.qkv.weight"] = torch.cat(parts)

    assert divergence(checkpoint(), plant=plant) == (
        "blocks.1.attn",
        f"{letter} in blocks.1.attn.qkv.weight is transposed",
    )


def test_transposed_q_k_and_v(checkpoint):
    def plant(weights):
        parts = weights["blocks.0.attn.qkv.weight"].chunk(3)
        weights["blocks.0.attn.qkv.weight"] = torch.cat([part.T for part in parts])

    assert divergence(checkpoint(), plant=plant) == (
        "blocks.0.attn",
        "q, k and v in blocks.0.attn.qkv.weight are transposed",
    )


def test_exchanged_norms(checkpoint):
    def plant(weights):
        for kind in ("weight", "bias"):
            one, two = f"blocks.1.norm1.{kind}", f"blocks.1.norm2.{kind}"
            weights[one], weights[two] = weights[two], weights[one]

    assert divergence(checkpoint(), plant=plant) == (
        "blocks.1.attn",
        "blocks.1.norm1 and blocks.1.norm2 are exchanged",
    )


def test_head_count(checkpoint):
    assert divergence(checkpoint(), num_heads=5, head_dim=6) == (
        "blocks.0.attn",
        "num_heads is 3, not 5",
    )


@pytest.mark.parametrize("wrong", [1.0, 30**-0.5])
def test_attention_scale(wrong, checkpoint):
    assert divergence(checkpoint(), attention_scale=wrong) == (
        "blocks.0.attn",
        f"attention_scale is head_dim ** -0.5, not {wrong:.6g}",
    )


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (lambda kernel: kernel.transpose(2, 3), "has rows and columns of a patch exchanged"),
        (lambda kernel: kernel.flip(1), "has its channels in reverse (BGR)"),
        (
            lambda kernel: kernel.permute(0, 2, 3, 1).reshape(kernel.shape),
            "has its channels last",
        ),
    ],
    ids=["transposed", "BGR", "channels last"],
)
def test_patch_kernel(fault, cause, checkpoint):
    def plant(weights):
        name = "patch_embed.proj.weight"
        weights[name] = fault(weights[name]).clone()

    assert divergence(checkpoint(), plant=plant) == (
        "patch_embed",
        f"patch_embed.proj.weight {cause}",
    )


def column_by_column(table):
    grid = table[:, 1:].reshape(1, 4, 3, -1).transpose(1, 2).flatten(1, 2)
    return torch.cat((table[:, :1], grid), 1)


def resampled(table):
    return resample_positions(
        resample_positions(table, old_grid=(4, 3), new_grid=(5, 6), prefix=1, rule="bicubic"),
        old_grid=(5, 6),
        new_grid=(4, 3),
        prefix=1,
        rule="bilinear_align_corners",
    )


def without_class_position(table):
    return torch.cat((table[:, :1] * 0, table[:, 1:]), 1)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (column_by_column, "pos_embed is column by column, not row by row"),
        (lambda table: table.roll(-1, 1), "pos_embed has the class position last, not first"),
        (
            without_class_position,
            "cls_token, another prefix token or its position: the patches agree",
        ),
        (
            resampled,
            "pos_embed has other values: another table, or one resampled by another rule",
        ),
    ],
    ids=["transposed", "class last", "class missing", "resampled"],
)
def test_positions(fault, cause, checkpoint):
    def plant(weights):
        weights["pos_embed"] = fault(weights["pos_embed"])

    assert divergence(checkpoint(), plant=plant) == ("embedding", cause)


def test_class_position_where_there_is_none(randomise, checkpoint):
    located = checkpoint()
    state = torch.load(located.weights, weights_only=True)
    state["pos_embed"][:, :1] = 0
    torch.save(state, located.weights)

    def plant(weights):
        weights["pos_embed"][:, :1] = torch.randn(30)

    assert divergence(located, plant=plant) == (
        "embedding",
        "pos_embed has a class position where the reference has none",
    )


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"pooling": "avg"}, "pooling is token, not avg"),
        ({"pooling": "max"}, "pooling is token, not max"),
    ],
)
def test_pooling(fields, cause, checkpoint):
    assert divergence(checkpoint(), **fields) == ("features", cause)


def test_pooling_of_the_prefix(checkpoint):
    located = checkpoint(global_pool="avg", fc_norm=False)
    stated = {"pooling": "avg"}
    assert divergence(located, overrides=stated, pool_include_prefix=True) == (
        "features",
        "pool_include_prefix is False, not True",
    )


def test_a_fault_that_nobody_knows(checkpoint):
    def plant(weights):
        weights["blocks.1.mlp.fc1.bias"] += 0.1

    assert divergence(checkpoint(), plant=plant) == ("blocks.1.mlp", "unknown")


def test_a_fault_too_small_for_float32(checkpoint):
    def plant(weights):
        weights["blocks.2.mlp.fc2.bias"][3] += 1e-6

    assert divergence(checkpoint(), plant=plant) == ("blocks.2.mlp", "unknown")


def test_a_changed_module_is_found_though_the_configuration_is_right(checkpoint):
    located = checkpoint()
    model = build_model(read_checkpoint(located, ReadOptions(overrides=STATED)))
    assert isinstance(model.blocks[1], nn.Module)
    model.blocks[1].norm2.eps = 1e-3
    report = verify_checkpoint(read_checkpoint(located, ReadOptions(overrides=STATED)), model=model)
    assert report.first_divergence.layer == "blocks.1.mlp"


@pytest.mark.parametrize(
    ("plant", "dtypes", "equal"),
    [
        (None, {"float32"}, True),
        ("blocks.1.norm1.bias", {"float32", "float64"}, False),
        # A bias of the keys leaves the probabilities as they are, but for rounding.
        ("blocks.2.attn.qkv.bias", {"float32", "float64"}, True),
    ],
)
def test_float64_is_left_out_only_where_float32_shows_no_bit_of_difference(
    checkpoint, plant, dtypes, equal
):
    located = checkpoint()
    model = build_model(read_checkpoint(located, ReadOptions(overrides=STATED)))
    if plant:
        with torch.no_grad():
            model.get_parameter(plant)[30 if "qkv" in plant else 4] += 1e-5
    report = verify_checkpoint(
        read_checkpoint(located, ReadOptions(overrides=STATED)), model=model, until_equal=True
    )
    assert {comparison.dtype for comparison in report.comparisons} == dtypes
    assert {layer.dtype for layer in report.layers} == dtypes
    assert report.ok == equal
