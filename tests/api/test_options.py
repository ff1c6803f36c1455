"""One table of all public functions and their options: each is obeyed, or refused by name.

An option that a function gets anew has no row here, and fails until it has one.
"""

import dataclasses
import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow.dataset
import pytest
import torch
from torch import nn

import vitconvert
from tests.sampling import sampled
from vitconvert.arguments import VALUES, given, read_value
from vitconvert.arguments import options_of as fields_of
from vitconvert.checkpoint import ReadOptions
from vitconvert.config.properties import DROP_RATES
from vitconvert.errors import UsageError, VitConvertError

READING = tuple(fields_of(ReadOptions))
OF_IMAGES = ("labels", "mean", "std", "crop", "interpolation")
TAKEN = {**VALUES, **{name: one.values for name, one in fields_of(ReadOptions).items()}}
FUNCTIONS = {
    name: function
    for name in vitconvert.__all__
    if inspect.isfunction(function := getattr(vitconvert, name))
    and not function.__module__.startswith("vitconvert.model")  # of a ViT in memory
}


def options_of(name: str) -> list[str]:
    """The options of a function: those of reading, and of how a run goes, among them."""
    found: list[str] = []
    for parameter in inspect.signature(FUNCTIONS[name]).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            (arguments,) = get_args(parameter.annotation)
            found += arguments.__annotations__
        elif parameter.name == "reading":
            found += READING
        else:
            found.append(parameter.name)
    return list(dict.fromkeys(found))


read_once = functools.cache(vitconvert.load_checkpoint)


once_built = functools.cache(vitconvert.load_model)


@functools.cache
def golden_of(vit: Path) -> Path:
    """A golden file."""
    file = vit.parents[1] / "vit.golden"
    vitconvert.record_golden(vit, file, overwrite=True)
    return file


@functools.cache
def pixels_of(vit: Path) -> tuple[Path, Path]:
    """A pixel golden, and its own arrays."""
    folder = vit.parents[1] / "vit.pixels"
    vitconvert.record_pixels(vit, folder, overwrite=True)
    return folder, folder / "pixels.safetensors"


def arguments(name: str, at: Path, out: Path) -> dict[str, Any]:
    """What a function is called with."""
    vit = at / "vit"
    seen = {"model": vit, "images": at / "images"}
    return {
        "audit_load": {"model": partial(vitconvert.load_model, vit), "file": vit},
        "load_checkpoint": {"source": vit},
        "load_model": {"source": vit},
        "inspect": {"source": vit},
        "plan_conversion": {"source": vit},
        "convert": {"source": vit, "output": out / "converted", "verify": False},
        "convert_state_dict": {
            "state_dict": read_once(vit).tensors,
            "to": "vit",
            "dialect": "vit",
            "overrides": {
                "num_heads": 3,
                "image_size": (12, 8),
                "norm_eps": 1e-6,
                "activation": "gelu",
                "pooling": "token",
            },
        },
        "diff": {"a": vit, "b": at / "other"},
        "draft_table": {"source": vit, "like": vit},
        "build_lucidrains": {"source": vit},
        "export_model": {"source": vit, "output": out / "vit.pt2", "to": "pt2", "verify": False},
        "verify": {"source": vit, "against": at / "other", "dtypes": ["float32"]},
        "compare": {"source": once_built(vit), "against": at / "other", "dtypes": ["float32"]},
        "check_golden": {"source": vit, "golden": golden_of(vit), "dtypes": ["float32"]},
        "record_golden": {"source": vit, "output": out / "vit.golden"},
        "record_pixels": {"source": vit, "output": out / "vit.pixels"},
        "check_pixels": dict(zip(("golden", "theirs"), pixels_of(vit), strict=True)),
        "predict": seen,
        "embed": seen,
        "attention_maps": seen,
        "feature_maps": seen,
        "embed_dataset": {"model": vit, "source": at / "images", "output": out / "features"},
    }[name]


