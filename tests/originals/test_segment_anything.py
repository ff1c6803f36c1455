"""SAM's image encoder and ViTDet, as Meta, transformers and timm have them."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import vitconvert
from tests.coverage.families import random_model
from tests.packages import timm, transformers
from tests.small_models import assert_same_tensors, randomise_calmly, relative
from tests.tables.specimens.windows import (
    GLOBAL,
    HF,
    OF_WINDOWS,
    WINDOWS,
    detectron2,
    hf_vitdet,
    tokens,
)
from vitconvert.errors import (
    ConflictingFact,
    MissingFact,
    NotRepresentable,
    TensorMismatch,
    VitConvertError,
)

ROUNDING = 2e-5


def images(*sides: int) -> Tensor:
    torch.manual_seed(6)
    return torch.randn(2, 3, *sides)


@pytest.fixture(scope="module")
def encoder():
    return OF_WINDOWS["Meta SAM"].model()


@pytest.fixture(scope="module")
def whole_file(encoder, tmp_path_factory):
    """What Meta published: the image encoder beside the prompt's and the decoder."""
    tensors = {f"image_encoder.{name}": t for name, t in encoder.state_dict().items()}
    tensors |= {"prompt_encoder.no_mask_embed.weight": torch.ones(1, 8)}
    tensors |= {"mask_decoder.iou_token.weight": torch.ones(1, 8)}
    path = tmp_path_factory.mktemp("sam") / "sam_vit_b_01ec64.pth"
    torch.save(tensors, path)
    return path


@torch.no_grad()
def test_metas_file_and_transformers_directory_hold_the_same_bytes(encoder, whole_file, tmp_path):
    checkpoint = vitconvert.load_checkpoint(whole_file)
    assert checkpoint.dialect == "sam"
    config = checkpoint.config
    assert (config.window_size, config.global_blocks, config.image_size) == (3, GLOBAL, (40, 40))
    assert config.origins["window_size"] == config.origins["image_size"] == "tensors"
    x = images(40, 40)
    ours = vitconvert.load_model(whole_file)
    assert relative(ours(x), tokens(encoder(x))) <= ROUNDING
    there = vitconvert.convert(whole_file, to="hf", output=tmp_path / "hf")
    assert there.parity.ok and there.opened[0].relative <= ROUNDING
    assert "mask_decoder.iou_token.weight" in there.ledger.ignored
    back = vitconvert.convert(tmp_path / "hf", to="sam", output=tmp_path / "sam")
    assert [o.relative is None or o.relative <= ROUNDING for o in back.opened] == [True, True]
    written = torch.load(tmp_path / "sam" / "model.pt", weights_only=True)
    assert_same_tensors(written, encoder.state_dict())


def test_timm_norms_with_another_eps_than_sam(whole_file, tmp_path):
    with pytest.raises(NotRepresentable, match="norm_eps 1e-05 and not 1e-06") as error:
        vitconvert.convert(whole_file, to="timm", output=tmp_path / "no")
    assert "--allow norm-eps" in error.value.hint
    found = vitconvert.convert(whole_file, to="timm", output=tmp_path / "out", allow=["norm-eps"])
    assert [(o.consumer, o.relative <= ROUNDING) for o in found.opened] == [
        ("timm", True),
        ("transformers", True),
    ]
    theirs = vitconvert.load_checkpoint(tmp_path / "out").their_config
    assert theirs["architecture"] == "samvit_base_patch16"
    wanted = {"window_size": 3, "global_attn_indexes": list(GLOBAL), "neck_chans": 8}
    assert theirs["model_args"].items() >= wanted.items()


