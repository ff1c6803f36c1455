"""Converts a tiny ViT to every dialect that can hold it and back, and reads digits with it.

The model in `digits/` was made by `vitconvert.demo.train`. Each round trip does what a user does:
`convert` writes the dialect, `read_checkpoint` reads it, and the dialect's own package, if it is
installed, loads the same files by itself.
"""

import gc
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from vitconvert.checkpoint import Checkpoint, ReadOptions, build_model, read_checkpoint
from vitconvert.comparison import TOLERANCE
from vitconvert.conversion.convert import convert_checkpoint
from vitconvert.conversion.options import WriteOptions
from vitconvert.conversion.search import OWN_LAYOUT
from vitconvert.conversion.target import holders
from vitconvert.errors import MissingFact, MissingPackage
from vitconvert.inference.batches import Ready
from vitconvert.inference.predict import predict
from vitconvert.model import ViT
from vitconvert.parity.verification import verify_checkpoint
from vitconvert.programs.program import DescribedModel
from vitconvert.sources import locate
from vitconvert.tables.dialects import builtin_tables

DIGITS = Path(__file__).parent / "digits"

# The numerics of Google's code; weights that were trained with others can be declared to have them.
GOOGLE: Mapping[str, str] = {"activation": "gelu_tanh"}


@dataclass(frozen=True, kw_only=True)
class PackageAgreement:
    """How a dialect's own package, given the written files, agrees with the original model.

    Attributes:
        reference: Package, version and class; "" if nothing was compared.
        why_not: Why nothing was compared; "" otherwise.
        ok: Whether rounding explains every difference, or None if nothing was compared.
        relative: Largest difference of the logits over the largest logit, in float32.
        bit_equal: Whether no bit of the logits differs.
    """

    reference: str = ""
    why_not: str = ""
    ok: bool | None = None
    relative: float | None = None
    bit_equal: bool = False


@dataclass(frozen=True, kw_only=True)
class RoundTrip:
    """The model written in one dialect, and read back from there.

    Attributes:
        dialect, title: The table's.
        container: Format of the weights.
        size: Bytes of the weights file.
        declared: Facts that were declared to be other than in training, because the dialect knows
            nothing else. The trip then compares the model under this declaration with itself: the
            bytes are the shipped ones, the function is not. Mostly empty.
        told: Facts that were given to the reader, because neither the tensors nor the project's
            own configuration show them.
        bytes_equal: Whether every tensor came back with its name, shape, dtype and bytes.
        logits_equal: Whether the model that came back gives the same logits, to the last bit.
        logits_relative: Largest difference of the logits over the largest logit. Products with
            matrices that the file has transposed may be summed in another order.
        agreement: How the dialect's own package, given the files, agrees.
    """

    dialect: str
    title: str
    container: str
    size: int
    declared: Mapping[str, str]
    told: Mapping[str, int]
    bytes_equal: bool
    logits_equal: bool
    logits_relative: float
    agreement: PackageAgreement

    @property
    def ok(self) -> bool:
        """Whether everything came back, and no package disagrees."""
        same_function = self.logits_relative <= TOLERANCE
        return self.bytes_equal and same_function and self.agreement.ok is not False


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A dialect that cannot hold the model, and why."""

    dialect: str
    title: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A handwritten digit that the model was not trained on, and the model's prediction."""

    file: str
    true: str
    predicted: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """What the demo showed.

    Attributes:
        model: The model's directory.
        parameters: How many numbers it has learned.
        held_out_accuracy: Share of the held-out digits that it reads correctly, as measured when
            it was trained.
        round_trips: One for each dialect that can hold the model; those with nothing declared come
            first.
        refusals: The other dialects.
        untried: Dialects whose files need a package that is not installed.
        samples: One digit of each class.
    """

    model: Path
    parameters: int
    held_out_accuracy: float
    round_trips: tuple[RoundTrip, ...]
    refusals: tuple[Refusal, ...]
    untried: tuple[Refusal, ...]
    samples: tuple[Sample, ...]

    @property
    def ok(self) -> bool:
        """Whether every trip was lossless, and every digit was read correctly."""
        read = all(sample.predicted == sample.true for sample in self.samples)
        return read and all(trip.ok for trip in self.round_trips)

    def to_dict(self) -> dict[str, object]:
        """All of it as JSON types."""
        trips = [{"ok": trip.ok, **asdict(trip)} for trip in self.round_trips]
        return {"ok": self.ok, **asdict(self), "model": str(self.model), "round_trips": trips}


