"""One file for images of every size: as the libraries compute it, and what is refused."""

import json
import re
from collections import Counter

import numpy as np
import pytest
import torch

import vitconvert
from tests.conversion.test_other_sizes import noise
from tests.model.test_dynamic_size import MERGED, free
from tests.packages import timm
from tests.runtimes.free_sizes import DOCUMENT, GRIDS, REFUSED, SOURCES, departures
from tests.runtimes.test_export import DIGITS, SAMPLES, export, needed
from tests.runtimes.test_families import PARTS
from tests.sampling import sampled
from tests.small_models import randomise, relative, small_config
from vitconvert.cli import main
from vitconvert.errors import InputMismatch, NotRepresentable, ParityFailed, UsageError
from vitconvert.model import FastViT, ViT
from vitconvert.runtimes import RUNTIMES, check_onnx
from vitconvert.runtimes.export import quiet
from vitconvert.runtimes.graph import Graph, Shape, require_open_sizes, traced

SUPPORTED = [name for name in SOURCES if name not in REFUSED]


def printed(capsys, *arguments, code=0):
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments)])
    found = capsys.readouterr()
    assert end.value.code == code, found.err
    return found.out if code == 0 else found.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "name"),
    [
        *sampled([("onnx", name) for name in SUPPORTED], 4),
        *sampled([("openvino", name) for name in SUPPORTED], 7),
        *sampled([("pt2", name) for name in SUPPORTED], 5),
    ],
)
def test_equals_the_library(to, name, tmp_path):
    needed(to)
    assert max(departures(name, to, tmp_path)) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason(name, tmp_path):
    source = SOURCES[name](tmp_path)
    with pytest.raises(NotRepresentable, match="for images of any size") as raised:
        vitconvert.export_model(source, tmp_path / "m.pt2", to="pt2", dynamic_size=True)
    assert raised.value.evidence["because"].startswith(REFUSED[name])
    assert not (tmp_path / "m.pt2").exists()


def test_the_table_has_every_family():
    text = DOCUMENT.read_text(encoding="utf-8")
    (table,) = re.findall(r"<!-- free sizes -->(.*?)<!-- end -->", text, re.DOTALL)
    for name in SOURCES:
        assert table.count(f"| {name} |") == (1 if name in REFUSED else 2), name
    assert all(float(cell) < 2e-5 for cell in re.findall(r"\d\.\de[-+]\d\d", table))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The demo's digits for images of any size, one file of each kind that was asked for."""
    folder, made = tmp_path_factory.mktemp("files"), {}

    def file(to, **choices):
        key = (to, *choices)
        if key not in made:
            place = folder / str(len(made))
            place.mkdir()
            made[key] = export(place, to, dynamic_size=True, **choices)
        return made[key]

    return file


@pytest.mark.slow
def test_says_what_it_takes_and_is_checked_at_five_sizes(files):
    exported = files("pt2")
    assert exported.record["input"]["shape"] == ["batch", 3, "height", "width"]
    sizes = {re.search(r"\d+x\d+|at once", one.images)[0] for one in exported.comparisons}
    assert len(sizes) == 5 and "at once" in sizes
    config = exported.config
    assert any(config.position_resampling in note for note in exported.notes)
    assert "pixels beyond the last whole patch: refused" in exported.notes


@pytest.mark.slow
@pytest.mark.parametrize("to", RUNTIMES)
def test_images_of_no_whole_patches(to, files):
    """Runtimes stop, or give NaN where they would give other images' outputs."""
    needed(to)
    exported = files(to)
    run, patch = RUNTIMES[to].open(exported.output, threads=1), exported.config.patch_size[0]
    assert run(noise((5 * patch, 9 * patch))).isfinite().all()
    bad = noise((5 * patch + 1, 9 * patch))
    if RUNTIMES[to].stops_at_shapes:
        with pytest.raises(Exception, match=r"shape|size"):
            run(bad)
    else:
        assert run(bad).isnan().all()
    assert run(noise((3 * patch, 2 * patch))).isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("to", sampled(RUNTIMES, 3))
def test_images_of_no_whole_patches_through_convolutions(to, tmp_path):
    """A stem takes images of any size, so outputs are NaN; timm and PyTorch raise errors."""
    needed(to)
    torch.manual_seed(0)
    model = randomise(ViT(small_config(**PARTS["mobileclip"])))
    runtime, down, across = RUNTIMES[to], *(8 * side for side in model.config.patch_size)
    path, stops = tmp_path / f"model{runtime.suffix}", runtime.stops_at_shapes
    with quiet():
        graph = Graph(free(model, FastViT), Shape(dynamic_size=True), stops=stops)
        runtime.write(traced(graph), path, {})
    run = runtime.open(path, threads=1)
    for size in ((5 * down, 3 * across), (2 * down, 7 * across)):
        assert relative(run(noise(size)), free(model)(noise(size))) < 2e-5
        for wrong in ((size[0] + 1, size[1]), (size[0], size[1] - 1)):
            assert run(noise(wrong)).isnan().all()
            with pytest.raises(InputMismatch, match="do not divide into patches"):
                free(model)(noise(wrong))


REASONS = {
    "stem": (PARTS["resnet"], "the padding of its convolutional stem depends on the size"),
    "windows": (PARTS["windows"], "windows of attention are filled up by size"),
    "offsets": (PARTS["windows"], "attention reads vectors for each offset"),
    "merged": (MERGED, "its patches are merged in squares"),
    "geometric": (
        {"relative_positions": "block", "position_embedding": "none"},
        "timm spreads its relative positions by a search",
    ),
    "first": ({"position_resampling": "first"}, "its positions are the first of a table"),
}


