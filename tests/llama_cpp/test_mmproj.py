"""llama.cpp's mmproj files: written by the gguf package as llama.cpp's converter does it.

No package of Python runs llama.cpp's towers, so values are compared with those of transformers.
"""

import gguf
import numpy as np
import pytest
import torch

import vitconvert
from tests.llama_cpp.writing import F16, Q8_0, clip, siglip, theirs, write
from vitconvert.errors import NotRepresentable, Quantised

IMAGES = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def assert_close(path, model, *, find, most=2e-5, **options):
    """The output of our model of a file, and that of theirs from the numbers in the file."""
    wanted = find(model(IMAGES))
    for fast in (False, True):
        checkpoint = vitconvert.load_checkpoint(path, **options)
        found = vitconvert.load_model(checkpoint, fast=fast)(IMAGES)
        assert (found - wanted).abs().max() <= most * wanted.abs().max()


def rounded(model, kind=F16, *, back=None):
    """A model whose matrices have the numbers that stand in a file."""
    for name, tensor in model.state_dict().items():
        if tensor.ndim > 1 and "embd" not in theirs(name):
            array = tensor.numpy()
            numbers = (
                array.astype(np.float16)
                if kind == F16
                else gguf.dequantize(gguf.quantize(array, kind), kind)
            )
            tensor.copy_(torch.from_numpy(numbers.astype(np.float32)))
    return model


def tokens(output):
    return output.last_hidden_state


def pooled(output):
    return output.pooler_output


def test_clips_tower(tmp_path):
    path = write(tmp_path / "mmproj.gguf", clip())
    checkpoint = vitconvert.load_checkpoint(path)
    assert checkpoint.dialect == "llama_cpp_clip"
    assert checkpoint.config.activation == "quick_gelu"
    assert checkpoint.config.norm_eps == 1e-5  # float32 in the file
    assert checkpoint.config.origins["num_heads"] == "config.json"
    assert checkpoint.ledger.ignored["mm.0.weight"] == "the projector to the language model"
    inspection = vitconvert.inspect(path)
    assert inspection.problem is None
    assert inspection.facts["num_heads"] == (4, "config.json")
    assert_close(path, rounded(clip()), find=pooled)
    inspection = vitconvert.inspect(path)
    assert not inspection.missing and inspection.problem is None
    assert inspection.facts["num_heads"] == (checkpoint.config.num_heads, "config.json")


def test_siglips_tower_and_names_of_old_converters(tmp_path):
    path = write(tmp_path / "x", siglip(), swapped=True, use_gelu=True)
    assert vitconvert.load_checkpoint(path).dialect == "llama_cpp_siglip_swapped"
    assert_close(path, rounded(siglip()), find=tokens)
    out = vitconvert.convert(path, to="llama_cpp", output=tmp_path / "out", verify=False).output
    assert vitconvert.load_checkpoint(out).dialect == "llama_cpp_siglip"
    assert_close(out, rounded(siglip()), find=tokens)


def test_clips_tower_with_names_of_old_converters(tmp_path):
    path = write(tmp_path / "x", clip(), swapped=True)
    assert vitconvert.load_checkpoint(path).dialect == "llama_cpp_clip_swapped"
    assert_close(path, rounded(clip()), find=pooled)


@pytest.mark.parametrize(
    ("swapped", "dialect"), [(False, "llama_cpp_llava"), (True, "llama_cpp_llava_swapped")]
)
def test_llavas_tower_has_no_norm_at_its_end(swapped, dialect, tmp_path):
    path = write(tmp_path / "x", clip(), leave_out=["post_ln"], swapped=swapped)
    checkpoint = vitconvert.load_checkpoint(path)
    assert checkpoint.dialect == dialect
    config = checkpoint.config
    assert (config.final_norm, config.fc_norm, config.pooling) == (False, False, "none")
    assert_close(path, rounded(clip()), find=tokens)


def test_q8_0_is_computed_when_it_is_asked_for(tmp_path):
    path = write(tmp_path / "x", clip(), Q8_0)
    with pytest.raises(Quantised) as error:
        vitconvert.load_checkpoint(path)
    assert "GGUF, Q8_0" in str(error.value) and "--dtype" in str(error.value)
    assert_close(path, rounded(clip(), Q8_0), find=pooled, dequantise="float32")


def test_other_blocks_are_named(tmp_path):
    path = write(tmp_path / "x", clip(), gguf.GGMLQuantizationType.Q4_0)
    with pytest.raises(Quantised, match="GGUF, other than Q8_0"):
        vitconvert.load_checkpoint(path, dequantise="float32")


