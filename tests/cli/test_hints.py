"""A command or an option that a hint names leads on, from the case that caused it.

It ends well, or with another question.
"""

import json
import re
import shlex
import shutil
from dataclasses import dataclass, field

import click
import pytest
import torch
from safetensors.torch import save_file

from tests.packages import transformers
from tests.small_models import randomise, small_timm
from vitconvert.cli import vitconvert as verbs
from vitconvert.demo.demonstration import DIGITS

PLAIN = "--set num_heads=3"


@dataclass(frozen=True)
class Case:
    """A hint, with {} for what is filled in, and a command that it answers.

    Attributes:
        hint: A part of it.
        command: What fails; OUT is a path where nothing is.
        words: Placeholders of the hint -> what a user writes there.
        beside: What is typed with it in any case, as the hint for another question.
    """

    hint: str
    command: str
    words: dict[str, str] = field(default_factory=dict)
    beside: str = ""


CASES = [
    Case("--set {}=...", "file plain.pth -o OUT", {"...": "3"}, "--no-verify"),
    Case("--set-against {}=...", "verify digits --against plain.pth", {"...": "3"}),
    Case("--set {}=...", "table plain.pth --like plain.pth -o OUT.toml", {"...": "3"}),
    Case("`{}` merges the two", "hf adapter -o OUT", {"BASE": "base"}, "-o OUT --no-verify"),
    Case("leave out --lora-scale", "hf base --adapter adapter --lora-scale 2 --no-verify -o OUT"),
    Case("--lora-scale NUMBER", "hf base --adapter bare -o OUT", {"NUMBER": "2"}, "--no-verify"),
    Case("leave out --prefer", f"inspect plain.pth {PLAIN} --prefer ema"),
    Case("--prefer {}", f"file several.pt {PLAIN} --dry-run"),
    Case("--rescue", f"file whole.pt {PLAIN} --dry-run"),
    Case("--rescue", "table whole.pt --like digits -o OUT.toml", beside="-o OUT"),
    Case("--dtype float32", f"file rows.pt {PLAIN} -o OUT", beside="--no-verify"),
    Case("did you mean `vitconvert {}`?", "inspekt digits"),
    Case("`vitconvert --help` lists them", "xyzzy digits"),
    Case("-o page.html", "attention digits photo.png", {"page.html": "OUT.html"}),
    Case("-o features/ names one", "embed digits photo.png --shard-rows 2 -o OUT.npz"),
    Case("leave out --append", "embed digits photo.png --append -o OUT/"),
    Case("--force replaces it", "verify digits --report taken.html"),
    Case("--force replaces it", "file digits -o old --no-verify"),
    Case("`vitconvert list` describes all of them", "file digits --to xyzzy -o OUT"),
    Case("`vitconvert list '*'` shows them", f"file plain.pth {PLAIN} --architecture zzz -o OUT"),
    Case("--kind features", f"export headless.pth {PLAIN} --to pt2 --kind logits -o OUT.pt2"),
    Case(
        "--calibrate PHOTOS/",
        "export digits --to openvino --int8 -o OUT.xml",
        {"PHOTOS/": "photo.png"},
    ),
    Case("leave out --max-shard-size", "file digits --to timm --max-shard-size 1KB -o OUT"),
    Case("--recursive", "predict digits nested"),
    Case("--max-image-pixels {}", "predict digits photo.png --max-image-pixels 9"),
    Case("leave out --projected", "embed digits photo.png --projected"),
    Case("--force replaces it, if", "embed digits photo.png -o f.npz"),
    Case("--prefer-against {}", "verify digits --against several.pt"),
    Case(
        "--preprocessor FILE, or --mean",
        f"predict plain.pth {PLAIN} photo.png",
        {"FILE": "digits/preprocessor_config.json"},
    ),
    Case("--force", "golden digits -o old.golden"),
    Case("`vitconvert convert CHECKPOINT -o DIR`", "push base me/vit --dry-run"),
    Case("leave out --revision", "inspect digits --revision main"),
    Case("--ignore '{}.*'", f"file odd.pth {PLAIN} --dry-run"),
    Case(
        "`vitconvert table FILE",
        "file unknown.pth -o OUT",
        {"FILE": "plain.pth", "NAME": "digits", "my.toml": "OUT.toml"},
    ),
    Case("--to {} -o {}` writes it", "convert plain.pth --to onnx"),
    Case(
        "`vitconvert convert MODEL --to",
        "export digits --to timm -o OUT.onnx",
        {"MODEL": "digits", "...": "timm"},
        "-o OUT --no-verify",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of each kind that a hint is about."""
    place = tmp_path_factory.mktemp("hints")
    shutil.copytree(DIGITS, place / "digits")
    shutil.copy(DIGITS / "samples" / "1.png", place / "photo.png")
    (place / "nested" / "deeper").mkdir(parents=True)
    shutil.copy(place / "photo.png", place / "nested" / "deeper")
    shutil.copytree(DIGITS, place / "old", ignore=shutil.ignore_patterns("s*", "t*"))
    for name in ("taken.html", "f.npz", "old.golden"):
        (place / name).touch()
    model = small_timm(img_size=24, depth=1)
    tensors = randomise(model).state_dict()
    torch.save(tensors, place / "plain.pth")
    headless = {name: t for name, t in tensors.items() if not name.startswith("head.")}
    torch.save(headless, place / "headless.pth")
    torch.save(model, place / "whole.pt")
    torch.save({"one": tensors, "two": tensors}, place / "several.pt")
    torch.save({"weights.0": torch.ones(3)}, place / "unknown.pth")
    torch.save(tensors | {"head.scale": torch.ones(7)}, place / "odd.pth")
    qkv = "blocks.0.attn.qkv"
    numbers = {f"{qkv}.weight": torch.ones(90, 30, dtype=torch.int8), f"{qkv}.SCB": torch.ones(90)}
    numbers[f"{qkv}.weight_format"] = torch.zeros(1, dtype=torch.uint8)
    torch.save(tensors | numbers, place / "rows.pt")
    _save_adapter(place)
    return place


def _save_adapter(place):
    """A model of transformers, and an adapter with and without what says its scale."""
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 30}
    config = transformers.ViTConfig(**sizes, num_hidden_layers=1, image_size=24, patch_size=8)
    randomise(transformers.ViTForImageClassification(config)).save_pretrained(place / "base")
    module = "base_model.model.vit.layers.0.attention.q_proj"
    tensors = {f"{module}.lora_A.weight": torch.randn(2, 24)}
    tensors |= {f"{module}.lora_B.weight": torch.randn(24, 2)}
    for name in ("adapter", "bare"):
        (place / name).mkdir()
        save_file(tensors, place / name / "adapter_model.safetensors", metadata={"format": "pt"})
    said = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (place / "adapter" / "adapter_config.json").write_text(json.dumps(said))


_FLAG = re.compile(r"(?<![\w-])(-o|--[a-z][a-z-]*[a-z])(?: (\S+))?")
_ELSEWHERE = re.compile(r" `vitconvert \w+` has no .*; `vitconvert (\w+)` has")


def followed(hint, arguments, case, out):
    """What somebody types who does what the hint says first."""
    words = {word: value.replace("OUT", out) for word, value in case.words.items()} | {"OUT": out}

    def filled(text):
        return re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], text)

    beside = shlex.split(case.beside.replace("OUT", out))
    if elsewhere := _ELSEWHERE.search(hint):
        arguments, hint = [elsewhere[1], arguments[1]], hint[: elsewhere.start()]
    elif command := re.search("`vitconvert ([^`]*)`", hint):
        return [*shlex.split(filled(command[1])), *beside]
    if "leave out" in hint:
        return _without(arguments, [flag for flag, _ in _FLAG.findall(hint)])
    flag, value = _FLAG.search(hint).groups()
    typed = [flag] if _is_flag(arguments[0], flag) else [flag, filled(value.strip(".,;"))]
    if flag == "-o":
        typed, arguments = ["-o", words.get(value.strip(".,;"), out)], _without(arguments, ["-o"])
    return [*arguments, *typed, *beside]


def _is_flag(verb, flag):
    options = verbs.get_command(click.Context(verbs), verb).params
    return next(p.is_flag for p in options if flag in p.opts)


def _without(arguments, flags):
    skipped, rest = 0, []
    for word in arguments:
        skipped = 1 + (not _is_flag(arguments[0], word)) if word in flags else skipped
        rest += [] if skipped else [word]
        skipped = max(0, skipped - 1)
    return rest


@pytest.mark.filterwarnings("ignore")  # of the libraries that compute
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.command}: {case.hint}"[:60])
def test_what_a_hint_names_leads_on(case, folder, run, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    arguments = shlex.split(case.command.replace("OUT", str(tmp_path / "out")))
    first = run(*arguments)
    assert first.code not in (0, 3), first.out
    (hint,) = re.findall("^  hint: (.*)$", first.err, re.MULTILINE)
    assert re.search(re.escape(case.hint).replace(r"\{\}", ".*"), hint)
    then = followed(hint, arguments, case, str(tmp_path / "then"))
    second = run(*then)
    assert second.code == 0 or second.err != first.err, (then, second.err)
    assert "No such option" not in second.err, then


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the libraries that compute
def test_the_command_of_a_refusal_offers_another_format(run, tmp_path, monkeypatch):
    """Of a head that reads all tokens, which timm has not."""
    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "image_size": 24, "patch_size": 8}
    config = transformers.Dinov2Config(**sizes, num_hidden_layers=1, num_labels=5)
    randomise(transformers.Dinov2ForImageClassification(config)).save_pretrained("dino-ft")
    first = run("hf", "dino-ft", "--to", "timm", "-o", "dino-ft-timm", "--no-verify")
    assert first.code == 5
    (command,) = re.findall("^  command +vitconvert (.*)$", first.err, re.MULTILINE)
    assert re.fullmatch("hf dino-ft --to vit -o dino-ft-vit --no-verify", command)
    then = run(*shlex.split(command))
    assert then.code == 0, then.err


@pytest.mark.parametrize(("heads", "told"), [(6, True), (3, False)])
def test_a_number_of_heads_that_no_released_vit_has(heads, told, run, tmp_path):
    model = small_timm(img_size=32, embed_dim=192, depth=1)
    save_file(model.state_dict(), tmp_path / "vit.safetensors")
    stated = ("--set", f"num_heads={heads}", "--no-verify")
    done = run("convert", tmp_path / "vit.safetensors", *stated, "--to", "hf", "-o", tmp_path / "o")
    note = "num_heads is 6, as you state; released ViTs of width 192 have 3"
    assert done.code == 0 and (note in done.out) == told, done
    assert ("no file states the preprocessing" in done.out) != told  # else among the others


def test_an_adapter_alone_is_merged_where_its_base_is(folder, run, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    shutil.copytree("adapter", tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    said = json.loads(file.read_text())
    file.write_text(json.dumps(said | {"base_model_name_or_path": "base"}))
    done = run("hf", tmp_path / "adapter", "-o", tmp_path / "merged", "--no-verify")
    assert done.code == 0, done.err
    assert "more in its README.md" in done.out
    card = " ".join((tmp_path / "merged" / "README.md").read_text().split())
    assert "merged the LoRA adapter adapter" in card
    assert "the adapter was merged into base, which its adapter_config.json names" in card
    known = run("hf", "base", "--adapter", "adapter", "-o", tmp_path / "known", "--no-verify")
    assert known.code == 0
    assert run("diff", tmp_path / "merged", tmp_path / "known").code == 0
    assert run("diff", tmp_path / "merged", "base").code == 3


@pytest.mark.filterwarnings("ignore")  # of the libraries that compute
@pytest.mark.parametrize("written", ["hf_flax", "hf_tf", "keras_hub"])
def test_hf_reads_what_its_programs_saved_in_any_format(
    written, folder, run, tmp_path, monkeypatch
):
    monkeypatch.chdir(folder)
    there = tmp_path / "there"
    made = run("hf", "base", "--to", written, "-o", there, "--no-verify", "--allow", "norm-eps")
    assert made.code == 0, made.err
    (there / "vitconvert.json").unlink()  # as the program itself writes it
    read = run("hf", there, "-o", tmp_path / "read", "--no-verify")
    assert read.code == 0, read.err
    assert run("diff", there, tmp_path / "read").code == 0
