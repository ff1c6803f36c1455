"""segment-anything's front door: a file, and `SamPredictor.set_image` of what OpenCV opened.

segment-anything 1.0, scripts/amg.py: cv2.imread(path), then cv2.cvtColor(image, COLOR_BGR2RGB).
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.front_doors import ours
from tests.front_doors.judge import Asked, Door
from tests.packages import cv2, segment_anything
from tests.small_models import randomise_calmly

_FAMILIES: Mapping[str, dict[str, Any]] = {
    "sam": {"img_size": 48, "depth": 2, "num_heads": 3, "global_attn_indexes": (1,)},
    "sam, depth 11": {"img_size": 80, "depth": 11, "num_heads": 2, "global_attn_indexes": (2, 5)},
}


def _model(family: str) -> Any:
    """As `build_sam._build_sam` builds it, but small."""
    modeling = segment_anything.modeling
    sizes = {"patch_size": 16, "embed_dim": 36, "out_chans": 8, "window_size": 2}
    encoder = modeling.ImageEncoderViT(
        **sizes, **_FAMILIES[family], qkv_bias=True, use_rel_pos=True, mlp_ratio=2
    )
    grid = encoder.img_size // 16
    prompts = modeling.PromptEncoder(
        embed_dim=8,
        image_embedding_size=(grid, grid),
        input_image_size=(encoder.img_size, encoder.img_size),
        mask_in_chans=4,
    )
    transformer = modeling.TwoWayTransformer(depth=1, embedding_dim=8, num_heads=2, mlp_dim=12)
    decoder = modeling.MaskDecoder(transformer_dim=8, transformer=transformer)
    torch.manual_seed(0)
    return randomise_calmly(modeling.Sam(encoder, prompts, decoder)).eval()


def _write(family: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    torch.save(_model(family).state_dict(), folder / "sam_vit_b_01ec64.pth")


def _theirs(family: str, folder: Path) -> Asked:
    model = _model(family)
    model.load_state_dict(torch.load(folder / "sam_vit_b_01ec64.pth", weights_only=True))
    predictor = segment_anything.SamPredictor(model)

    def ask(path: Path) -> torch.Tensor:
        predictor.set_image(cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB))
        return predictor.get_image_embedding().flatten(2).transpose(1, 2)

    return ask


def _ours(family: str, folder: Path) -> Asked:
    sizes = _FAMILIES[family]
    stated = {"num_heads": sizes["num_heads"], "window_size": 2}
    stated["global_blocks"] = sizes["global_attn_indexes"]
    file = folder / "sam_vit_b_01ec64.pth"
    return ours.features(file, {"tokens": True}, overrides=stated)


DOORS: Mapping[str, Door] = {
    family: Door(
        write=partial(_write, family),
        theirs=partial(_theirs, family),
        ours=partial(_ours, family),
        exact=(sizes["img_size"],) * 2,
    )
    for family, sizes in _FAMILIES.items()
}
