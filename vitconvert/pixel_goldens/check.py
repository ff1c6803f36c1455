"""A port's arrays against a pixel golden: which step departs first, and the likely cause."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitconvert.documents import JsonDict
from vitconvert.errors import UsageError, nearest
from vitconvert.pixel_goldens import faults
from vitconvert.pixel_goldens.faults import EXACT, ROUNDED, Fault, LinearFit
from vitconvert.pixel_goldens.filters import Numbers
from vitconvert.pixel_goldens.golden import (
    STEPS,
    PixelGolden,
    arrays_of,
    as_array,
    own_modes,
    seen_of,
)
from vitconvert.preprocessing import pixels
from vitconvert.preprocessing.backends import BACKENDS
from vitconvert.preprocessing.image_files import open_image

_PORT = tuple[str, str]  # an image and a step
_MUCH = 0.5  # what a likely cause leaves of the mean difference at most
_MOST = 12.0  # levels, the mean of what a likely cause may leave
_OF_DECODERS = 4.0  # levels, the mean of what two decoders of JPEG differ by
_LAST = STEPS[-1]
UNKNOWN = "unknown: none of the mistakes that vitconvert knows explains it"


@dataclass(frozen=True, kw_only=True)
class Departure:
    """One array of a port against the golden's.

    Attributes:
        most: The largest difference, in levels of 255; infinite for another shape.
        share: Of the numbers, those that differ.
        shapes: Of both, where they are not the same.
    """

    most: float
    share: float
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def equal(self) -> bool:
        """Whether rounding of float32 explains it."""
        return self.most <= EXACT

    def __str__(self) -> str:
        if self.shapes:
            return ", not ".join("x".join(map(str, shape)) for shape in self.shapes)
        return "equal" if self.equal else f"{self.most:.3g} levels in {self.share:.0%}"


@dataclass(frozen=True, kw_only=True)
class PixelReport:
    """What a port makes of a golden's images.

    Attributes:
        golden: What it is compared with.
        compared: What was found of each image and step that the port gave.
        first: The first step that departs, and an image that it does so in; None if none does.
        within: The steps that may be wrong: those since the last that the port gave, and is equal.
        causes: Likely ones, a sentence each; the first are about all images.
        not_compared: Images of the golden that the port did not give.
    """

    golden: PixelGolden
    compared: Mapping[_PORT, Departure]
    first: _PORT | None
    within: tuple[str, ...]
    causes: tuple[str, ...]
    not_compared: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing departs."""
        return self.first is None

    @property
    def verdict(self) -> str:
        """In a word or two."""
        return "equal" if self.ok else "not equal"

    def summary(self) -> str:
        """Lines of text."""
        return "\n".join(self._lines())

    def to_dict(self) -> JsonDict:
        """The same as JSON types."""
        return {
            "verdict": self.verdict,
            "golden": self.golden.source,
            "golden verdict": self.golden.verdict,
            "first departs": list(self.first) if self.first else None,
            "causes": list(self.causes),
            "compared": {
                f"{image}/{step}": {"levels": one.most, "share": one.share, "found": str(one)}
                for (image, step), one in self.compared.items()
            },
            "not compared": list(self.not_compared),
        }

    def _lines(self) -> Iterator[str]:
        golden = self.golden
        yield f"{self.verdict} to {golden.folder.name}, recorded of {golden.source}"
        width = max(map(len, (image for image, _ in self.compared)))
        for image in dict.fromkeys(image for image, _ in self.compared):
            found = (f"{step} {one}" for (of, step), one in self.compared.items() if of == image)
            yield f"  {image:<{width}}  {'  '.join(found)}"
        if self.first:
            image, step = self.first
            before = "" if len(self.within) == 1 else f", or before: {self.within[0]} on"
            yield f"  first departs  {step} of {image}{before}"
            yield from (f"  the golden is  {of}: {golden.words[of]}" for of in self.within)
        for cause in self.causes:
            yield f"  likely cause   {cause}"
        yield f"  note: the golden's numbers: {golden.verdict}"
        if self.not_compared:
            yield f"  not compared: {', '.join(self.not_compared)}"


