"""`vitconvert inspect MODEL ...`."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitconvert.cli.options import Computed, argument, flag
from vitconvert.cli.report import (
    SHOWN,
    ignored_lines,
    line,
    print_json,
    reason_assumed,
    refused_by_system,
    show,
    some_lines,
    source_line,
    tell,
    typed_again,
    typed_for,
)
from vitconvert.config.fields import Fields
from vitconvert.errors import VitConvertError, some
from vitconvert.facts.fact import ASSUMED, is_assumed

if TYPE_CHECKING:
    from vitconvert.inspection import Inspection

_AT_ONCE = 8
_FEW = 3  # notes, and tensors that are ignored, without -v
_OF_INSPECT = ("with_hash", "lines", "as_json", "quiet", "verbose")  # options of no other verb
# Fields in the first line on the model, and those of the second.
_SIZES = {
    "depth": "blocks",
    "embed_dim": "width",
    "num_heads": "heads",
    "mlp_dim": "MLP",
    "patch_size": "patches",
    "image_size": "images",
    "in_channels": "channels",
}
_NUMERICS = ("activation", "norm_eps", "pooling", "position_embedding")
_ELSEWHERE = ("num_classes", "head_dim", "position_resampling", "stem_style")


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
            long=lambda: self._told(inspection, next_steps=True),
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
            text = "\n".join(filter(None, self._told(inspection)))
        code = problem.exit_code if problem else 0
        return {"ok": not problem, **inspection.to_dict()}, text, code

    def _told(self, inspection: "Inspection", *, next_steps: bool = False) -> Iterator[str]:
        """One screen, which ends with what to type next; or everything."""
        if self.verbose:
            yield from full_report(inspection)
            return
        yield from inspection_report(inspection)
        if next_steps and not inspection.problem:
            yield line("next", *self._next(inspection))

    def _next(self, inspection: "Inspection") -> Iterator[str]:
        """Commands that work with this checkpoint."""
        from vitconvert.checkpoint import read_checkpoint
        from vitconvert.conversion.target import describe, suggested_target

        to, steps = "vit", tuple[str, ...]()
        with suppress(VitConvertError):  # of a larger model's repository, the header alone is here
            checkpoint = read_checkpoint(inspection.located, self.read_options())
            to, steps, _ = suggested_target(describe(checkpoint))
        more = "".join([f" --to {to}", *(f" --allow {step}" for step in steps)])
        if inspection.labels is None and inspection.facts["num_classes"].value:
            more += "  # add --labels FILE, one name a line, or classes have no names"
        (model,) = self.models
        yield typed_for("convert", but=_OF_INSPECT, models=model) + more
        yield typed_for("verify", but=_OF_INSPECT, models=model)
        yield f"{typed_again(models=model, verbose=True)}  # each field, its source; each tensor"

    def _inspect(self, model: str) -> "Inspection":
        from vitconvert.api import inspect

        located = self.located(model, headers_only=not self.with_hash)
        return inspect(located, with_hash=self.with_hash, **self.reading())


def inspection_report(inspection: "Inspection") -> Iterator[str]:
    """One screen: what the checkpoint is, and what is missing."""
    yield from _head(inspection)
    if inspection.facts:
        yield _openers(inspection)
        yield line("model", *_in_words(inspection))
    yield line("assumed", *_assumed(inspection))
    yield line("missing", *(f"{name}: {why}" for name, why in inspection.missing.items()))
    if not inspection.problem:
        yield line("classes", _classes(inspection))
        yield line("images", _images(inspection))
    if inspection.function_hash:  # it was asked for
        yield line("function", *_hashes(inspection))
    if inspection.text:
        yield line("text encoder", "not computed; converted too where the target has one")
    if inspection.ignored:
        yield line("ignored", *some_lines(ignored_lines(inspection.ignored), _FEW))
    yield line("note", *some_lines(inspection.notes, _FEW))
    if inspection.dialect is None:
        yield line("tree", *some_lines(inspection.tree(), SHOWN))
    if inspection.problem:
        yield inspection.problem.text(verbose=False, brief=True)


def _head(inspection: "Inspection") -> Iterator[str]:
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
        yield line("vision encoder", inspection.tower)
    yield line("dialect", inspection.dialect or "not recognised")


def _openers(inspection: "Inspection") -> str:
    names = ", ".join(dict.fromkeys(inspection.opened_by))
    return line("opened by", names) if names else ""


def _in_words(inspection: "Inspection") -> Iterator[str]:
    """The sizes; the numerics; and what differs from a plain ViT."""
    known = {name: show(fact.value) for name, fact in inspection.facts.items()}
    plain = {one.name: one.default for one in fields(Fields)}
    of_sizes = [f"{word} {known[name]}" for name, word in _SIZES.items() if name in known]
    yield ", ".join(of_sizes)
    yield ", ".join(f"{name} {known[name]}" for name in _NUMERICS if name in known)
    parts = [
        name if fact.value is True else f"{name} {show(fact.value)}"
        for name, fact in inspection.told.items()
        if fact.value != plain[name]
        and name not in (*_SIZES, *_NUMERICS, *_ELSEWHERE)
        and inspection.has_part(name)
    ]
    if parts:
        yield f"unlike a plain ViT: {', '.join(parts)}"


def _assumed(inspection: "Inspection") -> Iterator[str]:
    """What nobody stated of this model, by the reason of the assumption."""
    found: dict[str, list[str]] = {}
    for name, (value, origin) in inspection.told.items():
        if origin.startswith(ASSUMED) or (is_assumed(origin) and inspection.has_part(name)):
            found.setdefault(origin, []).append(f"{name} {show(value)}")
    for origin, values in found.items():
        yield f"{', '.join(values)} ({reason_assumed(origin)})"


def _classes(inspection: "Inspection") -> str:
    count, labels = inspection.facts["num_classes"].value, inspection.labels
    if labels:
        return f"{count}: {some(labels, 3)} ({labels.origin})"
    return f"{count}, without names; --labels FILE names them" if count else "none: features only"


def _images(inspection: "Inspection") -> str:
    found = inspection.preprocessing
    if found is None:
        return "not stated in any file; state it by --preprocessor FILE, or --mean and --std"
    crop = f", cropped to {show(found.image_size)}" if found.crop else ""
    ends = (" ".join(f"{number:.4g}" for number in numbers) for numbers in (found.mean, found.std))
    mean, std = ends
    assumed = "assumed: " if found.assumed and "assumed" not in found.origin else ""
    scaled = f"mean {mean}, std {std}" if found.normalize else "not normalised"
    return f"{found.resizing}{crop}, {found.filtering}, {scaled} ({assumed}{found.origin})"


def full_report(inspection: "Inspection") -> Iterator[str]:
    """All that a header says, and what is missing."""
    told = inspection.told
    known = [f"{name:<22} {show(value):<16} {origin}" for name, (value, origin) in told.items()]
    if lacks := len(inspection.facts) - len(told):
        known.append(f"and {lacks} parts that this ViT does not have (--json lists them)")
    missing = [f"{name:<22} {'?':<16} {why}" for name, why in inspection.missing.items()]
    yield from _head(inspection)
    yield line("written by", *inspection.written_by)
    if known:
        yield _openers(inspection)
    yield line("configuration", *known, *missing)
    if not inspection.problem:
        yield line("classes", _classes(inspection))
        yield line("images", _images(inspection))
    yield line("function", *_hashes(inspection))
    if inspection.text:
        unread = "not computed; converted too where the target has a place for both encoders"
        yield line("text encoder", inspection.text.config, unread)
    elif inspection.text_problem:
        yield line("text encoder", f"not understood: {inspection.text_problem}")
    for text in ignored_lines(inspection.ignored, verbose=True):
        yield line("ignored", text)
    for note in inspection.notes:
        yield line("note", note)
    yield line("tree", *inspection.tree())
    if inspection.problem:
        yield inspection.problem.text(verbose=True, brief=True)


def _hashes(inspection: "Inspection") -> Iterator[str]:
    """The name of the function, and where it is from."""
    computed, recorded = inspection.function_hash, inspection.recorded_hash
    if computed:
        same = ", as vitconvert.json states" if computed == recorded else ""
        yield f"{computed} (computed{same})"
    if recorded and computed != recorded:
        other = "another one, " if computed else ""
        yield f"{recorded} ({other}recorded in vitconvert.json, not recomputed)"
