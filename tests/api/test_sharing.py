"""Models that save, load and publish themselves, beside `convert` and the real packages."""

import copy
import json
import logging
import pickle

import pytest
import torch

import vitconvert
from tests.hub_server import HubServer, use_hub
from tests.huggingface.classes import CLASSES
from tests.packages import peft, timm, transformers
from tests.sampling import sampled
from tests.saved_timm import FAMILIES, NAMES, save_timm
from tests.small_models import randomise_calmly, small_config, tiny_config
from vitconvert.model import FastViT

# The client's own call of its own transport (huggingface_hub 2.4, lfs.py).
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


def _images(model):
    torch.manual_seed(7)
    return torch.randn(2, model.config.in_channels, *model.config.image_size)


@torch.no_grad()
def _check_opened(folder, model):
    """Whatever opens the directory computes the model's logits, bit for bit."""
    images = _images(model)
    wanted = model(images)
    assert torch.equal(vitconvert.load_model(folder)(images), wanted)
    assert torch.equal(type(model).from_pretrained(folder)(images), wanted)
    layout = json.loads((folder / "config.json").read_text())
    if "architecture" in layout:
        theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        assert torch.equal(theirs(images), wanted)
    auto = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    assert torch.equal(auto(images).logits, wanted)


def _record(folder):
    return json.loads((folder / "vitconvert.json").read_text())


@pytest.mark.parametrize("kind", sampled(FAMILIES, 12, "slow"))
def test_what_is_saved_is_what_convert_writes_and_opens_as_timms(kind, tmp_path):
    save_timm(tmp_path / "source", kind)
    model = vitconvert.ViT.from_pretrained(tmp_path / "source")
    done = model.save_pretrained(tmp_path / "saved")
    converted = vitconvert.convert(tmp_path / "source", output=tmp_path / "converted")
    assert done.target_dialect == converted.target_dialect
    saved, wanted = ((tmp_path / name) for name in ("saved", "converted"))
    assert sorted(p.name for p in saved.iterdir()) == sorted(p.name for p in wanted.iterdir())
    assert (saved / "config.json").read_bytes() == (wanted / "config.json").read_bytes()
    same = ("config", "preprocessing", "labels", "labels_origin", "function_hash", "target")
    assert [_record(saved)[name] for name in same] == [_record(wanted)[name] for name in same]
    assert vitconvert.load_checkpoint(saved).labels == NAMES
    assert vitconvert.verify(saved).verified
    _check_opened(saved, model)


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in CLASSES if "classes" in name])
def test_of_transformers_too(family, tmp_path):
    randomise_calmly(CLASSES[family].model()).save_pretrained(tmp_path / "source")
    model = vitconvert.load_model(tmp_path / "source")
    done = model.save_pretrained(tmp_path / "saved")
    converted = vitconvert.convert(tmp_path / "source", output=tmp_path / "converted")
    assert done.target_dialect == converted.target_dialect
    _check_opened(tmp_path / "saved", model)


def test_what_a_checkpoint_says_is_copied_and_pickled_and_in_no_state_dict(tmp_path):
    model = vitconvert.load_model(save_timm(tmp_path / "source"))
    names = set(model.state_dict())
    assert names == set(vitconvert.ViT(model.config, device="meta").state_dict())
    model = pickle.loads(pickle.dumps(copy.deepcopy(model).to(torch.bfloat16)))
    model.save_pretrained(tmp_path / "saved", verify=False)
    again = vitconvert.load_checkpoint(tmp_path / "saved")
    assert again.labels == NAMES
    assert again.preprocessing == vitconvert.load_checkpoint(tmp_path / "source").preprocessing
    assert {t.dtype for t in again.tensors.values()} == {torch.bfloat16}


@pytest.mark.slow
def test_a_tuned_model_is_its_own_source(tmp_path):
    model = vitconvert.load_model(save_timm(tmp_path / "source")).train()
    with torch.no_grad():
        model.blocks[1].mlp.fc1.weight.mul_(1.5)
    model.save_pretrained(tmp_path / "saved")
    assert model.training
    after = _record(tmp_path / "saved")
    assert after["function_hash"] != vitconvert.load_checkpoint(tmp_path / "source").function_hash
    assert after["source"]["sha256"] == {} and after["source"]["repo"] is None
    assert after["loaded_from"]["reference"] == "source"
    assert after["loaded_from"]["dialect"] == "timm"
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "loaded   from source (timm)" in card
    assert "whether its weights were trained since is not known" in card
    assert "bit-equal to the source as it was in memory" in card
    _check_opened(tmp_path / "saved", model.eval())


