"""The projects that compute a ViT, each with the same random weights."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

import vitconvert
from vitconvert.programs.isolation import silent_transformers

Answer = Callable[[Tensor], Tensor]  # images to logits
_EXPORT = "model.onnx"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model to build everywhere.

    Attributes:
        folder: Its weights, as timm's directory `timm` and what else was made of them.
        dtype: A name of torch's.
    """

    folder: Path
    architecture: str
    device: str
    dtype: str
    threads: int

    @property
    def torch_dtype(self) -> torch.dtype:
        """torch's own word for it."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def placed(self, model: Any) -> Any:
        """A model of torch's, ready to answer."""
        return model.eval().to(self.device, self.torch_dtype)


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A project, and how its model is built from weights."""

    title: str
    build: Callable[[Setting], Answer]
    needs: tuple[str, ...] = ()  # packages that may be absent
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    same_weights: bool = True

    @property
    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [package for package in self.needs if find_spec(package) is None]

    def suits(self, setting: Setting) -> bool:
        """Whether it computes on this device and in this dtype."""
        return setting.device in self.devices and setting.dtype in self.dtypes


def write_weights(setting: Setting) -> None:
    """Random weights in timm's directory."""
    import timm

    model = timm.create_model(setting.architecture)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    timm.models.save_for_hf(model, setting.folder / "timm", safe_serialization=True)


def export_weights(setting: Setting) -> None:
    """An ONNX file of timm's model for any batch size, if somebody here reads it."""
    exported = [peer for peer in PEERS if "onnx" in peer.needs and peer.suits(setting)]
    if all(peer.missing for peer in exported):
        return
    model = timm_model(setting).eval()
    torch.onnx.export(
        model,
        (torch.rand(2, *_image_shape(model)),),
        setting.folder / _EXPORT,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        verbose=False,
    )


def config_of(setting: Setting) -> vitconvert.ViTConfig:
    """The architecture that the weights say."""
    return vitconvert.load_checkpoint(setting.folder / "timm").config


def _image_shape(model: Any) -> tuple[int, int, int]:
    shape: tuple[int, int, int] = model.default_cfg["input_size"]
    return shape


def build_fast(setting: Setting) -> Answer:
    """vitconvert's fast model, compiled on a GPU, and in oneDNN's order on a CPU."""
    model = vitconvert.load_model(
        setting.folder / "timm", fast=True, device=setting.device, dtype=setting.torch_dtype
    )
    if setting.device == "cuda":
        model.compile(mode="reduce-overhead", dynamic=False)
        return model
    image = torch.rand(1, model.config.in_channels, *model.config.image_size)
    with torch.inference_mode():
        for _ in range(17):  # Then the weights have oneDNN's own order.
            model(image.to(setting.torch_dtype))
    return model


def _build_fp8(setting: Setting) -> Answer:
    """The fast model on a GPU, with the products of its blocks in float8 by torchao.

    A row of a weight and a token have a scale each.
    """
    from torchao.quantization import (
        Float8DynamicActivationFloat8WeightConfig,
        PerRow,
        quantize_,
    )

    model = vitconvert.load_model(
        setting.folder / "timm", fast=True, device=setting.device, dtype=setting.torch_dtype
    )
    quantize_(model.blocks, Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()))
    model.compile(mode="reduce-overhead", dynamic=False)
    return model


def _compiled(setting: Setting) -> Answer:
    model = cast("nn.Module", _reference(setting))
    model.compile(mode="reduce-overhead", dynamic=False)
    return model


def _reference(setting: Setting) -> Answer:
    return vitconvert.load_model(
        setting.folder / "timm", device=setting.device, dtype=setting.torch_dtype
    )


def timm_model(setting: Setting) -> Any:
    """timm's own, of these weights."""
    import timm

    weights = setting.folder / "timm" / "model.safetensors"
    return timm.create_model(setting.architecture, checkpoint_path=str(weights))


