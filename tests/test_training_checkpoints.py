"""Checkpoints as training programs write them: the right tensors, and what else there was."""

import argparse
import shutil
import sys
import types
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from tests.packages import timm, torchvision, transformers
from tests.small_models import randomise
from vitconvert import convert, convert_state_dict, inspect, load_checkpoint
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import CorruptFile, MissingFact, VitConvertError
from vitconvert.wrappers import unwrapped

HEADS = {"num_heads": 3}


def _vit(seed: int) -> "timm.models.VisionTransformer":
    """A small ViT of odd sizes, every parameter random."""
    torch.manual_seed(seed)
    sizes = {"img_size": (24, 40), "patch_size": 8, "in_chans": 4, "num_classes": 5}
    model = timm.models.VisionTransformer(**sizes, embed_dim=36, depth=11, num_heads=3, mlp_ratio=3)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def _same(checkpoint: object, model: nn.Module) -> bool:
    tensors, expected = checkpoint.tensors, model.state_dict()
    return tensors.keys() == expected.keys() and all(
        torch.equal(tensors[name], tensor) for name, tensor in expected.items()
    )


def test_what_timm_saves_while_it_trains(tmp_path: Path) -> None:
    model, other = _vit(0), _vit(1)
    averaged = timm.utils.ModelEmaV3(model)
    args = argparse.Namespace(
        model="vit", output=Path("runs"), device=torch.device("cuda"), started=datetime.now()
    )
    saver = timm.utils.CheckpointSaver(
        model=other,
        optimizer=torch.optim.AdamW(other.parameters()),
        args=args,
        model_ema=averaged,
        checkpoint_dir=str(tmp_path),
        recovery_dir=str(tmp_path),
    )
    saver.save_checkpoint(3, metric=np.float64(83.1))
    path = tmp_path / "checkpoint-3.pth.tar"
    checkpoint = load_checkpoint(path, overrides=HEADS)
    assert _same(checkpoint, model)
    assert checkpoint.ledger.notes == (
        "the weights are those under state_dict_ema; the file also has state_dict (--prefer)",
    )
    assert _same(load_checkpoint(path, overrides=HEADS, prefer="state_dict"), other)


def _trained(name: str, folder: Path, sizes: dict[str, int] | None = None, **more: object) -> Path:
    """As timm's training script saves a model that it made by its name."""
    model = timm.create_model(name, num_classes=5, **sizes or {})
    args = argparse.Namespace(model=name, lr=0.1)
    torch.save({"epoch": 3, "state_dict": model.state_dict(), "args": args} | more, folder / "m.pt")
    return folder / "m.pt"


@pytest.mark.parametrize("arch", ["vit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k"])
def test_timms_training_checkpoints_name_their_architecture(tmp_path: Path, arch: str) -> None:
    file = _trained("vit_tiny_patch16_224", tmp_path, arch=arch)
    checkpoint = load_checkpoint(file)
    assert checkpoint.config.num_heads == 3
    assert checkpoint.config.origins["num_heads"] == (
        "assumed: arch beside the weights is vit_tiny_patch16_224; weights_map/architectures.toml"
    )
    assert "num_heads" in checkpoint.ledger.assumed
    assert load_checkpoint(file, overrides={"num_heads": 6}).config.num_heads == 6
    assert load_checkpoint(_trained("vit_tiny_patch16_224", tmp_path)).config.num_heads == 3


def test_a_name_that_the_tensors_contradict_is_not_believed(tmp_path: Path) -> None:
    sizes = {"depth": 1, "embed_dim": 36, "num_heads": 6}
    file = _trained("vit_tiny_patch16_224", tmp_path, sizes, arch="vit_tiny_patch16_224")
    with pytest.raises(MissingFact, match="num_heads"):
        load_checkpoint(file)
    read = load_checkpoint(file, overrides={"num_heads": 6})
    assert any("which was not used" in note for note in read.ledger.notes)


def test_a_training_checkpoint_of_an_unknown_name_says_nothing(tmp_path: Path) -> None:
    file = _trained("vit_tiny_patch16_224", tmp_path, arch="my_vit", args=None)
    with pytest.raises(MissingFact, match="num_heads"):
        load_checkpoint(file)


