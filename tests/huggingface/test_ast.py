"""AST: a ViT of spectrograms whose patches overlap, read, computed and written."""

import json
import wave

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import vitconvert
from tests.packages import transformers
from tests.small_models import assert_same_tensors, randomise_calmly, relative
from tests.uses import embedded, in_onnx_runtime
from vitconvert.cli import main
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import (
    ConflictingFact,
    CorruptFile,
    InputMismatch,
    MissingFact,
    NotRepresentable,
    SourceError,
    UsageError,
)
from vitconvert.preprocessing import Preprocessing
from vitconvert.programs.transformers.running import run

SIZES = {"hidden_size": 48, "num_hidden_layers": 11, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 50, "patch_size": 6, "num_labels": 7}
# Frequencies and times of a spectrogram, strides of both, and what the patches leave over: nothing,
# 3 frequencies and 2 times, and gaps between patches.
SHAPES = {
    (22, 31): {"frequency_stride": 4, "time_stride": 5},
    (21, 40): {"frequency_stride": 3, "time_stride": 4},
    (33, 24): {"frequency_stride": 8, "time_stride": 6},
}
GRIDS = {(22, 31): (5, 6), (21, 40): (6, 9), (33, 24): (4, 4)}


def made(name="ASTForAudioClassification", size=(22, 31), **changes):
    kind, (frequencies, times) = getattr(transformers, name), size
    sizes = SIZES | SHAPES[size] | {"num_mel_bins": frequencies, "max_length": times}
    torch.manual_seed(5)
    return randomise_calmly(kind(kind.config_class(**sizes | changes)))


@pytest.fixture(scope="module", params=["ASTForAudioClassification", "ASTModel"])
def saved(request, tmp_path_factory):
    model, folder = made(request.param), tmp_path_factory.mktemp("ast")
    model.save_pretrained(folder)
    return model, folder


@torch.inference_mode()
@pytest.mark.parametrize("size", list(SHAPES))
@pytest.mark.parametrize("name", ["ASTForAudioClassification", "ASTModel"])
def test_outputs_are_those_of_transformers(name, size, tmp_path):
    model = made(name, size)
    model.save_pretrained(tmp_path)
    spectrograms = torch.randn(3, 1, *size)
    for fast in (False, True):
        ours = vitconvert.load_model(tmp_path, fast=fast)
        assert ours.config.grid_size == GRIDS[size]
        assert relative(ours(spectrograms), run(model, spectrograms)) < 1e-6


def test_it_is_written_again_and_opened(saved, tmp_path):
    model, folder = saved
    for to in ("hf", "vit"):
        done = vitconvert.convert(folder, output=tmp_path / to, to=to, verify=True)
        assert [opened.why_not for opened in done.opened] == [None] * len(done.opened)
    before, after = (load_file(d / "model.safetensors") for d in (folder, tmp_path / "hf"))
    assert_same_tensors(after, before)
    wanted, written = (
        json.loads((d / "config.json").read_text()) for d in (folder, tmp_path / "hf")
    )
    names = ("architectures", "model_type", "num_mel_bins", "max_length", "layer_norm_eps")
    for name in (*names, "frequency_stride", "time_stride", "patch_size", "qkv_bias"):
        assert written[name] == wanted[name], name
    spectrograms = torch.randn(2, 1, 22, 31)
    with torch.inference_mode():
        ours = vitconvert.load_model(tmp_path / "vit")
        assert relative(ours(spectrograms), run(model, spectrograms)) < 1e-6
    with pytest.raises(NotRepresentable, match="Targets that hold it as it is: hf, vit"):
        vitconvert.convert(folder, output=tmp_path / "timm", to="timm")


def test_a_classifier_without_classes_has_its_norm(tmp_path):
    model = made(num_labels=0)
    model.save_pretrained(tmp_path / "own")
    done = vitconvert.convert(tmp_path / "own", output=tmp_path / "hf", to="hf", verify=True)
    assert [opened.why_not for opened in done.opened] == [None]
    before, after = (load_file(tmp_path / d / "model.safetensors") for d in ("own", "hf"))
    assert_same_tensors(after, before)


