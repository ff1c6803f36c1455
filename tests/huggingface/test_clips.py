"""Models of clips, each by its own class of transformers: frames are a third axis of the grid."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitconvert
from tests.packages import transformers
from tests.sampling import sampled
from tests.small_models import assert_same_tensors, relative
from tests.uses import in_onnx_runtime
from vitconvert.cli import main
from vitconvert.errors import (
    InputMismatch,
    MissingFact,
    NotRepresentable,
    SourceError,
    UnknownDialect,
    UsageError,
)

SIZES = {"hidden_size": 60, "num_hidden_layers": 11, "num_attention_heads": 3}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A class, what it is made with, and how it is called."""

    kind: str
    dialect: str
    arguments: dict[str, Any]
    size: tuple[int, int] = (24, 40)
    channels: int = 3
    lengths: tuple[int, ...] = (4, 6)
    word: str = "num_frames"
    run: Callable[[Any, torch.Tensor], torch.Tensor] = field(
        default=lambda model, clips: _output(model(clips.transpose(1, 2)))
    )
    inner: str = ""  # the encoder in a larger model
    memory: str = ""  # the dialect of the names in memory
    reading: dict[str, Any] = field(default_factory=dict)  # how it is read

    def made(self, frames=None, **changes):
        """A model with every parameter random."""
        kind = getattr(transformers, self.kind)
        said = {self.word: frames or self.lengths[0]}
        model = kind(kind.config_class(**SIZES | self.arguments | said | changes))
        torch.manual_seed(4)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.1).add_(0.1 if parameter.ndim == 1 else 0.0)
        return model.eval()

    def clips(self, frames=None):
        shape = (2, self.channels, frames or self.lengths[0], *self.size)
        return torch.randn(shape, generator=torch.Generator().manual_seed(7))

    def expected(self, model, clips):
        with torch.inference_mode():
            return self.run(model.get_submodule(self.inner), clips)


def _output(output):
    logits = getattr(output, "logits", None)
    return output.last_hidden_state if logits is None else logits


VIDEOMAE = {"intermediate_size": 50, "image_size": [24, 40], "patch_size": 8, "tubelet_size": 2}
VIVIT = {"intermediate_size": 50, "image_size": [24, 40], "tubelet_size": [2, 8, 8]}
VJEPA2 = {"crop_size": 24, "patch_size": 8, "mlp_ratio": 2, "pred_hidden_size": 24}
VJEPA2 |= {"pred_num_hidden_layers": 1, "pred_num_attention_heads": 2, "num_pooler_layers": 1}
AS_CLIPS = {
    "dialect": "hf_vjepa2_clips",
    "reading": {"dialect": "hf_vjepa2_clips"},
    "size": (24, 24),
    "word": "frames_per_clip",
    "lengths": (6, 9),
    "run": lambda model, clips: model(clips.transpose(1, 2), skip_predictor=True).last_hidden_state,
}
FAMILIES = {
    "VideoMAE": Family(
        kind="VideoMAEForVideoClassification",
        dialect="hf_videomae",
        arguments=VIDEOMAE | {"num_labels": 5},
        memory="hf_videomae_memory",
    ),
    "VideoMAE encoder": Family(
        kind="VideoMAEModel",
        dialect="hf_videomae",
        arguments=VIDEOMAE | {"use_mean_pooling": False, "num_channels": 4, "hidden_act": "relu"},
        channels=4,
        memory="hf_videomae_memory",
    ),
    "VideoMAE encoder without a norm": Family(
        kind="VideoMAEModel",
        dialect="hf_videomae",
        arguments=VIDEOMAE | {"tubelet_size": 3, "qv_bias": False, "layer_norm_eps": 1e-3},
        lengths=(7, 3),  # one frame more than patches have
    ),
    "VideoMAE in pre-training": Family(
        kind="VideoMAEForPreTraining",
        dialect="hf_videomae",
        arguments=VIDEOMAE
        | {"use_mean_pooling": False, "decoder_hidden_size": 24, "decoder_num_hidden_layers": 1}
        | {"decoder_num_attention_heads": 2, "decoder_intermediate_size": 9},
        inner="videomae",
        memory="hf_videomae_memory",
    ),
    "ViViT": Family(
        kind="VivitForVideoClassification",
        dialect="hf_vivit",
        arguments=VIVIT | {"num_labels": 5, "layer_norm_eps": 1e-3},
        memory="hf_vivit_memory",
    ),
    "ViViT with a pooler": Family(
        kind="VivitModel",
        dialect="hf_vivit_pooler",
        arguments=VIVIT
        | {"tubelet_size": [3, 8, 4], "num_channels": 1, "pooler_output_size": 9}
        | {"pooler_act": "relu", "hidden_act": "gelu"},
        lengths=(3, 7),
        channels=1,
        run=lambda model, clips: model(clips.transpose(1, 2)).pooler_output,
        memory="hf_vivit_pooler_memory",
    ),
    "V-JEPA 2": Family(kind="VJEPA2Model", arguments=VJEPA2, **AS_CLIPS),
    "V-JEPA 2, odd heads": Family(
        kind="VJEPA2Model",
        arguments=VJEPA2 | {"num_attention_heads": 4, "tubelet_size": 3, "qkv_bias": False},
        **AS_CLIPS,
    ),
    "V-JEPA 2 that classifies": Family(
        kind="VJEPA2ForVideoClassification",
        arguments=VJEPA2 | {"num_attention_heads": 6},
        inner="vjepa2",
        **AS_CLIPS,
    ),
}


