"""The result of a numerical audit: how far each arithmetic is from float64."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from vitconvert.parity.chart import Series
from vitconvert.parity.html import facts_table, framed, layers_section, page, shown, table
from vitconvert.parity.report import jsonable

NO_VERDICT = (
    "An audit measures and judges nothing. The figures are those of these images and this CPU; "
    "another processor rounds at other places."
)
_EXPLAINED = "Largest difference of each layer from float64, over its largest magnitude there."


@dataclass(frozen=True, kw_only=True)
class OutputAudit:
    """The outputs of one arithmetic for one kind of images.

    Attributes:
        arithmetic: "float32", "bfloat16", "float16", "fast", "compiled" or "onnxruntime".
        images: "noise" or "photograph".
        absolute: Largest difference from float64.
        relative: The same over the largest magnitude in float64.
        flips: Rows whose largest entry is another one, or that are not finite; None without a head.
        rows: Of the output: images, or tokens.
    """

    arithmetic: str
    images: str
    absolute: float
    relative: float
    flips: int | None
    rows: int


@dataclass(frozen=True, kw_only=True)
class LayerAudit:
    """One layer in one arithmetic, over all images.

    Attributes:
        arithmetic, layer: Which.
        relative: Largest difference from float64 over `largest`.
        largest: Largest magnitude in float64.
        infinite, nan: How many numbers are, in this arithmetic.
    """

    arithmetic: str
    layer: str
    relative: float
    largest: float
    infinite: int
    nan: int

    @property
    def finite(self) -> bool:
        """Whether all numbers are."""
        return not self.infinite and not self.nan


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """How far a model is from itself in float64, in each way to compute it.

    Attributes:
        source: The checkpoint.
        images: How many of each kind.
        outputs, layers: In the order of the arithmetics, images and computation.
        limits: The largest finite number of each arithmetic that was measured.
        peak: The largest magnitude of any module's output in float64.
        peak_module: The module whose output that is.
        unfit: By arithmetic, the weights that are finite but become infinite in it.
        skipped: Why an arithmetic was not measured.
    """

    source: str
    images: int
    outputs: tuple[OutputAudit, ...]
    layers: tuple[LayerAudit, ...]
    limits: Mapping[str, float]
    peak: float
    peak_module: str
    unfit: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the outputs in float32 are finite; more is not judged."""
        return all(
            math.isfinite(output.absolute)
            for output in self.outputs
            if output.arithmetic == "float32"
        )

    @property
    def verified(self) -> bool:
        """Always: the reference is the model itself."""
        return True

    @property
    def verdict(self) -> str:
        """In a few words: "measured" or "not finite in float32"."""
        return "measured" if self.ok else "not finite in float32"

    @property
    def first_overflow(self) -> dict[str, LayerAudit]:
        """By arithmetic, the first layer that is not finite; those without one are left out."""
        found: dict[str, LayerAudit] = {}
        for layer in self.layers:
            if not layer.finite:
                found.setdefault(layer.arithmetic, layer)
        return found

    def summary(self) -> str:
        """The tables in plain text."""
        rows = [_HEADER, *map(_cells, self.outputs)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"audit of {self.source}: {self.images} images of each kind, compared with float64",
            *("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows),
            *(f"  {name:<15}{text}" for name, text in self._findings()),
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON types; a number that is not finite is None."""
        overflow = {name: layer.layer for name, layer in self.first_overflow.items()}
        values = {"ok": self.ok, "verdict": self.verdict, **asdict(self)}
        cleaned: dict[str, Any] = jsonable({**values, "first_overflow": overflow})
        return cleaned

    def to_json(self) -> str:
        """`to_dict`, as text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def to_html(self) -> str:
        """One page that needs nothing else: outputs, chart of the layers, overflow."""
        mood = "open" if self.ok else "bad"
        facts = [("checkpoint", self.source), ("images", f"{self.images} of each kind")]
        return page(
            f"Audit: {self.verdict}",
            f'Numerical audit <span class="verdict {mood}">{shown(self.verdict)}</span>',
            [
                facts_table([*facts, *self._findings()]),
                "<h2>Outputs</h2>" + table(_HEADER, map(_cells, self.outputs)),
                layers_section(self._series(), explained=_EXPLAINED),
                self._range(),
            ],
        )

    def _repr_html_(self) -> str:
        """The same page inside a notebook's cell."""
        return framed(self.to_html())

    def _findings(self) -> Iterator[tuple[str, str]]:
        shares = [
            f"{100 * self.peak / limit:.2g} % of what {name} holds"
            for name, limit in self.limits.items()
            if limit < _LARGE
        ]
        yield "largest value", ", ".join([f"{self.peak:.3g} at {self.peak_module}", *shares])
        for name, names in self.unfit.items():
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield "weights", f"{names[0]}{others} does not fit into {name}"
        for name, layer in self.first_overflow.items():
            count = f"{layer.infinite} infinite, {layer.nan} NaN"
            yield "overflow", f"{name}: first in {layer.layer} ({count})"
        if not self.first_overflow:
            yield "overflow", "none"
        for name, why in self.skipped.items():
            yield "not measured", f"{name}: {why}"
        yield "note", NO_VERDICT

    def _by_arithmetic(self) -> dict[str, dict[str, LayerAudit]]:
        found: dict[str, dict[str, LayerAudit]] = {}
        for layer in self.layers:
            found.setdefault(layer.arithmetic, {})[layer.layer] = layer
        return found

    def _series(self) -> list[Series]:
        """Layers by arithmetic; a single output would be no line."""
        return [
            Series(name=name, values={layer: audit.relative for layer, audit in layers.items()})
            for name, layers in self._by_arithmetic().items()
            if len(layers) > 1
        ]

    def _range(self) -> str:
        """The magnitude of each layer, and what is not finite in it."""
        layered = {name: found for name, found in self._by_arithmetic().items() if len(found) > 1}
        rows = [
            (
                layer,
                f"{exact.largest:.3g}",
                *(_lost(found.get(layer)) for found in layered.values()),
            )
            for layer, exact in next(iter(layered.values()), {}).items()
        ]
        header = ["layer", "largest in float64", *(f"lost in {name}" for name in layered)]
        return (
            "<h2>Range</h2><p>The largest magnitude of each layer, and how many numbers become "
            f"infinite or NaN.</p><details><summary>The numbers</summary>{table(header, rows)}"
            "</details>"
        )


_HEADER = ("arithmetic", "images", "relative", "absolute", "argmax flips")
_LARGE = 1e30  # bfloat16 and float32 hold whatever a model computes


def _cells(output: OutputAudit) -> Sequence[str]:
    flips = "no head" if output.flips is None else f"{output.flips} of {output.rows}"
    return (
        output.arithmetic,
        output.images,
        f"{output.relative:.1e}",
        f"{output.absolute:.1e}",
        flips,
    )


def _lost(layer: LayerAudit | None) -> str:
    return "" if layer is None else str(layer.infinite + layer.nan)
