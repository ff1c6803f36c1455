"""Images prepared by processes: what threads make of them, to the last bit, and no process left."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import torch
from PIL import Image, ImageFile

from tests.inference import spied_format
from tests.inference.test_predict import PREPROCESSING, vit
from tests.small_models import randomise, small_config
from vitconvert.api import embed, predict
from vitconvert.errors import CorruptFile, SourceError, UsageError, VitConvertError
from vitconvert.inference import batches, processes
from vitconvert.inference.batches import Ready, run_in_batches
from vitconvert.inference.options import ComputeOptions
from vitconvert.inference.preparing import Output, Picture
from vitconvert.inference.processes import Sizes
from vitconvert.model import FastViT, ViT
from vitconvert.preprocessing import Preprocessing

PLAIN = Preprocessing.from_timm(
    {"input_size": (3, 24, 32), "mean": (0, 0, 0), "std": (1, 1, 1), "crop_pct": 1.0}
)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Photographs of odd sizes, files that fail, and one of which something is left out."""
    draw = np.random.default_rng(3)
    paths = []
    for number in range(14):
        height, width = draw.integers(25, 90, 2)
        image = Image.fromarray(draw.integers(0, 256, (height, width, 3), np.uint8))
        paths.append(tmp_path / f"{number}.{'jpg' if number % 2 else 'png'}")
        image.save(paths[-1])
    paths[3].write_bytes(b"no image")
    paths[9] = tmp_path / "none.png"
    deep = draw.integers(0, 65536, (40, 52)).astype(np.uint16)
    Image.fromarray(deep).save(paths[10])
    return paths


@pytest.fixture
def spied() -> Iterator[None]:
    spied_format.register()
    yield
    spied_format.forget()


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    yield
    until = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < until:
        time.sleep(0.05)
    assert not multiprocessing.active_children()


class Answers(NamedTuple):
    rows: list[torch.Tensor | str]
    told: set[str]
    remarks: list[tuple[str, ...]]


