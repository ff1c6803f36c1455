"""`Embedder`: a model in any pipeline, that gives what `embed` gives, and travels light."""

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

import vitconvert
from tests.preprocessing.conftest import photograph, photographs
from tests.small_models import randomise, small_config
from vitconvert.checkpoint import read_checkpoint
from vitconvert.embedding import embedder as module
from vitconvert.errors import CorruptFile, SourceError, UsageError, VitConvertError
from vitconvert.model import ViT
from vitconvert.preprocessing import Preprocessing

__all__ = ["photograph", "photographs"]  # fixtures

PREPROCESSING = Preprocessing.from_timm({"input_size": (3, 32, 24), "interpolation": "bilinear"})


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A ViT of odd sizes and random numbers, without a word on how images are prepared."""
    folder = tmp_path_factory.mktemp("model") / "vit"
    torch.manual_seed(0)
    model = randomise(ViT(small_config(depth=11)))
    torch.save(model.state_dict(), folder.with_suffix(".pth"))
    vitconvert.convert(
        folder.with_suffix(".pth"),
        output=folder,
        overrides={"image_size": "32x24", "num_heads": 3},
        verify=False,
    )
    return folder


@pytest.fixture
def files(tmp_path, photographs):
    paths = [tmp_path / f"{number}.png" for number in range(len(photographs))]
    for path, image in zip(paths, photographs, strict=True):
        image.save(path)
    return paths


def embedder(directory, **options):
    return vitconvert.Embedder(directory, preprocessing=PREPROCESSING, batch_size=2, **options)


def wanted(directory, paths, **options):
    found = vitconvert.embed(directory, paths, PREPROCESSING, batch_size=2, **options)
    return np.stack([embedding.features.numpy() for embedding in found])


def close(found, expected):
    found = np.stack(found)
    assert found.dtype == np.float32 and found.shape == expected.shape
    return np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_paths_contents_and_open_images_give_what_embed_gives(directory, files):
    ready, expected = embedder(directory), wanted(directory, files)
    assert len(files) > 3
    for images in (
        files,
        list(map(str, files)),
        [path.read_bytes() for path in files],
        [bytearray(path.read_bytes()) for path in files],
        [memoryview(path.read_bytes()) for path in files],
        [path.read_bytes for path in files],
        [Image.open(path) for path in files],
    ):
        assert close(ready(images), expected)
    assert ready.width == expected.shape[1] == 30
    assert not close(ready(files[::-1]), expected)  # the order is that of the images
    assert ready([]) == []
    every = embedder(directory, computed="tokens")
    assert close(every(files), wanted(directory, files, tokens=True))
    assert every.width == 30


def test_errors_are_values_in_their_rows(directory, files, tmp_path):
    images = [files[0], tmp_path / "none.png", b"meow", files[1].read_bytes(), None, 3, files[2]]
    found = embedder(directory)(images)
    kinds = [type(row) for row in found]
    assert kinds == [
        *(np.ndarray, SourceError, CorruptFile, np.ndarray, UsageError, UsageError, np.ndarray)
    ]
    good = [row for row in found if isinstance(row, np.ndarray)]
    assert close(good, wanted(directory, files[:3]))
    assert all(isinstance(pickle.loads(pickle.dumps(row)), kinds[n]) for n, row in enumerate(found))
    assert "NoneType" in str(found[4])


def test_a_stream_takes_images_as_it_needs_them(directory, files):
    taken = 0

    def images():
        nonlocal taken
        for number in range(100):
            taken += 1
            yield files[number % len(files)]

    stream = embedder(directory, threads=1).stream(images())
    next(stream)
    assert taken < 20
    stream.close()


def test_errors(directory, tmp_path):
    for image in ("a.jpg", b"content"):
        with pytest.raises(UsageError, match="takes several images"):
            embedder(directory).stream(image)
    with pytest.raises(UsageError, match="has no classes"):
        vitconvert.Embedder("model", computed="classes")
    ready = vitconvert.Embedder(tmp_path / "none")  # which is missed when it is used
    with pytest.raises(VitConvertError):
        ready([b""])


def test_it_pickles_to_little_also_when_it_is_loaded(directory, files):
    ready = embedder(directory)
    before = pickle.dumps(ready)
    expected = ready(files)
    after = pickle.dumps(ready)
    assert after == before and len(after) < 10_000
    copy = pickle.loads(after)
    assert copy.identity == ready.identity
    assert close(copy(files), np.stack(expected))


def test_identity_tells_what_decides_the_numbers(directory):
    same = [{}, {"threads": 1}, {"fast": False}]
    other = [{"computed": "tokens"}, {"fast_preprocessing": True}, {"dtype": torch.bfloat16}]
    first, *rest = (embedder(directory, **options).identity for options in same)
    assert all(identity == first for identity in rest)
    assert all(embedder(directory, **options).identity != first for options in other)


def test_threads_share_one_model(directory, files, monkeypatch):
    loads = []
    read = read_checkpoint
    monkeypatch.setattr(module, "read_checkpoint", lambda *a: loads.append(1) or read(*a))
    ready, expected = embedder(directory), wanted(directory, files)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ready, [files] * 8))
    assert len(loads) == 1
    assert all(close(answer, expected) for answer in answers)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.coverage
def test_processes_have_a_model_each(directory, files):
    ready, expected = embedder(directory, threads=1), wanted(directory, files)
    ready(files)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for answer in pool.map(ready, [files] * 2):
            assert close(answer, expected)
