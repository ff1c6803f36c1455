"""Golden outputs: what a verified model computes for images that anybody can draw again.

They are recorded once, where the model's own project is installed. Whoever has them can compare
other implementations of the same model, and needs neither that project nor a network. The file is
safetensors, with everything that is not a tensor as JSON in its metadata.

Of a layer, a digest is kept: a few numbers that differ as soon as the layer does. Each number is
a^T X b for the tokens X (N, D) of an image and Gaussian vectors a and b, which are always the same
ones. Its mean square over all a and b is the sum of the squares of X, so a relative difference of
digests is, within a small factor, that of the layers in the Euclidean norm. A layer that differs
by a relative d anywhere, even in a single number of a hundred thousand, differs in its digests by
d / 400: in float64, that shows for any d over 1e-9, and the mistakes of implementations begin at
1e-7 (an epsilon). All 32 of an image miss a difference a thousand times larger than what is
allowed with a probability below 1e-70.

Such products are the sketches of Achlioptas, "Database-friendly random projections" (2003), with
the tensor structure of Rakhshan and Rabusseau, "Tensorized random projections" (2020): 64 x (N + D)
Gaussian numbers instead of 64 x N x D.
"""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from vitconvert.atomic_write import require_place, require_replaceable
from vitconvert.comparison import fingerprint
from vitconvert.config import ViTConfig
from vitconvert.config.field_values import parse_field
from vitconvert.documents import parse_object
from vitconvert.errors import CorruptFile, UsageError, VitConvertError
from vitconvert.formats import Container, open_container, write_safetensors
from vitconvert.model import ViT
from vitconvert.parity.implementations import LAYER_OF_OUTPUT, Implementation, Run, outputs_of
from vitconvert.preprocessing.sample_images import edge_images, sample_images
from vitconvert.programs.taps import OUTPUT, Taps

SUFFIX = ".golden"
MOST_NUMBERS = 2**24  # of a batch of images; there are seven batches
NUMBERS = 32  # of the digest of an image and layer
_SEED = 14  # of the digests' Gaussian vectors
# FFTs of two machines may round differently in the last bit. Rounded to so many, images are equal
# on both, and float32 holds them exactly.
_STEPS = 2**10
_KEY = "vitconvert.golden"
_FORMAT = 1
_MOST_TEXT = 5000  # characters

Value = TypeVar("Value")


def digest(values: Tensor) -> Tensor:
    """The digest of each image: (B, ..., D) to (B, 32), in the same dtype, added in float64."""
    tokens = values.double().flatten(1, -2)  # (B, N, D)
    rows, columns = _vectors(tokens.shape[1], tokens.shape[2])
    mixed = torch.einsum("kn,bnd->bkd", rows, tokens)
    return torch.einsum("bkd,kd->bk", mixed, columns).to(values.dtype)


