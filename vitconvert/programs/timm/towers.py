"""timm's models whose blocks lie in an encoder, or that read images of any size."""

from dataclasses import replace

from torch import nn

from vitconvert.config import ViTConfig
from vitconvert.programs.reference import Reference, call
from vitconvert.programs.taps import Tap, Taps, block_taps

# Of what timm computes in float32 in any case: the resampling of positions (naflexvit), norms
# (deepseek_vit) and, here, the angles of rotations that are not made for one size (qwen3_vit).
_ROUNDS = ("NaFlexVit", "DeepseekVit", "Qwen3Vit")
_ENCODERS = (*_ROUNDS[1:], "Gemma4Vit")
_TOLD = ("image_size",)


def tower_reference(model: nn.Module, config: ViTConfig, name: str) -> Reference | None:
    """A model of these modules as a reference; None for any other."""
    kind = type(model).__name__
    if not kind.startswith((*_ROUNDS, *_ENCODERS)):
        return None
    found = Reference(name=name, model=model, taps=_taps(model, config), run=call, told=_TOLD)
    return replace(found, dtypes=("float32",)) if kind.startswith(_ROUNDS) else found


def _taps(model: nn.Module, config: ViTConfig) -> Taps:
    encoder = "encoder." if hasattr(model, "encoder") else ""
    norm2 = "norm3" if config.sandwich else "norm2"
    block = f"{encoder}blocks.{{i}}"
    taps = block_taps(config.depth, block=block, norm2=norm2, norm=f"{encoder}norm")
    if encoder or hasattr(model, "aligner") or hasattr(model, "merger"):
        if not config.own_grid:
            taps["patch_embed"] = Tap(f"{encoder}patch_embed", channels_last=True)
        else:
            del taps["norm"]  # of a grid of tokens, or none
    return taps if config.num_classes == 0 else {**taps, "features": Tap("head", input=True)}
