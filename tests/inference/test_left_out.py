"""What Pillow leaves out of a file is computed as the library does, and told once for a run."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from safetensors import safe_open

import vitconvert
from vitconvert.cli import main
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import VitConvertWarning
from vitconvert.inference.embedding_files import write_embeddings

DEEP = "16-bit or 32-bit numbers, of which all above 255 are white"
FLOAT = "float numbers become whole ones from 0 to 255, so that all from 0 to 1 are black"
SEVERAL = "the file has several images, of which the first is read"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    random = np.random.default_rng(1)
    grey = random.integers(0, 256, (40, 52), np.uint8)
    for number in range(5):
        deep = Image.fromarray(grey.astype(np.uint16) * 257)
        deep.save(folder / f"deep {number}.png")
    Image.fromarray(grey.astype(np.float32) / 255).save(folder / "float.tif")
    pages = [Image.fromarray(grey), Image.fromarray(255 - grey)]
    pages[0].save(folder / "pages.tif", save_all=True, append_images=pages[1:])
    pages[0].save(folder / "pages.gif", save_all=True, append_images=pages[1:])
    pages[0].save(folder / "photo.jpg", "MPO", save_all=True, append_images=pages[1:])
    pages[0].save(folder / "plain.png")
    return folder


TOLD = {
    f"5 images (deep 0.png, deep 1.png, deep 2.png and 2 more, see remarks): {DEEP}",
    f"1 image (float.tif): {FLOAT}",
    f"2 images (pages.gif, pages.tif): {SEVERAL}",
}


@pytest.mark.parametrize("verb", [vitconvert.predict, vitconvert.embed])
def test_a_run_names_the_files_in_python(verb, files):
    with pytest.warns(VitConvertWarning) as told:
        answers = list(verb(DIGITS, files))
    assert not any(answer.error for answer in answers)
    assert {str(one.message) for one in told} == TOLD
    deep = [answer.path.name for answer in answers if DEEP in answer.remarks]
    assert deep == [f"deep {number}.png" for number in range(5)]
    assert [a.path.name for a in answers if a.to_dict()["remarks"] == [FLOAT]] == ["float.tif"]
    assert not {a.path.name: a.remarks for a in answers}["plain.png"]


REMARKS = {"float.tif": FLOAT, "pages.tif": SEVERAL, "pages.gif": SEVERAL}
REMARKS |= {f"deep {number}.png": DEEP for number in range(5)}


@pytest.mark.filterwarnings("ignore::vitconvert.errors.VitConvertWarning")
@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".jsonl"])
def test_every_remark_is_in_a_file_of_features(suffix, files, tmp_path):
    found = write_embeddings(tmp_path / f"f{suffix}", vitconvert.embed(DIGITS, files))
    assert found == 10
    path = tmp_path / f"f{suffix}"
    if suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        paths, remarks = [r["path"] for r in rows], ["; ".join(r["remarks"]) for r in rows]
    elif suffix == ".npz":
        stored = np.load(path)
        paths, remarks = stored["paths"], stored["remarks"]
    else:
        with safe_open(path, "pt") as stored:
            paths, remarks = (json.loads(stored.metadata()[n]) for n in ("paths", "remarks"))
    named = {Path(p).name: str(r) for p, r in zip(paths, remarks, strict=True) if r}
    assert named == REMARKS
    write_embeddings(path, vitconvert.embed(DIGITS, files / "plain.png"), overwrite=True)
    assert suffix == ".jsonl" or b"remarks" not in path.read_bytes()


def test_every_remark_is_in_a_directory_of_features(files, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["embed", str(DIGITS), str(files), "-o", str(tmp_path / "out"), "--shard-rows", "3"])
    assert "note: remarks/ names every image" in capsys.readouterr().err
    rows = parquet.read_table(tmp_path / "out" / "remarks").to_pylist()
    assert {Path(row["key"]).name: row["remark"] for row in rows} == REMARKS
    assert "config_name: remarks" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("verb", ["predict", "embed", "attention"])
def test_the_command_line_notes_it(verb, files, tmp_path, capsys):
    more = {"embed": ["-o", str(tmp_path / "f.npz")], "attention": ["-o", str(tmp_path / "maps")]}
    with pytest.raises(SystemExit) as ended:
        main([verb, str(DIGITS), str(files), *more.get(verb, [])])
    assert not ended.value.code
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    for fact in (DEEP, FLOAT, SEVERAL):
        assert any(note.endswith(fact) for note in notes), notes
    if verb != "attention":  # which shows image by image
        assert {note.removeprefix("note: ") for note in notes} == TOLD


def test_one_image_is_told_and_computed_as_pillow_has_it(files):
    prepare = vitconvert.load_checkpoint(DIGITS).preprocessing
    facts = {"deep 0.png": DEEP, "float.tif": FLOAT, "pages.tif": SEVERAL, "pages.gif": SEVERAL}
    for name, fact in facts.items():
        with pytest.warns(VitConvertWarning, match=fact):
            found = prepare(files / name)
        with Image.open(files / name) as image:
            plain = image.convert("RGB")
        assert torch.equal(found, prepare(plain)), name


def test_a_preview_and_plain_images_are_nothing_to_tell(files):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare = vitconvert.load_checkpoint(DIGITS).preprocessing
        prepare(files / "photo.jpg")
        prepare(files / "plain.png")


def test_a_damaged_second_image_leaves_the_first_as_it_is(files, tmp_path):
    prepare = vitconvert.load_checkpoint(DIGITS).preprocessing
    content = (files / "pages.gif").read_bytes()
    with pytest.warns(VitConvertWarning):
        wanted = prepare(content)
    second = content.rindex(b"\x2c")  # where an image begins
    for length in (second + 1, second + 4, second + 10, second + 20, len(content) - 30):
        (tmp_path / "cut.gif").write_bytes(content[:length])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert torch.equal(prepare(tmp_path / "cut.gif"), wanted), length
