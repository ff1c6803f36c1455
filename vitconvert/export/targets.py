"""What `--to` means: which dialect, with which companions, holds a model's function."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitconvert.config import ViTConfig, field_names
from vitconvert.conversion.facts import state
from vitconvert.conversion.target import Target, fit_target
from vitconvert.errors import NotRepresentable
from vitconvert.export.huggingface_config import huggingface_config
from vitconvert.export.timm_config import timm_config, timm_config_by_name
from vitconvert.inference.labels import Labels
from vitconvert.inference.preprocessing import Preprocessing
from vitconvert.tables.architectures import find_architecture
from vitconvert.tables.table import Table, builtin_tables, find_tables

OWN = "vit"
_BY_ARGUMENTS = ("timm", "timm_root_stem")  # what timm's VisionTransformer can be told to be
_OWN_LAYOUTS = ("timm", "hf", "vit")  # what `vit` writes: the first that holds the function


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A model and what travels with it, on the way to a target."""

    config: ViTConfig
    preprocessing: Preprocessing | None = None
    labels: Labels | None = None
    dialect: str | None = None  # that the model was read from
    architecture: str | None = None  # of timm, that the model came with
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of timm, that it came with
    pretrained_cfg: dict[str, Any] | None = None


def choose_target(to: str, wish: Wish) -> tuple[Target, dict[str, str]]:
    """The dialect that `to` means for this model.

    Returns:
        The target, and why other dialects of the ecosystem (or for `vit`, other layouts) were
        passed over: name -> reason.

    Raises:
        NotRepresentable: None of them can compute this function. The reasons of all are given.
        UsageError: `to` is neither an ecosystem nor a dialect.
    """
    refused: dict[str, str] = {}
    errors = []
    for tables in _candidates(to, wish.dialect):
        guarded = None
        for table in tables:
            try:
                target = _fit(table, wish)
            except NotRepresentable as error:
                refused[table.name] = reason(error)
                errors.append(error)
                continue
            # A part that is left out must be zero, which the header does not show.
            if not target.plan.zeros:
                return target, refused
            guarded = guarded or target
        if guarded:
            return guarded, refused
    if len(errors) == 1:
        raise errors[0]
    raise NotRepresentable(
        f"No dialect of {to!r} computes the function of these weights.",
        details=[f"{name}: {reason}" for name, reason in refused.items()],
    )


def _candidates(to: str, dialect: str | None) -> list[list[Table]]:
    """The tables of each layout that may be written, the one that was read first."""
    layouts = [find_tables(layout) for layout in (_OWN_LAYOUTS if to == OWN else (to,))]
    return [
        sorted(
            (t for t in tables if t.name == to or not _historic(t)), key=lambda t: t.name != dialect
        )
        for tables in layouts
    ]


def _historic(table: Table) -> bool:
    """Spellings that today's release of the project does not write."""
    return table.name.endswith("_memory") or table.name == "timm_2020"


def _fit(table: Table, wish: Wish) -> Target:
    match table.ecosystem:
        case "timm":
            return _fit_timm(table, wish)
        case "hf":
            companion = huggingface_config(table, wish.config, labels=wish.labels)
            return fit_target(table, wish.config, companion)
        case ecosystem if ecosystem == OWN:
            own = {name: getattr(wish.config, name) for name in field_names()}
            stated = {name: value for name, value in own.items() if value is not None}
            return fit_target(table, wish.config, named=state(stated, "vitconvert.json"))
    return fit_target(table, wish.config)


def _fit_timm(table: Table, wish: Wish) -> Target:
    """By arguments, which describe a plain ViT, or else by an architecture's name."""
    if table.name not in _BY_ARGUMENTS:
        return _fit_timm_by_name(table, wish)
    try:
        return _fit_timm_by_arguments(table, wish)
    except NotRepresentable as by_arguments:
        try:
            return _fit_timm_by_name(table, wish)
        except NotRepresentable:
            raise by_arguments from None


def _fit_timm_by_arguments(table: Table, wish: Wish) -> Target:
    companions = _timm_companions(wish)
    written = timm_config(table, wish.config, architecture=wish.architecture, **companions)
    # All else about the architecture is overruled by the arguments that go with it.
    eps = find_architecture("timm", written["architecture"])["norm_eps"]
    return fit_target(table, wish.config, written, state({"norm_eps": eps}, "architecture"))


def _fit_timm_by_name(table: Table, wish: Wish) -> Target:
    """The name that the checkpoint came with, or one that fits."""
    written = timm_config_by_name(
        table,
        wish.config,
        architecture=wish.architecture if wish.dialect == table.name else None,
        arguments=wish.arguments,
        **_timm_companions(wish),
    )
    row = find_architecture("timm", written["architecture"])
    return fit_target(table, wish.config, written, state(row, "architecture"), only=False)


def _timm_companions(wish: Wish) -> dict[str, Any]:
    return {
        "preprocessing": wish.preprocessing,
        "labels": wish.labels,
        "pretrained_cfg": wish.pretrained_cfg,
    }


def holders(wish: Wish) -> dict[str, str | None]:
    """For every dialect, None if it can hold the model, else why it cannot."""
    found: dict[str, str | None] = {}
    for name, table in builtin_tables().items():
        try:
            _fit(table, wish)
            found[name] = None
        except NotRepresentable as error:
            found[name] = reason(error)
    return found


def reason(error: NotRepresentable) -> str:
    """Why a dialect was refused, in one line."""
    evidence = (f"{k} {v}" for k, v in error.evidence.items() if k != "table")
    return "; ".join(error.details) or "; ".join((error.fact.rstrip("."), *evidence))
