"""What is no ViT is called by its name, and so are quantised weights."""

import pytest
import torch

from tests.facts.header import hf
from tests.facts.header import timm as timm_header
from tests.packages import timm, torchvision, transformers
from tests.sampling import sampled
from vitconvert.api import inspect
from vitconvert.errors import MissingFact, TensorMismatch, UnknownDialect
from vitconvert.tables import others
from vitconvert.tables.detection import recognise
from vitconvert.tables.dialects import builtin_tables, read_table
from vitconvert.tables.others import seems_to_be
from vitconvert.tables.parts import Header
from vitconvert.tables.towers import find_part
from vitconvert.toml_files import read_tables


def _shapes(make):
    with torch.device("meta"):
        model = make()
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _said(shapes):
    with pytest.raises(UnknownDialect) as error:
        recognise(shapes)
    assert "--table" not in error.value.hint
    said = error.value.fact.removesuffix(", which vitconvert does not support.")
    return said.removeprefix("This seems to be ").partition(", whose")[0]


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}
MODELS = {
    "timm": {
        "resnet18": "a ResNet",
        "resnet50d": "a ResNet",
        "convnext_atto": "a ConvNeXt of timm",
        "convnextv2_atto": "a ConvNeXt V2 of timm",
        "swin_tiny_patch4_window7_224": "a Swin Transformer",
        "swinv2_tiny_window8_256": "a Swin Transformer",
        "efficientnet_b0": "an EfficientNet or MobileNet of timm",
        "mobilenetv3_small_050": "an EfficientNet or MobileNet of timm",
        "regnetx_002": "a RegNet of timm",
        "densenet121": "a DenseNet",
        "vgg11": "a VGG of timm",
        "inception_v3": "a convolutional network",
        "maxvit_tiny_rw_224": "a MaxViT of timm",
        "mobilevit_s": "a MobileViT of timm",
        "pvt_v2_b0": "a Pyramid Vision Transformer",
        "pit_ti_224": "a PiT",
        "cait_xxs24_224": "a CaiT",
        "convit_tiny": "a ConViT",
        "hiera_tiny_224": "a Hiera",
        "hiera_small_abswin_256": "a Hiera with positions of its windows",
        "sam2_hiera_tiny": "the Hiera of SAM 2",
        "swinv2_cr_tiny_224": "a Swin Transformer V2 with MLPs for its positions",
        "vitamin_small_224": "a ViTamin",
        "xcit_nano_12_p16_224": "an XCiT",
        "crossvit_tiny_240": "a CrossViT",
        "mixer_s32_224": "an MLP-Mixer",
        "resmlp_12_224": "a ResMLP",
        "tnt_s_legacy_patch16_224": "a TNT",
    },
    "torchvision": {
        "resnet18": "a ResNet",
        "convnext_tiny": "a ConvNeXt of torchvision",
        "swin_t": "a Swin Transformer of torchvision",
        "efficientnet_b0": "an EfficientNet of torchvision",
        "mobilenet_v2": "a MobileNet of torchvision",
        "alexnet": "a VGG or AlexNet",
        "swin_v2_t": "a Swin Transformer V2 of torchvision",
        "maxvit_t": "a MaxViT of torchvision",
        "googlenet": "a convolutional network",
    },
    "transformers": {
        "BertModel": "a text model of BERT's kind",
        "RobertaForMaskedLM": "a text model of BERT's kind",
        "DistilBertModel": "a DistilBERT",
        "GPT2LMHeadModel": "a text model of GPT-2's kind",
        "LlamaForCausalLM": "a text model of LLaMA's kind",
        "Qwen2ForCausalLM": "a text model of LLaMA's kind",
        "OPTForCausalLM": "a text model of OPT's kind",
        "T5ForConditionalGeneration": "a text model of T5's kind",
        "GPTNeoXForCausalLM": "a GPT-NeoX",
        "WhisperModel": "a speech model of Whisper's kind",
        "Wav2Vec2Model": "a speech model of wav2vec 2.0's kind",
        "SegformerModel": "a SegFormer of transformers 5",
        "SwinModel": "a Swin Transformer of transformers 5",
        "ResNetModel": "a ResNet of transformers",
        "ConvNextModel": "a ConvNeXt of transformers",
        "Swin2SRModel": "a Swin2SR, which makes images larger",
        "HieraModel": "a Hiera of transformers",
        "Sam2Model": "the Hiera of SAM 2",
        "Sam2HieraDetModel": "the Hiera of SAM 2",
        "TimesformerForVideoClassification": "TimeSformer of transformers",
        "XCLIPModel": "X-CLIP",
        "VideoPrismVisionModel": "VideoPrism",
    },
}
PLAIN = ("DistilBertModel", "GPT2LMHeadModel", "T5ForConditionalGeneration")  # as they are
PLAIN += ("SegformerModel", "SwinModel", "ResNetModel", "ConvNextModel", "XCLIPModel")
PLAIN += ("Swin2SRModel", "HieraModel", "Sam2Model", "Sam2HieraDetModel")


