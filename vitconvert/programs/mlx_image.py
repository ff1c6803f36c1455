"""mlx-image: torchvision's class in MLX, of Apple, which computes on any CPU too."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonObject
from vitconvert.file_formats import written_formats
from vitconvert.programs.example import Example
from vitconvert.programs.program import Foreign, Opener, Program
from vitconvert.programs.reference import Reference, TensorsNotTaken, own_tensors, package
from vitconvert.programs.target import Target
from vitconvert.programs.torchvision import class_arguments
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor


class MlxImage(Program):
    """mlx-image's VisionTransformer, which has no configuration files."""

    packages = ("mlx-image",)
    one_file = True
    framework = "mlx"

    def other_sizes(self, table: Table) -> str:
        """The class takes one size."""
        return "none"

    def openers(self, config: ViTConfig) -> Mapping[str, Opener]:
        """The class, and the package's own reader of weights."""

        def opened(directory: Path) -> "Callable[[Tensor], Tensor]":
            import mlx.core as mx
            from mlxim.model._utils import load_weights

            model = _model(config)
            load_weights(model, str(directory / written_formats()["safetensors"].output))
            mx.eval(model.parameters())  # now, in this thread
            return partial(_run, model)

        return {"mlxim": opened}

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """The class with the checkpoint's own tensors."""
        from importlib.metadata import version

        from torch import nn

        package("mlxim", install="mlx-image")
        import mlx.core as mx

        model = _model(checkpoint.config)
        tensors = own_tensors(checkpoint)
        try:
            model.load_weights([(n, mx.array(t.float().numpy())) for n, t in tensors.items()])
            mx.eval(model.parameters())  # now, in this thread
        except ValueError as error:
            problem = str(error).strip().partition("\n")[0]
            raise TensorsNotTaken(f"mlx-image does not take these tensors: {problem}") from None
        return Reference(
            name=f"mlx-image {version('mlx-image')} VisionTransformer",
            model=nn.Identity(),  # stands for the model, which is not PyTorch's
            taps={},
            run=lambda _, images: _run(model, images),
            dtypes=("float32",),
            told=("num_heads", "image_size"),
        )

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """The class, and images with their channels last."""
        arguments = ", ".join(f"{k}={v!r}" for k, v in _arguments(source.config).items())
        code = f"""\
import mlx.core as mx
from mlxim.model.vit import VisionTransformer

model = VisionTransformer({arguments})
model.load_weights("model.safetensors")
model.eval()
output = model(mx.zeros({(1, *source.config.image_size, 3)}))"""
        return [Example(title="With mlx-image", code=code)]


def _arguments(config: ViTConfig) -> JsonObject:
    arguments = class_arguments(config)
    return arguments if config.qkv_bias else {**arguments, "attn_bias": False}


def _model(config: ViTConfig) -> Foreign:
    from mlxim.model.vit.vit import VisionTransformer

    return VisionTransformer(**_arguments(config)).eval()


def _run(model: Foreign, images: "Tensor") -> "Tensor":
    """Images are as ours, (B, C, H, W)."""
    import mlx.core as mx
    import numpy as np
    import torch

    with mx.stream(mx.new_stream(mx.cpu)):  # each thread needs one of its own
        output = model(mx.array(images.permute(0, 2, 3, 1).contiguous().numpy()))
        return torch.from_numpy(np.array(output.astype(mx.float32)))


PROGRAM = MlxImage()
