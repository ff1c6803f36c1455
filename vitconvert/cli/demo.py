"""`vitconvert demo`."""

from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli.options import reporting_options
from vitconvert.cli.report import print_json, tell

if TYPE_CHECKING:
    from vitconvert.demo.demonstration import Demonstration, RoundTrip


def command(name: str, help_text: str) -> click.Command:
    """The command."""

    @click.command(name, help=help_text)
    @reporting_options
    def demo(**options: Any) -> int:
        from vitconvert.demo import demonstrate

        if not (options["quiet"] or options["as_json"]):
            tell("Loading torch and the reference packages; this takes a while.", err=True)
        demonstration = demonstrate()
        if options["as_json"]:
            print_json({"ok": demonstration.ok, **demonstration.to_dict()})
        elif options["quiet"]:
            tell("ok" if demonstration.ok else "failed")
        else:
            tell(_report(demonstration))
        return 0 if demonstration.ok else 3

    return demo


def _report(demonstration: "Demonstration") -> str:
    read = [f"{s.file}: {s.predicted} ({s.probability:.0%})" for s in demonstration.samples]
    lines = [
        f"A ViT of {demonstration.parameters:,} parameters, trained on scikit-learn's handwritten "
        f"digits ({demonstration.held_out_accuracy:.1%} of held-out digits right).",
        "",
        "There and back through every dialect that can hold it:",
        *(_trip(trip) for trip in demonstration.round_trips),
        "",
        "Refused, because the project would compute a different function:",
        *_refusals(demonstration),
        "",
        *_untried(demonstration),
        "What it reads in the sample images:",
        *(f"  {', '.join(read[n : n + 5])}" for n in range(0, len(read), 5)),
        "",
        "All bytes returned, all numbers agreed." if demonstration.ok else "Something disagreed.",
    ]
    return "\n".join(lines)


def _refusals(demonstration: "Demonstration") -> list[str]:
    """One line for each ecosystem that has no dialect for the model; `--json` has them all."""
    from vitconvert.tables.dialects import builtin_tables

    ecosystem = {name: table.ecosystem for name, table in builtin_tables().items()}
    held = {ecosystem[trip.dialect] for trip in demonstration.round_trips}
    held |= {ecosystem[one.dialect] for one in demonstration.untried}
    reasons: dict[str, str] = {}
    for refusal in demonstration.refusals:
        if ecosystem[refusal.dialect] not in held:
            reasons.setdefault(ecosystem[refusal.dialect], refusal.reason)
    return [f"  {name:<24}{reason}" for name, reason in reasons.items()]


def _untried(demonstration: "Demonstration") -> list[str]:
    lines = [f"  {one.dialect:<24}{one.reason}" for one in demonstration.untried]
    return ["Not tried, because a package is not installed:", *lines, ""] if lines else []


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
