"""int8 that images calibrate: which images, what is rounded by them, and what it cost."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

import vitconvert
from vitconvert.checkpoint.images import needed_preprocessing
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import MissingPackage, UsageError
from vitconvert.runtimes import RUNTIMES
from vitconvert.runtimes import images as module
from vitconvert.runtimes.graph import Shape
from vitconvert.runtimes.images import Calibration, as_levels, prepared

SUFFIXES = {"onnx": ".onnx", "openvino": ".xml"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Each sample of the demo in three places: the digits that its model reads."""
    folder = tmp_path_factory.mktemp("photos")
    for path in (DIGITS / "samples").glob("*.png"):
        pixels = np.asarray(Image.open(path))
        for across in range(3):
            moved = Image.fromarray(np.roll(pixels, across, axis=1))
            moved.save(folder / f"{path.stem}_{across}.png")
    return folder


@pytest.fixture(scope="module")
def usual():
    return needed_preprocessing(vitconvert.load_checkpoint(DIGITS))


def chosen(images, usual, **shape):
    return Calibration.of(images, usual, Shape(**shape))


def test_every_second_image_is_held_out_and_what_cannot_be_read_counts(photos, usual, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    paths = [*sorted(photos.iterdir()), tmp_path / "broken.png"]
    found = chosen(paths, usual)
    assert list(found.images) == paths[:30:2] and list(found.held_out) == paths[1:30:2]
    (unreadable,) = found.unreadable
    assert unreadable.startswith("broken.png: This file cannot be read as an image.")
    batches = list(found.batches())
    assert torch.equal(torch.cat(batches), torch.cat([usual(p)[None] for p in paths[:30:2]]))
    told = found.record()
    assert (told["images"], told["held_out"], told["names"][1]) == (15, 15, "0_2.png")
    assert str(tmp_path) not in json.dumps(told)


def test_the_sum_is_of_the_images_that_calibrate_as_the_graph_takes_them(photos, usual):
    paths = sorted(photos.iterdir())
    first = chosen(paths, usual)
    kept = [paths[0], paths[5], *paths[2:]]  # another that is held out
    assert chosen(kept, usual).sha256 == first.sha256
    assert chosen([paths[5], *paths[1:]], usual).sha256 != first.sha256
    pixels = chosen(paths, usual, pixels=usual)
    assert pixels.sha256 != first.sha256
    assert torch.equal(next(pixels.batches()), as_levels(usual(paths[0])[None], usual))


def test_a_batch_of_a_fixed_size_is_filled_up(photos, usual):
    sizes = [len(batch) for batch in chosen(photos.iterdir(), usual, batch=4).batches()]
    assert sizes == [4, 4, 4, 4]


def test_of_many_images_some_are_taken_from_all_over(photos, usual, monkeypatch):
    monkeypatch.setattr(module, "MOST", 22)
    monkeypatch.setattr(module, "LEAST", 12)
    paths = sorted(photos.iterdir())
    found = chosen(paths, usual)
    assert [*found.images, *found.held_out] == [*paths[::4], *paths[2::4]]


def test_error_too_few_images(photos, usual, tmp_path):
    with pytest.raises(UsageError, match="20 images or more") as caught:
        chosen(sorted(photos.iterdir())[:19], usual)
    assert caught.value.evidence == {"named": "19", "readable": "19"}
    with pytest.raises(UsageError, match="20 images or more") as caught:
        vitconvert.export_model(
            DIGITS, tmp_path / "x.onnx", to="onnx", int8=True, calibrate=tmp_path, verify=False
        )
    assert caught.value.evidence["readable"] == "0"
    assert caught.value.evidence["failed"] == f"{tmp_path.name}: Is a directory."
    assert list(tmp_path.iterdir()) == []


def test_larger_images_are_allowed_by_the_user(photos, usual):
    paths = sorted(photos.iterdir())
    found = Calibration.of(paths, usual, Shape(), max_pixels=32 * 32)
    assert not found.unreadable and len(list(found.batches())) == len(paths) // 2
    with pytest.raises(UsageError, match="20 images or more") as caught:
        Calibration.of(paths, usual, Shape(), max_pixels=10)
    assert "--max-image-pixels" in caught.value.evidence["failed"]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"to": "openvino", "int8": True}, "int8 of OpenVINO is calibrated with images"),
        ({"to": "pt2", "int8": True, "calibrate": "photos"}, "int8 is for ONNX and OpenVINO"),
        ({"to": "onnx", "calibrate": "photos"}, "calibrate: only int8 is calibrated"),
        (
            {"to": "openvino", "int8": True, "calibrate": "photos", "dtype": "float16"},
            "made from float32",
        ),
    ],
)
def test_error_choices(choices, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        vitconvert.export_model(DIGITS, tmp_path / "x", **choices)


def test_error_a_package_is_missing(photos, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name != "nncf" or None)
    with pytest.raises(MissingPackage, match="OpenVINO, calibrated, needs packages") as caught:
        vitconvert.export_model(
            DIGITS, tmp_path / "x.xml", to="openvino", int8=True, calibrate=photos
        )
    assert caught.value.hint == "pip install nncf"
    assert RUNTIMES["openvino"].missing() == []  # float32 is written without it


def exported(to, photos, folder, **choices):
    for package in (*RUNTIMES[to].packages, *RUNTIMES[to].calibrated_by):
        pytest.importorskip(package)
    output = folder / f"digits{SUFFIXES[to]}"
    return vitconvert.export_model(
        DIGITS, output, to=to, int8=True, calibrate=photos, overwrite=True, **choices
    )


def check(found):
    """It says that it is int8, and reads digits."""
    assert found.record["dtype"] == "int8"
    assert found.record["calibration"]["images"] == 15
    seen = found.held_out
    assert (seen.images, seen.agreed, seen.rows) == ("held out", 15, 15)
    assert 1e-4 < seen.relative < 0.1 and 0.99 < seen.cosine < 1 - 1e-7
    weights = (DIGITS / "model.safetensors").stat().st_size
    sizes = [found.output.with_name(name).stat().st_size for name in found.sha256]
    assert max(sizes) < 0.7 * weights
    (answer,) = vitconvert.predict(found.output, DIGITS / "samples" / "7.png", topk=1)
    assert answer.top[0].label == "7"


@pytest.mark.slow
def test_onnx_has_8_bits_in_its_products_by_channel_and_nowhere_else(photos, tmp_path):
    found = exported("onnx", photos, tmp_path)
    check(found)
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(found.output).graph
    held = {one.name: one for one in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    counted = Counter(node.op_type for node in graph.node)
    products = [n for n in graph.node if n.op_type in ("MatMul", "Gemm")]
    rounded = [n for n in products if makers.get(n.input[1], n).op_type == "DequantizeLinear"]
    assert len(rounded) == 16  # four in each of four blocks; the head is spared
    for node in rounded:
        weight, scale, _ = makers[node.input[1]].input
        assert held[weight].data_type == onnx.TensorProto.INT8
        assert held[scale].dims == [held[weight].dims[1 - (node.op_type == "Gemm")]]
        assert makers[makers[node.input[0]].input[0]].op_type == "QuantizeLinear"
    # An activation is rounded where a product reads it alone.
    assert counted["QuantizeLinear"] == 16


@pytest.mark.coverage
def test_openvino_has_8_bits(photos, tmp_path, capfd):
    found = exported("openvino", photos, tmp_path)
    assert "".join(capfd.readouterr()) == ""  # NNCF shows progress, and logs
    check(found)
    text = found.output.read_text()
    assert text.count('element_type="i8"') == 16
    assert found.held_out.relative < 0.04  # by ranges that are means over images, 0.06


@pytest.mark.coverage
@pytest.mark.parametrize("to", SUFFIXES)
def test_the_same_images_make_the_same_bytes(to, photos, tmp_path):
    found = exported(to, photos, tmp_path, verify=False)
    assert found.sha256 == exported(to, photos, tmp_path, verify=False).sha256


@pytest.mark.coverage
@pytest.mark.parametrize("to", SUFFIXES)
def test_pixels_a_fixed_batch_and_what_is_not_verified(to, photos, tmp_path):
    found = exported(
        to,
        photos,
        tmp_path,
        with_preprocessing=True,
        batch_size=4,
        probabilities=True,
        verify=False,
    )
    assert found.held_out is None and found.comparisons == ()
    answers = list(vitconvert.predict(found.output, DIGITS / "samples", topk=1))
    assert [answer.top[0].label for answer in answers] == list("0123456789")


@pytest.mark.coverage
def test_images_of_another_kind_calibrate_worse(photos, tmp_path):
    """What is measured on images that are held out is not what others would give."""
    noise = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), np.uint8)
    grey = [Image.fromarray(np.full_like(one, 127) + one // 64) for one in noise]
    worse = exported("onnx", grey, tmp_path, images=photos).photographs
    better = exported("onnx", photos, tmp_path, images=photos).photographs
    assert better.relative < 0.5 * worse.relative


def test_how_far_two_outputs_are_is_said_by_the_worst_image(photos, usual):
    from vitconvert.runtimes.check import Expected, agreement

    model = vitconvert.load_model(DIGITS)
    expected = Expected(model, Shape())
    images = sorted(photos.iterdir())[:4]
    x = torch.cat([prepared(image, usual, Shape(), None) for image in images])
    with torch.no_grad():
        right = model(x)
    wrong = right.clone()
    wrong[2] = -wrong[2]
    seen, failed = agreement(
        lambda images: wrong, expected, usual, images, dtype="int8", tolerance=1.0
    )
    assert (seen.agreed, seen.rows, failed) == (3, 4, [])
    assert seen.cosine == pytest.approx(-1, abs=1e-6)