@pytest.mark.parametrize("name", sampled(FAMILIES, 2, "slow"))
def test_outputs_are_those_of_its_class_at_two_lengths(name, tmp_path):
    its = FAMILIES[name]
    for frames in its.lengths:
        model, clips = its.made(frames), its.clips(frames)
        model.save_pretrained(tmp_path)
        found = vitconvert.load_checkpoint(tmp_path, **its.reading)
        assert (found.dialect, found.config.frames) == (its.dialect, frames)
        for fast in (False, True):
            ours = vitconvert.load_model(tmp_path, fast=fast, **its.reading)
            assert relative(ours(clips), its.expected(model, clips)) < 1e-6


@pytest.mark.parametrize("name", sampled([n for n, its in FAMILIES.items() if its.memory], 2))
def test_names_in_memory_and_on_disk_become_each_other(name, tmp_path):
    its = FAMILIES[name]
    model, clips = its.made(num_hidden_layers=2), its.clips()
    encoder = model.get_submodule(its.inner)
    expected = its.expected(model, clips)
    for disk, theirs, other in (
        (True, its.dialect, its.memory),
        (False, its.memory, its.dialect),
    ):
        encoder.save_pretrained(tmp_path / "a", save_original_format=disk)
        source = vitconvert.load_checkpoint(tmp_path / "a")
        assert source.dialect == theirs
        done = vitconvert.convert(source, to=other, output=tmp_path / f"{other}", verify=True)
        assert [one.why_not for one in done.opened] == [None]
        assert vitconvert.load_checkpoint(tmp_path / other).dialect == other
        assert relative(vitconvert.load_model(tmp_path / other)(clips), expected) < 1e-6
    encoder.save_pretrained(tmp_path / "a")
    stored = [load_file(d / "model.safetensors") for d in (tmp_path / "a", tmp_path / its.dialect)]
    assert_same_tensors(*stored)


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(FAMILIES, 3))
def test_it_is_verified_and_written_again(name, tmp_path):
    its = FAMILIES[name]
    model, clips = its.made(), its.clips()
    model.save_pretrained(tmp_path / "a")
    report = vitconvert.verify(tmp_path / "a", **its.reading)
    assert report.verdict == "equal" and len(report.layers) > 2 * 11
    for to in ("hf", "vit"):
        done = vitconvert.convert(
            tmp_path / "a", output=tmp_path / to, to=to, verify=True, **its.reading
        )
        assert all(one.why_not is None for one in done.opened)
        ours = vitconvert.load_model(tmp_path / to)
        assert relative(ours(clips), its.expected(model, clips)) < 1e-6
    found = in_onnx_runtime(tmp_path / "a", clips, tmp_path, **its.reading)
    assert relative(found, its.expected(model, clips)) < 1e-5


@pytest.mark.slow
def test_layouts_without_an_axis_of_time_refuse_it(tmp_path):
    FAMILIES["VideoMAE"].made(num_hidden_layers=1).save_pretrained(tmp_path / "a")
    for to in ("timm", "lucidrains", "hf_vit"):
        with pytest.raises(NotRepresentable, match="the layout has no axis of time"):
            vitconvert.convert(tmp_path / "a", to=to, output=tmp_path / "b")