def test_a_file_alone_is_asked_for_its_strides(saved, tmp_path):
    model, folder = saved
    save_file(load_file(folder / "model.safetensors"), tmp_path / "ast.safetensors")
    stated = {"num_heads": 3, "norm_eps": 1e-12, "image_size": (22, 31)}
    options = {"dialect": "hf_ast" if "Classification" in type(model).__name__ else "hf_ast_bare"}
    with pytest.raises(MissingFact, match="patch_stride  published models have 10, 12, 14 or 16"):
        vitconvert.load_checkpoint(tmp_path / "ast.safetensors", overrides=stated, **options)
    stated |= {"patch_stride": (4, 5)}
    ours = vitconvert.load_model(tmp_path / "ast.safetensors", overrides=stated, **options)
    spectrograms = torch.randn(2, 1, 22, 31)
    with torch.inference_mode():
        assert relative(ours(spectrograms), run(model, spectrograms)) < 1e-6


def test_a_deit_without_a_config_is_none(tmp_path):
    deit = transformers.DeiTModel(transformers.DeiTConfig(image_size=24, **SIZES))
    deit.save_pretrained(tmp_path / "deit")
    (tmp_path / "deit" / "model.safetensors").rename(tmp_path / "deit.safetensors")
    checkpoint = vitconvert.load_checkpoint(
        tmp_path / "deit.safetensors", overrides={"num_heads": 3, "norm_eps": 1e-12}
    )
    assert checkpoint.dialect == "hf_vit_pooler"


@torch.inference_mode()
def test_positions_are_fitted_to_other_spectrograms(saved):
    """As AST's authors do, `ast_models.py`: bilinear, along both axes."""
    model, folder = saved
    ours = vitconvert.load_model(folder, image_size=(22, 49))
    assert ours.config.grid_size == (5, 9)
    base = getattr(model, "audio_spectrogram_transformer", model)
    first, grid = base.embeddings.position_embeddings.split((2, 30), dim=1)
    grid = grid.reshape(1, 5, 6, 48).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(5, 9), mode="bilinear").permute(0, 2, 3, 1).flatten(1, 2)
    assert relative(ours.pos_embed, torch.cat((first, grid), 1)) < 1e-6
    with pytest.raises(UsageError, match="cannot be resized: they have a stride of their own"):
        vitconvert.load_model(folder, patch_size=8)


@pytest.mark.coverage
def test_it_is_exported_and_embedded(saved, tmp_path):
    model, folder = saved
    spectrograms = torch.randn(2, 1, 22, 31)
    found = in_onnx_runtime(folder, spectrograms, tmp_path)
    with torch.inference_mode():
        assert relative(found, run(model, spectrograms)) < 1e-5
    features = embedded(folder, tmp_path, "--mean", "0.4", "--std", "0.3")
    assert features.shape == (1, 48)


EXTRACTOR = {"num_mel_bins": 22, "max_length": 31, "mean": -3.25, "std": 2.5}


def recorded(path, samples=16_000, rate=16_000, channels=1, width=2):
    """A rising tone in noise that has an offset; returns its samples, from -1 to 1."""
    rng, seconds = np.random.default_rng(3), np.arange(samples) / rate
    tone = 0.4 * np.sin(2 * np.pi * (200 + 900 * seconds) * seconds)
    levels = (2**15 * (tone + 0.02 * rng.normal(size=samples) + 0.1)).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", "NONE"))
        file.writeframes(levels.tobytes())
    return levels.astype(np.float32) / 2**15


@pytest.fixture(scope="module")
def heard(saved):
    """The same folder with its feature extractor."""
    model, folder = saved
    extractor = transformers.ASTFeatureExtractor(**EXTRACTOR)
    extractor.save_pretrained(folder)
    yield model, folder, extractor
    (folder / "preprocessor_config.json").unlink()


@pytest.mark.filterwarnings("ignore:At least one mel filter")
@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (16_000, EXTRACTOR),
        (3_000, EXTRACTOR),  # filled up
        (401, EXTRACTOR | {"do_normalize": False}),
        (20_000, {"num_mel_bins": 128, "max_length": 64}),
    ],
)
def test_spectrograms_are_those_of_transformers(samples, said, tmp_path):
    sound = recorded(tmp_path / "s.wav", samples)
    extractor = transformers.ASTFeatureExtractor(**said)
    theirs = extractor(sound, sampling_rate=16_000, return_tensors="pt")["input_values"]
    ours = Preprocessing.from_huggingface(extractor.to_dict())
    assert torch.equal(ours(tmp_path / "s.wav"), theirs.transpose(1, 2))
    assert torch.equal(ours((tmp_path / "s.wav").read_bytes()), theirs.transpose(1, 2))
    again = transformers.ASTFeatureExtractor(**ours.to_huggingface())
    assert torch.equal(again(sound, 16_000, return_tensors="pt")["input_values"], theirs)


