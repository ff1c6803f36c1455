"""Models that save, load and publish themselves, beside `convert` and the real packages."""

import copy
import json
import logging
import pickle

import pytest
import torch
from PIL import Image
from torch.nn.utils import prune

import vitconvert
from tests.hub_server import HubServer, use_hub
from tests.huggingface.classes import CLASSES
from tests.packages import peft, timm, transformers
from tests.saved_timm import FAMILIES, NAMES, save_timm
from tests.small_models import randomise_calmly, small_config, tiny_config
from vitconvert.model import FastViT

# The client's own call of its own transport (huggingface_hub 2.4, lfs.py).
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


def _images(model):
    torch.manual_seed(7)
    return torch.randn(2, model.config.in_channels, *model.config.image_size)


@torch.no_grad()
def _check_opened_by_timm(folder, model):
    """timm and vitconvert compute the model's logits, bit for bit."""
    images = _images(model)
    wanted = model(images)
    assert torch.equal(vitconvert.load_model(folder)(images), wanted)
    assert torch.equal(type(model).from_pretrained(folder)(images), wanted)
    layout = json.loads((folder / "config.json").read_text())
    if "architecture" in layout:
        theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        assert torch.equal(theirs(images), wanted)


@torch.no_grad()
def _check_opened(folder, model):
    """Whatever opens the directory does."""
    _check_opened_by_timm(folder, model)
    images = _images(model)
    wanted = model(images)
    auto = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    assert torch.equal(auto(images).logits, wanted)


def _record(folder):
    return json.loads((folder / "vitconvert.json").read_text())


def _saved_and_converted(kind, tmp_path, *, verify):
    """A model that was saved, beside its source as it is converted: the same files."""
    save_timm(tmp_path / "source", kind)
    model = vitconvert.ViT.from_pretrained(tmp_path / "source")
    done = model.save_pretrained(tmp_path / "saved", verify=verify)
    converted = vitconvert.convert(
        tmp_path / "source", output=tmp_path / "converted", verify=verify
    )
    assert done.target_dialect == converted.target_dialect
    saved, wanted = ((tmp_path / name) for name in ("saved", "converted"))
    assert sorted(p.name for p in saved.iterdir()) == sorted(p.name for p in wanted.iterdir())
    assert (saved / "config.json").read_bytes() == (wanted / "config.json").read_bytes()
    same = ("config", "preprocessing", "labels", "labels_origin", "function_hash", "target")
    assert [_record(saved)[name] for name in same] == [_record(wanted)[name] for name in same]
    assert vitconvert.load_checkpoint(saved).labels == NAMES
    return saved, model


def test_what_is_saved_is_what_convert_writes_and_opens_as_timms(tmp_path):
    _check_opened_by_timm(*_saved_and_converted("plain", tmp_path, verify=False))


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES)
def test_of_every_family_for_every_program(kind, tmp_path):
    saved, model = _saved_and_converted(kind, tmp_path, verify=True)
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
        pytest.param({"in_channels": 4, "depth": 11}, "timm", marks=pytest.mark.slow),
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


def _pruned_by_masks(model):
    prune.l1_unstructured(model.blocks[1].mlp.fc1, "weight", 0.3)


def _normed_as_before(model):
    torch.nn.utils.weight_norm(model.blocks[1].mlp.fc2)


def _quantised(model):
    torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, inplace=True)


def _quantised_by_torchao(model):
    quantization = pytest.importorskip("torchao.quantization")
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())


def _compiled(model):
    model.blocks[1] = torch.compile(model.blocks[1])


def _without_numbers(model):
    model.blocks[2].to("meta")


REFUSED = {
    _pruned: "qkv.weight",
    _shorter: "blocks.2",
    _other_head: "reset_classifier",
    _normed: "remove_parametrizations",
    _adapted: "merge_and_unload",
    _hooked: "computes something else",
    _other_activation: "computes something else",
    _pruned_by_masks: r"prune\.remove",
    _normed_as_before: "remove_weight_norm",
    _quantised: "before it is quantised",
    _quantised_by_torchao: "before it is quantised",
    _compiled: r"layer\.compile\(\)",
    _without_numbers: "weights have no numbers",
}
SLOWLY_REFUSED = (_adapted, _quantised_by_torchao, _compiled)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "change",
    [pytest.param(one, marks=[pytest.mark.slow] * (one in SLOWLY_REFUSED)) for one in REFUSED],
    ids=lambda change: change.__name__,
)
def test_what_no_configuration_says_is_refused(change, tmp_path):
    torch.manual_seed(2)
    model = randomise_calmly(vitconvert.ViT(small_config()))
    change(model)
    with pytest.raises(vitconvert.VitConvertError, match=REFUSED[change]):
        model.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_of_several_processes(tmp_path):
    """What the messages say to do gives the weights back."""
    from torch import distributed
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    source = save_timm(tmp_path / "source")
    model = vitconvert.load_model(source)
    wanted = model(_images(model))
    store = f"file://{tmp_path / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        mesh = distributed.init_device_mesh("cpu", (1,))
        inner, sharded = copy.deepcopy(model), copy.deepcopy(model)
        inner.blocks[1] = DistributedDataParallel(inner.blocks[1])
        with pytest.raises(vitconvert.VitConvertError, match="`module` that is wrapped"):
            inner.save_pretrained(tmp_path / "inner")
        inner.blocks[1] = inner.blocks[1].module
        inner.save_pretrained(tmp_path / "inner", verify=False)
        for block in sharded.blocks:
            fully_shard(block, mesh=mesh)
        older = FullyShardedDataParallel(copy.deepcopy(model), device_id=torch.device("cpu"))
        for name, one in (("2", fully_shard(sharded, mesh=mesh)), ("1", older)):
            with pytest.raises(vitconvert.VitConvertError, match="get_model_state_dict"):
                one.save_pretrained(tmp_path / name)
            whole = get_model_state_dict(one, options=StateDictOptions(full_state_dict=True))
            own = vitconvert.ViT(model.config)
            own.load_state_dict(whole)
            own.save_pretrained(tmp_path / name, verify=False)
        DistributedDataParallel(copy.deepcopy(model)).module.save_pretrained(
            tmp_path / "outer", verify=False
        )
    finally:
        distributed.destroy_process_group()
    for name in ("inner", "outer", "1", "2"):
        assert torch.equal(vitconvert.load_model(tmp_path / name)(_images(model)), wanted)