@pytest.mark.slow
def test_the_eps_of_the_authors_class_is_said_and_replaced_on_demand(tmp_path):
    its = FAMILIES["VideoMAE"]
    model, clips = its.made(num_hidden_layers=2), its.clips()
    model.save_pretrained(tmp_path / "a")
    with pytest.raises(NotRepresentable) as error:
        vitconvert.convert(tmp_path / "a", to="videomae", output=tmp_path / "b")
    needed = "fc_norm_eps: the weights need 1e-05, and there it is 1e-06"
    assert any(needed in line for line in [str(error.value), *error.value.details])
    done = vitconvert.convert(
        tmp_path / "a", to="videomae", output=tmp_path / "b", allow=["norm-eps"]
    )
    assert (done.config.norm_eps, done.config.function().get("fc_norm_eps")) == (1e-6, None)
    ours = vitconvert.load_model(tmp_path / "b")
    assert 0 < relative(ours(clips), its.expected(model, clips)) < 1e-3


def test_a_classifier_of_the_first_patch_is_refused(tmp_path):
    FAMILIES["VideoMAE"].made(use_mean_pooling=False).save_pretrained(tmp_path)
    with pytest.raises(NotRepresentable, match="misreads") as error:
        vitconvert.load_checkpoint(tmp_path)
    assert "classifies by the first patch" in str(error.value)


def test_other_lengths_and_sizes_are_computed_by_positions_of_their_own(tmp_path):
    its = FAMILIES["VideoMAE"]
    model = its.made(num_hidden_layers=2)
    model.save_pretrained(tmp_path)
    other = its.made(6, num_hidden_layers=2, image_size=[32, 16])
    other.load_state_dict(model.state_dict())
    clips = torch.randn(2, 3, 6, 32, 16)
    ours = vitconvert.load_model(tmp_path, image_size=(32, 16), overrides={"frames": 6})
    assert relative(ours(clips), its.expected(other, clips)) < 1e-6
    with pytest.raises(UsageError, match="they are of several frames"):
        vitconvert.load_model(tmp_path, patch_size=4)


def test_clips_of_v_jepa_2_of_any_length_and_images(tmp_path):
    its = FAMILIES["V-JEPA 2, odd heads"]
    model = its.made(num_hidden_layers=2)
    model.save_pretrained(tmp_path)
    for frames in (3, 12):
        clips = its.clips(frames)
        ours = vitconvert.load_model(tmp_path, overrides={"frames": frames}, **its.reading)
        assert ours.config.head_dim == 15
        assert relative(ours(clips), its.expected(model, clips)) < 1e-6
    with pytest.raises(NotRepresentable, match="numbers the patches of any other image"):
        vitconvert.load_checkpoint(tmp_path, overrides={"image_size": (24, 40)}, **its.reading)
    model = FAMILIES["V-JEPA 2"].made(num_hidden_layers=2, num_attention_heads=4)
    model.save_pretrained(tmp_path)
    images = torch.randn(2, 3, 24, 24)
    ours = vitconvert.load_model(tmp_path)
    assert (ours.config.frames, ours.config.head_dim) == (0, 15)
    assert relative(ours(images), its.expected(model, images[:, :, None])) < 1e-6


def v_jepa_2_of_meta(model):
    """The names of facebookresearch/vjepa2, as its training saves them."""
    theirs = {
        "encoder.embeddings.patch_embeddings.proj": "patch_embed.proj",
        "encoder.layernorm": "norm",
    }
    tensors = {}
    for name, tensor in model.state_dict().items():
        owner, _, kind = name.rpartition(".")
        if owner in theirs:
            tensors[f"module.backbone.{theirs[owner]}.{kind}"] = tensor
        elif name.startswith("encoder.layer."):
            block = f"module.backbone.blocks.{name.split('.')[2]}"
            part = owner.split(".", 3)[3].replace("attention", "attn")
            if part == "attn.query":
                parts = [model.state_dict()[name.replace("query", p)] for p in ("key", "value")]
                tensors[f"{block}.attn.qkv.{kind}"] = torch.cat([tensor, *parts])
            elif part not in ("attn.key", "attn.value"):
                tensors[f"{block}.{part}.{kind}"] = tensor
    return tensors