def _make(package, name):
    if package == "timm":
        return timm.create_model(name)
    if package == "torchvision":
        options = {"init_weights": False} if name == "googlenet" else {}
        return getattr(torchvision.models, name)(**options)
    kind = getattr(transformers, name)
    sizes = {"encoder_layers": 1} if name == "WhisperModel" else SMALL
    return kind(kind.config_class(**{} if name in PLAIN else sizes))


@pytest.mark.parametrize(
    ("package", "name"), sampled([(p, name) for p, names in MODELS.items() for name in names], 4)
)
def test_models_of_other_kinds(package, name):
    assert _said(_shapes(lambda: _make(package, name))) == MODELS[package][name]


_TIMM = timm_header()
_CLIP = {f"visual.trunk.{name}": shape for name, shape in _TIMM.items()}
_PATCHES = ("patch_embed.proj.weight", "patch_embed.proj.bias")
_BODY = {name: shape for name, shape in _TIMM.items() if name not in _PATCHES}
_FRAMES = _TIMM | {"patch_embed.proj.weight": (30, 3, 2, 8, 8)}
_CLIP_OF_FRAMES = {
    "visual.conv1.weight": (30, 3, 1, 8, 8),
    "visual.class_embedding": (30,),
    "visual.positional_embedding": (10, 30),
    "visual.transformer.resblocks.0.attn.in_proj_weight": (90, 30),
    "visual.transformer.resblocks.0.ln_1.weight": (30,),
}
_TUBES = _TIMM | {"patch_embed.proj.weight": (30, 6, 1, 8, 8), "pos_embed": (1, 25, 30)}
_WAVES = {"weight_generator.weight_tokens": (128, 30), "fclayer.w1.weight": (30, 30)}
# Names that their authors' code gives, beside those of timm.
ORIGINALS = {
    "VideoMAE V2 with cos_attn": {
        n: s for n, s in _FRAMES.items() if n not in ("cls_token", "pos_embed")
    }
    | {f"blocks.0.attn.{part}_bias": (30,) for part in "qv"}
    | {"blocks.0.attn.scale": (3, 1, 1)},
    "Prithvi, or a masked autoencoder of its kind": {
        **{f"encoder.{name}": shape for name, shape in _TUBES.items()},
        "decoder.mask_token": (1, 1, 20),
    },
    "TimeSformer": {f"model.{name}": shape for name, shape in _TIMM.items()}
    | {"model.time_embed": (1, 8, 30), "model.blocks.0.temporal_attn.qkv.weight": (90, 30)},
    "TimeSformer, which adds a position for each of several frames": _TIMM
    | {"time_embed": (1, 8, 30)},
    "InternVideo2": {n: s for n, s in _FRAMES.items() if n != "norm.weight"}
    | {"clip_pos_embed": (1, 26, 30), "clip_projector.cross_attn.q.weight": (30, 30)}
    | {f"blocks.0.{n}": (30,) for n in ("attn.q_norm.weight", "attn.k_norm.weight", "ls1.gamma")},
    "UniFormerV2 (InternVideo)": _CLIP_OF_FRAMES
    | {f"visual.transformer.resblocks.0.lmhra1.pos_embed.{i}.weight": (20, 30) for i in (0, 1)},
    "ViCLIP (InternVideo)": _CLIP_OF_FRAMES | {"visual.temporal_positional_embedding": (1, 8, 30)},
    "VideoPrism in its authors' names": {
        f"params/vision_encoder/{axis}_encoder/transformers_stack/x_layers/layer_norm/scale": (
            2,
            30,
        )
        for axis in ("spatial", "temporal")
    },
    "ViViT with a factorised encoder": {
        "embedding/kernel": (2, 8, 8, 3, 30),
        "cls_SpatialTransformer": (1, 1, 30),
        "SpatialTransformer/encoderblock_0/MlpBlock_0/Dense_0/kernel": (30, 50),
        "TemporalTransformer/encoderblock_0/MlpBlock_0/Dense_0/kernel": (30, 50),
    },
    "ViViT with factorised attention": {
        "embedding/kernel": (2, 8, 8, 3, 30),
        "Transformer/encoderblock_0/MultiHeadDotProductAttention_time/out/kernel": (3, 10, 30),
        "Transformer/encoderblock_0/MlpBlock/Dense_0/kernel": (30, 50),
    },
    "DOFA": _BODY | {f"patch_embed.{name}": shape for name, shape in _WAVES.items()},
    "Copernicus-FM": _BODY
    | {f"patch_embed_spectral.{name}": shape for name, shape in _WAVES.items()},
    "Clay": {f"model.encoder.patch_embedding.{name}": shape for name, shape in _WAVES.items()}
    | {
        "model.encoder.cls_token": (1, 1, 30),
        "model.encoder.transformer.layers.0.0.norm.weight": (30,),
        "model.encoder.transformer.layers.0.0.to_qkv.weight": (90, 30),
        "model.encoder.transformer.layers.0.1.net.0.weight": (30,),
    },
    "PaSST": {f"net.{name}": shape for name, shape in _TIMM.items() if name != "pos_embed"}
    | {"net.time_new_pos_embed": (1, 30, 1, 7), "net.freq_new_pos_embed": (1, 30, 4, 1)}
    | {"net.new_pos_embed": (1, 2, 30), "net.head.0.weight": (30,), "net.head.1.bias": (5,)},
    "BEATs": {
        "patch_embedding.weight": (20, 1, 16, 16),
        "post_extract_proj.weight": (30, 20),
        "encoder.layers.0.self_attn.q_proj.weight": (30, 30),
        "encoder.layers.0.self_attn.grep_linear.weight": (8, 10),
        "encoder.layers.0.self_attn.relative_attention_bias.weight": (320, 3),
    },
    "CONCH": _CLIP | {"visual.attn_pool_contrast.query": (1, 30), "text.ln_final.weight": (30,)},
    "the Hiera of SAM 2": {
        "image_encoder.trunk.pos_embed_window": (1, 30, 8, 8),
        "image_encoder.trunk.blocks.0.attn.qkv.weight": (90, 30),
        "memory_encoder.out_proj.weight": (8, 30, 1, 1),
    },
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_models_in_their_authors_names(name):
    assert _said(ORIGINALS[name]) == name
    assert seems_to_be(ORIGINALS[name])[1] != others._NAME_VIT


def test_the_whole_message_for_a_video_model():
    shapes = ORIGINALS["TimeSformer, which adds a position for each of several frames"]
    with pytest.raises(UnknownDialect) as error:
        recognise(shapes)
    assert str(error.value) == (
        "error: unknown-dialect\n"
        "  This seems to be TimeSformer, which adds a position for each of several frames, which "
        "vitconvert does not support.\n"
        "  keys         33\n"
        "  nearest      timm (timm VisionTransformer (plain, distilled, hybrid)), which explains "
        "32\n"
        "  unexplained  time_embed\n"
        "  hint: its own class computes it (transformers, or its authors' code); a checkpoint of "
        "images is read."
    )


def test_the_vit_in_conch_is_read_where_it_is_named():
    shapes = ORIGINALS["CONCH"]
    found = find_part(Header(shapes=shapes), "visual.trunk.")
    assert found.recognised.table.name == "timm"
    assert found.tower.prefix == "visual.trunk."


def test_a_diffusion_model():
    conv = {"conv1": (64, 64, 3, 3)}
    shapes = {f"{part}.resnets.0.{n}.weight": s for part in _BLOCKS for n, s in conv.items()}
    assert _said(shapes) == "a U-Net of diffusers"


_BLOCKS = ("down_blocks.0", "down_blocks.1", "mid_block", "up_blocks.0")


def test_no_table_of_ours_has_what_marks_another_model():
    """A ViT under names that nobody knows is not called something else."""
    for shapes in (timm_header(), hf()):
        assert seems_to_be(shapes) is None
        with pytest.raises(UnknownDialect) as error:
            recognise({f"some.thing.{name}.x": shape for name, shape in shapes.items()})
        assert error.value.fact.startswith("No table")
    assert "others" not in builtin_tables()


def test_a_table_of_ones_own_for_a_model_with_more_than_a_vits_tensors(tmp_path):
    """Its accounts say what it leaves over."""
    shapes = _shapes(lambda: timm.create_model("cait_xxs24_224"))
    (tmp_path / "team.toml").write_text('[dialect]\nextends = "deit3"\n')
    found = recognise(shapes, [read_table(tmp_path / "team.toml")])
    assert any("proj_l" in name for name in found.binding.unexplained)


def test_no_question_is_asked_that_no_answer_satisfies(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32)
    torch.save(model.state_dict(), tmp_path / "plain.pth")
    problem = inspect(tmp_path / "plain.pth").problem
    assert isinstance(problem, MissingFact)
    torch.save(model.state_dict() | {"step": torch.ones(3)}, tmp_path / "more.pth")
    problem = inspect(tmp_path / "more.pth").problem
    assert isinstance(problem, TensorMismatch)
    assert problem.details == ("left over  step  [3], which no row of the table explains",)
    assert isinstance(inspect(tmp_path / "more.pth", ignore=["step"]).problem, MissingFact)


def test_what_no_size_of_patches_makes_a_model_is_told_as_missing(tmp_path):
    """Without a patch embedding, patch_size and in_channels would be asked in vain."""
    model = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32)
    kept = {n: x for n, x in model.state_dict().items() if not n.startswith("patch_embed.")}
    torch.save(kept, tmp_path / "part.pth")
    problem = inspect(tmp_path / "part.pth").problem
    assert isinstance(problem, TensorMismatch)
    missing = [line.split()[1] for line in problem.details if line.startswith("missing")]
    assert missing == ["patch_embed.proj.weight"]
    assert "saved without these tensors" in str(problem.meaning)


