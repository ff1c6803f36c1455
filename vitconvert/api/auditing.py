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
    """Find out which tensors of a file are in a model, for any code that loads it.

    Tensors are found by their numbers, not by their names. They may be cast, transposed, reshaped,
    joined or split. Rows may have another order, and positions and kernels may be resampled. It
    works for any model, not only for ViTs. No code in the file is run.

    Args:
        model: One of three: a model that is loaded in the block of a `with` statement; a function
            that returns a model, which is called at once; or the name of a loader, as for
            `vitconvert audit --by`: "transformers", "timm:NAME", "package.module:load".
        file: A path, a directory or another reference, as for `load_model`; or a state dict.
        allow: Patterns of parameters that may be new, such as "classifier.*".
        python: The Python interpreter for a loader by name; by default, this one.

    Returns:
        The audit. For a model, it is a context manager; for the others, it is finished. It prints
        as one screen. `complete` says whether every parameter holds the file's numbers. `landed`,
        `untouched`, `changed`, `misplaced`, `undecidable` and `unused` have the details.

    Raises:
        UsageError: There is no model, no such loader, or no such interpreter.
        VitConvertError: The file does not exist or cannot be read, or the loader raises an error.

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
