"""Several batches at once: a fast model on a CPU, where torch may use more than one thread."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.inference.test_predict import PREPROCESSING, vit
from vitconvert.errors import SourceError
from vitconvert.inference.predict import predict
from vitconvert.model import FastViT, ViT


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
def test_answers_keep_the_order_of_the_images_and_are_those_of_the_usual_model(
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
    answers = predict(fast, photographs, PREPROCESSING, batch_size=1)
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    born_later: list[int] = []
    thread = threading.Thread(target=lambda: born_later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert [torch.get_num_threads(), *born_later] == [3, 3]


@pytest.mark.parametrize("what", ["usual", "training", "alone", "one batch"])
def test_others_are_computed_one_after_the_other_by_all_of_torchs_threads(
    fast: FastViT, photographs: list[Image.Image], what: str
) -> None:
    if what == "alone":
        torch.set_num_threads(1)
    model: ViT = vit() if what == "usual" else fast.train(what == "training")
    used = _used(model)
    list(predict(model, photographs, PREPROCESSING, batch_size=9 if what == "one batch" else 2))
    here = threading.get_ident(), 1 if what == "alone" else 3
    assert used == [here] * (1 if what == "one batch" else 3)
