"""torch.fx sees the parts of a model, and what it makes of them computes the same."""

import pytest
import torch
from torch import nn
from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

from tests.sampling import sampled
from vitconvert.errors import InputMismatch
from vitconvert.model import ViT

HYBRID = {"stem": True, "image_size": (64, 48), "patch_size": (1, 1), "stem_width": 32}
WINDOWS = {"class_token": False, "pooling": "avg", "window_size": 3}
GRID = {"position_grid": (5, 5), "no_embed_class": True}
KINDS = {
    "plain": {},
    "four channels": {"in_channels": 4, "depth": 11},
    "distilled": {"dist_token": True, "dist_head": True},
    "attention pooling": {"pooling": "map"},
    "pixels with a norm": {"patch_pre_norm": True},
    "hybrid": {**HYBRID, "stem_depths": (1, 1), "stem_style": "timm"},
    "hybrid of a ResNet-D": {**HYBRID, "stem_depths": (1, 1), "stem_style": "resnet_d"},
    "relative positions": {"relative_positions": "block"},
    "shared relative positions": {"relative_positions": "shared"},
    "relative positions of an MLP": {"relative_positions": "block_mlp", "relative_mlp_dim": 16},
    "rotation": {"rope": "axial", "head_dim": 12},
    "rotation of halves": {"rope": "dinov3", "head_dim": 12, "rope_half": True},
    "learned rotation": {"rope": "mixed", "head_dim": 12},
    "fewer heads of k and v": {"kv_heads": (1, 3, 1)},
    "one step": {"block_order": "parallel"},
    "differential": {"differential": True, "block_order": "parallel"},
    "branches": {"branches": 2},
    "windows": {**WINDOWS, "relative_positions": "decomposed", "global_blocks": (1,)},
    "windows without padding": {**WINDOWS, "window_padding": False},
    "a grid of positions": {**GRID, "position_embedding": "grid"},
    "positions of axes": {**GRID, "position_embedding": "axes"},
    "neck": {**WINDOWS, "final_norm": False, "neck_dim": 8},
}


@pytest.mark.parametrize("kind", sampled(KINDS, 9, "slow"))
def test_features_are_extracted(kind, make_config, randomise, images):
    model = randomise(ViT(make_config(**KINDS[kind])))
    x = images(model.config)
    _, names = get_graph_node_names(model)
    extractor = create_feature_extractor(model, {"blocks.1": "block", names[-1]: "logits"})
    x = torch.cat((x, x[:1]))  # no size of a batch is kept
    found = extractor(x)
    assert torch.equal(found["block"], model.hidden_states(x)[2])
    assert torch.equal(found["logits"], model(x))
    assert "head" in names
    mask = torch.rand(model.config.depth, model.config.num_heads * model.config.branches)
    assert torch.equal(extractor(x, mask)["logits"], model(x, mask))
    assert extractor.double()(x.double())["logits"].dtype == torch.float64


def test_traced_model_checks_its_images(make_config):
    extractor = create_feature_extractor(ViT(make_config()), ["blocks.0"])
    for images, message in (
        (torch.zeros(3, 32, 24), "Images have 3 dimensions, not 4."),
        (torch.zeros(1, 3, 24, 32), "Images are 24x32 pixels, but the model expects 32x24."),
        (torch.zeros(1, 3, 32, 24).half(), "Images are float16, but the model's weights are"),
    ):
        with pytest.raises(InputMismatch, match=message):
            extractor(images)


class Around(nn.Module):
    """A layer of an adapter as small as can be: it has no weight, stride or kernel."""

    def __init__(self, layer):
        super().__init__()
        self.base = layer
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.base(x) * self.factor


@pytest.mark.parametrize("kind", ["plain", "pixels with a norm", "rotation", "hybrid"])
def test_every_layer_can_be_wrapped(kind, make_config, randomise, images):
    model = randomise(ViT(make_config(**KINDS[kind])))
    twice = randomise(ViT(model.config))
    twice.load_state_dict(model.state_dict())
    linears = (nn.Linear, nn.Conv2d)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, linears) and "backbone" not in name:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, Around(layer))
            for parameter in twice.get_submodule(name).parameters():
                parameter.data.mul_(2)
    x = images(model.config)
    torch.testing.assert_close(model(x), twice(x), rtol=1e-4, atol=1e-4)
    assert model.forward_features(x).shape == twice.forward_features(x).shape
