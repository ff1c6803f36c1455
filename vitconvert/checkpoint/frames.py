"""The patch kernel of Qwen's image towers, which read two frames at once, as it is for images.

An image is shown to them as the same frame twice, so its patches are those of one kernel, the sum
over both frames. It is added up in float64 and rounded once, as timm 1.0.31 does it
(`qwen3_vit.checkpoint_filter_fn_encoder`); only when it is read.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from vitconvert.containers import Container, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

_KERNEL = "patch_embed.proj.weight"
_QWEN = "merger.linear_fc1.weight"  # beside it; other models of several frames are of videos


def with_summed_frames(container: Container) -> Container:
    """The file with kernels of images in place of kernels of several frames, and a note on it."""
    manifest = container.manifest
    kernels = {
        name
        for name, info in manifest.items()
        if name.endswith(_KERNEL)
        and len(info.shape) == 5
        and name.removesuffix(_KERNEL) + _QWEN in manifest
    }
    if not kernels:
        return container

    def read(name: str) -> "Tensor":
        tensor = container.read(name)
        return tensor.double().sum(dim=2).to(tensor.dtype) if name in kernels else tensor

    summed = {
        name: TensorInfo(dtype=info.dtype, shape=(*info.shape[:2], *info.shape[3:]))
        for name, info in manifest.items()
        if name in kernels
    }
    frames = manifest[min(kernels)].shape[2]
    note = (
        f"the patch kernel reads {frames} frames, and an image is the same frame {frames} times: "
        "it was summed over them, in float64"
    )
    return replace(
        container,
        manifest={name: summed.get(name, info) for name, info in manifest.items()},
        places={name: place for name, place in container.places.items() if name not in kernels},
        notes=(*container.notes, note),
        reader=read,
    )
