"""Write mmpretrain/*.pth: small models of MMPretrain as its training saves them, all random.

Beside the weights lies what they compute (`images`, `output`), and histories as its training keeps
them. Run from the repository's root where MMPretrain is installed:

    pip install --no-deps mmpretrain==1.2.0 mmcv-lite==2.1.0 mmengine==0.10.7
    pip install addict yapf termcolor opencv-python-headless einops mat4py model-index rich
    python -m tests.originals.make_mmpretrain_files
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.small_models import randomise

FOLDER = Path(__file__).parent / "mmpretrain"
WIDTH, HEADS, CLASSES = 8, 2, 3
SIZES = {"embed_dims": WIDTH, "num_layers": 2, "num_heads": HEADS, "feedforward_channels": 12}
MEAN = {"out_type": "avg_featmap", "final_norm": False}
QUICK = {"layer_cfgs": {"act_cfg": {"type": "mmpretrain.QuickGELU"}}}
BACKBONES: Mapping[str, Mapping[str, Any]] = {
    "plain": {"arch": SIZES | {"num_layers": 11}, "layer_scale_init_value": 0.1},
    "pre_logits": {"img_size": (12, 16)},
    "clip": {"pre_norm": True, "norm_cfg": {"type": "LN", "eps": 1e-5}, **QUICK},
    "mean": MEAN | {"with_cls_token": False, "qkv_bias": False},
    "both_norms": {"out_type": "avg_featmap"},
    "swiglu": {"layer_cfgs": {"ffn_type": "swiglu_fused"}, "layer_scale_init_value": 0.1},
    "beit": MEAN | {"type": "BEiTViT", "use_abs_pos_emb": False, "use_rel_pos_bias": True},
    "beit_shared": {
        "type": "BEiTViT",
        "use_rel_pos_bias": False,
        "use_shared_rel_pos_bias": True,
        "layer_scale_init_value": 0.0,
        "out_type": "cls_token",
        "final_norm": True,
    },
    "distilled": {"type": "DistilledVisionTransformer"},
}


def head_of(name: str, backbone: Mapping[str, Any]) -> dict[str, Any]:
    """As the configurations of the models have it."""
    sizes = {"num_classes": CLASSES, "in_channels": WIDTH}
    if backbone.get("out_type") == "avg_featmap":
        return {"type": "LinearClsHead", **sizes}
    if name == "distilled":
        return {"type": "DeiTClsHead", **sizes}
    hidden = {"hidden_dim": 5} if name == "pre_logits" else {}
    return {"type": "VisionTransformerClsHead", **sizes, **hidden}


def model_of(name: str) -> torch.nn.Module:
    """The classifier of one of `BACKBONES`."""
    import mmpretrain.models  # noqa: F401
    from mmpretrain.registry import MODELS

    usual = {"type": "VisionTransformer", "arch": SIZES, "img_size": 12, "patch_size": 4}
    backbone = usual | BACKBONES[name]
    head = head_of(name, backbone)
    return MODELS.build({"type": "ImageClassifier", "backbone": backbone, "head": head})


@torch.no_grad()
def main() -> None:
    """Write the files anew."""
    from mmengine.logging import MessageHub

    hub = MessageHub.get_instance("training")
    hub.update_scalar("train/loss", 0.3)
    hub.update_info("iter", 3)
    for number, name in enumerate(BACKBONES):
        torch.manual_seed(number)
        model = randomise(model_of(name))
        images = torch.randn(2, 3, *model.backbone.img_size)
        torch.save(
            {
                "meta": {"epoch": 3, "dataset_meta": {"classes": ("cat", "dog", "owl")}},
                "state_dict": model.state_dict(),
                "message_hub": hub.state_dict(),
                "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]},
                "images": images,
                "output": model.head(model.backbone(images)),
            },
            FOLDER / f"{name}.pth",
        )


if __name__ == "__main__":
    main()