def answers(
    model: ViT, images: list[Any], preprocessing: Preprocessing = PREPROCESSING, **how: Any
) -> Answers:
    """The features of each image, or the text of its error; and all that is warned of."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = [*embed(model, images, preprocessing, **how)]
    rows = [str(one.error) if one.features is None else one.features for one in found]
    assert [one.path for one in found] == [i if isinstance(i, Path) else None for i in images]
    ours = {str(one.message) for one in warned if one.category is not DeprecationWarning}
    told = {text for text in ours if "subprocess" not in text}
    return Answers(rows, told, [one.remarks for one in found])


def same(ours: Answers, theirs: Answers) -> bool:
    def equal(a: torch.Tensor | str, b: torch.Tensor | str) -> bool:
        if isinstance(a, str) or isinstance(b, str):
            return a == b
        return torch.equal(a, b)

    pairs = zip(ours.rows, theirs.rows, strict=True)
    return ours[1:] == theirs[1:] and all(equal(*pair) for pair in pairs)


def test_bits_order_errors_and_warnings_are_those_of_threads(files: list[Path]) -> None:
    model = vit()
    expected = answers(model, files, batch_size=5, workers=0)
    texts = [row for row in expected.rows if isinstance(row, str)]
    assert len(texts) == 2 and "10.png" in " ".join(expected.told)
    assert same(answers(model, files, batch_size=5, workers=2), expected)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 3, 8, 99])
@pytest.mark.parametrize("workers", [1, 3])
def test_the_same_for_every_size_of_batches(
    files: list[Path], batch_size: int, workers: int
) -> None:
    model = randomise(ViT(small_config(depth=11, image_size=(27, 36), patch_size=(9, 6))))
    steps = Preprocessing.from_timm({"input_size": (3, 27, 36), "interpolation": "bicubic"})
    images = random.Random(batch_size).choices(files, k=41)
    expected = answers(model, images, steps, batch_size=batch_size, workers=0)
    found = answers(model, images, steps, batch_size=batch_size, workers=workers)
    assert same(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["transformers", "transformers_float", "big_vision", "keras"])
def test_the_same_for_every_way_to_resize_and_for_grey(files: list[Path], backend: str) -> None:
    steps = Preprocessing(
        image_size=(24, 32),
        resize_size=(24, 32),
        resize="squash",
        interpolation="bilinear",
        backend=backend,
        crop=False,
        mean=(0.4,),
        std=(0.3,),
        origin="this test",
    )
    config = small_config(image_size=(24, 32), patch_size=(8, 4), in_channels=1)
    model = randomise(ViT(config))
    expected = answers(model, files, steps, batch_size=4, workers=0)
    assert sum(isinstance(row, torch.Tensor) for row in expected.rows) == 12
    assert same(answers(model, files, steps, batch_size=4, workers=2), expected)


@pytest.mark.slow
def test_the_same_where_several_batches_are_computed_at_once(files: list[Path]) -> None:
    usual = vit(num_classes=0)
    fast = FastViT(usual.config, device="meta").eval()
    fast.load_state_dict(usual.state_dict(), assign=True)
    used = set()
    fast.register_forward_pre_hook(
        lambda *_: used.add((threading.get_ident(), torch.get_num_threads()))
    )
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for _ in range(2):  # after some calls it has its weights in another order
            expected = answers(fast, files * 9, batch_size=2, workers=0)
        used.clear()
        found = answers(fast, files * 9, batch_size=2, workers=2)
    finally:
        torch.set_num_threads(before)
    assert len(used) == 3 and {count for _, count in used} == {1}
    assert same(found, expected)


@pytest.mark.slow
def test_what_no_worker_can_have_is_prepared_here(files: list[Path]) -> None:
    def missing() -> bytes:
        raise SourceError("There is no such object.")

    def images() -> list[Picture]:
        good = [files[0], files[1], files[2], files[4], files[5]]
        kinds: list[Callable[[Path], Picture]] = [
            lambda path: path,
            Path.read_bytes,
            Image.open,
            lambda path: path.read_bytes,
            lambda path: lambda: path.read_bytes(),
        ]
        made = [kind(path) for path in good for kind in kinds]
        return [*made, missing, CorruptFile("It was torn."), b"no image", *made[::-1]]

    def found(workers: int) -> list[Output]:
        running = Ready(
            model=vit(),
            preprocessing=PREPROCESSING,
            options=ComputeOptions(batch_size=4, workers=workers, threads=2),
        )
        return [*run_in_batches(running, running.model, images())]

    for ours, theirs in zip(found(2), found(0), strict=True):
        assert ours.path == theirs.path
        if isinstance(theirs.result, torch.Tensor):
            assert isinstance(ours.result, torch.Tensor)
            assert torch.equal(ours.result, theirs.result) and ours.remarks == theirs.remarks
        else:
            assert str(ours.result) == str(theirs.result)


def preparing(
    pictures: Any, *, workers: int = 2, batch_size: int = 4, steps: Preprocessing = PLAIN
) -> Iterator[Output]:
    """Images through a model that costs nothing: the first number of each."""
    options = ComputeOptions(batch_size=batch_size, workers=workers, threads=2)
    running = Ready(model=vit(), preprocessing=steps, options=options)
    return run_in_batches(running, lambda images: images[:, :1, 0, 0], pictures)


def numbers(outputs: Iterator[Output]) -> list[int]:
    found = []
    for row in (one.result for one in outputs):
        assert isinstance(row, torch.Tensor), row
        found.append(round(255 * float(row)))
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("spied")
def test_each_worker_has_one_thread_and_knows_formats_that_were_added(tmp_path: Path) -> None:
    contents = [spied_format.content(word) for word in ("threads", "process", "process") * 20]
    found = numbers(preparing(contents))
    assert set(found[::3]) == {1}
    assert len({*found[1::3], *found[2::3]} - {os.getpid() % 251}) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "workers"), [(1, 3), (4, 2), (16, 2), (6, 4)])
def test_no_more_images_are_taken_than_have_memory(
    files: list[Path], batch_size: int, workers: int
) -> None:
    taken = 0

    def pictures() -> Iterator[Path]:
        nonlocal taken
        for number in range(400):
            taken += 1
            yield files[number % 3]

    found = preparing(pictures(), batch_size=batch_size, workers=workers)
    most = Sizes.of(batch_size, workers, held=0).slots * batch_size
    assert most <= max(2 * batch_size, 2 * workers + 2 * batch_size)
    for number in range(200):
        next(found)
        assert taken <= number + 1 + most
    found.close()  # type: ignore[attr-defined]


def test_memory_is_for_two_batches_where_these_have_images_for_all_workers() -> None:
    assert Sizes.of(128, 16, held=0) == (4, 32, 2)
    assert Sizes.of(128, 16, held=3).slots == 5
    assert Sizes.of(8, 16, held=0) == (1, 8, 5)
    assert Sizes.of(1, 1, held=0) == (1, 1, 3)


@pytest.mark.slow
def test_rows_that_are_kept_are_not_written_over(files: list[Path]) -> None:
    good = [files[0], files[1], files[2], files[4]] * 10
    expected = [one.result for one in preparing(good, workers=0)]
    found = [one.result for one in preparing(good, batch_size=1)]
    assert torch.equal(torch.stack(found), torch.stack(expected))  # type: ignore[arg-type]
    assert len({float(row) for row in expected}) > 2  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.usefixtures("spied")
@pytest.mark.parametrize("at", [0, 21])
def test_error_a_worker_that_is_killed_ends_the_run(
    tmp_path: Path, files: list[Path], at: int
) -> None:
    pictures: list[Picture] = [files[0]] * 60
    pictures[at] = spied_format.write(tmp_path / "deadly", "die")
    start = time.monotonic()
    with pytest.raises(VitConvertError) as raised:
        list(preparing(pictures))
    assert time.monotonic() - start < 60
    lines = str(raised.value).splitlines()
    assert lines[:2] == [
        "error: error",
        "  A process that prepares images ended before its work was done.",
    ]
    assert "exited unexpectedly" in lines[2]
    assert lines[3:] == [
        "  The system ends processes where memory runs out; or a decoder crashed.",
        "  hint: --workers N starts fewer, and 0 none (in Python, workers=).",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("spied")
def test_a_decoder_that_raises_anything_gives_the_same_error(files: list[Path]) -> None:
    pictures = [files[0], spied_format.content("fail"), files[1]]
    ours, theirs = ([*preparing(pictures, workers=n)][1].result for n in (1, 0))
    assert type(ours) is type(theirs) is CorruptFile and str(ours) == str(theirs)


@pytest.mark.slow
def test_workers_end_when_the_caller_stops(files: list[Path]) -> None:
    found = preparing(files[:3] * 40)
    next(found)
    assert len(multiprocessing.active_children()) == 2
    found.close()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.parametrize("before", [6, 27])
def test_an_error_of_who_gives_the_images_is_raised_as_it_is(
    files: list[Path], before: int
) -> None:
    def pictures() -> Iterator[Path]:
        yield from (files[:3] * 9)[:before]
        raise ZeroDivisionError("of the caller")

    with pytest.raises(ZeroDivisionError, match="of the caller"):
        list(preparing(pictures()))


@pytest.mark.slow
def test_random_numbers_folder_and_signals_of_the_program_are_left_alone(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files[0].parent)
    before = torch.get_rng_state(), random.getstate(), signal.getsignal(signal.SIGCHLD)
    main = sys.modules["__main__"]
    named = [Path(path.name) for path in files[:3]]
    assert numbers(preparing(named)) == numbers(preparing(files[:3], workers=0))
    after = torch.get_rng_state(), random.getstate(), signal.getsignal(signal.SIGCHLD)
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    assert sys.modules["__main__"] is main


@pytest.mark.slow
def test_settings_of_pillow_hold_in_workers(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files[1].write_bytes(files[1].read_bytes()[:-300])  # a JPEG that ends early
    images = files[:3]
    plain = [*preparing(images)]
    assert type(plain[1][1]) is CorruptFile
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert numbers(preparing(images)) == numbers(preparing(images, workers=0))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    ours, theirs = ([str(one.result) for one in preparing(images, workers=n)] for n in (2, 0))
    assert ours == theirs and "pixels" in ours[0]


SCRIPT = """
import sys, time
import torch, vitconvert
print("the script runs", flush=True)
x = torch.randn(300, 300) @ torch.randn(300, 300)  # torch has threads
model, *images = sys.argv[1:]
for found in vitconvert.embed(model, images * 50, workers=2, batch_size=2):
    assert found.error is None, found.error
    print("one", flush=True)
    time.sleep(SECONDS)
