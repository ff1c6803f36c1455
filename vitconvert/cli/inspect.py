"""`vitconvert inspect MODEL ...`."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitconvert.cli.options import Computed, argument, flag
from vitconvert.cli.report import (
    ignored_lines,
    line,
    print_json,
    refused_by_system,
    show,
    source_line,
    tell,
)
from vitconvert.errors import VitConvertError, some

if TYPE_CHECKING:
    from vitconvert.inspection import Inspection

_AT_ONCE = 8


@dataclass(kw_only=True)
class Inspect(Computed):
    """Describes checkpoints by their headers."""

    details = " Of several, each is inspected, and the highest exit code counts."

    models: tuple[str, ...] = argument("MODEL...")
    lines: bool = flag(
        "Print a JSON object a line: for each checkpoint below a folder, and for each name that is "
        "typed or, for -, read from stdin.",
        default=False,
    )
    with_hash: bool = flag(
        "Compute the hash of the function, for which all weights are read.", "--hash", default=False
    )

    def run(self) -> int:
        if self.lines or len(self.models) > 1:
            return self._run_several([*self._names()] if self.lines else self.models)
        inspection = self._inspect(self.models[0])
        self.report(
            inspection.to_dict,
            short=inspection.dialect or "unknown",
            long=lambda: inspection_report(inspection, verbose=self.verbose),
            ok=not inspection.problem,
        )
        return inspection.problem.exit_code if inspection.problem else 0

    def _names(self) -> Iterator[str]:
        """What each line of JSON is about."""
        for model in self.models:
            if model == "-":
                yield from (
                    os.fsdecode(name) for line in sys.stdin.buffer if (name := line.strip())
                )
            elif Path(model).is_dir():
                from vitconvert.formats import checkpoints_below

                yield from map(str, checkpoints_below(Path(model)))
            else:
                yield model

    def _run_several(self, models: Sequence[str]) -> int:
        """Inspect each, whatever is wrong with one, under its own name."""
        answers: dict[str, object] = {}
        worst = 0
        refused: list[str] = []
        # Servers let wait. Bars of several downloads would mix.
        one = replace(self, quiet=self.quiet or self.lines)
        with ThreadPoolExecutor(_AT_ONCE if self.lines else 1) as pool:
            for model, (answer, text, code) in zip(
                models, pool.map(one._answer, models), strict=True
            ):
                worst = max(worst, code)
                if answer.get("refused"):
                    refused.append(model)
                if self.lines:
                    click.echo(json.dumps({"model": model, **answer}, default=str))
                elif not self.as_json:
                    tell(f"{model}: {text}" if self.quiet else f"{model}\n{text}\n")
                else:
                    answers[model] = answer
        if self.as_json and not self.lines:
            print_json({"ok": worst == 0, "inspections": answers})
        if refused:
            tell(f"note: {len(refused)} cannot be read: {some(refused, 6)}", err=True)
        return worst

    def _answer(self, model: str) -> tuple[dict[str, object], str, int]:
        """What is said of one, as JSON and in words, and the exit code."""
        try:
            inspection = self._inspect(model)
        except VitConvertError as error:
            text = error.text(verbose=self.verbose, brief=True)
            return {"ok": False, "error": error.to_dict()}, text, error.exit_code
        except OSError as error:  # such as a folder that nobody may list
            refused = refused_by_system(error)
            told = {"ok": False, "refused": True, "error": refused.to_dict()}
            return told, str(refused), refused.exit_code
        problem = inspection.problem
        text = inspection.dialect or "unknown"
        if not self.quiet:
            text = "\n".join(filter(None, inspection_report(inspection, verbose=self.verbose)))
        code = problem.exit_code if problem else 0
        return {"ok": not problem, **inspection.to_dict()}, text, code

    def _inspect(self, model: str) -> "Inspection":
        from vitconvert.api import inspect

        located = self.located(model, headers_only=not self.with_hash)
        return inspect(located, with_hash=self.with_hash, **self.reading())


def inspection_report(inspection: "Inspection", *, verbose: bool = True) -> Iterator[str]:
    """What a header says, and what is missing."""
    told = inspection.told
    known = [f"{name:<22} {show(value):<16} {origin}" for name, (value, origin) in told.items()]
    if lacks := len(inspection.facts) - len(told):
        known.append(f"and {lacks} parts that this ViT does not have (--json lists them)")
    missing = [f"{name:<22} {'?':<16} {why}" for name, why in inspection.missing.items()]
    wrapper = f", under {'.'.join(inspection.wrapper)}" if inspection.wrapper else ""
    own_prefix = inspection.prefix and not inspection.tower
    prefix = f", every key begins with {inspection.prefix}" if own_prefix else ""
    size = f"{inspection.nbytes / 1e6:.1f} MB"
    yield source_line(inspection.located)
    yield line("format", inspection.format + wrapper + prefix)
    yield line(
        "tensors", f"{len(inspection.tensors)}, {inspection.parameters:,} parameters, {size}"
    )
    if inspection.tower:
        yield line("tower", inspection.tower)
    yield line("dialect", inspection.dialect or "not recognised")
    yield line("written by", *inspection.written_by)
    if known:
        yield line("opened by", ", ".join(dict.fromkeys(inspection.opened_by)))
    yield line("configuration", *known, *missing)
    yield line("function", *_hashes(inspection))
    if inspection.text:
        places = "to openclip, openai_clip and hf carry it, where both towers have a place"
        unread = f"vitconvert does not compute it; conversions {places}"
        yield line("text tower", inspection.text.config, unread)
    elif inspection.text_problem:
        yield line("text tower", f"not understood: {inspection.text_problem}")
    for text in ignored_lines(inspection.ignored):
        yield line("ignored", text)
    for note in inspection.notes:
        yield line("note", note)
    yield line("tree", *inspection.tree())
    if inspection.problem:
        yield inspection.problem.text(verbose=verbose, brief=True)


def _hashes(inspection: "Inspection") -> Iterator[str]:
    """The name of the function, and where it is from."""
    computed, recorded = inspection.function_hash, inspection.recorded_hash
    if computed:
        same = ", as vitconvert.json states" if computed == recorded else ""
        yield f"{computed} (computed{same})"
    if recorded and computed != recorded:
        other = "another one, " if computed else ""
        yield f"{recorded} ({other}recorded in vitconvert.json, not recomputed)"
