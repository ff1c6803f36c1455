"""Imports of outside programs: what one process leaves out, and what goes on beside other work.

timm's and transformers' models are there in half the time without torch's compiler, which they only
mark functions for, and without what transformers imports wherever it is installed: of torch, all
that spreads a model over machines.
"""

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from vitconvert.programs.isolation import silent

# Installed or not, it computes the same: with them it trains, quantises or spreads a model.
_LOOKED_FOR = ("accelerate", "peft", "scipy", "sklearn", "torchao")
# Modules that take long, of packages that import little of themselves.
_SLOW = {"transformers": "transformers.modeling_utils"}
_COMPILER = ("torch._dynamo", "torch._dynamo.utils")


def import_leanly() -> None:
    """Leave out, in this process from now on, what no proof of a conversion runs."""
    torch = importlib.util.find_spec("torch")
    if torch is None or any(name in sys.modules for name in _COMPILER):
        return
    package, utils = (_Unopened(name) for name in _COMPILER)
    package.__path__ = [f"{place}/_dynamo" for place in torch.submodule_search_locations or ()]
    vars(package).update(disable=_unmarked, allow_in_graph=_same, assume_constant_result=_same)
    vars(utils).update(
        is_compile_supported=lambda device: utils.really("is_compile_supported")(device)
    )
    sys.modules.update({package.__name__: package, utils.__name__: utils})
    sys.meta_path.insert(0, _Alone())


class _Unopened(ModuleType):
    """A module that is imported when more of it is asked for than marks on functions."""

    def really(self, name: str) -> Callable[..., object]:
        """What the module has by this name, in its place from now on."""
        for other in _COMPILER:
            if isinstance(sys.modules.get(other), _Unopened):
                del sys.modules[other]
        found: Callable[..., object] = getattr(import_module(self.__name__), name)
        return found

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # which the import system tries
            raise AttributeError(name)
        return self.really(name)


def _same(function: object) -> object:
    return function


def _unmarked(function: object = None, *_: object, **__: object) -> object:
    """`torch._dynamo.disable`, with or without a function, where nothing is compiled."""
    return _same if function is None else function


class _Alone(MetaPathFinder):
    """Imports modules of transformers as if nothing that it looks for were installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As the usual finder, but that the module does not find certain packages as it runs."""
        if fullname.partition(".")[0] != "transformers":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec and spec.loader:
            run = spec.loader.exec_module

            def run_alone(module: ModuleType) -> None:
                import torch

                torch.distributed.is_available = bool  # False, as where it was not built
                with _hidden(_LOOKED_FOR):
                    run(module)
                if fullname == "transformers.utils.import_utils":
                    vars(module)["is_torch_flex_attn_available"] = bool  # which imports sympy

            spec.loader.exec_module = run_alone  # type: ignore[method-assign]
        return spec


@contextmanager
def _hidden(packages: Sequence[str]) -> Iterator[None]:
    """Within the block, packages that are not imported yet are not found."""
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def import_all(packages: Iterable[str]) -> None:
    """Import packages silently, with what of them takes long.

    What is wrong with one of them shows where it is used.
    """
    with silent("transformers"), silent("torch.utils._pytree"), suppress(Exception):
        for package in packages:
            import_module(_SLOW.get(package, package))