def test_v_jepa_2_in_metas_names(tmp_path):
    its = FAMILIES["V-JEPA 2"]
    model, clips = its.made(num_hidden_layers=2), its.clips()
    encoder = v_jepa_2_of_meta(model)
    file = tmp_path / "vitl.pt"
    parts = {"encoder": encoder, "target_encoder": {n: t + 1 for n, t in encoder.items()}}
    torch.save({**parts, "predictor": {"module.backbone.x": torch.ones(3)}, "epoch": 3}, file)
    stated = {"num_heads": 3, "frames": 6, "image_size": 24}
    source = vitconvert.load_checkpoint(file, overrides=stated)
    assert source.dialect == "vjepa2"
    expected = its.expected(model, clips)
    assert relative(vitconvert.load_model(source)(clips), expected) < 1e-6
    done = vitconvert.convert(source, output=tmp_path / "hf", to="hf", verify=True)
    assert [one.why_not for one in done.opened] == [None]
    loaded = transformers.VJEPA2Model.from_pretrained(tmp_path / "hf").eval()
    assert relative(its.expected(loaded, clips), expected) < 1e-6
    vitconvert.convert(tmp_path / "hf", output=tmp_path / "back", to="vjepa2", verify=False)
    back = torch.load(tmp_path / "back" / "model.pt", weights_only=True)["encoder"]
    assert_same_tensors(back, encoder)


def test_v_jepa_of_other_years_is_not_taken_for_v_jepa_2(tmp_path):
    its = FAMILIES["V-JEPA 2"]
    model, clips = its.made(num_hidden_layers=2), its.clips()
    encoder = v_jepa_2_of_meta(model)
    table = {"module.backbone.pos_embed": torch.randn(1, 27, 60)}
    torch.save({"encoder": encoder | table}, tmp_path / "a.pt")
    stated = {"num_heads": 3, "frames": 6, "image_size": 24}
    with pytest.raises(UnknownDialect, match="V-JEPA of 2024, or V-JEPA 2 with a table") as error:
        vitconvert.load_checkpoint(tmp_path / "a.pt", overrides=stated)
    assert "--dialect vjepa2_table" in error.value.hint
    ours = vitconvert.load_model(tmp_path / "a.pt", dialect="vjepa2_table", overrides=stated)
    assert relative(ours(clips), its.expected(model, clips)) < 1e-6


def test_learned_positions_of_clips_say_how_large_they_are_and_are_not_resampled(tmp_path):
    its = FAMILIES["ViViT"]
    model = its.made(num_hidden_layers=2, image_size=24)
    model.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="positions of clips cannot be resampled"):
        vitconvert.load_model(tmp_path, image_size=32)
    with pytest.raises(MissingFact, match="do not form a square grid for each of 4 steps in time"):
        vitconvert.load_model(tmp_path, overrides={"frames": 8})
    (tmp_path / "config.json").unlink()
    with pytest.raises(MissingFact) as missing:
        vitconvert.load_checkpoint(tmp_path, overrides={"num_heads": 3})
    assert "the model reads clips, and no tensor shows how many frames" in str(missing.value)
    stated = {"num_heads": 3, "frames": 4, "activation": "gelu_tanh", "norm_eps": 1e-3}
    ours = vitconvert.load_model(tmp_path, overrides=stated)
    assert ours.config.image_size == (24, 24)
    clips = torch.randn(2, 3, 4, 24, 24)
    assert relative(ours(clips), its.expected(model, clips)) < 1e-6


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((2, 4, 3, 24, 40), "the frames come before the channels, as in transformers: "),
        ((3, 4, 24, 40), "add a batch dimension: clips[None]."),
        ((2, 3, 24, 40), "this model reads clips, not images: "),
        ((2, 3, 5, 24, 40), None),
    ],
)
def test_what_is_no_clip_of_the_model_is_refused(shape, hint, tmp_path):
    FAMILIES["VideoMAE"].made(num_hidden_layers=1).save_pretrained(tmp_path)
    for fast in (False, True):
        with pytest.raises(InputMismatch) as error:
            vitconvert.load_model(tmp_path, fast=fast)(torch.zeros(shape))
        assert (error.value.hint or "").startswith(hint or "") and bool(error.value.hint) == bool(
            hint
        )
        assert "(B, 3, 4, 24, 40)" in error.value.fact


