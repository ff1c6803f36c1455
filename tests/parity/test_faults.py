"""Faults that are planted in our model are found: the right layer, the right cause."""

import re
from functools import partial

import pytest
import torch

from tests.packages import timm
from tests.small_models import randomise
from vitconvert.checkpoint import ReadOptions, build_model, read_checkpoint
from vitconvert.model import ViT
from vitconvert.model.resampling import resample_positions
from vitconvert.parity.matching import corrected_rows
from vitconvert.parity.verification import verify_checkpoint
from vitconvert.sources import locate

STATED = {"num_heads": 3, "image_size": (32, 24), "patch_size": (8, 8)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Three blocks of width 30, as wide within the MLP; 4 patches down, 3 across."""
    read = {}

    def save(overrides=(), zero_position=False, **arguments):
        key = str((overrides, zero_position, arguments))
        if key in read:
            return read[key]
        torch.manual_seed(20)
        sizes = {"img_size": (32, 24), "patch_size": 8, "embed_dim": 30, "depth": 3}
        sizes |= {"num_heads": 3, "mlp_ratio": 1.0, "num_classes": 30}
        state = randomise(timm.models.VisionTransformer(**(sizes | arguments))).state_dict()
        if zero_position:
            state["pos_embed"][:, :1] = 0
        path = tmp_path_factory.mktemp("faults") / "vit.pth"
        torch.save(state, path)
        options = ReadOptions(overrides=STATED | dict(overrides))
        return read.setdefault(key, read_checkpoint(locate(path), options))

    return save


def divergence(checkpoint, plant=None, **fields):
    """Plant a fault in the weights or the configuration, and verify."""
    healthy = build_model(checkpoint)
    weights = {name: tensor.clone() for name, tensor in healthy.state_dict().items()}
    if plant is not None:
        plant(weights)
    model = ViT(healthy.config.replace(**fields), device="meta").eval()
    model.load_state_dict(weights, strict=True, assign=True)
    report = verify_checkpoint(checkpoint, model=model, dtypes=("float64",))
    assert report.verified and not report.ok
    return report.first_divergence.layer, report.first_divergence.cause


def sampled(*cases):
    """The first case is always run, the others with `-m coverage`."""
    return [cases[0], *(pytest.param(*case, marks=pytest.mark.coverage) for case in cases[1:])]


def activation(right, wrong="gelu"):
    model = {"act_layer": right, "overrides": (("activation", right),)}
    return {"activation": wrong}, "blocks.0.mlp", f"activation is {right}, not {wrong}", model


ATTENTION = "blocks.0.attn"
SCALED = "attention_scale is head_dim ** -0.5, not"
AVERAGED = {"global_pool": "avg", "fc_norm": False, "overrides": (("pooling", "avg"),)}
KERAS = {
    "norm_layer": partial(torch.nn.LayerNorm, eps=1e-3),
    "overrides": (("norm_eps", 1e-3),),
}
PREFIX = "pool_include_prefix"
FIELDS = [
    *sampled(
        ({"norm_eps": 1e-5}, ATTENTION, "norm_eps is 1e-06, not 1e-05", {}),
        ({"norm_eps": 1e-12}, ATTENTION, "norm_eps is 1e-06, not 1e-12", {}),
    ),
    # What a draft takes over from timm, where the code has Keras' default.
    ({"norm_eps": 1e-6}, ATTENTION, "norm_eps is 0.001, not 1e-06", KERAS),
    *sampled(
        *map(activation, ("gelu_tanh", "quick_gelu", "relu", "silu")), activation("gelu", "silu")
    ),
    ({"num_heads": 5, "head_dim": 6}, ATTENTION, "num_heads is 3, not 5", {}),
    *sampled(
        ({"attention_scale": 30**-0.5}, ATTENTION, f"{SCALED} 0.182574", {}),
        ({"attention_scale": 1.0}, ATTENTION, f"{SCALED} 1", {}),
    ),
    *sampled(
        ({"pooling": "avg"}, "features", "pooling is token, not avg", {}),
        ({"pooling": "max"}, "features", "pooling is token, not max", {}),
    ),
    ({PREFIX: True}, "features", f"{PREFIX} is False, not True", AVERAGED),
]


@pytest.mark.parametrize(("wrong", "layer", "cause", "model"), FIELDS, ids=str)
def test_a_wrong_configuration(wrong, layer, cause, model, checkpoint):
    assert divergence(checkpoint(**model), **wrong) == (layer, cause)


def at(name, function):
    """A fault in one tensor."""

    def plant(weights):
        weights[name] = function(weights[name]).clone()

    return plant


def order_of_qkv(weights, order):
    for name in ("blocks.1.attn.qkv.weight", "blocks.1.attn.qkv.bias"):
        parts = weights[name].chunk(3)
        weights[name] = torch.cat([parts["qkv".index(letter)] for letter in order])


def rows_of_qkv(weights, order):
    axes = ("qkv", "head", "dim")
    for name in ("blocks.2.attn.qkv.weight", "blocks.2.attn.qkv.bias"):
        rows = weights[name].reshape(3, 3, 10, *weights[name].shape[1:])
        moved = [axes.index(axis) for axis in order]
        weights[name] = rows.permute(*moved, *range(3, rows.ndim)).flatten(0, 2)


def transposed_qkv(weights, letters):
    name = "blocks.1.attn.qkv.weight"
    parts = [
        part.T if letter in letters else part
        for letter, part in zip("qkv", weights[name].chunk(3), strict=True)
    ]
    weights[name] = torch.cat(parts)


def exchanged_norms(weights):
    for kind in ("weight", "bias"):
        one, two = f"blocks.1.norm1.{kind}", f"blocks.1.norm2.{kind}"
        weights[one], weights[two] = weights[two], weights[one]


def not_finite(weights):
    weights["blocks.1.mlp.fc1.weight"][3, 4] = torch.nan
    weights["head.bias"][1] = torch.inf


def column_by_column(table):
    grid = table[:, 1:].reshape(1, 4, 3, -1).transpose(1, 2).flatten(1, 2)
    return torch.cat((table[:, :1], grid), 1)


def resampled(table):
    there, back = {"old_grid": (4, 3), "new_grid": (5, 6)}, {"old_grid": (5, 6), "new_grid": (4, 3)}
    larger = resample_positions(table, **there, prefix=1, rule="bicubic")
    return resample_positions(larger, **back, prefix=1, rule="bilinear_align_corners")


def orders():
    for order in ("vkq", "kqv", "qvk", "kvq", "vqk"):
        cause = f"the thirds of {QKV} are {', '.join(order)}, not q, k, v"
        yield partial(order_of_qkv, order=order), "blocks.1.attn", cause


def rows():
    for order in (("head", "qkv", "dim"), ("head", "dim", "qkv"), ("qkv", "dim", "head")):
        cause = f"the rows of blocks.2.attn.qkv are ({' '.join(order)}), not (qkv head dim)"
        yield partial(rows_of_qkv, order=order), "blocks.2.attn", cause


def transposed():
    for layer, tensor in (
        ("blocks.2.mlp", "blocks.2.mlp.fc1.weight"),
        ("blocks.1.attn", "blocks.1.attn.proj.weight"),
        ("blocks.0.mlp", "blocks.0.mlp.fc2.weight"),
        ("output", "head.weight"),
    ):
        yield at(tensor, torch.t), layer, f"{tensor} is transposed"


def letters():
    for letter in "kqv":
        cause = f"{letter} in {QKV}.weight is transposed"
        yield partial(transposed_qkv, letters=letter), "blocks.1.attn", cause


KERNEL, POSITIONS, QKV = "patch_embed.proj.weight", "pos_embed", "blocks.1.attn.qkv"
BROKEN = "the weights themselves are NaN or infinite, in blocks.1.mlp.fc1.weight and 1 more"
EVERY = f"q, k and v in {QKV}.weight are transposed"
CLASS = "cls_token, another prefix token or its position: the patches agree"
OTHER = "pos_embed has other values: another table, or one resampled by another rule"
WEIGHTS = [
    (not_finite, "blocks.1.mlp", BROKEN),
    *sampled(*orders()),
    *sampled(*rows()),
    *sampled(*transposed()),
    *sampled(*letters()),
    (partial(transposed_qkv, letters="qkv"), "blocks.1.attn", EVERY),
    (exchanged_norms, "blocks.1.attn", "blocks.1.norm1 and blocks.1.norm2 are exchanged"),
    *(
        (at(KERNEL, function), "patch_embed", f"{KERNEL} {cause}")
        for function, cause in (
            (lambda x: x.transpose(2, 3), "has rows and columns of a patch exchanged"),
            (lambda x: x.flip(1), "has its channels in reverse (BGR)"),
            (lambda x: x.permute(0, 2, 3, 1).reshape(x.shape), "has its channels last"),
        )
    ),
    *(
        (at(POSITIONS, function), "embedding", cause)
        for function, cause in (
            (column_by_column, "pos_embed is column by column, not row by row"),
            (lambda x: x.roll(-1, 1), "pos_embed has the class position last, not first"),
            (lambda x: torch.cat((x[:, :1] * 0, x[:, 1:]), 1), CLASS),
            (resampled, OTHER),
        )
    ),
    (at("blocks.1.mlp.fc1.bias", lambda x: x + 0.1), "blocks.1.mlp", "unknown"),
    # Too small for float32:
    (at("blocks.2.mlp.fc2.bias", lambda x: x + 1e-6), "blocks.2.mlp", "unknown"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "layer", "cause"), WEIGHTS)
def test_wrong_weights(plant, layer, cause, checkpoint):
    assert divergence(checkpoint(), plant) == (layer, cause)


def test_class_position_where_there_is_none(checkpoint):
    def plant(weights):
        weights["pos_embed"][:, :1] = torch.randn(30)

    cause = "pos_embed has a class position where the reference has none"
    assert divergence(checkpoint(zero_position=True), plant) == ("embedding", cause)


def test_a_changed_module_is_found_though_the_configuration_is_right(checkpoint):
    model = build_model(checkpoint())
    model.blocks[1].norm2.eps = 1e-3
    report = verify_checkpoint(checkpoint(), model=model)
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
    healthy = build_model(checkpoint())
    model = ViT(healthy.config).eval()
    model.load_state_dict(healthy.state_dict())
    if plant:
        with torch.no_grad():
            model.get_parameter(plant)[30 if "qkv" in plant else 4] += 1e-5
    report = verify_checkpoint(checkpoint(), model=model, briefly=True)
    assert {comparison.dtype for comparison in report.comparisons} == dtypes
    assert {layer.dtype for layer in report.layers} == dtypes
    assert report.ok == equal


@pytest.mark.parametrize(
    ("cause", "rows", "corrected"),
    [
        (
            "the thirds of blocks.0.attn.qkv are v, q, k, not q, k, v",
            {"attn.qkv.{p}": "{layer}.in.{p}"},
            {
                "attn.qkv.weight": "cat(1 : (qkv head dim) width, 2 : (qkv head dim) width, "
                "0 : (qkv head dim) width)",
                "attn.qkv.bias": "cat(1 : (qkv head dim), 2 : (qkv head dim), 0 : (qkv head dim))",
            },
        ),
        (
            "blocks.1.norm1 and blocks.1.norm2 are exchanged",
            {"norm1.{p}": "a.{p}", "norm2.{p}": "b.{p}"},
            {"norm1.{p}": "b.{p}", "norm2.{p}": "a.{p}"},
        ),
        (
            "the rows of blocks.0.attn.qkv are (head dim qkv), not (qkv head dim); and more",
            {"attn.qkv.{p}": "{layer}.all.{p}"},
            {
                "attn.qkv.weight": "{layer}.all.weight : (head dim qkv) width",
                "attn.qkv.bias": "{layer}.all.bias : (head dim qkv)",
            },
        ),
        (
            "the rows of blocks.2.attn.qkv are (head qkv dim), not (qkv head dim)",
            {"attn.qkv.weight": "{layer}.k : width (qkv head dim)"},
            {"attn.qkv.weight": "{layer}.k : width (head qkv dim)"},
        ),
        ("norm_eps is 1e-05, not 1e-06", {"norm1.{p}": "a.{p}"}, {}),
    ],
)
def test_rows_that_would_explain_a_difference(cause, rows, corrected):
    found = [*corrected_rows(cause, {f"blocks.{{i}}.{name}": row for name, row in rows.items()})]
    wanted = [f'"blocks.{{i}}.{name}" = "{row}"' for name, row in corrected.items()]
    for kind in ("weight", "bias"):
        found = [re.sub(rf"{{layer}}\.in\.{kind}\[qkv=(\d)\]", r"\1", row) for row in found]
    assert found == wanted
