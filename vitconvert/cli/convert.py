"""`vitconvert convert SOURCE`: convert, verify, write, report; or, with `--dry-run`, plan."""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from vitconvert.arguments import options_of
from vitconvert.cli import SHORT_FORMS
from vitconvert.cli.options import (
    DTYPES,
    Reading,
    argument,
    flag,
    flags_of,
    output_flag,
    parse_dtype,
    refuse_given,
)
from vitconvert.cli.report import (
    Verdict,
    assumptions,
    command_line,
    config_lines,
    ignored_lines,
    line,
    named_after,
    one_line_for_all_blocks,
    place_of,
    source_line,
    tell,
    typed_again,
)
from vitconvert.conversion.options import WriteOptions
from vitconvert.errors import (
    MissingPackage,
    NotRepresentable,
    Quantised,
    UnsafeFile,
    UsageError,
    as_typed,
)
from vitconvert.file_formats import written_formats
from vitconvert.sources import locate
from vitconvert.sources.references import looks_like_path
from vitconvert.sources.timm_names import random_timm

if TYPE_CHECKING:
    from vitconvert.conversion.conversion_plan import ConversionPlan
    from vitconvert.conversion.convert import Conversion
    from vitconvert.facts.accounts import Ledger
    from vitconvert.facts.plan import Assembly
    from vitconvert.sources import Located

# Libraries whose models have names, and the prefix that `sources.locate` knows them by.
_NAMED = {
    "timm": "timm",
    "hf": "hf",
    "jax": "google",
    "torchvision": "torchvision",
    "dino": "dino",
}
# Verbs that stand for several libraries each: the dialect is detected among all.
_DETECTED = ("convert", "file", "hf", "jax", "openclip", "dino")
_OF_CLASSES = ("labels", "classes", "num_classes")  # options that a ViT without a head refuses
_MANY = 4  # at most so many pieces or dialects are listed one by one without -v


