"""The mistakes that ports make, each made again: other filters, sizes, crops and decoders.

An array of a port is compared with what each mistake would make of the same image. Between the two
there may be any multiple and any addition for each channel, in any order of the channels: so a
wrong mean or scale hides no wrong filter, and is told apart from it.

Letters: C channels, H height, W width. Levels are numbers from 0 to 255.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import ExifTags, Image, ImageChops, ImageOps

from vitconvert.errors import VitConvertError
from vitconvert.pixel_goldens.filters import Filter, Levels, filters, own_filter
from vitconvert.preprocessing import Preprocessing, pixels
from vitconvert.preprocessing.backends import BACKENDS, CLIP, HALVES, IMAGENET
from vitconvert.preprocessing.transform import size_resized

EXACT, ROUNDED = 0.02, 1.01  # levels: rounding of float32, and to whole numbers
_RUNNERS_UP = 12
_SHARE = 0.875  # of the resized image that many projects keep


@dataclass(frozen=True)
class Fault:
    """A way to resize and crop; `said` names what differs from the golden's, "" if nothing does.

    Attributes:
        filter: What resizes.
        steps: Whose sizes.
        cut_first: The middle of the result's aspect ratio is cut out before resizing.
        corner: "down", "even" or "up": where half a pixel goes; or "first", the top left.
    """

    said: tuple[str, ...]
    filter: Filter
    steps: Preprocessing
    cut_first: bool
    corner: str

    def made(self, decoded: NDArray[np.uint8], step: str) -> Levels | None:
        """What it makes of an image, as far as to a step; None if it makes nothing."""
        if step == "decoded":
            return decoded.astype(np.float32)
        size = decoded.shape[1], decoded.shape[2]
        try:
            resized_to = size_resized(self.steps, size)
        except VitConvertError:
            return None
        if self.cut_first:
            (top, left), (height, width) = pixels.largest_middle(size, resized_to)
            decoded = decoded[:, top : top + height, left : left + width]
        resized = self.filter(decoded, resized_to).astype(np.float32)
        return resized if step == "resized" else self._cropped(resized)

    def _cropped(self, resized: Levels) -> Levels | None:
        size = self.steps.image_size
        if self.steps.pad:  # with what becomes zero
            scale = self.steps.rescale_factor or 1.0
            mean = np.array(self.steps.mean, np.float32).reshape(-1, 1, 1) / np.float32(scale)
            return pixels.padded_after(resized - mean, size) + mean
        surplus = [whole - part for whole, part in zip(resized.shape[1:], size, strict=True)]
        if min(surplus) < 0:
            backend = BACKENDS[self.steps.backend]
            fill = (0,) * len(resized)
            return pixels.centred(resized, size, fill=fill, backend=backend).astype(np.float32)
        top, left = map(_CORNERS[self.corner], surplus)
        return resized[:, top : top + size[0], left : left + size[1]]


def own_way(steps: Preprocessing) -> Fault:
    """How the golden resizes and crops."""
    corner = BACKENDS[steps.backend].crop_rounding
    return Fault((), own_filter(steps), steps, steps.resize == "cut", corner)


def stages(own: Fault, within: Sequence[str]) -> Iterator[tuple[Fault, ...]]:
    """The golden's own way; then ways with one mistake; then with two.

    Args:
        own: The golden's.
        within: The steps that may be wrong.
    """
    yield (own,)
    sizes = sizes_of(own) if "resized" in within else {}
    found = filters(own.steps) if "resized" in within else {}
    others = {said: replace(own, filter=one) for said, one in found.items()}
    if "cropped" in within:
        others |= {said: replace(own, corner=one) for one, said in _WRONG_CORNERS.items()}
    yield tuple(replace(one, said=(said,)) for said, one in (others | sizes).items())
    yield tuple(
        replace(size, said=(said_of_size, said), filter=one.filter, corner=one.corner)
        for said, one in others.items()
        for said_of_size, size in sizes.items()
    )


_CORNERS: dict[str, Callable[[int], int]] = {  # of so many pixels that are cut off
    "first": lambda _: 0,
    "down": lambda surplus: surplus // 2,
    "up": lambda surplus: (surplus + 1) // 2,
    "even": lambda surplus: round(surplus / 2),
}
_WRONG_CORNERS = {
    "first": "the crop begins at the top left, not in the middle",
    "down": "the crop's corner is rounded down, one pixel off where the surplus is odd",
    "up": "the crop's corner is rounded up, one pixel off where the surplus is odd",
    "even": "half a pixel of the crop's corner is rounded to even, one pixel off at times",
}


def sizes_of(own: Fault) -> dict[str, Fault]:
    """Other sizes."""
    steps = own.steps
    size, before = steps.image_size, steps.resize_size or steps.image_size
    larger = int(size[0] / _SHARE), int(size[1] / _SHARE)
    ratio = "" if steps.resize == "squash" else ": the aspect ratio is not kept"
    kept = ": the aspect ratio is kept" if steps.resize == "squash" else ""
    shortest = "shortest" if size[0] == size[1] and before[0] == before[1] else "cover"
    stated = (
        (f"squashed to the result's size{ratio}, and no margin cropped", "squash", size),
        (f"squashed to the size before the crop{ratio}", "squash", before),
        (f"the shortest side to {size[0]}, and no margin cropped{kept}", shortest, size),
        (f"the shortest side to {larger[0]}, and a margin cropped{kept}", shortest, larger),
        ("the longer side is rounded, not truncated", "cover", before),
        ("the longer side is truncated, not rounded", shortest, before),
        ("resized into the size and padded", "border", size),
        ("not resized", "none", None),
        ("cropped to the aspect ratio before resizing", "cut", size),
        ("cropped to the aspect ratio before resizing, and a margin after it", "cut", before),
    )
    plain = replace(
        steps,
        resize="squash",
        resize_size=size,
        crop=True,
        pad=False,
        patch_size=None,
        max_patches=None,
    )
    found, made = {}, {(steps.resize, steps.resize_size)}
    for said, resize, to in stated:
        if (resize, to) not in made:
            made.add((resize, to))
            cut = resize == "cut"  # which the golden's backend may not have
            other = replace(plain, resize="squash" if cut else resize, resize_size=to)
            found[said] = replace(own, steps=other, cut_first=cut)
    return found


@dataclass(frozen=True, kw_only=True)
class LinearFit:
    """How a port's arrays follow from levels: array = slope * levels + shift, for each channel.

    Attributes:
        slope, shift: For each channel of the port.
        order: Which channel of the golden is each of the port's.
        most, mean: What is left, in levels.
    """

    slope: NDArray[np.float64]
    shift: NDArray[np.float64]
    order: tuple[int, ...]
    most: float
    mean: float

    @property
    def of_shares(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The same as mean and std of pixels from 0 to 1."""
        return -self.shift / self.slope / 255, 1 / (255 * self.slope)

    def left(self, made: Levels | None, theirs: Levels) -> tuple[float, float]:
        """The largest and the mean of what is left of another image, in levels."""
        if made is None or not made.shape == theirs.shape == (len(self.slope), *made.shape[1:]):
            return np.inf, np.inf
        slope, shift = (v[:, None, None] for v in (self.slope, self.shift))
        apart = np.abs((theirs - shift) / slope - made[list(self.order)])
        return float(apart.max()), float(apart.mean())


