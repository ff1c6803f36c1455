"""Reading image files, and what every backend shares."""

import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import map_coordinates

from vitconvert.errors import CorruptFile, InputMismatch, SourceError, UnsafeFile
from vitconvert.preprocessing import Preprocessing, image_files
from vitconvert.preprocessing.image_files import load, open_image

TENSORFLOW = {
    "resize": "squash",
    "interpolation": "bilinear",
    "mean": 0.5,
    "std": 0.5,
    "backend": "tensorflow",
}


def read(path: Path) -> None:
    with open_image(path) as image:
        load(image)


def test_a_missing_image_is_named(tmp_path):
    with pytest.raises(SourceError) as caught:
        open_image(tmp_path / "cat.png")
    assert str(caught.value) == (
        f"error: source-not-found\n  No such file or directory.\n  image  {tmp_path}/cat.png"
    )


def test_a_folder_is_no_image(tmp_path):
    with pytest.raises(SourceError, match="Is a directory"):
        open_image(tmp_path)


def test_a_file_that_is_no_image_is_named(tmp_path):
    path = tmp_path / "cat.png"
    path.write_text("meow")
    with pytest.raises(CorruptFile) as caught:
        open_image(path)
    assert str(caught.value) == (
        "error: corrupt-file\n"
        "  This file cannot be read as an image.\n"
        f"  image   {path}\n"
        "  Pillow  not an image in a format that Pillow knows"
    )


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "bmp", "webp", "ppm", "tif", "avif"])
def test_a_truncated_image_is_named(tmp_path, photograph, suffix):
    path = tmp_path / f"cat.{suffix}"
    photograph(61, 45).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CorruptFile) as caught:
        read(path)
    assert caught.value.evidence["image"] == str(path)


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "bmp", "webp", "ppm", "avif"])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::PIL.Image.DecompressionBombWarning")
def test_damaged_images_never_end_in_a_traceback(tmp_path, photograph, suffix, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100_000)  # keeps the test small
    random = np.random.default_rng(len(suffix))
    path = tmp_path / f"cat.{suffix}"
    photograph(61, 45).save(path)
    sound = path.read_bytes()
    refused = 0
    for _ in range(60):
        damaged = bytearray(sound)
        for position in random.integers(0, min(len(sound), 90), 3):
            damaged[position] = random.integers(256)
        path.write_bytes(damaged)
        try:
            read(path)
        except (CorruptFile, UnsafeFile) as error:
            refused += 1
            assert error.evidence["image"] == str(path)
    assert refused > 10


def test_a_png_with_a_wrong_chunk_length_is_named(tmp_path):
    path = tmp_path / "cat.png"
    Image.new("RGB", (61, 45)).save(path)
    damaged = bytearray(path.read_bytes())
    damaged[33:37] = (1).to_bytes(4, "big")  # of IDAT, after the signature and IHDR
    path.write_bytes(damaged)
    with pytest.raises(CorruptFile) as caught:  # Pillow: SyntaxError
        read(path)
    assert caught.value.evidence["Pillow"].startswith("broken PNG file")


def test_an_image_that_declares_too_many_pixels_is_unsafe(tmp_path):
    path = tmp_path / "bomb.bmp"
    Image.new("1", (8, 8)).save(path)
    header = bytearray(path.read_bytes())
    header[18:26] = (20_000).to_bytes(4, "little") * 2
    path.write_bytes(header)
    with pytest.raises(UnsafeFile) as caught:
        open_image(path)
    assert caught.value.fact == "The image declares more pixels than can be decoded safely."


def test_a_thin_image_that_would_become_a_giant_is_unsafe(photograph):
    with pytest.raises(UnsafeFile) as caught:
        Preprocessing.from_timm({"input_size": (3, 224, 224)})(photograph(9000, 2))
    assert str(caught.value) == (
        "error: unsafe-file\n"
        "  Resizing a 2x9000 image would make 294912000 pixels.\n"
        "  resize  shortest to 256x256\n"
        "  limit   33554432 pixels"
    )


def test_an_image_opened_but_not_read_is_reported_too(tmp_path, photograph):
    path = tmp_path / "cat.png"
    photograph(61, 45).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with Image.open(path) as image, pytest.raises(CorruptFile) as caught:
        Preprocessing.from_timm({})(image)
    assert caught.value.evidence["image"] == str(path)


def test_colours_that_pillow_cannot_convert_are_reported():
    with pytest.raises(CorruptFile) as caught:
        Preprocessing.from_timm({})(Image.new("La", (9, 9)))
    assert caught.value.evidence == {
        "image": "in memory",
        "Pillow": "conversion from La to L not supported",
    }


