"""The result of a comparison with another implementation."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from vitconvert.comparison import Comparison, Divergence, LayerDifference
from vitconvert.errors import ParityFailed
from vitconvert.pages import framed
from vitconvert.parity.page import parity_page

UNKNOWN = "unknown"  # the cause of a difference that no known mistake explains
ON_FILES = "images"  # of the user, each side behind its own preprocessing, as comparisons call them
PIXELS_DIFFER = "pixels differ"  # how a note on preprocessing begins, then


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Whether a model's numbers fit into a dtype of fewer bits.

    Attributes:
        dtype: "float16" or "bfloat16".
        limit: Its largest finite number.
        largest: The largest magnitude of any module's output in float64.
        module: The module whose output that is.
        overflow: The first layer that is not finite in this dtype; "" if all are.
        infinite, nan: How many numbers of that layer are.
        weights: Weights that are finite, but not in this dtype.
        problem: Why it was not measured; "" if it was.
    """

    dtype: str
    limit: float
    largest: float = 0.0
    module: str = ""
    overflow: str = ""
    infinite: int = 0
    nan: int = 0
    weights: tuple[str, ...] = ()
    problem: str = ""

    def findings(self) -> Iterator[tuple[str, str]]:
        """Titles and texts for people."""
        if self.problem:
            yield "not measured", f"{self.dtype}: {self.problem}"
            return
        share = f"{100 * self.largest / self.limit:.2g} % of what {self.dtype} holds"
        yield "largest value", f"{self.largest:.3g} at {self.module}, {share}"
        if self.weights:
            others = f" and {len(self.weights) - 1} more" if len(self.weights) > 1 else ""
            yield "weights", f"{self.weights[0]}{others} does not fit into {self.dtype}"
        count = f"first in {self.overflow} ({self.infinite} infinite, {self.nan} NaN)"
        yield "overflow", f"{self.dtype}: {count if self.overflow else 'none'}"


@dataclass(frozen=True, kw_only=True)
class ReportFindings:
    """The part of a report that one comparison makes; the fields are those of `ParityReport`."""

    comparisons: tuple[Comparison, ...] = ()
    layers: tuple[LayerDifference, ...] = ()
    precision: tuple[Precision, ...] = ()
    first_divergence: Divergence | None = None
    notes: tuple[str, ...] = ()
    not_tested: tuple[str, ...] = ()

    def __add__(self, other: "ReportFindings") -> "ReportFindings":
        return ReportFindings(
            comparisons=self.comparisons + other.comparisons,
            layers=self.layers + other.layers,
            precision=self.precision + other.precision,
            first_divergence=self.first_divergence or other.first_divergence,
            notes=self.notes + other.notes,
            not_tested=self.not_tested + other.not_tested,
        )


