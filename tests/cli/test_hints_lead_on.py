"""Every command that a message suggests is run on the file that the message is about.

It must get further: done, or another question. A message that comes again has led nowhere, and who
follows all of them reads the model, if there is one. What people reported is made here small, with
random numbers.
"""

import itertools
import json
import re
import shlex

import pytest
import torch
from safetensors.torch import save_file

from tests.packages import timm
from tests.packages import transformers as t
from tests.small_models import randomise
from tests.towers.families import VISION

SIZES = {"img_size": 24, "patch_size": 8, "embed_dim": 30, "depth": 2, "num_heads": 3}
STATED = "--set num_heads=3"


def vit(**changes):
    return dict(randomise(timm.models.VisionTransformer(**SIZES | changes)).state_dict())


def below(prefix, tensors):
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def without(tensors, *beginnings):
    return {name: x for name, x in tensors.items() if not name.startswith(beginnings)}


def two_streams():
    body = vit(num_classes=0)
    return below("rgb", body) | below("depth", body)


def known_towers():
    body = vit(num_classes=0)
    return below("teacher.backbone", body) | below("student.backbone", body)


def mlp_head():
    head = {"0.weight": torch.randn(9, 30), "0.bias": torch.randn(9), "2.weight": torch.randn(5, 9)}
    return below("my_net", vit(num_classes=0)) | below("classifier", head)


def nearly():
    """A ViT of a new kind below a prefix: one tensor has no row."""
    other = {"other.weight": torch.randn(3, 3), "my_net.gate": torch.randn(3)}
    return below("my_net", vit()) | other


def of_groups():
    """SatMAE's tensors: several patch embeddings, so that no answer on their size helps."""
    groups = {f"patch_embed.{g}.proj.weight": torch.randn(30, 3, 8, 8) for g in range(3)}
    return without(vit(), "patch_embed.") | groups


def parallel_heads():
    return vit() | {"aux_head.weight": torch.randn(4, 30), "aux_head.bias": torch.randn(4)}


def of_three_layers():
    head = {"0.weight": torch.randn(5, 30), "0.bias": torch.randn(5), "2.weight": torch.ones(5)}
    return without(vit(), "head.") | below("head", head)


def another_step():
    return vit() | {"step": torch.tensor([3.0])}


def minicpm():
    return below("vpm", vit(num_classes=0)), {"model_type": "minicpmv"}


def doubled():
    model = randomise(t.ViTModel(t.ViTConfig(**VISION), add_pooling_layer=False))
    state = {f"vit.{name}": x for name, x in model.state_dict().items()}
    return state | {"layernorm.weight": torch.ones(36)}


def pooled_otherwise():
    config = t.Dinov2Config(**VISION)
    state = dict(t.Dinov2Model(config).state_dict())
    return below("my_net", state) | {"fc.weight": torch.randn(5, 36), "fc.bias": torch.randn(5)}


MODELS = {
    make.__name__: make
    for make in (
        *(two_streams, known_towers, mlp_head, nearly, of_groups, parallel_heads),
        *(of_three_layers, another_step, minicpm, doubled, pooled_otherwise),
    )
} | {
    "no last norm": lambda: without(vit(), "norm."),
    "no positions": lambda: without(vit(), "pos_embed"),
    "no patches": lambda: without(vit(), "patch_embed."),
    "other names": lambda: {f"my_{n.replace('norm1', 'ln_a')}": x for n, x in vit().items()},
}
OF_NO_VIT = ("of_groups", "no patches", "other names")  # which end in a table, or an earlier file
COMMANDS = ("convert {} --dry-run ", "inspect {} ")
WORDS = {  # what a reader puts in place of what a hint leaves open
    "FILE": "{model}",
    "--dialect NAME": "--dialect dino",
    "NAME": "{known}",
    "my.toml": "{folder}/my.toml",
    "num_heads=...": "num_heads=3",
    "norm_eps=...": "norm_eps=1e-6",
    "final_norm=...": "final_norm=false",
    "image_size=...": "image_size=24",
    "position_embedding=...": "position_embedding=none",
    "pooling=...": "pooling=token",
    "pooling=token,": "pooling=token",
    "PATTERN": "{left}",
}


def saved(made, folder):
    tensors, config = made if isinstance(made, tuple) else (made, None)
    folder.mkdir()
    contiguous = {name: x.clone().contiguous() for name, x in tensors.items()}
    save_file(contiguous, folder / "model.safetensors")
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def suggested(message, typed):
    """The commands of a message: those that it writes out, and this one with its options."""
    hint = re.search("hint: (.*)", message)
    text = hint[1] if hint else ""
    left = re.search(r"left over +(\S+)|(?:and|doubled +\S+) +(\S+)", message)
    known = {"model": "model", "known": "known", "folder": "."}
    known |= {"left": next(filter(None, left.groups())) if left else "nothing"}
    for word, value in WORDS.items():
        text = re.sub(rf"(?<![\w.]){re.escape(word)}", value.format(**known), text)
    for command in re.findall("`vitconvert ([^`]*)`", text):
        yield shlex.split(command)
    bare = re.sub("`[^`]*`", "", text)
    options = re.findall(r"(--(?:tower|set|ignore|dialect) '?[^\s']+'?)", bare)
    options = [shlex.split(option.rstrip(".,;:")) for option in options]
    if " or --" in bare or not all(flag in ("--set", "--ignore") for flag, _ in options):
        for option in options:  # of which one is meant
            yield [*typed, *option]
    elif options:
        yield [*typed, *itertools.chain(*options)]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", list(MODELS))
def test_each_suggested_command_gets_further(name, command, run, tmp_path, monkeypatch):
    torch.manual_seed(3)
    monkeypatch.chdir(tmp_path)
    model = saved(MODELS[name](), tmp_path / "model")
    known = saved(vit(), tmp_path / "plain")
    run("convert", known, "--set", "num_heads=3", "-o", tmp_path / "known", "--no-verify", "-q")
    typed, told = shlex.split(command.format(model.name)), ""
    for _ in range(4):  # questions, one after the other
        answer = run(*typed)
        if answer.code == 0:
            break
        assert message_of(answer) != told
        told = message_of(answer)
        assert "get it again" not in told and "incomplete" not in told
        commands = [*suggested(told, typed)]
        assert commands or "save the model again" in told, told
        for again in commands:
            then = run(*again)
            assert then.code == 0 or message_of(then) != told, (again, told)
            assert then.code != 2, (again, then.err)  # such as no such option
        onward = [one for one in commands if one[0] == typed[0] and "--dialect" not in one]
        if not onward:
            break
        typed = onward[0]
    assert (answer.code == 0) == (name not in OF_NO_VIT), told


def message_of(answer):
    """An error, wherever the verb prints it."""
    found = re.search(r"^error: .*", answer.err + answer.out, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""
