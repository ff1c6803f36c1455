"""`vitconvert golden SOURCE -o NAME.golden`, `--pixels -o DIRECTORY`, and `--check FILE`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vitconvert.arguments import options_of
from vitconvert.checkpoint import ReadOptions
from vitconvert.checkpoint.options import IMAGES
from vitconvert.cli.options import (
    FILE,
    Computed,
    Reading,
    argument,
    flag,
    flags_of,
    output_flag,
    refuse_given,
)
from vitconvert.cli.report import Verdict, line
from vitconvert.errors import UsageError

_OF_IMAGES = [name for name, one in options_of(ReadOptions).items() if one.heading == IMAGES]


@dataclass(kw_only=True)
class RecordGolden(Computed):
    """Records what a checkpoint computes, or what its project makes of images."""

    details = (
        " With --pixels, a directory of images, each with what every step of the model's own "
        "preprocessing makes of it; --check compares the arrays of a port with it."
    )

    source: str = argument()
    output: Path | None = output_flag("What to write: NAME.golden, or a directory of --pixels.")
    seed: int = flag("Seed of the images.", default=0)
    batch: int = flag("Images of each kind.", default=2)
    pixels: bool = flag("Record preprocessing, and no outputs of the model.", default=False)
    check: Path | None = flag(
        "Compare a port's arrays (.npz, .safetensors; named IMAGE/STEP) with SOURCE, which "
        "--pixels wrote.",
        type=FILE,
    )
    force: bool = flag("Replace an earlier golden file, or directory.", default=False)
    read: Mapping[str, object] = flags_of(ReadOptions, heading=Reading.heading)

    def run(self) -> int:
        if self.check:
            refuse_given(("output", "seed", "batch", "force"), "records, and --check compares")
            self.read_options().refuse("--check reads what --pixels wrote")
            return self._check(self.check)
        if self.output is None:
            raise UsageError("-o is missing: it names what is written.")
        if self.pixels:
            refuse_given(("seed", "batch", "labels"), "is not about pixels")
            return self._record_pixels(self.output)
        refuse_given(_OF_IMAGES, "is about images and classes, and only --pixels records images")
        return self._record(self.output)

    def _record(self, output: Path) -> int:
        from vitconvert.api import record_golden
        from vitconvert.parity.golden import check_golden_output

        check_golden_output(output, overwrite=self.force)  # before anything is downloaded
        golden = record_golden(
            self.located(self.source),
            output,
            seed=self.seed,
            batch=self.batch,
            overwrite=self.force,
            **self.reading(),
        )
        size = output.stat().st_size
        self.report(
            lambda: {
                "output": str(output),
                "bytes": size,
                "verdict": golden.verdict,
                "reference": golden.reference,
                "weights": golden.weights,
                "images": golden.images,
            },
            short=output,
            long=lambda: [
                line("golden", output, f"{size:,} bytes"),
                line("verified", f"{golden.verdict}: {golden.reference}"),
                line("weights", f"sha256 {golden.weights}"),
            ],
        )
        return 0

    def _record_pixels(self, output: Path) -> int:
        from vitconvert.api import record_pixels
        from vitconvert.conversion.output import check_output

        check_output(output, overwrite=self.force)  # before anything is downloaded
        located = self.located(self.source)
        golden = record_pixels(located, output, overwrite=self.force, **self.reading())
        others = [f"{name}: {one.verdict}" for name, one in golden.others.items()]
        self.report(
            lambda: {"output": str(output), **golden.to_dict()},
            short=output,
            long=lambda: [
                line("golden", output, f"{len(golden.images)} images"),
                line("verified", golden.verdict, *others),
                *(line(step, words) for step, words in golden.words.items()),
            ],
        )
        return 0

    def _check(self, theirs: Path) -> int:
        from vitconvert.api import check_pixels

        report = check_pixels(self.source, theirs)
        self.report(
            report.to_dict,
            short=report.verdict,
            long=lambda: [Verdict(report.summary(), report.ok)],
            ok=report.ok,
        )
        return 0 if report.ok else 3