# Frames


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """A classifier with its preprocessing, folders of 4 and of 11 frames, and those frames."""
    place = tmp_path_factory.mktemp("clips")
    its = FAMILIES["VideoMAE"]
    model = its.made(num_hidden_layers=2, image_size=24)
    model.save_pretrained(place / "model")
    sizes = {"size": {"shortest_edge": 28}, "crop_size": {"height": 24, "width": 24}}
    processor = transformers.VideoMAEImageProcessor(**sizes)
    processor.save_pretrained(place / "model")
    frames = np.random.default_rng(3).integers(0, 256, (11, 40, 57, 3), dtype=np.uint8)
    for folder, count in (("b", 4), ("a", 11)):
        (place / "videos" / folder).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(frames[number]).save(place / "videos" / folder / f"f{number}.png")
    return place, model, processor, frames


def test_frames_are_prepared_as_its_processor_does(clips):
    place, _, processor, frames = clips
    steps = vitconvert.load_checkpoint(place / "model").preprocessing
    taken = [Image.fromarray(frames[number]) for number in (0, 2, 5, 8)]
    theirs = processor(taken, return_tensors="pt")["pixel_values"][0].transpose(0, 1)
    with pytest.warns(match="4 of 11 frames are read"):
        found = steps.clip(place / "videos" / "a", 4)
    assert torch.equal(found, theirs)
    assert torch.equal(steps.clip(frames[[0, 2, 5, 8]]), theirs)
    assert torch.equal(steps.clip(taken, 4), theirs)
    with pytest.raises(InputMismatch, match="has 4 frames, and the model reads 5"):
        steps.clip(place / "videos" / "b", 5)
    for wrong, said in (
        (frames.astype(np.float32), "uint8"),
        (7, "not a int"),
        (taken[0], "Image"),
    ):
        with pytest.raises(UsageError, match=said):
            steps.clip(wrong)


def test_the_processor_of_videos_is_read_too(clips, tmp_path):
    _place, model, _, frames = clips
    model.save_pretrained(tmp_path)
    sizes = {"size": {"shortest_edge": 28}, "crop_size": {"height": 24, "width": 24}}
    processor = transformers.VideoMAEVideoProcessor(**sizes)
    processor.save_pretrained(tmp_path)
    found = vitconvert.load_checkpoint(tmp_path).preprocessing.clip(frames[:4])
    theirs = processor(torch.from_numpy(frames[:4]).permute(0, 3, 1, 2), return_tensors="pt")
    assert torch.equal(found, theirs["pixel_values"][0].transpose(0, 1))
    stated = json.loads((tmp_path / "video_preprocessor_config.json").read_text())
    stated |= {"do_sample_frames": True, "num_frames": 4}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(stated))
    notes = vitconvert.load_checkpoint(tmp_path).ledger.notes
    assert any("do_sample_frames of VideoMAEVideoProcessor" in note for note in notes)


@pytest.mark.parametrize("crop", [24, 32])
def test_frames_of_v_jepa_2_are_prepared_as_its_processor_does(clips, crop, tmp_path):
    *_, frames = clips
    FAMILIES["V-JEPA 2"].made(num_hidden_layers=1, crop_size=crop).save_pretrained(tmp_path)
    processor = transformers.VJEPA2VideoProcessor(crop_size=crop)
    processor.save_pretrained(tmp_path)
    pixels = torch.from_numpy(frames[:4]).permute(0, 3, 1, 2)
    theirs = processor(pixels, return_tensors="pt")["pixel_values_videos"][0].transpose(0, 1)
    for dialect in ("hf_vjepa2_clips", None):
        steps = vitconvert.load_checkpoint(tmp_path, dialect=dialect).preprocessing
        assert torch.equal(steps.clip(frames[:4]), theirs)


