"""What training programs keep beside the weights: best scores, directories, dates, histories.

An unpickler would call numpy, pathlib and datetime to make such values again. Nobody needs them
here, so their names stand for what this file has: a mapping, a list, or a `Note` of the kind.
Nothing else is called, in our reader of pickles as in torch's.

Source: what `__reduce__` of these classes gives in protocol 2, the one that torch.save writes, in
Python 3.11 and numpy 2.4; other releases have other names for some of the modules.
"""

from collections.abc import Callable, Mapping


class Note:
    """A value beside the weights of which only the kind is told: the name of the class."""

    def __init__(self, *_: object) -> None:
        """Take whatever the value was made of."""

    def __setstate__(self, _: object) -> None:
        """Take whatever was set in it afterwards."""

    def __repr__(self) -> str:
        """The kind."""
        return type(self).__name__


class Numbers(Note):
    """An array or a scalar of numpy, which among tensors may be meant as a weight."""


def _mapping(*_: object) -> dict[object, object]:
    return {}  # the items are set in it one by one


def _list(*_: object) -> list[object]:
    return []


def _kind(name: str, of: type[Note] = Note) -> type[Note]:
    return type(name, (of,), {})


_NUMPY = ("numpy._core.multiarray", "numpy.core.multiarray")  # since numpy 2, and before
_PATHLIB = ("pathlib", "pathlib._local")  # the latter in Python 3.13
_PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")

NOTES: Mapping[str, Callable[..., object]] = {
    **{f"{module}.scalar": _kind("numpy scalar", Numbers) for module in _NUMPY},
    **{f"{module}._reconstruct": _kind("numpy array", Numbers) for module in _NUMPY},
    "numpy.ndarray": _kind("ndarray"),  # the class: `_reconstruct` is given it
    "numpy.dtype": _kind("numpy dtype"),
    **{f"{module}.{path}": _kind("path") for module in _PATHLIB for path in _PATHS},
    **{f"datetime.{c}": _kind(c) for c in ("datetime", "date", "time", "timedelta", "timezone")},
    "builtins.frozenset": _kind("frozenset"),
    "builtins.bytes": _kind("bytes"),  # empty ones; others are encoded text
    "torch.device": _kind("device"),
    "torch.Size": tuple,
    "collections.deque": _list,
    "collections.defaultdict": _mapping,
    # what a defaultdict fills its gaps with; protocol 2 calls an int `long`
    **{f"builtins.{name}": _kind(name) for name in ("int", "long", "float", "list", "dict")},
}
"""What to call for a name that a pickle uses."""
