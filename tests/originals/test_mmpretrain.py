"""MMPretrain's files, as its training saves them: the same numbers as its own classes."""

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import pytest
import torch

import vitconvert
from tests.originals.make_mmpretrain_files import FOLDER, HEADS, SIZES
from tests.originals.rows import MMPRETRAIN, mmpretrain_file
from tests.originals.spelling import HEADS as SPELLED_HEADS
from tests.originals.spelling_of_others import mmseg
from tests.packages import mmpretrain_alone
from tests.small_models import assert_same_tensors, randomise, relative
from vitconvert.errors import MissingFact, NotRepresentable, UnknownDialect, UnsafeFile

ROUNDING = 2e-5
every_file = pytest.mark.parametrize("name", MMPRETRAIN)


def stated(name: str) -> Mapping[str, Any]:
    """What no tensor shows: the heads, that an image is not square, the activation of CLIP."""
    return MMPRETRAIN[name].stated


def test_an_activation_that_differs_between_clips_is_asked_for():
    with pytest.raises(MissingFact, match="QuickGELU"):
        vitconvert.load_checkpoint(FOLDER / "clip.pth", overrides={"num_heads": HEADS})


def test_deit3_computes_with_the_wrong_norm(tmp_path):
    tensors = dict(mmpretrain_file("plain")["state_dict"])
    tensors["backbone.pos_embed"] = tensors["backbone.pos_embed"][:, 1:]
    torch.save({"state_dict": tensors}, tmp_path / "deit3.pth")
    with pytest.raises(NotRepresentable, match="DeiT3 uses the norm before the attention a second"):
        vitconvert.load_checkpoint(tmp_path / "deit3.pth", overrides={"num_heads": HEADS})


def test_a_segmenter_has_torchs_attention_and_a_head_of_its_own(tmp_path):
    """mmseg's backbone: read as a tower, without what segments."""
    file = mmpretrain_file("pre_logits")
    tensors = {
        re.sub(
            r"attn\.proj", "attn.attn.out_proj", re.sub(r"attn\.qkv\.", "attn.attn.in_proj_", k)
        ): t
        for k, t in file["state_dict"].items()
        if k.startswith("backbone.")
    }
    tensors["decode_head.conv_seg.weight"] = torch.randn(5, 8, 1, 1)
    torch.save({"state_dict": tensors}, tmp_path / "mmseg.pth")
    checkpoint = vitconvert.load_checkpoint(tmp_path / "mmseg.pth", overrides=stated("pre_logits"))
    assert checkpoint.dialect == "mmseg"
    assert list(checkpoint.ledger.ignored) == ["decode_head.conv_seg.weight"]
    plain = vitconvert.load_model(FOLDER / "pre_logits.pth", overrides=stated("pre_logits"))
    ours = vitconvert.load_model(tmp_path / "mmseg.pth", overrides=stated("pre_logits"))
    tokens = plain.forward_features(file["images"])
    assert torch.equal(ours.forward_features(file["images"]), tokens)
    del tensors["backbone.ln1.weight"], tensors["backbone.ln1.bias"]  # as most of its models
    torch.save({"state_dict": tensors}, tmp_path / "mmseg.pth")
    with pytest.raises(MissingFact, match="final_norm"):
        vitconvert.load_checkpoint(tmp_path / "mmseg.pth", overrides=stated("pre_logits"))


@pytest.mark.slow
@torch.no_grad()
def test_the_image_encoder_of_segment_anything(tmp_path):
    mmpretrain_alone()
    from mmpretrain.registry import MODELS

    arch = SIZES | {"num_layers": 11, "global_attn_indexes": [1, 7]}
    backbone = {"type": "ViTSAM", "arch": arch, "img_size": 40, "patch_size": 8, "window_size": 3}
    model = MODELS.build({"type": "ImageClassifier", "backbone": backbone | {"out_channels": 5}})
    torch.manual_seed(1)
    randomise(model)
    torch.save({"meta": {"epoch": 3}, "state_dict": model.state_dict()}, tmp_path / "sam.pth")
    done = vitconvert.convert(tmp_path / "sam.pth", to="mmpretrain", output=tmp_path / "back")
    assert vitconvert.load_checkpoint(tmp_path / "back").dialect == "mmpretrain_sam"
    assert done.opened[1].relative <= ROUNDING and "ViTSAM" in done.opened[1].consumer
    written = torch.load(tmp_path / "back" / "model.pt", weights_only=True)["state_dict"]
    assert_same_tensors(written, model.state_dict())
    images = torch.randn(2, 3, 40, 40)
    ours = vitconvert.load_model(tmp_path / "sam.pth")(images)
    (theirs,) = model.backbone(images)
    assert relative(ours, theirs.flatten(2).transpose(1, 2)) <= ROUNDING


