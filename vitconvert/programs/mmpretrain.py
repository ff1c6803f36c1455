"""MMPretrain: classes that a configuration in Python builds by their arguments."""

from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonDict
from vitconvert.programs.program import Foreign, Program
from vitconvert.programs.reference import Reference, as_tokens, load_strictly, own_tensors, package
from vitconvert.programs.taps import Tap, block_taps, channels_last

if TYPE_CHECKING:
    from torch import Tensor


# It requires old releases of some, and mmcv, which has to be built.
_INSTALL = (
    "--no-deps mmpretrain mmcv-lite mmengine && pip install addict importlib-metadata model-index "
    "opencv-python-headless rich termcolor yapf"
)
# Fields with which its classes are built.
_TOLD = ("image_size", "num_heads", "activation", "norm_eps", "pooling")
_TOLD_OF_SAM = ("image_size", "num_heads", "norm_eps", "window_size", "global_blocks")


class MMPretrain(Program):
    """OpenMMLab's image classifiers."""

    packages = ("mmpretrain",)

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """The backbone and the head of the configuration, mmpretrain 1.2."""
        from torch import nn

        mmpretrain = package("mmpretrain", install=_INSTALL)
        package("mmpretrain.models", install=_INSTALL)  # which registers the classes
        from mmpretrain.registry import MODELS

        config, tensors = checkpoint.config, own_tensors(checkpoint)
        model: Foreign = nn.Module()
        if sam := checkpoint.table.name == "mmpretrain_sam":
            model.backbone = MODELS.build(_sam_backbone(config))
        else:
            beit = checkpoint.table.name == "mmpretrain_beit"
            model.backbone = MODELS.build(_backbone(config, beit=beit))
            if config.num_classes:
                model.head = MODELS.build(_head(config))
        name = f"mmpretrain {mmpretrain.__version__} {type(model.backbone).__name__}"
        # Files without a head may lack "backbone.", and indices are computed.
        bare = not any(name.startswith("backbone.") for name in tensors)
        named = {f"backbone.{name}" if bare else name: t for name, t in tensors.items()}
        computed = {n: t for n, t in model.named_buffers() if n.endswith("relative_position_index")}
        own = model.state_dict()
        classes = "head.fc." if "head.fc.weight" in own else "head.layers.head."
        for old in ("head.fc.", "head.layers.head."):  # one layer, in either class of heads
            named = {name.replace(old, classes): t for name, t in named.items()}
        load_strictly(model, computed | named, name)
        norm = "" if sam else "backbone.ln1"
        taps = block_taps(config.depth, block="backbone.layers.{i}", norm2="ln2", norm=norm)
        if sam:
            del taps["norm"]  # there is no norm of all tokens
            taps = channels_last(taps)
        else:
            taps["patch_embed"] = Tap("backbone.patch_embed.projection")
        return Reference(
            name=name,
            model=model.eval(),
            taps=taps,
            run=_run,
            reads="tokens" if sam else "output",
            told=_TOLD_OF_SAM if sam else _TOLD,
        )


def _sam_backbone(config: ViTConfig) -> JsonDict:
    """The image encoder of Segment Anything, which has no head."""
    return {
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


def _backbone(config: ViTConfig, *, beit: bool) -> JsonDict:
    kind = "DistilledVisionTransformer" if config.dist_token else "VisionTransformer"
    hidden = config.mlp_dim * 3 // 2 if config.gated_mlp else config.mlp_dim
    backbone: JsonDict = {
        "type": "BEiTViT" if beit else kind,
        "arch": _arch(config) | {"feedforward_channels": hidden},
        "img_size": config.image_size,
        "patch_size": config.patch_size[0],
        "in_channels": config.in_channels,
        "final_norm": config.final_norm,
        "out_type": "avg_featmap" if config.fc_norm else "cls_token",
        "norm_cfg": {"type": "LN", "eps": config.norm_eps},
        "layer_scale_init_value": 0.1 if config.layer_scale else 0.0,
        "layer_cfgs": {},
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
    if config.gated_mlp:
        backbone["layer_cfgs"] = {"ffn_type": "swiglu_fused"}
    elif config.activation == "quick_gelu":
        backbone["layer_cfgs"] = {"act_cfg": {"type": "mmpretrain.QuickGELU"}}
    return backbone


def _arch(config: ViTConfig) -> JsonDict:
    return {
        "embed_dims": config.embed_dim,
        "num_layers": config.depth,
        "num_heads": config.num_heads,
        "feedforward_channels": config.mlp_dim,
    }


def _head(config: ViTConfig) -> JsonDict:
    sizes = {"num_classes": config.num_classes, "in_channels": config.embed_dim}
    if config.fc_norm and not config.representation_size:
        return {"type": "LinearClsHead", **sizes}
    kind = "DeiTClsHead" if config.dist_token else "VisionTransformerClsHead"
    return {"type": kind, "hidden_dim": config.representation_size or None, **sizes}


def _run(model: Foreign, images: "Tensor") -> "Tensor":
    """Logits, or the last features, of which maps become tokens."""

    features = model.backbone(images)
    if hasattr(model, "head"):
        logits: Tensor = model.head(features)
        return logits
    return as_tokens(features[-1])


PROGRAM = MMPretrain()
