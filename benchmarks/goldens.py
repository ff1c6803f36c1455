"""What one release computes of goldens: small models' files and fixed images, by its own code.

    python -m benchmarks.goldens PACKAGE FILES OUT.npz

`benchmarks.upstream` runs it in the environment of each release. Weights are numpy's, drawn by the
names of the parameters. The first release that has a family writes its file into FILES, and every
other opens that file, as people open the files that they have. OUT holds `release`, the version
that ran, and `FAMILY/OUTPUT` in float32, or `FAMILY/raises`, what the release said. A family that
the release lacks is not there.
"""

import importlib
import inspect
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

Outputs = Mapping[str, Any]
# A family's outputs of a release, whose file is at the path; None where the release lacks it.
Golden = Callable[[ModuleType, Path], Outputs | None]
RAISES = "raises"

# Of timm's models.
SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "num_heads": 3, "depth": 2}
_WIDTHS = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3}
_WIDTHS |= {"intermediate_size": 80}
_VISION = _WIDTHS | {"image_size": 32, "patch_size": 8, "num_labels": 7}
_TEXT = _WIDTHS | {"vocab_size": 99, "max_position_embeddings": 9}
_TOKENS = ("bos_token_id", 96), ("pad_token_id", 97), ("eos_token_id", 98)

_TIMM = {
    "ViT": "vit_base_patch16_224",
    "ViT of CLIP": "vit_base_patch16_clip_quickgelu_224",
    "ViT of SigLIP": "vit_base_patch16_siglip_224",
    "SigLIP 2 of any shape": "naflexvit_base_patch16_siglip",
    "DeiT distilled": "deit_base_distilled_patch16_224",
    "DeiT III": "deit3_base_patch16_224",
    "BEiT": "beit_base_patch16_224",
    "DINOv2 with registers": "vit_base_patch14_reg4_dinov2",
    "DINOv3": "vit_base_patch16_dinov3",
    "EVA-02": "eva02_base_patch14_224",
    "ViT with RoPE": "vit_base_patch16_rope_224",
    "Perception Encoder": "vit_pe_core_base_patch16_224",
    "AIMv2": "aimv2_large_patch14_224",
    "SAM encoder": "samvit_base_patch16",
}
# Models whose own preprocessing is asked for.
_TIMM_IMAGES = (
    *("vit_base_patch16_224.augreg2_in21k_ft_in1k", "deit3_base_patch16_224.fb_in22k_ft_in1k"),
    *("beitv2_base_patch16_224.in1k_ft_in22k_in1k", "vit_base_patch14_reg4_dinov2.lvd142m"),
    *("vit_base_patch16_siglip_224.webli", "vit_base_patch16_siglip_224.v2_webli"),
    "vit_base_patch16_clip_224.openai",
    *("vit_small_patch16_dinov3.lvd1689m", "samvit_base_patch16.sa1b"),
)

# The class of the model, and what its configuration says beside the sizes of `_VISION`.
_TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": ("ViTForImageClassification", _VISION),
    "DeiT distilled": ("DeiTForImageClassificationWithTeacher", _VISION),
    "BEiT": ("BeitForImageClassification", _VISION | {"use_relative_position_bias": True}),
    "Data2Vec": ("Data2VecVisionForImageClassification", _VISION),
    "DINOv2": ("Dinov2ForImageClassification", _VISION),
    "DINOv2 with registers": ("Dinov2WithRegistersForImageClassification", _VISION),
    "DINOv3": ("DINOv3ViTModel", _VISION | {"num_register_tokens": 4}),
    "MSN": ("ViTMSNModel", _VISION),
    "I-JEPA": ("IJepaModel", _VISION),
    "AIMv2": ("Aimv2VisionModel", _VISION),
    "MLCD": ("MLCDVisionModel", _VISION),
    "Pixtral": ("PixtralVisionModel", _VISION),
    "InternViT": ("InternVLVisionModel", _VISION),
    "CLIP": (
        "CLIPModel",
        {"vision_config": _VISION, "text_config": _TEXT | dict(_TOKENS), "projection_dim": 24},
    ),
    "SigLIP": ("SiglipModel", {"vision_config": _VISION, "text_config": _TEXT | dict(_TOKENS)}),
    "SigLIP 2": (
        "Siglip2Model",
        {"vision_config": _VISION | {"num_patches": 16}, "text_config": _TEXT | dict(_TOKENS)},
    ),
    "SAM encoder": (
        "SamVisionModel",
        _VISION | {"mlp_dim": 80, "output_channels": 24, "global_attn_indexes": [1]},
    ),
}
_PROCESSORS: dict[str, dict[str, Any]] = {
    "ViTImageProcessor": {},
    "DeiTImageProcessor": {},
    "BeitImageProcessor": {},
    "BitImageProcessor": {},
    "DINOv3ViTImageProcessor": {},
    "CLIPImageProcessor": {},
    "SiglipImageProcessor": {},
    "Siglip2ImageProcessor": {},
    "SamImageProcessor": {
        "size": {"longest_edge": 128},
        "pad_size": {"height": 128, "width": 128},
    },
}