@pytest.mark.slow
@torch.no_grad()
def test_the_image_encoder_of_transformers_larger_model(tmp_path):
    small = {"hidden_size": 8, "image_size": 40, "patch_size": 8, "mask_input_channels": 4}
    decoder = {"hidden_size": 8, "mlp_dim": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = OF_WINDOWS["transformers SAM"].model()
    config = transformers.SamConfig(
        vision_config=vision.config.to_dict(),
        prompt_encoder_config=small,
        mask_decoder_config=decoder | {"iou_head_hidden_dim": 8},
    )
    whole = transformers.SamModel(config).eval()
    whole.vision_encoder.load_state_dict(vision.vision_encoder.state_dict())
    whole.save_pretrained(tmp_path / "whole")
    x = images(40, 40)
    checkpoint = vitconvert.load_checkpoint(tmp_path / "whole")
    assert (checkpoint.dialect, checkpoint.config.norm_eps) == ("hf_sam", 1e-6)
    assert checkpoint.config.origins["norm_eps"] == "config.json"
    found = vitconvert.load_model(tmp_path / "whole")(x)
    assert relative(found, tokens(vision(x).last_hidden_state)) <= ROUNDING
    assert vitconvert.verify(tmp_path / "whole").ok


@pytest.fixture(scope="module")
def vitdet():
    torch.manual_seed(3)
    return OF_WINDOWS["transformers VitDet"].model()


@torch.no_grad()
def test_detectron2s_detector_and_transformers_port(vitdet, tmp_path):
    own = {f"backbone.net.{detectron2(name)}": t for name, t in vitdet.state_dict().items()}
    others = {"backbone.simfp_2.0.weight": torch.ones(3), "roi_heads.box_head.fc1": torch.ones(3)}
    others["pixel_mean"] = torch.ones(3, 1, 1)
    trained = {"optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}, "iteration": 9999}
    named = {"scheduler": {"base_lrs": [0.1]}, "__author__": "Detectron2 Model Zoo"}
    torch.save({"model": own | others, **trained, **named}, tmp_path / "model_final.pth")
    checkpoint = vitconvert.load_checkpoint(tmp_path / "model_final.pth")
    assert checkpoint.dialect == "vitdet"
    assert checkpoint.ledger.ignored.keys() == others.keys()
    x = images(40, 32)
    wanted = tokens(vitdet(x).last_hidden_state)
    assert relative(vitconvert.load_model(tmp_path / "model_final.pth")(x), wanted) <= ROUNDING
    there = vitconvert.convert(tmp_path / "model_final.pth", to="hf", output=tmp_path / "hf")
    assert there.opened[0].relative <= ROUNDING
    written = load_file(tmp_path / "hf" / "model.safetensors")
    assert all(torch.equal(written[name], t) for name, t in vitdet.state_dict().items())


@torch.no_grad()
def test_the_pickle_of_a_model_zoo(vitdet, tmp_path):
    own = {f"backbone.net.{detectron2(n)}": t.numpy() for n, t in vitdet.state_dict().items()}
    others = {"backbone.simfp_2.0.weight": np.ones(3, "f4"), "pixel_mean": np.ones((3, 1, 1))}
    zoo = {"model": own | others, "__author__": "Detectron2", "matching_heuristics": True}
    (tmp_path / "model_final_61ccd1.pkl").write_bytes(pickle.dumps(zoo))
    checkpoint = vitconvert.load_checkpoint(tmp_path / "model_final_61ccd1.pkl")
    assert (checkpoint.dialect, checkpoint.ledger.ignored.keys()) == ("vitdet", others.keys())
    vitconvert.convert(tmp_path / "model_final_61ccd1.pkl", to="hf", output=tmp_path / "hf")
    written = load_file(tmp_path / "hf" / "model.safetensors")
    assert all(torch.equal(written[name], t) for name, t in vitdet.state_dict().items())


@torch.no_grad()
def test_vitdet_of_larger_images_as_transformers_makes_one(vitdet, tmp_path):
    vitdet.save_pretrained(tmp_path)
    ours = vitconvert.load_model(tmp_path, image_size=(48, 56))
    x = images(48, 56)
    # Its code resamples on the fly, and so needs no other weights.
    assert relative(ours(x), tokens(vitdet(x).last_hidden_state)) <= ROUNDING
    assert ours.config.position_grid == (3, 3)


@torch.no_grad()
@pytest.mark.parametrize("windowed", [[], [1, 4]])
def test_vitdet_without_relative_positions_whose_config_tells_the_windows(windowed, tmp_path):
    model = randomise_calmly(hf_vitdet(relative=False))
    model.config.window_block_indices = windowed
    model.save_pretrained(tmp_path / "first")
    model = transformers.VitDetModel.from_pretrained(tmp_path / "first").eval()
    x = images(40, 32)
    wanted = tokens(model(x).last_hidden_state)
    checkpoint = vitconvert.load_checkpoint(tmp_path / "first")
    assert checkpoint.dialect == "hf_vitdet_plain"
    assert checkpoint.config.window_blocks == tuple(windowed)
    assert relative(vitconvert.load_model(tmp_path / "first")(x), wanted) <= ROUNDING
    vitconvert.convert(tmp_path / "first", to="hf", output=tmp_path / "again")
    again = transformers.VitDetModel.from_pretrained(tmp_path / "again")
    assert torch.equal(tokens(again(x).last_hidden_state), wanted)


@torch.no_grad()
def test_timms_sam_of_larger_images_is_resampled_as_timm_does(tmp_path):
    sizes = {"img_size": 64, "depth": 11, "embed_dim": 36, "num_heads": 3, **WINDOWS}
    theirs = random_model("samvit_base_patch16", **sizes)
    timm.models.save_for_hf(theirs, str(tmp_path), model_args=sizes, safe_serialization=True)
    x = images(80, 112)
    for fast in (False, True):
        ours = vitconvert.load_model(tmp_path, image_size=(80, 112), fast=fast)
        assert ours.config.position_grid == ours.config.grid_size == (5, 7)
        assert relative(ours(x), theirs(x)) <= ROUNDING
    report = vitconvert.verify(tmp_path)
    assert report.ok and report.reference.endswith("VisionTransformerSAM")
    assert {"patch_embed", "blocks.10.attn"} <= {d.layer for d in report.layers}


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        ({"window_size": 4}, "window_size = 4 (user), but no block sees 4x4 patches at once"),
        ({"global_blocks": (1, 2)}, "blocks see at once as many patches as 0: 3x3, 1: 5x5"),
        ({"global_blocks": (1,)}, "global_blocks = (1,) (user), but blocks see at once as many"),
        ({"global_blocks": (10,)}, "global_blocks = (10,) (user), but blocks see at once as many"),
        ({"image_size": (48, 48)}, "image_size = 48x48 (user), but the relative positions are of"),
    ],
)
def test_error_windows_that_the_tensors_contradict(stated, problem, whole_file):
    with pytest.raises(ConflictingFact) as error:
        vitconvert.load_checkpoint(whole_file, overrides=stated)
    assert problem in str(error.value)


