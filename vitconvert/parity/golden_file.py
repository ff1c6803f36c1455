"""A golden file: safetensors, with all that is no tensor as JSON in its metadata."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

from vitconvert.config import ViTConfig
from vitconvert.config.field_values import parse_field
from vitconvert.documents import parse_object
from vitconvert.errors import CorruptFile, OutputExists, UsageError, VitConvertError
from vitconvert.formats import Container, open_container, write_safetensors
from vitconvert.parity.golden import MOST_NUMBERS, Drawn, Golden, numbers_of
from vitconvert.parity.sketch import NUMBERS
from vitconvert.programs.taps import OUTPUT
from vitconvert.whole import require_place

SUFFIX = ".golden"
_KEY = "vitconvert.golden"
_FORMAT = 1
_MOST_TEXT = 5000  # characters

Value = TypeVar("Value")


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
            f"The name of a golden file ends with {SUFFIX}.", evidence={"output": path}
        )
    require_place(path)
    if not path.exists():
        return
    if not overwrite:
        hint = "--force (in Python, overwrite=True) replaces it."
        raise OutputExists("The golden file already exists.", evidence={"output": path}, hint=hint)
    if not _is_ours(path):
        raise OutputExists(
            "What lies there is no golden file, and is not replaced.", evidence={"output": path}
        )


def _is_ours(path: Path) -> bool:
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
            raise CorruptFile("This is no golden file.", evidence={"file": path})
        try:
            stated = parse_object(text.encode())
            golden = _golden(stated, container, path.name)
            _check(golden)
        except (ValueError, TypeError, KeyError) as error:
            said = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            problem = said[:200]
        except VitConvertError as error:
            problem = error.fact
        else:
            return golden
    raise CorruptFile(
        "The golden file does not hold what it should.",
        evidence={"file": path, "problem": problem},
        hint="record it again: `vitconvert golden SOURCE -o FILE`.",
    )


def _golden(stated: Mapping[str, Any], container: Container, name: str) -> Golden:
    if stated["format"] != _FORMAT:
        raise ValueError(f"format {stated['format']!r}; {_FORMAT} is read here")
    kept: dict[str, dict[str, Any]] = {}
    for tensor, info in container.manifest.items():
        kind, _, layer = tensor.partition("/")
        if info.dtype != "float64":
            raise ValueError(f"{tensor} is in {info.dtype}, not in float64")
        kept.setdefault(kind, {})[layer] = container.read(tensor).clone()
    return Golden(
        name=name,
        source=_text(stated["source"]),
        verdict=_text(stated["verdict"]),
        reference=_text(stated["reference"]),
        config=_config(_object(stated["config"])),
        weights=_text(stated["weights"]),
        drawn=_drawn(_object(stated["drawn"])),
        images=_text(stated["images"]),
        not_tested=_list(stated["not_tested"], _text),
        versions={_text(k): _text(v) for k, v in _object(stated["versions"]).items()},
        shapes={_text(k): _list(v, _whole) for k, v in _object(stated["shapes"]).items()},
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
        raise ValueError("images that are none of the model's")
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
        raise ValueError("digests of what are no tokens")
    for kind, kept in golden.kept.items():
        if kept.keys() != layers.keys() or OUTPUT not in kept:
            raise ValueError(f"for {kind} other layers are kept than for noise")
        for layer, values in kept.items():
            wide = (NUMBERS,) if layer in golden.shapes else layers[layer].shape[1:]
            if values.ndim != 2 or tuple(values.shape) != (sizes[kind], *wide):
                raise ValueError(f"{kind}/{layer} has the shape {tuple(values.shape)}")


def _config(stated: Mapping[str, Any]) -> ViTConfig:
    fields = {name: parse_field(name, v) for name, v in stated.items() if v is not None}
    return ViTConfig.from_dict(fields, origin="the golden file")


def _drawn(stated: Mapping[str, Any]) -> Drawn:
    height, width = _list(stated["size"], _whole)
    numbers = {name: _whole(stated[name]) for name in ("seed", "batch", "channels")}
    mean, std = (_list(stated[name], _number) for name in ("mean", "std"))
    if min(height, width, numbers["batch"], numbers["channels"]) < 1 or numbers["seed"] < 0:
        raise ValueError("images of no size")
    if len(mean) != len(std) or len(mean) not in (0, 1, numbers["channels"]):
        raise ValueError(f"mean and std of {len(mean)} and {len(std)} channels")
    if not all(std):
        raise ValueError("a std of 0")
    return Drawn(**numbers, size=(height, width), mean=mean, std=std)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise TypeError(f"expected a text, found {str(value)[:80]!r}")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"expected a whole number, found {str(value)[:80]!r}")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not -1e6 < value < 1e6:
        raise TypeError(f"expected a number, found {str(value)[:80]!r}")
    return float(value)


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found {str(value)[:80]!r}")
    return value


def _list(value: Any, item: Callable[[Any], Value]) -> tuple[Value, ...]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, found {str(value)[:80]!r}")
    return tuple(map(item, value))
