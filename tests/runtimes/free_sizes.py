"""Files for images of any size, compared with the library of each checkpoint, and the table of it.

    python -m tests.runtimes.free_sizes

writes the table of vitconvert/runtimes/README.md. Models are small, of random weights, saved and
opened as users of the libraries do; no code of ours is in the numbers.
"""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import vitconvert
from tests.conversion.test_other_sizes import (
    BEIT,
    CLIP,
    MLP,
    in_transformers,
    noise,
    save_hf,
    save_timm,
)
from tests.packages import timm
from tests.small_models import relative
from vitconvert.errors import NotRepresentable
from vitconvert.runtimes import RUNTIMES

DOCUMENT = Path(vitconvert.__file__).parent / "runtimes" / "README.md"
# Patches down and across: those of the model itself, fewer, more, and two oblong ones.
GRIDS = ((12, 12), (7, 7), (15, 15), (6, 17), (14, 4))
SAM = {"output_channels": 8, "mlp_dim": 60, "window_size": 3, "global_attn_indexes": [1]}


def in_timm(directory: Path, images: Tensor) -> Tensor:
    """What timm computes of images of any size."""
    options = {"pretrained": True, "dynamic_img_size": True, "in_chans": images.shape[1]}
    return timm.create_model(f"local-dir:{directory}", **options).eval()(images)


def of_timm(name: str, **arguments: object) -> Callable[[Path], Path]:
    """What saves a small model of timm's."""
    return lambda folder: save_timm(folder, name, **arguments)


def of_transformers(name: str, **settings: object) -> Callable[[Path], Path]:
    """What saves a small model of transformers."""
    return lambda folder: save_hf(folder, name, **settings)


# How a model is saved, by the library that computes it.
SOURCES = {
    "ViT, timm": of_timm("vit_base_patch16_224", num_classes=6),
    "ViT, transformers": of_transformers(
        "ViTForImageClassification", **MLP, num_labels=5, num_channels=1
    ),
    "DeiT III, timm": of_timm("deit3_base_patch16_224", num_classes=6, in_chans=4),
    "DINOv2 with registers, timm": of_timm(
        "vit_small_patch14_reg4_dinov2", num_classes=0, num_heads=2
    ),
    "DINOv2, transformers": of_transformers("Dinov2Model", mlp_ratio=2),
    "DINOv2 with registers, transformers": of_transformers(
        "Dinov2WithRegistersModel", mlp_ratio=2, num_hidden_layers=11
    ),
    "DINOv3, timm": of_timm("vit_small_patch16_dinov3", num_classes=0),
    "DINOv3, transformers": of_transformers("DINOv3ViTModel", **MLP, num_register_tokens=4),
    "SigLIP, timm": of_timm("vit_base_patch16_siglip_224", num_classes=0),
    "SigLIP, transformers": of_transformers("SiglipVisionModel", **MLP),
    "CLIP, transformers": of_transformers("CLIPModel", **CLIP),
    "EVA-02, timm": of_timm("eva02_base_patch14_224", num_classes=6),
    "RoPE-ViT (mixed), timm": of_timm("vit_small_patch16_rope_mixed_224", num_classes=6),
    "BEiT, transformers": of_transformers("BeitForImageClassification", **MLP, **BEIT),
    "BEiT, timm": of_timm("beit_base_patch16_224", num_classes=6),
    "SAM, transformers": of_transformers("SamVisionModel", **SAM),
}
REFUSED = {
    "BEiT, timm": "timm spreads its relative positions by a search",
    "SAM, transformers": "windows of attention are filled up by size",
}


def library(name: str) -> Callable[[Path, Tensor], Tensor]:
    """What computes a model of SOURCES."""
    return in_timm if name.endswith("timm") else in_transformers


def departures(name: str, to: str, folder: Path) -> list[float]:
    """How far a file in its runtime is from the library, at each of the GRIDS."""
    source = next(iter(folder.glob("source")), None) or SOURCES[name](folder)
    file = folder / f"model{RUNTIMES[to].suffix}"
    how = {"to": to, "dynamic_size": True, "verify": False, "overwrite": True}  # with the library
    exported = vitconvert.export_model(source, file, **how)
    run, config = RUNTIMES[to].open(file, threads=1), exported.config
    found = []
    with torch.no_grad():
        for grid in GRIDS:
            size = tuple(n * side for n, side in zip(grid, config.patch_size, strict=True))
            images = noise(size, config.in_channels)
            found.append(relative(run(images), library(name)(source, images)))
    return found


def table() -> str:
    """A row for each family, of the largest difference at each size."""
    sizes = " | ".join(f"{rows * 7}x{columns * 7}" for rows, columns in GRIDS)
    lines = [f"| family, library | runtime | {sizes} |", "|---|---|" + "---|" * len(GRIDS)]
    for name in SOURCES:
        with tempfile.TemporaryDirectory() as folder:
            for to in ("onnx", "openvino"):
                try:
                    found = departures(name, to, Path(folder))
                except NotRepresentable as error:
                    assert error.evidence["because"].startswith(REFUSED[name])
                    lines.append(f"| {name} | not supported: {REFUSED[name]} |" + " |" * len(GRIDS))
                    break
                cells = " | ".join(f"{one:.1e}" for one in found)
                lines.append(f"| {name} | {RUNTIMES[to].name} | {cells} |")
                print(lines[-1], flush=True)
    return "\n".join(lines)


if __name__ == "__main__":
    text = DOCUMENT.read_text(encoding="utf-8")
    written = re.sub(
        r"(<!-- free sizes -->\n\n).*?(\n\n<!-- end -->)",
        lambda found: found[1] + table() + found[2],
        text,
        flags=re.DOTALL,
    )
    DOCUMENT.write_text(written, encoding="utf-8")
