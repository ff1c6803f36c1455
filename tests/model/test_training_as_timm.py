"""What training computes: timm's gradients, and the same numbers under torch's own tools."""

import copy
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch
from timm.utils import ModelEmaV3

from tests.model.timm_pairs import FAMILIES, images, ours, theirs, under_our_names
from tests.sampling import sampled
from vitconvert.model import ViT

# timm has no bias of keys; where the table makes one of zeros, only q's and v's are compared.
NO_BIAS_OF_KEYS = ("beit", "eva02", "vit_small_patch16_rope")


def gradients(model, x):
    """Of a loss that sees each class of each image, by name."""
    logits = model(x)
    target = torch.linspace(-1, 1, logits.numel(), dtype=x.dtype).view_as(logits)
    (logits - target).square().sum().backward()
    return {k: p.grad for k, p in model.named_parameters() if p.grad is not None}


def assert_gradients_equal(name, our, their):
    wanted = under_our_names(name, their)
    for key, found in our.items():
        expected = wanted[key]
        if key.endswith("attn.qkv.bias") and name.startswith(NO_BIAS_OF_KEYS):
            found, expected = (torch.stack(b.chunk(3))[[0, 2]] for b in (found, expected))
        scale = expected.abs().max()
        assert (found - expected).abs().max() <= 1e-10 * scale + 1e-12, key
        assert scale > 0, key


@pytest.mark.parametrize("checkpointing", sampled([False, True], 2, "slow"))
@pytest.mark.parametrize("name", sampled(FAMILIES, 9, "slow"))
def test_gradients_are_timms(name, checkpointing):
    their, our = theirs(name).double().train(), ours(name, dtype=torch.float64).train()
    our.set_grad_checkpointing(checkpointing)
    x = images(our)
    torch.manual_seed(8)
    wanted = gradients(their, x)
    torch.manual_seed(8)
    found = gradients(our, x)
    assert_gradients_equal(name, found, wanted)
    assert found.keys() == {k for k, p in our.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("name", sampled(FAMILIES, 9, "slow"))
def test_gradients_are_timms_under_stochastic_depth(name):
    if name.startswith("samvit"):
        pytest.skip("timm leaves out windows, and this model, as ViTDet, images")
    their = theirs(name, drop_path_rate=0.4).double().train()
    our = ours(name, drop_path_rate=0.4, dtype=torch.float64).train()
    x = images(our, batch=5)
    torch.manual_seed(8)
    wanted = gradients(their, x)
    torch.manual_seed(8)
    found = gradients(our, x)
    assert_gradients_equal(name, {k: v for k, v in found.items() if v.abs().max() > 0}, wanted)
    calm = gradients(ours(name, dtype=torch.float64).train(), x)
    assert not torch.allclose(calm["patch_embed.proj.weight"], found["patch_embed.proj.weight"])


def test_rates_of_every_dropout_are_loaded():
    rates = {"drop_rate": 0.1, "embed_drop_rate": 0.2, "attention_drop_rate": 0.3}
    rates |= {"proj_drop_rate": 0.4, "drop_path_rate": 0.5}
    model = ours("vit_tiny_patch16_224", **rates)
    assert {name: getattr(model.config, name) for name in rates} == rates
    assert not model.training
    block = model.blocks[-1]
    found = (model.head_drop.p, model.embed_drop.p, block.attn.attn_drop.p)
    assert found == (0.1, 0.2, 0.3)
    assert (block.attn.proj_drop.p, block.mlp.drop1.p, block.drop_path2.drop_prob) == (
        0.4,
        0.4,
        0.5,
    )
    x = images(model)
    assert torch.equal(model(x), ours("vit_tiny_patch16_224")(x))


def test_copies_are_whole():
    model = ours("beit_base_patch16_224", drop_path_rate=0.3)
    x = images(model)
    wanted = model(x)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    average = ModelEmaV3(model, decay=0.5)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(buffer, weights_only=False),
        average.module,
    ]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    for copied in copies:
        assert torch.equal(copied(x), wanted)
        copied.set_input_size(32)  # and stands for itself
    assert model.config.image_size == (64, 48)
    average = ModelEmaV3(model, decay=0.5)
    before = model.head.weight.clone()
    with torch.no_grad():
        model.head.weight.add_(2)
    average.update(model)
    torch.testing.assert_close(average.module.head.weight, before + 1)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_of_each_image():
    model = ours("vit_small_patch14_reg4_dinov2", dtype=torch.float64)
    x = images(model)
    parameters = {key: p.detach() for key, p in model.named_parameters()}

    def loss(weights, image):
        return torch.func.functional_call(model, weights, (image[None],)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for number in range(len(x)):
        model.zero_grad()
        model(x[number][None]).square().sum().backward()
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(each[key][number], parameter.grad)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"),
    sampled(
        [
            ("flexivit_small", "aot_eager"),
            ("beit_base_patch16_224", "aot_eager"),
            ("eva02_tiny_patch14_224", "inductor"),
        ],
        3,
    ),
)
def test_torchs_compiler_takes_the_whole_model(name, backend):
    model = ours(name)
    x = images(model)
    wanted = gradients(model, x)
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    compiled.zero_grad()
    found = gradients(compiled, x)
    for key, gradient in wanted.items():
        torch.testing.assert_close(
            found[f"_orig_mod.{key}"], gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max())
        )
    dropping = torch.compile(
        ours(name, drop_path_rate=0.3).train(), fullgraph=True, backend=backend
    )
    assert all(g.isfinite().all() for g in gradients(dropping, x).values())


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "beit_base_patch16_224"])
def test_two_processes_have_the_gradients_of_one(name, way, tmp_path):
    model = ours(name, dtype=torch.float64)
    torch.save((model.config, model.state_dict()), tmp_path / "model.pt")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-m", "tests.model.of_two_processes", way, str(tmp_path)]
    running = [
        subprocess.Popen([*command, str(rank)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for process in running:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    wanted = gradients(model, images(model, batch=4))
    found = torch.load(tmp_path / "gradients.pt")
    assert found.keys() == wanted.keys()
    for key, gradient in wanted.items():
        torch.testing.assert_close(2 * found[key], gradient)  # the mean of two sums


def test_a_model_of_no_checkpoint_trains(make_config, images):
    torch.manual_seed(2)
    model = ViT(make_config(drop_path_rate=0.2, depth=11)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    x = images(model.config)
    losses = []
    for _ in range(12):
        loss = torch.nn.functional.cross_entropy(model(x), torch.tensor([1, 4]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
