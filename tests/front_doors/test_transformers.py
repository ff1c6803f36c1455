"""Models in a directory, asked about image files by transformers' users' ways and by vitconvert."""

import json
import re
import wave

import numpy as np
import pytest
import torch

import vitconvert
from tests.front_doors import make_table, transformers_doors
from tests.front_doors.hugging_face import DOORS, OTHERWISE
from tests.front_doors.images import write_images
from tests.front_doors.judge import EQUAL, answer, judged, quietly
from tests.front_doors.of_keras_hub import TIES
from tests.huggingface.every_class import made
from tests.packages import transformers
from vitconvert.cli import main

# One of each kind of processor; the others take minutes.
OFTEN = ("DeiTForImageClassification", "Dinov2Model", "CLIPModel", "Siglip2Model", "Gemma4Model")
OFTEN += ("Qwen2_5_VLModel", "Ernie4_5_VLMoeModel", "PixtralVisionModel")


@pytest.mark.parametrize(
    "name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.coverage) for n in DOORS]
)
def test_numbers_are_those_of_the_front_door(name, tmp_path):
    images = write_images(tmp_path / "images", DOORS[name].exact)
    found = judged(DOORS[name], tmp_path / "model", images)
    assert found.keys() == images.keys()
    others = {kind: str(v) for kind, v in found.items() if not v.agrees}
    assert others.keys() == {kind for model, kind in OTHERWISE if model == name}, others
    assert sum(v.difference is not None for v in found.values()) >= len(images) - 1


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    DOORS["SiglipForImageClassification"].write(folder / "model")
    return folder / "model", write_images(folder / "images", (24, 24))


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert not ended.value.code


def test_the_command_line_answers_the_same(classifier, tmp_path, capsys):
    folder, images = classifier
    ask = DOORS["SiglipForImageClassification"].theirs(folder)
    with quietly():
        wanted = torch.stack([answer(ask, path) for path in images.values()])
    files = list(map(str, images.values()))
    run("predict", str(folder), *files, "--json", "--top", "7")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    logits = torch.zeros_like(wanted)
    for row, line in enumerate(lines):
        for each in line["top"]:
            logits[row, each["index"]] = each["logit"]
    scale = wanted.abs().max()
    assert float((logits - wanted).abs().max() / scale) < EQUAL
    model, checkpoint = vitconvert.load_model(folder), vitconvert.load_checkpoint(folder)
    with torch.inference_mode():
        batch = torch.stack([checkpoint.preprocessing(path) for path in images.values()])
        assert float((model(batch) - wanted).abs().max() / scale) < EQUAL
    run("embed", str(folder), *files, "-o", str(tmp_path / "out.npz"))
    features = torch.from_numpy(np.load(tmp_path / "out.npz")["features"])
    with torch.inference_mode():
        theirs = transformers.AutoModelForImageClassification.from_pretrained(folder).classifier
        assert float((theirs(features) - wanted).abs().max() / scale) < EQUAL


@pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")
def test_verify_asks_the_same_way(classifier):
    folder, images = classifier
    report = vitconvert.verify(folder, images=list(images.values()), dtypes=["float32"])
    assert report.ok, report.summary()
    assert "preprocessing: bit-equal pixels" in report.notes


def test_sounds_are_those_of_the_pipeline(tmp_path):
    made("ASTForAudioClassification").save_pretrained(tmp_path)
    sizes = {"num_mel_bins": 24, "max_length": 37}
    transformers.ASTFeatureExtractor(**sizes).save_pretrained(tmp_path)
    samples = (np.random.default_rng(0).normal(0, 3000, 7000)).astype("<i2")
    with wave.open(str(tmp_path / "sound.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(samples.tobytes())
    heard = {"raw": samples.astype(np.float32) / 2**15, "sampling_rate": 16_000}
    asked = transformers.pipeline("audio-classification", str(tmp_path))
    found = {each["label"]: each["score"] for each in asked(heard, top_k=7)}
    (ours,) = vitconvert.predict(tmp_path, tmp_path / "sound.wav", topk=7)
    for each in ours.top:
        assert abs(each.probability - found[f"LABEL_{each.index}"]) < EQUAL


def test_ways_into_transformers_differ_as_the_page_says(tmp_path):
    images = write_images(tmp_path / "images", (48, 48))
    page = make_table.IMAGES.read_text(encoding="utf-8")
    for title, processor in transformers_doors.PROCESSORS.items():
        assert title in page
        with quietly():
            found = transformers_doors.distances(tmp_path / processor, processor, images)
        for way, cells in found.items():
            (line,) = re.findall(
                rf"^\| `{re.escape(way)}` \|.*$",
                page.partition(title)[2].partition("\n\ndo_")[0],
                flags=re.MULTILINE,
            )
            stated = [cell.strip() for cell in line.split("|")[2:-1]]
            # Whether they differ, and which fail; how far depends on the decoder's release.
            assert [c == "0" for c in stated] == [c == "0" for c in cells], (title, way)
            errors = [cell if not cell.isdigit() else "" for cell in cells]
            assert errors == [cell if not cell.isdigit() else "" for cell in stated]
        assert set(found[transformers_doors.FOLLOWED]) == {"0"}


def test_the_table_has_a_row_for_each_model_and_a_column_for_each_image(tmp_path):
    text = make_table.README.read_text(encoding="utf-8")
    kinds = list(write_images(tmp_path))
    for library, doors in make_table.LIBRARIES.items():
        begin, end = make_table.marks(library)
        written = text.partition(begin)[2].partition(end)[0].strip().splitlines()
        cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in written]
        assert cells[0] == ["model", *kinds]
        assert [row[0] for row in cells[2:]] == list(doors)
        for model, *row in cells[2:]:
            for kind, cell in zip(kinds, row, strict=True):
                apart = re.fullmatch(r"\d+(e-\d+)?", cell)
                most = TIES if library == "KerasHub" else EQUAL
                agrees = float(cell) <= most if apart else cell.startswith("both refuse")
                assert agrees or (model, kind) in OTHERWISE, (model, kind, cell)