@functools.cache
def values(at: Path) -> dict[str, Any]:
    """Option -> a value that changes the result, or is refused by its name."""
    other = at / "other"
    changed = read_once(at / "vit").preprocessing
    assert changed is not None
    sizes = {"image_size": (24, 8), "patch_size": 2, "in_channels": 1, "num_classes": 3}
    rates = dict.fromkeys(DROP_RATES, 0.1)
    asked = {"topk": 2, "labels": list("vwxyz"), "layers": [0], "foreground": 0.9}
    compared = {
        "tolerance": 3.0,
        "seed": 1,
        "batch": 3,
        "dtypes": ["float64"],
        "images": at / "images" / "1.png",
    }
    run = {"shard_rows": 1, "store": "float16", "keep": ["caption"], "image_column": "image"}
    ray = {"engine": "none", "address": "here", "workers": 2}
    ray |= {"cpus_per_worker": 2, "gpus_per_worker": 1}
    return {
        **dict.fromkeys(("source", "model", "a", "b", "like"), other),
        "against": at / "vit",
        "module": vitconvert.load_model(other),
        "file": other,
        "state_dict": read_once(other).tensors,
        "preprocessing": dataclasses.replace(changed, mean=(0.0, 0.0, 0.0)),
        "to": "nonsense",
        "output": at / "there",
        "command": "made by hand",
        "dialect": "nonsense",
        "architecture": "nonsense",
        "prefer": "nonsense",
        "tower": "nonsense",
        "table": at / "nonsense.toml",
        "adapter": at / "nonsense",
        "overrides": {"norm_eps": 0.1},
        "mean": [0.1, 0.2, 0.3],
        "std": 0.7,
        "crop": 0.5,
        "interpolation": "nearest",
        "preprocessor": at / "nonsense.json",
        "lora_scale": 2.0,
        "ignore": ["nonsense.*"],
        "rescue": True,
        "python": sys.executable,
        "dequantise": "float32",
        "reading_a": {"dialect": "nonsense"},
        "reading_b": {"dialect": "nonsense"},
        "dtype": torch.float16,
        "device": "cuda:99",
        "allow": ["nonsense"],
        "classes": [3, 0],
        "image_only": True,
        "max_shard_size": 1000,
        "verify": True,
        "overwrite": True,
        "kind": "features",
        "probabilities": True,
        "with_preprocessing": True,
        "batch_size": 1,
        "int8": True,
        "calibrate": at / "images",
        "probes": True,
        "dynamic_size": True,
        "opset": 18,
        "runtime": "nonsense",
        "computed": "tokens",
        "threads": 1,
        "fast": False,
        "fast_preprocessing": True,
        "decode": "gpu",
        "max_image_pixels": 1,
        "recursive": True,
        "tell": print,
        "notify": print,
        "tokens": True,
        "projected": True,
        "layer": 1,
        "pool": "mean",
        "background": False,
        "preprocess": np.asarray,
        "golden": other,
        "theirs": at / "nonsense.npz",
        "header": True,
        "with_hash": True,
        "only": (1, 10_000),
        "append": True,
        "retry_failed": True,
        "max_errors": 0,
        **sizes,
        **rates,
        **asked,
        **compared,
        **run,
        **ray,
    }