@pytest.mark.parametrize("how", ["reset_classifier", "by hand"])
def test_a_new_head_has_no_names_of_the_old_one(how, tmp_path):
    model = vitconvert.load_model(save_timm(tmp_path / "source"))
    if how == "by hand":
        model.head = torch.nn.Linear(model.config.embed_dim, 5)
    else:
        model.reset_classifier(5)
    model.save_pretrained(tmp_path / "saved", verify=False)
    assert vitconvert.load_checkpoint(tmp_path / "saved").labels is None
    assert "label_names" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "labels: those that were loaded went with the head" in card
    model.save_pretrained(tmp_path / "named", labels=["v", "w", "x", "y", "z"], verify=False)
    assert vitconvert.load_checkpoint(tmp_path / "named").labels == ("v", "w", "x", "y", "z")
    assert "went with the head" not in (tmp_path / "named" / "README.md").read_text()
    with pytest.raises(vitconvert.VitConvertError, match="3 classes"):
        model.save_pretrained(tmp_path / "wrong", labels=["a", "b", "c"])
    assert not (tmp_path / "wrong").exists()


def test_a_new_head_of_1000_classes_is_not_assumed_to_be_imagenets(tmp_path):
    torch.manual_seed(0)
    model = randomise_calmly(vitconvert.ViT(tiny_config(num_classes=1000)))
    model.save_pretrained(tmp_path / "made", verify=False)
    assert not _record(tmp_path / "made")["labels_assumed"]
    loaded = vitconvert.load_model(tmp_path / "made")
    loaded.save_pretrained(tmp_path / "again", verify=False)
    loaded.reset_classifier(1000)
    loaded.save_pretrained(tmp_path / "new", verify=False)
    assert _record(tmp_path / "new")["labels"] is None
    assert not _record(tmp_path / "new")["labels_assumed"]


def test_preprocessing_follows_the_size_and_channels_of_the_model(tmp_path):
    source = save_timm(tmp_path / "source")
    how = {"image_size": (64, 48), "in_channels": 1}
    vitconvert.load_model(source, **how).save_pretrained(tmp_path / "saved", verify=False)
    vitconvert.convert(source, output=tmp_path / "converted", verify=False, **how)
    of_both = [_record(tmp_path / name)["preprocessing"] for name in ("saved", "converted")]
    assert of_both[0] == of_both[1]
    assert of_both[0]["image_size"] == [64, 48]
    stated = vitconvert.load_checkpoint(source, mean=0.25, std=0.125).preprocessing
    model = vitconvert.load_model(source)
    model.save_pretrained(tmp_path / "stated", preprocessing=stated, verify=False)
    assert vitconvert.load_checkpoint(tmp_path / "stated").preprocessing.mean == (0.25,) * 3
    file = tmp_path / "stated" / "config.json"
    model.save_pretrained(tmp_path / "file", preprocessing=file, verify=False)
    assert vitconvert.load_checkpoint(tmp_path / "file").preprocessing.std == (0.125,) * 3


@pytest.mark.parametrize(
    ("changes", "layout"),
    [
        ({"in_channels": 4, "depth": 11}, "timm"),
        ({"pooling": "prefix_avg", "num_registers": 2}, "vit"),
        ({"block_order": "post_norm"}, "vit"),
    ],
)
def test_a_model_that_was_made_is_saved_without_preprocessing(changes, layout, tmp_path):
    torch.manual_seed(1)
    model = randomise_calmly(vitconvert.ViT(small_config(**changes)))
    assert model.save_pretrained(tmp_path / "made").target_dialect == layout
    again = vitconvert.load_checkpoint(tmp_path / "made")
    assert again.preprocessing is None and again.labels is None
    assert again.config.function() == model.config.function()
    images = _images(model)
    assert torch.equal(vitconvert.load_model(tmp_path / "made")(images), model(images))
    assert "| preprocessing | unknown |" in (tmp_path / "made" / "README.md").read_text()


def test_a_fast_model_saves_the_same_weights(tmp_path):
    model = FastViT.from_pretrained(save_timm(tmp_path / "source"))
    assert isinstance(model, FastViT)
    model(_images(model))
    model.save_pretrained(tmp_path / "saved", verify=False)
    images = _images(model)
    wanted = vitconvert.load_model(tmp_path / "source")(images)
    assert torch.equal(vitconvert.load_model(tmp_path / "saved")(images), wanted)


