"""Convert any pretrained Vision Transformer to any library, and verify that outputs stay equal.

    >>> import vitconvert
    >>> model = vitconvert.load_model("ViT-B_16.npz")     # doctest: +SKIP
    >>> logits = model(images)                            # doctest: +SKIP

Importing this package is fast. `vitconvert.api`, which has all public names, is imported when the
first of them is used, and torch when a function needs it.
"""

import importlib

from vitconvert.version import VERSION

__version__ = VERSION

# Type checkers know the name. Importing `typing` for it would take longer than all the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from vitconvert.api import *  # noqa: F403


def __getattr__(name: str) -> object:
    # Python asks for these while it looks for submodules and the like.
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module 'vitconvert' has no attribute {name!r}")
    api = importlib.import_module("vitconvert.api")
    if name != "__all__" and name not in api.__all__:
        instead = "; audit_load audits a load, verify(..., dtypes=['float16']) lower precision"
        raise AttributeError(
            f"module 'vitconvert' has no attribute {name!r}{instead if name == 'audit' else ''}"
        )
    value = getattr(api, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    special = (name for name in globals() if name.startswith("__"))
    return sorted({*special, *__getattr__("__all__")})  # type: ignore[misc]
