"""From a reference to a model: locate, read the header, recognise, derive the configuration, plan,
prove the accounts, materialise."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.config import ViTConfig
from vitconvert.containers import Container, open_container, weights_in
from vitconvert.conversion.accounts import check_accounts, open_ledger
from vitconvert.conversion.facts import (
    USER,
    Gathered,
    derive_config,
    gather_facts,
    state,
    strongest,
)
from vitconvert.conversion.ledger import Ledger
from vitconvert.conversion.plan import plan_reading
from vitconvert.conversion.their_config import (
    Facts,
    broken_musts,
    facts_from_config,
    look_up,
    unknown_arguments,
)
from vitconvert.errors import CorruptFile, NotRepresentable, SourceError, UsageError
from vitconvert.fields import parse_field
from vitconvert.inference.labels import Labels, assumed_labels, stated_labels
from vitconvert.inference.preprocessing import Preprocessing
from vitconvert.sources import Located, locate
from vitconvert.tables.architectures import (
    FILE,
    architecture_in,
    find_architecture,
    named,
)
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

    located: Located
    container: Container
    recognised: Recognised
    their_config: Mapping[str, Any]
    config: ViTConfig
    ledger: Ledger

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
        return _preprocessing(self)

    @functools.cached_property
    def own_labels(self) -> Labels | None:
        """Names that the checkpoint itself gives its classes, or None."""
        return _own_labels(self)

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
        source, dialect=dialect, overrides=overrides, architecture=architecture, table=table
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
) -> Checkpoint:
    """Read a pretrained ViT checkpoint and return its tensors under canonical names.

    Nothing in the file is executed, and nothing is dropped in silence: each tensor of the file is
    used exactly once, or ignored for a reason that the dialect's table states.

    Args:
        source, dialect, overrides, architecture, table: As for `load_model`.

    Raises:
        SourceError: The source leads to no file.
        CorruptFile, UnsafeFile: The file cannot be read, or not safely.
        UnknownDialect, AmbiguousDialect: No table explains every key, or several do.
        TensorMismatch, ShapeMismatch: Tensors are missing, left over, doubled or misshapen.
        MissingFact, ConflictingFact: A fact that decides the function is not known, or
            contradicts the tensors.
        NotRepresentable: The checkpoint's own configuration asks for something unknown.
    """
    located = locate(source)
    return read_checkpoint(
        located, dialect=dialect, overrides=overrides, architecture=architecture, table=table
    )


def read_checkpoint(
    located: Located,
    *,
    dialect: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    architecture: str | None = None,
    table: Source | None = None,
) -> Checkpoint:
    """`load_checkpoint` of files that have been located."""
    reading = read_header(
        located, dialect=dialect, overrides=overrides, architecture=architecture, table=table
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
    user = _parsed(overrides or {})
    config, _ = derive_config(recognised.binding, state(user, USER))
    check_accounts(recognised.binding, config, "a state dict")
    plan = plan_reading(recognised.binding, config)
    return materialise(plan, lambda name: state_dict[recognised.prefix + name]), config


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
        dialect, overrides, architecture, table: As for `load_model`.
        prefer: The key whose weights to take where a torch checkpoint has several.
    """
    container, their_config = open_located(located, prefer)
    recognised = recognise_container(container, located, their_config, dialect, table)
    stated = stated_facts(recognised.table, located, their_config, overrides, architecture)
    config, ledger = prove(recognised, gather_facts(recognised.binding, stated), container)
    return Reading(
        located=located,
        container=container,
        recognised=recognised,
        their_config=their_config,
        config=config,
        ledger=ledger,
    )


def open_located(
    located: Located, prefer: str | None = None
) -> tuple[Container, Mapping[str, Any]]:
    """The weights, of which only the header is read, and the `config.json` beside them.

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
    return container, _read_json(located.config)


def recognise_container(
    container: Container,
    located: Located,
    their_config: Mapping[str, Any],
    dialect: str | None,
    table: Source | None,
) -> Recognised:
    """The dialect of a container; what vitconvert wrote itself says which it is."""
    shapes = {name: info.shape for name, info in container.manifest.items()}
    written_as = _read_json(located.own).get("target")
    return recognise(shapes, candidate_tables(dialect or written_as, table), their_config)


def prove(
    recognised: Recognised, gathered: Gathered, container: Container
) -> tuple[ViTConfig, Ledger]:
    """Everything is known, and every tensor accounted for, from headers alone.

    Raises:
        MissingFact, ConflictingFact, TensorMismatch: It is not.
    """
    config = gathered.config()
    check_accounts(recognised.binding, config, str(container.path))
    return config, open_ledger(recognised.binding, config, gathered.notes)


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
    """Assign a checkpoint's tensors to a model built on the meta device: no second copy."""
    from vitconvert.conversion.morphs import resize
    from vitconvert.model import FastViT, ViT

    tensors, config = checkpoint.tensors, checkpoint.config
    tensors, config, _ = resize(tensors, config, image_size=image_size, patch_size=patch_size)
    model = (FastViT if fast else ViT)(config, device="meta")
    aligned = {name: _aligned(tensor) for name, tensor in tensors.items() if _meets_one_row(name)}
    model.load_state_dict({**tensors, **aligned}, strict=True, assign=True)
    if num_classes is not None and num_classes != config.num_classes:
        model.reset_classifier(num_classes)
    return model.to(device=device, dtype=dtype or _computing_dtype(model)).eval()


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