def check(golden: PixelGolden, theirs: Path | Mapping[str, object]) -> PixelReport:
    """Compare a port's arrays with a golden, and look for the cause of what departs.

    Args:
        golden: What the model's own library computes.
        theirs: The port's arrays: a file (.npz, .safetensors), or by name.

    Raises:
        SourceError, CorruptFile: The file cannot be read.
        UsageError: An array is of none of the golden's images and steps.
    """
    return _PortCheck(golden, _port(golden, theirs)).report()


def _port(golden: PixelGolden, theirs: Path | Mapping[str, object]) -> dict[_PORT, Numbers]:
    """A port's arrays by image and step, as the golden lays them out."""
    theirs = arrays_of(theirs) if isinstance(theirs, Path) else theirs
    stems = Counter(Path(name).stem for name in golden.images)
    known: dict[str, _PORT] = {}
    for name in golden.images:
        stem = Path(name).stem
        for short in {name, stem if stems[stem] == 1 else name}:
            known |= {short: (name, _LAST)} | {f"{short}/{step}": (name, step) for step in STEPS}
    found = {}
    for name, array in theirs.items():
        if name not in known:
            near = nearest(name, known)
            raise UsageError(
                f"{name!r} is of none of the golden's images and steps.",
                evidence={"golden": golden.folder, "its images": ", ".join(golden.images)},
                hint=f"did you mean {near[0]}?" if near else "name arrays IMAGE or IMAGE/STEP.",
            )
        image, step = known[name]
        if step in golden.images[image].steps:
            expected = golden.images[image].steps[step]
            found[image, step] = _laid_out(as_array(array), expected, scaled=step == _LAST)
    if not found:
        raise UsageError(
            "There is no array to compare.",
            evidence={"golden": golden.folder, "its images": ", ".join(golden.images)},
            hint="name arrays IMAGE or IMAGE/STEP, such as edges.png/resized.",
        )
    order = {name: place for place, name in enumerate((*golden.images, *STEPS))}
    return {key: found[key] for key in sorted(found, key=lambda key: [order[of] for of in key])}


def _laid_out(array: pixels.Pixels, golden: pixels.Pixels, *, scaled: bool) -> Numbers:
    """(C, H, W); levels and shares of 255 on the golden's scale, unless it is `scaled` already."""
    made = array.astype(np.float64)
    made = made[0] if made.ndim == golden.ndim + 1 and len(made) == 1 else made
    made = made[None] if made.ndim == golden.ndim - 1 else made
    channels = len(golden)
    if made.ndim == golden.ndim and made.shape[0] != channels == made.shape[-1]:
        made = np.moveaxis(made, -1, 0)
    if scaled or not made.size:
        return made
    of_levels = bool(golden.max() > 2), bool(made.max() > 2)
    return made * {(True, False): 255, (False, True): 1 / 255}.get(of_levels, 1)


