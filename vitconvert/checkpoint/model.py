"""Puts a checkpoint's tensors into vitconvert's own ViT."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vitconvert.checkpoint.checkpoint import Checkpoint
from vitconvert.documents import JsonDict
from vitconvert.errors import UsageError, VitConvertError

if TYPE_CHECKING:
    import torch

    from vitconvert.model import ViT
    from vitconvert.preprocessing import Preprocessing


# A matrix times a single row is summed in another order if the matrix is not aligned in memory, as
# an allocator aligns it and a mapped file may not: the last bits differ (torch 2.15, MKL).
_ALIGNMENT = 64  # bytes
_ON_ONE_ROW = ("head", "pre_logits.", "attn_pool.")  # applied to the pooled token


def build_model(
    checkpoint: Checkpoint,
    *,
    image_size: int | tuple[int, int] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    in_channels: int | None = None,
    num_classes: int | None = None,
    drop_rates: Mapping[str, float] | None = None,
    dynamic_size: bool = False,
    dtype: "torch.dtype | None" = None,
    device: "torch.device | str" = "cpu",
    fast: bool = False,
) -> "ViT":
    """Assign a checkpoint's tensors to a model built on the meta device, without a second copy.

    The arguments are those of `vitconvert.load_model`, whose rates of dropout are `drop_rates`.

    Raises:
        UsageError: There is no such device here, or a change makes no sense for this model.
        MissingFact: Positions are resampled, and nothing tells by which rule.
    """
    import torch

    from vitconvert.checkpoint.from_model import remember
    from vitconvert.facts.surgery import change_channels
    from vitconvert.model import FastViT, ViT
    from vitconvert.model.resizing import require_rule, resize

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # torch without CUDA raises an AssertionError
        found = torch.accelerator.is_available()  # a GPU or the like
        accelerator = torch.accelerator.current_accelerator() if found else None
        raise UsageError(
            f"torch finds no device {str(device)!r} on this machine.",
            evidence={"devices here": f"cpu, {accelerator.type}" if accelerator else "cpu"},
            hint="choose one of these.",
        ) from None
    tensors, config = checkpoint.tensors, checkpoint.config
    sizes = {"image_size": image_size, "patch_size": patch_size}
    tensors, config, changes = resize(tensors, config, **sizes, doubt=checkpoint.resampling_doubt)
    if dynamic_size:
        config.require_images("A free image size")
    if dynamic_size and changes:
        raise UsageError(
            "A model of free image size keeps its own positions and patches.",
            evidence={"asked": "; ".join(changes)},
            hint="leave out image_size and patch_size, or dynamic_size.",
        )
    if in_channels is not None and in_channels != config.in_channels:
        tensors, config, change = change_channels(tensors, config, in_channels)
        changes = (*changes, change)
    if num_classes is not None and num_classes != config.num_classes:
        head = f"one of {num_classes}, not trained" if num_classes else "none"
        changes = (*changes, f"the head of {config.num_classes} classes became {head}")
    if drop_rates:
        config = config.replace(**drop_rates)
    model = (FastViT if fast else ViT)(config, device="meta")
    aligned = {
        name: tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith(_ON_ONE_ROW) and tensor.data_ptr() % _ALIGNMENT
    }
    model.load_state_dict({**tensors, **aligned}, strict=True, assign=True)
    remember(model, checkpoint, changes)
    if num_classes is not None and num_classes != config.num_classes:
        model.reset_classifier(num_classes)
    model.image_cfg, model.image_doubt = _image_cfg(checkpoint.preprocessing)
    model.resampling_doubt = checkpoint.resampling_doubt
    if dynamic_size:
        require_rule(config, checkpoint.resampling_doubt)
        model.patch_embed.strict_img_size = False
        # As its classes' convolutions do (transformers 5.24, `interpolate_pos_encoding=True`);
        # timm's ask for whole patches.
        model.patch_embed.cuts_off = checkpoint.table.program == "transformers"
    computing = torch.promote_types(model.patch_embed.a_weight().dtype, torch.float32)
    return model.to(device=device, dtype=dtype or computing).eval()


def _image_cfg(preprocessing: "Preprocessing | None") -> tuple[JsonDict, str]:
    """What timm's record of a model says of images, and how timm's pixels differ: "" if not at all.

    Not the size, which is the model's. {} where all of it is unknown, or timm has nothing near.
    """
    from vitconvert.preprocessing.departures import departures_of

    if preprocessing is None:
        return {}, ""
    own = "`vitconvert.load_checkpoint(...).preprocessing` makes the pixels of `predict`"
    try:
        cfg = preprocessing.to_timm()
        theirs = type(preprocessing).from_timm(cfg)
    except VitConvertError as error:
        return {}, f"no mean and std, so timm takes its defaults: {error.fact} {own}"
    departures = "; ".join(departures_of("timm", preprocessing, theirs))
    return cfg, departures and f"the nearest that timm can do, not equal: {departures}. {own}"
