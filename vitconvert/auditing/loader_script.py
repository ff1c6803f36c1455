"""A library's own loader, as its users call it: imported, or run as a script by another Python.

As a script it needs torch and the library, and not vitconvert: another environment loads the
checkpoint, and what it holds comes back as a file. It runs on Python 3.8 and newer.
"""

from __future__ import annotations

import collections
import functools
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

TENSORS, ANSWER = "tensors.safetensors", "answer.json"
# Keys under which training scripts keep a state dict, for the library that has no loader of files.
_WRAPPERS = ("state_dict", "model_state_dict", "model_state", "model")
_DEEPEST = 3  # attributes on the way to a model


class NoLoader(Exception):
    """There is no such loader in this environment; what to do stands in the second argument."""


class Loading:
    """A call that loads a checkpoint.

    Attributes:
        call: What is called, as a user would write it.
        run: Does it, and returns what the loader returns.
        program: The library and its version, as "transformers 5.24.0"; "" of a user's function.
        notes: What was assumed.
    """

    def __init__(
        self, call: str, run: Callable[[], Any], program: str, notes: tuple[str, ...] = ()
    ) -> None:
        self.call, self.run, self.program, self.notes = call, run, program, notes


def loading(library: str, name: str, place: str) -> Loading:
    """Find a loader, and import what it needs, without calling it.

    Args:
        library: Of `LOADERS`, or "" for a user's own function.
        name: A class or a named architecture; or "package.module:function", "file.py:function".
        place: The file or directory that it loads.

    Raises:
        NoLoader: There is none.
    """
    return LOADERS[library](name, place) if library else _own(name, place)


def _transformers(name: str, folder: str) -> Loading:
    transformers = _imported("transformers")
    notes: tuple[str, ...] = ()
    if not name:
        try:
            config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            hint = "transformers:CLASS names a class; without config.json it loads none."
            raise NoLoader(f"{folder} has no config.json that can be read: {error}", hint) from None
        name = (config.get("architectures") or [""])[0]
        if not name or (not hasattr(transformers, name) and not config.get("auto_map")):
            why = f"transformers has no {name}" if name else "config.json names no class"
            name, notes = "AutoModel", (f"{why}: AutoModel was taken",)
    call = f"{name}.from_pretrained"
    run = functools.partial(_named(transformers, name).from_pretrained, folder)
    return Loading(call, run, _program("transformers"), notes)


def _diffusers(name: str, folder: str) -> Loading:
    kind = _named(_imported("diffusers"), name)
    run = functools.partial(kind.from_pretrained, folder)
    return Loading(f"{name}.from_pretrained", run, _program("diffusers"))


def _sentence_transformers(name: str, folder: str) -> Loading:
    kind = _named(_imported("sentence_transformers"), name or "SentenceTransformer")
    run = functools.partial(kind, folder)
    return Loading(kind.__name__, run, _program("sentence_transformers"))


def _timm(name: str, place: str) -> Loading:
    timm = _imported("timm")
    if not name:
        run = functools.partial(timm.create_model, f"local-dir:{place}", pretrained=True)
        return Loading("create_model('local-dir:...')", run, _program("timm"))
    if not timm.is_model(name):
        raise NoLoader(f"timm has no model {name}.", "timm.list_models('*part*') lists them.")
    run = functools.partial(timm.create_model, name, checkpoint_path=place)
    return Loading(f"create_model({name!r}, checkpoint_path=...)", run, _program("timm"))


def _open_clip(name: str, file: str) -> Loading:
    open_clip = _imported("open_clip")
    if name not in open_clip.list_models():
        raise NoLoader(f"open_clip has no model {name}.", "open_clip.list_models() lists them.")
    run = functools.partial(open_clip.create_model, name, pretrained=file)
    return Loading(f"create_model({name!r}, pretrained=...)", run, _program("open_clip"))


def _torchvision(name: str, file: str) -> Loading:
    """torchvision has no loader of files: `load_state_dict(strict=False)` is what people call."""
    models = _imported("torchvision").models
    if name not in models.list_models():
        raise NoLoader(f"torchvision has no model {name}.", "models.list_models() lists them.")

    def run() -> Any:
        import torch

        if file.endswith(".safetensors"):
            state = importlib.import_module("safetensors.torch").load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
        state = next((state[key] for key in _WRAPPERS if isinstance(state.get(key), dict)), state)
        model = models.get_model(name)
        own = model.state_dict()
        # They raise even with strict=False, and nothing else would be loaded.
        fitting = {n: t for n, t in state.items() if n not in own or own[n].shape == t.shape}
        for other in sorted(state.keys() - fitting.keys()):
            print(f"size mismatch for {other}")
        answer = model.load_state_dict(fitting, strict=False)
        if answer.missing_keys or answer.unexpected_keys:
            print(answer)
        return model

    call = f"get_model({name!r}).load_state_dict(..., strict=False)"
    return Loading(call, run, _program("torchvision"))


LOADERS: Mapping[str, Callable[[str, str], Loading]] = {
    "transformers": _transformers,
    "timm": _timm,
    "open_clip": _open_clip,
    "torchvision": _torchvision,
    "diffusers": _diffusers,
    "sentence_transformers": _sentence_transformers,
}


