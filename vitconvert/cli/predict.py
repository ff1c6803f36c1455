"""`vitconvert predict MODEL IMAGE...`."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from vitconvert.cli.images import ABOUT_IMAGES
from vitconvert.cli.options import Reporting, flag, output_flag
from vitconvert.cli.scale import (
    Scaled,
    compute_shards,
    is_directory,
    report_check,
    require_directory,
)
from vitconvert.errors import UsageError, printable

if TYPE_CHECKING:
    from vitconvert.checkpoint import Checkpoint


@dataclass(kw_only=True)
class Predict(Scaled):
    """Classifies images."""

    heading = Reporting.heading
    details = f"""{ABOUT_IMAGES}
An image that cannot be read is reported on stderr and does not stop the others; the exit code is
then 1.

With -o, the answers become Parquet files in a directory, for any number of images, as of `embed`.
"""

    topk: int = flag(
        "How many classes to print for each image.",
        "--top",
        "--topk",
        default=5,
        type=click.IntRange(min=1),
    )
    output: str | None = output_flag("A directory; without it, lines on stdout.")

    def run(self) -> int:
        if self.check:
            return report_check(self)
        self.require_arguments()
        self.tell_begin()
        from vitconvert.api import predict
        from vitconvert.runtimes import is_exported

        if self.output and not is_directory(self.output, ()):
            raise UsageError(
                "Classes are written into a directory, of Parquet files.",
                evidence={"output": self.output},
                hint="name one without a suffix; or --json > FILE.jsonl.",
            )
        if self.output and is_exported(self.model):
            raise UsageError(
                "An exported file gives a line for each image, and no directory.",
                evidence={"model": self.model, "output": self.output},
                hint="leave out -o, or give the checkpoint that was exported.",
            )
        if self.output:
            return compute_shards(self, "classes", topk=self.topk)
        require_directory(self.images, None)
        model = self._opened()
        predictions = predict(
            model,
            self.named_images(),
            image_size=self.read_options().image_size,
            topk=self.topk,
            **self.computing(),
        )
        for prediction in self.reported(predictions, printing=True, clips=_reads_clips(model)):
            path = printable(str(prediction.path or ""))
            top = [(printable(c.label or str(c.index)), c.in_words()) for c in prediction.top]
            if self.as_json:
                click.echo(json.dumps(prediction.to_dict()))
            elif self.quiet and top:  # of a regression, the number is the answer
                number = prediction.score_function == "none"
                click.echo(f"{path}\t{top[0][1 if number else 0]}")
            elif top:
                rows = [f"  {score:>7}  {name}" for name, score in top]
                rows += (f"  remark: {printable(remark)}" for remark in prediction.remarks)
                click.echo("\n".join([path, *rows]))
        return self.exit_code

    def _opened(self) -> "Checkpoint | str":
        from vitconvert.runtimes import is_exported

        if not is_exported(self.model):
            return self.load_checkpoint()
        why = "an exported file states its own options"
        self.read_options().refuse(why)
        return self.model


def _reads_clips(model: "Checkpoint | str") -> bool:
    if not isinstance(model, str):
        return model.config.clips
    from vitconvert.runtimes.exported import open_exported

    return open_exported(model).clips
