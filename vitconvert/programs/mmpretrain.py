"""MMPretrain: classes that a configuration in Python builds by their arguments."""

from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.programs.program import Program

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vitconvert.programs.reference import Reference

# It requires old releases of some, and mmcv, which has to be built.
_INSTALL = (
    "--no-deps mmpretrain mmcv-lite mmengine && pip install addict importlib-metadata model-index "
    "opencv-python-headless rich termcolor yapf"
)
# Its classes are told everything but what their own defaults say.
_TOLD = ("image_size", "num_heads", "activation", "norm_eps", "pooling")


class MMPretrain(Program):
    """OpenMMLab's image classifiers."""

    packages = ("mmpretrain",)

    def reference(self, checkpoint: Checkpoint) -> "Reference":
        """The backbone and the head of the configuration, mmpretrain 1.2."""
        from vitconvert.programs.reference import Reference, load_strictly, own_tensors, package
        from vitconvert.programs.taps import Tap, block_taps

        mmpretrain = package("mmpretrain", install=_INSTALL)
        package("mmpretrain.models", install=_INSTALL)  # which registers the classes
        config = checkpoint.config
        if checkpoint.table.name == "mmpretrain_sam":
            return _sam(checkpoint, f"mmpretrain {mmpretrain.__version__} ViTSAM")
        beit = checkpoint.table.name == "mmpretrain_beit"
        model = classifier(config, beit=beit)
        name = f"mmpretrain {mmpretrain.__version__} {type(model.backbone).__name__}"
        load_strictly(model, _as_class_has(model, own_tensors(checkpoint)), name)
        taps = {"patch_embed": Tap("backbone.patch_embed.projection")}
        taps |= block_taps(
            config.depth, block="backbone.layers.{i}", norm2="ln2", norm="backbone.ln1"
        )
        return Reference(name=name, model=model.eval(), taps=taps, run=_run, told=_TOLD)


def _sam(checkpoint: Checkpoint, name: str) -> "Reference":
    """The image encoder of Segment Anything, which has no head."""
    from mmpretrain.registry import MODELS
    from torch import nn

    from vitconvert.programs.reference import Reference, as_tokens, load_strictly, own_tensors
    from vitconvert.programs.taps import block_taps, channels_last

    config = checkpoint.config
    backbone = {
        "type": "ViTSAM",
        "arch": _arch(config) | {"global_attn_indexes": config.global_blocks},
        "img_size": config.image_size,
        "patch_size": config.patch_size[0],
        "in_channels": config.in_channels,
        "out_channels": config.neck_dim,
        "qkv_bias": config.qkv_bias,
        "use_abs_pos": config.grid_positions,
        "window_size": config.window_size,
        "norm_cfg": {"type": "LN", "eps": config.norm_eps},
    }
    model: Any = nn.Module()
    model.backbone = MODELS.build(backbone)
    load_strictly(model, _as_class_has(model, own_tensors(checkpoint)), name)
    taps = block_taps(config.depth, block="backbone.layers.{i}", norm2="ln2", norm="")
    del taps["norm"]  # it has none of all tokens
    return Reference(
        name=name,
        model=model.eval(),
        taps=channels_last(taps),
        run=lambda model, images: as_tokens(_run(model, images)),
        reads="tokens",
        told=("image_size", "num_heads", "norm_eps", "window_size", "global_blocks"),
    )


def classifier(config: ViTConfig, *, beit: bool = False) -> Any:
    """A module with MMPretrain's `backbone` and, if there are classes, `head`.

    Args:
        config: Architecture and numerics.
        beit: Whether the backbone is BEiT's.
    """
    from mmpretrain.registry import MODELS
    from torch import nn

    model: Any = nn.Module()
    model.backbone = MODELS.build(_backbone(config, beit=beit))
    if config.num_classes:
        model.head = MODELS.build(_head(config))
    return model


def _head(config: ViTConfig) -> dict[str, Any]:
    sizes = {"num_classes": config.num_classes, "in_channels": config.embed_dim}
    if config.fc_norm and not config.representation_size:
        return {"type": "LinearClsHead", **sizes}
    kind = "DeiTClsHead" if config.dist_token else "VisionTransformerClsHead"
    return {"type": kind, "hidden_dim": config.representation_size or None, **sizes}


def _backbone(config: ViTConfig, *, beit: bool) -> dict[str, Any]:
    kind = "DistilledVisionTransformer" if config.dist_token else "VisionTransformer"
    hidden = config.mlp_dim * 3 // 2 if config.gated_mlp else config.mlp_dim
    backbone: dict[str, Any] = {
        "type": "BEiTViT" if beit else kind,
        "arch": _arch(config) | {"feedforward_channels": hidden},
        "img_size": config.image_size,
        "patch_size": config.patch_size[0],
        "in_channels": config.in_channels,
        "final_norm": config.final_norm,
        "out_type": "avg_featmap" if config.fc_norm else "cls_token",
        "norm_cfg": {"type": "LN", "eps": config.norm_eps},
        "layer_scale_init_value": 0.1 if config.layer_scale else 0.0,
    }
    if beit:
        backbone |= {
            "use_abs_pos_emb": config.learned_positions,
            "use_rel_pos_bias": config.block_relative_positions,
            "use_shared_rel_pos_bias": config.shared_relative_positions,
        }
    else:
        backbone["qkv_bias"] = config.qkv_bias
    if not (beit or config.dist_token):
        backbone["with_cls_token"] = config.class_token
    if config.pre_norm:
        backbone["pre_norm"] = True
    return backbone | {"layer_cfgs": _layers(config)}


def _arch(config: ViTConfig) -> dict[str, Any]:
    return {
        "embed_dims": config.embed_dim,
        "num_layers": config.depth,
        "num_heads": config.num_heads,
        "feedforward_channels": config.mlp_dim,
    }


def _layers(config: ViTConfig) -> dict[str, Any]:
    if config.gated_mlp:
        return {"ffn_type": "swiglu_fused"}
    return (
        {"act_cfg": {"type": "mmpretrain.QuickGELU"}} if config.activation == "quick_gelu" else {}
    )


def _as_class_has(model: "nn.Module", tensors: "dict[str, Tensor]") -> "dict[str, Tensor]":
    """With `backbone.`, which files without a head may lack, and the indices that are computed."""
    bare = not any(name.startswith("backbone.") for name in tensors)
    named = {f"backbone.{name}" if bare else name: t for name, t in tensors.items()}
    computed = {n: t for n, t in model.named_buffers() if n.endswith("relative_position_index")}
    classes = "head.fc." if "head.fc.weight" in model.state_dict() else "head.layers.head."
    for old in ("head.fc.", "head.layers.head."):  # one layer, in one or the other class of heads
        named = {name.replace(old, classes): t for name, t in named.items()}
    return computed | named


def _run(model: Any, images: "Tensor") -> "Tensor":
    features = model.backbone(images)
    if hasattr(model, "head"):
        logits: Tensor = model.head(features)
        return logits
    last: Tensor = features[-1]
    return last


PROGRAM = MMPretrain()
