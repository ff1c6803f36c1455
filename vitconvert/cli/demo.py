"""`vitconvert demo`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from vitconvert.cli.options import Reporting, flag
from vitconvert.cli.report import Verdict, line, tell
from vitconvert.tables.dialects import builtin_tables

if TYPE_CHECKING:
    from vitconvert.demo.demonstration import Demonstration, RoundTrip

_NO_PACKAGE = "no package here"  # of the project, that could load the files


@dataclass(kw_only=True)
class Demo(Reporting):
    """Shows everything on a tiny ViT."""

    verbose: bool = flag(
        "Every round trip, and why other dialects do not fit.", "-v", default=False
    )

    def run(self) -> int:
        from vitconvert.demo import demonstrate

        if not (self.quiet or self.as_json):
            tell("Loading torch and the reference packages; this takes a while.", err=True)
        shown = demonstrate()
        short = "ok" if shown.ok else "failed"
        self.report(
            shown.to_dict,
            short=short,
            long=lambda: demo_report(shown, verbose=self.verbose),
            ok=shown.ok,
        )
        return 0 if shown.ok else 3


def demo_report(shown: "Demonstration", *, verbose: bool) -> Iterator[str]:
    """What the demo showed, on one screen unless verbose."""
    read = [f"{s.file}: {s.predicted} ({s.probability:.0%})" for s in shown.samples]
    yield (
        f"A ViT of {shown.parameters:,} parameters, trained on scikit-learn's handwritten "
        f"digits ({shown.held_out_accuracy:.1%} of held-out digits right).\n"
    )
    yield from _every_trip(shown) if verbose else _trips(shown)
    if shown.untried:
        yield "\nNot tried, because a package is not installed:"
        yield from (f"  {one.dialect:<24}{one.reason}" for one in shown.untried)
    fives = (f"  {', '.join(read[n : n + 5])}" for n in range(0, len(read), 5))
    yield "\n".join(["\nWhat it reads in the sample images:", *fives, ""])
    agreed = "All bytes returned, all numbers agreed."
    yield Verdict(agreed if shown.ok else "Something disagreed.", shown.ok)
    if shown.ok:
        yield line("next", "vitconvert inspect FILE_OR_REPOSITORY    # a checkpoint of your own")


def _trips(shown: "Demonstration") -> Iterator[str]:
    """What became of the trips, by the package that loaded the files; failures by themselves."""
    by_package: dict[str, list[str]] = {}
    for trip in shown.round_trips:
        if not trip.ok:
            yield _trip(trip)
            continue
        agreement = trip.agreement
        package = agreement.reference.partition(" ")[0] or _NO_PACKAGE
        by_package.setdefault(package, []).append(trip.dialect)
    yield "There and back through every dialect that can hold it, and the package that agrees:"
    for package, dialects in sorted(by_package.items(), key=lambda one: one[0] == _NO_PACKAGE):
        yield click.wrap_text(
            ", ".join(dialects), 100, initial_indent=f"  {package:<18}", subsequent_indent=" " * 20
        )
    refused = _refused(shown)
    yield "\nNot supported, because the library would compute a different function (-v says how):"
    names = ", ".join(refused)
    yield click.wrap_text(names, 100, initial_indent="  ", subsequent_indent="  ")


def _every_trip(shown: "Demonstration") -> Iterator[str]:
    yield "There and back through every dialect that can hold it:"
    yield from map(_trip, shown.round_trips)
    yield "\nNot supported, because the library would compute a different function:"
    yield from (f"  {name:<24}{reason}" for name, reason in _refused(shown).items())


def _refused(shown: "Demonstration") -> dict[str, str]:
    """Why, for each library that has no dialect for the model; `--json` has every dialect."""
    ecosystem = {name: table.ecosystem for name, table in builtin_tables().items()}
    held = {ecosystem[one.dialect] for one in shown.round_trips}
    held |= {ecosystem[one.dialect] for one in shown.untried}
    reasons: dict[str, str] = {}
    for refusal in shown.refusals:
        if ecosystem[refusal.dialect] not in held:
            reasons.setdefault(ecosystem[refusal.dialect], refusal.reason)
    return reasons


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
