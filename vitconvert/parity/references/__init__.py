"""Independent implementations, one builder for each ecosystem.

Each makes the real package's model from the package's own configuration where there is one, and
loads the checkpoint's tensors in their own names, strictly: nothing here goes through our tables.
"""

from collections.abc import Callable, Mapping

from vitconvert.checkpoint import Checkpoint
from vitconvert.errors import NotRepresentable, VitConvertError
from vitconvert.parity.references.huggingface import huggingface_reference
from vitconvert.parity.references.lucidrains import lucidrains_reference
from vitconvert.parity.references.npz import npz_reference
from vitconvert.parity.references.openclip import openclip_reference
from vitconvert.parity.references.reference import ConfigNotTaken, Reference, TensorsNotTaken
from vitconvert.parity.references.timm import timm_reference
from vitconvert.parity.references.torchvision import torchvision_reference

__all__ = ["ConfigNotTaken", "Reference", "TensorsNotTaken", "build_reference"]


def build_reference(checkpoint: Checkpoint) -> Reference:
    """The implementation of a checkpoint's own ecosystem, with its weights, in float32.

    Raises:
        MissingPackage: The package is not installed.
        NotRepresentable: No package can be installed that computes this checkpoint.
        ConfigNotTaken: The package does not take what the checkpoint's config.json says.
        TensorsNotTaken: Nor its tensors.
    """
    from huggingface_hub.errors import StrictDataclassError

    ecosystem = checkpoint.table.ecosystem
    if ecosystem not in _BUILDERS:
        raise NotRepresentable(
            _WITHOUT.get(ecosystem, f"{checkpoint.table.title} is no package to install.")
        )
    try:
        return _BUILDERS[ecosystem](checkpoint)
    except VitConvertError:
        raise
    except (*_REFUSALS, StrictDataclassError) as error:
        if not checkpoint.their_config:
            raise
        # Where a config.json and the tensors differ, the tensors are right, and noted to be so.
        said = str(error).strip().partition("\n")[0]
        raise ConfigNotTaken(
            f"{checkpoint.table.title}: its own class does not take what config.json says: {said}"
        ) from error


_REFUSALS = (RuntimeError, ValueError, TypeError)  # of classes that get wrong arguments
_BUILDERS: Mapping[str, Callable[[Checkpoint], Reference]] = {
    "timm": timm_reference,
    "hf": huggingface_reference,
    "torchvision": torchvision_reference,
    "lucidrains": lucidrains_reference,
    "jax": npz_reference,
    "big_vision": npz_reference,
    "openclip": openclip_reference,
    "openai_clip": openclip_reference,
}
_WITHOUT = {
    "vit": "these are vitconvert's own names, which no other project has.",
    "jeonsworld": "jeonsworld's ViT-pytorch is a repository of scripts, not a package to install.",
}