@torch.no_grad()
def test_error_eva02_of_mmpretrain_turns_q_and_k_otherwise(tmp_path):
    """The cosines of a pair differ: `repeat` in position_encoding.py, where EVA-02 interleaves."""
    layer = "backbone.layers.0"
    names = ("attn.rope.freqs_cos", "attn.qkv.weight", "mlp.w12.weight")
    torch.save(
        {"state_dict": {f"{layer}.{n}": torch.ones(6, 2) for n in names}}, tmp_path / "eva.pth"
    )
    with pytest.raises(UnknownDialect, match="MMPretrain's ViTEVA02, whose q and k are rotated"):
        vitconvert.load_checkpoint(tmp_path / "eva.pth")


def test_what_pre_training_has_beside_the_encoder_is_ignored(tmp_path):
    tensors = dict(mmpretrain_file("plain")["state_dict"])
    extra = {"backbone.proj_weights": torch.ones(2), "backbone.proj_layers.0.bias": torch.ones(8)}
    torch.save({"state_dict": tensors | extra}, tmp_path / "mff.pth")
    checkpoint = vitconvert.load_checkpoint(tmp_path / "mff.pth", overrides=stated("plain"))
    assert checkpoint.ledger.ignored.keys() == extra.keys()


HEADS_OF = {
    "mmseg": ("decode_head.conv_seg.weight", "auxiliary_head.convs.0.conv.weight"),
    "mmdet": ("neck.convs.0.weight", "rpn_head.rpn_conv.weight", "roi_head.bbox_head.fc_cls.bias"),
}


@pytest.mark.parametrize("program", HEADS_OF)
def test_what_mmengine_saves_of_a_larger_model(program, tmp_path):
    """Its averaged weights lie beside those that it evaluates (EMAHook swaps them)."""
    tensors, heads = mmseg(), dict.fromkeys(HEADS_OF[program], torch.ones(3))
    data = {"cfg": "model = dict()", "dataset_meta": {"palette": [[1, 2, 3]]}, "seed": 1}
    state = OrderedDict(tensors | heads | {"data_preprocessor.mean": torch.ones(3, 1, 1)})
    state._metadata = OrderedDict({"": {"version": 1}})
    file = {"meta": data, "state_dict": state, "param_schedulers": [{"last_step": 1}]}
    averaged = {f"module.{name}": tensor + 1 for name, tensor in tensors.items()}
    file["ema_state_dict"] = averaged | {"steps": torch.tensor(7)}
    torch.save(file, tmp_path / "iter_80000.pth")
    overrides = {"num_heads": SPELLED_HEADS}
    checkpoint = vitconvert.load_checkpoint(tmp_path / "iter_80000.pth", overrides=overrides)
    assert checkpoint.dialect == "mmseg"
    assert checkpoint.ledger.ignored.keys() == {*heads, "data_preprocessor.mean"}
    assert any("the file also has ema_state_dict" in note for note in checkpoint.ledger.notes)
    done = vitconvert.convert(
        tmp_path / "iter_80000.pth", to="mmseg", output=tmp_path / "out", overrides=overrides
    )
    written = torch.load(done.output / "model.pt", weights_only=True)["state_dict"]
    assert_same_tensors(written, tensors)


class _Attribute:
    """A pickle that asks for an attribute of something else than MMEngine's histories."""

    def __reduce__(self) -> Any:
        return getattr, (str, "join")


def test_attributes_are_those_of_histories_alone(tmp_path):
    torch.save({"weight": torch.ones(2), "beside": _Attribute()}, tmp_path / "file.pth")
    with pytest.raises(UnsafeFile, match=r"builtins\.getattr"):
        vitconvert.load_checkpoint(tmp_path / "file.pth")


@pytest.mark.slow
@every_file
def test_mmpretrain_itself_computes_the_same(name, tmp_path, monkeypatch):
    """And the code of the card opens the output."""
    mmpretrain_alone()
    report = vitconvert.verify(FOLDER / f"{name}.pth", overrides=stated(name))
    assert report.reference.startswith("mmpretrain") and not report.skipped
    output = tmp_path / "out"
    options = {"overrides": stated(name), "output": output}
    done = vitconvert.convert(FOLDER / f"{name}.pth", to="mmpretrain", **options)
    assert [o.why_not for o in done.opened] == [None, None] and done.opened[1].relative is not None
    card = (output / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n([^`]*MODELS[^`]*)```", card, re.DOTALL)
    monkeypatch.chdir(output)
    exec(code, {})
