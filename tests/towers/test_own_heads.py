"""Heads that users put in place of a model's own, on modules of timm, torchvision, transformers."""

import pytest
import torch
from torch import nn

import vitconvert
from tests.packages import timm, torchvision
from tests.packages import transformers as t
from tests.sampling import sampled
from tests.small_models import randomise
from tests.towers.families import DINOV2, VISION
from vitconvert.errors import MissingFact, TensorMismatch, UsageError

IMAGES = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))
HEADS = {"num_heads": 3}


def of_timm():
    sizes = {"img_size": 24, "patch_size": 8, "embed_dim": 36, "depth": 11, "num_heads": 3}
    return timm.models.VisionTransformer(**sizes, num_classes=4)


def of_torchvision():
    sizes = {"image_size": 24, "patch_size": 8, "num_layers": 2, "num_heads": 3}
    return torchvision.models.VisionTransformer(**sizes, hidden_dim=36, mlp_dim=50, num_classes=4)


def in_sequence(*layers):
    return nn.Sequential(*layers)


def linear():
    return nn.Linear(36, 7)


class Own(nn.Module):
    """Somebody's own classifier: a ViT without a head, and layers of any names."""

    def __init__(self, prefix, body, **layers):
        super().__init__()
        setattr(self, prefix, body)
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.parts = prefix, next(iter(layers))

    def forward(self, images):
        body, head = self.parts
        features = getattr(self, body)(images)
        if hasattr(features, "last_hidden_state"):
            features = features.last_hidden_state[:, 0]
        return getattr(self, head)(features)


def of_torchvision_with(head):
    """The place that torchvision's own recipes name: `model.heads.head = ...`."""
    model = of_torchvision()
    model.heads.head = head
    return model


def headless_timm():
    return replaced(of_timm(), "head", nn.Identity())


def headless_torchvision():
    return replaced(of_torchvision(), "heads", nn.Identity())


def hf_vit():
    return t.ViTModel(t.ViTConfig(**VISION, layer_norm_eps=1e-6), add_pooling_layer=False)


def hf_dinov2():
    return t.Dinov2Model(t.Dinov2Config(**DINOV2))


def replaced(model, name, layer):
    setattr(model, name, layer)
    return model


ONE_HEAD = {
    "torchvision, heads": lambda: replaced(of_torchvision(), "heads", linear()),
    "torchvision, heads.0": lambda: replaced(of_torchvision(), "heads", in_sequence(linear())),
    "torchvision, heads.1": lambda: replaced(
        of_torchvision(), "heads", in_sequence(nn.Dropout(), linear())
    ),
    "timm, head.1": lambda: replaced(of_timm(), "head", in_sequence(nn.Dropout(), linear())),
    "timm, head.0": lambda: replaced(of_timm(), "head", in_sequence(linear())),
    "timm, fc": lambda: replaced(headless_timm(), "fc", linear()),
    "timm in backbone": lambda: Own("backbone", headless_timm(), classifier=linear()),
    "timm in model": lambda: Own("model", headless_timm(), fc=linear()),
    "timm in encoder": lambda: Own("encoder", headless_timm(), head=linear()),
    "timm in vit": lambda: Own("vit", headless_timm(), classifier=linear()),
    "torchvision in backbone": lambda: Own("backbone", headless_torchvision(), fc=linear()),
    "timm in feature_extractor": lambda: Own("feature_extractor", headless_timm(), fc=linear()),
    "timm, wrapped": lambda: nn.DataParallel(
        replaced(of_timm(), "head", in_sequence(nn.Dropout(), linear()))
    ),
    "timm in backbone, wrapped": lambda: nn.DataParallel(
        Own("backbone", headless_timm(), fc=linear())
    ),
    "torchvision, heads.head.1": lambda: of_torchvision_with(in_sequence(nn.Dropout(), linear())),
    "hf vit in backbone": lambda: Own("backbone", hf_vit(), classifier=linear()),
    "hf vit in encoder": lambda: Own("encoder", hf_vit(), fc=in_sequence(nn.Dropout(), linear())),
    "hf dinov2 in model": lambda: Own("model", hf_dinov2(), classifier=linear()),
}


def saved(model, folder):
    torch.save(model.state_dict(), folder / "best.pt")
    return folder / "best.pt"


@pytest.mark.parametrize("name", sampled(ONE_HEAD, 3, "slow"))
@torch.no_grad()
def test_one_linear_layer_is_the_head(name, tmp_path):
    torch.manual_seed(5)
    model = randomise(ONE_HEAD[name]())
    if name == "timm, fc":
        wanted = model.fc(model.forward_head(model.forward_features(IMAGES)))
    else:
        wanted = model(IMAGES)
    stated = dict(HEADS, pooling="token") if "dinov2" in name else dict(HEADS)
    if "hf vit" in name:
        stated["norm_eps"] = 1e-6
    checkpoint = vitconvert.load_checkpoint(saved(model, tmp_path), overrides=stated)
    assert checkpoint.config.num_classes == 7
    assert any("is taken for the head" in note for note in checkpoint.ledger.notes)
    torch.testing.assert_close(
        vitconvert.load_model(checkpoint)(IMAGES), wanted, rtol=2e-5, atol=2e-5
    )


SEVERAL = {
    "timm, an MLP": (
        lambda: replaced(of_timm(), "head", in_sequence(linear(), nn.ReLU(), nn.Linear(7, 5))),
        "The head is not a linear layer.",
        ["head.*"],
    ),
    "torchvision, an MLP": (
        lambda: replaced(of_torchvision(), "heads", in_sequence(linear(), nn.Linear(7, 5))),
        "The head is not a linear layer.",
        ["heads.*"],
    ),
    "timm, two": (
        lambda: replaced(of_timm(), "aux_head", linear()),
        "This ViT has 2 heads.",
        ["aux_head.*"],
    ),
}