def fitted(made: Sequence[Levels], theirs: Sequence[Levels]) -> LinearFit | None:
    """The fit that leaves least, over all images and both orders of channels."""
    if any(one.shape != other.shape for one, other in zip(made, theirs, strict=True)):
        return None
    ours, port = (
        np.concatenate([one.reshape(len(one), -1) for one in arrays], axis=1, dtype=np.float64)
        for arrays in (made, theirs)
    )
    fits = []
    for order in {tuple(range(len(ours))), tuple(reversed(range(len(ours))))}:
        x = ours[list(order)]
        of_x, of_y = x.mean(1, keepdims=True), port.mean(1, keepdims=True)
        slope = ((x - of_x) * (port - of_y)).sum(1) / np.maximum(((x - of_x) ** 2).sum(1), 1e-12)
        if not np.all(np.abs(slope) > 1e-9):
            continue
        shift = of_y[:, 0] - slope * of_x[:, 0]
        apart = np.abs((port - shift[:, None]) / slope[:, None] - x)
        fits.append(
            LinearFit(slope=slope, shift=shift, order=order, most=apart.max(), mean=apart.mean())
        )
    return min(fits, key=lambda fit: fit.mean, default=None)


def normalisation_faults(fit: LinearFit, own: LinearFit) -> Iterator[str]:
    """What is said of channels, mean, std and scale, where they are not the golden's own."""
    exact = fit.most <= ROUNDED
    near = 1e-3 if exact else 0.05
    if fit.order != own.order:
        yield "the channels are in the order blue, green, red"
    (mean, std), (usual_mean, usual_std) = fit.of_shares, own.of_shares

    def is_(means: NDArray[np.float64], stds: NDArray[np.float64]) -> bool:
        sizes = 2 * near * (np.abs(usual_std) + np.abs(std))
        return bool(np.all(np.abs(stds / std - 1) < near) and np.all(np.abs(mean - means) < sizes))

    orders = {"": slice(None), ", in the order blue, green, red": slice(None, None, -1)}
    if is_(usual_mean, usual_std):
        return
    if fit.order != own.order and is_(usual_mean[::-1], usual_std[::-1]):
        return  # each channel by its own mean
    unscaled = "mean and std of pixels from 0 to 1, on pixels from 0 to 255"
    known: Mapping[str, tuple[ArrayLike, ArrayLike]] = {
        unscaled: (usual_mean / 255, usual_std / 255),
        "mean and std": (usual_mean, usual_std),
        "ImageNet's mean and std": IMAGENET,
        "mean 0.5 and std 0.5 (-1 to 1)": HALVES,
        "CLIP's mean and std": CLIP,
        "no mean and std: pixels stay 0 to 1": (0.0, 1.0),
        "no scale, mean and std: pixels stay 0 to 255": (0.0, 1 / 255),
        "the division by 255 made twice": (usual_mean * 255, usual_std * 255),
        "the division by 256, not by 255": (usual_mean * 256 / 255, usual_std * 256 / 255),
        "mean without std": (usual_mean, 1.0),
        "std without mean": (0.0, usual_std),
        "variance in place of std": (usual_mean, usual_std**2),
    }
    for said, (means, stds) in known.items():
        for order, slice_ in orders.items():
            if np.size(means) in (1, len(std)) and is_(
                *(np.broadcast_to(v, std.shape)[slice_] for v in (means, stds))
            ):
                yield f"normalised by {said}{order}"
                return
    shown = (", ".join(f"{v:.4g}" for v in values) for values in (mean, std))
    yield "normalised as if of pixels from 0 to 1 the mean is {} and the std {}".format(*shown)