@pytest.mark.parametrize("kind", REASONS)
def test_why_no_graph_holds_a_model(kind):
    parts, reason = REASONS[kind]
    with pytest.raises(NotRepresentable, match="for images of any size") as raised:
        require_open_sizes(small_config(**parts))
    assert reason in raised.value.evidence["because"]
    require_open_sizes(small_config(**PARTS["mobileclip"]))


@pytest.mark.slow
def test_predicts_at_another_size(files, capsys, tmp_path):
    needed("onnx")
    file = files("onnx", with_preprocessing=True).output
    size = 2 * files("onnx", with_preprocessing=True).config.image_size[0]
    arguments = ("--image-size", size, "--json")
    theirs = json.loads(printed(capsys, "predict", file, SAMPLES[0], *arguments))
    ours = json.loads(printed(capsys, "predict", DIGITS, SAMPLES[0], *arguments))
    logits = [[one["logit"] for one in found["top"]] for found in (theirs, ours)]
    assert np.allclose(*logits, rtol=1e-4, atol=1e-4)
    said = printed(capsys, "predict", file, SAMPLES[0], "--image-size", size + 1, code=2)
    assert "does not divide into patches" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(["DINOv3, timm", "ViT, timm"], 2))
def test_a_file_of_one_size_computes_nothing_of_free_ones(name, tmp_path):
    """Each kind of node is there at most as often as where torch exports timm's own model."""
    needed("onnx")
    import onnx

    source = SOURCES[name](tmp_path)
    model = timm.create_model(f"local-dir:{source}", pretrained=True).eval()
    images = noise([7 * patches for patches in GRIDS[0]]).expand(2, -1, -1, -1)
    free = {0: torch.export.Dim("batch", min=1)}
    how = {"dynamo": True, "verbose": False, "dynamic_shapes": (free,)}
    theirs = Counter(
        node.op_type for node in torch.onnx.export(model, (images,), **how).model.graph
    )

    how = {"to": "onnx", "verify": False}
    vitconvert.export_model(source, tmp_path / "one.onnx", **how)
    vitconvert.export_model(source, tmp_path / "any.onnx", **how, dynamic_size=True)
    one, every = (onnx.load(tmp_path / f"{name}.onnx").graph for name in ("one", "any"))
    assert not Counter(node.op_type for node in one.node) - theirs
    assert Counter(node.op_type for node in every.node) - theirs
    for value in (*one.input, *one.output):
        first, *others = value.type.tensor_type.shape.dim
        assert first.dim_param == "batch" and all(size.dim_value for size in others)


@pytest.mark.slow
def test_images_of_a_single_row_of_patches(files, capsys):
    """torch.export holds no graph for them, and others give what the checkpoint gives."""
    patch = files("pt2").config.patch_size[0]
    sized = (SAMPLES[0], "--image-size", f"{patch}x{5 * patch}")
    said = printed(capsys, "predict", files("pt2").output, *sized, code=2)
    assert "too small for this file" in said and "1x5" in said
    needed("onnx")
    theirs = json.loads(printed(capsys, "predict", files("onnx").output, *sized, "--json"))
    ours = json.loads(printed(capsys, "predict", DIGITS, *sized, "--json"))
    logits = [[one["logit"] for one in found["top"]] for found in (theirs, ours)]
    assert np.allclose(*logits, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_file_of_one_size_says_so(capsys, tmp_path):
    file = export(tmp_path, "pt2").output
    assert printed(capsys, "predict", file, SAMPLES[0], "--image-size", 32, "-q")
    said = printed(capsys, "predict", file, SAMPLES[0], "--image-size", 64, code=2)
    assert "images of 32x32 pixels only" in said and "--dynamic-size" in said


@pytest.mark.slow
def test_the_golden_numbers_are_of_the_native_size(files, capsys):
    needed("onnx")
    exported = files("onnx")
    assert check_onnx.main([str(exported.output)]) == 0
    assert "height and width are open" in capsys.readouterr().out
    assert exported.remaining[0].startswith("note: height and width are open")
    names = [str(size) for size in check_onnx.read_model(exported.output).inputs[0].shape]
    patch = exported.config.patch_size[0]
    assert names == ["batch", "3", f"{patch}*rows", f"{patch}*columns"]


@pytest.mark.slow
def test_what_departs_at_another_size_is_not_written(monkeypatch, tmp_path):
    original = RUNTIMES["pt2"].__class__.open

    def opened(self, path, **how):
        run = original(self, path, **how)
        return lambda images: run(images) + (images.shape[2] < images.shape[3]) * 0.1

    monkeypatch.setattr(RUNTIMES["pt2"].__class__, "open", opened)
    with pytest.raises(ParityFailed) as raised:
        export(tmp_path, "pt2", dynamic_size=True)
    assert "pixels" in raised.value.evidence["images"]
    assert not list(tmp_path.iterdir())


def test_options_that_do_not_go_together(tmp_path):
    with pytest.raises(UsageError, match="one image size"):
        export(tmp_path, "onnx", dynamic_size=True, int8=True)
    with pytest.raises(UsageError, match="keeps the positions as they are"):
        export(tmp_path, "pt2", dynamic_size=True, image_size=56)
