"""Trains the demo's model, a tiny ViT that reads scikit-learn's handwritten digits.

    python -m vitconvert.demo.train OUTPUT_DIR

writes what `vitconvert/demo/digits` is: the model as timm, transformers and vitconvert load it,
`training.json` with the accuracy on digits that were held out, and one of those of each class as
an image. It takes two minutes on one core and needs scikit-learn.

The digits are those of E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits"
(UCI, 1998, https://doi.org/10.24432/C50P49), as `sklearn.datasets.load_digits` has them: 1797 grey
images of 8x8 pixels with values from 0 to 16.
"""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from vitconvert.config import ViTConfig
from vitconvert.containers import write_safetensors
from vitconvert.errors import MissingPackage, VitConvertError
from vitconvert.export.convert import convert_located
from vitconvert.export.whole_directory import check_output
from vitconvert.inference.preprocessing import Preprocessing
from vitconvert.model import ViT
from vitconvert.model.initialisation import initialise
from vitconvert.sources import locate

COMMAND = "python -m vitconvert.demo.train"
CLASSES = tuple("0123456789")

CONFIG = ViTConfig(
    image_size=(32, 32),
    patch_size=(8, 8),
    in_channels=3,
    num_classes=len(CLASSES),
    embed_dim=48,
    depth=4,
    num_heads=3,
    head_dim=16,
    mlp_dim=96,
    activation="gelu",
    norm_eps=1e-6,
    pooling="token",
)
# Each of the 8x8 pixels becomes 4x4 equal ones. Every project's resizing does this alike.
PREPROCESSING = Preprocessing(
    image_size=(32, 32),
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    interpolation="nearest",
    resize="squash",
    resize_size=(32, 32),
    crop=True,
    backend="torchvision",
    origin=COMMAND,
)

# The set goes writer by writer, so that most of its last fifth is by hands never seen in training.
HELD_OUT = 360
SEED = 0
POS = 0.5
INIT = "jax"
EPOCHS = 150
BATCH_SIZE = 64
LEARNING_RATE = 2e-3
WEIGHT_DECAY = 0.05
WARMUP = 0.1  # of all steps
SHIFT = 4  # pixels, in any direction: one of the original 8x8


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Images as the model reads them, (B, 3, 32, 32), and what they show, (B,)."""

    pixels: Tensor
    classes: Tensor


def read_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All digits in scikit-learn's order, (1797, 8, 8) with values from 0 to 255, and their classes.

    Raises:
        MissingPackage: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise MissingPackage(
            "scikit-learn is not installed, and the digits come with it.",
            hint="pip install scikit-learn",
        ) from None
    bunch = load_digits()
    return np.rint(bunch.images * (255 / 16)).astype(np.uint8), bunch.target.astype(np.int64)


def split() -> tuple[Digits, Digits]:
    """Digits to learn from, and digits held out.

    Raises:
        MissingPackage: scikit-learn is not installed.
    """
    grey, classes = read_digits()
    pixels = torch.stack([PREPROCESSING(Image.fromarray(image)) for image in grey])
    labels = torch.from_numpy(classes)
    return (
        Digits(pixels=pixels[:-HELD_OUT], classes=labels[:-HELD_OUT]),
        Digits(pixels=pixels[-HELD_OUT:], classes=labels[-HELD_OUT:]),
    )


def fit(digits: Digits, *, epochs: int, quiet: bool = False) -> ViT:
    """A model that has seen each digit `epochs` times, shifted by a few pixels. In eval mode.

    One thread and one seed: the same machine makes the same weights.
    """
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = ViT(CONFIG).train()
    initialise(model, INIT)
    torch.nn.init.normal_(model.pos_embed, std=POS)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY
    )
    steps = epochs * -(-len(digits.classes) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=steps, pct_start=WARMUP
    )
    for _ in tqdm(range(epochs), unit="epoch", disable=quiet):
        for batch in torch.randperm(len(digits.classes)).split(BATCH_SIZE):
            logits = model(shifted(digits.pixels[batch]))
            loss = F.cross_entropy(logits, digits.classes[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def shifted(images: Tensor) -> Tensor:
    """Each image moved by up to SHIFT pixels, (B, C, H, W); black comes in at the edges."""
    B, _, H, W = images.shape
    padded = F.pad(images, (SHIFT,) * 4, value=-1.0)
    down, across = torch.randint(0, 2 * SHIFT + 1, (2, B, 1))
    rows = (down + torch.arange(H))[:, None, :, None]
    columns = (across + torch.arange(W))[:, None, None, :]
    images_, channels = torch.arange(B)[:, None, None, None], torch.arange(3)[:, None, None]
    return padded[images_, channels, rows, columns]


@torch.inference_mode()
def accuracy(model: ViT, digits: Digits) -> float:
    """The part of the digits that the model reads right."""
    right = model(digits.pixels).argmax(dim=1) == digits.classes
    return right.double().mean().item()


if __name__ == "__main__":
    import sys, time
    t = time.time()
    a, b = split()
    m = fit(a, epochs=int(sys.argv[1]))
    print(sum(p.numel() for p in m.parameters())*4, accuracy(m, a), accuracy(m, b), time.time() - t)