def _timm(setting: Setting) -> Answer:
    answer: Answer = setting.placed(timm_model(setting))
    return answer


def _timm_compiled(setting: Setting) -> Answer:
    model = setting.placed(timm_model(setting))
    compiled: Answer = torch.compile(model, mode="reduce-overhead", dynamic=False)
    return compiled


def _transformers(setting: Setting) -> Answer:
    from transformers import ViTForImageClassification

    target = setting.folder / "hf"
    vitconvert.convert(
        setting.folder / "timm", to="hf", output=target, verify=False, overwrite=True
    )
    with silent_transformers():
        model = setting.placed(ViTForImageClassification.from_pretrained(target))
    return lambda images: model(images).logits


def _torchvision(setting: Setting) -> Answer:
    from vitconvert.programs.torchvision import torchvision_model

    theirs = timm_model(setting)
    config = config_of(setting)
    model = torchvision_model(config)
    stated = {"num_heads": config.num_heads}
    model.load_state_dict(
        vitconvert.convert_state_dict(theirs.state_dict(), to="torchvision", overrides=stated)
    )
    answer: Answer = setting.placed(model)
    return answer


def _vit_pytorch(setting: Setting) -> Answer:
    """With weights of its own: it has no biases for q, k and v."""
    from vit_pytorch import ViT

    config = config_of(setting)
    model = ViT(
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=config.num_classes,
        dim=config.embed_dim,
        depth=config.depth,
        heads=config.num_heads,
        mlp_dim=config.mlp_dim,
        dim_head=config.head_dim,
    )
    answer: Answer = setting.placed(model)
    return answer


def _onnxruntime(setting: Setting) -> Answer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = setting.threads
    session = onnxruntime.InferenceSession(
        setting.folder / _EXPORT, options, providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name
    return lambda images: torch.from_numpy(session.run(None, {name: images.numpy()})[0])


def _openvino(setting: Setting) -> Answer:
    import openvino

    core = openvino.Core()
    hints = {
        "INFERENCE_NUM_THREADS": setting.threads,
        "PERFORMANCE_HINT": "LATENCY",
        # Without the hint it computes in bfloat16 wherever the processor can.
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[setting.dtype],
    }
    compiled: dict[torch.Size, Any] = {}

    def answer(images: Tensor) -> Tensor:
        if images.shape not in compiled:
            model = core.read_model(setting.folder / _EXPORT)
            model.reshape(list(images.shape))
            compiled[images.shape] = core.compile_model(model, "CPU", hints)
        return torch.from_numpy(compiled[images.shape](images.float().numpy())[0])

    return answer


_EXPORTED = ("onnx", "onnxscript")
OURS, FLOAT8, TIMM = "vitconvert fast", "vitconvert fast, float8", "timm"
PEERS = (
    Peer(title=OURS, build=build_fast),
    Peer(title="vitconvert", build=_reference),
    Peer(title="vitconvert compiled", build=_compiled, devices=("cuda",)),
    Peer(
        title=FLOAT8,
        build=_build_fp8,
        needs=("torchao",),
        devices=("cuda",),
        dtypes=("bfloat16",),
    ),
    Peer(title=TIMM, build=_timm),
    Peer(title="timm compiled", build=_timm_compiled, devices=("cuda",)),
    Peer(title="transformers", build=_transformers, needs=("transformers",)),
    Peer(title="torchvision", build=_torchvision, needs=("torchvision",), devices=("cpu",)),
    Peer(
        title="vit-pytorch",
        build=_vit_pytorch,
        needs=("vit_pytorch",),
        devices=("cpu",),
        same_weights=False,
    ),
    Peer(
        title="onnxruntime",
        build=_onnxruntime,
        needs=("onnxruntime", *_EXPORTED),
        devices=("cpu",),
        dtypes=("float32",),
    ),
    Peer(
        title="OpenVINO",
        build=_openvino,
        needs=("openvino", *_EXPORTED),
        devices=("cpu",),
        dtypes=("float32", "bfloat16"),
    ),
)
