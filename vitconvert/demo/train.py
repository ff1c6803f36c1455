"""Trains the demo's model, a tiny ViT that reads scikit-learn's handwritten digits.

    python -m vitconvert.demo.train OUTPUT_DIR

writes what `vitconvert/demo/digits` contains: the model as timm, transformers and vitconvert load
it, `training.json` with the accuracy on held-out digits, and one held-out digit of each class as an
image. It takes a minute or two on one core and needs scikit-learn.

The digits are those of E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits"
(UCI, 1998, https://doi.org/10.24432/C50P49), as `sklearn.datasets.load_digits` has them: 1797 grey
images of 8x8 pixels with values from 0 to 16.
"""

import sys
from collections.abc import Mapping
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

from vitconvert.checkpoint import read_checkpoint
from vitconvert.config import ViTConfig
from vitconvert.conversion.convert import convert_checkpoint
from vitconvert.conversion.options import WriteOptions
from vitconvert.conversion.output import check_output
from vitconvert.documents import write_json
from vitconvert.errors import MissingPackage, VitConvertError
from vitconvert.formats import hash_file, write_safetensors
from vitconvert.model import ViT
from vitconvert.model.initialisation import initialise
from vitconvert.preprocessing import Preprocessing
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
# Each of the 8x8 pixels becomes 4x4 equal ones, which every project's resizing does alike.
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

HELD_OUT = 5  # every fifth digit, from the first; the others are by the same writers
SEED = 0
EPOCHS = 160
BATCH_SIZE = 128
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 0.05
WARMUP = 0.1  # of all steps
# Patches start with unit variance (Flax's initialisation). Positions that start much smaller, as in
# recipes for large models, would need most of this short training to grow.
POSITION_STD = 0.5
SHIFT = 2 / 32  # of the image's side, in any direction
DEFORMATION = 0.12  # largest change of each entry of the 2x2 matrix: turning, slanting, stretching


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Images as the model reads them, (B, 3, 32, 32), and what they show, (B,)."""

    pixels: Tensor
    classes: Tensor


def read_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All digits, (1797, 8, 8) with values from 0 to 255, and their classes.

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
    held_out = torch.arange(len(labels)) % HELD_OUT == 0
    return (
        Digits(pixels=pixels[~held_out], classes=labels[~held_out]),
        Digits(pixels=pixels[held_out], classes=labels[held_out]),
    )


def untrained() -> ViT:
    """A model with random weights, from torch's generator."""
    model = ViT(CONFIG)
    initialise(model, "jax")
    torch.nn.init.normal_(model.get_parameter("pos_embed"), std=POSITION_STD)
    return model


def fit(digits: Digits, *, epochs: int, quiet: bool = False) -> ViT:
    """A model in eval mode that has seen each digit `epochs` times, deformed anew each time.

    With one thread and one seed, the same machine makes the same weights.
    """
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = untrained().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps = epochs * -(-len(digits.classes) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=steps, pct_start=WARMUP
    )
    for _ in tqdm(range(epochs), unit="epoch", disable=quiet):
        for batch in torch.split(torch.randperm(len(digits.classes)), BATCH_SIZE):
            logits = model(jittered(digits.pixels[batch]))
            loss = F.cross_entropy(logits, digits.classes[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return model.eval()


def jittered(images: Tensor) -> Tensor:
    """Each image moved and deformed a little, (B, C, H, W); the edges are filled with black."""
    B = len(images)
    deformed = torch.eye(2) + DEFORMATION * (2 * torch.rand(B, 2, 2) - 1)
    moved = 2 * SHIFT * (2 * torch.rand(B, 2, 1) - 1)  # the side is 2 long for affine_grid
    affine = torch.cat([deformed, moved], dim=2)
    grid = F.affine_grid(affine, list(images.shape), align_corners=False)
    return F.grid_sample(images + 1, grid, align_corners=False) - 1  # black is -1


@torch.inference_mode()
def accuracy(model: ViT, digits: Digits) -> float:
    """The share of the digits that the model reads correctly."""
    right = model(digits.pixels).argmax(dim=1) == digits.classes
    return float(right.double().mean())


def write(model: ViT, output: Path, *, record: Mapping[str, Any]) -> None:
    """The model for timm, transformers and vitconvert, the record of its training, and samples.

    Raises:
        OutputExists: `output` is there and not empty.
        MissingPackage: scikit-learn is not installed.
    """
    with TemporaryDirectory() as directory:
        own = Path(directory)
        write_safetensors(own / "model.safetensors", model.state_dict())
        write_json(own / "config.json", {"label_names": list(CLASSES)})
        written = {file.name: hash_file(file) for file in own.iterdir()}
        write_json(
            own / "vitconvert.json",
            {
                "target": "vit",
                "config": CONFIG.to_dict(),
                "preprocessing": PREPROCESSING.to_dict(),
                "sha256": written,
            },
        )
        # The directory is temporary, so the record names the command that filled it.
        located = replace(locate(own), reference=COMMAND)
        convert_checkpoint(
            read_checkpoint(located),
            WriteOptions(to="vit"),
            output=output,
            verify=False,
            command=COMMAND,
        )
    write_json(output / "training.json", record)
    _write_samples(output / "samples")


def _write_samples(directory: Path) -> None:
    """The last held-out digit of each class, in the size that the model reads.

    In colour, because transformers' processor of timm's models refuses grey images.
    """
    grey, classes = read_digits()
    directory.mkdir()
    for index, name in enumerate(CLASSES):
        last = np.flatnonzero(classes[::HELD_OUT] == index)[-1]
        image = Image.fromarray(grey[::HELD_OUT][last]).convert("RGB")
        image.resize(CONFIG.image_size, Image.Resampling.NEAREST).save(directory / f"{name}.png")


def train(output: Path, *, epochs: int = EPOCHS, quiet: bool = False) -> float:
    """Train, write and measure the model.

    Args:
        output: The directory to write.
        epochs: How often each digit is seen.
        quiet: Show no progress.

    Returns:
        The share of the held-out digits that the model reads correctly.

    Raises:
        OutputExists: `output` is there and not empty.
        MissingPackage: scikit-learn is not installed.
    """
    check_output(output, overwrite=False)
    learned_from, held_out = split()
    model = fit(learned_from, epochs=epochs, quiet=quiet)
    measured = accuracy(model, held_out)
    record = {
        "data": "sklearn.datasets.load_digits",
        "trained_on": len(learned_from.classes),
        "held_out": len(held_out.classes),
        "held_out_accuracy": measured,
        "epochs": epochs,
        "seed": SEED,
        "torch": torch.__version__.split("+")[0],
    }
    write(model, output, record=record)
    return measured


@click.command()
@click.argument("output", type=click.Path(path_type=Path))
def main(output: Path) -> None:
    """Train the demo's model and write it to the directory OUTPUT."""
    try:
        measured = train(output)
    except VitConvertError as error:
        click.echo(error, err=True)
        sys.exit(error.exit_code)
    click.echo(f"{measured:.2%} of the held-out digits are read right")


if __name__ == "__main__":
    main()