def bilinear(image: np.ndarray[Any, Any], height: int, width: int) -> np.ndarray[Any, Any]:
    """tf.image.resize without antialias: each output centre reads its four neighbours."""
    y = (np.arange(height) + 0.5) * image.shape[0] / height - 0.5
    x = (np.arange(width) + 0.5) * image.shape[1] / width - 0.5
    grid = np.meshgrid(y, x, indexing="ij")
    return np.stack(
        [
            map_coordinates(image[..., c].astype(float), grid, order=1, mode="nearest")
            for c in (0, 1, 2)
        ]
    )


def test_tensorflow_samples_half_pixel_centres_without_antialias(photographs):
    ours = Preprocessing.from_dialect(TENSORFLOW, image_size=(48, 33))
    for image in photographs:
        expected = (bilinear(np.asarray(image), 48, 33) - 127.5) / 127.5
        np.testing.assert_allclose(ours.array(image), expected, atol=2e-5)


def test_big_vision_truncates_to_whole_numbers(photographs):
    ours = Preprocessing.from_dialect({**TENSORFLOW, "backend": "big_vision"}, image_size=(48, 33))
    for image in photographs:
        values = (ours.array(image) * 0.5 + 0.5) * 255
        exact = bilinear(np.asarray(image), 48, 33)
        np.testing.assert_allclose(values, values.round(), atol=1e-3)
        assert (values.round() <= exact + 1e-3).all()
        assert (values.round() > exact - 1 - 1e-3).all()


def test_neither_tensorflow_backend_reads_exif(photograph):
    image = photograph(61, 45)
    ours = Preprocessing.from_dialect(TENSORFLOW, image_size=(48, 33))
    expected = ours.array(image)
    image.getexif()[0x0112] = 6
    assert np.array_equal(ours.array(image), expected)


def test_the_result_owns_its_memory(photographs):
    for cfg in ({"crop_pct": 1.0}, {"crop_mode": "squash"}):
        tensor = Preprocessing.from_timm(cfg)(photographs[0])
        assert tensor.is_contiguous()
        assert tensor.shape == (3, 224, 224)
        tensor.zero_()  # torch warns if it may not


def test_importing_and_resizing_on_pillow_needs_no_torch():
    program = (
        "import sys\n"
        "from PIL import Image\n"
        "from vitconvert.preprocessing import Preprocessing\n"
        "Preprocessing.from_timm({}).array(Image.new('RGB', (9, 9)))\n"
        "print(sorted({'torch', 'timm', 'transformers'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert result.stdout == "[]\n"


def test_a_large_image_is_read_where_the_user_allows_it(tmp_path, monkeypatch):
    monkeypatch.setattr(image_files, "MOST_MEMORY", 2**16)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4_000)
    path = tmp_path / "scan.png"
    Image.new("RGB", (101, 97)).save(path)
    steps = Preprocessing.from_timm({"input_size": (3, 32, 32)})
    with pytest.raises(UnsafeFile) as caught:  # of Pillow
        steps(path)
    assert "--max-image-pixels" in str(caught.value.hint)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40_000)
    with pytest.raises(UnsafeFile) as caught:
        steps(path)
    assert str(caught.value) == (
        "error: unsafe-file\n"
        "  The image has more pixels than are allowed.\n"
        f"  image    {path}\n"
        "  size     97x101 = 9,797 pixels\n"
        "  allowed  8,192 pixels\n"
        "  memory   about 1 MB\n"
        "  hint: --max-image-pixels 9797 (in Python, max_image_pixels=9797) allows it; or save it "
        "smaller."
    )
    assert steps(path, max_pixels=9_797).shape == (3, 32, 32)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4_000)
    assert steps(path, max_pixels=9_797).shape == (3, 32, 32)
    with pytest.raises(UnsafeFile, match="more pixels than are allowed"):
        steps(path, max_pixels=9_796)


def test_damaged_recordings_never_end_in_a_traceback(tmp_path):
    steps = Preprocessing.from_huggingface(
        {"feature_extractor_type": "ASTFeatureExtractor", "num_mel_bins": 24, "max_length": 9}
    )
    random = np.random.default_rng(0)
    path = tmp_path / "bird.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(random.integers(-9000, 9000, 2000).astype("<i2").tobytes())
    sound, refused = path.read_bytes(), 0
    for _ in range(300):
        damaged = bytearray(sound)
        for position in random.integers(0, 44, 2):
            damaged[position] = random.integers(256)
        path.write_bytes(damaged)
        try:
            steps(path)
        except (CorruptFile, InputMismatch) as error:
            refused += 1
            assert error.evidence["sound"] == str(path)
    assert refused > 100
