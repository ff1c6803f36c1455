"""`vitconvert verify MODEL`."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli.options import (
    FILE,
    Against,
    Computed,
    argument,
    flag,
    max_image_pixels_flag,
    output_flag,
    refuse_given,
)
from vitconvert.cli.report import Verdict
from vitconvert.errors import UnknownDialect, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vitconvert.checkpoint import Checkpoint
    from vitconvert.parity.report import ParityReport

NOT_COMPARED = 1


@dataclass(kw_only=True)
class Verify(Computed, Against):
    """Compares a checkpoint, or a model of the user's own, with an implementation."""

    model: str = argument()
    against: str | None = flag(
        "Another checkpoint that should compute the same function, or a golden file."
    )
    module: str | None = flag(
        "A model of your own to verify, such as team.models:build_vit; your code is run. It gets "
        "the tensors of MODEL if it has their names; --against or MODEL measures it.",
        metavar="MODULE:NAME",
    )
    layers: tuple[str, ...] = flag(
        "With --module: modules whose outputs are the same, such as encoder.0=blocks.0.",
        "--layer",
        default=(),
        metavar="YOURS=OURS",
    )
    images: tuple[str, ...] = flag(
        "Compare on images too (a file, a folder or a pattern; the first 32), through both "
        "preprocessings. May be repeated.",
        default=(),
        metavar="PATH",
    )
    max_image_pixels: int | None = max_image_pixels_flag("With --images. ")
    dtypes: str | None = flag(
        "Measure lower precision too, such as float16,bfloat16: how far it is from float64, layer "
        "by layer, and whether numbers overflow. float32 or float64 compares only in that dtype.",
        metavar="NAMES",
    )
    tolerance: float = flag(
        "Largest relative difference in float32.", default=2e-5, type=click.FloatRange(min=0)
    )
    seed: int = flag("Seed of the noise images.", default=0)
    page: Path | None = output_flag("Write an HTML page.", "--report", type=FILE)
    force: bool = flag("Replace the page if it exists.", default=False)

    def run(self) -> int:
        self._check()
        report = self._verify()
        if self.page:
            from vitconvert.atomic_write import atomic_file
            from vitconvert.pages import check_file

            check = partial(check_file, overwrite=self.force)
            with atomic_file(self.page, check=check) as file:
                file.write(report.to_html().encode())
        self.report(
            report.to_dict,
            short=report.verdict,
            long=lambda: [Verdict(report.summary(), report.ok if report.verified else None)],
            ok=report.ok,
        )
        if not report.verified:
            return NOT_COMPARED
        return 0 if report.ok else 3

    def _check(self) -> None:
        """Refuse what cannot be before anything is downloaded."""
        from vitconvert.pages import check_file
        from vitconvert.parity.golden import is_golden

        if self.page:
            check_file(self.page, overwrite=self.force)
        if not self.against:
            self.require_against("--against is missing")
        elif is_golden(self.against):
            self.require_against("--against is a golden file")
            why = "is not possible here: a golden file states which images are compared"
            refuse_given(("seed", "images", "max_image_pixels"), why)
        if wrong := [layer for layer in self.layers if not all(layer.partition("="))]:
            raise UsageError(f"--layer {wrong[0]} is not YOURS=OURS.")
        if self.layers and not self.module:
            raise UsageError("--layer needs --module, a model of your own.")

    def _verify(self) -> "ParityReport":
        from vitconvert.checkpoint import read_checkpoint
        from vitconvert.checkpoint.companions import hashed
        from vitconvert.checkpoint.recognition import not_quantised
        from vitconvert.parity.golden import is_golden

        asked, two = self.dequantise, self.against and not is_golden(self.against)
        # Of two checkpoints, one may be quantised.
        options = replace(self, dtype=asked, dequantise=None) if two else self
        located, reading = hashed(self.located(self.model)), options.read_options()
        try:
            checkpoint = read_checkpoint(located, reading)
        except UnknownDialect:
            if not self.module:
                raise
            # The table is about the module alone, then; the report says which tensors were loaded.
            checkpoint = read_checkpoint(located, replace(reading, table=None, dialect=None))
        against: Checkpoint | str | None = self.against
        if two:
            against = options.checkpoint_against()
            dequantised = checkpoint.ledger.dequantised or against.ledger.dequantised
            if asked and not dequantised:
                raise not_quantised(asked, self.model, self.against)
        model, notes = self._model(checkpoint) if self.module else (checkpoint, ())
        report = self._compare(model, against or (checkpoint if self.module else None))
        return replace(report, notes=(*notes, *report.notes))

    def _model(self, checkpoint: "Checkpoint") -> "tuple[Callable[..., Any], Sequence[str]]":
        """The model that the user's own code builds, and what was loaded into it."""
        from vitconvert.parity.own_models import build_own_model, load_into

        model = build_own_model(str(self.module))
        return model, [f"{self.module}: {load_into(model, checkpoint)}"]

    def _compare(
        self, model: "Checkpoint | Callable[..., Any]", against: "Checkpoint | str | None"
    ) -> "ParityReport":
        """Compare by the function of Python that takes these two."""
        from torch import nn

        from vitconvert.api import check_golden, compare, verify

        how: dict[str, Any] = {"tolerance": self.tolerance}
        if self.dtypes:
            how["dtypes"] = [name.strip() for name in self.dtypes.split(",")]
        seen: dict[str, Any] = {
            "seed": self.seed,
            "images": self.images or None,
            "max_image_pixels": self.max_image_pixels,
        }
        if not callable(model) and not isinstance(against, str):
            return verify(model, against=against, **how, **seen)
        if layers := dict(layer.split("=", 1) for layer in self.layers):
            how["layers"] = layers
        elif isinstance(model, nn.Module):  # names of tensors match the modules
            how |= {name: self.read[name] for name in ("dialect", "table")}
        if isinstance(against, str):
            return check_golden(model, against, **how)
        assert against is not None
        return compare(model, against, **how, **seen)
