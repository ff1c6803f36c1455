"""A vitconvert.json is believed only while it is true of the files beside it."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import vitconvert
from tests.hub_server import HubServer, use_hub
from tests.packages import timm, transformers
from tests.small_models import SMALL_TIMM, randomise
from vitconvert.cli import main
from vitconvert.errors import MissingFact
from vitconvert.formats import hash_file

SIZES = SMALL_TIMM | {"img_size": 48}
BELIEVED = "vitconvert.json is not used: {} changed since, and {} read like any other file"


@pytest.fixture
def image(tmp_path):
    pixels = np.random.default_rng(5).integers(0, 256, (61, 53, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    return tmp_path / "image.png"


def timm_model(seed=0, name="vit_tiny_patch16_224", **arguments):
    torch.manual_seed(seed)
    return randomise(timm.create_model(name, **SIZES | arguments)).eval()


def save(model, directory, **arguments):
    """As timm does: a pytorch_model.bin, or where it is asked for, a model.safetensors."""
    safe = arguments.pop("safe_serialization", True)
    timm.models.save_for_hf(model, directory, model_args=SIZES | arguments, safe_serialization=safe)


@pytest.fixture
def output(tmp_path):
    """What vitconvert wrote of a timm model, in timm's layout."""
    save(timm_model(), tmp_path / "source")
    vitconvert.convert(tmp_path / "source", output=tmp_path / "out", verify=False)
    return tmp_path / "out"


def edit(path, change):
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


def timms_probabilities(directory, image):
    model = timm.create_model(f"local-dir:{directory}", pretrained=True).eval()
    data = timm.data.resolve_model_data_config(model)
    with Image.open(image) as opened, torch.inference_mode():
        pixels = timm.data.create_transform(**data, is_training=False)(opened.convert("RGB"))
        return model(pixels[None]).softmax(-1)[0]


def transformers_probabilities(directory, image):
    model = transformers.AutoModelForImageClassification.from_pretrained(directory).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(directory)
    with Image.open(image) as opened, torch.inference_mode():
        return model(**processor(opened.convert("RGB"), return_tensors="pt")).logits.softmax(-1)[0]


def ours(directory, image, **options):
    (prediction,) = vitconvert.predict(directory, [image], topk=100, **options)
    found = {c.index: c.probability for c in prediction.top}
    return torch.tensor([found[index] for index in sorted(found)])


def new_mean(said):
    said["pretrained_cfg"] |= {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.3, 0.2], "crop_pct": 0.7}


def test_it_is_believed_as_long_as_nothing_changes(output, tmp_path):
    shutil.copytree(output, tmp_path / "copy")
    (tmp_path / "copy" / "README.md").write_text("edited")
    for directory in (output, tmp_path / "copy"):
        checkpoint = vitconvert.load_checkpoint(directory)
        assert checkpoint.doubts == checkpoint.ledger.notes == ()
        assert checkpoint.config.origins["num_heads"].endswith(", recorded in vitconvert.json")


@pytest.mark.slow
def test_an_edited_preprocessing_is_read_everywhere(output, image, tmp_path, capsys):
    before = ours(output, image)
    edit(output / "config.json", new_mean)
    wanted = timms_probabilities(output, image)
    assert (wanted - before).abs().max() > 0.01
    assert torch.allclose(ours(output, image), wanted, atol=1e-5)
    checkpoint = vitconvert.load_checkpoint(output)
    note = BELIEVED.format("config.json was", "is")
    assert checkpoint.doubts == (note,)
    assert note in checkpoint.ledger.notes and note in vitconvert.inspect(output).notes
    assert checkpoint.preprocessing.mean == (0.1, 0.2, 0.3)
    again = vitconvert.convert(output, to="hf", output=tmp_path / "hf", verify=False)
    assert note in again.ledger.notes
    processor = json.loads((tmp_path / "hf" / "preprocessor_config.json").read_text())
    assert processor["image_mean"] == [0.1, 0.2, 0.3]
    more = ["-o", str(tmp_path / "features")]
    for typed in (["predict", str(output)], ["embed", str(output)], ["embed", str(output), *more]):
        with pytest.raises(SystemExit) as exit_:
            main([*typed, str(image)])
        assert (exit_.value.code or 0, f"note: {note}" in capsys.readouterr().err) == (0, True)
    exported = vitconvert.export_model(
        output, tmp_path / "x.onnx", to="onnx", with_preprocessing=True
    )
    assert note in exported.notes
    assert exported.record["preprocessing"]["mean"] == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_a_model_that_timm_saved_over_it(kind, output, image):
    """By default timm writes a pytorch_model.bin beside the model.safetensors of before."""
    if kind == "torch":
        (output / "model.safetensors").unlink()
    model = timm_model(seed=1, num_classes=3, depth=3)
    save(model, output, num_classes=3, depth=3, safe_serialization=kind == "safetensors")
    wanted = timms_probabilities(output, image)
    assert torch.allclose(ours(output, image), wanted, atol=1e-5)
    assert len(vitconvert.load_checkpoint(output).doubts) == 1


