"""DeepSeek-OCR's two vision encoders in its own names, which Unlimited-OCR of transformers has too.

Modules of transformers: deepseek_ocr2, unlimited_ocr.
"""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import conv2d

import vitconvert
from tests.packages import transformers as t
from tests.small_models import randomise_calmly, relative
from tests.towers.families import LANGUAGE, VISION
from vitconvert.errors import AmbiguousDialect, NotRepresentable

SIZES = {"num_hidden_layers": 11, "num_attention_heads": 3, "hidden_size": 36, "patch_size": 8}
SAM = SIZES | {"mlp_dim": 50, "image_size": 40, "output_channels": 9, "window_size": 2}
SAM |= {"global_attn_indexes": [3, 10], "downsample_channels": [10, 36]}
DECODER = {"model_type": "deepseek_ocr2_encoder"} | LANGUAGE | {"hidden_size": 36}
TEXT = LANGUAGE | {"mlp_layer_types": ["dense"]}
# Of the config.json of deepseek-ai/DeepSeek-OCR, which says nothing of the windows
CLIP_OF_DEEPSEEK = {"heads": 3, "image_size": 24, "layers": 2, "patch_size": 8, "width": 36}
SAM_OF_DEEPSEEK = {"global_attn_indexes": [3, 10], "heads": 3, "layers": 11, "width": 36}
OF_DEEPSEEK = {
    "architectures": ["DeepseekOCRForCausalLM"],
    "model_type": "deepseek_vl_v2",
    "vision_config": {
        "image_size": 40,
        "model_type": "vision",
        "width": {"clip-l-14-224": CLIP_OF_DEEPSEEK, "sam_vit_b": SAM_OF_DEEPSEEK},
    },
}
PATCHES = "model.vision_model.embeddings.patch_embedding.weight"


def of_kind(name, encoder, **text):
    config = getattr(t, f"{name}Config")(
        vision_config={"sam_config": SAM, "encoder_config": encoder}, text_config=TEXT | text
    )
    torch.manual_seed(5)
    made = randomise_calmly(getattr(t, f"{name}ForConditionalGeneration")(config))
    return made.eval()


@pytest.fixture(scope="module")
def unlimited(tmp_path_factory):
    """Unlimited-OCR of transformers, and its directory."""
    folder = tmp_path_factory.mktemp("unlimited")
    model = of_kind("UnlimitedOcr", VISION)
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture(scope="module")
def deepseek(unlimited, tmp_path_factory):
    """The same as DeepSeek saves it: with CLIP's patch embedding, and its own config.json."""
    folder = tmp_path_factory.mktemp("deepseek")
    tensors = load_file(unlimited[1] / "model.safetensors")
    tensors[PATCHES] = torch.randn(36, 3, 8, 8, generator=torch.Generator().manual_seed(2)) / 9
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(OF_DEEPSEEK))
    return folder


def images_of(side):
    return torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(7))


def map_of_sam(model, images):
    """What the neck gives, as tokens."""
    found = []
    sam = model.model.vision_tower.sam_encoder
    with sam.neck.register_forward_hook(lambda _, __, output: found.append(output)):
        sam(images)
    return found[0].flatten(2).transpose(1, 2)


def test_one_of_two_encoders_must_be_chosen(unlimited, deepseek):
    with pytest.raises(AmbiguousDialect) as error:
        vitconvert.load_checkpoint(deepseek)
    assert "--tower model.sam_model or --tower model.vision_model" in str(error.value)
    for tower in (None, "model.vision_model"):  # transformers leaves out CLIP's patch embedding
        with pytest.raises(NotRepresentable) as refused:
            vitconvert.load_checkpoint(unlimited[1], tower=tower)
        assert "CLIP's blocks without a patch embedding" in str(refused.value)
        assert "such as model.sam_model" in str(refused.value)


@pytest.mark.parametrize("side", [40, 56])
@torch.no_grad()
def test_the_sam_encoder_up_to_its_neck(side, unlimited, deepseek):
    model, folder = unlimited
    images = images_of(side)
    wanted = map_of_sam(model, images)
    for place in (folder, deepseek):
        ours = vitconvert.load_model(place, tower="model.sam_model", image_size=side)
        assert relative(ours(images), wanted) < 1e-6
    found = vitconvert.load_checkpoint(deepseek, tower="model.sam_model")
    assert (found.dialect, found.config.window_size) == ("hf_deepseek_ocr_sam", 2)
    assert any("two convolutions" in note for note in found.ledger.notes)
    assert "the larger model reads" in found.ledger.ignored["net_2.weight"]


@pytest.mark.parametrize("side", [24, 40])
@torch.no_grad()
def test_clips_blocks_on_images(side, unlimited, deepseek):
    """VitModel of clip_sdpa.py: its own patches where it is given none."""
    encoder = unlimited[0].model.vision_tower.vision_encoder
    weight = load_file(deepseek / "model.safetensors")[PATCHES]
    images = images_of(side)
    wanted = encoder(conv2d(images, weight, stride=8)).last_hidden_state
    ours = vitconvert.load_model(deepseek, tower="model.vision_model", image_size=side)
    assert relative(ours(images), wanted) < 1e-6
    found = vitconvert.load_checkpoint(deepseek, tower="model.vision_model")
    assert (found.dialect, found.config.image_size) == ("hf_deepseek_ocr_clip", (24, 24))


@pytest.mark.parametrize(
    ("tower", "targets"),
    [("model.sam_model", ("vit", "hf", "sam")), ("model.vision_model", ("vit", "timm"))],
)
@pytest.mark.slow
@torch.no_grad()
def test_each_is_verified_and_converted(tower, targets, deepseek, tmp_path):
    images = images_of(40 if "sam" in tower else 24)
    wanted = vitconvert.load_model(deepseek, tower=tower)(images)
    for to in targets:
        done = vitconvert.convert(deepseek, tower=tower, to=to, output=tmp_path / to, verify=True)
        assert done.opened and not [one.why_not for one in done.opened if one.why_not]
        assert relative(vitconvert.load_model(tmp_path / to)(images), wanted) < 1e-6


def test_of_deepseek_ocr_2_the_sam_encoder_is_the_vit(tmp_path):
    of_kind("DeepseekOcr2", DECODER).save_pretrained(tmp_path)
    found = vitconvert.load_checkpoint(tmp_path)
    assert (found.dialect, found.tower.prefix) == ("hf_deepseek_ocr_sam", "model.sam_model.")
    assert any("model.sam_model" in note for note in found.ledger.notes)
    tensors = load_file(tmp_path / "model.safetensors")
    start = "model.qwen2_model.model.model."
    decoder = {n.removeprefix(start): x for n, x in tensors.items() if n.startswith(start)}
    save_file(decoder, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(DECODER))
    with pytest.raises(NotRepresentable, match="a decoder of Qwen2"):
        vitconvert.load_checkpoint(tmp_path)
