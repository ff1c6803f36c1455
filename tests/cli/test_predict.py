import json

import pytest
import torch

from vitconvert.demo.demonstration import DIGITS
from vitconvert.inference.pixels import open_image
from vitconvert.loading import load_checkpoint, load_model

IMAGE = DIGITS / "samples" / "3.png"


@torch.inference_mode()
@pytest.mark.parametrize(("flags", "fast"), [((), True), (("--no-fast",), False)])
def test_arithmetic_is_fast_unless_told_otherwise(flags, fast, run):
    answer = run("predict", DIGITS, IMAGE, "--topk", 10, "--json", *flags)
    assert answer.code == 0
    top = json.loads(answer.out)["top"]
    preprocessing = load_checkpoint(DIGITS).preprocessing
    logits = load_model(DIGITS, fast=fast)(preprocessing(open_image(IMAGE))[None])[0]
    assert {candidate["index"]: candidate["logit"] for candidate in top} == dict(
        enumerate(logits.tolist())
    )
