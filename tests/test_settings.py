"""Nothing that is computed depends on settings of the program around it, and all stay as they were.

Settings are changed as users do it: for the whole process, or by `with`.
"""

import hashlib
import pickle
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitconvert
from tests.matrix_sources import SOURCES, Source
from vitconvert.demo.demonstration import DIGITS
from vitconvert.programs.isolation import side_by_side
from vitconvert.settings import torch_threads, without_main, without_warnings


@contextmanager
def changed(set_: Callable[[Any], Any], value: object, before: object) -> Iterator[None]:
    set_(value)
    try:
        yield
    finally:
        set_(before)


@contextmanager
def warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


SETTINGS: Mapping[str, Callable[[], Any]] = {
    "default dtype": lambda: changed(torch.set_default_dtype, torch.float64, torch.float32),
    "half as default dtype": lambda: changed(
        torch.set_default_dtype, torch.bfloat16, torch.float32
    ),
    "default device": lambda: changed(torch.set_default_device, "meta", None),
    "device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "flush to zero": lambda: changed(torch.set_flush_denormal, True, False),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "deterministic": lambda: changed(torch.use_deterministic_algorithms, True, False),
    "precision": lambda: changed(torch.set_float32_matmul_precision, "medium", "highest"),
    "numpy": lambda: np.errstate(all="raise"),
    "warnings": warnings_are_errors,
}


@contextmanager
def everything() -> Iterator[None]:
    with ExitStack() as stack:
        for change in SETTINGS.values():
            stack.enter_context(change())
        yield


CHANGES = ["everything", *(pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS)]


def as_it_is() -> dict[str, Any]:
    """Every setting, of this thread and of the process, but for filters that imports add."""
    of_all = [one for one in warnings.filters if one[2] is Warning]
    filters = [(one[0], one[1]) for one in of_all if one[1] is None or one[1].match("anything")]
    return {
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "flushed": float(np.float32(1e-40) * np.float32(1)),
        "threads": torch.get_num_threads(),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "numpy": np.geterr(),
        "warnings": filters,
        "random": (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()),
        "cwd": Path.cwd(),
    }


def digest(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Dtype, device and bytes of each."""
    found = {}
    for name, tensor in sorted(tensors.items()):
        data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        words = tensor.dtype, tensor.device, tensor.is_inference(), tensor.requires_grad
        found[name] = f"{words} {tuple(tensor.shape)} {hashlib.sha256(data).hexdigest()}"
    return found


def loaded(path: Path, source: Source, folder: Path) -> dict[str, object]:
    """What users have of any checkpoint."""
    how = {"overrides": source.stated, "dialect": source.dialect}
    checkpoint = vitconvert.load_checkpoint(path, **how)
    model = vitconvert.load_model(path, **how)
    conversion = vitconvert.convert(path, to="vit", output=folder / "out", **how)
    return {
        "config": checkpoint.config,
        "tensors": digest(checkpoint.tensors),
        "model": digest(model.state_dict(keep_vars=True)),
        "function": checkpoint.function_hash,
        "inspected": vitconvert.inspect(path, with_hash=True, **how).to_dict(),
        "converted": (conversion.sha256, conversion.proof, conversion.parity.to_dict()),
    }


def answered() -> dict[str, object]:
    """What users ask a checkpoint of timm, the demonstration's."""
    model = vitconvert.load_model(DIGITS)
    with Image.open(SAMPLE) as opened:
        image = opened.copy()
    resized = vitconvert.load_model(DIGITS, image_size=(60, 36), patch_size=12, in_channels=1)
    features = {how: list(vitconvert.embed(DIGITS, [image, SAMPLE], **options))
                for how, options in EMBEDDED.items()}  # fmt: skip
    return {
        "resized": digest(resized.state_dict(keep_vars=True)),
        "renamed": digest(
            vitconvert.convert_state_dict(
                model.state_dict(), to="hf", overrides={"num_heads": HEADS}
            )
        ),
        "predicted": [str(p.to_dict()) for p in vitconvert.predict(DIGITS, [image, SAMPLE])],
        "exactly": [str(p.to_dict()) for p in vitconvert.predict(DIGITS, SAMPLE, fast=False)],
        "embedded": {how: digest({str(i): e.features for i, e in enumerate(found)})
                     for how, found in features.items()},
    }  # fmt: skip


def computed(folder: Path) -> dict[str, object]:
    """What users have made and compared of the same checkpoint."""
    model = vitconvert.load_model(DIGITS)
    exported = vitconvert.export_model(DIGITS, folder / "x.pt2", to="pt2", with_preprocessing=True)
    with vitconvert.audit_load(model, DIGITS) as audit:
        model.load_state_dict(model.state_dict())
    golden = vitconvert.record_golden(DIGITS, folder / "x.golden")
    pixels = vitconvert.record_pixels(DIGITS, folder / "pixels")
    (maps,) = vitconvert.attention_maps(DIGITS, SAMPLE)
    (seen,) = vitconvert.feature_maps(DIGITS, SAMPLE)
    return {
        "verified": vitconvert.verify(DIGITS, images=SAMPLE).to_dict(),
        "exported": [c.relative for c in exported.comparisons],
        "audited": str(audit),
        "golden": {kind: digest(layers) for kind, layers in golden.kept.items()},
        "pixels": sorted(pixels.images),
        "attention": digest({str(i): a for i, a in maps.attention.items()} | {"flow": maps.flow}),
        "features": digest({"colours": seen.colours, "tokens": seen.tokens}),
    }  # fmt: skip


EMBEDDED: Mapping[str, dict[str, Any]] = {
    "features": {},
    "tokens": {"tokens": True, "fast": False},
    "layer": {"layer": 2, "pool": "mean"},
    "bfloat16": {"dtype": torch.bfloat16},
}
SAMPLE = DIGITS / "samples" / "3.png"
HEADS = vitconvert.load_checkpoint(DIGITS).config.num_heads
WRITTEN = (
    "jax",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("hf DINOv3", "eva", "timm", "hf CLIP", "big_vision")
    ),
)