def test_weights_that_timm_saved_beside_it(output, image):
    """timm itself reads the model.safetensors of before, and so does vitconvert, but says so."""
    save(timm_model(seed=1), output, safe_serialization=False)
    assert torch.allclose(ours(output, image), timms_probabilities(output, image), atol=1e-5)
    said = vitconvert.load_checkpoint(output).doubts
    assert said[-1] == "pytorch_model.bin is not read, as model.safetensors is there"


def test_a_model_of_the_same_header_that_another_program_saved(output, image):
    """Its names and shapes are the same; what the file says of itself is not."""
    model = timm_model(seed=2)
    save_file(model.state_dict(), output / "model.safetensors", metadata={"format": "pt"})
    assert torch.allclose(ours(output, image), timms_probabilities(output, image), atol=1e-5)
    assert "model.safetensors was" in vitconvert.load_checkpoint(output).doubts[0]


def test_verify_and_diff_read_every_byte(output, tmp_path):
    shutil.copytree(output, tmp_path / "as it was")
    with (output / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))
    assert vitconvert.load_checkpoint(output).doubts == ()
    note = BELIEVED.format("model.safetensors was", "is")
    assert note in vitconvert.verify(output).notes
    assert note in vitconvert.verify(tmp_path / "as it was", against=output, tolerance=1).notes
    assert vitconvert.diff(tmp_path / "as it was", output).unstated == (f"b: {note}",)
    assert vitconvert.diff(tmp_path / "as it was", output, header=True).unstated == ()


@pytest.fixture
def hf_output(huggingface_directory, tmp_path):
    source = huggingface_directory(image_size=48, layer_norm_eps=1e-3)
    transformers.ViTImageProcessor(size={"height": 48, "width": 48}).save_pretrained(source)
    vitconvert.convert(source, to="hf", output=tmp_path / "hf", verify=False)
    return tmp_path / "hf"


def test_a_model_that_transformers_saved_over_it(hf_output, image):
    config = transformers.ViTConfig.from_pretrained(hf_output)
    config.update({"layer_norm_eps": 0.25, "num_labels": 3})
    config.id2label = {0: "a", 1: "b", 2: "c"}
    model = randomise(transformers.ViTForImageClassification(config))
    model.save_pretrained(hf_output)
    processor = transformers.ViTImageProcessor(
        size={"height": 48, "width": 48}, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.3, 0.2]
    )
    processor.save_pretrained(hf_output)
    checkpoint = vitconvert.load_checkpoint(hf_output)
    assert (checkpoint.config.norm_eps, checkpoint.labels) == (0.25, ("a", "b", "c"))
    files = "model.safetensors, config.json, preprocessor_config.json were"
    assert checkpoint.doubts == (BELIEVED.format(files, "are"),)
    wanted = transformers_probabilities(hf_output, image)
    assert torch.allclose(ours(hf_output, image), wanted, atol=1e-4)


def test_edited_numbers_of_transformers_win(hf_output, image):
    edit(hf_output / "config.json", lambda said: said.update(layer_norm_eps=0.5))
    edit(hf_output / "preprocessor_config.json", lambda said: said.update(image_mean=[0.2] * 3))
    wanted = transformers_probabilities(hf_output, image)
    assert torch.allclose(ours(hf_output, image), wanted, atol=1e-4)


def test_timms_edited_preprocessing_comes_before_the_processor_beside_it(
    hf_output, image, tmp_path
):
    """What was transformers' has a processor too, in timm's layout, which is older then."""
    both = tmp_path / "both"
    vitconvert.convert(hf_output, to="timm", output=both, allow=["norm-eps"], verify=False)
    assert (both / "preprocessor_config.json").is_file()
    edit(both / "config.json", new_mean)
    assert vitconvert.load_checkpoint(both).preprocessing.mean == (0.1, 0.2, 0.3)
    assert torch.allclose(ours(both, image), timms_probabilities(both, image), atol=1e-5)
    edit(both / "preprocessor_config.json", lambda said: said.update(image_mean=[0.3] * 3))
    assert vitconvert.load_checkpoint(both).preprocessing.mean == (0.3, 0.3, 0.3)


