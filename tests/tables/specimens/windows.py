"""Models with windows, or with relative positions of an MLP or of rows and columns, small."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.packages import segment_anything, timm, transformers
from tests.tables.specimens.specimen import GRID, PLAIN, Specimen

WIDE = PLAIN | {"embed_dim": 36, "head_dim": 12, "class_token": False}
SIZES = {"img_size": (32, 24), "patch_size": 8, "num_classes": 7, "embed_dim": 36, "depth": 11}
SIZES |= {"num_heads": 3, "mlp_ratio": 50 / 36}
GLOBAL = (1, 4, 10)
WINDOWS = {"window_size": 3, "global_attn_indexes": GLOBAL}
ENCODER = WIDE | {"num_classes": 0, "pooling": "none", "image_size": (40, 40), "neck_dim": 8}
ENCODER |= {"window_size": 3, "global_blocks": GLOBAL, "final_norm": False}
ENCODER |= {"relative_positions": "decomposed"}
HF = {"hidden_size": 36, "num_hidden_layers": 11, "num_attention_heads": 3, "patch_size": 8}


def relpos(post: bool = False, **changes: Any) -> nn.Module:
    kinds = timm.models.vision_transformer_relpos
    block = kinds.ResPostRelPosBlock if post else kinds.RelPosBlock
    made: nn.Module = kinds.VisionTransformerRelPos(block_fn=block, **SIZES | changes)
    return made


def samvit(**changes: Any) -> nn.Module:
    kind = timm.models.vision_transformer_sam.VisionTransformerSAM
    made: nn.Module = kind(use_rel_pos=True, **SIZES | WINDOWS | changes)
    return made


def image_encoder() -> nn.Module:
    made: nn.Module = segment_anything.modeling.ImageEncoderViT(
        **SIZES_OF_ENCODER, **WINDOWS, out_chans=8, use_rel_pos=True, norm_layer=NORM
    )
    return made


NORM = partial(nn.LayerNorm, eps=1e-6)
SIZES_OF_ENCODER = {k: v for k, v in SIZES.items() if k != "num_classes"} | {"img_size": 40}


def hf_sam() -> nn.Module:
    sizes = HF | {"mlp_dim": 50, "image_size": 40, "output_channels": 8}
    made: nn.Module = transformers.SamVisionModel(transformers.SamVisionConfig(**sizes, **WINDOWS))
    return made


def hf_vitdet(*image_size: int, relative: bool = True) -> nn.Module:
    made: nn.Module = transformers.VitDetModel(
        transformers.VitDetConfig(
            **HF,
            mlp_ratio=2,
            image_size=list(image_size or (40, 32)),
            pretrain_image_size=24,
            window_size=3,
            window_block_indices=[i for i in range(11) if i not in GLOBAL],
            use_relative_position_embeddings=relative,
        )
    )
    return made


def tokens(features: Tensor) -> Tensor:
    return features.flatten(2).transpose(1, 2)


def last_tokens(found: Any) -> Tensor:
    return tokens(found.last_hidden_state)


def vitdet_shapes(*image_size: int) -> dict[str, tuple[int, ...]]:
    """detectron2's names of what transformers' port has."""
    with torch.device("meta"):
        state = hf_vitdet(*image_size).state_dict()
    return {detectron2(name): tuple(tensor.shape) for name, tensor in state.items()}


def detectron2(name: str) -> str:
    name = name.replace("encoder.layer.", "blocks.").replace(".attention.", ".attn.")
    name = name.replace("embeddings.projection.", "patch_embed.proj.")
    return name.replace("embeddings.position_embeddings", "pos_embed")


VITDET = ENCODER | {"neck_dim": 0, "image_size": (40, 32), "mlp_dim": 72}
VITDET |= {"position_embedding": "class_grid", "position_grid": (3, 3)}

OF_WINDOWS = {
    "timm relative positions of an MLP": Specimen(
        dialect="timm_relpos",
        make=partial(relpos, rel_pos_dim=9, class_token=True, global_pool="token"),
        stated=GRID | {"pooling": "token"},
        expected=WIDE
        | GRID
        | {"relative_positions": "block_mlp", "relative_mlp_dim": 9, "class_token": True}
        | {"position_embedding": "none", "layer_scale": True},
    ),
    "timm relative positions of one MLP": Specimen(
        dialect="timm_relpos",
        make=partial(relpos, rel_pos_dim=9, shared_rel_pos=True, fc_norm=True),
        stated=GRID,
        expected=WIDE | GRID | {"relative_positions": "shared_mlp", "pooling": "avg"},
    ),
    "timm relative positions of a table": Specimen(
        dialect="timm_relpos",
        make=partial(relpos, post=True, rel_pos_type="bias"),
        stated=GRID | {"block_order": "res_post_norm"},
        expected=WIDE | GRID | {"relative_positions": "block", "layer_scale": False},
    ),
    "timm SAM": Specimen(
        dialect="timm_sam",
        make=partial(samvit, neck_chans=8),
        expected=WIDE
        | GRID
        | {"relative_positions": "decomposed", "window_size": 3, "global_blocks": GLOBAL}
        | {"neck_dim": 8, "position_embedding": "grid", "position_grid": (4, 3)}
        | {"pooling": "avg", "norm_eps": 1e-5},
    ),
    "timm SAM without a neck": Specimen(
        dialect="timm_sam",
        make=partial(samvit, neck_chans=None, use_abs_pos=False, img_size=(56, 40)),
        expected=WIDE
        | {"image_size": (56, 40), "window_size": 3, "global_blocks": GLOBAL, "neck_dim": 0}
        | {"position_embedding": "none", "final_norm_eps": 1e-6},
    ),
    "Meta SAM": Specimen(dialect="sam", make=image_encoder, expected=ENCODER, outputs=tokens),
    "transformers SAM": Specimen(
        dialect="hf_sam", make=hf_sam, expected=ENCODER, outputs=last_tokens
    ),
    "transformers VitDet": Specimen(
        dialect="hf_vitdet", make=hf_vitdet, expected=VITDET, outputs=last_tokens
    ),
    "transformers VitDet without relative positions": Specimen(
        dialect="hf_vitdet_plain",
        make=partial(hf_vitdet, relative=False),
        stated={"num_heads": 3, "image_size": (40, 32), "window_size": 3, "global_blocks": GLOBAL},
        expected=VITDET | {"relative_positions": "none"},
        outputs=last_tokens,
    ),
}
VITDETS = {
    "detectron2 ViTDet": Specimen(dialect="vitdet", make=vitdet_shapes, expected=VITDET),
}
