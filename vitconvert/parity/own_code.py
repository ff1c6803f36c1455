"""A user's own model, built by the user's own code: what `verify --module` names."""

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from vitconvert.checkpoint import Checkpoint
from vitconvert.errors import UsageError, nearest, some, what_was_raised

_EXAMPLE = "team.models:build_vit"


def build_own_model(reference: str) -> Callable[..., Any]:
    """Import a model, or call what builds it without arguments. This runs the user's code.

    Args:
        reference: "module:name", where the module is found from the working directory as well. It
            names an `nn.Module`, a class or function that returns one when it is called without
            arguments, or a function that returns a function of images.

    Raises:
        UsageError: There is none, or its code raised an error.
    """
    module_name, colon, path = reference.partition(":")
    if not (module_name and colon and path):
        raise UsageError(f"{reference!r} names no model.", hint=f"write it as {_EXAMPLE}.")
    found = _found(module_name, path)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise UsageError(f"{reference} is neither a model nor a function that builds one.")
    try:
        built = found()
    except Exception as error:  # it may be any, since the code is not ours
        raise _raised(f"{reference}() raised an error.", error) from error
    if not callable(built):
        raise UsageError(
            f"{reference}() returned no model.",
            evidence={"returned": type(built).__name__, "expected": "an nn.Module or a function"},
        )
    return cast(Callable[..., Any], built)


def _found(module_name: str, path: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # whatever runs as it is imported
        raise _raised(f"{module_name} cannot be imported.", error) from error
    for name in path.split("."):
        if not hasattr(found, name):
            like = nearest(name, vars(found), 3) if hasattr(found, "__dict__") else []
            raise UsageError(
                f"{module_name} has no {path!r}.",
                evidence={"names like it": ", ".join(like) or "none"},
            )
        found = getattr(found, name)
    return found


def _raised(fact: str, error: Exception) -> UsageError:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return UsageError(
        fact,
        evidence={
            "raised": what_was_raised(error),
            "in": f"{Path(frame.filename).name}, line {frame.lineno}",
        },
    )


def load_into(model: Callable[..., Any], checkpoint: Checkpoint) -> str:
    """Give a module the tensors of a checkpoint, if it has their names; what was done, in words.

    Args:
        model: A module of the user's. It is changed.
        checkpoint: Of the same spelling, or of another: then the module keeps its weights.

    Raises:
        UsageError: The module has some of the names, or other shapes.
    """
    kept = "it keeps the weights that it was built with"
    if not isinstance(model, nn.Module):
        return f"a function: {kept}"
    tensors = _tensors_for(model, checkpoint)
    names = model.state_dict().keys()
    if not names & tensors.keys():
        return f"the checkpoint has none of its tensors' names: {kept}"
    lacking, left = sorted(names - tensors.keys()), sorted(tensors.keys() - names)
    if lacking or left:
        raise UsageError(
            "The module and the checkpoint do not have the same tensors.",
            evidence={
                "file": checkpoint.located.reference,
                **({"only in the module": some(lacking)} if lacking else {}),
                **({"only in the checkpoint": some(left)} if left else {}),
            },
        )
    try:
        model.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        problems = [line.strip() for line in str(error).splitlines()[1:]]
        fact = "The module does not take the tensors of the checkpoint."
        raise UsageError(fact, details=problems) from None
    return f"the {len(tensors)} tensors of the checkpoint were loaded into it, all by name"


def _tensors_for(model: nn.Module, checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The tensors of a file by its own names, with a wrapper's prefix if the module has it too.

    Those that play no part in a ViT are left out if the module has no place for them.
    """
    names, weights = model.state_dict().keys(), checkpoint.weights
    keys = list(weights.recognised.binding.shapes)
    prefix = weights.recognised.prefix
    if not any(prefix + key in names for key in keys):
        prefix = ""
    kept = [key for key in keys if prefix + key in names or key not in checkpoint.ledger.ignored]
    return {prefix + key: weights.read(key) for key in kept}
