"""Whether code that loads a file into a model did."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

from vitconvert.arguments import KEPT, LOADED, checked
from vitconvert.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from vitconvert.auditing.audit import LoadAudit
    from vitconvert.sources import Located


@checked(model=LOADED, file=KEPT)
def audit_load(
    model: "nn.Module | Callable[[], nn.Module] | str",
    file: "str | PathLike[str] | Located | Mapping[str, object]",
    *,
    allow: Sequence[str] = (),
    python: "str | PathLike[str] | None" = None,
) -> "LoadAudit":
    """Find out which tensors of a file landed in a model, whatever code loads it.

    Tensors are found by their numbers and not by their names: as they are, cast, transposed,
    reshaped, joined, split, or with rows in another order; positions and kernels resampled. No
    table is needed, and the model need not be a ViT. The file is read, never run.

    Args:
        model: A model that the block of a `with` loads into; or a function that makes and returns
            one, which is called at once; or the name of a loader, which loads the file, as
            `vitconvert audit --by` takes it: "transformers", "timm:NAME", "package.module:load".
        file: A path, a directory or another reference, as for `load_model`; or a state dict.
        allow: Patterns of parameters that may be new, as "classifier.*".
        python: The interpreter that a loader by name runs in; by default, this one.

    Returns:
        The audit: a context manager for a model, else finished. It prints as one screen.
        `complete` says whether every parameter holds what the file has for it; `landed`,
        `untouched`, `changed`, `misplaced`, `undecidable` and `unused` say where each is.

    Raises:
        UsageError: There is no model, no such loader, or no such interpreter.
        VitConvertError: The file is not there, or cannot be read; or the loader raises.

    Example:
        >>> model = vitconvert.load_model("my-vit")
        >>> with vitconvert.audit_load(model, "my-vit/model.safetensors") as audit:
        ...     answer = model.load_state_dict(model.state_dict(), strict=False)
        >>> audit.complete
        True
    """
    if isinstance(model, str):
        if isinstance(file, Mapping):
            hint = "save it, or pass the model that it is loaded into."
            raise UsageError("A loader by name loads a file, and no state dict.", hint=hint)
        from vitconvert.auditing.loaders import audit_loader

        return audit_loader(model, file, python=python, allow=allow)
    if python is not None:
        hint = "name the loader: audit_load('transformers', ..., python=...)."
        raise UsageError("Another interpreter runs loaders by name alone.", hint=hint)
    from vitconvert.auditing.audit import audit

    return audit(model, file, allow=allow)