@pytest.fixture(scope="module")
def plainly(tmp_path_factory):
    """A checkpoint, and what users have of it where nothing is set."""
    known: dict[str, tuple[Path, Source, Any]] = {}

    def get(name: str) -> tuple[Path, Source, Any]:
        if name not in known:
            source, folder = SOURCES[name], tmp_path_factory.mktemp("settings")
            path = source.write(folder / "x")
            known[name] = path, source, loaded(path, source, folder)
        return known[name]

    return get


@pytest.fixture(scope="module")
def computed_plainly(tmp_path_factory):
    return computed(tmp_path_factory.mktemp("settings"))


def the_same(change: str, function: Callable[[], dict[str, object]], wanted: object) -> None:
    """A function gives the same under a setting, and leaves it and all others as they were."""
    at_first = as_it_is()
    with {**SETTINGS, "everything": everything}[change]():
        before = as_it_is()
        found = function()
        assert as_it_is() == before
    assert as_it_is() == at_first
    assert isinstance(wanted, dict)
    for name, value in wanted.items():
        assert found[name] == value, name


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", WRITTEN)
def test_a_checkpoint_is_read_and_converted_alike(change, name, plainly, tmp_path):
    path, source, wanted = plainly(name)
    the_same(change, lambda: loaded(path, source, tmp_path), wanted)


@pytest.mark.parametrize("change", CHANGES)
def test_questions_are_answered_alike(change):
    the_same(change, answered, answered())


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_everything_is_computed_alike(change, computed_plainly, tmp_path):
    the_same(change, lambda: computed(tmp_path), computed_plainly)


def at_once(count: int, function: Callable[[int], object]) -> list[object]:
    """A function called by several threads that nobody set up, all at the same time."""
    barrier = threading.Barrier(count)

    def call(number: int) -> object:
        barrier.wait()
        return function(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count)))


def test_threads_at_once(tmp_path):
    """Each gets the same numbers, and none is left with the settings of another."""

    def verified(number: int) -> object:
        if number % 2:
            return vitconvert.verify(DIGITS, images=SAMPLE).to_dict()
        output = tmp_path / str(number)
        converted = vitconvert.convert(DIGITS, to="hf", output=output).sha256
        return {**converted, "threads": torch.get_num_threads()}

    wanted = verified(1)
    torch.set_num_threads(2)
    try:
        before = as_it_is()
        found = at_once(6, verified)
        rewritten, reports = found[::2], found[1::2]
        assert as_it_is() == before
        assert at_once(2, lambda _: torch.get_num_threads()) == [2, 2]
    finally:
        torch.set_num_threads(1)
    assert reports == [wanted] * 3
    assert rewritten == [rewritten[0]] * 3
    assert rewritten[0]["threads"] == 2


def test_a_thread_that_takes_threads_changes_no_other():
    torch.set_num_threads(3)
    try:
        with torch_threads(2):
            assert torch.get_num_threads() == 2
            assert at_once(1, lambda _: torch.get_num_threads()) == [3]
            assert side_by_side(torch.get_num_threads, torch.get_num_threads) == [2, 2]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)


def test_the_last_thread_restores_what_the_first_one_changed():
    before, first, second = list(warnings.filters), without_warnings(), without_warnings()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with warnings_are_errors(), pytest.raises(UserWarning):
        warnings.warn("shown", stacklevel=1)
    warnings.warn("not shown", stacklevel=1)
    second.__exit__(None, None, None)
    assert warnings.filters == before


def test_what_is_of_the_script_can_be_pickled_while_processes_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By another thread; the processes are told of no file that they could import."""
    script = ModuleType("__main__")
    script.__file__ = "script.py"
    exec("class Thing: ...", vars(script))
    monkeypatch.setitem(sys.modules, "__main__", script)
    thing = script.Thing()
    with ThreadPoolExecutor(1) as pool, without_main():
        content = pool.submit(pickle.dumps, thing).result()
        main = sys.modules["__main__"]
        assert main is not script and main.__spec__ is None and not hasattr(main, "__file__")
    assert sys.modules["__main__"] is script and script.__file__ == "script.py"
    assert type(pickle.loads(content)) is type(thing)
