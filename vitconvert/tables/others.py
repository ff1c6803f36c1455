"""Recognises checkpoints that no table is for, by `weights_map/others.toml`."""

from collections.abc import Collection, Mapping, Set

from vitconvert.errors import Quantised
from vitconvert.tables.axes import Shape
from vitconvert.tables.templates import skeleton_of
from vitconvert.toml_files import read_tables

_COMPUTED = "computed"  # the section of quantised weights that `--dtype` computes
_KERNEL_AXES = 4  # of a convolution's weights: out, in, height, width
_VIDEO = " of five axes"  # after a name: out, in, time, height, width
_MANY = 8  # kernels; the stem of a hybrid ViT has fewer than half of its matrices
_NAME_VIT = "name a checkpoint of a ViT; `vitconvert list` shows what is known."
_NAME_TOWER = "--tower PREFIX (in Python, tower=) says where its ViT is, if it is a known one."


def look_alike(model_type: object) -> str | None:
    """In words, the model that this type of config.json is, if its tensors look like a ViT's."""
    if not isinstance(model_type, str):
        return None
    known: Mapping[str, str] = read_tables("others")["look_alikes"]
    return known.get(model_type)


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
        meaning="They are small numbers, and become weights by the scales beside them.",
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
    videos = [f"{key}{_VIDEO}" for key, shape in shapes.items() if len(shape) == _KERNEL_AXES + 1]
    ends = _ends_of([*shapes, *videos])
    if model := _first_fitting("alike", ends):
        return model, instead_of(model) or _NAME_VIT
    if alike:
        return None
    images = any(len(shape) >= _KERNEL_AXES for shape in shapes.values())
    # Only convolutions have four axes: something beside the text reads images.
    if images and (model := _first_fitting("text_models", ends)):
        return f"{model} beside something that reads images", _NAME_TOWER
    model = _first_fitting("models", ends) or _first_fitting("text_models", ends)
    if not model:
        kernels = sum(len(shape) == _KERNEL_AXES for shape in shapes.values())
        matrices = sum(len(shape) in (2, 3) for shape in shapes.values())
        batch_norms = any(key.endswith("running_mean") for key in shapes)
        if batch_norms and kernels > max(_MANY, matrices):
            model = "a convolutional network"
    return (model, instead_of(model) or _NAME_VIT) if model else None


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
    """The ends of a name, in whole words."""
    words = key.split(".")[-_MOST_WORDS:]
    return [".".join(words[at:]) for at in range(len(words))]
