"""The canonical spelling: our own ViT's tensors, their axes and when they exist.

And those of a text encoder beside it, which is carried, but not computed.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from vitconvert.config import Config, Kind, TextConfig, ViTConfig
from vitconvert.errors import TableError
from vitconvert.tables.axes import Axes, parse_axes
from vitconvert.tables.templates import Template, parse_template
from vitconvert.toml_files import read_tables


@dataclass(frozen=True)
class CanonicalTensor:
    """One line of `canonical.toml`: a tensor, or the same tensor in every block."""

    text: str  # of the name
    layout: str
    conditions: tuple[str, ...]  # words of the configuration that must all hold

    @functools.cached_property
    def name(self) -> Template:
        """The name, with its indices."""
        with self._parsing():
            return parse_template(self.text, {})

    @functools.cached_property
    def axes(self) -> Axes:
        """The layout, with indices in the names of axes."""
        with self._parsing():
            return parse_axes(self.layout)

    @contextmanager
    def _parsing(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise TableError(
                "The canonical table does not parse.",
                evidence={"row": f'weights_map/canonical.toml: "{self.text}"', "problem": error},
            ) from None


def instantiate(axes: Axes, indices: Mapping[str, int]) -> Axes:
    """Replace the indices in axis names by their values: `mid{s}` becomes `mid2`."""
    if not axes.indexed:
        return axes
    names = {}
    for axis in axes.indexed:
        name = axis
        for index, value in indices.items():
            name = name.replace(f"{{{index}}}", str(value))
        names[axis] = name
    return axes.rename(names)


_SECTIONS: Mapping[Kind, str] = {ViTConfig: "tensors", TextConfig: "text"}


def canonical_tensors(of: Kind = ViTConfig) -> Mapping[str, CanonicalTensor]:
    """All canonical tensors of a kind of encoder, by the text of their name."""
    return _tensors(of)


@functools.cache  # of its own: to it, a default that is written out is another call
def _tensors(of: Kind) -> Mapping[str, CanonicalTensor]:
    found: dict[str, CanonicalTensor] = {}
    for template, value in read_tables("canonical")[_SECTIONS[of]].items():
        layout, _, condition = value.partition(" if ")
        words = tuple(condition.split(" and ")) if condition else ()
        for kind in ("weight", "bias") if "{p}" in template else ("",):
            name = template.replace("{p}", kind)
            found[name] = CanonicalTensor(name, layout, words)
    return found


@functools.cache
def shown_words(of: Kind = ViTConfig) -> frozenset[str]:
    """Words of a configuration that tensors show, by being there or not."""
    return frozenset(w for tensor in canonical_tensors(of).values() for w in tensor.conditions[-1:])


class Instance(NamedTuple):
    """One tensor of a model: a canonical one, in one block if every block has it."""

    tensor: CanonicalTensor
    indices: Mapping[str, int]
    name: str  # in the model
    axes: Axes


def instance(tensor: CanonicalTensor, indices: Mapping[str, int]) -> Instance:
    """A canonical tensor at these indices."""
    axes = instantiate(tensor.axes, indices)
    return Instance(tensor, indices, tensor.name.write(indices), axes)


# A search for a target asks for those of one model again and again.
@functools.lru_cache(maxsize=4)
def instances(config: Config) -> Mapping[str, Sequence[Instance]]:
    """Every tensor that an encoder of this configuration has, by the text of its canonical name."""
    return {
        name: [instance(tensor, indices) for indices in _indices(tensor, config)]
        for name, tensor in canonical_tensors(type(config)).items()
        if all(getattr(config, word) for word in tensor.conditions)
    }


def expected_tensors(config: Config) -> dict[str, Axes]:
    """Every tensor that an encoder of this configuration has, with its layout."""
    return {one.name: one.axes for several in instances(config).values() for one in several}


def expected_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor that an encoder of this configuration has."""
    sizes = config.axes()
    return {name: axes.shape(sizes) for name, axes in expected_tensors(config).items()}


def first_kernel(config: ViTConfig) -> str:
    """The convolution that reads the images; a stem makes the patches' channels itself."""
    axis = "rgb" if config.stem else "channel"
    return next(name for name, axes in expected_tensors(config).items() if axis in axes.names)


def _indices(tensor: CanonicalTensor, config: Config) -> Iterator[dict[str, int]]:
    """The indices at which an encoder of this configuration has the tensor."""
    blocks = range(config.depth)
    stages = config.stem_depths if isinstance(config, ViTConfig) else ()
    branches = config.branches if isinstance(config, ViTConfig) else 1
    match tensor.name.indices:
        case ():
            yield {}
        case ("i",):
            yield from ({"i": i} for i in blocks)
        case ("i", "j"):
            yield from ({"i": i, "j": j} for i in blocks for j in range(branches))
        case ("s",):
            yield from ({"s": s} for s in range(len(stages)))
        case ("s", "u"):
            yield from ({"s": s, "u": u} for s, units in enumerate(stages) for u in range(units))
        case indices:
            raise AssertionError(f"canonical.toml uses the indices {indices}")
