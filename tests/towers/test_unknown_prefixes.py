"""ViTs below prefixes that nobody knows: taken where one fits, named where several or none do."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import vitconvert
from tests.packages import timm
from tests.packages import transformers as t
from tests.small_models import randomise
from tests.towers.families import DINOV2, VISION
from vitconvert.errors import (
    AmbiguousDialect,
    NotRepresentable,
    ShapeMismatch,
    TensorMismatch,
    UnknownDialect,
)

STATED = {"num_heads": 3, "norm_eps": 1e-6}


def body(**changes):
    sizes = {"img_size": 24, "patch_size": 8, "embed_dim": 30, "depth": 2, "num_heads": 3}
    return timm.models.VisionTransformer(**sizes | {"num_classes": 0} | changes)


def under(words, module):
    """A module below the names of `words`, as attributes of attributes, or steps of a sequence."""
    for word in reversed(words.split(".")):
        outer = nn.Sequential() if word.isdigit() else nn.Module()
        outer.add_module(word, module)
        module = outer
    return module


def beside(model, **modules):
    for name, module in modules.items():
        model.add_module(name, module)
    return model


def midas():
    """MiDaS: timm's ViT with its head, and convolutions that read its blocks."""
    model = under("pretrained.model", body(num_classes=7, depth=11))
    model.pretrained.add_module("act_postprocess1", nn.Conv2d(30, 4, 1))
    return beside(model, scratch=nn.Conv2d(4, 4, 3)), "pretrained.model"


def depth():
    kind = t.Dinov2Model(t.Dinov2Config(**DINOV2))
    model = under("model.depth.pretrained", kind)
    model.model.add_module("head", nn.Sequential(nn.LayerNorm(36), nn.Conv2d(36, 5, 1)))
    return model, "model.depth.pretrained"


def vggt():
    """As older code of VGGT: the ViT that patches go through, then other blocks beside it."""
    model = under("aggregator.image_backbone", body(img_size=(32, 24)))
    model.aggregator.add_module("frame_blocks", nn.ModuleList(body().blocks))
    return beside(model, camera_head=nn.LayerNorm(30)), "aggregator.image_backbone"


def fastai():
    """fastai's vision_learner: the body, then a head of several layers."""
    head = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(30), nn.Linear(30, 9), nn.Linear(9, 4))
    return beside(under("0.model", body()), **{"1": head}), "0.model"


def wrapped():
    return under("my_net", t.ViTForImageClassification(t.ViTConfig(**VISION))), "my_net"


MODELS = [midas, depth, vggt, fastai, wrapped]


def saved(model, folder):
    torch.save(model.state_dict(), folder / "model.pt")
    return folder / "model.pt"


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
@torch.no_grad()
def test_the_one_vit_below_an_unknown_prefix_is_read(make, tmp_path):
    torch.manual_seed(7)
    model, prefix = make()
    vit = randomise(model).get_submodule(prefix)
    stated = STATED | ({"image_size": "32x24"} if make is vggt else {})
    checkpoint = vitconvert.load_checkpoint(saved(model, tmp_path), overrides=stated)
    images = torch.randn(2, 3, *checkpoint.config.image_size)
    theirs = vit(images)
    if hasattr(theirs, "last_hidden_state"):
        theirs = theirs.last_hidden_state[:, 0]
    theirs = getattr(theirs, "logits", theirs)
    ours = vitconvert.load_model(checkpoint)(images)
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)
    (note,) = [note for note in checkpoint.ledger.notes if note.startswith("read below")]
    assert note.startswith(f"read below the prefix '{prefix}.'; --tower names another")
    outside = [name for name in model.state_dict() if not name.startswith(f"{prefix}.")]
    assert {*outside} == {n for n, why in checkpoint.ledger.ignored.items() if "outside" in why}
    assert ("; not read: " in note) == bool(outside)


def test_what_is_left_behind_is_named(tmp_path):
    told = vitconvert.inspect(saved(vggt()[0], tmp_path)).notes
    blocks = "aggregator.frame_blocks (24 tensors), camera_head (2 tensors)"
    assert any(note.endswith(f"; not read: {blocks}") for note in told)


@torch.no_grad()
def test_one_linear_layer_beside_it_is_its_head(tmp_path):
    model = randomise(beside(under("my_net", body()), classifier=nn.Linear(30, 5)))
    checkpoint = vitconvert.load_checkpoint(saved(model, tmp_path), overrides=STATED)
    assert any("classifier is taken for the head" in note for note in checkpoint.ledger.notes)
    images = torch.randn(2, 3, 24, 24)
    wanted = model.classifier(model.my_net(images))
    torch.testing.assert_close(
        vitconvert.load_model(checkpoint)(images), wanted, rtol=2e-5, atol=2e-5
    )


