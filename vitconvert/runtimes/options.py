"""How a checkpoint is exported."""

from dataclasses import dataclass

from vitconvert.arguments import refuse
from vitconvert.checkpoint import Checkpoint
from vitconvert.checkpoint.images import needed_preprocessing
from vitconvert.errors import ConflictingFact, UsageError, nearest
from vitconvert.model.resizing import require_rule
from vitconvert.runtimes import RUNTIMES
from vitconvert.runtimes.graph import OUTPUTS, Shape, require_open_sizes
from vitconvert.runtimes.runtime import Runtime

DTYPES = ("float32", "float16")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """How a file is written; see `vitconvert.export_model`."""

    to: str
    output: str | None = None
    probabilities: bool = False
    with_preprocessing: bool = False
    batch_size: int | None = None
    dtype: str = "float32"
    int8: bool = False
    calibrated: bool = False
    opset: int | None = None
    probes: bool = False
    dynamic_size: bool = False

    def __post_init__(self) -> None:
        if self.to not in RUNTIMES:
            near = nearest(self.to, RUNTIMES)
            raise UsageError(
                f"There is no format {self.to!r} to export to.",
                evidence={"formats": ", ".join(RUNTIMES)},
                hint=f"did you mean {near[0]}?"
                if near
                else "`vitconvert convert MODEL --to ...` writes for other libraries.",
            )
        if self.output not in (None, *OUTPUTS):
            raise UsageError(
                f"There is no output {self.output!r}.", evidence={"outputs": ", ".join(OUTPUTS)}
            )
        if self.dtype not in DTYPES:
            raise UsageError(
                f"{self.dtype} is not a dtype to export in.", evidence={"dtypes": ", ".join(DTYPES)}
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(f"batch_size = {self.batch_size} must be at least 1.")
        for given, name in ((self.opset is not None, "opsets"), (self.probes, "probes")):
            if given and self.to != "onnx":
                raise UsageError(f"Only ONNX has {name}, not {self.to}.")
        self._check_int8()

    def _check_int8(self) -> None:
        if self.int8 and self.dynamic_size:
            raise UsageError("int8 is checked for one image size, and not with dynamic_size.")
        if self.int8 and (self.runtime.calibrated_by is None or self.dtype != "float32"):
            raise UsageError("int8 is for ONNX and OpenVINO, and made from float32.")
        if self.calibrated and not self.int8:
            refuse(["calibrate"], "only int8 is calibrated, and --int8 is not given.")
        if self.int8 and not self.calibrated and self.to != "onnx":
            raise UsageError(
                "int8 of OpenVINO is calibrated with images.",
                hint="--calibrate PHOTOS/ names some (in Python, calibrate=).",
            )

    @property
    def runtime(self) -> Runtime:
        """The runtime that writes and runs it."""
        return RUNTIMES[self.to]

    @property
    def computed_in(self) -> str:
        """float32, float16 or int8."""
        return "int8" if self.int8 else self.dtype

    def shape(self, checkpoint: Checkpoint) -> Shape:
        """The inputs and outputs of the graph, for one checkpoint."""
        classes = checkpoint.config.num_classes
        output = self.output or ("logits" if classes else "features")
        if output == "logits" and not classes:
            raise ConflictingFact(
                "The model has no classification head.", hint="--kind features, or tokens."
            )
        scores = checkpoint.config.score_function if self.probabilities else "none"
        if self.probabilities and (output != "logits" or not checkpoint.config.head_bias):
            raise ConflictingFact("Only the logits of a classifier can become probabilities.")
        if self.probabilities and scores == "none":
            origin = checkpoint.config.origins.get("problem_type", "user")
            raise ConflictingFact(
                "The outputs of a regression are not probabilities.",
                evidence={"problem_type": f"regression ({origin})"},
                hint="leave out --probabilities: the file gives the numbers themselves.",
            )
        pixels = needed_preprocessing(checkpoint) if self.with_preprocessing else None
        if self.dynamic_size:
            require_open_sizes(checkpoint.config)
            require_rule(checkpoint.config, checkpoint.resampling_doubt)
        return Shape(
            output=output,
            scores=scores,
            pixels=pixels,
            batch=self.batch_size,
            probes=self.probes,
            dynamic_size=self.dynamic_size,
        )