def _targets(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Libraries that a shell offers after --to, and where none begins so, dialects."""
    from vitconvert.tables.dialects import builtin_tables

    tables = builtin_tables()
    ecosystems = dict.fromkeys(table.ecosystem for table in tables.values())
    for names in (ecosystems, tables):
        if found := [CompletionItem(name) for name in names if name.startswith(typed)]:
            return found
    return []


@dataclass(kw_only=True)
class Convert(Reading):
    """Converts a checkpoint, of the library that the verb names."""

    model: str = argument("SOURCE")
    to: str = flag("Target library or dialect.", default="vit", shell_complete=_targets)
    output: Path | None = output_flag("Directory; default: NAME-TARGET.")
    checkpoint: Path | None = flag(
        "A local file or directory to use instead of the download.",
        type=click.Path(path_type=Path, exists=True),
    )
    scan: bool = flag("For big_vision: all blocks stacked in one array.", default=False)
    write: Mapping[str, Any] = flags_of(WriteOptions)
    dtype: str = flag(options_of(WriteOptions)["dtype"].about, default="keep", type=DTYPES)
    verify: bool = flag("Compare logits; on by default.", "--verify/--no-verify", default=True)
    dry_run: bool = flag("Say what would be done, and write nothing.", default=False)
    verbose: bool = flag(
        "Say all that was found, done and compared; with --dry-run, list every tensor.",
        "-v",
        default=False,
    )
    module: str | None = flag(
        "With --to of your own table: the code of the class that will load the output, such as "
        "team.models:build_vit; your code is run. Nothing is written that it does not load.",
        metavar="MODULE:NAME",
    )
    force: bool = flag("Replace an earlier output.", default=False)
    no_pretrained: bool = False

    def run(self) -> int:
        from vitconvert.api import convert, plan_conversion
        from vitconvert.conversion.output import check_output

        source, self.model = _meant(str(click.get_current_context().info_name), self.model)
        to = self.to
        if self.scan:
            if to != "big_vision":
                raise click.BadParameter(f"{to} has no stacked blocks.", param_hint="--scan")
            to = "big_vision_scan"
        place = self.output or Path(f"{named_after(self.model)}-{to}")
        check_output(place, overwrite=self.force)
        options: dict[str, Any] = {
            **self.reading(),
            **self.write,
            "to": to,
            "output": place,
            "classes": parse_classes(self.write["classes"]),
            "dtype": parse_dtype(self.dtype),
        }
        from vitconvert.tables.dialects import is_of

        # A table of one's own explains the source, unless it is what the output is written by.
        is_target = is_of(to, self.read["table"])
        if not is_target:
            # Before anything is downloaded.
            _check_target(to, self.model, self.read["table"], written=not self.dry_run)
        by_table = self.read["table"] and not is_target
        if not options["dialect"] and not by_table and source not in _DETECTED:
            options["dialect"] = source
        with ExitStack() as stack, _naming_the_command():
            located = self._locate(source, stack)
            if self.dry_run:
                plan = plan_conversion(located, **options)
                self.report(
                    plan.to_dict,
                    short=plan.target_dialect,
                    long=lambda: plan_report(plan, verbose=self.verbose),
                )
                return 0
            if self.module:
                self._check_module(self.module, located, options)
            options |= {"verify": self.verify, "overwrite": self.force}
            try:
                conversion = convert(located, **options, command=command_line())
            except NotRepresentable as refusal:
                if not self._goes_on(refusal):
                    raise
                options["allow"] = tuple(dict.fromkeys((*options["allow"], *refusal.steps)))
                command = command_line(allow=options["allow"])
                conversion = convert(located, **options, command=command)
        if self.quiet and not self.as_json:
            click.echo(os.fsencode(conversion.output))  # byte for byte, for use in a script
            return 0
        told = full_report if self.verbose else conversion_report
        self.report(conversion.to_dict, short="", long=lambda: told(conversion, self.module))
        return 0

    def _check_module(self, module: str, located: "Located", options: Mapping[str, Any]) -> None:
        """Make sure that the class of the user's loads what will be written."""
        from vitconvert.api import plan_conversion
        from vitconvert.parity.own_models import build_own_model, check_loads

        plan = plan_conversion(located, **options)
        shapes = {tensor.assembly.target: tensor.info.shape for tensor in plan.tensors}
        check_loads(build_own_model(module), shapes, module)

    def _goes_on(self, refusal: NotRepresentable) -> bool:
        """Whether somebody at a terminal allows the steps that a refusal names."""
        at_a_terminal = sys.stdin.isatty() and sys.stderr.isatty()
        if not (refusal.steps and at_a_terminal) or self.as_json or self.quiet:
            return False
        tell(refusal.fact, refusal.evidence.get("effect") or str(refusal.hint), err=True)
        steps = " ".join(f"--allow {step}" for step in refusal.steps)
        return click.confirm(f"Go on with {steps}?", err=True)

    def _locate(self, source: str, stack: ExitStack) -> "Located":
        if self.no_pretrained:
            why = "is about weights, and --no-pretrained has none"
            refuse_given(("checkpoint", "revision"), why)
            return random_timm(self.model, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        if self.checkpoint:
            refuse_given(["revision"], "is about a download, and --checkpoint is in its place")
            located = locate(self.checkpoint)
            return replace(located, name=located.name or self.model)
        return self.located(_reference_for(source, self.model))


@dataclass(kw_only=True)
class ConvertTimm(Convert):
    """Converts any checkpoint, or an architecture of timm without its weights."""

    no_pretrained: bool = flag("Random weights for a timm model, without network.", default=False)


def _meant(verb: str, model: str) -> tuple[str, str]:
    """The short form that a prefix means, and the rest: `convert jeonsworld:FILE`."""
    prefix, _, rest = model.partition(":")
    if prefix not in ("timm", *SHORT_FORMS) or os.path.exists(model):  # noqa: PTH110 (never an error)
        return verb, model
    is_path = os.path.exists(rest) or looks_like_path(rest)  # noqa: PTH110
    return (prefix, rest) if rest and (is_path or prefix not in _NAMED) else (verb, model)


def _reference_for(source: str, model: str) -> str:
    """The reference for `sources.locate`; a name that exists on disk is always a path."""
    is_path = os.path.exists(model) or looks_like_path(model)  # noqa: PTH110 (never an error)
    if source not in _NAMED or is_path or ":" in model or (source == "timm" and "/" in model):
        return model
    return f"{_NAMED[source]}:{model}"


def _check_target(to: str, model: str, own: Path | None, *, written: bool) -> None:
    """Refuse a target that there is none of, that `export` writes, or whose package is missing."""
    from vitconvert.tables.dialects import find_tables

    try:
        formats = {written_formats()[table.container] for table in find_tables(to, own)}
    except UsageError:
        from vitconvert.runtimes import RUNTIMES

        if to not in RUNTIMES:
            raise
        file = as_typed(named_after(model) + RUNTIMES[to].suffix)
        raise UsageError(
            f"{to} is a file format of runtimes, and not another library's layout.",
            hint=f"`vitconvert export {as_typed(model)} --to {to} -o {file}` writes it.",
        ) from None
    packages = [form.package for form in formats]
    if written and not any(map(_is_there, packages)):
        raise MissingPackage(
            f"{packages[0]}, which writes the files of {to}, is not installed.",
            hint=f"pip install {packages[0]}",
        )


def _is_there(package: str) -> bool:
    return not package or find_spec(package) is not None


def parse_classes(options: tuple[str, ...]) -> list[str] | None:
    """`--classes`, as `vitconvert.convert` takes it: fields of CSV, where quotes keep commas."""
    import csv

    if not options:
        return None
    try:
        rows = [next(csv.reader([text], skipinitialspace=True), []) for text in options]
    except csv.Error as error:
        raise click.BadParameter(f"{error}.", param_hint="--classes") from None
    return [name.strip() for row in rows for name in row or [""]]


@contextmanager
def _naming_the_command() -> Iterator[None]:
    """Within the block, a refusal is given the command that works."""
    try:
        yield
    except UnsafeFile as error:
        if error.rescuable:
            error.evidence["command"] = typed_again(rescue=True)
        raise
    except Quantised as error:
        if error.computable:
            error.evidence["command"] = typed_again(dtype="float32")
        raise
    except NotRepresentable as error:
        others = [name for name in error.holders if name != error.source]
        if error.without_head is not None:
            bare = typed_again(num_classes=0, allow=error.without_head)
            error.evidence = {"without its head": bare, **error.evidence}
        if error.without_layer is not None:
            ignored = click.get_current_context().params["ignore"]
            options: dict[str, object] = {**error.without_layer}
            options["ignore"] = (*ignored, *error.without_layer["ignore"])
            bare = typed_again(but=_OF_CLASSES, **options)
            error.evidence = {"without them": bare, **error.evidence}
            raise
        if error.steps:
            error.evidence = {"command": typed_again(allow=error.steps), **error.evidence}
        elif others:
            # The target that most users have a use for.
            to = next(name for name in ("timm", "hf", "vit", *others) if name in others)
            instead: dict[str, object] = {"to": to}
            typed = click.get_current_context().params
            if place := typed["output"]:  # the directory may be called after the old target
                instead["output"] = place.with_name(place.name.replace(typed["to"], to))
            # A table that is the target's is not the source's.
            own = typed.get("table") and typed["to"] == Path(typed["table"]).stem
            command = typed_again(but=("table", "module") if own else (), **instead)
            error.evidence = {"command": command, **error.evidence}
        raise


# What a user may have to act on -> what notes on it contain
_TOPICS = {"labels": "labels: ", "preprocessing": "preprocessing", "EXIF": "EXIF", "crop": "crop"}


def _opened_lines(conversion: "Conversion", module: str | None) -> list[str]:
    """How programs agree; of a class of the user's own, what was checked before."""
    from vitconvert.programs.program import OF_YOUR_OWN

    opened = conversion.proof.opened_lines()
    if not module:
        return opened
    checked = (
        f"{module}: has these names and shapes; `verify --module {module}` compares its outputs"
    )
    return [*(text for text in opened if OF_YOUR_OWN not in text), checked]


def conversion_report(conversion: "Conversion", module: str | None = None) -> Iterator[str]:
    """What became what, the parity, where it lies: three lines, and one or two to know."""
    proof, place = conversion.proof, place_of(conversion.located)
    names = f"{place} ({conversion.source_dialect}) to {conversion.target_dialect}"
    yield line("converted", f"{names}: tensors {conversion.ledger.counts}")
    proofs = [proof.parity_lines()[0], *_opened_lines(conversion, module)]
    compared = "; ".join(text.rstrip(".") for text in proofs)
    yield _verdict(conversion, line("parity", compared))
    departures = conversion.departures
    several = len(departures) > 1
    yield line("output", f"{conversion.output}{_of_images(conversion) if several else ''}")
    if assumed := assumptions(conversion.config):
        yield line("assumed", "; ".join(assumed))
    ledger = conversion.ledger
    notes = [*ledger.changed, *ledger.notes, *(() if several else departures)]
    notes += ignored_lines(ledger.ignored)
    if (sizes := conversion.other_sizes) is not None:  # first, where it is a difference
        notes.insert(len(notes) if sizes.relative is None else 0, str(sizes))
    # First a number of heads that no released ViT has, which no comparison finds to be wrong; last
    # the labels, without which the output's library opens images all the same.
    notes.sort(key=lambda note: (not note.startswith("num_heads is "), note.startswith("labels: ")))
    if notes:
        first, *others = notes
        step = first.partition(" (lossy)")[0]  # of which the measured effect is said at once
        if effect := next((one for one in others if one.startswith(f"{step}: on ")), None):
            others.remove(effect)
            first += f"; {effect.removeprefix(f'{step}: ')}"
        topics = [name for name, begin in _TOPICS.items() if any(begin in one for one in others)]
        about = f": {', '.join(topics)}" if topics else ""
        more = f" (and {len(others)} more in its README.md{about})" if others else ""
        yield line("note", first + more)


def _of_images(conversion: "Conversion") -> str:
    measure = as_typed("vitconvert", "verify", str(conversion.output), "--images", "PHOTOS")
    return f": its library prepares some images differently (`{measure}`)"


def full_report(conversion: "Conversion", module: str | None = None) -> Iterator[str]:
    """Everything that was found, assumed, done and verified."""
    proof = conversion.proof
    yield source_line(conversion.located)
    if conversion.first_source:
        yield line("", conversion.first_source)
    yield line("dialect", conversion.source_dialect)
    yield from config_lines(conversion.config)
    yield line("tensors", conversion.ledger.counts)
    for text in ignored_lines(conversion.ledger.ignored):
        yield line("  ignored", text)
    yield from _told(conversion.ledger)
    yield _verdict(conversion, line("parity", *proof.parity_lines()))
    for text in _opened_lines(conversion, module):
        yield line("opened by", text)
    if conversion.other_sizes:
        yield line("sizes", conversion.other_sizes)
    for departure in conversion.departures:
        yield line("images", departure)
    for dialect, why in conversion.passed_over.items():
        if "_" not in dialect:
            yield line("not for", f"{dialect}: {why}")
    yield line("output", f"{conversion.output} ({conversion.target_dialect})")


def _told(ledger: "Ledger") -> Iterator[str]:
    yield from (line("note", note) for note in ledger.notes)
    yield from (line("changed", change) for change in ledger.changed)


def _verdict(conversion: "Conversion", text: str) -> Verdict:
    """Of a conversion that passed; nothing was verified where nothing was compared."""
    verified = conversion.parity is not None and conversion.parity.verified
    return Verdict(text, True if verified else None)


def plan_report(plan: "ConversionPlan", *, verbose: bool) -> Iterator[str]:
    """What `--dry-run` says."""
    ledger = plan.ledger
    yield source_line(plan.located)
    yield line("dialect", plan.source_dialect)
    yield from config_lines(plan.config)
    yield line("target", plan.target_dialect)
    refused = [f"{dialect}: {why}" for dialect, why in plan.passed_over.items()]
    if len(refused) > _MANY and not verbose:
        refused = [f"{len(refused)} other dialects of the library; -v says why"]
    for text in refused:
        yield line("not for", text)
    steps = [", ".join(tensor.steps) for tensor in plan.tensors]
    width = max(map(len, steps), default=0)
    texts = [
        f"{step:<{width}}  {_expression(tensor.assembly, verbose=verbose)}"
        for step, tensor in zip(steps, plan.tensors, strict=True)
    ]
    yield line("plan", *one_line_for_all_blocks(texts, verbose=verbose))
    yield line("tensors", f"{ledger.counts}, {len(plan.tensors)} written")
    for text in ignored_lines(ledger.ignored, verbose=verbose):
        yield line("  ignored", text)
    for note in ledger.notes:
        yield line("note", note)
    for change in ledger.changed:
        yield line("change", change)
    if plan.other_sizes:
        yield line("sizes", plan.other_sizes)
    for guard in one_line_for_all_blocks(plan.guards, verbose=verbose):
        yield line("guard", guard)
    if plan.streamed:
        filled = f", {plan.filled:,} filled in" if plan.filled else ""
        moved = f"{plan.in_ranges:,} in contiguous ranges, {plan.rearranged:,} rearranged"
        yield line("bytes", f"{plan.nbytes:,}: {moved}{filled}")
    else:
        yield line("bytes", f"{plan.nbytes:,}, through memory")
    yield line("files", ", ".join(plan.files))
    if plan.wrapper:
        yield line("wrapper", f"{plan.wrapper!r} holds the tensors")
    yield line("output", "nothing was written")


def _expression(assembly: "Assembly", *, verbose: bool) -> str:
    if verbose or len(assembly.pieces) <= _MANY:
        return str(assembly)
    pieces = ", ".join(one_line_for_all_blocks(map(str, assembly.pieces)))
    return f"{assembly.target} : {assembly.axes} = cat({pieces})"
