"""The short reports that the verbs print."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from vitconvert.errors import printable
from vitconvert.sources.references import without_secrets

if TYPE_CHECKING:
    from vitconvert.config import ViTConfig
    from vitconvert.conversion.convert import Conversion
    from vitconvert.conversion.push import Pushed
    from vitconvert.inspection import Inspection
    from vitconvert.sources import Located

_MARGIN = 15


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout, in ASCII, which steers no terminal."""
    click.echo(json.dumps(value, indent=2, default=str))


def tell(text: str, *, err: bool = False) -> None:
    """Lines of text on stdout; what would steer a terminal is escaped."""
    click.echo("\n".join(map(printable, text.split("\n"))), err=err)


def line(title: str, *texts: object) -> str:
    """A title and what belongs to it, aligned; each text is one line, whoever chose it."""
    first, *rest = [printable(str(text)) for text in texts] or [""]
    return "\n".join([f"{title:<{_MARGIN}}{first}", *(f"{'':<{_MARGIN}}{r}" for r in rest)])


def source_line(located: "Located") -> str:
    """Where a checkpoint came from, and whether its hash was published."""
    where = located.repo or located.url or located.reference
    revision = f" @ {located.revision[:12]}" if located.revision else ""
    checked = [f"sha256 as published: {', '.join(located.verified)}"] if located.verified else []
    moved = [str(located.fetched)] if located.fetched else []
    return line("source", f"{without_secrets(where)}{revision}", *checked, *moved)


def config_lines(config: "ViTConfig") -> list[str]:
    """Every fact that decides the function, by origin, with assumptions apart."""
    from vitconvert.facts.accounts import is_assumed

    groups: dict[str, list[str]] = {}
    for name, value in config.function().items():
        # Features that the model lacks say little to a reader.
        if value is not False and value not in (0, ()):
            groups.setdefault(config.origins.get(name, ""), []).append(f"{name} {show(value)}")
    groups.pop("", None)  # defaults without an origin have no effect
    assumed = [origin for origin in groups if is_assumed(origin)]
    known = [line("", f"{o}: {', '.join(groups[o])}") for o in groups if o not in assumed]
    guesses = [line("", f"{o.removeprefix('assumed: ')}: {', '.join(groups[o])}") for o in assumed]
    return [*_titled("configuration", known), *_titled("assumed", guesses)]


def _titled(title: str, lines: list[str]) -> list[str]:
    return [f"{title:<{_MARGIN}}{lines[0].strip()}", *lines[1:]] if lines else []


def show(value: object) -> str:
    """A value as a person writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def conversion_report(conversion: "Conversion") -> str:
    """What was done, assumed and proved."""
    ledger, proof = conversion.ledger, conversion.proof
    lines = [
        source_line(conversion.located),
        line("", conversion.first_source) if conversion.first_source else "",
        line("dialect", conversion.source_dialect),
        *config_lines(conversion.config),
        line("tensors", ledger.counts),
        *(line("  ignored", text) for text in ignored_lines(ledger.ignored)),
        *(line("note", note) for note in ledger.notes),
        *(line("changed", change) for change in ledger.changed),
        line("parity", *proof.parity_lines()),
        *(line("opened by", text) for text in proof.opened_lines()),
        *(line("images", departure) for departure in conversion.departures),
        *(
            line("not for", f"{dialect}: {why}")
            for dialect, why in conversion.passed_over.items()
            if "_" not in dialect
        ),
        line("output", f"{conversion.output} ({conversion.target_dialect})"),
    ]
    return "\n".join(text for text in lines if text)


_FEW = 3  # names that are told one by one


def ignored_lines(ignored: Mapping[str, str]) -> list[str]:
    """Tensors that play no part, those of one reason together where they are many."""
    reasons: dict[str, list[str]] = {}
    for name, why in ignored.items():
        reasons.setdefault(why, []).append(name)
    return [
        text
        for why, names in reasons.items()
        for text in (
            [f"{name}: {why}" for name in names]
            if len(names) <= _FEW
            else [f"{len(names)} tensors, {names[0]} ... {names[-1]}: {why}"]
        )
    ]


def push_report(
    files: Mapping[str, int], pushed: "Pushed | None" = None, *, quiet: bool = False
) -> str:
    """The files that would be sent, or were sent, to the Hub."""
    if quiet:
        return "\n".join(files)
    lines = [
        line("file" if pushed else "would send", f"{n:,} bytes  {f}") for f, n in files.items()
    ]
    if pushed:
        lines.append(line("pull request" if pushed.pull_request else "commit", pushed.url))
        lines.append(line("load it with", f"hf-hub:{pushed.repo}"))
    return "\n".join(lines)


_LACKING = (False, 0, None, "none", ())  # values of parts that a ViT has not
_COUNTS = ("num_classes",)  # of which none is worth telling


def inspection_report(inspection: "Inspection") -> str:
    """What a header says, and what is missing."""
    size = f"{inspection.nbytes / 1e6:.1f} MB"
    facts = sorted(inspection.facts.items())
    told = [(name, fact) for name, fact in facts if fact[0] not in _LACKING or name in _COUNTS]
    known = [f"{name:<22} {show(value):<16} {origin}" for name, (value, origin) in told]
    if lacks := len(facts) - len(told):
        known.append(f"and {lacks} parts that other ViTs have, and this one has not (--json)")
    missing = [f"{name:<22} {'?':<16} {why}" for name, why in inspection.missing.items()]
    wrapper = f", under {'.'.join(inspection.wrapper)}" if inspection.wrapper else ""
    own_prefix = inspection.prefix and not inspection.tower
    prefix = f", every key begins with {inspection.prefix}" if own_prefix else ""
    lines = [
        source_line(inspection.located),
        line("format", inspection.format + wrapper + prefix),
        line("tensors", f"{len(inspection.tensors)}, {inspection.parameters:,} parameters, {size}"),
        line("tower", str(inspection.tower)) if inspection.tower else "",
        line("dialect", inspection.dialect or "not recognised"),
        line("written by", *inspection.written_by) if inspection.written_by else "",
        line("opened by", ", ".join(dict.fromkeys(inspection.opened_by))) if known else "",
        line("configuration", *known, *missing) if known or missing else "",
        line("text tower", *text_lines(inspection)) if text_lines(inspection) else "",
        *(line("ignored", text) for text in ignored_lines(inspection.ignored)),
        *(line("note", note) for note in inspection.notes),
        line("tree", *tensor_tree(inspection)),
        str(inspection.problem) if inspection.problem else "",
    ]
    return "\n".join(text for text in lines if text)


def text_lines(inspection: "Inspection") -> list[str]:
    """What is beside the ViT, and who would take it along."""
    if inspection.text is None:
        return [f"not understood: {inspection.text_problem}"] if inspection.text_problem else []
    places = "conversions to openclip, openai_clip and hf carry it, where both towers have a place"
    return [str(inspection.text.config), f"vitconvert does not compute it; {places}"]


def tensor_tree(inspection: "Inspection") -> list[str]:
    """One line for all tensors whose names differ only in numbers, and so for all blocks."""
    from vitconvert.tables.templates import skeleton_of

    groups: dict[tuple[str, str], list[str]] = {}
    for name, info in inspection.tensors.items():
        shape = f"{info.dtype} [{' '.join(map(str, info.shape))}]"
        groups.setdefault((skeleton_of(name), shape), []).append(name)
    return [
        f"{names[0] if len(names) == 1 else f'{names[0]} ... {names[-1]}'}  {shape}"
        + (f"  x {len(names)}" if len(names) > 1 else "")
        for (_, shape), names in groups.items()
    ]
