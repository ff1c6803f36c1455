"""Options of verbs that would be passed over are refused by their names, and odd values too."""

import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from tests.api.conftest import files
from tests.api.test_options import READING, options_of
from tests.cli.conftest import Answer
from vitconvert.cli import VERBS, vitconvert

__all__ = ["files"]


@pytest.mark.parametrize(
    ("verb", "options", "named"),
    [
        ("verify {vit} --dtype float32", "", "--dtype"),
        ("verify {vit}", "--dtypes int8", "int8"),
        ("verify {vit}", "--seed -1", "seed"),
        ("verify {vit}", "--tolerance nan", "tolerance"),
        ("verify {vit}", "--tolerance inf", "tolerance"),
        ("verify {vit}", "--report -", "--report"),
        ("inspect {vit}", "--dtype float32", "--dtype"),
        ("diff {vit} {other}", "--dtype float32", "--dtype"),
        ("diff {vit} {other}", "--lora-scale nan", "lora_scale"),
        ("golden {vit} -o g.golden", "--batch 0", "batch"),
        ("golden {vit}", "-o -", "--output"),
        ("file {vit} -o out", "--image-size 12.5", "image_size"),
        ("file {vit} -o out", "--classes 3,3", "3, 3"),
        ("file {vit} -o out", "--num-classes -1", "--num-classes"),
        ("file {vit} -o out --checkpoint {vit}", "--revision main", "--revision"),
        ("timm vit_tiny_patch16_224 -o out --no-pretrained", "--checkpoint {vit}", "--checkpoint"),
        ("timm vit_tiny_patch16_224 -o out --no-pretrained", "--revision main", "--revision"),
        ("file {vit}", "-o -", "--output"),
        ("export {vit} --to pt2 -o v.pt2 --no-verify", "--images {images}", "images"),
        ("export {vit} --to pt2 -o v.pt2", "--batch-size 9999999", "batch_size"),
        ("predict {vit} {images}", "--engine onnxruntime", "--runtime"),
        ("predict {vit} {images}", "--null", "--null"),
        ("predict {vit} {images}", "--crop nan", "crop"),
        ("predict --check out", "--topk 3", "--topk"),
        ("embed {vit} {images}", "-o -", "--output"),
        ("embed --check out", "--tokens", "--tokens"),
        ("attention {vit} {images}", "-o -", "--output"),
        ("attention {vit} {images} -o page.html", "--raw", "--raw"),
        ("attention {vit} {images} --json", "--raw", "--raw"),
        ("attention {vit} {images} -o a.png --features", "--foreground nan", "foreground"),
        ("table {vit} --like {vit}", "-o -", "--output"),
    ],
)
def test_an_option_that_nothing_obeys_is_refused(
    files: Path,
    tmp_path: Path,
    run: Callable[..., Answer],
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    options: str,
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {name: files / name for name in ("vit", "other", "images")}
    answer = run(*f"{verb} {options}".format(**places).split())
    assert answer.code in (1, 2), answer
    assert named in answer.err + answer.out
    assert not list(tmp_path.iterdir())


def test_odd_names_of_heads_and_queries_are_refused(files: Path) -> None:
    import vitconvert

    (maps,) = vitconvert.attention_maps(files / "vit", files / "images" / "1.png")
    for asked in ({"head": "x"}, {"head": 0.5}, {"layer": 1.0}, {"query": 5}, {"query": (1,)}):
        with pytest.raises(vitconvert.VitConvertError):
            maps.map(**asked)


# Verb -> the functions of Python whose options it has; of all others it is `convert`.
PYTHON = {
    "audit": ("audit_load",),
    "inspect": ("inspect",),
    "diff": ("diff",),
    "verify": ("verify", "compare", "check_golden"),
    "golden": ("record_golden", "record_pixels"),
    "predict": ("predict", "embed_dataset"),
    "embed": ("embed", "embed_dataset"),
    "attention": ("attention_maps", "feature_maps"),
    "table": ("draft_table",),
    "export": ("export_model",),
}
# What the command line says otherwise -> the option of Python, or the tests of the verbs alone.
OTHERWISE = {"set": "overrides", "force": "overwrite", "checkpoint": "source", "file": "output"}
ALONE = {
    "../auditing/test_loaders": ("by",),
    "test_attention": ("heads", "query", "rollout", "raw", "features"),
    "test_golden": ("pixels", "check"),
    "test_inspect": ("lines",),
    "test_plan": ("dry_run", "verbose"),
    "test_predict": ("as_json", "quiet", "null"),
    "test_push": ("private", "create_pr", "message", "revision", "token"),
    "test_scale": ("plan",),
    "test_places": ("cache_dir",),
    "test_source_verbs": ("offline", "no_pretrained", "scan"),
    "test_stated_preprocessing": ("mean", "std", "crop", "preprocessor"),
    "test_table": ("facts",),
    "test_verify_module": ("module", "page"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_one_of_python_or_has_a_test(verb: str) -> None:
    """An option that a verb gets anew fails here until it is in a table."""
    command = vitconvert.get_command(click.Context(vitconvert), verb)
    assert command is not None
    known = {name for function in PYTHON.get(verb, ("convert",)) for name in options_of(function)}
    # `load_checkpoint` has it, whose answer all of them take.
    known |= {*READING, "image_size", "model", "output", "overwrite", "source"}
    tested = {name: module for module, names in ALONE.items() for name in names}
    for option in command.params:
        if not isinstance(option, click.Option) or option.name is None:
            continue  # a place
        name = re.sub("_(a|b|against)$", "", option.name)
        if OTHERWISE.get(name, name) in known or option.name == "against":
            continue
        text = Path(__file__).parent.joinpath(f"{tested[name]}.py").read_text(encoding="utf-8")
        assert any(f'"{flag}' in text or f" {flag}" in text for flag in option.opts), option.opts
