"""Options: the values that each takes, and its name on the command line.

An option of one name takes the same values wherever it stands. Numbers of NumPy are numbers. What
an option cannot mean (a NaN as a tolerance, one word where several names are wanted) is refused by
the option's name before any work is done.

Options that several functions share are fields of a dataclass (`option`), with their help. The
command line makes its flags of these fields (`cli.options.flags_of`). Functions take them as
`**reading: Unpack[ReadArguments]`: the `TypedDict` beside the dataclass has the same names and
types, for type checkers and editors, and its docstring lists the help of each (`described_by`).

Other parameters are in `VALUES`, by name, and `checked` reads them.
"""

import functools
import inspect
import math
import operator
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, fields
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from vitconvert.errors import UsageError

if TYPE_CHECKING:
    import torch
    from _typeshed import DataclassInstance

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
Options = TypeVar("Options", bound="DataclassInstance")
Given = Any  # what a caller passed, before anything is known of it

_LONGEST_SHOWN = 80  # characters of a value
_IN = " " * 4  # of docstrings


@dataclass(frozen=True)
class Values:
    """The values of an option.

    Attributes:
        wanted: In words, as in "must be a whole number".
        example: Of such a value, as it is written in Python.
        parse: Gives the value in its usual type; raises ValueError or TypeError for others.
        least: Of a number, that the command line's help shows.
    """

    wanted: str
    example: str
    parse: Callable[[Given], object]
    least: float | None = None


@dataclass(frozen=True, kw_only=True)
class Option:
    """A field of a dataclass as an option.

    Attributes:
        values: What it takes.
        about: One sentence, for the command line's help and that of Python.
        more: Further sentences, for the help of Python alone.
        flag: What the command line calls it; by default, --NAME.
        kind: What the command line reads a text as: str, float, bool (a flag), Path, or tuple:
            numbers with commas between them.
        metavar: What stands for the value in the help.
        repeats: Whether the flag may be given several times.
        choices: The only values on the command line.
        heading: What it stands under in the help, if not with the others of its dataclass.
    """

    values: Values
    about: str
    more: str = ""
    flag: str = ""
    kind: type = str
    metavar: str | None = None
    repeats: bool = False
    choices: tuple[str, ...] = ()
    heading: str = ""

    @property
    def doc(self) -> str:
        """For a docstring: of what the command line writes otherwise, with an example in Python."""
        otherwise = self.repeats or self.kind is tuple
        example = f"In Python: {self.values.example}." if otherwise else ""
        return " ".join(filter(None, (self.about, self.more, example)))


def option(values: Values, about: str, *, default: object = None, **more: Given) -> Any:
    """A field that is an option; `more` is what else `Option` has."""
    return field(default=default, metadata={"option": Option(values=values, about=about, **more)})


def options_of(kind: "type[DataclassInstance]") -> dict[str, Option]:
    """The fields of a dataclass that are options, in order."""
    return {f.name: f.metadata["option"] for f in fields(kind) if "option" in f.metadata}


def values_of(kind: "type[DataclassInstance]") -> dict[str, Values]:
    """What the options of a dataclass take."""
    return {name: one.values for name, one in options_of(kind).items()}


def split(how: Mapping[str, object], kind: type[Options]) -> tuple[Options, dict[str, Given]]:
    """The options of one dataclass among those of several, and the others."""
    own = {name: how[name] for name in options_of(kind) if name in how}
    return kind(**own), {name: value for name, value in how.items() if name not in own}


def read_value(name: str, value: object, values: Values) -> object:
    """The value of an option, in its usual type.

    Raises:
        UsageError: The option does not take this value.
    """
    try:
        return values.parse(_plain(value))
    except (ValueError, TypeError, OverflowError, AttributeError, RuntimeError):
        shown = repr(value)
        if len(shown) > _LONGEST_SHOWN:
            shown = f"{shown[: _LONGEST_SHOWN - 3]}..."
        raise UsageError(
            f"{name} = {shown} must be {values.wanted}.", hint=f"for instance {values.example}."
        ) from None


def checked(**own: Values) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function whose own parameters are read before it is called, by `VALUES` or by `own`.

    None is taken where it is the default. A parameter of which nothing says what it takes is an
    error here, when the module is imported. What is in its `**` parameter, the dataclasses read.

    Args:
        own: What parameters of this function take that mean something else elsewhere.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        every = inspect.signature(function).parameters.values()
        named = {one.name: one.default for one in every if one.kind is not one.VAR_KEYWORD}
        known = {**VALUES, **own}
        taken = {name: known[name] for name in named}

        def read(name: str, value: object) -> object:
            if name not in taken or value is named[name]:
                return value
            return read_value(name, value, taken[name])

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            placed = [read(name, value) for name, value in zip(named, args, strict=False)]
            placed += args[len(named) :]  # of which Python itself complains
            by_name = {name: read(name, value) for name, value in kwargs.items()}
            return function(*placed, **by_name)  # type: ignore[arg-type]

        return call

    return decorate