def decodings(image: Image.Image, channels: int, *, own_modes: bool) -> Mapping[str, Image.Image]:
    """Other readings of an image file, by what is said of them."""
    mode = "L" if channels == 1 else "RGB"
    plain = image.convert(mode)
    found = {}
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        found["the EXIF orientation is not applied"] = plain
        found["the EXIF orientation is applied"] = ImageOps.exif_transpose(image).convert(mode)
    if own_modes and image.mode not in ("L", "RGB"):
        found = {f"{image.mode} becomes {mode} before it is resized": plain}
    if "A" in image.getbands():
        for colour in ("white", "black", "grey"):
            back = Image.new("RGBA", image.size, colour)
            put = Image.alpha_composite(back, image.convert("RGBA"))
            found[f"transparent pixels are put on {colour}"] = put.convert(mode)
        found["transparency is dropped, and the colours beneath show"] = plain
    if image.mode == "P":
        numbers = Image.fromarray(np.asarray(image))
        found["the numbers of the palette's colours are read as grey"] = numbers.convert(mode)
    if image.mode == "CMYK":
        found["the inks of CMYK are read inverted"] = ImageChops.invert(image).convert(mode)
    if image.mode.startswith("I;16"):
        levels = np.asarray(image).astype(np.float64)
        for said, made in (
            ("numbers of 16 bits lose their low byte (>> 8)", levels // 256),
            ("numbers of 16 bits are scaled by 1/257", np.rint(levels / 257)),
            ("numbers of 16 bits are clipped at 255", np.minimum(levels, 255)),
            ("numbers of 16 bits keep only their low byte", levels % 256),
        ):
            found[said] = Image.fromarray(made.astype(np.uint8)).convert(mode)
    return found


def best(
    ways: Iterable[Fault], decoded: Sequence[NDArray[np.uint8]], theirs: Sequence[Levels], step: str
) -> tuple[Fault, LinearFit] | None:
    """The way that leaves least of a port's arrays, and its fit.

    All ways are tried on the first image, and those that leave least of it on all images.
    """
    for count, most in ((1, _RUNNERS_UP), (len(decoded), 1)):
        found = []
        for way in ways:
            made = [way.made(image, step) for image in decoded[:count]]
            whole = [one for one in made if one is not None]
            if len(whole) == count and (fit := fitted(whole, theirs[:count])):
                found.append((way, fit))
        found.sort(key=lambda pair: pair[1].mean)
        ways = [way for way, _ in found[:most]]
    return found[0] if found else None