@pytest.mark.parametrize("offset", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
def test_frames_of_vivit_are_prepared_as_its_processors_do(clips, offset, normalize, tmp_path):
    *_, frames = clips
    its = FAMILIES["ViViT"]
    its.made(num_hidden_layers=1, image_size=24).save_pretrained(tmp_path)
    said = {"size": {"shortest_edge": 28}, "crop_size": {"height": 24, "width": 24}}
    said |= {"do_normalize": normalize, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.5]}
    processor = transformers.VivitImageProcessor(**said, offset=offset)
    processor.save_pretrained(tmp_path)
    taken = [Image.fromarray(frame) for frame in frames[:4]]
    theirs = processor(taken, return_tensors="pt")["pixel_values"][0].transpose(0, 1)
    steps = vitconvert.load_checkpoint(tmp_path).preprocessing
    assert relative(steps.clip(taken), theirs) < 1e-6
    vitconvert.convert(tmp_path, to="hf", output=tmp_path / "out", verify=False)
    again = transformers.AutoImageProcessor.from_pretrained(tmp_path / "out")
    written = again(taken, return_tensors="pt")["pixel_values"][0].transpose(0, 1)
    assert type(again) is type(processor) and relative(written, theirs) < 1e-6
    (tmp_path / "preprocessor_config.json").unlink()
    of_videos = transformers.VivitVideoProcessor(**said)
    of_videos.save_pretrained(tmp_path)
    pixels = torch.from_numpy(frames[:4]).permute(0, 3, 1, 2)
    theirs = of_videos(pixels, return_tensors="pt")["pixel_values"][0].transpose(0, 1)
    steps = vitconvert.load_checkpoint(tmp_path).preprocessing
    assert relative(steps.clip(taken), theirs) < 1e-6


def test_v_jepa_2_without_its_processors_file_asks_for_it(clips, tmp_path):
    place, *_ = clips
    FAMILIES["V-JEPA 2"].made(num_hidden_layers=1).save_pretrained(tmp_path)
    with pytest.raises(OSError, match=r"video_preprocessor_config\.json"):
        transformers.AutoVideoProcessor.from_pretrained(tmp_path)
    clip = vitconvert.load_checkpoint(tmp_path, dialect="hf_vjepa2_clips")
    with pytest.raises(MissingFact, match="No file states this") as error:
        vitconvert.embed(clip, place / "videos")
    wanted = "put its preprocessor_config.json or video_preprocessor_config.json, or"
    assert error.value.hint.startswith(wanted)
    transformers.VJEPA2VideoProcessor(crop_size=24).save_pretrained(tmp_path)
    found = vitconvert.load_checkpoint(tmp_path, overrides={"frames": 4}, dialect=clip.dialect)
    assert found.preprocessing.origin == "video_preprocessor_config.json"
    assert [one.error for one in vitconvert.embed(found, place / "videos")] == [None, None]


def test_progress_counts_clips(clips, tmp_path, monkeypatch, capsys):
    place, *_ = clips
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    arguments = [str(place / "model"), str(place / "videos")]
    for verb in (["embed", *arguments, "-o", str(tmp_path / "a.npz")], ["predict", *arguments]):
        with pytest.raises(SystemExit, match=r"^0$"):
            main(verb)
        _, err = capsys.readouterr()
        assert "0/2 [00:00<?, ?clip/s]" in err
        assert "1 clip (a): 4 of 11 frames are read" in err
        assert verb[0] == "predict" or f"2 clips in {tmp_path / 'a.npz'}" in err


def test_folders_of_frames_are_classified_and_embedded(clips, tmp_path):
    place, model, processor, frames = clips
    taken = [[Image.fromarray(frames[n]) for n in ns] for ns in ((0, 2, 5, 8), range(4))]
    with torch.inference_mode():
        wanted = model(**processor(taken, return_tensors="pt")).logits
    found = list(vitconvert.predict(place / "model", place / "videos"))
    assert [one.path.name for one in found] == ["a", "b"]
    for one, logits in zip(found, wanted, strict=True):
        assert one.top[0].index == int(logits.argmax())
        assert one.top[0].logit == pytest.approx(float(logits.max()), abs=1e-6)
    (features,) = vitconvert.embed(place / "model", place / "videos" / "b", pool="mean")
    steps = vitconvert.load_checkpoint(place / "model").preprocessing
    ours = vitconvert.load_model(place / "model")
    with torch.inference_mode():
        tokens = ours.forward_features(steps.clip(frames[:4])[None])
    assert relative(features.features, tokens.mean(1)[0]) < 1e-6
    (wrong,) = vitconvert.predict(place / "model", place / "videos" / "b" / "f0.png")
    assert isinstance(wrong.error, SourceError) and "this is an image" in wrong.error.fact


@pytest.mark.slow
def test_processes_prepare_clips_as_threads_do(clips):
    place, *_ = clips
    here, there = (
        list(vitconvert.embed(place / "model", place / "videos", workers=workers, batch_size=1))
        for workers in (0, 1)
    )
    for one, other in zip(here, there, strict=True):
        assert (one.path, one.remarks) == (other.path, other.remarks)
        assert torch.equal(one.features, other.features)


