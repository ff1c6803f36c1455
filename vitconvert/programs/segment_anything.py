"""Meta's segment-anything: one class for the image encoder, built by arguments."""

from functools import partial
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable
from vitconvert.programs.program import Program
from vitconvert.programs.reference import Reference, as_tokens, load_strictly, own_tensors, package
from vitconvert.programs.taps import canonical_taps, channels_last
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import nn


class SegmentAnything(Program):
    """The package, which has no configuration files."""

    packages = ("segment-anything",)

    def other_sizes(self, table: Table) -> str:
        """The class takes one size."""
        return "none"

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """ImageEncoderViT of segment-anything 1.0 for the configuration."""

        package("segment_anything", install="segment-anything")
        config = checkpoint.config
        model = image_encoder(config)
        name = "segment-anything ImageEncoderViT"
        load_strictly(model, own_tensors(checkpoint), name)
        taps = canonical_taps(config.depth)  # of what the class does not have, there are none
        return Reference(
            name=name,
            model=model.eval(),
            taps=channels_last(taps),
            run=lambda model, images: as_tokens(model(images)),
            reads="tokens",
            told=("image_size", "num_heads", "norm_eps", "window_size", "global_blocks"),
        )


def image_encoder(config: ViTConfig) -> "nn.Module":
    """The class for a configuration.

    Raises:
        NotRepresentable: It has no argument for a part of the configuration.
    """
    from segment_anything.modeling import ImageEncoderViT
    from torch import nn

    if not config.square or config.activation != "gelu" or config.attention_scale:
        raise NotRepresentable(
            "ImageEncoderViT reads square images, has exact GELU, and scales by the width of its "
            "heads; this model does not."
        )
    model: nn.Module = ImageEncoderViT(
        img_size=config.image_size[0],
        patch_size=config.patch_size[0],
        in_chans=config.in_channels,
        embed_dim=config.embed_dim,
        depth=config.depth,
        num_heads=config.num_heads,
        mlp_ratio=(config.mlp_dim + 0.5) / config.embed_dim,  # the product is rounded down
        out_chans=config.neck_dim,
        qkv_bias=config.qkv_bias,
        norm_layer=partial(nn.LayerNorm, eps=config.norm_eps),
        use_abs_pos=config.grid_positions,
        use_rel_pos=True,
        window_size=config.window_size,
        global_attn_indexes=config.global_blocks,
    )
    return model


PROGRAM = SegmentAnything()