_LINEAR = "vit.encoder.layer.0.attention.attention.query"


@pytest.mark.parametrize(
    ("more", "program"),
    [
        (
            {"{}.SCB": (30,), "{}.weight_format": ()},
            "bitsandbytes, 8 bit",
        ),
        (
            {
                "{}.weight.absmax": (15,),
                "{}.weight.quant_map": (16,),
                "{}.weight.quant_state.bitsandbytes__nf4": (70,),
            },
            "bitsandbytes, 4 bit (nf4)",
        ),
        (
            {
                "{}._weight_qdata": (30, 30),
                "{}._weight_scale": (30, 1),
                "{}._weight_zero_point": (30, 1),
            },
            "torchao, whole numbers of 8 bit",
        ),
        (
            {"{}.qweight": (4, 30), "{}.qzeros": (1, 4), "{}.scales": (1, 30), "{}.g_idx": (30,)},
            "GPTQ",
        ),
        ({"{}.qweight": (30, 4), "{}.qzeros": (1, 4), "{}.scales": (1, 30)}, "AWQ"),
    ],
    ids=str,
)
def test_quantised_weights_are_called_by_their_name(more, program):
    """The names are those that save_pretrained of transformers 5.23 wrote."""
    shapes = hf()
    if "SCB" not in str(more) and "absmax" not in str(more):
        del shapes[f"{_LINEAR}.weight"]
    shapes |= {name.format(_LINEAR): shape for name, shape in more.items()}
    with pytest.raises(TensorMismatch) as error:
        recognise(shapes)
    assert error.value.fact == f"These weights are quantised: {program}."
    assert error.value.evidence["seen by"].startswith(_LINEAR)
    computable = program not in ("GPTQ", "AWQ")
    assert error.value.computable == computable
    command = "--dtype float32 (in Python, dequantise='float32') computes these weights"
    assert error.value.hint.startswith(command if computable else "convert the checkpoint")


def test_no_mark_is_longer_than_what_is_looked_at():
    marks = [said for section in read_tables("others").values() for said in section.values()]
    words = [mark.count(".") + 1 for one in marks if isinstance(one, list) for mark in one]
    assert max(words) <= others._MOST_WORDS