def _own(name: str, place: str) -> Loading:
    """A function of the user's, of a module or of a file."""
    module, _, path = name.rpartition(":")
    try:
        if module.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(module).stem, module)
            if spec is None or spec.loader is None or not Path(module).is_file():
                raise NoLoader(f"There is no file {module}.", "name it from here, or in full.")
            found: Any = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = found
            spec.loader.exec_module(found)
        else:
            found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        hint = "modules are looked for in the current directory and in the environment."
        raise NoLoader(f"{module} cannot be imported: {error}", hint) from error
    except AttributeError as error:
        raise NoLoader(f"{module} has no {path}: {error}", "name a function of it.") from error
    if not callable(found):
        raise NoLoader(f"{name} cannot be called.", "name a function that returns a model.")
    run = functools.partial(found, place) if _takes_a_place(found) else found
    return Loading(name, run, "")


def _takes_a_place(function: Callable[..., Any]) -> bool:
    """Whether a function takes an argument by its place."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of code in C
        return True
    by_place = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return any(one.kind in by_place for one in parameters)


def _imported(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = {"open_clip": "open_clip_torch"}.get(package, package).replace("_", "-")
        hint = f"pip install {name.replace('open-clip-torch', 'open_clip_torch')}"
        raise NoLoader(f"{package} cannot be imported: {error}", hint) from error


def _named(package: Any, name: str) -> Any:
    try:
        found = getattr(package, name)
        if not callable(getattr(found, "from_pretrained", found)):
            raise AttributeError(name)
    except (AttributeError, ImportError, RuntimeError) as error:  # RuntimeError: lazy imports
        why = "" if isinstance(error, AttributeError) else f": {error}"
        fact = f"{_program(package.__name__)} has no class {name}{why}"
        hint = f"name one: {package.__name__}:CLASS; or your own code, package.module:function."
        raise NoLoader(fact, hint) from error
    return found


def _program(package: str) -> str:
    version = getattr(sys.modules[package], "__version__", "")
    return f"{package} {version}".strip()


def model_in(result: Any) -> tuple[Any, str, list[str]]:
    """The model that a loader's result is or holds.

    Of several, the one with most parameters of those that are the least deep.

    Returns:
        The module, the way to it (".model", "[0]", "" if it is the result), and the ways to others
        that are as deep; None if there is no module.
    """
    import torch

    level = [("", result)]
    for _ in range(_DEEPEST + 1):
        models = [(way, one) for way, one in level if isinstance(one, torch.nn.Module)]
        if models:
            size = {way: sum(p.numel() for p in one.parameters()) for way, one in models}
            way, model = max(models, key=lambda pair: size[pair[0]])
            return model, way, [other for other, _ in models if other != way and size[other]]
        level = [(way + step, part) for way, one in level for step, part in _parts(one)]
    return None, "", []


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, (tuple, list)):
        yield from ((f"[{at}]", part) for at, part in enumerate(value))
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from ((f".{name}", part) for name, part in vars(value).items())


def plain(tensor: Any) -> Any:
    """The numbers that a tensor stands for, on the CPU: of one that is quantised or spread, too."""
    import torch

    tensor = tensor.detach()
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    if tensor.is_quantized or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        tensor = tensor.dequantize()
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).cpu().contiguous()


def save(model: Any, folder: str) -> dict[str, Any]:
    """Write a model's tensors into a folder; what stands in the answer about them."""
    import torch

    state = {n: t for n, t in model.state_dict().items() if isinstance(t, torch.Tensor)}
    buffers = dict(model.named_buffers())
    left = {n: t for n, t in buffers.items() if n not in state and t.is_meta}
    meta = {n: t for n, t in {**state, **left}.items() if t.is_meta}
    tensors: dict[str, Any] = {}
    same: dict[str, str] = {}
    first: dict[object, str] = {}
    for name, tensor in state.items():
        if tensor.is_meta:
            continue
        made = plain(tensor)
        where = (made.data_ptr(), tuple(made.shape), made.dtype)
        if made.numel() and where in first:
            same[name] = first[where]  # tied weights are written once
        else:
            first[where], tensors[name] = name, made
    try:
        write = importlib.import_module("safetensors.torch").save_file
        storages = collections.Counter(one.untyped_storage().data_ptr() for one in tensors.values())
        for name, one in tensors.items():
            if storages[one.untyped_storage().data_ptr()] > 1:  # two views, which it refuses
                tensors[name] = one.clone()
        write(tensors, str(Path(folder, TENSORS)))
    except ImportError:
        torch.save(tensors, str(Path(folder, TENSORS)))
    return {
        "same": same,
        "meta": {n: [list(t.shape), str(t.dtype).replace("torch.", "")] for n, t in meta.items()},
        "parameters": [name for name, _ in model.named_parameters(remove_duplicate=False)],
    }


def _answer(asked: Mapping[str, str]) -> dict[str, Any]:
    try:
        one = loading(asked["library"], asked["name"], asked["place"])
    except NoLoader as error:
        return {"no loader": error.args}
    answer: dict[str, Any] = {"call": one.call, "program": one.program, "notes": one.notes}
    try:
        result = one.run()
    except Exception as error:  # whatever it is, it is the loader's
        return {**answer, "raised": f"{type(error).__name__}: {error}"}
    model, way, others = model_in(result)
    if model is None:
        return {**answer, "returned": type(result).__name__}
    about = {"way": way, "others": others, "title": type(model).__name__}
    return {**answer, **about, **save(model, asked["folder"])}


if __name__ == "__main__":
    here = str(Path(__file__).resolve().parent)  # whose modules are vitconvert's
    sys.path[:] = [str(Path.cwd()), *(path for path in sys.path if path != here)]
    asked = json.loads(sys.argv[1])
    answer = json.dumps(_answer(asked))
    Path(asked["folder"], ANSWER).write_text(answer, encoding="utf-8", newline="\n")
