"""Images to compare models on: noise, and scenes with the statistics of a photograph."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitconvert.errors import UsageError
from vitconvert.preprocessing.preprocessing import Preprocessing

if TYPE_CHECKING:
    from torch import Tensor

_MOST_NUMBERS = 2**28  # of a batch of images: 2 GiB in float64

Images = NDArray[np.float64]  # (B, C, H, W)


def sample_images(
    *,
    batch: int,
    channels: int,
    size: tuple[int, int],
    seed: int,
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.5,),
) -> Mapping[str, Images]:
    """Batches of images, the same for the same arguments.

    Noise alone would not do: it has no smooth regions, in which neighbouring patches are alike and
    a model's tokens are far from the middle of their range.

    Args:
        batch: Images in each batch.
        channels: Of the model.
        size: Height and width.
        seed: Another one makes other images.
        mean, std: Normalisation of the photograph, one value or one for each channel.

    Returns:
        "noise" and "photograph", (batch, channels, height, width) each.
    """
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((batch, channels, *size))
    scenes = np.stack([_scene(rng, channels, size) for _ in range(batch)])
    shift, scale = (np.reshape(values, (-1, 1, 1)) for values in (mean, std))
    return {"noise": noise, "photograph": (scenes - shift) / scale}


def edge_images(
    size: tuple[int, int], channels: int, *, seed: int, batch: int
) -> dict[str, Images]:
    """Batches that mistakes of an implementation may hide from ordinary images.

    Args:
        size, channels, seed, batch: As for `sample_images`.

    Returns:
        Images of one number, of large numbers, of one channel (where there are several), and
        batches of one and of three: an implementation may mix the images of a batch.
    """
    rng = np.random.default_rng((seed, 1))
    noise = rng.standard_normal((max(batch, 3), channels, *size))
    flat = np.linspace(1.0, -0.5, batch).reshape(-1, 1, 1, 1)
    edges = {
        "constant": np.broadcast_to(flat, (batch, channels, *size)).copy(),
        "large": 100 * noise[:batch],
        "batch of 1": noise[:1],
        "batch of 3": noise[:3],
    }
    if channels > 1:
        only = np.arange(channels) == channels - 1
        edges["1 channel"] = noise[:batch] * only.reshape(1, -1, 1, 1)
    return edges


def sampled_images(
    size: tuple[int, int],
    channels: int,
    preprocessing: Preprocessing | None,
    *,
    seed: int,
    batch: int,
    frames: int = 0,
) -> "Mapping[str, Tensor]":
    """Noise and a photograph of a size, the photograph normalised as the checkpoint wants it.

    With `frames`, clips of so many of them, (B, C, frames, H, W), each an image of its own.

    Raises:
        UsageError: They would fill the memory.
    """
    images = batch * max(frames, 1)
    if (numbers := images * channels * size[0] * size[1]) > _MOST_NUMBERS:
        raise UsageError(
            "The images would be too large to compare models on.",
            evidence={"numbers in a batch": f"{numbers:,}", "at most": f"{_MOST_NUMBERS:,}"},
            hint="a smaller batch, or smaller images.",
        )
    import torch

    usual = normalisation(preprocessing, channels)
    arrays = sample_images(batch=images, channels=channels, size=size, seed=seed, **usual)
    found = {kind: torch.from_numpy(array) for kind, array in arrays.items()}
    if not frames:
        return found
    return {
        kind: x.reshape(batch, frames, *x.shape[1:]).transpose(1, 2).contiguous()
        for kind, x in found.items()
    }


def normalisation(preprocessing: Preprocessing | None, channels: int) -> dict[str, Sequence[float]]:
    """The mean and std of a photograph, where they are known for so many channels."""
    if preprocessing is None or preprocessing.channels not in (1, channels):
        return {}
    return {"mean": preprocessing.mean, "std": preprocessing.std}


def _scene(rng: np.random.Generator, channels: int, size: tuple[int, int]) -> Images:
    """A cloudy scene with a horizon and a disc, (channels, height, width) from 0 to 1."""
    clouds = np.stack([_clouds(rng, size) for _ in range(channels)])
    y, x = np.mgrid[0 : size[0], 0 : size[1]] / np.reshape(size, (2, 1, 1))
    ground = y + 0.3 * x > rng.uniform(0.5, 0.9)
    disc = np.hypot(y - rng.uniform(0.2, 0.8), x - rng.uniform(0.2, 0.8)) < 0.15
    scene: Images = clouds + rng.uniform(-2, 2, (channels, 1, 1)) * ground
    scene = scene + rng.uniform(-2, 2, (channels, 1, 1)) * disc
    low, high = scene.min(), scene.max()
    scene -= low
    return scene / ((high - low) or 1.0)


def _clouds(rng: np.random.Generator, size: tuple[int, int]) -> NDArray[np.float64]:
    """Noise whose amplitudes fall with frequency as those of natural images do (1/f).

    Field, "Relations between the statistics of natural images and the response properties of
    cortical cells", J. Opt. Soc. Am. A 4 (1987).
    """
    spectrum = np.fft.fft2(rng.standard_normal(size))
    frequency = np.hypot(np.fft.fftfreq(size[0])[:, None], np.fft.fftfreq(size[1]))
    frequency[0, 0] = 1.0
    clouds: NDArray[np.float64] = np.fft.ifft2(spectrum / frequency).real
    clouds /= clouds.std() or 1.0
    clouds -= clouds.mean()
    return clouds