# What an option of one function is tried with, besides or in the place of the above.
OWN: Mapping[tuple[str, str], Callable[[Path], dict[str, Any]]] = {
    **{
        (name, "rescue"): lambda at: {"source": at / "whole"}
        for name in FUNCTIONS
        if {"source", "rescue"} <= set(options_of(name)) and name not in ("diff", "embed_dataset")
    },
    ("audit_load", "model"): lambda at: {"model": partial(vitconvert.load_model, at / "other")},
    ("audit_load", "allow"): lambda at: {
        "model": partial(vitconvert.load_model, at / "other"),
        "allow": ["*"],
    },
    ("diff", "rescue"): lambda at: {"a": at / "whole"},
    ("diff", "b"): lambda at: {"b": at / "vit"},
    ("diff", "overrides"): lambda _: {"overrides": {"num_heads": 5}},
    ("embed_dataset", "rescue"): lambda at: {"model": at / "whole", "source": at / "images"},
    ("embed_dataset", "labels"): lambda _: {"computed": "classes"},
    ("convert_state_dict", "rescue"): lambda _: {},
    ("convert_state_dict", "to"): lambda _: {"to": "torchvision"},
    ("load_model", "fast"): lambda _: {"fast": True},
    ("verify", "against"): lambda at: {"against": at / "vit"},
    ("compare", "against"): lambda at: {"against": at / "vit"},
    ("compare", "rescue"): lambda at: {"against": at / "whole"},
    ("compare", "preprocess"): lambda at: {
        "images": at / "images" / "1.png",
        "preprocess": lambda _: torch.zeros(3, 12, 8),
    },
    ("check_golden", "source"): lambda at: {"source": at / "nonsense"},
    ("compare", "max_image_pixels"): lambda at: {"images": at / "images" / "1.png"},
    **{
        (name, "layers"): lambda _: {"layers": {"head": "head"}}
        for name in ("compare", "check_golden")
    },
    ("export_model", "dtype"): lambda _: {"dtype": "float16"},
}
_ANSWERS = ("predict", "embed", "embed_dataset")
HOW = {
    # How something is done, which changes nothing but the time that it takes.
    *((name, option) for name in _ANSWERS for option in ("threads", "tell", "batch_size", "fast")),
    *((name, "workers") for name in _ANSWERS),
    ("load_model", "dynamic_size"),  # images of its own size are as ever
    *(("embed_dataset", option) for option in ("notify", "output")),
    *((name, "fast_preprocessing") for name in _ANSWERS),  # small images are read as ever
    # What may be done, and need not be here.
    *((name, option) for name in FUNCTIONS for option in ("overwrite", "image_only")),
    *(("embed_dataset", option) for option in ("retry_failed", "max_errors")),
    *((name, "output") for name in ("plan_conversion", "record_pixels")),
    ("convert", "command"),  # which is in the record alone
    ("record_golden", "tolerance"),  # of a proof in which no bit differs
    *(("record_pixels", option) for option in ("overrides", "labels")),  # nothing of pixels
    # What is said of images and classes, where it is read and neither plays a part.
    *(
        (n, o)
        for n in ("load_model", "verify", "compare", "check_golden", "record_golden")
        for o in OF_IMAGES
    ),
}


def shown(result: Any) -> Any:
    """What came out, as far as it can be compared."""
    if isinstance(result, nn.Module):
        kinds = type(result).__name__, str(next(result.parameters()).dtype)
        return kinds, repr(getattr(result, "config", result)), str(result.state_dict())
    if isinstance(result, vitconvert.Checkpoint):
        named = result.located.reference, str(result.preprocessing), result.labels
        return repr(result.config), *named
    if isinstance(result, vitconvert.Golden | vitconvert.FeatureMaps | vitconvert.AttentionMaps):
        return {name: str(value) for name, value in vars(result).items()}
    if isinstance(result, Mapping):
        return {name: str(value) for name, value in result.items()}
    return json.dumps(result.to_dict(), default=str)


def rows(output: Path) -> list[str]:
    """The files of an output that have rows."""
    return [str(file) for file in output.glob("*/part-*.parquet") if file.parent.name != "failed"]


def outcome(name: str, given: Mapping[str, Any]) -> tuple[bool, Any]:
    """Whether a function refused, and what it gave or said."""
    try:
        result = FUNCTIONS[name](**given)
        if name == "embed_dataset":
            table = pyarrow.dataset.dataset(rows(given["output"])).to_table()
            return False, (str(table.schema), str(table.to_pylist()))
        several = hasattr(result, "__next__") or isinstance(result, list)
        return False, [shown(one) for one in result] if several else shown(result)
    except VitConvertError as error:
        return True, str(error)


