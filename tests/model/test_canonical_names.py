"""The model's parameters are exactly those that weights_map/canonical.toml declares."""

import math
import re
import tomllib
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitconvert.config import ViTConfig
from vitconvert.model import ViT

CANONICAL = Path(__file__).parents[2] / "weights_map" / "canonical.toml"


@st.composite
def configs(draw):
    flag = st.booleans()
    rope = draw(st.sampled_from(["none", "axial", "dinov3", "mixed"]))
    heads = draw(st.integers(1, 3))
    head_dim = 4 if rope != "none" else draw(st.integers(1, 5))
    embed_dim = draw(st.sampled_from([12, 24, 36]))
    class_token, num_classes = draw(flag), draw(st.integers(0, 5))
    dist_token = class_token and draw(flag)
    stem = draw(flag)
    style = draw(st.sampled_from(["google", "resnet_d", "mobileclip"]))
    staged = stem and style != "mobileclip"
    positions = draw(st.sampled_from(["learned", "sincos2d", "sincos2d_mae", "none"]))
    dist_head = dist_token and num_classes > 0 and draw(flag)
    representation_size = draw(st.integers(0, 4))
    pooling = draw(st.sampled_from(["avg", "avgmax", "max", "map", "none", "token", "token_avg"]))
    if dist_head or (pooling == "token_avg" and representation_size):
        pooling = "token"
    if pooling.startswith("token") and not class_token:
        pooling = "avg"
    norm = draw(st.sampled_from(["layer", "rms"]))
    branches = draw(st.sampled_from([1, 1, 2]))
    registers = draw(st.integers(0, 3))
    alone = class_token and not dist_token and not registers and branches == 1
    relative = draw(st.sampled_from(["none", "block", "shared"])) if alone else "none"
    order = (
        draw(st.sampled_from(["pre", "post_norm", "res_post_norm", "parallel"]))
        if branches == 1
        else "pre"
    )
    one_step = order == "parallel"
    attention_proj = draw(flag) or one_step or heads * head_dim != embed_dim
    differential = branches == 1 and rope == "none" and head_dim % 2 == 0 and draw(flag)
    depth = draw(st.integers(1, 3))
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    shared = branches == 1 and not one_step and not differential and draw(flag)
    kv_heads = draw(st.lists(st.sampled_from(divisors), min_size=depth, max_size=depth))
    flags = {
        name: draw(flag)
        for name in (
            *("no_embed_class", "patch_bias", "patch_norm", "patch_pre_norm", "pre_norm"),
            *("qkv_bias", "qk_norm", "mlp_bias", "layer_scale", "final_norm", "fc_norm"),
            *("pool_include_prefix", "head_bias", "pool_q_proj", "pool_kv_bias", "pool_mlp"),
        )
    }
    flags["fc_norm"] = flags["fc_norm"] and pooling != "token_avg"
    for word in ("attention_norm", "gated_mlp", "mlp_norm"):
        flags[word] = branches == 1 and not one_step and draw(flag)
    flags["qk_norm"] = branches == 1 and not differential and draw(flag)
    alone = branches == 1 and not one_step and not differential and not shared
    flags["whole_qk_norm"] = alone and not flags["qk_norm"] and draw(flag)
    flags["mlp_bias"] = one_step or flags["mlp_bias"]
    return ViTConfig(
        image_size=(draw(st.integers(32, 70)), draw(st.integers(32, 70))),
        patch_size=(1, 2) if stem else (draw(st.integers(4, 9)), draw(st.integers(4, 9))),
        in_channels=draw(st.integers(1, 4)),
        num_classes=num_classes,
        embed_dim=embed_dim,
        depth=depth,
        kv_heads=tuple(kv_heads) if shared else (),
        mlp_layer_scale=branches > 1 or one_step or draw(flag),
        differential=differential,
        num_heads=heads,
        head_dim=head_dim,
        mlp_dim=draw(st.integers(1, 9)),
        activation="gelu",
        norm_eps=1e-6,
        pooling=pooling,
        norm=norm,
        norm_bias=norm == "layer" and draw(flag),
        rope=rope,
        rope_periods=rope == "dinov3" and draw(flag),
        relative_positions=relative,
        branches=branches,
        block_order=order,
        class_token=class_token,
        dist_token=dist_token,
        dist_head=dist_head,
        num_registers=registers,
        position_embedding=positions,
        stem=stem,
        stem_depths=tuple(draw(st.lists(st.integers(1, 2), max_size=2))) if staged else (),
        stem_width=32,
        stem_style=style,
        attention_proj=attention_proj,
        proj_bias=attention_proj and draw(flag),
        pool_heads=draw(st.sampled_from([0, 1, 2])) if embed_dim % heads == 0 else 1,
        pool_mlp_dim=draw(st.integers(0, 4)),
        representation_size=representation_size,
        **flags,
    )


