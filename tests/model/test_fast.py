"""The fast arithmetic is the same function within rounding, on the same weights."""

import copy
import os
import pickle
import platform
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from vitconvert.api import load_checkpoint, load_model
from vitconvert.config.vocabularies import ACTIVATIONS
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import InputMismatch
from vitconvert.model import FastViT, ViT, fast
from vitconvert.model.attention_maps import attentions
from vitconvert.model.fast import FastLinear
from vitconvert.model.pruning import prune_heads

BOUND = 4e-6  # of the largest output, from float64
LINEAR = "mkldnn._linear_pointwise.default"
PACK = "mkldnn._reorder_linear_weight.default"
needs_onednn = pytest.mark.skipif(not fast._DTYPES, reason="this torch has no oneDNN")
CONFIGS = {
    "token": {"depth": 11},
    "distilled": {"dist_token": True, "dist_head": True},
    "overlapping": {"patch_stride": (4, 5), "dist_token": True, "pooling": "prefix_avg"}
    | {"fc_norm": True},
    "tokens": {"pooling": "none", "in_channels": 4},
    "average": {"pooling": "avg", "class_token": False, "in_channels": 1},
    "token and average": {"pooling": "token_avg", "num_registers": 2},
    "attention pooling": {"pooling": "map"},
    "no head": {"num_classes": 0, "fc_norm": True},
    "pre-logits": {"representation_size": 11},
    "res-post": {"block_order": "res_post_norm", "layer_scale": True},
    "post": {"block_order": "post_norm", "layer_scale": True},
    "parallel": {"block_order": "parallel", "qk_norm": True},
    "joined": {"block_order": "parallel", "differential": True, "qkv_bias": False},
    "side by side": {"branches": 2},
    "gated": {"gated_mlp": True, "mlp_norm": True, "activation": "silu", "norm": "rms"}
    | {"norm_bias": False},
    "rope": {"rope": "axial", "head_dim": 12, "num_registers": 2},
    "rope of the class token": {"rope": "axial", "head_dim": 12, "rope_class": True},
    "shared keys": {"kv_heads": (1, 3, 1), "mlp_bias": False},
    "norm of whole queries": {"whole_qk_norm": True, "norm": "rms", "norm_bias": False},
    "relative": {"relative_positions": "block", "attention_norm": True},
    "shared relative": {"relative_positions": "shared", "attention_scale": 0.2},
    "relative of an MLP": {"relative_positions": "block_mlp", "relative_mlp_dim": 9},
    "windows": {"window_size": 3, "global_blocks": (1,), "relative_positions": "decomposed"}
    | {"class_token": False, "pooling": "avg", "neck_dim": 8, "final_norm": False},
    **{name: {"activation": name} for name in ACTIVATIONS},
}


