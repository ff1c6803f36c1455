"""open_clip's front door: `create_model_and_transforms` of a directory, or of a name and a file.

open_clip 3.3; images as its cards open them: preprocess(Image.open(path)).
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tests.front_doors import ours
from tests.front_doors.judge import Asked, Door
from tests.packages import open_clip

_TEXT = {"context_length": 8, "vocab_size": 50, "width": 64, "heads": 2, "layers": 1}
_OWN = {"image_size": 32, "patch_size": 8, "width": 66, "layers": 2, "head_width": 22}
_OF_TIMM = {"timm_model_name": "vit_tiny_patch16_224", "timm_model_pretrained": False}
_OF_TIMM |= {"timm_pool": "token", "timm_proj": "linear", "image_size": 224}
_SIGLIP = {"timm_model_name": "vit_medium_patch16_gap_256", "timm_model_pretrained": False}
_SIGLIP |= {"timm_pool": "avg", "timm_proj": "none", "image_size": 256}
_HALVES = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
_CLIPA = {"image_size": 32, "patch_size": 8, "width": 66, "layers": 2, "head_width": 22}
_CLIPA |= {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True}

# What `model_cfg` says of the tower, `embed_dim`, and what `preprocess_cfg` says; None: nothing
_FAMILIES: Mapping[str, tuple[dict[str, Any], int, dict[str, Any] | None]] = {
    "own": (_OWN, 20, {}),
    "own, depth 11": ({**_OWN, "layers": 11}, 20, {"interpolation": "bilinear"}),
    "own, silent": (_OWN, 20, None),
    "own, squashed": (_OWN, 20, {"resize_mode": "squash", **_HALVES}),
    "own, within": (_OWN, 20, {"resize_mode": "longest", "interpolation": "bilinear"}),
    "own, oblong": ({**_OWN, "image_size": [48, 32]}, 20, {"size": [48, 32]}),
    "own, oblong, within": ({**_OWN, "image_size": [32, 48]}, 20, {"resize_mode": "longest"}),
    "own, random filter": (_OWN, 20, {"interpolation": "random"}),
    "own, another size stated": (_OWN, 20, {"size": 224}),
    "clipa": (_CLIPA, 20, {"resize_mode": "squash", "mean": [0.485, 0.456, 0.406]}),
    "clipa, silent": (_CLIPA, 20, None),
    "timm": (_OF_TIMM, 20, {"std": [0.2, 0.3, 0.25]}),
    "timm, siglip": (_SIGLIP, 512, {"resize_mode": "squash", **_HALVES}),
    "timm, silent": (_OF_TIMM, 20, None),
}


def _model_cfg(family: str) -> dict[str, Any]:
    vision, width, _ = _FAMILIES[family]
    return {"embed_dim": width, "vision_cfg": vision, "text_cfg": _TEXT}


def _model(family: str) -> Any:
    torch.manual_seed(0)
    cfg = _model_cfg(family)
    kind = open_clip.CustomTextCLIP if "timm" in family else open_clip.CLIP
    return ours.sharp(kind(**cfg))


def _write(family: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    torch.save(_model(family).state_dict(), folder / "open_clip_pytorch_model.bin")
    stated = _FAMILIES[family][2]
    cfg = {**_model_cfg(family), **({"custom_text": True} if "timm" in family else {})}
    config = {"model_cfg": cfg} | ({} if stated is None else {"preprocess_cfg": stated})
    (folder / "open_clip_config.json").write_text(json.dumps(config))


def _theirs(folder: Path) -> Asked:
    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    return _asked(model, preprocess)


def _asked(model: Any, preprocess: Any) -> Asked:
    model.eval()
    return lambda path: model.encode_image(preprocess(Image.open(path)).unsqueeze(0))


def _ours(family: str, folder: Path) -> Asked:
    headless = _FAMILIES[family][0].get("timm_proj") == "none"
    return ours.features(folder, {} if headless else {"projected": True})


def _write_file(folder: Path) -> None:
    """A file alone, with a configuration that open_clip's users register by its name."""
    folder.mkdir(parents=True)
    torch.save(_model("own").state_dict(), folder / "epoch_1.pt")
    (folder / "doors-tiny.json").write_text(json.dumps(_model_cfg("own")))


def _theirs_by_name(folder: Path) -> Asked:
    open_clip.add_model_config(folder / "doors-tiny.json")
    file = str(folder / "epoch_1.pt")
    model, _, preprocess = open_clip.create_model_and_transforms("doors-tiny", pretrained=file)
    return _asked(model, preprocess)


def _ours_of_a_file(folder: Path) -> Asked:
    stated = {"overrides": {"num_heads": 3, "activation": "gelu"}}
    return ours.features(folder / "epoch_1.pt", {"projected": True}, **stated)


DOORS: Mapping[str, Door] = {
    **{
        family: Door(
            write=partial(_write, family),
            theirs=_theirs,
            ours=partial(_ours, family),
            exact=(32, 32),
        )
        for family in _FAMILIES
    },
    "a file, by name": Door(
        write=_write_file, theirs=_theirs_by_name, ours=_ours_of_a_file, exact=(32, 32)
    ),
}