def called(name: str, option: str, at: Path, out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a function is called with to try an option: without it, and with it."""
    own = OWN.get((name, option), lambda _: {})(at)
    value = own.pop(option, values(at)[option])
    base = arguments(name, at, out) | own
    if name == "embed_dataset" and option in READING and option != "labels":
        return base, base | {"reading": {option: value}}
    return base, base | {option: value}


@functools.cache
def usual(name: str, at: Path, out: Path, own: str) -> tuple[bool, Any]:
    """What comes out without an option; `own` is one that is tried with other arguments."""
    base = called(name, own, at, out)[0] if own else arguments(name, at, out)
    return outcome(name, base)


def names_of(option: str, value: Any) -> list[str]:
    """What a refusal may call an option: by its name, or by the value that it has."""
    inner = list(value.values()) if isinstance(value, Mapping) else value
    inner = inner[0] if isinstance(inner, list) else inner
    return [option, option.replace("_", "-"), str(inner)]


@pytest.mark.parametrize(
    ("name", "option"),
    sampled([(name, option) for name in FUNCTIONS for option in options_of(name)], 9, "slow"),
)
def test_each_option_is_obeyed_or_refused_by_its_name(
    files: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    option: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    own = option if (name, option) in OWN else ""
    given = called(name, option, files, tmp_path)[1]
    before = usual(name, files, tmp_path_factory.getbasetemp() / f"usual-{name}-{own}", own)
    refused, found = outcome(name, given)
    if refused and not before[0]:
        value = given["reading"][option] if "reading" in given else given[option]
        assert any(word in found for word in names_of(option, value)), found
    elif (name, option) not in HOW:
        assert found != before[1]


@pytest.mark.parametrize("option", sampled(READING, 4, "slow"))
@pytest.mark.parametrize(
    "name",
    [
        *("load_checkpoint", "load_model", "plan_conversion", "convert", "export_model"),
        *("verify", "record_golden"),
    ],
)
def test_what_was_read_already_is_not_read_otherwise(
    files: Path, tmp_path: Path, name: str, option: str
) -> None:
    read = vitconvert.load_checkpoint(files / "vit")
    value = {option: values(files)[option]}
    refused, found = outcome(name, {**arguments(name, files, tmp_path), "source": read, **value})
    assert refused
    assert f"{option}: this is about how a checkpoint is read, and this one was" in found


_ODD = (
    *(float("nan"), float("inf"), -1, -1.5, 0, 3, 10**30, True, "", "x", "3,7", b"x", "a\0b", None),
    *((), [], (1, 2, 3), (48.5, 48), [1.5], [None], {}, {1: 2}, {1, 2}, object(), print),
    *(np.int64(2), np.float32(0.5), np.bool_(True), np.array([1, 2]), torch.ones(2), torch.int8),
)


@pytest.mark.parametrize("option", sampled(TAKEN, 4, "slow"))
def test_a_value_is_taken_or_refused_with_an_example(option: str) -> None:
    for value in _ODD:
        try:
            read_value(option, value, TAKEN[option])
        except UsageError as error:
            assert error.fact.startswith(f"{option} = ")
            assert error.hint


@pytest.mark.parametrize(
    ("option", "value", "taken"),
    [
        ("seed", np.int64(3), 3),
        ("classes", [np.int64(1), "cat"], (1, "cat")),
        ("tolerance", np.float32(0.5), 0.5),
        ("image_size", np.array([12, 8]), (12, 8)),
        ("image_size", "12x8", (12, 8)),
        ("fast", np.bool_(False), False),
        ("layers", torch.tensor(2), 2),
    ],
)
def test_numbers_of_other_libraries_are_numbers(option: str, value: Any, taken: Any) -> None:
    found = read_value(option, value, TAKEN[option])
    assert found == taken
    assert type(found) is type(taken)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("seed", -1), ("seed", 2.0), ("tolerance", float("nan")), ("tolerance", float("inf"))),
        *(("dtypes", ()), ("classes", "3,7"), ("classes", [True]), ("allow", "norm-eps")),
        *(("dtype", torch.int8), ("image_size", (3, 48, 48)), ("image_size", b"48"), ("to", "")),
        *(("batch_size", 0), ("output", ""), ("overwrite", "no"), ("labels", []), ("topk", 0)),
        *(("device", "meta"), ("max_shard_size", 0), ("lora_scale", float("nan"))),
    ],
)
def test_what_an_option_cannot_mean_is_refused(option: str, value: Any) -> None:
    with pytest.raises(UsageError):
        read_value(option, value, TAKEN[option])


def test_all_functions_read_their_options() -> None:
    assert all(hasattr(function, "__wrapped__") for function in FUNCTIONS.values())


def test_arrays_and_modules_are_given_whatever_they_hold() -> None:
    """NumPy and torch refuse to say whether an array of several numbers is true."""
    options = {"array": np.zeros(2), "tensor": torch.zeros(2), "module": nn.ModuleList()}
    nothing = {"flag": False, "text": "", "list": [], "none": None}
    assert given(options | nothing) == list(options)