@settings(max_examples=150)
@given(configs())
def test_names_and_shapes_are_the_declared_ones(config):
    model = ViT(config, device="meta")
    found = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert found == _declared(config)


@settings(max_examples=10)
@given(configs())
def test_state_is_parameters_and_what_batch_norms_gather(config):
    model = ViT(config, device="meta")
    gathered = ("running_mean", "running_var", "num_batches_tracked")
    state = {name for name in model.state_dict() if not name.endswith(gathered)}
    assert state == dict(model.named_parameters()).keys()
    batch_norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert len(model.state_dict()) == len(state) + 3 * len(batch_norms)


@pytest.mark.parametrize("in_context", [False, True])
def test_meta_model_allocates_nothing_and_assigned_weights_make_it_whole(
    in_context, make_config, images
):
    config = make_config(
        position_embedding="sincos2d", pooling="avg", class_token=False, embed_dim=32
    )
    whole = ViT(config).eval()
    if in_context:
        with torch.device("meta"):
            model = ViT(config)
    else:
        model = ViT(config, device="meta")
    assert all(parameter.is_meta for parameter in model.parameters())
    model.load_state_dict(whole.state_dict(), strict=True, assign=True)
    x = images(config)
    assert torch.equal(model.eval()(x), whole(x))


def test_dtype_and_device_are_those_asked_for(make_config):
    config = make_config(position_embedding="sincos2d", embed_dim=32)
    model = ViT(config, device="cpu", dtype=torch.float64)
    tensors = [*model.parameters(), *model.buffers()]
    assert {tensor.dtype for tensor in tensors} == {torch.float64}
    assert {tensor.device.type for tensor in tensors} == {"cpu"}
    assert model.config is config


def _declared(config):
    """Read the table afresh: name to shape, with every index and condition worked out."""
    rows = tomllib.loads(CANONICAL.read_text())["tensors"]
    shapes = {}
    for row, text in rows.items():
        axes, _, condition = text.partition(" if ")
        if condition and not all(getattr(config, word) for word in condition.split(" and ")):
            continue
        for name, numbers in _expand(row, config):
            shapes[name] = _shape(axes.format(**numbers), config)
    return shapes


def _expand(row, config):
    for parameter in ("weight", "bias") if "{p}" in row else ("",):
        for block in range(config.depth) if "{i}" in row else (0,):
            for stage in range(len(config.stem_depths)) if "{s}" in row else (0,):
                for unit in range(config.stem_depths[stage]) if "{u}" in row else (0,):
                    for branch in range(config.branches) if "{j}" in row else (0,):
                        yield (
                            row.format(p=parameter, i=block, j=branch, s=stage, u=unit),
                            {"i": block, "s": stage, "u": unit},
                        )


def _shape(axes, config):
    sizes = config.axes()
    dimensions = re.findall(r"\(([^)]*)\)|(\S+)", axes)
    return tuple(
        math.prod(int(axis) if axis.isdigit() else sizes[axis] for axis in (group or one).split())
        for group, one in dimensions
    )