class _PortCheck:
    """A port's arrays and a golden."""

    def __init__(self, golden: PixelGolden, port: Mapping[_PORT, Numbers]) -> None:
        self.golden, self.port = golden, port
        self.steps, self.own = golden.preprocessing, faults.own_way(golden.preprocessing)
        self.compared = {key: self.departure(*key) for key in port}
        self.departing = [key for key, one in self.compared.items() if not one.equal]

    def report(self) -> PixelReport:
        given = {image for image, _ in self.port}
        base = [key for key in self.departing if self.golden.images[key[0]].plain]
        first = min(base or self.departing, key=lambda key: STEPS.index(key[1]), default=None)
        return PixelReport(
            golden=self.golden,
            compared=self.compared,
            first=first,
            within=self.within(first[1]) if first else (),
            causes=tuple(self.causes(first[1])) if first else (),
            not_compared=tuple(name for name in self.golden.images if name not in given),
        )

    def departure(self, image: str, step: str) -> Departure:
        theirs, golden = self.port[image, step], self.golden.images[image].steps[step]
        if theirs.shape != golden.shape:
            return Departure(most=np.inf, share=1.0, shapes=(theirs.shape, golden.shape))
        slope = self.own_fit(step, len(golden)).slope[:, None, None]
        apart = np.abs(theirs - golden) / np.abs(slope)
        apart[np.isnan(apart)] = np.inf
        return Departure(most=float(apart.max()), share=float((apart > EXACT).mean()))

    def own_fit(self, step: str, channels: int) -> LinearFit:
        """How the golden's own numbers follow from levels."""
        slope, shift = np.ones(channels), np.zeros(channels)
        factor = self.steps.rescale_factor or 1.0
        if step == _LAST:
            std, mean = np.array(self.steps.std), np.array(self.steps.mean)
            slope, shift = factor / std, -mean / std
        elif step != "decoded" and BACKENDS[self.steps.backend].numbers == "first":
            slope = slope * factor
        return LinearFit(slope=slope, shift=shift, order=(*range(channels),), most=0.0, mean=0.0)

    def within(self, step: str) -> tuple[str, ...]:
        """The steps that may be wrong: those since the last that is known to be equal."""
        last = STEPS.index(step)
        equal = [STEPS.index(of) for _, of in self.port if STEPS.index(of) < last]
        return STEPS[max(equal, default=-1) + 1 : last + 1]

    def causes(self, step: str) -> Iterator[str]:
        """What is wrong with plain images, and with others beside."""
        given = [image for image, of in self.port if of == step]
        plain = [image for image in given if self.golden.images[image].plain] or given
        way, fit = self.own, self.own_fit(step, self.steps.channels)
        if any(not self.compared[image, step].equal for image in plain):
            found = self.search(step, plain)
            if found is None:
                yield UNKNOWN
                return
            way, fit = found
            yield from self.said(way, fit, step)
        for image in dict.fromkeys(image for image, _ in self.departing):
            if image not in plain:
                of = next(of for name, of in self.departing if name == image)
                own = fit if of == step else self.own_fit(of, len(self.port[image, of]))
                if said := self.cause_of_image(image, of, way, own):
                    yield f"{image}: {said}"

    def search(self, step: str, images: Sequence[str]) -> tuple[Fault, LinearFit] | None:
        """The mistakes that leave least of what the port makes of these images."""
        decoded = {image: self.decoded(image) for image in images}
        # Fine detail tells most.
        images = sorted(images, key=lambda image: -np.abs(np.diff(decoded[image] / 255)).mean())
        theirs = [self.port[image, step].astype(np.float32) for image in images]
        usual, found = np.inf, None
        for number, ways in enumerate(faults.stages(self.own, self.within(step))):
            one = faults.best(ways, [decoded[image] for image in images], theirs, step)
            if one and number == 0:
                usual = one[1].mean
            if one and (found is None or one[1].mean < _MUCH * found[1].mean):
                found = one
            if found and found[1].most <= (ROUNDED if number else EXACT):
                break
        explains = found and found[1].mean < min(_MUCH * usual, _MOST)
        return found if explains or (found and found[1].most <= ROUNDED) else None

    def decoded(self, image: str) -> NDArray[np.uint8]:
        seen = self.golden.images[image].steps.get("decoded")
        if seen is None:
            seen = seen_of(self.golden.folder / image, self.steps)["decoded"]
        return seen.astype(np.uint8)

    def said(self, way: Fault, fit: LinearFit, step: str) -> Iterator[str]:
        left = "" if fit.most <= EXACT else f" (at most {fit.most:.3g} levels are left)"
        own = self.own_fit(step, len(fit.slope))
        first, *others = [*way.said, *faults.normalisation_faults(fit, own)] or ["rounding"]
        yield from (f"{first}{left}", *others)

    def cause_of_image(self, image: str, step: str, way: Fault, fit: LinearFit) -> str:
        """What is wrong with an image, beside what is wrong with all; "" if nothing is."""
        theirs = self.port[image, step].astype(np.float32)

        enough = max(ROUNDED, 2 * fit.most)
        own = fit.left(way.made(self.decoded(image), step), theirs)
        if own[0] <= enough and not own_modes(self.steps):
            return ""
        with open_image(self.golden.folder / image) as file:
            other = faults.decodings(file, self.steps.channels, own_modes=own_modes(self.steps))
            arrays = {said: pixels.channels_first(one) for said, one in other.items()}
        made = {said: way.made(one.astype(np.uint8), step) for said, one in arrays.items()}
        found = {said: fit.left(one, theirs) for said, one in made.items()}
        said = min(found, key=lambda name: found[name][1], default="")
        if said and (found[said][0] <= enough or found[said][1] < _MUCH * own[1]):
            return said
        if image.endswith(".jpg") and own[1] <= _OF_DECODERS:
            return f"another decoder of JPEG ({own[1]:.2g} levels on average)"
        return UNKNOWN