class Operations(TorchDispatchMode):
    """Names of the operations that ran; in inference mode, of those before they are taken apart."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def pair(make_config, randomise):
    """A usual model and a fast one on the same tensors."""

    def make(**changes):
        usual = randomise(ViT(make_config(**changes)))
        return usual, _fast(usual)

    return make


def _fast(usual):
    model = FastViT(usual.config, device="meta").eval()
    model.load_state_dict(usual.state_dict(), assign=True)
    return model


def _packed(model):
    """The same model, whose linear layers have their own order of weights from the next call."""
    for module in model.modules():
        if isinstance(module, FastLinear):
            assert not module.weight.is_inference()  # which would never be packed
            module.packs_after = 0
    return model


def _off(found, truth):
    assert found.shape == truth.shape and truth.isfinite().all() and truth.std() > 0
    return ((found - truth).abs().max() / truth.abs().max()).item()


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_the_same_function(name, pair, images):
    usual, model = pair(**CONFIGS[name])
    x = images(usual.config)
    dense, packed = model(x), _packed(model)(x)
    truth = usual.double()(x.double())
    assert _off(dense, truth) <= BOUND
    assert _off(packed, truth) <= BOUND


@torch.inference_mode()
def test_the_digits_model_says_the_same():
    truth, model = load_model(DIGITS, dtype=torch.float64), load_model(DIGITS, fast=True)
    x = torch.randn(5, 3, 32, 32)
    assert _off(model(x), truth(x.double())) <= BOUND


@torch.inference_mode()
@pytest.mark.parametrize("name", ["token", "side by side", "parallel", "relative", "rope"])
def test_methods_give_what_they_do_elsewhere(name, pair, images):
    usual, found = pair(**CONFIGS[name])
    x = images(usual.config)
    mask = torch.rand(usual.config.depth, usual.blocks[0].num_heads)
    assert _off(found(x, mask), usual(x, mask)) <= BOUND
    assert _off(found.forward_features(x), usual.forward_features(x)) <= BOUND
    results = (model.hidden_states(x) for model in (found, usual))
    assert all(_off(*states) <= BOUND for states in zip(*results, strict=True))
    maps, their_maps = (attentions(model, x) for model in (found, usual))
    assert all(_off(maps[layer], their_maps[layer]) <= BOUND for layer in their_maps)
    tokens, layers = found.forward_intermediates(x, 2)
    assert tokens.shape[1] == usual.config.num_patches + usual.config.num_prefix_tokens
    assert len(layers) == 2


@torch.no_grad()
@needs_onednn
@pytest.mark.parametrize(
    ("name", "tokens", "linear"),
    [("token", 1, 45), ("distilled", 2, 14), ("average", 12, 13), ("tokens", 13, 13)],
)
def test_what_is_computed(name, tokens, linear, pair, images):
    """All linear layers by oneDNN with their activation, and the last block for pooled tokens."""
    _, model = pair(**CONFIGS[name])
    counts = []
    for module in (model.blocks[-2], model.blocks[-1].attn.proj, model.blocks[-1].mlp.fc2):
        module.register_forward_hook(lambda *call: counts.append(call[2].shape[1]))
    with Operations() as ran:
        model(images(model.config))
    assert counts == [model.config.num_patches + model.config.num_prefix_tokens, tokens, tokens]
    assert ran.names.count(LINEAR) == linear
    assert not {"aten.addmm.default", "aten.mm.default", "aten.gelu.default"} & set(ran.names)


def test_its_weights_are_those_of_the_checkpoint():
    checkpoint, model = load_checkpoint(DIGITS), load_model(DIGITS, fast=True)
    state = model.state_dict()
    assert type(model) is FastViT and not model.training
    assert state.keys() == checkpoint.tensors.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in checkpoint.tensors.items())
    assert isinstance(load_model(DIGITS), ViT) and not isinstance(load_model(DIGITS), FastViT)


@torch.inference_mode()
def test_it_shares_memory_with_the_usual_model_and_sees_every_change(pair, images):
    usual, model = pair()
    theirs = dict(usual.named_parameters())
    assert all(p.data_ptr() == theirs[name].data_ptr() for name, p in model.named_parameters())
    x = images(usual.config)
    before = model(x)
    for parameter in usual.parameters():
        parameter.mul_(1.1)
    assert _off(model(x), usual(x)) <= BOUND
    assert not torch.allclose(model(x), before)
    model.load_state_dict(_negated(usual))
    assert _off(model(x), usual(x)) <= BOUND


def _negated(model):
    return {name: -tensor for name, tensor in model.state_dict().items()}


@needs_onednn
@torch.no_grad()
def test_weights_are_packed_once_and_only_where_it_pays(pair, images):
    _, model = pair()
    x, linears = images(model.config), 4 * model.config.depth + 1
    packed = []
    for _ in range(19):
        with Operations() as ran:
            model(x)
        packed.append(ran.names.count(PACK))
    assert packed == [0] * 16 + [linears, 0, 0]


@needs_onednn
@torch.no_grad()
@pytest.mark.parametrize(("torchs", "linears"), [(0.96, 0), (0.98, 4 * 11 + 1)])
def test_without_avx512_a_shape_is_computed_by_what_was_faster(
    torchs, linears, pair, images, monkeypatch
):
    asked = []

    def seconds(ways):
        asked.append([way() for way in ways])
        return [1.0, torchs]

    monkeypatch.setattr(fast, "_COMPARES", True)
    monkeypatch.setattr(fast, "_measured", {})
    monkeypatch.setattr(fast, "_seconds", seconds)
    usual, model = pair(depth=11)
    x = images(model.config)
    for _ in range(2):  # packs; measures
        _packed(model)(x)
    shapes = {(m.in_features, m.out_features) for m in model.modules() if isinstance(m, FastLinear)}
    assert len(asked) >= len(shapes)
    for ours, by_torch in asked:
        torch.testing.assert_close(ours, by_torch)
    before = len(asked)
    with Operations() as ran:
        found = model(x)
    assert ran.names.count(LINEAR) == linears and len(asked) == before
    assert _off(found, usual.double()(x.double())) <= BOUND


def test_what_is_measured_is_the_least_time(monkeypatch):
    clock = iter([0, 5, 10, 12, 20, 23, 30, 39, 40, 44, 50, 51])
    monkeypatch.setattr(fast.time, "perf_counter", lambda: next(clock))
    assert fast._seconds([lambda: None, lambda: None]) == [3, 1]


@needs_onednn
def test_weights_that_torch_does_not_watch_are_not_packed():
    with torch.inference_mode():
        linear = FastLinear(3, 5)
        linear.packs_after = 0
        with Operations() as ran:
            linear(torch.randn(2, 3))
    assert PACK not in ran.names


def _scale(model):
    for parameter in model.parameters():
        parameter.mul_(1.1)


def _replace(model):
    for linear in [module for module in model.modules() if isinstance(module, nn.Linear)]:
        linear.weight = nn.Parameter(linear.weight * 1.1, requires_grad=False)


def _exchange(model):
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.1


def _transpose(model):
    for block in model.blocks:
        block.attn.proj.weight.data = block.attn.proj.weight.data.T


CHANGES = {
    "in place": _scale,
    "in place without gradients": torch.no_grad()(_scale),
    "another parameter": torch.no_grad()(_replace),
    "other data": _exchange,
    "other strides": _transpose,
    "another state": lambda model: model.load_state_dict(_negated(model)),
    "an assigned state": lambda model: model.load_state_dict(_negated(model), assign=True),
    "fewer heads": lambda model: prune_heads(model, {0: [1]}),
    "another dtype": lambda model: model.double().float().bfloat16().float(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_packed_weights_are_dropped_when_the_weights_change(name, pair, images):
    usual, model = pair()
    model.load_state_dict(copy.deepcopy(usual.state_dict()), assign=True)
    x = images(usual.config)
    with torch.inference_mode(name == "in place"):
        before = _packed(model)(x)
        for each in (usual, model):
            with torch.no_grad():
                CHANGES[name](each)
        found, wanted = model(x), usual(x)
    assert _off(found, wanted.detach()) <= BOUND
    assert not torch.allclose(found, before)


@needs_onednn
def test_packed_weights_are_no_part_of_the_state(pair, images):
    usual, model = pair()
    size = len(pickle.dumps(model))
    _packed(model)(images(model.config))
    assert model.state_dict().keys() == usual.state_dict().keys()
    assert len(pickle.dumps(model)) - size < 10_000


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_fast_too(copied, pair, images, monkeypatch):
    monkeypatch.setattr(fast, "_COMPARES", False)  # what is measured may differ
    _, model = pair()
    x = images(model.config)
    _packed(model)(x)
    again = copied(model)
    assert type(again) is FastViT
    assert torch.equal(again(x), model(x))


@pytest.mark.slow
def test_export_and_compilers_get_torchs_own_operations(pair, images):
    usual, model = pair(**CONFIGS["token"])
    x, graphs = images(usual.config), []
    exported = torch.export.export(model, (x,))
    assert exported.state_dict.keys() == usual.state_dict().keys()

    def backend(module, inputs):
        graphs.append(module.graph)
        return module.forward

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for found in (exported.module(), compiled):
        assert _off(found(x), usual(x)) <= BOUND
    assert len(graphs) == 1
    for graph in (exported.graph, *graphs):
        assert not any("mkldnn" in str(node.target) for node in graph.nodes)


@pytest.mark.parametrize("name", ["token", "relative", "gated", "quick_gelu"])
def test_gradients_are_those_of_the_usual_model(name, pair, images):
    usual, model = pair(**CONFIGS[name])
    x = images(usual.config)
    assert not model(x).requires_grad
    model.requires_grad_(True)
    for each in (usual, model):
        each(x).square().sum().backward()
    found = dict(model.named_parameters())
    for name, parameter in usual.named_parameters():
        assert _off(found[name].grad, parameter.grad) <= 10 * BOUND, name


@pytest.mark.parametrize("trained", ["head.weight", "blocks.1.mlp.fc2.bias"])
def test_the_gradient_of_one_layer_among_frozen_ones(trained, pair, images):
    usual, model = pair()
    x, grads = images(usual.config), []
    for each in (usual.requires_grad_(False), model):
        parameter = each.get_parameter(trained).requires_grad_()
        each(x).square().sum().backward()
        grads.append(parameter.grad)
    assert _off(*grads) <= 10 * BOUND


def test_the_gradient_of_an_image(pair, images):
    usual, model = pair()
    grads = []
    for each in (usual, model):
        x = torch.ones_like(images(usual.config)).requires_grad_()
        each(x)[:, 0].sum().backward()
        grads.append(x.grad)
    assert _off(*grads) <= 10 * BOUND


def test_dropout_in_training(pair, images):
    _, model = pair(proj_drop_rate=0.5, attention_drop_rate=0.5)
    x = images(model.config)
    assert torch.equal(model(x), model(x))
    with pytest.warns(UserWarning, match="load it with fast=False"):
        model.train()
    assert not torch.allclose(model(x), model(x))


@torch.inference_mode()
def test_pruned_heads_and_a_new_head(pair, images):
    usual, model = pair(num_classes=0)
    for each in (usual, model):
        prune_heads(each, {0: [1], 2: [0, 2]})
    x = images(usual.config)
    assert _off(model(x), usual(x)) <= BOUND
    model.reset_classifier(3, "avg")
    assert model(x).shape == (2, 3)


@torch.inference_mode()
@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of Intel GPUs, says torch's switch
@pytest.mark.parametrize("switched_off", [False, True])
def test_without_onednn(switched_off, pair, images, monkeypatch):
    usual, model = pair()
    x = images(usual.config)
    monkeypatch.setattr(fast, "_DTYPES", fast._DTYPES if switched_off else ())
    with torch.backends.mkldnn.flags(enabled=not switched_off), Operations() as ran:
        found = model(x)
    assert _off(found, usual(x)) <= BOUND
    assert LINEAR not in ran.names


@torch.no_grad()
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.bfloat16, 0.05), (torch.float16, 0.005), (torch.float64, 1e-12)]
)
def test_other_dtypes(dtype, bound, pair, images):
    usual, model = pair()
    x = images(usual.config).to(dtype)
    truth = usual.double()(x.double())
    for found in (model.to(dtype)(x), _packed(model)(x)):
        assert found.dtype == dtype
        assert _off(found.double(), truth) <= bound


@torch.inference_mode()
def test_autocast_chooses_the_precision(pair, images):
    usual, model = pair()
    x = images(usual.config)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == usual(x).dtype == torch.bfloat16


@torch.inference_mode()
def test_many_images_are_answered_in_parts(pair, images, monkeypatch):
    usual, model = pair(pooling="none")
    monkeypatch.setattr(fast, "_AT_ONCE", 8 * 13 * 90 * 4)  # images, tokens, q with k and v, bytes
    x = torch.cat([images(usual.config) for _ in range(9)])
    counts = []
    model.blocks[0].register_forward_hook(lambda *call: counts.append(len(call[2])))
    mask = torch.rand(usual.config.depth, usual.blocks[0].num_heads)
    assert _off(model(x, mask), usual(x, mask)) <= BOUND
    assert counts == [6, 6, 6]
    with pytest.warns(UserWarning, match="load it with fast=False"):
        model.train()(x)
    assert counts[3:] == [18]


def test_a_layer_on_another_device_is_torchs_own():
    layer = FastLinear(3, 5, device="meta")
    with torch.no_grad(), Operations() as ran:
        assert layer(torch.empty(2, 3, device="meta")).shape == (2, 5)
    assert LINEAR not in ran.names


@needs_onednn
@torch.no_grad()
def test_weights_that_could_be_trained_are_fast_where_nothing_is(pair, images):
    _, model = pair()
    with Operations() as ran:
        model.requires_grad_(True)(images(model.config))
    assert LINEAR in ran.names


FAULTS = """
import resource, torch
from vitconvert.config import ViTConfig
from vitconvert.model import FastViT