_CLIP = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "patch_size": 8, "layers": 2, "width": 48, "head_width": 16},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "layers": 2, "width": 48, "heads": 3},
}
_TIMM_TOWER = {"image_size": 32, "timm_model_name": "test_vit", "timm_pool": ""}
_OPEN_CLIP: dict[str, dict[str, Any]] = {
    "CLIP": _CLIP,
    "CLIP of OpenAI": _CLIP | {"quick_gelu": True},
    "CLIP of patches' mean": _CLIP
    | {"vision_cfg": _CLIP["vision_cfg"] | {"pool_type": "avg", "final_ln_after_pool": True}},
    "CoCa's vision encoder": _CLIP
    | {"vision_cfg": _CLIP["vision_cfg"] | {"attentional_pool": True, "attn_pooler_heads": 3}},
    "SigLIP by timm": {
        "embed_dim": 64,
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": _TIMM_TOWER | {"timm_proj": "none"},
        "text_cfg": _CLIP["text_cfg"]
        | {"no_causal_mask": True, "proj_bias": True, "pool_type": "last"},
    },
}
_OPEN_CLIP_IMAGES: dict[str, dict[str, Any]] = {
    "shortest, bicubic": {"resize_mode": "shortest", "interpolation": "bicubic"},
    "squash, bicubic": {"resize_mode": "squash", "interpolation": "bicubic"},
    "squash, bilinear": {"resize_mode": "squash", "interpolation": "bilinear"},
    "longest, bicubic": {"resize_mode": "longest", "interpolation": "bicubic"},
}
# Models of timm that vitconvert exports.
ONNX = {
    "ViT": "vit_base_patch16_224",
    "SigLIP": "vit_base_patch16_siglip_224",
    "DINOv3": "vit_base_patch16_dinov3",
}


def numbers(name: str, *shape: int) -> np.ndarray:
    """Normal numbers of a name, the same on every machine."""
    drawn = np.random.default_rng(crc32(name.encode())).standard_normal(shape)
    return np.asarray(drawn, np.float32)


def pixels(size: int) -> Tensor:
    """Two images as models get them, (2, 3, size, size)."""
    return torch.from_numpy(numbers(f"pixels {size}", 2, 3, size, size))