@pytest.mark.slow
def test_back_again_every_tensor_has_its_bytes(tmp_path):
    for name, model in (("clip", clip()), ("siglip", siglip())):
        source = tmp_path / name
        model.bfloat16().save_pretrained(source)
        there = vitconvert.convert(source, to="llama_cpp", output=tmp_path / f"{name}-gguf")
        assert there.opened[0].summary() == "gguf.GGUFReader: every tensor as it was written"
        back = vitconvert.convert(there.output, to="hf", output=tmp_path / "b", overwrite=True)
        after = vitconvert.load_checkpoint(back.output).weights.container
        for key, tensor in model.state_dict().items():
            kept = key if key in after.manifest else f"vision_model.{key}"
            assert torch.equal(after.read(kept), tensor), key
        fields = gguf.GGUFReader(there.output / "mmproj.gguf").fields
        said = {key: field.contents() for key, field in fields.items()}
        assert said["general.architecture"] == "clip"
        assert said["clip.vision.attention.head_count"] == 4
        assert said["clip.use_gelu"] is (name == "siglip")
        assert said["vitconvert.source_dialect"] == f"hf_{name}"


def test_what_llama_cpp_computes_otherwise_is_refused(tmp_path):
    with pytest.raises(NotRepresentable, match=r"clip.use_silu = True"):
        vitconvert.load_checkpoint(write(tmp_path / "x", clip(), use_silu=True))
    clip(hidden_act="gelu").save_pretrained(tmp_path / "exact")  # llama.cpp has the tanh formula
    with pytest.raises(NotRepresentable) as error:
        vitconvert.convert(tmp_path / "exact", to="llama_cpp_clip", output=tmp_path / "out")
    assert "has no word for activation = 'gelu'" in str(error.value)


# Those of clip_graph_llava and clip_graph_siglip (llama.cpp, tools/mtmd/clip.cpp), and others.
PLAIN = {"mlp": clip, "ldp": clip, "ldpv2": clip, "adapter": siglip, "gemma3": siglip}
PLAIN |= dict.fromkeys(("idefics3", "lfm2", "janus_pro", "phi4"), siglip)
OTHERS = ("paddleocr", "resampler", "pixtral", "lightonocr", "qwen2vl_merger", "qwen2.5vl_merger")
OTHERS += ("qwen3vl_merger", "step3vl", "gemma4v", "internvl", "llama4", "kimivl", "kimik25")
OTHERS += (
    "cogvlm",
    "dots_ocr",
    "deepseekocr",
    "glm4v",
    "youtuvl",
    "yasa2",
    "hunyuanocr",
    "none yet",
)


@pytest.mark.parametrize("projector", PLAIN)
def test_what_reads_clip_and_siglip(projector, tmp_path):
    path = write(tmp_path / "mmproj.gguf", PLAIN[projector](), projector=projector)
    assert vitconvert.load_checkpoint(path).dialect.startswith("llama_cpp_")


def test_words_of_older_files_tell_the_projector(tmp_path):
    for word, model in (("has_minicpmv_projector", "MiniCPM-V"), ("has_qwen2vl_merger", "Qwen2")):
        path = write(tmp_path / f"{word}.gguf", siglip(), **{word: True})
        with pytest.raises(NotRepresentable, match=model):
            vitconvert.load_checkpoint(path)


def test_an_audio_tower_beside_it_is_left_out(tmp_path):
    path = write(tmp_path / "a.gguf", siglip(), projector="gemma3", audio={"a.blk.0.ln1.weight": 7})
    found = vitconvert.load_checkpoint(path)
    assert found.ledger.ignored["a.blk.0.ln1.weight"] == "the audio encoder"


@pytest.mark.parametrize("projector", OTHERS)
def test_a_tower_of_another_projector_is_refused_by_its_name(projector, tmp_path):
    """PaddleOCR-VL has SigLIP's tensors, and turns q and k."""
    path = write(tmp_path / "mmproj.gguf", siglip(), projector=projector)
    for reading in ({}, {"dialect": "llama_cpp_siglip"}, {"tower": "v"}, {"ignore": ["mm.*"]}):
        with pytest.raises(NotRepresentable) as error:
            vitconvert.load_model(path, **reading)
        assert error.value.evidence == {"config.json": f"clip.projector_type = {projector!r}"}
        assert vitconvert.inspect(path, **reading).problem.fact == error.value.fact