@torch.inference_mode()
def test_recordings_are_classified_and_embedded(heard, tmp_path, capsys):
    model, folder, extractor = heard
    sound = recorded(tmp_path / "s.wav")
    done = vitconvert.convert(folder, output=tmp_path / "hf", to="hf")
    assert not done.departures
    given = extractor(sound, sampling_rate=16_000, return_tensors="pt")
    theirs = model(**given)
    for source in (folder, tmp_path / "hf"):
        with pytest.raises(SystemExit) as exit_:
            output = tmp_path / f"{source.name}.npz"
            main(["embed", str(source), str(tmp_path / "s.wav"), "-o", str(output), "-q"])
        assert exit_.value.code in (0, None)
        wanted = theirs.get("pooler_output")
        if wanted is None:
            base = model.audio_spectrogram_transformer(**given).pooler_output
            wanted = model.classifier.layernorm(base)
        with np.load(output) as written:
            assert relative(torch.from_numpy(written["features"]), wanted) < 2e-6
    if "logits" in theirs:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(["predict", str(folder), str(tmp_path / "s.wav"), "--json", "-q"])
        assert exit_.value.code in (0, None)
        found = json.loads(capsys.readouterr().out)
        assert found["top"][0]["index"] == theirs.logits.argmax()


@pytest.mark.coverage
def test_recordings_of_folders_are_found(heard, tmp_path):
    _, folder, _ = heard
    (tmp_path / "sounds").mkdir()
    for name, samples in (("b.wav", 16_000), ("a.WAV", 9_000)):
        recorded(tmp_path / "sounds" / name, samples)
    found = list(vitconvert.embed(folder, tmp_path / "sounds"))
    assert [one.path.name for one in found] == ["a.WAV", "b.wav"]
    done = vitconvert.embed_dataset(folder, tmp_path / "sounds", tmp_path / "out")
    assert (done.images, done.failed) == (2, 0)


def test_a_model_of_images_says_why_it_reads_no_recording(tmp_path):
    config = transformers.ViTConfig(image_size=24, **SIZES)
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    (tmp_path / "files").mkdir()
    recorded(tmp_path / "files" / "s.wav")
    reads = Preprocessing.from_timm({"input_size": (3, 24, 24)})
    (found,) = vitconvert.embed(tmp_path / "vit", tmp_path / "files", reads)
    assert found.features is None and isinstance(found.error, CorruptFile)
    assert "a recording, which models of spectrograms read" in str(found.error)


def test_what_is_no_such_recording(heard, tmp_path):
    _, folder, _ = heard
    reads = vitconvert.load_checkpoint(folder).preprocessing
    recorded(tmp_path / "fast.wav", rate=44_100)
    with pytest.raises(InputMismatch, match="44100 samples a second, 1 channels of 16 bit"):
        reads(tmp_path / "fast.wav")
    recorded(tmp_path / "short.wav", samples=399)
    with pytest.raises(InputMismatch, match="too short for a spectrogram"):
        reads(tmp_path / "short.wav")
    photo = sorted((DIGITS / "samples").glob("*.png"))[0]
    with pytest.raises(CorruptFile, match="cannot be read as a WAV file of plain samples"):
        reads(photo)
    with pytest.raises(SourceError, match="There is no such file"):
        reads(tmp_path / "none.wav")
    with pytest.raises(NotRepresentable, match="Recordings of 8000 samples a second"):
        Preprocessing.from_huggingface(
            {"feature_extractor_type": "ASTFeatureExtractor", "sampling_rate": 8000}
        )
    with pytest.raises(ConflictingFact, match="reads spectrograms, and no pixels"):
        vitconvert.export_model(folder, tmp_path / "a.onnx", to="onnx", with_preprocessing=True)