@functools.lru_cache(maxsize=8)
def _vectors(tokens: int, width: int) -> tuple[Tensor, Tensor]:
    """Gaussian vectors for the tokens, (32, N), and for their channels, (32, D)."""
    rng = np.random.default_rng((_SEED, tokens, width))
    rows, columns = (rng.standard_normal((NUMBERS, size)) for size in (tokens, width))
    return torch.from_numpy(rows), torch.from_numpy(columns)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Images, by the few numbers from which they can be drawn again.

    Attributes:
        seed, batch: As for `vitconvert.verify`.
        size: Height and width.
        channels: Of each image.
        mean, std: Of the smooth images, one value or one for each channel; () stands for
            those of `sample_images`.
    """

    seed: int
    batch: int
    size: tuple[int, int]
    channels: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def images(self) -> Mapping[str, Tensor]:
        """Batches (B, C, H, W) in float64, by kind."""
        usual = {"mean": self.mean, "std": self.std} if self.mean else {}
        size, channels, batch, seed = self.size, self.channels, self.batch, self.seed
        drawn = {
            **sample_images(size=size, channels=channels, batch=batch, seed=seed, **usual),
            **edge_images(size, channels, batch=batch, seed=seed),
        }
        rounded = {kind: np.round(array * _STEPS) / _STEPS for kind, array in drawn.items()}
        return {kind: torch.from_numpy(array) for kind, array in rounded.items()}


@dataclass(frozen=True, kw_only=True)
class Golden:
    """The outputs and layers of a model for images, in float64.

    Attributes:
        source: The checkpoint, without the places of the machine where it lay.
        verdict: "equal" to its own library's model when it was recorded, or "not verified".
        reference: That library's model, with its version; or why there was none.
        config: Of the model.
        weights: `fingerprint` of its weights under canonical names.
        drawn: The images.
        images: `fingerprint` of the images.
        not_tested: What the comparison with that library could not see.
        versions: Of vitconvert, torch and NumPy, which computed it.
        shapes: Of the layers of which digests are kept, without the batch.
        kept: Kind of images -> layer -> digests (B, 32), or the layer itself (B, C).
        name: The file's.
    """

    source: str
    verdict: str
    reference: str
    config: ViTConfig
    weights: str
    drawn: Drawn
    images: str
    not_tested: tuple[str, ...]
    versions: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    kept: Mapping[str, Mapping[str, Tensor]] = field(repr=False)
    name: str = ""

    @property
    def title(self) -> str:
        """As reports call it."""
        doubt = "" if self.verdict == "equal" else f" ({self.verdict})"
        return f"{self.name}, recorded of {self.source}{doubt}"

    def redrawn(self) -> Mapping[str, Tensor]:
        """The images again.

        Raises:
            UsageError: They are not those that were recorded.
        """
        images = self.drawn.images()
        if (found := fingerprint(images)) != self.images:
            raise UsageError(
                "The images that are drawn here are not those of the golden file.",
                evidence={
                    "golden": self.name,
                    "sha256 there": f"{self.images} (NumPy {self.versions.get('numpy', '?')})",
                    "sha256 here": f"{found} (NumPy {np.__version__})",
                },
                meaning="Another NumPy may draw other random numbers. No model was compared.",
                hint="record it again with this NumPy, or install the one that drew them.",
            )
        return images

    def view(self, name: str, values: Tensor) -> Tensor:
        """A digest where one was kept of such a layer; another shape stays what it is."""
        shape = self.shapes.get(LAYER_OF_OUTPUT.get(name, name))
        return digest(values) if shape == tuple(values.shape[1:]) else values

    def implementation(
        self, images: Mapping[str, Tensor], vit: ViT | None = None, taps: Taps | None = None
    ) -> Implementation:
        """Something that gives for the images what was kept.

        Args:
            images: From `redrawn`.
            vit: vitconvert's model of the same weights, to find causes with.
            taps: Where its layers are.
        """

        def prepare(dtype: torch.dtype) -> Callable[[Tensor], Run]:
            def run(x: Tensor) -> Run:
                # An implementation is given nothing but images, so these say which were kept.
                kind = next(k for k, batch in images.items() if torch.equal(batch.to(dtype), x))
                layers = {name: values.to(dtype) for name, values in self.kept[kind].items()}
                return Run(outputs_of(layers), layers)

            return run

        return Implementation(
            name=self.title, prepare=prepare, vit=vit, taps=taps or {}, view=self.view
        )


def numbers_of(drawn: Drawn) -> int:
    """How many numbers the largest batch has; one kind of images has at least three."""
    return max(drawn.batch, 3) * drawn.channels * drawn.size[0] * drawn.size[1]


def is_golden(source: str | PathLike[str]) -> bool:
    """Whether a path or a reference names a golden file."""
    return fspath(source).endswith(SUFFIX)


def check_golden_output(path: Path, *, overwrite: bool) -> None:
    """Make sure, before any work is done, that a golden file may be written.

    Raises:
        UsageError: The name is no golden file's, or no file can be there.
        OutputExists: The file exists, and `overwrite` is false or it is no golden file.
    """
    if path.suffix != SUFFIX:
        raise UsageError(
            f"The name of a golden file ends with {SUFFIX}.",
            evidence={"output": path},
            hint=f"-o {path.stem}{SUFFIX} is such a name.",
        )
    require_place(path)
    require_replaceable(path, _is_golden_file, overwrite=overwrite)


def _is_golden_file(path: Path) -> bool:
    """Whether vitconvert wrote it, perhaps in an older format."""
    try:
        with open_container(path) as container:
            return _KEY in container.metadata
    except VitConvertError:
        return False


def write_golden(golden: Golden, path: Path, *, overwrite: bool = False) -> None:
    """Write a golden file, which appears whole or not at all.

    Raises:
        UsageError: There is no place for the file.
        OutputExists: As for `check_golden_output`, of what appeared meanwhile.
    """
    stated = {
        "format": _FORMAT,
        "source": golden.source,
        "verdict": golden.verdict,
        "reference": golden.reference,
        "config": golden.config.to_dict(),
        "weights": golden.weights,
        "drawn": vars(golden.drawn),
        "images": golden.images,
        "not_tested": list(golden.not_tested),
        "versions": dict(golden.versions),
        "shapes": dict(golden.shapes),
    }
    tensors = {
        f"{kind}/{layer}": values
        for kind, layers in golden.kept.items()
        for layer, values in layers.items()
    }
    write_safetensors(
        path,
        tensors,
        metadata={_KEY: json.dumps(stated, sort_keys=True)},
        check=partial(check_golden_output, overwrite=overwrite),
    )


def read_golden(path: Path) -> Golden:
    """Read a golden file that anybody may have written.

    Raises:
        SourceError: There is no such file.
        CorruptFile: It is no golden file, or one that contradicts itself.
    """
    with open_container(path) as container:
        text = container.metadata.get(_KEY)
        if text is None:
            raise CorruptFile("This is not a golden file.", evidence={"file": path})
        try:
            stated = parse_object(text.encode())
            golden = _golden(stated, container, path.name)
            _check(golden)
        except (ValueError, TypeError, KeyError) as error:
            lacks = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            problem = lacks[:200]
        except VitConvertError as error:
            problem = error.fact
        else:
            return golden
    raise CorruptFile(
        "The golden file is damaged or incomplete.",
        evidence={"file": path, "problem": problem},
        hint="record it again: `vitconvert golden SOURCE -o FILE`.",
    )


def _golden(stated: Mapping[str, object], container: Container, name: str) -> Golden:
    if stated["format"] != _FORMAT:
        raise ValueError(f"format {stated['format']!r}; {_FORMAT} is read here")
    kept: dict[str, dict[str, Tensor]] = {}
    for tensor, info in container.manifest.items():
        kind, _, layer = tensor.partition("/")
        if info.dtype != "float64":
            raise ValueError(f"{tensor} is in {info.dtype}, not in float64")
        # The map of the file ends with its container.
        kept.setdefault(kind, {})[layer] = container.read(tensor).clone()
    return Golden(
        name=name,
        source=_is(str, stated["source"]),
        verdict=_is(str, stated["verdict"]),
        reference=_is(str, stated["reference"]),
        config=ViTConfig.from_dict(
            {
                name: parse_field(name, value)
                for name, value in _is(dict, stated["config"]).items()
                if value is not None
            },
            origin="the golden file",
        ),
        weights=_is(str, stated["weights"]),
        drawn=_drawn(_is(dict, stated["drawn"])),
        images=_is(str, stated["images"]),
        not_tested=_list(stated["not_tested"], partial(_is, str)),
        versions={k: _is(str, v) for k, v in _is(dict, stated["versions"]).items()},
        shapes={
            _is(str, k): _list(v, partial(_is, int)) for k, v in _is(dict, stated["shapes"]).items()
        },
        kept=kept,
    )


def _check(golden: Golden) -> None:
    """Make sure that nothing in it leads to more work than its images and its size justify."""
    if golden.verdict not in ("equal", "not verified"):
        raise ValueError(f"verdict {golden.verdict!r}")
    if (numbers := numbers_of(golden.drawn)) > MOST_NUMBERS:
        raise ValueError(f"images of {numbers:,} numbers; {MOST_NUMBERS:,} at most are drawn")
    drawn, config = golden.drawn, golden.config
    if (drawn.size, drawn.channels) != (config.image_size, config.in_channels):
        raise ValueError("images that the model cannot read")
    batch = drawn.batch
    sizes = {"noise": batch, "photograph": batch, "constant": batch, "large": batch}
    sizes |= {"1 channel": batch} if drawn.channels > 1 else {}
    sizes |= {"batch of 1": 1, "batch of 3": 3}
    if golden.kept.keys() != sizes.keys():
        raise ValueError(f"it has outputs for {', '.join(sorted(golden.kept))[:100]}")
    layers = golden.kept["noise"]
    if config.depth > len(layers):
        raise ValueError(f"{len(layers)} layers, of a model of {config.depth} blocks")
    if any(len(shape) < 2 for shape in golden.shapes.values()):
        raise ValueError("digests of something that is not tokens")
    for kind, kept in golden.kept.items():
        if kept.keys() != layers.keys() or OUTPUT not in kept:
            raise ValueError(f"for {kind} other layers are kept than for noise")
        for layer, values in kept.items():
            wide = (NUMBERS,) if layer in golden.shapes else layers[layer].shape[1:]
            if values.ndim != 2 or tuple(values.shape) != (sizes[kind], *wide):
                raise ValueError(f"{kind}/{layer} has the shape {tuple(values.shape)}")


def _drawn(stated: Mapping[str, object]) -> Drawn:
    height, width = _list(stated["size"], partial(_is, int))
    numbers = {name: _is(int, stated[name]) for name in ("seed", "batch", "channels")}
    mean, std = (_list(stated[name], _number) for name in ("mean", "std"))
    if min(height, width, numbers["batch"], numbers["channels"]) < 1 or numbers["seed"] < 0:
        raise ValueError("images of no size")
    if len(mean) != len(std) or len(mean) not in (0, 1, numbers["channels"]):
        raise ValueError(f"mean and std of {len(mean)} and {len(std)} channels")
    if not all(std):
        raise ValueError("a std of 0")
    return Drawn(**numbers, size=(height, width), mean=mean, std=std)


def _is(kind: type[Value], value: object) -> Value:
    """A value of JSON, if it is of this kind; a text is not endless, and True is no number."""
    if type(value) is not kind or (isinstance(value, str) and len(value) > _MOST_TEXT):
        raise TypeError(f"expected {kind.__name__}, found {str(value)[:80]!r}")
    return value


def _number(value: object) -> float:
    number = float(_is(int if isinstance(value, int) else float, value))
    if not -1e6 < number < 1e6:
        raise TypeError(f"expected a number, found {str(value)[:80]!r}")
    return number


def _list(value: object, item: Callable[[object], Value]) -> tuple[Value, ...]:
    return tuple(map(item, _is(list, value)))