def demonstrate() -> Demonstration:
    """Convert the shipped model to every dialect and back, and read digits with it.

    vitconvert's own spelling is not among the dialects: every trip begins and ends there.

    Raises:
        VitConvertError: The shipped files are damaged.
    """
    checkpoint = read_checkpoint(locate(DIGITS))
    model = build_model(checkpoint)
    why_not = _refusals(checkpoint, {})
    why_not_as_google = _refusals(checkpoint, GOOGLE)
    as_trained = [name for name, reason in why_not.items() if reason is None]
    as_google = [name for name in why_not if why_not[name] and not why_not_as_google[name]]
    refused = {name: why for name, why in why_not.items() if why and name not in as_google}
    results = [*_round_trips(as_trained, {}), *_round_trips(as_google, GOOGLE)]
    return Demonstration(
        model=DIGITS,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        held_out_accuracy=json.loads((DIGITS / "training.json").read_text(encoding="utf-8"))[
            "held_out_accuracy"
        ],
        round_trips=tuple(trip for trip in results if isinstance(trip, RoundTrip)),
        refusals=tuple(_refusal(name, why) for name, why in refused.items()),
        untried=tuple(trip for trip in results if isinstance(trip, Refusal)),
        samples=_samples(model, checkpoint),
    )


def _refusals(checkpoint: Checkpoint, declared: Mapping[str, str]) -> dict[str, str | None]:
    config = checkpoint.config.replace(**declared)
    reasons = holders(DescribedModel(config=config, preprocessing=checkpoint.preprocessing))
    return {name: reason for name, reason in reasons.items() if name != OWN_LAYOUT}


def _refusal(dialect: str, reason: str) -> Refusal:
    return Refusal(dialect=dialect, title=builtin_tables()[dialect].title, reason=reason)


def _round_trips(dialects: list[str], declared: Mapping[str, str]) -> list[RoundTrip | Refusal]:
    origin = read_checkpoint(locate(DIGITS), ReadOptions(overrides=declared))
    with TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        trips = [_round_trip(name, origin, declared, Path(directory) / name) for name in dialects]
        gc.collect()  # Windows removes no file that is mapped, as by readers that nobody holds
        return trips


def _round_trip(
    dialect: str, origin: Checkpoint, declared: Mapping[str, str], output: Path
) -> RoundTrip | Refusal:
    try:
        convert_checkpoint(origin, WriteOptions(to=dialect), output=output, verify=False)
    except MissingPackage as error:
        return _refusal(dialect, error.hint or error.fact)
    # It would tell the reader everything, and the project's own readers do not have it either.
    (output / "vitconvert.json").unlink()
    located, table = locate(output), builtin_tables()[dialect]
    try:
        back = read_checkpoint(located, ReadOptions(dialect=dialect))
        told = {}
    except MissingFact:  # neither an array nor config.json shows the number of heads
        told = {"num_heads": origin.config.num_heads}
        back = read_checkpoint(located, ReadOptions(dialect=dialect, overrides=told))
    model = build_model(origin)
    found, wanted = _logits(build_model(back)), _logits(model)
    return RoundTrip(
        dialect=dialect,
        title=table.title,
        container=table.container,
        size=back.weights.container.path.stat().st_size,
        declared=declared,
        told=told,
        bytes_equal=_bytes(back) == _bytes(origin),
        logits_equal=torch.equal(found, wanted),
        logits_relative=float((found - wanted).abs().max() / wanted.abs().max()),
        agreement=_agreement(back, model),
    )


def _bytes(checkpoint: Checkpoint) -> dict[str, tuple[torch.dtype, torch.Size, bytes]]:
    """Of each tensor."""
    return {
        name: (
            tensor.dtype,
            tensor.shape,
            tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes(),
        )
        for name, tensor in checkpoint.tensors.items()
    }


@torch.inference_mode()
def _logits(model: ViT) -> torch.Tensor:
    """A model's logits for noise."""
    generator = torch.Generator().manual_seed(0)
    shape = (4, model.config.in_channels, *model.config.image_size)
    logits: torch.Tensor = model(torch.randn(shape, generator=generator))
    return logits


def _agreement(written: Checkpoint, model: ViT) -> PackageAgreement:
    """The dialect's own package with the written files, against the model before the trip."""
    with written.weights.container:
        report = verify_checkpoint(written, model=model, dtypes=("float32",))
    if not report.verified:
        return PackageAgreement(why_not=report.skipped)
    return PackageAgreement(
        reference=report.reference,
        ok=report.ok,
        relative=max(comparison.relative for comparison in report.comparisons),
        bit_equal=all(comparison.bit_equal for comparison in report.comparisons),
    )


def _samples(model: ViT, checkpoint: Checkpoint) -> tuple[Sample, ...]:
    """Predictions for the sample images, which are named after their true classes."""
    assert checkpoint.preprocessing is not None and checkpoint.labels is not None
    images = sorted((DIGITS / "samples").glob("*.png"))
    running = Ready(model=model, preprocessing=checkpoint.preprocessing)
    predictions = predict(running, images, topk=1, labels=checkpoint.labels)
    samples = []
    for image, prediction in zip(images, predictions, strict=True):
        if prediction.error:
            raise prediction.error
        (best,) = prediction.top
        samples.append(
            Sample(
                file=image.name,
                true=image.stem,
                predicted=str(best.label),
                probability=best.score,
            )
        )
    return tuple(samples)
