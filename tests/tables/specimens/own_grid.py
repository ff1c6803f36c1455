"""timm's models with positions on a grid of their own, or with merged patches, small."""

from functools import partial
from typing import Any

from torch import nn

from tests.packages import timm
from tests.tables.specimens.specimen import GRID, PLAIN, Specimen

SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 3, "patch_size": 8}
EXPECTED = PLAIN | GRID | {"embed_dim": 48, "head_dim": 16, "depth": 2, "class_token": False}
STATED = {"num_heads": 3, **GRID}
RATIO = {"mlp_ratio": 50 / 48}
NAFLEX = {**RATIO, "reg_tokens": 2, "init_values": 1e-5}
FEATURES = {"num_classes": 0, "pooling": "none"}


def naflex(**changes: Any) -> nn.Module:
    kinds = timm.models.naflexvit
    config = kinds.NaFlexVitCfg(**SMALL | NAFLEX | changes)
    return kinds.NaFlexVit(config, num_classes=7)


def of_module(module: str, kind: str, **changes: Any) -> nn.Module:
    made: nn.Module = getattr(getattr(timm.models, module), kind)(**SMALL | changes)
    return made


deepseek = partial(of_module, "deepseek_vit")
qwen3 = partial(of_module, "qwen3_vit", **RATIO, pos_embed_grid_size=5)
gemma4 = partial(
    of_module, "gemma4_vit", head_dim=20, intermediate_size=50, position_embedding_size=6
)

OWN_GRID = {
    "timm NaFlex, a grid": Specimen(
        dialect="timm_naflex",
        make=partial(naflex, global_pool="avg", fc_norm=True, pos_embed_grid_size=(5, 3)),
        stated=STATED | {"pooling": "avg"},
        expected=EXPECTED
        | {"position_embedding": "grid", "position_grid": (5, 3), "num_registers": 2},
    ),
    "timm NaFlex, rows and columns": Specimen(
        dialect="timm_naflex",
        make=partial(
            naflex,
            depth=11,
            global_pool="map",
            pos_embed="factorized",
            pos_embed_ar_preserving=True,
            pos_embed_grid_size=(5, 5),
        ),
        stated=STATED | {"position_square": True},
        expected=EXPECTED
        | {"position_embedding": "axes", "position_grid": (5, 5), "pooling": "map", "depth": 11},
    ),
    "timm DeepSeek": Specimen(
        dialect="timm_deepseek",
        make=partial(deepseek, "DeepseekVitClassifier", num_classes=7),
        stated=STATED | {"rope": "axial"},
        expected=EXPECTED
        | {"mlp_dim": 132, "bare_fc_norm": True, "pooling": "avg", "norm": "rms", "merge_size": 0},
    ),
    "timm DeepSeek, aligned": Specimen(
        dialect="timm_deepseek_enc",
        make=partial(deepseek, "DeepseekVitEncoder", depth=11, out_features=20),
        stated=STATED,
        expected=EXPECTED
        | FEATURES
        | {"depth": 11, "mlp_dim": 132, "merge_size": 3, "merge_mlp_dim": 20, "merge_dim": 20},
    ),
    "timm Qwen3": Specimen(
        dialect="timm_qwen3",
        make=partial(qwen3, "Qwen3VitClassifier", num_classes=7),
        stated=STATED | {"rope": "axial"},
        expected=EXPECTED | {"position_grid": (5, 5), "final_norm": False, "bare_fc_norm": True},
    ),
    "timm Qwen3, merged": Specimen(
        dialect="timm_qwen3_enc",
        make=partial(qwen3, "Qwen3VitEncoder", depth=11, out_features=20),
        stated=STATED | {"image_size": (32, 16)},
        expected=EXPECTED
        | FEATURES
        | {"depth": 11, "image_size": (32, 16), "merge_size": 2, "merge_mlp_dim": 192},
    ),
    "timm Gemma 4": Specimen(
        dialect="timm_gemma4",
        make=partial(gemma4, "Gemma4VitClassifier", num_classes=7, standardize=True),
        stated=GRID,
        expected=EXPECTED
        | {"head_dim": 20, "block_order": "sandwich", "merge_standard": True, "merge_size": 0},
    ),
    "timm Gemma 4, pooled": Specimen(
        dialect="timm_gemma4_enc",
        make=partial(gemma4, "Gemma4VitEncoder", depth=11, use_clipped_linears=True),
        stated={"image_size": (48, 24)},
        expected=EXPECTED
        | FEATURES
        | {"depth": 11, "image_size": (48, 24), "head_dim": 20, "clipped_linears": True},
    ),
}
