"""What a file for another runtime should be, and whether it may be written."""

from dataclasses import dataclass
from pathlib import Path

from vitconvert.checkpoint import Checkpoint
from vitconvert.checkpoint.images import needed_preprocessing
from vitconvert.errors import ConflictingFact, OutputExists, UsageError, nearest
from vitconvert.runtimes import RUNTIMES
from vitconvert.runtimes.graph import OUTPUTS, Shape
from vitconvert.runtimes.runtime import Runtime
from vitconvert.whole import require_file

RECORD = "vitconvert"  # the name of our record in a file's metadata
DTYPES = ("float32", "float16")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What a file should be; see `vitconvert.export_model`."""

    to: str
    output: str | None = None
    softmax: bool = False
    with_preprocessing: bool = False
    batch_size: int | None = None
    dtype: str = "float32"
    int8: bool = False
    opset: int | None = None

    def __post_init__(self) -> None:
        if self.to not in RUNTIMES:
            near = nearest(self.to, RUNTIMES)
            raise UsageError(
                f"There is no format {self.to!r} to export to.",
                evidence={"formats": ", ".join(RUNTIMES)},
                hint=f"did you mean {near[0]}?" if near else None,
            )
        if self.output not in (None, *OUTPUTS):
            raise UsageError(
                f"There is no output {self.output!r}.", evidence={"outputs": ", ".join(OUTPUTS)}
            )
        if self.dtype not in DTYPES:
            raise UsageError(
                f"{self.dtype} is no dtype to export in.", evidence={"dtypes": ", ".join(DTYPES)}
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(f"batch_size = {self.batch_size} must be at least 1.")
        if self.opset is not None and not self.runtime.has_opset:
            raise UsageError(f"Only ONNX has opsets, not {self.to}.")
        if self.int8 and (self.to != "onnx" or self.dtype != "float32"):
            raise UsageError("int8 is for ONNX, and made from float32.")

    @property
    def runtime(self) -> Runtime:
        """What writes and runs it."""
        return RUNTIMES[self.to]

    def shape(self, checkpoint: Checkpoint) -> Shape:
        """What the graph takes and gives, for one checkpoint.

        Raises:
            ConflictingFact: The model has no such output, or reads no photographs.
            MissingFact: Nothing says how images are prepared.
        """
        classes = checkpoint.config.num_classes
        output = self.output or ("logits" if classes else "features")
        if output == "logits" and not classes:
            raise ConflictingFact(
                "The model has no classification head.", hint="--kind features, or tokens."
            )
        if self.softmax and (output != "logits" or not checkpoint.config.head_bias):
            raise ConflictingFact("Only the logits of a classifier can become probabilities.")
        pixels = needed_preprocessing(checkpoint) if self.with_preprocessing else None
        return Shape(output=output, softmax=self.softmax, pixels=pixels, batch=self.batch_size)


def check_export(path: Path, wanted: ExportOptions, *, overwrite: bool) -> None:
    """Make sure, before any work is done, that the packages are there and the file may be written.

    Raises:
        MissingPackage: The runtime is not installed.
        UsageError: The name is no such file's, or no file can be there.
        OutputExists: Something is there, and `overwrite` is false or vitconvert did not write it.
    """
    runtime = wanted.runtime
    if path.suffix != runtime.suffix:
        raise UsageError(
            f"The name of {wanted.to} files ends with {runtime.suffix}.",
            evidence={"output": path},
        )
    require_file(path)
    runtime.require()
    there = [file for file in (path, *runtime.companions(path)) if _exists(file)]
    if there and not overwrite:
        raise OutputExists(
            "The output is there already.",
            evidence={"output": there[0]},
            hint="--force (in Python, overwrite=True) replaces it.",
        )
    if there and not _is_ours(path, runtime):
        raise OutputExists(
            "vitconvert did not write what lies there, and does not replace it.",
            evidence={"output": there[0]},
        )


def _exists(path: Path) -> bool:
    """Whether there is anything of this name, be it a link that leads nowhere."""
    return path.is_symlink() or path.exists()


def _is_ours(path: Path, runtime: Runtime) -> bool:
    try:
        return RECORD in runtime.metadata(path)
    except Exception:  # parsers of foreign files raise anything
        return False
