"""Prefetching by threads; several batches at once, where a fast model may use several threads."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.inference.test_predict import PREPROCESSING, vit
from vitconvert.api import predict
from vitconvert.errors import SourceError
from vitconvert.inference import batches
from vitconvert.inference.batches import map_with_prefetch
from vitconvert.model import FastViT, ViT


@pytest.fixture
def three_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "processors", lambda: 3)


@pytest.mark.usefixtures("three_processors")
def test_results_keep_the_order_of_the_items() -> None:
    def late_if_early(n: int) -> int:
        time.sleep(0.002 * (7 - n % 7))
        return n * n

    assert list(map_with_prefetch(late_if_early, range(40), prefetch=5)) == [
        n * n for n in range(40)
    ]


@pytest.mark.usefixtures("three_processors")
def test_items_are_worked_on_at_once() -> None:
    together = threading.Barrier(3)
    assert (
        len(list(map_with_prefetch(lambda _: together.wait(timeout=10), range(6), prefetch=3))) == 6
    )


def test_no_more_items_are_taken_than_allowed() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for n in range(100):
            taken += 1
            yield n

    results = map_with_prefetch(abs, items(), prefetch=4)
    for n in range(20):
        assert next(results) == n
        assert taken == n + 5
    results.close()  # type: ignore[attr-defined]
    assert taken == 24


def test_an_error_is_raised_in_its_turn() -> None:
    results = map_with_prefetch(lambda n: 6 // n, [3, 2, 0, 1], prefetch=9)
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_threads_end_when_the_caller_stops() -> None:
    before = threading.active_count()
    results = map_with_prefetch(abs, range(9), prefetch=2)
    next(results)
    assert threading.active_count() > before
    results.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fast() -> FastViT:
    usual = vit()
    model = FastViT(usual.config, device="meta").eval()
    model.load_state_dict(usual.state_dict(), assign=True)
    return model


def _used(model: ViT) -> list[tuple[int, int]]:
    """Which thread computes each batch, and how many torch may use there."""
    used: list[tuple[int, int]] = []

    def note(*_: Any) -> None:
        used.append((threading.get_ident(), torch.get_num_threads()))

    model.register_forward_pre_hook(note)
    return used


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_predictions_keep_the_order_of_the_images_and_are_those_of_the_usual_model(
    tmp_path: Path, fast: FastViT, photographs: list[Image.Image], batch_size: int
) -> None:
    images = [*photographs, tmp_path / "none.png", *reversed(photographs)]
    expected = [next(predict(vit(), [image], PREPROCESSING)) for image in images]
    found = list(predict(fast, images, PREPROCESSING, batch_size=batch_size))
    assert [type(p.error) for p in found] == [type(p.error) for p in expected]
    assert type(found[5].error) is SourceError
    for one, other in zip(found, expected, strict=True):
        logits = {c.index: c.logit for c in other.top}
        assert {c.index: c.logit for c in one.top} == pytest.approx(logits, abs=1e-5)


def test_batches_are_computed_at_once_by_one_thread_each(
    fast: FastViT, photographs: list[Image.Image]
) -> None:
    together = threading.Barrier(3)

    def meet(*_: Any) -> None:
        together.wait(timeout=30)

    fast.register_forward_pre_hook(meet)
    used = _used(fast)
    assert len(list(predict(fast, photographs[:3] * 2, PREPROCESSING, batch_size=2))) == 6
    assert len({thread for thread, _ in used}) == 3
    assert {count for _, count in used} == {1}


def test_afterwards_torch_may_use_as_many_threads_as_before(
    fast: FastViT, photographs: list[Image.Image]
) -> None:
    predictions = predict(fast, photographs, PREPROCESSING, batch_size=1)
    next(predictions)
    predictions.close()  # type: ignore[attr-defined]
    born_later: list[int] = []
    thread = threading.Thread(target=lambda: born_later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert [torch.get_num_threads(), *born_later] == [3, 3]


@pytest.mark.filterwarnings("ignore:A fast model is for inference:UserWarning")
@pytest.mark.parametrize("what", ["usual", "training", "alone", "one batch"])
def test_other_models_compute_one_batch_at_a_time_by_all_of_torchs_threads(
    fast: FastViT, photographs: list[Image.Image], what: str
) -> None:
    if what == "alone":
        torch.set_num_threads(1)
    model: ViT = vit() if what == "usual" else fast.train(what == "training")
    used = _used(model)
    list(predict(model, photographs, PREPROCESSING, batch_size=9 if what == "one batch" else 2))
    here = threading.get_ident(), 1 if what == "alone" else 3
    assert used == [here] * (1 if what == "one batch" else 3)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would happen on a GPU, in order: the processor computes, and says what it is told."""
    told: list[str] = []

    class Event:
        def __init__(self, device: torch.device, *, blocking: bool) -> None:
            self.number = sum(word.startswith("record") for word in told)
            assert blocking

        def record(self) -> None:
            told.append(f"record {self.number}")

        def synchronize(self) -> None:
            told.append(f"wait {self.number}")

    empty, to = torch.empty, torch.Tensor.to

    def pinned(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        told.extend(["gather"] if pin_memory else [])
        return empty(*size, **options)

    def copied(tensor: torch.Tensor, *to_what: Any, non_blocking: bool = False) -> torch.Tensor:
        told.extend([f"copy to {to_what[0]}"] if non_blocking else [])
        return to(tensor, *to_what)

    monkeypatch.setattr(batches, "_on_gpu", lambda _: True)
    monkeypatch.setattr(batches, "_may_run_concurrently", lambda *_: False)
    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch, "empty", pinned)
    monkeypatch.setattr(torch.Tensor, "to", copied)
    return told


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_is_given_the_next_batch_before_one_is_waited_for(
    tmp_path: Path,
    photographs: list[Image.Image],
    gpu: list[str],
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = vit().type(dtype)
    model.register_forward_pre_hook(lambda *_: gpu.append("compute"))
    bad = [tmp_path / "none.png", tmp_path / "nor.png"]
    images = [*photographs[:3], bad[0], *bad, *photographs[:2]]
    found = list(predict(model, images, PREPROCESSING, batch_size=2))
    # All copies are to "cpu" here: the images, and then their rows.
    start = ["gather", "copy to cpu", "compute", "copy to cpu"]
    assert gpu == [
        *(*start, "record 0", *start, "record 1", "wait 0"),
        *("wait 1",),  # the third batch has no images, and nothing is started for it
        *(*start, "record 2", "wait 2"),
    ]
    monkeypatch.undo()
    assert [type(p.error) for p in found[3:6]] == [SourceError] * 3
    expected = list(predict(model, images, PREPROCESSING, batch_size=2))
    for one, other in zip(found, expected, strict=True):
        assert [(c.index, c.logit) for c in one.top] == [(c.index, c.logit) for c in other.top]


def test_a_batch_is_stacked_by_one_thread(
    photographs: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    stack = torch.stack

    def noted(*arguments: Any, **options: Any) -> torch.Tensor:
        used.append(torch.get_num_threads())
        return stack(*arguments, **options)

    monkeypatch.setattr(torch, "stack", noted)
    list(predict(vit(), photographs, PREPROCESSING, batch_size=2))
    assert used == [1, 1, 1] and torch.get_num_threads() == 3