def test_a_head_that_reads_another_pooling_is_told_so(tmp_path):
    """transformers' DINOv2 classifies by two vectors; this head reads one."""
    kind = t.Dinov2Model(t.Dinov2Config(**DINOV2))
    file = saved(beside(under("my_net", kind), classifier=nn.Linear(36, 5)), tmp_path)
    with pytest.raises(ShapeMismatch) as error:
        vitconvert.load_checkpoint(file, overrides=STATED)
    assert "--set pooling=token, or avg, says what the head reads" in error.value.hint
    read = vitconvert.load_checkpoint(file, overrides=STATED | {"pooling": "token"})
    assert read.config.num_classes == 5


def test_a_head_of_several_layers_is_not_left_behind_in_silence(tmp_path):
    head = nn.Sequential(nn.Linear(30, 9), nn.GELU(), nn.Linear(9, 5))
    file = saved(beside(under("my_net", body()), classifier=head), tmp_path)
    with pytest.raises(TensorMismatch, match="head is not a linear layer") as error:
        vitconvert.load_checkpoint(file, overrides=STATED)
    assert "--tower my_net" in error.value.hint
    vitconvert.load_checkpoint(file, tower="my_net", overrides=STATED)


@pytest.mark.parametrize("first", ["student", "rgb.net"])
def test_several_are_all_named(first, tmp_path):
    """A teacher and its student, two streams."""
    second = {"student": "teacher", "rgb.net": "depth.net"}[first]
    tensors = {
        f"{name}.{key}": x for name in (first, second) for key, x in body().state_dict().items()
    }
    torch.save(tensors, tmp_path / "two.pt")
    with pytest.raises(AmbiguousDialect, match="several ViTs") as error:
        vitconvert.load_checkpoint(tmp_path / "two.pt", overrides=STATED)
    for name in (first, second):
        word = name.split(".")[0]
        assert f"--tower {word}" in error.value.hint
        vitconvert.load_checkpoint(tmp_path / "two.pt", tower=word, overrides=STATED)


def test_a_prefix_below_which_most_fits_is_named(tmp_path):
    tensors = under("my_net", body()).state_dict() | {"my_net.gate": torch.ones(3)}
    torch.save(tensors | {"other.weight": torch.ones(3, 3)}, tmp_path / "part.pt")
    with pytest.raises(UnknownDialect) as error:
        vitconvert.load_checkpoint(tmp_path / "part.pt", overrides=STATED)
    assert error.value.evidence["my_net."] == "timm explains 30 of 31 tensors"
    assert error.value.hint.startswith("--tower my_net says what is missing there.")
    with pytest.raises(TensorMismatch) as error:
        vitconvert.load_checkpoint(tmp_path / "part.pt", tower="my_net", overrides=STATED)
    assert error.value.details == (
        "left over  my_net.gate  [3], which no row of the table explains",
    )


def test_a_model_that_config_json_names_and_no_table_knows_is_left_to_the_user(tmp_path):
    """MiniCPM-V keeps a SigLIP below `vpm.`, and changes how it places positions."""
    save_file(under("vpm", body()).state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "minicpmv"}))
    with pytest.raises(UnknownDialect, match=r"The model that config\.json names") as error:
        vitconvert.load_checkpoint(tmp_path, overrides=STATED)
    assert "--tower vpm" in error.value.hint
    assert vitconvert.load_checkpoint(tmp_path, tower="vpm", overrides=STATED).dialect == "timm"


def test_a_model_that_is_known_to_differ_is_refused_by_its_name(tmp_path):
    """CONCH pools by attention of its own what its ViT gives."""
    model = beside(under("trunk", body()), attn_pool_contrast=nn.Module())
    model.attn_pool_contrast.query = nn.Parameter(torch.ones(1, 30))
    with pytest.raises(UnknownDialect, match="CONCH"):
        vitconvert.load_checkpoint(saved(under("visual", model), tmp_path), overrides=STATED)
    folder = tmp_path / "folder"
    folder.mkdir()
    save_file(under("net1", body()).state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "yolos"}))
    with pytest.raises(NotRepresentable, match="YOLOS"):
        vitconvert.load_checkpoint(folder, overrides=STATED)