def test_another_layout_saved_over_it(output, hf_output, image):
    """The record says timm, and transformers has been there."""
    shutil.copytree(hf_output, output.parent / "mixed")
    mixed = output.parent / "mixed"
    shutil.copy(output / "vitconvert.json", mixed)
    checkpoint = vitconvert.load_checkpoint(mixed)
    assert checkpoint.dialect.startswith("hf")
    assert len(checkpoint.doubts) == 1
    wanted = transformers_probabilities(mixed, image)
    assert torch.allclose(ours(mixed, image), wanted, atol=1e-4)


def test_shards_are_compared_one_by_one(output, tmp_path):
    sharded = tmp_path / "sharded"
    vitconvert.convert(output, to="hf", output=sharded, max_shard_size=20_000, verify=False)
    assert vitconvert.load_checkpoint(sharded).doubts == ()
    shard = sorted(sharded.glob("*-of-*"))[1]
    shard.write_bytes(shard.read_bytes() + b"\0")
    with pytest.raises(vitconvert.VitConvertError):
        vitconvert.load_checkpoint(sharded)  # safetensors has no room for more
    record = json.loads((sharded / "vitconvert.json").read_text())
    assert shard.name in record["weights"]["bytes"]


def test_where_only_the_record_knew_the_error_says_why(output, tmp_path):
    vitconvert.convert(output, to="jeonsworld", output=tmp_path / "own", verify=False)
    assert vitconvert.load_model(tmp_path / "own").config.num_heads == 3
    edit(tmp_path / "own" / "vitconvert.json", lambda said: said["sha256"].clear())
    with pytest.raises(MissingFact) as caught:
        vitconvert.load_model(tmp_path / "own")
    assert caught.value.evidence["note"] == BELIEVED.format("model.pt was", "is")
    found = vitconvert.inspect(tmp_path / "own")
    assert caught.value.evidence["note"] in found.notes


def test_files_added_since_come_first(output, image, tmp_path):
    """The record says nothing of them."""
    vitconvert.convert(output, to="jeonsworld", output=tmp_path / "out2", verify=False)
    directory = tmp_path / "out2"
    added = {"image_processor_type": "ViTImageProcessor", "size": 48, "image_mean": [0.3] * 3}
    (directory / "preprocessor_config.json").write_text(json.dumps(added))
    checkpoint = vitconvert.load_checkpoint(directory)
    assert checkpoint.preprocessing.mean == (0.3, 0.3, 0.3)
    assert checkpoint.config.num_heads == 3  # which is still known
    assert checkpoint.doubts == (
        "vitconvert.json does not list preprocessor_config.json, which takes precedence",
    )


def test_a_record_of_an_earlier_version(output, image):
    """It states the hash of weights alone: these are hashed, and the files beside come first."""

    def earlier(said):
        del said["weights"], said["files"]
        said["sha256"] = {"model.safetensors": said["sha256"]["model.safetensors"]}

    edit(output / "vitconvert.json", earlier)
    edit(output / "config.json", new_mean)
    checkpoint = vitconvert.load_checkpoint(output)
    assert checkpoint.preprocessing.mean == (0.1, 0.2, 0.3)
    assert "does not list config.json" in checkpoint.doubts[0]
    assert torch.allclose(ours(output, image), timms_probabilities(output, image), atol=1e-5)


def test_random_weights_stay_random_when_a_file_beside_them_is_edited(output):
    edit(output / "vitconvert.json", lambda said: said["source"].update(random=True))
    edit(output / "config.json", new_mean)
    assert vitconvert.load_checkpoint(output).random


def test_from_the_hub_it_is_believed_whole_and_by_its_header_alone(
    hf_output, tmp_path, monkeypatch
):
    files = {path.name: path.read_bytes() for path in hf_output.iterdir()}
    files["config.json"] = files["config.json"].replace(b"0.001", b"0.002")
    as_it_was = {**files, "config.json": (hf_output / "config.json").read_bytes()}
    with HubServer({"org/vit": as_it_was, "org/edited": files}) as server:
        use_hub(monkeypatch, server, tmp_path)
        for read in (vitconvert.load_checkpoint, vitconvert.inspect):
            found, edited = read("hf-hub:org/vit"), read("hf-hub:org/edited")
            stated = found.ledger.notes if read is vitconvert.load_checkpoint else found.notes
            assert not any("vitconvert.json" in note for note in stated)
            notes = edited.ledger.notes if read is vitconvert.load_checkpoint else edited.notes
            assert BELIEVED.format("config.json was", "is") in notes
        assert vitconvert.load_checkpoint("hf-hub:org/edited").config.norm_eps == 0.002


def test_the_record_speaks_for_every_file(hf_output):
    record = json.loads((hf_output / "vitconvert.json").read_text())
    names = {path.name for path in hf_output.iterdir()} - {"vitconvert.json"}
    assert record["sha256"] == {name: hash_file(hf_output / name) for name in names}