def _usual(default: object) -> str:
    """What a docstring says of a default, unless it is that nothing is asked for."""
    return "" if default in (None, (), "") or default is False else f" Default: {default!r}."


def described_by(*kinds: "type[DataclassInstance]") -> Callable[[C], C]:
    """A `TypedDict` of keyword arguments, whose docstring says of each what its option says.

    Args:
        kinds: The dataclasses whose options they are.
    """
    entries = [
        textwrap.fill(
            f"{one.name}: {one.metadata['option'].doc}{_usual(one.default)}",
            96,
            initial_indent=_IN,
            subsequent_indent=_IN * 2,
        )
        for kind in kinds
        for one in fields(kind)
        if "option" in one.metadata
    ]

    def decorate(arguments: C) -> C:
        doc = inspect.cleandoc(arguments.__doc__ or "")
        arguments.__doc__ = "\n".join([doc, "", "Attributes:", *entries])
        return arguments

    return decorate


def read_fields(options: "DataclassInstance", *, but: Collection[str] = ()) -> None:
    """Read the fields of a frozen dataclass: those that are options, or are in `VALUES`.

    Args:
        options: Whose fields become what was read.
        but: Fields that are no such options, though they have such names.
    """
    known = {**VALUES, **values_of(type(options))}
    for each in fields(options):
        value = getattr(options, each.name)
        if each.name in known and each.name not in but and value is not each.default:
            read = read_value(each.name, value, known[each.name])
            object.__setattr__(options, each.name, read)


# Options that the command line calls otherwise than Python.
_TYPED = {"overrides": "--set", "dequantise": "--dtype"}


def refuse(names: Iterable[str], why: str, *, hint: str | None = None) -> None:
    """Refuse options by name that would be passed over.

    Args:
        names: Names of options.
        why: What goes on after them, as in "is about reading a file".
        hint: What to do.

    Raises:
        UsageError: There are any.
    """
    if refused := list(names):
        typed = [_TYPED.get(name) or f"--{name.replace('_', '-')}" for name in refused]
        hint = hint or f"leave out {typed[0]} (in Python, {refused[0]})."
        error = UsageError(f"{', '.join(refused)}: {why}", hint=hint)
        error.typed = f"{', '.join(typed)}: {why}"
        raise error


def given(options: Mapping[str, object]) -> list[str]:
    """Names of those of several options that are not None, False or empty."""
    empty = (bool, str, Mapping, list, tuple)
    return [
        name
        for name, value in options.items()
        if value is not None and (not isinstance(value, empty) or value)
    ]


def _plain(value: Given) -> Given:
    """A number of NumPy's, or a tensor of one number, as Python's own."""
    return value.item() if getattr(value, "shape", None) == () else value


def _require(found: bool) -> None:
    if not found:
        raise ValueError


def whole_number(least: int, most: int = 2**31 - 1) -> Values:
    """Whole numbers of a range."""

    def parse(value: Given) -> int:
        _require(least <= _index(value) <= most)
        return operator.index(value)

    up_to = "" if most == 2**31 - 1 else f" and at most {most:,}"
    wanted = f"a whole number of at least {least}{up_to}"
    return Values(wanted, str(max(least, 1)), parse, least=least)


def number(least: float, most: float = math.inf) -> Values:
    """Finite numbers of a range."""

    def parse(value: Given) -> float:
        _require(not isinstance(value, bool | str | bytes))
        found = float(value)
        _require(math.isfinite(found) and least <= found <= most)
        return found

    bounds = [] if least == -math.inf else [f"of at least {least:g}"]
    bounds += [] if most == math.inf else [f"at most {most:g}"]
    wanted = " ".join(["a finite number", " and ".join(bounds)]).strip()
    return Values(wanted, "0.5", parse, least=least)


def one_of(*names: str) -> Values:
    """One of several words."""
    wanted = f"one of {', '.join(names)}"
    return such(lambda value: isinstance(value, str) and value in names, wanted, repr(names[0]))


def such(test: Callable[[Given], bool], wanted: str, example: str) -> Values:
    """Values that pass a test, as they are."""

    def parse(value: Given) -> object:
        _require(test(value))
        return value

    return Values(wanted, example, parse)


def list_of(
    each: Callable[[Given], object], wanted: str, example: str, *, least: int = 0
) -> Values:
    """Several values in an order; one word alone is not several."""

    def parse(value: Given) -> tuple[object, ...]:
        _require(not isinstance(value, str | bytes | Mapping | Set) and not hasattr(value, "read"))
        found = tuple(each(_plain(one)) for one in value)
        _require(len(found) >= least)
        return found

    return Values(wanted, example, parse)


