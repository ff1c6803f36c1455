"""What a process of the command line changes of Python and of other packages, to be done sooner.

Everything here only saves time, and `VITCONVERT_PLAIN_IMPORTS=1` leaves it out. Seconds are of a
processor, of the 7.6 that `vitconvert convert` then takes from timm's names of a ViT-Ti to
transformers', with the proof; all pieces together leave 3.2 (Python 3.11, medians of four runs).
"""

import atexit
import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import NoReturn

# Releases that were tried, by modules that are changed. Others are imported as they are.
TESTED = {"torch": ("2.14.1",), "transformers": ("5.24.0",)}
# Installed or not, it computes the same: with them it trains, quantises or spreads a model.
_LOOKED_FOR = ("accelerate", "peft", "scipy", "sklearn", "torchao")
_COMPILER = ("torch._dynamo", "torch._dynamo.utils")


def collect_seldom() -> None:
    """Search for garbage less often: importing torch makes many objects that stay. Gains 0.6 s."""
    if not _plain():
        gc.set_threshold(100_000, 50, 100)


def import_leanly() -> None:
    """Leave out, in this process from now on, what no proof of a conversion runs."""
    if not _plain() and all(map(is_tested, TESTED)):
        _leave_out_compiler()
        _leave_out_company()


def end(code: int) -> NoReturn:
    """End the process, whose work is done, without taking apart what it imported. Gains 1.0 s.

    Nor are threads ended: one within torch's C++ that asks for Python's lock meanwhile brings the
    whole process down ("terminate called without an active exception").
    """
    if _plain():
        sys.exit(code)
    atexit._run_exitfuncs()  # of Ray, multiprocessing, temporary directories
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def is_tested(package: str) -> bool:
    """Whether a package is not there, or of a release that was tried."""
    from importlib.metadata import PackageNotFoundError, version  # late: `--help` needs none

    try:
        return version(package).partition("+")[0] in TESTED[package]  # +cpu, +cu130
    except PackageNotFoundError:
        return True


def _plain() -> bool:
    return bool(os.environ.get("VITCONVERT_PLAIN_IMPORTS"))


def _leave_out_compiler() -> None:
    """Import torch's compiler when it is used: others only mark functions for it. Gains 1.0 s."""
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


def _leave_out_company() -> None:
    """Import transformers as where what it looks for is not installed. Gains 2.0 s.

    0.8 of them are of torch's modules that spread a model over machines, 0.4 of flex attention.
    """
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
