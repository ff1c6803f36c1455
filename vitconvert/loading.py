"""From a reference to a model: locate, read the header, recognise, derive the configuration, plan,
prove the accounts, materialise."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vitconvert.beside import parse_fields
from vitconvert.checkpoint import Checkpoint, Source, candidate_tables, read_header
from vitconvert.config import ViTConfig
from vitconvert.conversion.accounts import check_accounts, check_dtypes
from vitconvert.conversion.derivation import derive_config, state
from vitconvert.conversion.plan import plan_reading
from vitconvert.conversion.tensor_evidence import USER
from vitconvert.errors import UsageError
from vitconvert.sources import Located, locate
from vitconvert.tables.detection import recognise

if TYPE_CHECKING:
    import torch

    from vitconvert.model import ViT


def load_model(
    source: Source,
    *,
    dialect: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    architecture: str | None = None,
    table: Source | None = None,
    prefer: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    num_classes: int | None = None,
    dtype: "torch.dtype | None" = None,
    device: "torch.device | str" = "cpu",
    fast: bool = False,
) -> "ViT":
    """Load a pretrained ViT, whatever its spelling, as vitconvert's own, in eval mode.

    Args:
        source: A path, `timm:NAME`, `hf-hub:ORG/REPO` and what else `sources.locate` takes.
        dialect: Name of a table of `weights_map/` or of an ecosystem; by default the one table
            that explains every key.
        overrides: Fields of ViTConfig that the tensors cannot tell, such as `{"num_heads": 3}`.
        architecture: Name of an architecture, for files that cannot tell what they are.
        table: A TOML file with one more dialect.
        prefer: Which weights to take of a torch checkpoint that has several, such as "model"
            where averaged ones lie beside them; by default the averaged ones.
        image_size: Resample the positions to this size, by the project's own rule.
        patch_size: Resize the kernel of the patches as FlexiViT does, and resample the positions.
        num_classes: Replace the head by a new one of this size (0: none).
        dtype: Cast the weights; by default, half-precision weights become float32, which is exact
            and what their projects compute in on a CPU, and others stay as they are.
        device: Where the model goes.
        fast: Build a `model.fast.FastViT`, for inference only: faster, and equal within rounding
            where the usual one is equal to the last bit.

    Raises:
        VitConvertError: One of the errors of `load_checkpoint`.

    Example:
        >>> model = load_model("ViT-B_16.npz")            # doctest: +SKIP
        >>> logits = model(images)                        # doctest: +SKIP
    """
    checkpoint = load_checkpoint(
        source,
        dialect=dialect,
        overrides=overrides,
        architecture=architecture,
        table=table,
        prefer=prefer,
    )
    return build_model(
        checkpoint,
        image_size=image_size,
        patch_size=patch_size,
        num_classes=num_classes,
        dtype=dtype,
        device=device,
        fast=fast,
    )


def load_checkpoint(
    source: Source,
    *,
    dialect: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    architecture: str | None = None,
    table: Source | None = None,
    prefer: str | None = None,
) -> Checkpoint:
    """Read a pretrained ViT checkpoint and return its tensors under canonical names.

    Nothing in the file is executed, and nothing is dropped in silence: each tensor of the file is
    used exactly once, or ignored for a reason that the dialect's table states.

    Args:
        source, dialect, overrides, architecture, table, prefer: As for `load_model`.

    Raises:
        SourceError: The source leads to no file.
        CorruptFile, UnsafeFile: The file cannot be read, or not safely.
        UnknownDialect, AmbiguousDialect: No table explains every key, or several do.
        TensorMismatch, ShapeMismatch: Tensors are missing, left over, doubled or misshapen.
        MissingFact, ConflictingFact: A fact that decides the function is not known, or
            contradicts the tensors.
        NotRepresentable: The checkpoint's own configuration asks for something unknown.
    """
    return read_checkpoint(
        locate(source),
        dialect=dialect,
        overrides=overrides,
        architecture=architecture,
        table=table,
        prefer=prefer,
    )


def read_checkpoint(
    located: Located,
    *,
    dialect: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    architecture: str | None = None,
    table: Source | None = None,
    prefer: str | None = None,
) -> Checkpoint:
    """`load_checkpoint` of files that have been located."""
    reading = read_header(
        located,
        dialect=dialect,
        overrides=overrides,
        architecture=architecture,
        table=table,
        prefer=prefer,
    )
    return reading.checkpoint


def read_state_dict(
    state_dict: "Mapping[str, torch.Tensor]",
    *,
    dialect: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> "tuple[dict[str, torch.Tensor], ViTConfig]":
    """The tensors of a state dict under canonical names, and their configuration.

    Raises:
        VitConvertError: One of the errors of `load_checkpoint`.
    """
    from vitconvert.conversion.materialise import materialise

    shapes = {name: tuple(tensor.shape) for name, tensor in state_dict.items()}
    recognised = recognise(shapes, candidate_tables(dialect, None))
    user = parse_fields(overrides or {})
    config, _ = derive_config(recognised.binding, state(user, USER))
    check_accounts(recognised.binding, config, "a state dict")
    theirs = {key: state_dict[recognised.prefix + key] for key in recognised.binding.shapes}
    dtypes = {key: str(tensor.dtype).removeprefix("torch.") for key, tensor in theirs.items()}
    check_dtypes(recognised.binding, dtypes, "a state dict")
    plan = plan_reading(recognised.binding, config)
    return materialise(plan, theirs.__getitem__), config


def build_model(
    checkpoint: Checkpoint,
    *,
    image_size: int | tuple[int, int] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    num_classes: int | None = None,
    dtype: "torch.dtype | None" = None,
    device: "torch.device | str" = "cpu",
    fast: bool = False,
) -> "ViT":
    """Assign a checkpoint's tensors to a model built on the meta device: no second copy.

    Raises:
        UsageError: There is no such device here.
    """
    from vitconvert.conversion.surgery import resize
    from vitconvert.model import FastViT, ViT

    _check_device(device)
    tensors, config = checkpoint.tensors, checkpoint.config
    tensors, config, _ = resize(tensors, config, image_size=image_size, patch_size=patch_size)
    model = (FastViT if fast else ViT)(config, device="meta")
    aligned = {name: _aligned(tensor) for name, tensor in tensors.items() if _meets_one_row(name)}
    model.load_state_dict({**tensors, **aligned}, strict=True, assign=True)
    if num_classes is not None and num_classes != config.num_classes:
        model.reset_classifier(num_classes)
    return model.to(device=device, dtype=dtype or _computing_dtype(model)).eval()


def _check_device(device: "torch.device | str") -> None:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter from a torch without CUDA
        raise UsageError(
            f"torch finds no device {str(device)!r} to compute on.",
            evidence={"reason": str(error).splitlines()[0]},
            hint="the device cpu is always there.",
        ) from None


# A matrix times a single row is summed in another order where the matrix does not begin as an
# allocator would have it, which a mapped file need not: the last bits differ (torch 2.15, MKL).
_ALIGNMENT = 64  # bytes


def _meets_one_row(name: str) -> bool:
    """Whether a tensor is applied to the pooled token, of which one image has one."""
    return name.startswith(("head", "pre_logits.", "attn_pool."))


def _aligned(tensor: "torch.Tensor") -> "torch.Tensor":
    return tensor.clone() if tensor.data_ptr() % _ALIGNMENT else tensor


def _computing_dtype(model: "ViT") -> "torch.dtype":
    import torch

    return torch.promote_types(model.patch_embed.proj.weight.dtype, torch.float32)
