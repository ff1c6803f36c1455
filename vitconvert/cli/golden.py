"""`vitconvert golden SOURCE -o NAME.golden`."""

from dataclasses import dataclass
from pathlib import Path

from vitconvert.cli.options import Computed, argument, flag, output_flag
from vitconvert.cli.report import line


@dataclass(kw_only=True)
class Golden(Computed):
    """Records what a checkpoint computes."""

    source: str = argument()
    output: Path = output_flag("The file to write, NAME.golden.", required=True)
    seed: int = flag("Seed of the images.", default=0)
    batch: int = flag("Images of each kind.", default=2)
    force: bool = flag("Replace an earlier golden file.", default=False)

    def run(self) -> int:
        from vitconvert.api import record_golden
        from vitconvert.parity.golden import check_golden_output

        check_golden_output(self.output, overwrite=self.force)  # before anything is downloaded
        golden = record_golden(
            self.located(self.source),
            self.output,
            seed=self.seed,
            batch=self.batch,
            overwrite=self.force,
            **self.reading(),
        )
        size = self.output.stat().st_size
        self.report(
            lambda: {
                "output": str(self.output),
                "bytes": size,
                "verdict": golden.verdict,
                "reference": golden.reference,
                "weights": golden.weights,
                "images": golden.images,
            },
            short=self.output,
            long=lambda: [
                line("golden", self.output, f"{size:,} bytes"),
                line("verified", f"{golden.verdict}: {golden.reference}"),
                line("weights", f"sha256 {golden.weights}"),
            ],
        )
        return 0