@pytest.mark.parametrize("name", list(SEVERAL))
def test_other_heads_are_refused_with_the_step_that_works(name, tmp_path):
    make, fact, ignore = SEVERAL[name]
    file = saved(randomise(make()), tmp_path)
    with pytest.raises(TensorMismatch) as error:
        vitconvert.load_checkpoint(file, overrides=HEADS)
    assert error.value.fact == fact and f"--ignore '{ignore[0]}'" in str(error.value)
    read = vitconvert.load_checkpoint(file, overrides=HEADS, ignore=ignore)
    reasons = {reason for reason in read.ledger.ignored.values() if "you ignored it" in reason}
    assert reasons == {f"you ignored it ({ignore[0]})"}
    assert read.config.num_classes == (4 if "two" in name else 0)
    assert any("parity was not tested for them" in note for note in read.ledger.notes)


def test_of_several_heads_one_is_left_only_if_it_is_known_by_its_name(tmp_path):
    known = Own("backbone", headless_timm(), head=linear(), aux=linear(), head_aux=linear())
    file = saved(randomise(nn.DataParallel(known)), tmp_path)
    read = {"overrides": HEADS, "ignore": ["module.aux.*"]}
    with pytest.raises(TensorMismatch) as error:
        vitconvert.load_checkpoint(file, **read)
    assert "; --ignore 'module.head_aux.*' leaves module.head alone." in error.value.hint
    read["ignore"] += ["module.head_aux.*"]
    assert vitconvert.load_checkpoint(file, **read).config.num_classes == 7
    unknown = Own("backbone", headless_timm(), head_a=linear(), head_b=linear())
    with pytest.raises(TensorMismatch) as error:
        vitconvert.load_checkpoint(saved(unknown, tmp_path), overrides=HEADS)
    assert error.value.hint == "--tower backbone takes the ViT without them."


def test_a_linear_layer_of_which_nothing_tells_what_it_reads(tmp_path):
    clip = t.CLIPVisionModel(t.CLIPVisionConfig(**VISION))
    file = saved(randomise(Own("backbone", clip, fc=linear())), tmp_path)
    with pytest.raises(TensorMismatch, match="It is unknown what the head of this ViT reads"):
        vitconvert.load_checkpoint(file, overrides=HEADS)
    stated = {**HEADS, "norm_eps": 1e-5, "activation": "quick_gelu"}
    read = vitconvert.load_checkpoint(file, overrides=stated, tower="backbone")
    assert read.config.num_classes == 0


@torch.no_grad()
def test_a_pooler_between_the_vit_and_the_head_is_asked_about(tmp_path):
    torch.manual_seed(5)
    model = randomise(Own("backbone", t.ViTModel(t.ViTConfig(**VISION)), fc=linear())).eval()
    file = saved(model, tmp_path)
    stated = {"overrides": {**HEADS, "norm_eps": 1e-12}}
    with pytest.raises(MissingFact) as error:
        vitconvert.load_checkpoint(file, **stated)
    assert error.value.fact == ("It is unknown whether the head fc reads backbone.pooler.")
    assert isinstance(vitconvert.inspect(file).problem, MissingFact)
    read = vitconvert.load_model(file, ignore=["backbone.pooler.*"], **stated)
    torch.testing.assert_close(read(IMAGES), model(IMAGES), rtol=2e-5, atol=2e-5)
    bare = vitconvert.load_model(file, ignore=["fc.*"], **stated)
    pooled = model.backbone(IMAGES).pooler_output
    torch.testing.assert_close(bare(IMAGES), pooled, rtol=2e-5, atol=2e-5)


def test_heads_beside_a_tower_are_refused_until_it_is_named(tmp_path):
    layers = {"classifier": in_sequence(linear(), nn.ReLU(), nn.Linear(7, 5))}
    file = saved(randomise(Own("backbone", headless_timm(), **layers)), tmp_path)
    with pytest.raises(TensorMismatch) as error:
        vitconvert.load_checkpoint(file, overrides=HEADS)
    assert str(error.value) == (
        "error: tensor-mismatch\n"
        "  The head is not a linear layer.\n"
        "  head  classifier.0.weight, classifier.0.bias, classifier.2.weight, classifier.2.bias\n"
        "  A ViT has one linear layer for its classes; no dialect has a place for more.\n"
        "  hint: --tower backbone takes the ViT without it."
    )
    assert vitconvert.load_checkpoint(file, overrides=HEADS, tower="backbone").dialect == "timm"


def test_a_body_that_is_incomplete_is_not_taken_with_any_head(tmp_path):
    model = randomise(replaced(of_torchvision(), "heads", linear()))
    tensors = model.state_dict()
    del tensors["encoder.layers.encoder_layer_1.ln_1.weight"]
    torch.save(tensors, tmp_path / "m.pt")
    with pytest.raises(TensorMismatch, match="1 tensor of the file does not fit"):
        vitconvert.load_checkpoint(tmp_path / "m.pt", overrides=HEADS)


def test_a_pattern_that_names_nothing_is_told(tmp_path):
    file = saved(randomise(of_timm()), tmp_path)
    with pytest.raises(UsageError) as error:
        vitconvert.load_checkpoint(file, ignore=["haed.*"])
    assert str(error.value) == (
        "error: usage\n"
        "  --ignore 'haed.*' matches no tensor.\n"
        f"  file       {file}\n"
        "  there are  head.*\n"
        "  hint: a pattern matches a whole name, such as 'aux_head.*'."
    )