def patches(size: int) -> Mapping[str, Tensor]:
    """The same as SigLIP 2 gets images: patches of 8, the second image half as high, and padded."""
    side = size // 8
    whole = pixels(size).reshape(2, 3, side, 8, side, 8).permute(0, 2, 4, 3, 5, 1)
    known = torch.ones(2, side**2, dtype=torch.int64)
    known[1, side**2 // 2 :] = 0
    shapes = torch.tensor([[side, side], [side // 2, side]])
    return {
        "pixel_values": whole.reshape(2, side**2, -1) * known[..., None],
        "pixel_attention_mask": known,
        "spatial_shapes": shapes,
    }


def pictures() -> list[Image.Image]:
    """A small and a large image, of noise over a gradient: every pixel decides something."""
    made = []
    for width, height in ((61, 97), (331, 263)):
        slope = np.linspace(0, 200, width * height * 3).reshape(height, width, 3)
        noise = 25 * numbers("picture", height, width, 3)
        made.append(Image.fromarray((slope + noise).clip(0, 255).astype(np.uint8)))
    return made


def drawn(model: nn.Module) -> nn.Module:
    """A model whose parameters are numpy's, those of norms around 1."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            factor = parameter.ndim == 1 and name.endswith("weight")
            values = 0.2 * numbers(name, *parameter.shape) + (1 if factor else 0)
            parameter.copy_(torch.from_numpy(np.asarray(values, np.float32)))
    return model.eval()


def joined(images: list[Any]) -> np.ndarray:
    """Images of any sizes as one array of numbers."""
    return np.concatenate([np.asarray(image, np.float32).ravel() for image in images])


def of_timm(architecture: str) -> Golden:
    """Logits and features, and the logits of larger images, for which positions are resampled."""

    def compute(timm: ModuleType, path: Path) -> Outputs | None:
        if architecture not in timm.list_models():
            return None
        sam = architecture.startswith("samvit")
        sizes = SIZES | {"num_classes": 7}
        sizes |= {"global_attn_indexes": (1,), "window_size": 3} if sam else {}
        file = path.with_suffix(".pth")
        if not file.exists():
            torch.save(drawn(timm.create_model(architecture, **sizes)).state_dict(), file)
        here = {"file": str(file), "num_classes": 7, "custom_load": False}
        how = {"pretrained": True, "pretrained_cfg_overlay": here}
        model = timm.create_model(architecture, **sizes, **how).eval()
        outputs = {"logits": model(pixels(32)), "features": model.forward_features(pixels(32))}
        if not sam:  # whose positions timm does not resample
            larger = timm.create_model(architecture, **sizes | {"img_size": 48}, **how).eval()
            outputs["larger"] = larger(pixels(48))
        return outputs

    return compute


def of_timm_images(name: str) -> Golden:
    """The images that a named model gets."""

    def compute(timm: ModuleType, _: Path) -> Outputs | None:
        if name not in timm.list_pretrained():
            return None
        config = timm.data.resolve_data_config(timm.get_pretrained_cfg(name).to_dict())
        transform = timm.data.create_transform(**config)
        return {"images": joined([transform(picture) for picture in pictures()])}

    return compute


def of_transformers(name: str, sizes: Mapping[str, Any]) -> Golden:
    """Whatever float numbers the model returns, of images of its size and of larger ones."""

    def compute(transformers: ModuleType, path: Path) -> Outputs | None:
        kind = getattr(transformers, name, None)
        if kind is None:
            return None
        if not path.exists():
            drawn(kind(kind.config_class(**sizes))).save_pretrained(path)
        model, told = kind.from_pretrained(path, output_loading_info=True)
        if absent := [*told["missing_keys"], *told["unexpected_keys"], *told["mismatched_keys"]]:
            raise ValueError(f"from_pretrained leaves {absent}")
        text = {"input_ids": torch.arange(90, 99)[None]} if "text_config" in sizes else {}
        given = inspect.signature(model.forward).parameters
        resampled = {"interpolate_pos_encoding": True} & given.keys()
        larger = dict.fromkeys(resampled, True)
        of_size = patches if "spatial_shapes" in given else _as_pixels
        outputs = dict(_floats(model.eval()(**of_size(32), **text)))
        if larger or "DINO" in name.upper() or of_size is patches:
            more = _floats(model(**of_size(48), **text, **larger))
            outputs |= {f"larger {output}": value for output, value in more}
        return outputs

    return compute


def _as_pixels(size: int) -> Mapping[str, Tensor]:
    return {"pixel_values": pixels(size)}


def _floats(outputs: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, value in outputs.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            yield name, value


def of_processor(name: str, settings: Mapping[str, Any]) -> Golden:
    """The images of a preprocessor_config.json: as it is opened, by Pillow and by torchvision."""

    def compute(transformers: ModuleType, path: Path) -> Outputs | None:
        if not hasattr(transformers, name):
            return None
        path.mkdir(exist_ok=True)
        text = json.dumps({"image_processor_type": name, **settings})
        (path / "preprocessor_config.json").write_text(text, encoding="utf-8")
        outputs = {}
        for title, asked in {
            "as opened": {},
            "pil": {"backend": "pil"},
            "torchvision": {"backend": "torchvision"},
        }.items():
            processor = transformers.AutoImageProcessor.from_pretrained(path, **asked)
            made = (processor(picture, return_tensors="np") for picture in pictures())
            outputs[title] = joined([one["pixel_values"] for one in made])
        return outputs

    return compute


def of_open_clip(config: Mapping[str, Any]) -> Golden:
    """Both towers' features, and those of larger images."""

    def compute(open_clip: ModuleType, path: Path) -> Outputs:
        named = path.with_suffix(".json")
        named.write_text(json.dumps(config), encoding="utf-8")
        open_clip.add_model_config(named)
        file = path.with_suffix(".pt")
        if not file.exists():
            torch.save(drawn(open_clip.create_model(path.name)).state_dict(), file)
        model = open_clip.create_model(path.name, pretrained=str(file)).eval()
        larger = open_clip.create_model(path.name, pretrained=str(file), force_image_size=48)
        tokens = open_clip.SimpleTokenizer(context_length=12)(["a photo of a cat", "Eine Katze!"])
        return {
            "image": model.encode_image(pixels(32)),
            "text": model.encode_text(tokens),
            "larger": larger.eval().encode_image(pixels(48)),
        }

    return compute


def of_open_clip_images(settings: Mapping[str, Any]) -> Golden:
    """Images of one way of resizing."""

    def compute(open_clip: ModuleType, _: Path) -> Outputs:
        transform = open_clip.image_transform(96, is_train=False, **settings)
        return {"images": joined([transform(picture) for picture in pictures()])}

    return compute


def of_onnxruntime(onnxruntime: ModuleType, path: Path) -> Outputs:
    """Outputs of a file that vitconvert exported: optimised, and node by node."""
    outputs = {}
    for title, level in {"optimised": "ORT_ENABLE_ALL", "as written": "ORT_DISABLE_ALL"}.items():
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        file = path.with_suffix(".onnx")
        session = onnxruntime.InferenceSession(file, options, ["CPUExecutionProvider"])
        (given,) = session.get_inputs()
        images = numbers("onnx", 2, *given.shape[1:])
        (outputs[title],) = session.run(None, {given.name: images})
    return outputs


GOLDENS: dict[str, dict[str, Golden]] = {
    "timm": {family: of_timm(name) for family, name in _TIMM.items()}
    | {f"images of {name}": of_timm_images(name) for name in _TIMM_IMAGES},
    "transformers": {family: of_transformers(*row) for family, row in _TRANSFORMERS.items()}
    | {f"images of {name}": of_processor(name, row) for name, row in _PROCESSORS.items()},
    "open_clip": {family: of_open_clip(row) for family, row in _OPEN_CLIP.items()}
    | {f"images, {name}": of_open_clip_images(row) for name, row in _OPEN_CLIP_IMAGES.items()},
    "onnxruntime": dict.fromkeys(ONNX, of_onnxruntime),
}


def computed(package: str, files: Path) -> Iterator[tuple[str, np.ndarray]]:
    """What the release that is installed here computes of all families."""
    for family, golden in GOLDENS[package].items():
        try:
            module = importlib.import_module(package)
            found = golden(module, files / re.sub(r"\W", "_", family)) or {}
            outputs = {name: np.asarray(value, np.float32) for name, value in found.items()}
            if not all(np.isfinite(array).all() for array in outputs.values()):
                raise ValueError("some numbers are not finite")
        except Exception as error:
            lines = str(error).splitlines() or [""]
            outputs = {RAISES: np.array(f"{type(error).__name__}: {lines[0]}")}
        yield from ((f"{family}/{name}", array) for name, array in outputs.items())


def main(package: str, files: str, output: str) -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")
    found = dict(computed(package, Path(files)))
    release = getattr(sys.modules.get(package), "__version__", "")
    np.savez(output, release=release, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
