"""Images that do not fit are refused in whole sentences."""

import pytest
import torch

from vitconvert.errors import InputMismatch
from vitconvert.model import ViT

CASES = {
    "size": (
        torch.zeros(2, 3, 40, 40),
        "  Images are 40x40 pixels, but the model expects 32x24.\n"
        "  found   (2, 3, 40, 40)\n"
        "  wanted  (B, 3, 32, 24)\n"
        "  hint: resize the images, or resample the positions on loading: "
        "--image-size 40, load_model(image_size=40).",
    ),
    "oblong size": (
        torch.zeros(2, 3, 24, 32),
        "  Images are 24x32 pixels, but the model expects 32x24.\n"
        "  found   (2, 3, 24, 32)\n"
        "  wanted  (B, 3, 32, 24)\n"
        "  hint: resize the images, or resample the positions on loading: "
        "--image-size 24x32, load_model(image_size=(24, 32)).",
    ),
    "channels": (
        torch.zeros(2, 1, 32, 24),
        "  Images have 1 channels, but the model expects 3.\n"
        "  found   (2, 1, 32, 24)\n"
        "  wanted  (B, 3, 32, 24)",
    ),
    "channels last": (
        torch.zeros(2, 32, 24, 3),
        "  Images have 32 channels, but the model expects 3.\n"
        "  found   (2, 32, 24, 3)\n"
        "  wanted  (B, 3, 32, 24)\n"
        "  The channels seem to come last.\n"
        "  hint: images.permute(0, 3, 1, 2) puts them first.",
    ),
    "one image": (
        torch.zeros(3, 32, 24),
        "  Images have 3 dimensions, not 4.\n"
        "  found   (3, 32, 24)\n"
        "  wanted  (B, 3, 32, 24)\n"
        "  hint: add a batch dimension: images[None].",
    ),
    "video": (
        torch.zeros(2, 5, 3, 32, 24),
        "  Images have 5 dimensions, not 4.\n  found   (2, 5, 3, 32, 24)\n  wanted  (B, 3, 32, 24)",
    ),
    "bytes": (
        torch.zeros(2, 3, 32, 24, dtype=torch.uint8),
        "  Images are uint8, but the model's weights are float32.\n"
        "  found   uint8\n"
        "  wanted  float32\n"
        "  hint: convert the images with images.to(torch.float32) "
        "and normalise them as the model expects.",
    ),
    "double": (
        torch.zeros(2, 3, 32, 24, dtype=torch.float64),
        "  Images are float64, but the model's weights are float32.\n"
        "  found   float64\n"
        "  wanted  float32\n"
        "  hint: convert the images with images.to(torch.float32).",
    ),
}


@pytest.mark.parametrize(("images", "message"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("method", ["forward", "forward_intermediates", "hidden_states"])
def test_message(images, message, method, make_config):
    model = ViT(make_config())
    with pytest.raises(InputMismatch) as caught:
        getattr(model, method)(images)
    assert str(caught.value) == "error: input-mismatch\n" + message


def test_autocast_takes_other_floats(make_config, images):
    model = ViT(make_config()).eval()
    x = images(model.config)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(x.bfloat16()).dtype == torch.bfloat16
        with pytest.raises(InputMismatch):
            model(x.to(torch.uint8))


def test_devices_without_autocast(make_config):
    """Programs that only want shapes, and count operations, compute on "meta"."""
    model = ViT(make_config(), device="meta")
    images = torch.empty(2, 3, 32, 24, device="meta")
    assert model(images).shape == (2, 7)
    with pytest.raises(InputMismatch, match="float16"):
        model(images.half())


def test_empty_batch_gives_empty_logits(make_config, images):
    model = ViT(make_config()).eval()
    assert model(images(model.config)[:0]).shape == (0, 7)
