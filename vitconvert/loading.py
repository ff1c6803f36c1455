"""From a reference to a model: locate, read the header, recognise, derive the configuration, plan,
prove the accounts, materialise."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.beside import Beside, parse_fields, read_beside
from vitconvert.config import ViTConfig
from vitconvert.containers import Container, open_container, passed_over, weights_in
from vitconvert.conversion.accounts import check_accounts, check_dtypes, open_ledger
from vitconvert.conversion.facts import Gathered, derive_config, gather_facts, state
from vitconvert.conversion.findings import USER
from vitconvert.conversion.ledger import Ledger
from vitconvert.conversion.plan import plan_reading
from vitconvert.errors import SourceError, UsageError
from vitconvert.inference.labels import Labels, assumed_labels
from vitconvert.inference.preprocessing import Preprocessing
from vitconvert.sources import Located, locate
from vitconvert.tables.detection import Recognised, recognise
from vitconvert.tables.dialects import find_tables, read_table
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    import torch

    from vitconvert.model import ViT

Source = str | PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the header of a checkpoint says, before any of its weights are read."""

    container: Container
    beside: Beside
    recognised: Recognised
    config: ViTConfig
    ledger: Ledger

    @property
    def located(self) -> Located:
        """The files."""
        return self.beside.located

    @property
    def their_config(self) -> Mapping[str, Any]:
        """The project's own `config.json`."""
        return self.beside.config

    @property
    def table(self) -> Table:
        """The dialect."""
        return self.recognised.table

    @property
    def dialect(self) -> str:
        """Name of the table."""
        return self.table.name

    @functools.cached_property
    def preprocessing(self) -> Preprocessing | None:
        """What turns a photograph into the model's input, or None if nothing says."""
        return self.beside.preprocessing(self.table, self.config)

    @functools.cached_property
    def own_labels(self) -> Labels | None:
        """Names that the checkpoint itself gives its classes, or None."""
        return self.beside.labels(self.config.num_classes)

    @functools.cached_property
    def labels(self) -> Labels | None:
        """Names of the classes, assumed if the checkpoint itself has none; None if unknown."""
        return self.own_labels or assumed_labels(self.config.num_classes)

    @functools.cached_property
    def checkpoint(self) -> "Checkpoint":
        """What the header promises, materialised once."""
        return checkpoint_of(self)

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that is read."""
        located = self.located
        companions = (located.config, located.preprocessor, located.own)
        return (*self.container.files, *(path for path in companions if path is not None))


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint under canonical names, with everything that decides its function.

    Attributes:
        tensors: Canonical name to tensor, on the CPU, in the dtype of the file; views on the
            mapped file where the layouts are the same.
        config: Architecture and numerics; `config.origins` says where each field is from.
        preprocessing: What turns a photograph into the model's input, or None if nothing says.
        own_labels: Names that the checkpoint itself gives its classes, or None.
        dialect: Name of the table.
        ledger: What was used, ignored (why), assumed (from where), changed (how).
        located: The files and where they came from.
        their_config: The project's own `config.json`, as far as there is one.
        files: Every file that was read.
    """

    tensors: Mapping[str, "torch.Tensor"]
    config: ViTConfig
    preprocessing: Preprocessing | None
    own_labels: Labels | None
    dialect: str
    ledger: Ledger
    located: Located
    their_config: Mapping[str, Any]
    files: tuple[Path, ...]

    @functools.cached_property
    def labels(self) -> Labels | None:
        """Names of the classes, assumed if the checkpoint itself has none; None if unknown."""
        return self.own_labels or assumed_labels(self.config.num_classes)


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
    return checkpoint_of(reading)


def checkpoint_of(reading: Reading) -> Checkpoint:
    """Materialise what a header promises."""
    from vitconvert.conversion.materialise import materialise

    container, prefix = reading.container, reading.recognised.prefix
    plan = plan_reading(reading.recognised.binding, reading.config)
    tensors = materialise(plan, lambda name: container.read(prefix + name))
    return checkpoint_with(reading, tensors)


def checkpoint_with(reading: Reading, tensors: "Mapping[str, torch.Tensor]") -> Checkpoint:
    """What a header says, with these tensors under canonical names."""
    return Checkpoint(
        tensors=tensors,
        config=reading.config,
        preprocessing=reading.preprocessing,
        own_labels=reading.own_labels,
        dialect=reading.dialect,
        ledger=reading.ledger,
        located=reading.located,
        their_config=reading.their_config,
        files=reading.files,
    )


def materialised(source: Reading | Checkpoint) -> Checkpoint:
    """The tensors of either."""
    return source.checkpoint if isinstance(source, Reading) else source


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


def read_header(
    located: Located,
    *,
    dialect: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    architecture: str | None = None,
    table: Source | None = None,
    prefer: str | None = None,
) -> Reading:
    """Everything up to the proof that the accounts close, from headers alone.

    Args:
        located: The files.
        dialect, overrides, architecture, table, prefer: As for `load_model`.
    """
    container, beside = open_located(located, prefer)
    recognised = recognise_container(container, beside, dialect, table)
    stated = beside.stated_facts(recognised.table, overrides, architecture)
    config, ledger = prove(recognised, gather_facts(recognised.binding, stated), container)
    return Reading(
        container=container, beside=beside, recognised=recognised, config=config, ledger=ledger
    )


def open_located(located: Located, prefer: str | None = None) -> tuple[Container, Beside]:
    """The weights, of which only the header is read, and what lies beside them.

    Raises:
        UsageError: The file has no weights under the key that is preferred.
    """
    container = open_container(_weights(located), prefer=(prefer,) if prefer else ())
    if prefer and prefer not in container.wrapper:
        raise UsageError(
            f"The checkpoint has no weights under {prefer!r}.",
            evidence={
                "file": container.path,
                "found": ".".join(container.wrapper) or "tensors at the top",
                "beside": ", ".join(container.extras) or "nothing",
            },
        )
    return container, read_beside(located)


def recognise_container(
    container: Container, beside: Beside, dialect: str | None, table: Source | None
) -> Recognised:
    """The dialect of a container; what vitconvert wrote itself says which it is."""
    shapes = {name: info.shape for name, info in container.manifest.items()}
    written_as = beside.own.get("target")
    return recognise(shapes, candidate_tables(dialect or written_as, table), beside.config)


def prove(
    recognised: Recognised, gathered: Gathered, container: Container
) -> tuple[ViTConfig, Ledger]:
    """Everything is known, and every tensor accounted for, from headers alone.

    Raises:
        MissingFact, ConflictingFact, TensorMismatch: It is not.
    """
    config = gathered.config()
    check_accounts(recognised.binding, config, str(container.path))
    manifest, prefix = container.manifest, recognised.prefix
    dtypes = {key: manifest[prefix + key].dtype for key in recognised.binding.shapes}
    check_dtypes(recognised.binding, dtypes, str(container.path))
    notes = (*gathered.notes, *passed_over(container))
    return config, open_ledger(recognised.binding, config, notes)


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
    from vitconvert.conversion.morphs import resize
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
            hint="the device cpu is always there",
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


def candidate_tables(dialect: str | None, table: Source | None) -> list[Table] | None:
    """The tables that may explain a checkpoint; None for any of `weights_map/`."""
    if table is not None:
        return [read_table(Path(table))]
    if dialect:
        return find_tables(dialect)
    return None


def _weights(located: Located) -> Path:
    if located.weights is None:
        raise SourceError(f"{located.reference} has no weights.")
    return weights_in(located.weights) if located.weights.is_dir() else located.weights