@dataclass(frozen=True, kw_only=True)
class ParityReport:
    """Whether a model computes what an independent implementation computes.

    Attributes:
        source: The checkpoint that was verified.
        against: The checkpoint that the reference implementation loaded; "" if it is the same.
        reference: The implementation it was compared with; "" if there is none.
        skipped: Why nothing was compared; "" otherwise.
        comparisons: One for each kind of images and each dtype. Those of float16 and bfloat16 are
            with float64 of vitconvert's own model, and are not judged.
        layers: Differences inside the models, in the order of computation.
        precision: Whether numbers fit into float16 and bfloat16, if that was asked for.
        first_divergence: The first layer that differs by more than rounding, or None.
        notes: What was changed or assumed to make the comparison possible, and what could not be
            compared.
        executed: A sentence on whose code ran, and what did not.
        not_tested: What such a comparison cannot see.
        tolerance: The relative difference that was allowed in float32.
    """

    source: str
    against: str = ""
    reference: str = ""
    skipped: str = ""
    comparisons: tuple[Comparison, ...] = ()
    layers: tuple[LayerDifference, ...] = ()
    precision: tuple[Precision, ...] = ()
    first_divergence: Divergence | None = None
    notes: tuple[str, ...] = ()
    executed: str = ""
    not_tested: tuple[str, ...] = ()
    tolerance: float

    @property
    def verified(self) -> bool:
        """Whether anything was compared."""
        return not self.skipped

    @property
    def ok(self) -> bool:
        """Whether something was compared, and all of it agreed."""
        agreed = all(comparison.ok for comparison in self.comparisons)
        return self.verified and agreed and self.first_divergence is None

    @property
    def verdict(self) -> str:
        """One word or two: "equal", "not equal", "not verified"."""
        if not self.verified:
            return "not verified"
        return "equal" if self.ok else "not equal"

    @property
    def only_files(self) -> str:
        """That all agrees but outputs for image files, which become other pixels; or ""."""
        pixels = any(note.startswith(f"preprocessing: {PIXELS_DIFFER}") for note in self.notes)
        tensors = [one for one in self.comparisons if one.images != ON_FILES]
        agreed = tensors and all(one.ok for one in tensors) and self.first_divergence is None
        if self.ok or not (pixels and agreed):
            return ""
        same = "bit-equal" if all(one.bit_equal for one in tensors) else "equal"
        return f"for image files, which it prepares differently; {same} for the same tensors"

    def raise_if_failed(self) -> None:
        """Raise ParityFailed if the numbers disagree; a report of nothing compared passes."""
        if not self.verified or self.ok:
            return
        cause = self.first_divergence.cause if self.first_divergence else UNKNOWN
        stating = "--set (in Python, overrides={...}) states what the file does not say."
        fact = f"The model does not compute what {self.reference} computes {self.only_files}"
        raise ParityFailed(
            f"{fact.rstrip()}.",
            evidence={
                "file": self.source,
                **({"against": self.against} if self.against else {}),
                **_evidence(self.first_divergence),
            },
            details=[_line(comparison) for comparison in self.comparisons],
            hint=None if cause == UNKNOWN else stating,
        )

    def summary(self) -> str:
        """The result in a few lines of plain text."""
        loaded = f" of {self.against}" if self.against else ""
        result = f"{self.verdict} to {self.reference}{loaded} {self.only_files}".rstrip()
        lines = [result if self.verified else f"not verified: {self.skipped}"]
        lines += [f"  {_line(comparison)}" for comparison in self.comparisons]
        lines += [
            f"  {title:<15}{text}" for one in self.precision for title, text in one.findings()
        ]
        evidence = _evidence(self.first_divergence)
        lines += [f"  {key:<15}{value}" for key, value in evidence.items()]
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  not tested: {fact}" for fact in self.not_tested]
        return "\n".join([*lines, *([f"  {self.executed}"] if self.executed else [])])

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON types; a difference that is no number is None."""
        values = asdict(self)
        verdict = {"ok": self.ok, "verified": self.verified, "verdict": self.verdict}
        cleaned: dict[str, Any] = _jsonable({**verdict, **values})
        return cleaned

    def to_json(self) -> str:
        """`to_dict`, as text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def to_html(self) -> str:
        """One page that needs nothing else: verdict, table, plot of the layers."""
        divergence = self.first_divergence
        departs = f"{divergence.layer} ({divergence.relative:.1e})" if divergence else ""
        facts = [
            ("checkpoint", self.source),
            ("compared with", self.reference),
            ("which loaded", self.against),
            ("not verified", self.skipped),
            ("differs", self.only_files),
            ("first departs", departs),
            ("likely cause", divergence.cause if divergence else ""),
            *(finding for one in self.precision for finding in one.findings()),
            *(("note", note) for note in self.notes),
            *(("not tested", fact) for fact in self.not_tested),
            ("code", self.executed),
        ]
        return parity_page(
            self.verdict,
            facts,
            comparisons=self.comparisons,
            layers=self.layers,
            divergence=divergence,
        )

    def _repr_html_(self) -> str:
        """The same page inside a notebook's cell."""
        return framed(self.to_html(), height="600px")


def _line(comparison: Comparison) -> str:
    same = "bit-equal" if comparison.bit_equal else f"relative {comparison.relative:.1e}"
    named = f"{comparison.output}: " if comparison.output != "output" else ""
    return (
        f"{named}{comparison.images:<10}  {comparison.dtype}  {same:<16}  "
        f"absolute {comparison.absolute:.1e}  "
        f"argmax {comparison.agreed} of {comparison.rows}"
    )


def _evidence(divergence: Divergence | None) -> dict[str, object]:
    if divergence is None:
        return {}
    where = f"{divergence.layer}, relative {divergence.relative:.1e} in {divergence.dtype}"
    return {"first departs": where, "likely cause": divergence.cause}


def _jsonable(value: Any) -> Any:
    """JSON types: tuples as lists, None for a number that is not finite."""
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