def test_nothing_that_is_said_is_passed_over(tmp_path):
    model = vitconvert.load_model(save_timm(tmp_path / "source"))
    for unknown in ({"label": ["a"]}, {"state_dict": {}}, {"privat": True, "push_to_hub": True}):
        with pytest.raises(TypeError, match=next(iter(unknown))):
            model.save_pretrained(tmp_path / "out", verify=False, **unknown)
    with pytest.raises(TypeError, match="privat"):
        model.push_to_hub("me/vit", privat=True)

    class Mine(vitconvert.ViT):
        pass

    with pytest.raises(vitconvert.VitConvertError, match="not a Mine"):
        Mine.from_pretrained(tmp_path / "source")
    of_other_size = vitconvert.load_checkpoint(tmp_path / "source", image_size=48).preprocessing
    vitconvert.load_model(tmp_path / "source", in_channels=1).save_pretrained(
        tmp_path / "grey", verify=False
    )
    of_grey = vitconvert.load_checkpoint(tmp_path / "grey").preprocessing
    for other in (of_other_size, of_grey):
        with pytest.raises(vitconvert.VitConvertError, match="for other images"):
            model.save_pretrained(tmp_path / "out", preprocessing=other, verify=False)
    assert not (tmp_path / "out").exists()


def test_a_file_of_timm_is_for_the_size_of_the_model(tmp_path):
    source = save_timm(tmp_path / "source")
    larger = vitconvert.load_model(source, image_size=48)
    larger.save_pretrained(tmp_path / "larger", preprocessing=source / "config.json", verify=False)
    found = vitconvert.load_checkpoint(tmp_path / "larger").preprocessing
    wanted = vitconvert.load_checkpoint(source, image_size=48).preprocessing
    assert (found.image_size, found.resize_size) == (wanted.image_size, wanted.resize_size)
    file = tmp_path / "larger" / "config.json"
    stated = vitconvert.load_checkpoint(source, preprocessor=file).preprocessing
    assert stated.image_size == (32, 32)


def test_a_loaded_model_predicts_with_its_names(tmp_path):
    source = save_timm(tmp_path / "source")
    model, how = vitconvert.load_model(source), vitconvert.load_checkpoint(source).preprocessing
    image = Image.new("RGB", (40, 50), (200, 30, 90))
    of_model, of_files = (list(vitconvert.predict(one, [image], how)) for one in (model, source))
    named = [candidate.label for candidate in of_model[0].top]
    assert set(named) == set(NAMES)
    assert named == [candidate.label for candidate in of_files[0].top]
    model.reset_classifier(5)
    with pytest.warns(UserWarning, match="labels: none"):
        list(vitconvert.predict(model, [image], how))


def _notes(folder):
    return "\n".join(_record(folder)["ledger"]["notes"])


def test_the_record_says_what_loading_changed(tmp_path):
    source = save_timm(tmp_path / "source")
    changed = vitconvert.load_model(source, image_size=48, in_channels=1, num_classes=3)
    changed.save_pretrained(tmp_path / "changed", verify=False)
    notes = _notes(tmp_path / "changed")
    for text in (
        "positions resampled from 2x2 to 3x3",
        "channels changed from 3 to 1",
        "head of 5 classes became one of 3, not trained",
    ):
        assert text in notes
    assert "positions resampled" in (tmp_path / "changed" / "README.md").read_text()
    vitconvert.load_model(source).save_pretrained(tmp_path / "same", verify=False)
    assert "when it was loaded" not in _notes(tmp_path / "same")


@pytest.mark.slow
def test_the_record_says_that_texts_and_adapters_were_there(tmp_path):
    source = save_timm(tmp_path / "source")
    config = peft.LoraConfig(r=2, target_modules=["fc1"], init_lora_weights=False)
    peft.get_peft_model(vitconvert.load_model(source), config).save_pretrained(tmp_path / "lora")
    adapted = vitconvert.load_model(source, adapter=tmp_path / "lora")
    adapted.save_pretrained(tmp_path / "adapted", verify=False)
    assert "merged the LoRA adapter lora" in _notes(tmp_path / "adapted")
    both = randomise_calmly(CLASSES["CLIP, both towers"].model())
    both.save_pretrained(tmp_path / "both")
    vitconvert.load_model(tmp_path / "both").save_pretrained(tmp_path / "images", verify=False)
    assert "text encoder of what was loaded is not in it" in _notes(tmp_path / "images")


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