def test_blocks_that_all_see_as_much_are_asked_for(encoder, tmp_path):
    tensors = encoder.state_dict()
    for name, tensor in tensors.items():
        if ".rel_pos_" in name:
            tensors[name] = tensor[:5]
    torch.save(tensors, tmp_path / "sam.pth")
    with pytest.raises(MissingFact) as error:
        vitconvert.load_checkpoint(tmp_path / "sam.pth")
    assert "every block sees 3x3 patches at once, and the positions are of 5x5" in str(error.value)
    stated = {"window_size": 3, "global_blocks": ()}
    config = vitconvert.load_checkpoint(tmp_path / "sam.pth", overrides=stated).config
    assert config.window_size == 3 and config.image_size == (40, 40)


def test_error_vitdet_with_residual_blocks_or_a_made_up_grid(tmp_path):
    options = transformers.VitDetConfig(**HF, use_relative_position_embeddings=True)
    options.residual_block_indices = [10]
    transformers.VitDetModel(options).save_pretrained(tmp_path / "residual")
    with pytest.raises(VitConvertError, match="residual"):
        vitconvert.load_checkpoint(tmp_path / "residual")
    state = hf_vitdet().state_dict()
    state["encoder.layer.1.attention.rel_pos_h"] = torch.ones(13, 12)
    torch.save({detectron2(name): t for name, t in state.items()}, tmp_path / "other.pth")
    with pytest.raises(ConflictingFact, match="1: 7x4"):
        vitconvert.load_checkpoint(tmp_path / "other.pth")


