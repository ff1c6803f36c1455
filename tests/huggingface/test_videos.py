"""Video files, as the processors of transformers decode and sample them by torchcodec."""

import re
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

import vitconvert
from tests.huggingface.test_clips import FAMILIES
from tests.packages import transformers
from vitconvert.errors import CorruptFile, InputMismatch, MissingPackage, SourceError, UnsafeFile
from vitconvert.preprocessing.clips import find_clips

SIZES = {"size": {"shortest_edge": 28}, "crop_size": {"height": 24, "width": 24}}


def has_ffmpeg():
    try:
        import torchcodec
    except Exception:  # before 0.16, without FFmpeg
        return False
    return getattr(torchcodec, "ffmpeg_major_version", 0) is not None


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A classifier of clips of 4 frames, with the processor of videos."""
    place = tmp_path_factory.mktemp("model")
    FAMILIES["VideoMAE"].made(num_hidden_layers=2, image_size=24).save_pretrained(place)
    transformers.VideoMAEVideoProcessor(**SIZES).save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Videos of 4 and of 11 frames, without loss, and the frames."""
    if not has_ffmpeg():
        pytest.skip("torchcodec and FFmpeg are not here")
    from torchcodec.encoders import VideoEncoder

    place = tmp_path_factory.mktemp("videos")
    frames = np.random.default_rng(3).integers(0, 256, (11, 40, 56, 3), dtype=np.uint8)
    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2).contiguous()
    for name, count in (("b.mp4", 4), ("a.mkv", 11)):
        encoder = VideoEncoder(pixels[:count], frame_rate=10)
        encoder.to_file(place / name, codec="png", pixel_format="rgb24")
    return place, frames


@pytest.mark.slow
def test_frames_are_those_that_were_written_and_that_its_processor_takes(model, videos):
    place, frames = videos
    steps = vitconvert.load_checkpoint(model).preprocessing
    assert torch.equal(steps.clip(place / "b.mp4"), steps.clip(frames[:4]))
    processor = transformers.AutoVideoProcessor.from_pretrained(model)
    how = {"do_sample_frames": True, "num_frames": 4, "return_tensors": "pt"}
    theirs = processor(str(place / "a.mkv"), **how)["pixel_values"][0]
    with pytest.warns(match="4 of 11 frames are read, at even steps from the first"):
        found = steps.clip(place / "a.mkv", 4)
    assert torch.equal(found, theirs.transpose(0, 1))
    assert torch.equal(found, steps.clip(frames[[0, 2, 5, 8]]))
    with pytest.raises(InputMismatch, match="has 4 frames, and the model reads 5"):
        steps.clip(place / "b.mp4", 5)


@pytest.mark.slow
def test_videos_are_classified_and_embedded(model, videos, tmp_path):
    place, frames = videos
    its = transformers.VideoMAEForVideoClassification.from_pretrained(model).eval()
    processor = transformers.AutoVideoProcessor.from_pretrained(model)
    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2)
    read = [pixels[[0, 2, 5, 8]], pixels[:4]]
    with torch.inference_mode():
        wanted = its(**processor(read, return_tensors="pt")).logits
    for given in (place, str(place / "*.m*"), [place / "a.mkv", place / "b.mp4"]):
        found = list(vitconvert.predict(model, given))
        assert [one.path.name for one in found] == ["a.mkv", "b.mp4"]
        for one, logits in zip(found, wanted, strict=True):
            assert one.top[0].index == int(logits.argmax())
            assert one.top[0].logit == pytest.approx(float(logits.max()), abs=1e-6)
    (tmp_path / "cut.mp4").write_bytes((place / "b.mp4").read_bytes()[:-900])
    (tmp_path / "other.mp4").write_bytes(b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n/etc/passwd\n")
    errors = {one.path.name: one.error for one in vitconvert.predict(model, tmp_path)}
    assert errors.keys() == {"cut.mp4", "other.mp4"}
    assert "cannot be decoded as a video" in errors["cut.mp4"].fact
    assert errors["other.mp4"].fact == "This file is no video that is read."
    assert all(isinstance(error, CorruptFile) for error in errors.values())
    assert errors["cut.mp4"].evidence["clip"] == str(tmp_path / "cut.mp4")
    assert str(tmp_path) not in errors["cut.mp4"].evidence["FFmpeg"]


@pytest.mark.slow
def test_large_frames_are_refused_before_they_are_decoded(model, videos):
    place, _ = videos
    steps = vitconvert.load_checkpoint(model).preprocessing
    with pytest.raises(UnsafeFile, match="frames of the video have more pixels") as error:
        steps.clip(place / "b.mp4", max_pixels=2239)
    assert error.value.evidence["size"] == "40x56 = 2,240 pixels"
    assert steps.clip(place / "b.mp4", max_pixels=2240).shape == (3, 4, 24, 24)


@pytest.mark.parametrize("missing", ["torchcodec", "FFmpeg"])
def test_what_decodes_videos_is_named_where_it_is_missing(missing, model, tmp_path, monkeypatch):
    fake = ModuleType("torchcodec")
    fake.ffmpeg_major_version = None
    monkeypatch.setitem(sys.modules, "torchcodec", None if missing == "torchcodec" else fake)
    fact = {
        "torchcodec": "Video files are decoded by torchcodec.",
        "FFmpeg": "torchcodec finds no FFmpeg.",
    }
    (tmp_path / "a.mp4").write_bytes(b"")
    steps = vitconvert.load_checkpoint(model).preprocessing
    for call in (
        lambda: list(vitconvert.predict(model, tmp_path / "a.mp4")),
        lambda: list(vitconvert.embed(model, tmp_path)),
        lambda: steps.clip(tmp_path / "a.mp4"),
    ):
        with pytest.raises(MissingPackage, match=re.escape(fact[missing])) as error:
            call()
        assert "pip install torchcodec" in error.value.hint
        assert "ffmpeg -i clip.mp4 clip/%05d.png" in error.value.hint


def test_which_clips_are_meant(tmp_path, monkeypatch):
    fake = ModuleType("torchcodec")
    fake.ffmpeg_major_version = 7
    monkeypatch.setitem(sys.modules, "torchcodec", fake)
    names = ["a/1.png", "a/1.mp4", "b10.mp4", "b9.MP4", ".c.mp4", "c/d/2.png", "c/e.webm", "f.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def found(*sources, **how):
        return [str(p.relative_to(tmp_path)) for p in find_clips(sources, **how)]

    assert found(tmp_path) == ["a", "b9.MP4", "b10.mp4", "c"]
    everything = ["a", "a/1.mp4", "b9.MP4", "b10.mp4", "c/d", "c/e.webm"]
    assert found(tmp_path, recursive=True) == everything
    assert found(tmp_path / "a") == ["a"]
    assert found(tmp_path / "c") == ["c/d", "c/e.webm"]
    assert found(tmp_path / "*.mp4", tmp_path / "c" / "d") == ["b10.mp4", "c/d"]
    assert found(tmp_path / "no*.mp4") == ["no*.mp4"]


def test_a_file_that_is_not_there_is_told(model, tmp_path):
    steps = vitconvert.load_checkpoint(model).preprocessing
    with pytest.raises(SourceError, match="There is no such file or folder"):
        steps.clip(tmp_path / "a.mkv")
