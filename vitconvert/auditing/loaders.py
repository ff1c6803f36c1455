"""Audits of a load by a library's own loader or a user's function, here or in another Python.

`loader_script` has the loaders. Here is which files each of them reads, how what it prints is
heard, and the way to another interpreter and back.
"""

import contextlib
import io
import json
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from vitconvert.auditing import loader_script
from vitconvert.auditing.audit import LoadAudit
from vitconvert.auditing.held import LoadedTensors, Model
from vitconvert.auditing.loader_script import ANSWER, LOADERS, TENSORS, NoLoader
from vitconvert.auditing.report import admitted
from vitconvert.auditing.tensors import Read, Tensors, tensors_of
from vitconvert.documents import read_object
from vitconvert.errors import UsageError, VitConvertError, as_typed, nearest, what_was_raised
from vitconvert.file_formats import INDEX
from vitconvert.settings import plain_arithmetic
from vitconvert.sources import Located, locate

# What each library reads in a directory, the first that is there (transformers 5.24, timm 1.0.31,
# diffusers 0.35); others are asked with a file.
_OF_HF = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
_OF_TIMM = (
    *("model.safetensors", "pytorch_model.bin", "pytorch_model.pth", "model.pth"),
    *("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors"),
    *("open_clip_pytorch_model.bin", "open_clip_pytorch_model.pth"),
)
_FIRST = {
    "transformers": _OF_HF,
    "sentence_transformers": _OF_HF,
    "diffusers": tuple(
        re.sub(r"^(pytorch_)?model", "diffusion_pytorch_model", name) for name in _OF_HF
    ),
    "timm": _OF_TIMM,
}
_LOADERS = {"loaders": ", ".join([*LOADERS, "package.module:function", "file.py:function"])}
_NAMED = ("timm", "open_clip", "torchvision", "diffusers")  # that a NAME may or must follow
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PATIENCE = 2  # lines of an exception or of a broken environment that messages show


