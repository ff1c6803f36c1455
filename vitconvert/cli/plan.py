"""`vitconvert SOURCE MODEL --dry-run`: what would be done."""

from typing import TYPE_CHECKING, Any

from vitconvert.cli.report import config_lines, line, print_json, source_line, tell

if TYPE_CHECKING:
    from vitconvert.conversion.conversion_plan import ConversionPlan
    from vitconvert.facts.plan import Assembly
    from vitconvert.sources import Located

_MANY = 4  # at most so many pieces or dialects are listed one by one without -v


def print_plan(located: "Located", arguments: dict[str, Any], options: dict[str, Any]) -> int:
    """Plan a conversion, and print the plan."""
    from vitconvert.api import plan_conversion

    plan = plan_conversion(located, **arguments)
    if options["as_json"]:
        print_json({"ok": True, **plan.to_dict()})
    elif options["quiet"]:
        tell(plan.target_dialect)
    else:
        tell(_report(plan, verbose=options["verbose"]))
    return 0


def _report(plan: "ConversionPlan", *, verbose: bool) -> str:
    ledger = plan.ledger
    lines = [
        source_line(plan.located),
        line("dialect", plan.source_dialect),
        *config_lines(plan.config),
        line("target", plan.target_dialect),
        *_passed_over(plan, verbose),
        line("plan", *_tensors(plan, verbose)),
        line(
            "tensors",
            f"{ledger.counts}, {len(plan.tensors)} written",
        ),
        *(line("  ignored", f"{name}: {why}") for name, why in ledger.ignored.items()),
        *(line("note", note) for note in ledger.notes),
        *(line("change", change) for change in ledger.changed),
        *(line("guard", guard) for guard in _one_line_for_all_blocks(plan.guards, verbose)),
        line("bytes", _bytes(plan)),
        line("files", ", ".join(plan.files)),
        *([line("wrapper", f"{plan.wrapper!r} holds the tensors")] if plan.wrapper else []),
        line("output", "nothing was written"),
    ]
    return "\n".join(lines)


def _passed_over(plan: "ConversionPlan", verbose: bool) -> list[str]:
    refused = [f"{dialect}: {why}" for dialect, why in plan.passed_over.items()]
    if len(refused) > _MANY and not verbose:
        refused = [f"{len(refused)} others of the ecosystem; -v says why"]
    return [line("not for", text) for text in refused]


def _tensors(plan: "ConversionPlan", verbose: bool) -> list[str]:
    steps = [", ".join(tensor.steps) for tensor in plan.tensors]
    width = max(map(len, steps), default=0)
    expressions = (_expression(tensor.assembly, verbose) for tensor in plan.tensors)
    return _one_line_for_all_blocks(
        [f"{step:<{width}}  {text}" for step, text in zip(steps, expressions, strict=True)], verbose
    )


def _expression(assembly: "Assembly", verbose: bool) -> str:
    if verbose or len(assembly.pieces) <= _MANY:
        return str(assembly)
    pieces = ", ".join(_one_line_for_all_blocks([str(piece) for piece in assembly.pieces], verbose))
    return f"{assembly.target} : {assembly.axes} = cat({pieces})"


def _one_line_for_all_blocks(texts: "list[str] | tuple[str, ...]", verbose: bool) -> list[str]:
    """Unless verbose, join lines that differ only in the number of the block."""
    from vitconvert.tables.names import runs

    if verbose:
        return list(texts)
    return [f"{text}  x {count}" if count > 1 else text for text, count in runs(texts)]


def _bytes(plan: "ConversionPlan") -> str:
    total = f"{plan.nbytes:,}"
    if not plan.streamed:
        return f"{total}, through memory"
    filled = f", {plan.filled:,} filled in" if plan.filled else ""
    return (
        f"{total}: {plan.in_ranges:,} in contiguous ranges, {plan.rearranged:,} rearranged{filled}"
    )