def test_error_windows_that_are_no_squares(encoder, tmp_path):
    tensors = encoder.state_dict()
    for name, tensor in tensors.items():
        if name.endswith("rel_pos_w") and len(tensor) == 5:
            tensors[name] = torch.ones(7, tensor.shape[1])
    torch.save(tensors, tmp_path / "sam.pth")
    with pytest.raises(ConflictingFact, match=r"window_size = 0 .* as 0: 3x4, 1: 5x5"):
        vitconvert.load_checkpoint(tmp_path / "sam.pth")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("vit_relpos_medium_patch16_cls_224", {}),
        ("vit_srelpos_small_patch16_224", {}),
        ("vit_relpos_small_patch16_rpn_224", {"rel_pos_type": "bias"}),
        ("vit_relpos_base_patch16_clsgap_224", {"rel_pos_type": "bias", "shared_rel_pos": True}),
    ],
)
@torch.no_grad()
def test_relative_positions_of_timm_there_and_on_larger_images(name, changes, tmp_path):
    sizes = {"img_size": 64, "depth": 2, "embed_dim": 36, "num_heads": 3} | changes
    theirs = random_model(name, **sizes)
    timm.models.save_for_hf(theirs, str(tmp_path / "in"), model_args=sizes)
    found = vitconvert.convert(tmp_path / "in", to="timm", output=tmp_path / "out")
    assert found.parity.ok and all(o.bit_equal for o in found.opened)
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert_same_tensors(written, theirs.state_dict())
    larger = vitconvert.load_model(tmp_path / "in", image_size=(80, 112))
    with warnings.catch_warnings(action="ignore"):  # timm indexes with lists
        theirs.set_input_size((80, 112))
    x = images(80, 112)
    assert relative(larger(x), theirs(x)) <= ROUNDING


def test_error_the_mlp_of_swin_is_another(tmp_path):
    sizes = {"img_size": 64, "depth": 2, "embed_dim": 36, "num_heads": 3}
    theirs = random_model("vit_relpos_small_patch16_224", rel_pos_type="mlp_swin", **sizes)
    sizes |= {"rel_pos_type": "mlp_swin"}
    timm.models.save_for_hf(theirs, str(tmp_path), model_args=sizes)
    with pytest.raises(TensorMismatch, match=r"blocks\.0\.attn\.rel_pos\.mlp\.fc2\.bias"):
        vitconvert.load_checkpoint(tmp_path)
    torch.save(theirs.state_dict(), tmp_path / "alone.pth")  # whose size nothing tells
    with pytest.raises(TensorMismatch, match=r"rel_pos\.mlp\.fc2\.bias or .* has it"):
        vitconvert.load_checkpoint(tmp_path / "alone.pth")


def test_error_a_pooled_encoder_is_no_map_of_features(tmp_path):
    sizes = {"img_size": 64, "depth": 2, "embed_dim": 36, "num_heads": 3, **WINDOWS}
    theirs = random_model("samvit_base_patch16", **sizes)
    timm.models.save_for_hf(theirs, str(tmp_path / "in"), model_args=sizes)
    with pytest.raises(NotRepresentable, match="pooling: the weights need avg"):
        vitconvert.convert(tmp_path / "in", to="hf", output=tmp_path / "no")