"""


def _script(seconds: float, *images: Path) -> "subprocess.Popen[str]":
    from vitconvert.demo.demonstration import DIGITS

    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.replace("SECONDS", str(seconds)), DIGITS, *images],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_a_script_needs_no_guard(files: list[Path], tmp_path: Path) -> None:
    from vitconvert.demo.demonstration import DIGITS

    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("SECONDS", "0"))
    done = subprocess.run(
        [sys.executable, script, DIGITS, *files[:3]], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["the script runs", *["one"] * 150]


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_program_that_is_ended(files: list[Path], sent: int) -> None:
    program = _script(0.05, *files[:3])
    assert program.stdout and program.stderr
    assert [program.stdout.readline() for _ in range(2)] == ["the script runs\n", "one\n"]
    others = psutil.Process(program.pid).children(recursive=True)
    assert len(others) >= 3  # two workers, and what starts them
    if sent == signal.SIGINT:
        os.killpg(program.pid, sent)  # as Ctrl-C does
    else:
        program.kill()
    _, err = program.communicate(timeout=60)
    _, alive = psutil.wait_procs(others, timeout=30)
    assert not alive
    if sent == signal.SIGINT:  # one traceback, of the program
        assert err.count("Traceback") == 1 and err.splitlines()[-1] == "KeyboardInterrupt"


def _in_a_pool(_: int) -> str:
    try:
        list(preparing([b"no image"]))
    except VitConvertError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.slow
def test_error_a_process_of_a_pool_starts_none() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        [text] = pool.map(_in_a_pool, [0])
    assert text == (
        "UsageError: error: usage\n"
        "  No processes can prepare images here.\n"
        "  workers  2\n"
        "  why      this is a process of another pool, which may start none of its own\n"
        "  hint: --workers 0 has threads prepare them (in Python, workers=0)."
    )


def test_error_too_little_memory_that_processes_share(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(processes, "_SHARED", files[0].parent)
    monkeypatch.setattr(processes, "disk_usage", lambda _: Usage(10_000))
    with pytest.raises(UsageError) as raised:
        list(preparing(files, batch_size=20))
    needed = 2 * 20 * 3 * 24 * 32 * 4
    assert f"they need {needed / 1e6:,.0f} MB of {files[0].parent}, where 0 are free" in str(
        raised.value
    )


def test_error_a_format_of_the_script_itself(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Image.OPEN, "ODD", (lambda *_: None, None))
    with pytest.raises(UsageError, match="cannot be sent to them"):
        list(preparing(files))


class TestForAGpu:
    """What is chosen for a GPU, which the processor stands for."""

    @pytest.fixture(autouse=True)
    def gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Event:
            def __init__(self, *_: Any, **__: Any) -> None: ...

            def record(self) -> None: ...

            def synchronize(self) -> None: ...

        empty = torch.empty
        monkeypatch.setattr(batches, "_on_gpu", lambda _: True)
        monkeypatch.setattr(torch, "Event", Event)
        monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **k: empty(*a, **k))

    @pytest.fixture
    def started(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """How many workers are started, each time."""
        counts: list[int] = []
        start = batches.prepared_by_processes

        def counted(*arguments: Any, workers: int, **others: Any) -> Any:
            counts.append(workers)
            return start(*arguments, workers=workers, **others)

        monkeypatch.setattr(batches, "prepared_by_processes", counted)
        return counts

    def test_none_start_where_the_gpu_decodes(
        self, files: list[Path], monkeypatch: pytest.MonkeyPatch, started: list[int]
    ) -> None:
        monkeypatch.setattr(batches, "_FEW", 8)
        assert any(
            "were decoded and resized" in text
            for text in answers(vit(), files * 3, batch_size=3, decode="gpu").told
        )
        assert not started
        with pytest.raises(UsageError, match="threads prepare images where a GPU decodes them"):
            answers(vit(), files, workers=2, decode="gpu")

    @pytest.mark.slow
    def test_processes_begin_after_what_threads_do_sooner(
        self, files: list[Path], monkeypatch: pytest.MonkeyPatch, started: list[int]
    ) -> None:
        monkeypatch.setattr(batches, "_FEW", 8)
        model, images = vit(), files * 3
        expected = answers(model, images, batch_size=3, workers=0)
        assert not started
        assert same(answers(model, images, batch_size=3, threads=2), expected)
        assert started == [2]

    def test_few_images_start_none(self, files: list[Path], started: list[int]) -> None:
        answers(vit(), files[:3], batch_size=4)
        assert not started

    def test_where_there_can_be_none_threads_go_on_and_say_so(
        self, files: list[Path], monkeypatch: pytest.MonkeyPatch, started: list[int]
    ) -> None:
        monkeypatch.setattr(batches, "obstacle", lambda *_, **__: "there is no room")
        found = answers(vit(), files, batch_size=4)
        told = "threads prepare the images, which is slower than processes: there is no room"
        assert told in found.told and not started
        assert same(found._replace(told=set()), answers(vit(), files)._replace(told=set()))


@pytest.mark.slow
def test_predict_takes_workers(files: list[Path]) -> None:
    ours, theirs = (
        [[(c.index, c.logit) for c in p.top] for p in predict(vit(), files, PREPROCESSING, **how)]
        for how in ({"workers": 2}, {})
    )
    assert ours == theirs