def stated_facts(
    table: Table,
    located: Located,
    their_config: Mapping[str, Any],
    overrides: Mapping[str, Any] | None,
    architecture: str | None,
) -> Facts:
    """What is known besides the tensors, the strongest statement of each field.

    Raises:
        NotRepresentable: The project's own configuration names an unknown architecture, or passes
            it arguments that vitconvert has no word for.
    """
    user = _parsed(overrides or {})
    own = _read_json(located.own).get("config", {})
    if unknown := unknown_arguments(table, their_config):
        raise NotRepresentable(
            f"config.json passes arguments that vitconvert has no word for: {', '.join(unknown)}.",
            evidence={"file": located.config, "table": table.file},
            hint="A model that needs them computes another function than a plain ViT.",
        )
    if broken := broken_musts(table, their_config):
        raise NotRepresentable(
            f"config.json would have to say {', '.join(broken)}.",
            evidence={"file": located.config, "table": table.file},
            hint="Without it the same tensors mean another function, for which there is no table.",
        )
    return strongest(
        state(user, USER),
        state(_parsed(own), "vitconvert.json"),
        facts_from_config(table, their_config, known=user),
        _named_facts(table, located, their_config, architecture),
    )


def _parsed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Field values of the right types; None states nothing."""
    return {k: parse_field(k, value) for k, value in fields.items() if value is not None}


def _named_facts(
    table: Table, located: Located, their_config: Mapping[str, Any], architecture: str | None
) -> Facts:
    """Facts of the architecture that the user, the config, the reference or the file names."""
    key = table.config_file.architecture if table.config_file else ""
    ecosystem = (table.config_file and table.config_file.architectures) or table.ecosystem
    if not named(ecosystem):
        return {}
    # The reference comes before the config: timm's quickgelu names lead to repositories whose
    # config names another architecture.
    name = architecture or located.name or look_up(their_config, key)
    if name:
        facts = find_architecture(ecosystem, str(name))
        return state(facts, f"architecture {name}")
    assert located.weights is not None
    guess = architecture_in(ecosystem, located.weights.name)
    if guess is None:
        return {}
    facts = find_architecture(ecosystem, guess)
    return state(facts, f"assumed: the file name begins with {guess}; {FILE}")


def _weights(located: Located) -> Path:
    if located.weights is None:
        raise SourceError(f"{located.reference} has no weights.")
    return weights_in(located.weights) if located.weights.is_dir() else located.weights


def _read_json(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CorruptFile(
            f"{path.name} is not JSON.", evidence={"file": path, "problem": error}
        ) from None
    if not isinstance(value, dict):
        raise CorruptFile(f"{path.name} holds no JSON object.", evidence={"file": path})
    return value


def _preprocessing(reading: Reading) -> Preprocessing | None:
    """The checkpoint's own, in the order in which its projects would look."""
    if reading.config.in_channels not in (1, 3):
        return None  # photographs have no such channels
    own = _read_json(reading.located.own).get("preprocessing")
    if own:
        return Preprocessing.from_dict(own)
    if reading.located.preprocessor:
        return Preprocessing.from_huggingface(
            _read_json(reading.located.preprocessor),
            model_type=reading.their_config.get("model_type"),
            image_size=reading.config.image_size,
        )
    if isinstance(reading.their_config.get("pretrained_cfg"), dict):
        return Preprocessing.from_timm(reading.their_config["pretrained_cfg"])
    if reading.table.preprocessing:
        return Preprocessing.from_dialect(
            reading.table.preprocessing,
            image_size=reading.config.image_size,
            channels=reading.config.in_channels,
            origin=reading.table.file,
        )
    return None


def _own_labels(reading: Reading) -> Labels | None:
    config = reading.their_config
    names = config.get("id2label") or config.get("label_names")
    return stated_labels(
        reading.config.num_classes, names, descriptions=config.get("label_descriptions")
    )