def texts(example: str, *, least: int = 0) -> Values:
    """A list of words."""
    return list_of(_text, "a list of words", example, least=least)


def _text(value: Given) -> str:
    _require(isinstance(value, str) and value != "" and "\0" not in value)
    return str(value)


def _is_path(value: Given) -> bool:
    return bool(_text(fspath(value)))  # which raise errors for anything else


def _is_called(value: object, *names: str) -> bool:
    """Whether a value is of a class of one of these names, which needs no import here."""
    return any(kind.__name__ in names for kind in type(value).__mro__)


def _place_or(*kinds: str) -> Callable[[Given], bool]:
    """Whether a value is of one of these classes, or else a path or a reference."""
    return lambda value: _is_called(value, *kinds) or _is_path(value)


def _flag(value: Given) -> bool:
    _require(isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)))
    return bool(value)


def _index(value: Given) -> int:
    _require(not isinstance(value, bool))
    return operator.index(value)


def _size(value: Given) -> tuple[int, int]:
    from vitconvert.config.field_values import parse_size

    _require(not isinstance(value, Set))
    _require(isinstance(value, str | int | float) or len(value) == 2)
    return parse_size(value)


def _is_dtype(value: Given) -> bool:
    import torch

    return value in (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def _dtype_name(value: Given) -> str:
    _require(isinstance(value, str) or _is_dtype(value))
    return _text(str(value).removeprefix("torch."))


def _is_device(value: Given) -> bool:
    import torch

    # On "meta", nothing is computed.
    return isinstance(value, str | torch.device) and not str(value).startswith("meta")


def _are_images(value: Given) -> bool:
    if isinstance(value, str | PathLike):
        return _is_path(value)
    several = isinstance(value, Iterable) and not isinstance(value, bytes | Mapping)
    return _is_called(value, "Image") or (several and not hasattr(value, "shape"))


def _places(value: Given) -> tuple[Given, ...]:
    found = (value,) if isinstance(value, str | PathLike) else tuple(value)
    _require(all(map(_is_path, found)))
    return found


def _words(value: Given) -> dict[str, object]:
    _require(isinstance(value, Mapping) and all(isinstance(name, str) for name in value))
    return {name: _plain(one) for name, one in value.items()}


def _numbers(value: Given) -> tuple[float, ...]:
    found = tuple(value) if hasattr(value, "__iter__") else (value,)
    _require(len(found) > 0)
    return tuple(number(-math.inf).parse(_plain(one)) for one in found)  # type: ignore[misc]


def _names(value: Given) -> dict[str, str]:
    _require(len(found := _words(value)) > 0)
    return {_text(mine): _text(theirs) for mine, theirs in found.items()}


def _tensors(value: Given) -> "dict[str, torch.Tensor]":
    found = dict(value)
    _require(all(isinstance(k, str) and _is_called(t, "Tensor") for k, t in found.items()))
    return found


_REFERENCE = "a path or a reference"
LOCATED = such(_place_or("Located"), _REFERENCE, "'model.safetensors'")
SOURCE = such(
    _place_or("Checkpoint", "Located"), f"{_REFERENCE}, or a checkpoint", "'model.safetensors'"
)
MODEL = such(
    _place_or("ViT", "Checkpoint", "Located"),
    f"{_REFERENCE}, a checkpoint, or a ViT of vitconvert",
    "'model.pth'",
)
COMPARED = such(
    lambda value: callable(value) or _place_or("Checkpoint", "Located")(value),
    f"{_REFERENCE}, a checkpoint, a module or a function",
    "'model.pth'",
)
PREPARING = such(
    _place_or("Preprocessing", "Checkpoint", "Located"),
    f"{_REFERENCE}, a checkpoint or a preprocessing",
    "'my-vit'",
)
ARRAYS = such(
    lambda value: isinstance(value, Mapping) or _is_path(value),
    "a path, or arrays by name",
    "'port.npz'",
)
BUILT = such(
    _place_or("ViTConfig", "Checkpoint", "Located"),
    f"{_REFERENCE}, a checkpoint or a ViTConfig",
    "'model.pth'",
)
LOADED = such(
    lambda value: callable(value) or isinstance(value, str),
    "a torch module, a function that makes one, or the name of a loader",
    "model",
)
KEPT = such(
    lambda value: isinstance(value, Mapping) or _place_or("Located")(value),
    f"{_REFERENCE}, or a state dict",
    "'model.pth'",
)
PLACES = Values("a path, or several in a list", "['photos']", _places)
NAMED_LAYERS = Values("a mapping of names of modules", "{'encoder.0': 'blocks.0'}", _names)
TEXT = Values("a word", "'timm'", _text)
PATH = such(_is_path, "a path", "'out'")
FLAG = Values("True or False", "True", _flag)
NUMBERS = Values("a number, or one for each channel", "[0.5, 0.5, 0.5]", _numbers)
SHARE = such(
    lambda value: not isinstance(value, bool) and 0 < value <= 1,
    "a number above 0 and at most 1",
    "0.875",
)
NAMES_OF_CLASSES = Values(
    "names of classes, or a file of them",
    "['cat', 'dog']",
    lambda value: (PATH if isinstance(value, str | PathLike) else texts("", least=1)).parse(value),
)
SIZE = Values("a size: pixels, or height and width", "(224, 320)", _size)
SAID = Values("a mapping of options of reading", "{'dialect': 'timm'}", _words)
FACTS = Values("a mapping of fields of ViTConfig", "{'num_heads': 3}", _words)
IMAGES = such(_are_images, "an image, a path or several of them", "['photos']")


VALUES: Mapping[str, Values] = {
    **dict.fromkeys(("source", "like"), SOURCE),
    **dict.fromkeys(("a", "b"), LOCATED),
    "model": MODEL,
    "state_dict": Values("tensors by name", "model.state_dict()", _tensors),
    **dict.fromkeys(("images", "calibrate"), IMAGES),
    "output": PATH,
    "golden": PATH,
    "theirs": ARRAYS,
    "python": PATH,
    **dict.fromkeys(("to", "kind", "runtime", "computed", "engine", "store", "command"), TEXT),
    **dict.fromkeys(("address", "image_column"), TEXT),
    **dict.fromkeys(("reading", "reading_a", "reading_b"), SAID),
    # How a model is changed, and computes.
    **dict.fromkeys(("image_size", "patch_size"), SIZE),
    "in_channels": whole_number(1, 2**16),
    "num_classes": whole_number(0, 2**24),
    **dict.fromkeys(("drop_rate", "embed_drop_rate", "attention_drop_rate"), number(0, 1)),
    **dict.fromkeys(("proj_drop_rate", "drop_path_rate"), number(0, 1)),
    "classes": list_of(
        lambda value: _text(value) if isinstance(value, str) else _index(value),
        "a list of classes, by index or name",
        "[3, 'tabby']",
        least=1,
    ),
    "dtype": such(_is_dtype, "a dtype of torch that models compute in", "torch.bfloat16"),
    "device": such(_is_device, "a device of torch", "'cuda'"),
    "allow": texts("['norm-eps']"),
    "max_shard_size": Values(
        "a number of bytes",
        "'5GB'",
        lambda value: (
            _text(value) if isinstance(value, str) else whole_number(1, 2**63).parse(value)
        ),
    ),
    "batch_size": whole_number(1, 2**20),
    "threads": whole_number(1, 2**12),
    "opset": whole_number(1, 1000),
    "preprocessing": such(
        lambda value: _is_called(value, "Preprocessing"),
        "a Preprocessing",
        "load_checkpoint(...).preprocessing",
    ),
    "labels": texts("['cat', 'dog']", least=1),
    "topk": whole_number(1),
    "max_image_pixels": whole_number(1),
    "layers": Values(
        "how many of the last blocks, or which",
        "[0, -1]",
        lambda value: (
            tuple(_index(_plain(one)) for one in value)
            if isinstance(value, Iterable)
            else _index(value)
        ),
    ),
    "foreground": number(0, 1),
    # How two are compared.
    "against": COMPARED,
    "tolerance": number(0),
    "seed": whole_number(0, 2**63 - 1),
    "batch": whole_number(1, 2**12),
    "dtypes": list_of(_dtype_name, "names of dtypes", "['float32']", least=1),
    # How a run goes.
    "keep": texts("['caption']"),
    "shard_rows": whole_number(1),
    "max_errors": whole_number(0),
    "workers": whole_number(0, 2**16),
    **dict.fromkeys(("cpus_per_worker", "gpus_per_worker"), number(0)),
    "only": list_of(_index, "two numbers: part K of N", "(2, 8)", least=2),
    **dict.fromkeys(("tell", "notify", "preprocess"), such(callable, "a function", "print")),
    **dict.fromkeys(
        (
            *("fast", "dynamic_size", "fast_preprocessing", "recursive", "tokens", "projected"),
            *("probabilities", "with_preprocessing", "int8", "image_only", "verify", "overwrite"),
            *("header", "background", "append", "retry_failed", "with_hash", "probes"),
        ),
        FLAG,
    ),
}
"""Option -> what it takes."""
