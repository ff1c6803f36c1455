"""Tiny checkpoints of transformers' classes, as transformers itself writes them."""

import warnings
from pathlib import Path

import pytest
import torch

from tests.huggingface.classes import CLASSES, Case


@pytest.fixture
def save(tmp_path):
    """Write a model as `save_pretrained` does, in the names on disk or in those in memory."""

    def save_in(case: Case, *, disk: bool = True) -> tuple[Path, torch.nn.Module]:
        model = case.model()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.save_pretrained(tmp_path / "model", save_original_format=disk)
        return tmp_path / "model", model

    return save_in


@pytest.fixture(params=list(CLASSES))
def case(request) -> Case:
    return CLASSES[request.param]
