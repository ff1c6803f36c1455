"""Recognises checkpoints that no table is for, by `weights_map/others.toml`."""

import functools
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Any

from vitconvert.errors import Quantised
from vitconvert.tables.axes import Shape
from vitconvert.tables.templates import skeleton_of
from vitconvert.toml_files import read_tables

COMFY_MARK = "scaled_fp8"  # ComfyUI's, of files whose weights may have scales: no numbers
_COMPUTED = "computed"  # the section of quantised weights that `--dtype` computes
_KERNEL_AXES = 4  # of a convolution's weights: out, in, height, width
_VIDEO = " of five axes"  # after a name: out, in, time, height, width
_MANY = 8  # kernels; the stem of a hybrid ViT has fewer than half of its matrices
_NAME_VIT = "name a checkpoint of a ViT; `vitconvert list` shows what is known."
_NAME_TOWER = "--tower PREFIX (in Python, tower=) says where its ViT is, if it is a known one."


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that may tell which model a file is of, whatever part of it is read.

    Attributes:
        config: What config.json, or the file itself, says of the part that is read, or else of all.
        settings: What a training program saved with the weights.
        inside: Names and shapes of the part that is read, with those that the user leaves out.
        around: All names of the file.
        left_out: Whether the user leaves tensors out.
    """

    config: Mapping[str, object]
    settings: Mapping[str, object]
    inside: Mapping[str, Shape]
    around: Collection[str]
    left_out: bool


def another_model(evidence: Evidence) -> tuple[str, dict[str, str]] | None:
    """A model with a ViT's tensors and another function, and what tells it, both in words.

    This is the one place that says so, for every way of reading a file.
    """
    kind = evidence.config.get("model_type")
    if model := look_alike(kind):
        return model, {"config.json": f"model_type = {kind!r}"}
    for where, said in (("config.json", evidence.config), ("settings", evidence.settings)):
        for path, value in _values(said):
            if model := _model_of(path, value):
                return model, {where: f"{path} = {value!r}"}
    for model, marks in read_tables("others")["around"].items():
        # The others are not looked for where one is missing, as in most files.
        one_each = (next((n for n in evidence.around if n.endswith(mark)), "") for mark in marks)
        found = list(takewhile(bool, one_each))
        if len(found) == len(marks):
            return model, {"tensors": " and ".join(found)}
    if evidence.left_out and (model := _first_fitting("alike", _ends_with_axes(evidence.inside))):
        return model, {"tensors": " and ".join(read_tables("others")["alike"][model])}
    return None


def read_as_of(model: str) -> Mapping[str, Any] | None:
    """Of such a model, in words: the model type of the table that computes it, and its prefixes."""
    known: Mapping[str, Mapping[str, Any]] = read_tables("others")["read_as"]
    return next((said for name, said in known.items() if model.startswith(f"{name}:")), None)


def look_alike(model_type: object) -> str | None:
    """In words, the model that this type of config.json is, if its tensors look like a ViT's."""
    known: Mapping[str, str] = read_tables("others")["look_alikes"]
    return known.get(model_type) if isinstance(model_type, str) else None