def _of_omegaconf(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> object:
    """Settings as OmegaConf 2.4 keeps them, whose classes are pickled by their names alone."""
    module = types.ModuleType("omegaconf")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    kinds = ("DictConfig", "AnyNode", "Metadata")
    classes = [type(name, (), {"__module__": module.__name__}) for name in kinds]
    for made in classes:
        setattr(module, made.__name__, made)
    of_dict, of_value, metadata = classes

    def kept(value: object, parent: object) -> object:
        made, about = (of_dict if isinstance(value, dict) else of_value)(), metadata()
        vars(about).update(ref_type=Any, resolver_cache=defaultdict(dict))
        vars(made).update(_metadata=about, _parent=parent, _val=value)
        if isinstance(value, dict):
            vars(made)["_content"] = {key: kept(inner, made) for key, inner in value.items()}
            del vars(made)["_val"]
        return made

    return kept(settings, None)


_TINY = "vit_tiny_patch16_224"


@pytest.mark.parametrize("kept", ["plain", "omegaconf"])
@pytest.mark.parametrize(
    ("hyper", "where"),
    [
        ({"lr": 0.1, "model_name": _TINY}, "model_name"),
        ({"name": "run 7", "args": {"backbone": f"timm/{_TINY}.augreg_in21k"}}, "args.backbone"),
    ],
)
def test_lightnings_hyper_parameters_name_the_architecture(
    hyper: dict[str, Any], where: str, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lightning/pytorch/trainer/connectors/checkpoint_connector.py, `dump_checkpoint`."""
    net = timm.create_model(_TINY, num_classes=5)
    saved = {
        "epoch": 3,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {f"model.{name}": tensor for name, tensor in net.state_dict().items()},
        "hparams_name": "kwargs",
        "hyper_parameters": hyper if kept == "plain" else _of_omegaconf(monkeypatch, hyper),
    }
    torch.save(saved, tmp_path / "last.ckpt")
    checkpoint = load_checkpoint(tmp_path / "last.ckpt")
    assert _same(checkpoint, net)
    assert checkpoint.config.num_heads == 3
    assert checkpoint.config.origins["num_heads"] == (
        f"assumed: hyper_parameters.{where} beside the weights is {_TINY}; "
        "weights_map/architectures.toml"
    )
    stated = load_checkpoint(tmp_path / "last.ckpt", overrides={"num_heads": 6})
    assert stated.config.num_heads == 6
    torch.save(saved | {"hyper_parameters": {"model_name": "resnet50"}}, tmp_path / "last.ckpt")
    with pytest.raises(MissingFact, match="num_heads"):
        load_checkpoint(tmp_path / "last.ckpt")


@pytest.mark.parametrize(
    ("hyper", "where"),
    [({"img_size": 32}, "img_size"), ({"net": {"image_size": [32, 32]}}, "net.image_size")],
)
def test_lightnings_hyper_parameters_say_the_size_of_images(
    hyper: dict[str, Any], where: str, tmp_path: Path
) -> None:
    net = timm.create_model(_TINY, num_classes=5, img_size=32)
    hyper = {"model_name": _TINY, **hyper}
    torch.save({"state_dict": net.state_dict(), "hyper_parameters": hyper}, tmp_path / "last.ckpt")
    checkpoint = load_checkpoint(tmp_path / "last.ckpt")
    found = checkpoint.config.origins["image_size"]
    assert found == f"assumed: hyper_parameters.{where} beside the weights"
    assert not any("224x224" in note for note in checkpoint.ledger.notes)


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ({"model_kwargs": {"img_size": (32, 48)}, "img_size": 224}, "model_kwargs.img_size"),
        ({"input_size": [3, 32, 48], "img_size": None}, "input_size"),
    ],
)
def test_the_arguments_of_timms_training_say_what_is_assumed_otherwise(
    said: dict[str, object], where: str, tmp_path: Path
) -> None:
    net = timm.create_model(_TINY, num_classes=5, img_size=(32, 48))
    shown = {"mean": [0.1, 0.2, 0.3], "std": None, "crop_pct": 1.0, "interpolation": "bilinear"}
    args = argparse.Namespace(model=_TINY, **shown, **said)
    optimizer = torch.optim.SGD(net.parameters())
    folder = str(tmp_path)
    saver = timm.utils.CheckpointSaver(net, optimizer, args, checkpoint_dir=folder)
    saver.save_checkpoint(0)
    checkpoint = load_checkpoint(tmp_path / "last.pth.tar")
    config, prepared = checkpoint.config, checkpoint.preprocessing
    assert config.image_size == prepared.image_size == prepared.resize_size == (32, 48)
    assert config.origins["image_size"] == f"assumed: args.{where} beside the weights"
    assert (prepared.mean, prepared.std) == ((0.1, 0.2, 0.3), (0.5, 0.5, 0.5))
    assert prepared.interpolation == "bilinear"


_BEES = ["ant", "bee, wild", "cat", "dog", "10"]


def _photos(folder: Path, classes: Iterable[str]) -> dict[str, int]:
    """What torchvision's ImageFolder says of folders with a photo each."""
    for name in classes:
        (folder / name).mkdir(parents=True)
        shutil.copy(DIGITS / "samples" / "1.png", folder / name)
    return torchvision.datasets.ImageFolder(str(folder)).class_to_idx


@pytest.mark.parametrize("place", ["", "hyper_parameters", "args"])
def test_class_to_idx_names_the_classes(place: str, tmp_path: Path) -> None:
    classes = ["ant", "bee", "cat", "dog", "10"]
    indices = _photos(tmp_path / "photos", classes)
    assert list(indices) == ["10", "ant", "bee", "cat", "dog"]
    backwards = {"class_to_idx": dict(reversed(indices.items()))}
    more = backwards if not place else {place: {"model": _TINY, **backwards}}
    checkpoint = load_checkpoint(_trained(_TINY, tmp_path, arch=_TINY, **more))
    where = f"{place}.class_to_idx".lstrip(".") + " beside the weights"
    assert checkpoint.labels == tuple(indices) and checkpoint.labels.origin == where
    assert f"classes are named by {where}" in checkpoint.ledger.notes
    converted = convert(checkpoint, to="timm", output=tmp_path / "out", verify=False).output
    assert load_checkpoint(converted).labels == tuple(indices)


@pytest.mark.parametrize(
    ("indices", "why"),
    [
        ({"ant": 0, "bee": 1}, "it has 2 names, and the head 5 classes"),
        ({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}, "its indices are not 0 to 4"),
        ({"a": 0, "b": True, "c": 2, "d": 3, "e": 4}, "its indices are not 0 to 4"),
        ({"a" * 101: 0, "b": 1, "c": 2, "d": 3, "e": 4}, "a name has 100 letters or more"),
    ],
)
def test_class_to_idx_of_another_head_is_not_used(
    indices: dict[str, int], why: str, tmp_path: Path
) -> None:
    checkpoint = load_checkpoint(_trained(_TINY, tmp_path, class_to_idx=indices))
    assert checkpoint.labels is None
    note = f"class_to_idx beside the weights does not name the classes: {why}."
    assert note in checkpoint.ledger.notes


@pytest.mark.parametrize(
    ("where", "saved"),
    [
        ("hyper_parameters.class_names", {"hyper_parameters": {"class_names": _BEES}}),
        ("hyper_parameters.classes", {"hyper_parameters": {"classes": tuple(_BEES)}}),
        (
            "hyper_parameters.data.idx_to_class",
            {"hyper_parameters": {"classes": 5, "data": {"idx_to_class": dict(enumerate(_BEES))}}},
        ),
        ("id2label", {"id2label": {str(i): name for i, name in enumerate(_BEES)}}),
        ("config.label2id", {"config": {"label2id": {n: i for i, n in enumerate(_BEES)}}}),
        ("meta.dataset_meta.classes", {"meta": {"dataset_meta": {"classes": tuple(_BEES)}}}),
        ("meta.CLASSES", {"meta": {"CLASSES": tuple(_BEES)}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_names_that_training_programs_save(
    where: str, saved: dict[str, Any], tmp_path: Path
) -> None:
    checkpoint = load_checkpoint(_trained(_TINY, tmp_path, arch=_TINY, **saved))
    assert checkpoint.labels == tuple(_BEES)
    assert checkpoint.labels.origin == f"{where} beside the weights"


def test_names_of_another_number_of_classes_are_told(tmp_path: Path) -> None:
    saved = {"hyper_parameters": {"class_names": _BEES[:3]}}
    checkpoint = load_checkpoint(_trained(_TINY, tmp_path, arch=_TINY, **saved))
    assert checkpoint.labels is None
    note = "hyper_parameters.class_names beside the weights does not name the classes: The "
    assert any(found.startswith(note) for found in checkpoint.ledger.notes)
    conversion = convert(checkpoint, to="hf", output=tmp_path / "out", verify=False)
    note = "labels: none, so config.json says LABEL_0 to LABEL_4; --labels FILE (in Python, "
    assert any(found.startswith(note) for found in conversion.ledger.notes)


def test_a_size_that_the_positions_contradict_is_overruled(tmp_path: Path) -> None:
    args = argparse.Namespace(model=_TINY, img_size=256)
    checkpoint = load_checkpoint(_trained(_TINY, tmp_path, args=args))
    assert checkpoint.config.image_size == (224, 224)
    assert any("args.img_size" in note for note in checkpoint.ledger.notes)


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_weights_that_torch_averaged(tmp_path: Path, suffix: str) -> None:
    model = _vit(0)
    averaged = AveragedModel(nn.DataParallel(model)).state_dict()
    path = tmp_path / f"averaged.{suffix}"
    save = torch.save if suffix == "pth" else safetensors.torch.save_file
    save(averaged, path)
    checkpoint = load_checkpoint(path, overrides=HEADS)
    assert _same(checkpoint, model)
    ledger = checkpoint.ledger
    assert ledger.ignored == {"n_averaged": "how often torch's AveragedModel has averaged"}
    assert ledger.read == len(ledger.used) + len(ledger.ignored) == len(averaged)
    ours = convert_state_dict(averaged, to="timm", overrides=HEADS)
    assert all(torch.equal(ours[name], t) for name, t in model.state_dict().items())


@pytest.mark.parametrize(
    ("plain", "averaged"),
    [
        ("model.", "ema_model."),
        ("model.", "ema.module."),
        ("net.", "net_ema."),
    ],
)
@pytest.mark.parametrize("suffix", ["ckpt", "safetensors"])
def test_averages_beside_the_weights_in_one_state_dict(
    tmp_path: Path, plain: str, averaged: str, suffix: str
) -> None:
    """As Lightning saves a module that holds a model and its average: read first, and told."""
    weights, average = _vit(0), _vit(1)
    tensors = {f"{plain}{name}": tensor for name, tensor in weights.state_dict().items()}
    tensors |= {f"{averaged}{name}": tensor for name, tensor in average.state_dict().items()}
    path = tmp_path / f"a.{suffix}"
    if suffix == "ckpt":
        torch.save({"state_dict": tensors, "pytorch-lightning_version": "2.5"}, path)
    else:
        safetensors.torch.save_file(tensors, path)
    read = load_checkpoint(path, overrides=HEADS)
    assert _same(read, average)
    assert any("(the averages of " in note for note in read.ledger.notes)
    assert _same(load_checkpoint(path, overrides=HEADS, tower=plain), weights)


def test_the_average_that_mmengine_keeps_beside_the_weights(tmp_path: Path) -> None:
    """mmengine/hooks/ema_hook.py: what its note on --prefer names is read."""
    plain, averaged = _vit(0), _vit(1)
    beside = {f"module.{name}": tensor for name, tensor in averaged.state_dict().items()}
    beside["steps"] = torch.tensor(7)
    saved = {"meta": {}, "state_dict": plain.state_dict(), "ema_state_dict": beside}
    torch.save(saved, tmp_path / "epoch_1.pth")
    read = load_checkpoint(tmp_path / "epoch_1.pth", overrides=HEADS)
    assert _same(read, plain)
    assert any("the file also has ema_state_dict (--prefer)" in note for note in read.ledger.notes)
    read = load_checkpoint(tmp_path / "epoch_1.pth", prefer="ema_state_dict", overrides=HEADS)
    assert _same(read, averaged) and list(read.ledger.ignored) == ["steps"]


def test_what_lightning_saves_of_a_module_with_a_loss(tmp_path: Path) -> None:
    class Training(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = _vit(0)
            self.criterion = nn.CrossEntropyLoss(weight=torch.rand(5))

    training = Training()
    notes = {"callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5)}}}
    hparams = {"lr": np.float32(0.1), "data_dir": Path("data")}
    path = tmp_path / "last.ckpt"
    torch.save({"state_dict": training.state_dict(), "hyper_parameters": hparams, **notes}, path)
    checkpoint = load_checkpoint(path, overrides=HEADS)
    assert _same(checkpoint, training.net)
    assert list(checkpoint.ledger.ignored) == ["criterion.weight"]
    training.projector = nn.Linear(5, 7)  # which nobody knows to be idle
    torch.save({"state_dict": training.state_dict()}, path)
    checkpoint = load_checkpoint(path, overrides=HEADS)
    assert _same(checkpoint, training.net)
    assert any("under net" in note for note in checkpoint.ledger.notes)
    assert {n for n in checkpoint.ledger.ignored if "criterion" not in n} == {
        "projector.weight",
        "projector.bias",
    }


def _saved_by_trainer(folder: Path, best: Path | None = None) -> nn.Module:
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 30}
    config = transformers.ViTConfig(**sizes, num_hidden_layers=1, image_size=24, patch_size=8)
    model = randomise(transformers.ViTForImageClassification(config))
    model.save_pretrained(folder)
    torch.save({}, folder / "optimizer.pt")
    state = transformers.TrainerState(best_model_checkpoint=best and str(best))
    state.save_to_json(str(folder / "trainer_state.json"))
    return model


@pytest.mark.slow
def test_of_checkpoints_of_transformers_trainer_the_newest_is_read(tmp_path: Path) -> None:
    for step in (500, 900, 1000):
        model = _saved_by_trainer(tmp_path / f"checkpoint-{step}", tmp_path / "checkpoint-900")
    (tmp_path / "checkpoint-2000").mkdir()  # whose weights were not written yet
    (tmp_path / "runs").mkdir()
    note = (
        "the weights are those of checkpoint-1000, the newest checkpoint there; "
        "trainer_state.json calls checkpoint-900 the best"
    )
    checkpoint = load_checkpoint(tmp_path)
    head = model.state_dict()["classifier.weight"]
    assert torch.equal(checkpoint.tensors["head.weight"], head)
    assert checkpoint.their_config["model_type"] == "vit"
    assert note in checkpoint.ledger.notes and note in inspect(tmp_path).notes
    final = _saved_by_trainer(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    head = final.state_dict()["classifier.weight"]
    assert torch.equal(checkpoint.tensors["head.weight"], head)
    assert not any("checkpoint-" in note for note in checkpoint.ledger.notes)


def _renamed(model: nn.Module, *words: tuple[str, str]) -> dict[str, torch.Tensor]:
    """A state dict with words put before the parts of the names."""
    found = model.state_dict()
    for part, word in words:
        found = {name.replace(part, f"{part}{word}."): t for name, t in found.items()}
    return found


WRAPPED = {
    "blocks, by torch.compile": [("blocks.0.", "_orig_mod"), ("blocks.1.", "_orig_mod")],
    "attention, by torch.compile": [(".attn.", "_orig_mod")],
    "checkpointing": [("blocks.3.", "_checkpoint_wrapped_module")],
    "FSDP in FSDP": [(".mlp.", "_fsdp_wrapped_module"), (".mlp.", "_fpw_module")],
    "compiled, then parallel": [(".attn.", "module"), (".attn.", "_orig_mod")],
    "Opacus": [(".mlp.", "_module")],
}


@pytest.mark.parametrize("save", [torch.save, safetensors.torch.save_file], ids=["pth", "st"])
@pytest.mark.parametrize("case", WRAPPED)
def test_wrappers_of_parts_of_a_model(case: str, save: Any, tmp_path: Path) -> None:
    model = _vit(2)
    path = tmp_path / ("x.pth" if save is torch.save else "x.safetensors")
    tensors = _renamed(model, *((p, w) for p, w in WRAPPED[case]))
    assert len({name.count(".") for name in tensors}) > 2
    save(tensors, path)
    checkpoint = load_checkpoint(path, overrides=HEADS)
    assert _same(checkpoint, model)
    assert any(
        note.startswith("words of wrappers were removed") for note in checkpoint.ledger.notes
    )
    assert (
        convert_state_dict(tensors, to="timm", overrides=HEADS).keys() == model.state_dict().keys()
    )


def test_a_compiled_backbone_beside_a_head(tmp_path: Path) -> None:
    model = _vit(3)
    tensors = {
        name.replace("head.", "classifier.") if "head." in name else f"backbone._orig_mod.{name}": t
        for name, t in model.state_dict().items()
    }
    torch.save(tensors, tmp_path / "x.pth")
    assert _same(load_checkpoint(tmp_path / "x.pth", overrides=HEADS), model)
    ways = {"tower": "backbone._orig_mod", "ignore": ["backbone._orig_mod.blocks.9.*"]}
    assert load_checkpoint(tmp_path / "x.pth", overrides=HEADS, tower=ways["tower"]).tower
    with pytest.raises(VitConvertError, match=r"blocks\.9"):
        load_checkpoint(tmp_path / "x.pth", overrides=HEADS, ignore=ways["ignore"])


def test_the_real_wrappers_of_torch(tmp_path: Path) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model, wrapped = _vit(4), _vit(4)
    for number, block in enumerate(wrapped.blocks):
        block.attn = torch.compile(block.attn)
        if number % 2:
            wrapped.blocks[number] = checkpoint_wrapper(block)
    tensors = dict(wrapped.named_parameters())  # whose names have what state_dict() takes off
    assert any("_checkpoint_wrapped_module" in name for name in tensors)
    torch.save({name: tensor.detach() for name, tensor in tensors.items()}, tmp_path / "x.pth")
    assert _same(load_checkpoint(tmp_path / "x.pth", overrides=HEADS), model)


def test_a_module_that_is_called_so_keeps_its_name() -> None:
    beside = ["a.module.w", "a.module.b", "a.other.w"]
    assert unwrapped(beside) == {name: name for name in beside}
    alone = ["a.module.w", "a.module.b", "a.n_averaged", "b.w"]
    assert list(unwrapped(alone)) == ["a.w", "a.b", "a.n_averaged", "b.w"]
    doubled = ["a._orig_mod.w", "a.w"]
    assert unwrapped(doubled) == {name: name for name in doubled}
    assert list(unwrapped(["a._orig_mod.w"], ["_orig_mod"])) == ["a._orig_mod.w"]
    assert list(unwrapped(["x.module"])) == ["x.module"]


def test_a_users_table_may_spell_a_wrappers_word(tmp_path: Path) -> None:
    model = _vit(5)
    tensors = _renamed(model, (".attn.", "_orig_mod"))
    torch.save(tensors, tmp_path / "x.pth")
    text = '[dialect]\nextends = "timm"\n[rows]\n'
    text += '"blocks.{i}.attn.qkv.{p}" = "blocks.{i}.attn._orig_mod.qkv.{p}"\n'
    text += '"blocks.{i}.attn.proj.{p}" = "blocks.{i}.attn._orig_mod.proj.{p}"\n'
    (tmp_path / "team.toml").write_text(text)
    read = load_checkpoint(tmp_path / "x.pth", table=tmp_path / "team.toml", overrides=HEADS)
    assert _same(read, model) and not read.ledger.notes


def test_what_ema_pytorch_saves(tmp_path: Path) -> None:
    """ema_pytorch.py, 0.8: a module with both models, and two counts."""
    plain, averaged = _vit(6), _vit(7)
    counts = {"initted": torch.tensor(True), "step": torch.tensor(3)}
    saved = {f"ema_model.{n}": t for n, t in averaged.state_dict().items()} | counts
    torch.save(saved, tmp_path / "alone.pt")
    assert _same(load_checkpoint(tmp_path / "alone.pt", overrides=HEADS), averaged)
    saved |= {f"online_model.{name}": tensor for name, tensor in plain.state_dict().items()}
    torch.save({"model": plain.state_dict(), "ema": saved}, tmp_path / "trainer.pt")
    safetensors.torch.save_file(saved, tmp_path / "both.safetensors")
    for name in ("trainer.pt", "both.safetensors"):
        read = load_checkpoint(tmp_path / name, overrides=HEADS)
        assert _same(read, averaged)
        note = "the weights under ema_model are read; --tower online_model reads those beside"
        assert note in read.ledger.notes
        assert _same(load_checkpoint(tmp_path / name, overrides=HEADS, tower="online_model"), plain)


def test_averages_without_names_are_not_read(tmp_path: Path) -> None:
    """diffusers 0.42, training_utils.py, EMAModel.state_dict: a list in the order of parameters."""
    model = _vit(8)
    saved = {"decay": 0.99, "shadow_params": [p.detach() for p in model.parameters()]}
    torch.save(saved, tmp_path / "ema.pt")
    with pytest.raises(CorruptFile, match="in a list, without names"):
        load_checkpoint(tmp_path / "ema.pt", overrides=HEADS)
    torch.save({"state_dict": model.state_dict(), "ema": saved}, tmp_path / "both.pt")
    read = load_checkpoint(tmp_path / "both.pt", overrides=HEADS)
    assert _same(read, model)
    assert read.ledger.notes == ("ema: averaged weights without names, which are not read",)