def test_nothing_is_replaced_unasked(tmp_path):
    model = vitconvert.load_model(save_timm(tmp_path / "source"))
    model.save_pretrained(tmp_path / "saved", verify=False)
    with pytest.raises(vitconvert.VitConvertError, match="already exists"):
        model.save_pretrained(tmp_path / "saved")
    again = vitconvert.load_model(tmp_path / "saved")  # its weights are views of that file
    with torch.no_grad():
        again.norm.weight.mul_(2)
    again.save_pretrained(tmp_path / "saved", overwrite=True, verify=False)
    images = _images(model)
    assert torch.equal(vitconvert.load_model(tmp_path / "saved")(images), again(images))
    (tmp_path / "saved" / "notes.txt").write_text("mine")
    with pytest.raises(vitconvert.VitConvertError, match="did not write"):
        model.save_pretrained(tmp_path / "saved", overwrite=True)


def _pruned(model):
    vitconvert.prune_heads(model, {0: [1]})


def _shorter(model):
    del model.blocks[2]


def _other_head(model):
    model.head = torch.nn.Linear(30, 4)


def _normed(model):
    torch.nn.utils.parametrizations.weight_norm(model.blocks[1].mlp.fc1)


def _adapted(model):
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["fc1"]))


def _hooked(model):
    model.blocks[1].register_forward_hook(lambda module, args, output: output * 2)


def _other_activation(model):
    model.blocks[0].mlp.act = torch.nn.functional.relu


REFUSED = {
    _pruned: "qkv.weight",
    _shorter: "blocks.2",
    _other_head: "reset_classifier",
    _normed: "remove_parametrizations",
    _adapted: "merge_and_unload",
    _hooked: "computes something else",
    _other_activation: "computes something else",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "change",
    [pytest.param(one, marks=[pytest.mark.slow] * (one is _adapted)) for one in REFUSED],
    ids=lambda change: change.__name__,
)
def test_what_no_configuration_says_is_refused(change, tmp_path):
    torch.manual_seed(2)
    model = randomise_calmly(vitconvert.ViT(small_config()))
    change(model)
    with pytest.raises(vitconvert.VitConvertError, match=REFUSED[change]):
        model.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub that knows our token."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with HubServer({}) as server:
        use_hub(monkeypatch, server, tmp_path)
        monkeypatch.setenv("HF_TOKEN", server.token)
        yield server


def test_published_and_loaded_from_the_hub(hub, tmp_path):
    source = save_timm(tmp_path / "source")
    hub.push("they/vit", {path.name: path.read_bytes() for path in source.iterdir()})
    model = vitconvert.ViT.from_pretrained("they/vit")  # whatever layout a repository has
    with torch.no_grad():
        model.head.weight.add_(0.25)
    pushed = model.push_to_hub("me/tuned", commit_message="tuned", private=True, verify=False)
    assert pushed.repo == "me/tuned" and "model.safetensors" in pushed.files
    assert hub.messages == ["tuned"]
    again = vitconvert.ViT.from_pretrained("me/tuned", revision="main", token=hub.token)
    images = _images(model)
    assert torch.equal(again(images), model(images))
    files = hub.commits["me/tuned"][hub.branches["me/tuned"]["main"]]
    card, record = files["README.md"].decode(), json.loads(files["vitconvert.json"])
    assert 'base_model: "they/vit"' in card
    assert record["loaded_from"]["repo"] == "they/vit" and record["source"]["repo"] is None
    model.save_pretrained(
        tmp_path / "local", verify=False, push_to_hub=True, repo_id="me/other", revision="dev"
    )
    assert "dev" in hub.branches["me/other"]
    offline = vitconvert.ViT.from_pretrained("me/tuned", local_files_only=True)
    assert torch.equal(offline(images), model(images))


def test_what_timms_methods_change_is_saved(tmp_path):
    source = save_timm(tmp_path / "source")
    model = vitconvert.load_model(source, drop_path_rate=0.2).train()
    model.set_input_size((48, 32))
    model.prune_intermediate_layers([0, 3], prune_head=True)
    model.save_pretrained(tmp_path / "saved", verify=False)
    again = vitconvert.load_model(tmp_path / "saved")
    assert vitconvert.load_checkpoint(tmp_path / "saved").preprocessing.image_size == (48, 32)
    images = torch.randn(2, 3, 48, 32)
    assert torch.equal(again(images), model.eval()(images))