def _values(said: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Texts and numbers of settings in settings, each with its path of keys."""
    if isinstance(said, Mapping):
        for key, inner in said.items():
            yield from _values(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(said, str | int | float):
        yield path, str(said)


def _model_of(path: str, value: str) -> str:
    """The model that a value at a path of keys tells; "" if it tells none."""
    for end, patterns in _patterns():
        if f".{path}".endswith(f".{end}"):
            found = next((model for one, model in patterns.items() if fnmatchcase(value, one)), "")
            return found.replace("{}", repr(value))
    return ""


@functools.cache
def _patterns() -> tuple[tuple[str, Mapping[str, str]], ...]:
    """The ends of paths that are looked at, and what patterns of their values tell."""
    found: list[tuple[str, Mapping[str, str]]] = []
    pending: list[tuple[str, Mapping[str, Any]]] = [("", read_tables("others")["stated"])]
    while pending:
        path, inner = pending.pop(0)
        for key, value in inner.items():
            end = f"{path}.{key}".removeprefix(".")
            is_patterns = all(isinstance(said, str) for said in value.values())
            (found if is_patterns else pending).append((end, value))
    return tuple(found)


def instead_of(model: str) -> str | None:
    """What can be done instead of reading a model, which is named in words; None: nothing known."""
    said: Mapping[str, str] = read_tables("others")["instead"]
    return next((hint for word, hint in said.items() if word in model), None)


def refuse_quantised(shapes: Mapping[str, Shape]) -> None:
    """Refuse weights that are not the numbers that a model computes with.

    Raises:
        Quantised: The names are those of a program that quantises.
    """
    section, program = _quantised(shapes)
    if program is None:
        return
    (mark, *_) = read_tables("others")[section][program]
    marks = [key for key in shapes if skeleton_of(mark) in _every_end(skeleton_of(key))]
    more = f" and {len(marks) - 1} more" if len(marks) > 1 else ""
    error = Quantised(
        f"These weights are quantised: {program}.",
        evidence={"seen by": f"{marks[0]}{more}"},
        meaning="They are small integers, and become weights by the scales stored beside them.",
        hint="--dtype float32 (in Python, dequantise='float32') computes these weights; those "
        "before quantising are in the checkpoint that it was made from."
        if section == _COMPUTED
        else "convert the checkpoint that it was quantised from.",
    )
    error.computable = section == _COMPUTED
    raise error


def quantised_by(names: Collection[str]) -> str | None:
    """The program whose quantised weights are among these tensors, in words; None if none are."""
    return _quantised(names)[1]


def _quantised(names: Collection[str]) -> tuple[str, str | None]:
    ends = _ends_of(names)
    refused = _first_fitting("quantised", ends)
    return ("quantised", refused) if refused else (_COMPUTED, _first_fitting(_COMPUTED, ends))


def seems_to_be(shapes: Mapping[str, Shape], *, alike: bool = False) -> tuple[str, str] | None:
    """In words, a model of another kind that has such tensors, and the next step.

    None if nothing known has such tensors.

    Args:
        shapes: Of a checkpoint that no table explains.
        alike: Whether a table explains most of it: only models with a ViT's names and more count.
    """
    ends = _ends_with_axes(shapes)
    if model := _first_fitting("alike", ends):
        return model, instead_of(model) or _NAME_VIT
    if alike:
        return None
    images = any(len(shape) >= _KERNEL_AXES for shape in shapes.values())
    # Only convolutions have four axes: something beside the text reads images.
    if images and (model := _first_fitting("text_models", ends)):
        return f"{model} with something that reads images", _NAME_TOWER
    model = _first_fitting("models", ends) or _first_fitting("text_models", ends)
    if not model:
        kernels = sum(len(shape) == _KERNEL_AXES for shape in shapes.values())
        matrices = sum(len(shape) in (2, 3) for shape in shapes.values())
        batch_norms = any(key.endswith("running_mean") for key in shapes)
        if batch_norms and kernels > max(_MANY, matrices):
            model = "a convolutional network"
    return (model, instead_of(model) or _NAME_VIT) if model else None


def _ends_with_axes(shapes: Mapping[str, Shape]) -> Set[str]:
    """Ends of all names, with a word on those of five axes."""
    videos = [f"{key}{_VIDEO}" for key, shape in shapes.items() if len(shape) == _KERNEL_AXES + 1]
    return _ends_of([*shapes, *videos])


def _ends_of(names: Collection[str]) -> Set[str]:
    """Ends of all names: a mark is one of them."""
    skeletons = {skeleton_of(name) for name in names}
    return {end for key in skeletons for end in _every_end(key)}


def _first_fitting(section: str, ends: Set[str]) -> str | None:
    known: Mapping[str, list[str]] = read_tables("others")[section]
    for name, marks in known.items():
        if all(skeleton_of(mark) in ends for mark in marks):
            return name
    return None


_MOST_WORDS = 12  # of a mark; a name of thousands has as many ends, and the file would take long


def _every_end(key: str) -> list[str]:
    """The ends of a name, in whole words, which dots or, in JAX, slashes part."""
    starts = [0, *(at + 1 for at, letter in enumerate(key) if letter in "./")]
    return [key[start:] for start in starts[-_MOST_WORDS:]]
