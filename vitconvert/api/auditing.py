"""Whether code that loads a file into a model did."""

from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING

from vitconvert.arguments import KEPT, LOADED, checked

if TYPE_CHECKING:
    from torch import nn

    from vitconvert.auditing.audit import LoadAudit


@checked(model=LOADED, file=KEPT)
def audit_load(
    model: "nn.Module | Callable[[], nn.Module]",
    file: "str | PathLike[str] | Mapping[str, object]",
) -> "LoadAudit":
    """Find out which tensors of a file landed in a model, whatever code loads it.

    Tensors are found by their numbers and not by their names: as they are, cast, transposed,
    reshaped, joined, split, or with rows in another order; positions and kernels resampled. No
    table is needed, and the model need not be a ViT. The file is read, never run.

    Args:
        model: A model that the block of a `with` loads into; or a function that makes and returns
            one, which is called at once.
        file: A path, a directory or another reference, as for `load_model`; or a state dict.

    Returns:
        The audit: a context manager for a model, finished for a function. It prints as one screen.
        `complete` says whether every parameter holds what the file has for it; `landed`,
        `untouched`, `changed`, `misplaced`, `undecidable` and `unused` say where each is.

    Raises:
        UsageError: There is no model.
        VitConvertError: The file is not there, or cannot be read.

    Example:
        >>> model = vitconvert.load_model("my-vit")
        >>> with vitconvert.audit_load(model, "my-vit/model.safetensors") as audit:
        ...     answer = model.load_state_dict(model.state_dict(), strict=False)
        >>> audit.complete
        True
    """
    from vitconvert.auditing.audit import audit

    return audit(model, file)
