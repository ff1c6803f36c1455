"""`vitconvert demo`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitconvert.cli.options import Reporting
from vitconvert.cli.report import tell
from vitconvert.tables.dialects import builtin_tables

if TYPE_CHECKING:
    from vitconvert.demo.demonstration import Demonstration, RoundTrip


@dataclass(kw_only=True)
class Demo(Reporting):
    """Shows everything on a tiny ViT."""

    def run(self) -> int:
        from vitconvert.demo import demonstrate

        if not (self.quiet or self.as_json):
            tell("Loading torch and the reference packages; this takes a while.", err=True)
        shown = demonstrate()
        short = "ok" if shown.ok else "failed"
        self.report(shown.to_dict, short=short, long=lambda: _report(shown), ok=shown.ok)
        return 0 if shown.ok else 3


def _report(demonstration: "Demonstration") -> Iterator[str]:
    read = [f"{s.file}: {s.predicted} ({s.probability:.0%})" for s in demonstration.samples]
    yield (
        f"A ViT of {demonstration.parameters:,} parameters, trained on scikit-learn's handwritten "
        f"digits ({demonstration.held_out_accuracy:.1%} of held-out digits right).\n"
    )
    yield "There and back through every dialect that can hold it:"
    yield from map(_trip, demonstration.round_trips)
    yield "\nRefused, because the project would compute a different function:"
    # One line for each ecosystem that has no dialect for the model; `--json` has them all.
    ecosystem = {name: table.ecosystem for name, table in builtin_tables().items()}
    held = {ecosystem[one.dialect] for one in demonstration.round_trips}
    held |= {ecosystem[one.dialect] for one in demonstration.untried}
    reasons: dict[str, str] = {}
    for refusal in demonstration.refusals:
        if ecosystem[refusal.dialect] not in held:
            reasons.setdefault(ecosystem[refusal.dialect], refusal.reason)
    yield from (f"  {name:<24}{reason}" for name, reason in reasons.items())
    if demonstration.untried:
        yield "\nNot tried, because a package is not installed:"
        yield from (f"  {one.dialect:<24}{one.reason}" for one in demonstration.untried)
    yield "\nWhat it reads in the sample images:"
    yield from (f"  {', '.join(read[n : n + 5])}" for n in range(0, len(read), 5))
    agreed = "All bytes returned, all numbers agreed."
    yield f"\n{agreed if demonstration.ok else 'Something disagreed.'}"


def _trip(trip: "RoundTrip") -> str:
    declared = ", ".join(f"declared {k} {v}" for k, v in trip.declared.items())
    returned = "bytes return" if trip.bytes_equal else "BYTES DIFFER"
    logits = "same logits" if trip.logits_equal else f"logits {trip.logits_relative:.1e}"
    agreement = trip.agreement
    if agreement.ok is None:
        proof = "not compared with its own package"
    else:
        how = "bit-equal" if agreement.bit_equal else f"{agreement.relative:.1e}"
        proof = f"{agreement.reference}: {how if agreement.ok else 'DISAGREES'}"
    text = f"  {trip.dialect:<24}{returned}, {logits}, {proof}"
    return f"{text} ({declared})" if declared else text