sizes = dict(image_size=(112, 104), patch_size=(8, 8), in_channels=3, num_classes=7)
widths = dict(embed_dim=192, depth=2, num_heads=3, head_dim=64, mlp_dim=800)
config = ViTConfig(**sizes, **widths, activation="gelu", norm_eps=1e-6, pooling="token")
model, images = FastViT(config).eval(), torch.rand(8, 3, 112, 104)
with torch.inference_mode():
    for _ in range(3):
        model(images)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    model(images)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")
def test_memory_of_activations_is_kept_for_the_next_batch():
    """Where nothing larger was ever freed; without it, there are thousands of page faults."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True
    )
    assert int(found.stdout) < 300


def test_wrong_images_are_told_whole(pair):
    _, model = pair(image_size=(12, 16), in_channels=3)
    with pytest.raises(InputMismatch, match=r"\(20, 4, 12, 16\)"):
        model(torch.zeros(20, 4, 12, 16))


@torch.no_grad()
def test_no_images_at_all(pair, images):
    _, model = pair()
    for each in (model, _packed(model)):
        assert each(images(model.config)[:0]).shape == (0, 7)


@torch.inference_mode()
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_number_that_is_none_stays_one(activation, pair, images):
    usual, model = pair(activation=activation, pooling="avg", depth=1)
    for block in (usual.blocks[0], model.blocks[0]):
        block.mlp.fc1.bias[3] = torch.nan
    assert model(images(model.config)).isnan().all()


@torch.no_grad()
@pytest.mark.parametrize("which", ["weight", "bias", ""])
def test_parameters_with_gaps_in_memory(which, pair, images):
    """As the views on a transposed file are."""
    usual, model = pair()
    state = usual.state_dict()
    for name, tensor in state.items():
        if name.endswith(which):
            wide = tensor.new_full((*tensor.shape, 2), torch.nan)
            wide[..., 0] = tensor
            state[name] = wide[..., 0]
    model.load_state_dict(state, assign=True)
    x = images(usual.config)
    assert _off(model(x), usual(x)) <= BOUND
    assert _off(_packed(model)(x), usual(x)) <= BOUND
