"""The methods that people know from timm behave as there."""

import itertools

import pytest
import torch

from tests.sampling import sampled
from tests.small_models import small_timm
from vitconvert.errors import ConflictingFact, UsageError
from vitconvert.model import ViT

INDICES = [None, 1, 2, [0, 2], [-1, 0], (1,)]


@pytest.fixture
def pair(make_config, randomise):
    """Ours and timm's, with registers and the same weights."""
    theirs = randomise(small_timm(reg_tokens=2))
    ours = ViT(make_config(num_registers=2), device="meta").eval()
    ours.load_state_dict(theirs.state_dict(), strict=True, assign=True)
    return ours, theirs


@pytest.mark.parametrize(
    ("indices", "prefix", "norm", "output_fmt"),
    sampled(itertools.product(INDICES, [False, True], [False, True], ["NCHW", "NLC"]), 5, "slow"),
    ids=str,
)
def test_forward_intermediates(indices, prefix, norm, output_fmt, pair, images):
    x = images(pair[0].config)
    arguments = {"return_prefix_tokens": prefix, "norm": norm, "output_fmt": output_fmt}
    (found, outputs), (wanted, their_outputs) = (
        model.forward_intermediates(x, indices, **arguments) for model in pair
    )
    assert torch.equal(found, wanted)
    _assert_equal(outputs, their_outputs)


@pytest.mark.parametrize("indices", [[0], [0, 1]])
def test_stopping_early_computes_no_more_blocks(indices, pair, images):
    x = images(pair[0].config)
    ran = []
    for layer, block in enumerate(pair[0].blocks):
        block.register_forward_hook(lambda *_, layer=layer: ran.append(layer))
    (found, outputs), (wanted, their_outputs) = (
        model.forward_intermediates(x, indices, stop_early=True) for model in pair
    )
    assert ran == list(range(max(indices) + 1))
    assert torch.equal(found, wanted)
    _assert_equal(outputs, their_outputs)


def test_intermediates_only(pair, images):
    x = images(pair[0].config)
    _assert_equal(*(model.forward_intermediates(x, 2, intermediates_only=True) for model in pair))


def test_prefix_of_a_model_without_one_is_left_out(make_config, images):
    model = ViT(make_config(class_token=False, pooling="avg")).eval()
    outputs = model.forward_intermediates(
        images(model.config), return_prefix_tokens=True, intermediates_only=True
    )
    assert [output.shape for output in outputs] == [(2, 30, 4, 3)] * 3


@pytest.mark.parametrize(
    ("n", "reshape", "prefix", "norm"),
    sampled(itertools.product([1, 2, [0, 2]], *[[False, True]] * 3), 5, "slow"),
    ids=str,
)
def test_get_intermediate_layers(n, reshape, prefix, norm, pair, images):
    x = images(pair[0].config)
    arguments = {"reshape": reshape, "return_prefix_tokens": prefix, "norm": norm}
    _assert_equal(*(model.get_intermediate_layers(x, n, **arguments) for model in pair))


@pytest.mark.parametrize("num_classes", [4, 0])
@pytest.mark.parametrize("pooling", [None, "avg", "none"])
def test_reset_classifier(num_classes, pooling, pair, images):
    ours, theirs = pair
    ours.reset_classifier(num_classes, pooling)
    theirs.reset_classifier(num_classes, {"none": ""}.get(pooling, pooling))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    theirs.head.load_state_dict(ours.head.state_dict())
    x = images(ours.config)
    assert torch.equal(ours(x), theirs(x))
    assert (ours.config.num_classes, ours.config.pooling) == (num_classes, pooling or "token")
    assert not ours.head.training


def test_reset_classifier_takes_attention_pooling_away(make_config, images):
    model = ViT(make_config(pooling="map")).eval()
    model.reset_classifier(4, "avg")
    assert not [name for name in model.state_dict() if name.startswith("attn_pool")]
    assert model(images(model.config)).shape == (2, 4)
    with pytest.raises(ConflictingFact, match="no weights for attention pooling"):
        model.reset_classifier(4, "map")
    assert model.config.pooling == "avg"


def test_reset_classifier_refuses_a_token_that_is_not_there(make_config):
    model = ViT(make_config(class_token=False, pooling="avg"))
    with pytest.raises(ConflictingFact) as caught:
        model.reset_classifier(4, "token")
    assert caught.value.details == ("pooling = 'token' needs a class token",)
    assert model.head.out_features == 7


@pytest.mark.parametrize("num_classes", [4, 0])
def test_reset_classifier_of_a_distilled_model(num_classes, make_config, images):
    ours = ViT(make_config(dist_token=True, dist_head=True)).eval()
    theirs = small_timm("VisionTransformerDistilled").eval()
    ours.reset_classifier(num_classes)
    theirs.reset_classifier(num_classes)
    theirs.load_state_dict(ours.state_dict())
    x = images(ours.config)
    assert torch.equal(ours(x), theirs(x))


def test_reset_classifier_keeps_dtype(make_config):
    model = ViT(make_config(), dtype=torch.float64)
    model.reset_classifier(3)
    assert model.head.weight.dtype == torch.float64


def test_get_classifier(make_config):
    model = ViT(make_config(dist_token=True, dist_head=True))
    assert model.get_classifier() == (model.head, model.head_dist)
    model = ViT(make_config())
    assert model.get_classifier() is model.head


def test_no_weight_decay(pair):
    assert pair[0].no_weight_decay() == pair[1].no_weight_decay()


def test_grad_checkpointing_changes_memory_and_no_number(pair, images):
    model, x = pair[0].train(), images(pair[0].config)
    gradients = []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, saved=saved: saved.append(tensor) or tensor, lambda tensor: tensor
        ):
            logits = model(x)
        logits.sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        gradients[-1].append(torch.tensor(float(len(saved))))
    assert gradients[1].pop() < gradients[0].pop() / 3
    _assert_equal(*gradients)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"indices": [0, 3]}, "asked   [0, 3]\n  blocks  0 to 2"),
        ({"indices": [-4]}, "asked   [-4]\n  blocks  0 to 2"),
        ({"indices": []}, "asked   []\n  blocks  0 to 2"),
        ({"indices": 4}, "The last 4 blocks were asked for, but the model has 3."),
        ({"indices": 0}, "The last 0 blocks were asked for, but the model has 3."),
        ({"output_fmt": "NHWC"}, "output_fmt is 'NCHW' or 'NLC', not 'NHWC'."),
    ],
)
def test_what_is_not_there_is_told(arguments, message, pair, images):
    with pytest.raises(UsageError) as caught:
        pair[0].forward_intermediates(images(pair[0].config), **arguments)
    blocks = "The model does not have all of these blocks.\n  "
    assert str(caught.value) in (
        f"error: usage\n  {message}",
        f"error: usage\n  {blocks}{message}",
    )


@pytest.mark.slow
def test_exported_model_takes_any_batch(pair, images):
    model, x = pair[0], images(pair[0].config)
    batch = torch.export.Dim("batch", min=1, max=8)
    exported = torch.export.export(model, (x,), dynamic_shapes={"images": {0: batch}})
    five = torch.randn(5, *x.shape[1:])
    assert torch.equal(exported.module()(five), model(five))


def _assert_equal(found, wanted):
    """Lists of tensors, or of tuples of tensors."""
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        if isinstance(theirs, tuple):
            _assert_equal(ours, theirs)
        else:
            assert torch.equal(ours, theirs)