@dataclass(frozen=True, kw_only=True)
class Loader:
    """What `--by` names: a library, and a class or an architecture of it; or a user's function.

    Attributes:
        library: Of `loader_script.LOADERS`; "" for a function.
        name: What follows; "" if nothing does.
    """

    library: str
    name: str

    @property
    def reads_directories(self) -> bool:
        """Whether it is asked with a directory, where it chooses a file."""
        return self.library in _FIRST and (self.library != "timm" or not self.name)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What a loader made.

    Attributes:
        model: The model, or its tensors.
        by: Library, version and call.
        notes: What was assumed.
        said: What it printed and logged, line by line.
    """

    model: Model
    by: str
    notes: tuple[str, ...]
    said: tuple[str, ...]


def parse_loader(text: str) -> Loader:
    """Read what `--by` names.

    Raises:
        UsageError: It names no loader.
    """
    library, colon, name = text.partition(":")
    if library in LOADERS:
        if not name and (library in ("open_clip", "torchvision", "diffusers") or colon):
            what = "CLASS" if library == "diffusers" else "NAME"
            raise UsageError(
                f"{text!r} does not say which model of {library} loads.",
                hint=f"write {library}:{what}.",
            )
        return Loader(library=library, name=name)
    module, colon, function = text.rpartition(":")
    if colon and module and function:
        return Loader(library="", name=text)
    near = nearest(library, LOADERS, 1)
    raise UsageError(
        f"There is no loader {text!r}.",
        evidence=_LOADERS,
        hint=f"did you mean {near[0]}?" if near else "your own code is package.module:function.",
    )


def no_loader_named(located: Located) -> UsageError:
    """The error of an audit that does not say what loads; it names what may."""
    weights = located.weights
    folder = weights if weights is None or weights.is_dir() else weights.parent
    config = folder / "config.json" if folder else None
    names = read_object(config).get("architectures") if config and config.is_file() else None
    hint = "name the program that you load it with."
    if isinstance(names, list) and names:
        hint = f"--by transformers, whose class {names[0]} config.json names."
    return UsageError("--by does not say what loads the checkpoint.", evidence=_LOADERS, hint=hint)


def audit_loader(
    by: str,
    file: str | PathLike[str] | Located,
    *,
    python: str | PathLike[str] | None = None,
    allow: Sequence[str] = (),
) -> LoadAudit:
    """Load a checkpoint as `by` says, and look for its tensors in what was loaded.

    Raises:
        UsageError: There is no such loader, or no such Python; exit code 2.
        VitConvertError: The loader raises, or returns no model; the file cannot be read.
    """
    loader, located = parse_loader(by), locate(file)
    with tempfile.TemporaryDirectory(prefix="vitconvert-audit-") as folder:
        place, files = _place(loader, located, Path(folder))
        _require_config(loader, place, files[0])
        with plain_arithmetic():
            source = _joined(files)
        if python is None:
            loaded = _load_here(loader, place)
        else:
            loaded = _load_elsewhere(loader, place, Path(folder), Path(python))
        audit = LoadAudit(loaded.model, source, allow=allow)
        audit.by, audit.said = loaded.by, loaded.said
        audit.notes = (*located.notes, *loaded.notes)
        return audit.look()


def _place(loader: Loader, located: Located, scratch: Path) -> tuple[Path, tuple[Path, ...]]:
    """What the loader is called with, and the files that it reads there."""
    weights = located.weights
    first = _FIRST.get(loader.library, ())
    if weights is not None and weights.is_dir():
        here = next((weights / name for name in first if (weights / name).is_file()), None)
        if loader.library == "sentence_transformers":
            files = _of_modules(weights) or (here or located.weights_file(),)
        else:
            files = (here or located.weights_file(),)
        takes_directory = loader.reads_directories or not loader.library
        return (weights if takes_directory else files[0]), files
    file = located.weights_file()
    if not loader.library and located.repo and located.folder:
        return located.folder, (file,)
    if not loader.reads_directories:
        return file, (file,)
    there = [name for name in first if (file.parent / name).is_file()]
    if there and there[0] == file.name:
        return file.parent, (file,)
    return _alone(file, first, scratch / "alone"), (file,)


def _require_config(loader: Loader, place: Path, file: Path) -> None:
    """timm and transformers build the model of a directory by its config.json.

    Raises:
        UsageError: There is none. transformers also reads adapter_config.json.
    """
    hints = {
        "timm": "--by timm:NAME, with timm's name of the model, loads a file alone.",
        "transformers": "put the model's config.json beside the weights.",
    }
    if loader.library not in hints or not loader.reads_directories:
        return
    if not any((place / name).is_file() for name in ("config.json", "adapter_config.json")):
        raise UsageError(
            f"{loader.library} needs a config.json beside {file.name}.",
            hint=hints[loader.library],
        )


def _alone(file: Path, names: Sequence[str], folder: Path) -> Path:
    """A directory with one file of weights, by a name that a library looks for, and its neighbours.

    Other weights lie beside it, which the library would read instead.
    """
    folder.mkdir()
    if file.name.endswith(INDEX):
        of_torch = "safetensors" not in file.name
        usual = [one for one in names if one.endswith(INDEX)]
        name = usual[of_torch] if usual else file.name
        for shard in {*map(str, read_object(file)["weight_map"].values())}:
            (folder / shard).symlink_to((file.parent / shard).resolve())
    else:  # whatever torch's files are called
        endings = (".safetensors",) if file.suffix == ".safetensors" else (".bin", ".pth")
        name = next(one for one in names if one.endswith(endings))
    (folder / name).symlink_to(file.resolve())
    for other in file.parent.iterdir():
        if other.suffix in (".json", ".txt", ".model") and not other.name.endswith(INDEX):
            (folder / other.name).symlink_to(other.resolve())
    return folder


def _of_modules(folder: Path) -> tuple[Path, ...]:
    """The weights of each module that a folder of sentence_transformers lists."""
    listed = folder / "modules.json"
    if not listed.is_file():
        return ()
    modules = json.loads(listed.read_text(encoding="utf-8"))
    places = [folder / str(one["path"]) for one in modules]
    return tuple(
        next(place / name for name in _OF_HF if (place / name).is_file())
        for place in places
        if any((place / name).is_file() for name in _OF_HF)
    )


def _joined(files: Sequence[Path]) -> Tensors:
    """The tensors of several files as those of one; each file after the first by its folder."""
    first, *others = map(tensors_of, files)
    if not others:
        return first
    of_name = {name: (0, name) for name in first.names}
    for at, (path, one) in enumerate(zip(files[1:], others, strict=True), 1):
        of_name |= {f"{path.parent.name}.{name}": (at, name) for name in one.names}

    @contextmanager
    def opened() -> Iterator[Read]:
        with ExitStack() as stack:
            reads = [stack.enter_context(one.opened()) for one in (first, *others)]
            yield lambda name: reads[of_name[name][0]](of_name[name][1])

    title = f"{first.title} and {len(others)} more"
    return replace(first, title=title, names=tuple(of_name), opened=opened, dequantised=None)


def _load_here(loader: Loader, place: Path) -> Loaded:
    """In this process."""
    with _current_directory_on_path(), _heard() as said:
        try:
            one = loader_script.loading(loader.library, loader.name, fspath(place))
        except NoLoader as error:
            raise _no_loader(*error.args) from error
        try:
            result = one.run()
        except Exception as error:  # whatever it is, it is the loader's
            raise _raised(one.call, what_was_raised(error), said()) from error
        model, way, others = loader_script.model_in(result)
    if model is None:
        raise _no_model(one.call, type(result).__name__)
    assert isinstance(model, nn.Module)
    by = _by(one.program, one.call)
    return Loaded(model=model, by=by, notes=(*one.notes, *_beside(way, others)), said=said())


def _load_elsewhere(loader: Loader, place: Path, folder: Path, python: Path) -> Loaded:
    """In another interpreter, which writes what it loaded into a folder."""
    asked = {"library": loader.library, "name": loader.name}
    asked |= {"place": fspath(place.absolute()), "folder": fspath(folder)}
    # As a shell finds it. A link is not followed: environments are known by it.
    program = (
        fspath(python.absolute()) if python.exists() else shutil.which(python) or fspath(python)
    )
    command = [program, fspath(Path(loader_script.__file__)), json.dumps(asked)]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            check=False,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise UsageError(
            f"{python} is no Python that can be run: {error.strerror}.",
            hint="name the interpreter of an environment: --python ENVIRONMENT/bin/python.",
        ) from error
    said = _lines(done.stdout)
    written = folder / ANSWER
    text = written.read_text(encoding="utf-8") if written.is_file() else ""
    answer = json.loads(text) if text else {}
    if not answer:
        raise UsageError(
            f"{python} did not get as far as loading (exit code {done.returncode}).",
            details=said[-_PATIENCE:],
            hint="it needs torch, and the library that loads "
            f"(`{as_typed(program)} -m pip install torch`).",
        )
    if "no loader" in answer:
        fact, hint = answer["no loader"]
        installed = f"{as_typed(program)} -m pip install"  # another pip would install elsewhere
        raise _no_loader(f"{fact.rstrip('.')} ({python}).", hint.replace("pip install", installed))
    if "raised" in answer:
        raise _raised(answer["call"], answer["raised"], said)
    if "title" not in answer:
        raise _no_model(answer["call"], answer["returned"])
    return Loaded(
        model=_read(answer, folder),
        by=f"{_by(answer['program'], answer['call'])} of {python}",
        notes=(*answer["notes"], *_beside(answer["way"], answer["others"])),
        said=said,
    )


def _read(answer: Any, folder: Path) -> LoadedTensors:
    """The tensors of another process."""
    path = folder / TENSORS
    try:
        tensors = load_file(path)
    except Exception:  # written by torch, as that environment has no safetensors
        tensors = torch.load(path, weights_only=True, mmap=True)
    tensors |= {name: tensors[first] for name, first in answer["same"].items()}
    for name, (shape, dtype) in answer["meta"].items():
        tensors[name] = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
    parameters = frozenset(answer["parameters"])
    return LoadedTensors(title=answer["title"], tensors=tensors, parameters=parameters)


def _by(program: str, call: str) -> str:
    """The library and its call; where that names the class and no more, reports say it already."""
    if program and call.endswith(".from_pretrained"):
        return program
    return f"{program}, {call}" if program else call


def _no_loader(fact: str, hint: str) -> UsageError:
    return UsageError(" ".join(fact.split()), hint=hint)


def _raised(call: str, what: str, said: Sequence[str]) -> VitConvertError:
    lines = [line.strip() for line in what.splitlines() if line.strip()][:_PATIENCE]
    evidence = {"loader": call, "raised": "\n".join(lines)}
    if told := admitted(said)[:_PATIENCE]:
        evidence["said"] = "\n".join(told)
    error = VitConvertError(
        "The loader raised, so there is no model to audit.",
        evidence=evidence,
        details=said,
        hint="a function that leaves out what does not fit is audited: --by file.py:function.",
    )
    error.folded = True
    return error


def _no_model(call: str, kind: str) -> VitConvertError:
    return UsageError(
        "The loader returned no model.",
        evidence={
            "loader": call,
            "returned": kind,
            "expected": "a torch.nn.Module, or what has one",
        },
        hint="return the model that the code loads.",
    )


def _beside(way: str, others: Sequence[str]) -> Iterator[str]:
    if way:
        beside = f"; not {', '.join(others)}" if others else ""
        yield f"audited is {way} of what the loader returned{beside}"


@contextmanager
def _current_directory_on_path() -> Iterator[None]:
    """As for `python -m`: a user's own modules are here."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)


@contextmanager
def _heard() -> Iterator[Any]:
    """Keep what is printed and logged; what is yielded gives it, line by line."""
    text, err = io.StringIO(), sys.stderr
    streams = [(handler, handler.stream) for handler in _handlers()]
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        for handler, _ in streams:
            handler.stream = text  # setStream would flush one that was closed
        try:
            yield lambda: _lines(text.getvalue())
        finally:
            # Packages that were imported meanwhile have made some, too.
            before = dict(streams)
            for handler in _handlers():
                if handler.stream is text:
                    handler.stream = before.get(handler, err)


def _handlers() -> Iterator["logging.StreamHandler[Any]"]:
    """All that write to a terminal, and to no file."""
    for logger in (logging.getLogger(), *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            yield from (one for one in logger.handlers if type(one) is logging.StreamHandler)


def _lines(text: str) -> tuple[str, ...]:
    """What was said, without colours and bars of progress."""
    lines = (line.rsplit("\r", 1)[-1].rstrip() for line in _COLOURS.sub("", text).splitlines())
    return tuple(line for line in lines if line and "it/s" not in line and "s/it" not in line)