@pytest.mark.slow
def test_an_exported_file_classifies_folders_too(clips, tmp_path):
    place, *_ = clips
    pytest.importorskip("onnxruntime")
    done = vitconvert.export_model(place / "model", tmp_path / "m.onnx", to="onnx")
    assert done.record["input"]["shape"] == ["batch", 3, 4, 24, 24]
    for one, other in zip(
        vitconvert.predict(tmp_path / "m.onnx", place / "videos"),
        vitconvert.predict(place / "model", place / "videos"),
        strict=True,
    ):
        assert one.top[0].logit == pytest.approx(other.top[0].logit, abs=1e-5)


def test_a_conversion_keeps_the_processor(clips, tmp_path):
    place, *_ = clips
    vitconvert.convert(place / "model", to="hf", output=tmp_path / "out", verify=False)
    again = transformers.AutoImageProcessor.from_pretrained(tmp_path / "out")
    assert type(again).__name__ == "VideoMAEImageProcessor"
    before, after = (vitconvert.load_checkpoint(d) for d in (place / "model", tmp_path / "out"))
    assert before.preprocessing.differences(after.preprocessing) == ()
    card = (tmp_path / "out" / "README.md").read_text()
    assert 'pipeline_tag: "video-classification"' in card
    assert "| clips | 4 frames of 24x24 pixels, 3 channels, patches of 2x8x8 |" in card
    assert "clips = torch.zeros(1, 4, 3, 24, 24)  # (batch, frames, channels, height" in card
    assert "clip = preprocessing.clip(" in card


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["hf_vjepa2", "hf_vjepa2_clips"])
def test_the_card_of_v_jepa_2_has_code_that_runs(dialect, tmp_path, monkeypatch):
    its = FAMILIES["V-JEPA 2"]
    its.made(num_hidden_layers=1).save_pretrained(tmp_path / "a")
    vitconvert.convert(tmp_path / "a", output=tmp_path / "b", to="hf", dialect=dialect)
    card = (tmp_path / "b" / "README.md").read_text()
    code = next(part for part in card.split("```python\n")[1:] if "VJEPA2Model" in part)
    monkeypatch.chdir(tmp_path / "b")
    found: dict[str, Any] = {}
    exec(code.partition("```")[0], found)
    assert found["output"].last_hidden_state.shape[1] == (9 if dialect == "hf_vjepa2" else 27)


def test_what_is_only_of_images_is_refused(clips, tmp_path):
    place, *_ = clips
    model, folder = place / "model", place / "videos" / "b"
    calls = [
        lambda: list(vitconvert.attention_maps(model, folder)),
        lambda: list(vitconvert.feature_maps(model, folder)),
        lambda: vitconvert.verify(model, images=folder),
        lambda: vitconvert.record_golden(model, tmp_path / "a.golden"),
        lambda: vitconvert.export_model(
            model, tmp_path / "a.onnx", to="onnx", with_preprocessing=True
        ),
        lambda: vitconvert.export_model(model, tmp_path / "a.onnx", to="onnx", images=folder),
        lambda: vitconvert.load_model(model, dynamic_size=True),
        lambda: vitconvert.export_model(model, tmp_path / "a.onnx", to="onnx", dynamic_size=True),
        lambda: vitconvert.Embedder(str(model))([str(folder / "f0.png")]),
    ]
    for call in calls:
        with pytest.raises(NotRepresentable, match="of models that read images"):
            call()


def test_cosine_attention_of_v2_is_named(tmp_path):
    shapes = {"patch_embed.proj.weight": (30, 3, 2, 8, 8), "patch_embed.proj.bias": (30,)}
    for name in ("q_bias", "v_bias", "scale", "qkv.weight", "proj.weight", "proj.bias"):
        size = {"scale": (3, 1, 1), "qkv.weight": (90, 30), "proj.weight": (30, 30)}
        shapes[f"blocks.0.attn.{name}"] = size.get(name, (30,))
    torch.save({n: torch.randn(s) for n, s in shapes.items()}, tmp_path / "a.pth")
    with pytest.raises(UnknownDialect, match="VideoMAE V2 with cos_attn"):
        vitconvert.load_checkpoint(tmp_path / "a.pth")
