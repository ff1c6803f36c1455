"""`vitconvert export MODEL --to onnx -o FILE`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitconvert.cli.options import (
    Reading,
    argument,
    flag,
    image_size_flag,
    max_image_pixels_flag,
    output_flag,
)
from vitconvert.cli.report import assumptions, command_line, line, named_after, source_line

if TYPE_CHECKING:
    from vitconvert.runtimes.export import Exported

# What is typed, and decides nothing of what is written.
_UNSAID = ("file", "force", "images", "verify", "as_json", "quiet", "token", "cache_dir", "offline")


@dataclass(kw_only=True)
class Export(Reading):
    """Writes a file for a runtime."""

    details = (
        "\n\nThe file is run in the runtime and compared with vitconvert's own model before it "
        "appears. Its metadata have the names of the classes, the preprocessing, hashes of the "
        "source and its history."
    )

    model: str = argument()
    to: str = flag(
        "onnx (NAME.onnx), pt2 (torch.export: NAME.pt2) or openvino (NAME.xml and NAME.bin).",
        required=True,
        metavar="FORMAT",
    )
    file: Path | None = output_flag(
        "The file to write; default: NAME with the ending of FORMAT.", "-o", "--output"
    )
    kind: str | None = flag(
        "What it computes; default: logits, or features if there is no head.",
        type=click.Choice(["logits", "features", "tokens"]),
    )
    probabilities: bool = flag(
        "Give probabilities, not logits: a softmax, or sigmoids of a model of several labels.",
        "--probabilities",
        "--softmax",
        default=False,
    )
    with_preprocessing: bool = flag(
        "Take uint8 images (B, height, width, C), resized and cropped, and normalise them.",
        default=False,
    )
    batch_size: int | None = flag(
        "Fix the size of batches; default: any.", type=click.IntRange(min=1)
    )
    dtype: str = flag(
        "Of weights and arithmetic; images and output stay float32.",
        default="float32",
        type=click.Choice(["float32", "float16"]),
    )
    int8: bool = flag("Round to 8 bits; OpenVINO needs --calibrate.", default=False)
    calibrate: tuple[str, ...] = flag(
        "With --int8: images such as the model will see (a file, a folder or a pattern), 20 or "
        "more, half of which are held out and compared on. May be repeated.",
        default=(),
        metavar="PATH",
    )
    opset: int | None = flag("With --to onnx; default: torch's choice.")
    probes: bool = flag(
        "With --to onnx: give the tokens of each block too, by which check_onnx.py says where an "
        "engine departs.",
        default=False,
    )
    dynamic_size: bool = flag(
        "Take images of any height and width; checked at five sizes.", default=False
    )
    image_size: str | None = image_size_flag()
    images: tuple[str, ...] = flag(
        "Compare on these images too (a file, a folder or a pattern). May be repeated.",
        default=(),
        metavar="PATH",
    )
    max_image_pixels: int | None = max_image_pixels_flag("With --images and --calibrate. ")
    verify: bool = flag("Check it in the runtime.", "--verify/--no-verify", default=True)
    force: bool = flag("Replace an earlier export.", default=False)

    def run(self) -> int:
        from vitconvert.api import export_model
        from vitconvert.runtimes.export import check_export
        from vitconvert.runtimes.options import ExportOptions

        names = ("to", "probabilities", "with_preprocessing", "batch_size", "dtype", "int8")
        asked = {name: getattr(self, name) for name in (*names, "opset", "probes", "dynamic_size")}
        wanted = ExportOptions(**asked, output=self.kind, calibrated=bool(self.calibrate))
        file = self.file or Path(named_after(self.model) + wanted.runtime.suffix)
        check_export(file, wanted, overwrite=self.force)  # before anything is downloaded
        located = self.located(self.model)
        exported = export_model(
            located,
            file,
            **asked,
            kind=self.kind,
            image_size=self.read_options().image_size,
            images=self.images or None,
            calibrate=self.calibrate or None,
            max_image_pixels=self.max_image_pixels,
            verify=self.verify,
            overwrite=self.force,
            command=command_line(but=_UNSAID),
            **self.reading(),
        )
        self.report(
            exported.to_dict,
            short=exported.output,
            long=lambda: [source_line(located), *_report(exported)],
        )
        return 0


def _report(exported: "Exported") -> Iterator[str]:
    from vitconvert.runtimes.check import in_words

    record = exported.record
    pixels, named = record["preprocessing"], record["labels_origin"]
    prepared = pixels["origin"] if pixels else "unknown"
    below = (f"preprocessing: {prepared}", f"labels: {named}", f"classes are named by {named}")
    for note in exported.notes:
        if note not in below:
            yield line("note", note)
    yield line("assumed", *assumptions(exported.config))
    assumed = record["labels_assumed"] and not named.startswith("assumed")
    yield line("preprocessing", prepared)
    yield line("labels", f"{'assumed: ' * assumed}{named}" if named else "none")
    shape = " x ".join(map(str, record["input"]["shape"]))
    kind, scores = record["output"]["kind"], record["output"]["scores"]
    if scores != "none":
        kind = f"probabilities ({scores} of the logits)"
    yield line("images", f"{record['input']['dtype']}, {shape}")
    yield line("output", f"{kind}, computed in {record['dtype']}")
    compared = [f"{found.images}: {in_words(found)}" for found in exported.comparisons]
    yield line("verified", exported.runtime, *compared) if compared else line("verified", "no")
    for seen in filter(None, (exported.photographs, exported.held_out)):
        yield line(seen.images, seen.in_words)
    if stated := record.get("calibration"):
        yield line("calibrated", f"with {stated['images']} images, sha256 {stated['sha256']}")
    if remaining := exported.remaining:
        yield line("graph", *remaining)
    yield line("written", *exported.sha256)
