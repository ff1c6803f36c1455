"""The likeliest classes of images."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitconvert.config import ViTConfig
from vitconvert.errors import ConflictingFact, VitConvertError, warn
from vitconvert.inference.batches import Ready, check_fit, not_finite, run_in_batches
from vitconvert.inference.preparing import Picture
from vitconvert.labels import Labels
from vitconvert.model import ViT
from vitconvert.model.heads import scores_of
from vitconvert.settings import plain_arithmetic


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One class that an image may show, or one number of a regression."""

    index: int
    label: str | None
    # Softmax of all logits in float32, or the sigmoid of this one; None of a regression
    probability: float | None
    logit: float

    @property
    def score(self) -> float:
        """The probability; of a regression, which has none, the number itself."""
        return self.logit if self.probability is None else self.probability

    def in_words(self, digits: int = 2) -> str:
        """The score as people read it; so many digits of a percent."""
        if self.probability is None:
            return f"{self.logit:.4g}"
        return f"{self.probability:.{digits}%}"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a model says about one image, or the error that it gave."""

    path: Path | None  # None for an open image
    top: tuple[Candidate, ...] = ()  # likeliest first
    score_function: str = "softmax"  # what makes scores of logits: also "sigmoid", or "none"
    error: VitConvertError | None = None
    remarks: tuple[str, ...] = ()  # what of the file was left out

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "path": None if self.path is None else str(self.path),
            "top": [dict(vars(candidate)) for candidate in self.top],
            "score_function": self.score_function,
            "error": None if self.error is None else self.error.to_dict(),
            "remarks": list(self.remarks),
        }


def predict(
    running: Ready,
    pictures: Iterable[Picture],
    *,
    topk: int = 5,
    labels: Sequence[str] | None = None,
) -> Iterator[Prediction]:
    """The likeliest classes of each image, in the order of the images, one at a time.

    An image that cannot be read, or does not fit, gives an error instead, and the rest goes on.
    The model runs as it is: on its device, in its dtype, in its training or eval mode. Threads
    decode and preprocess the next images while it computes. A `FastViT` on a CPU computes several
    batches at once, each by one thread.

    Probabilities are a softmax of the logits, or sigmoids of a model of several labels; a
    regression has the numbers themselves (`ViTConfig.problem_type`).

    Args:
        running: What computes.
        pictures: The images.
        topk: How many classes, at most; on the command line, `--top` or `--topk`.
        labels: Names of the classes.

    Raises:
        InputMismatch: The preprocessing does not make the images that the model reads.
        ConflictingFact: The model has no classifier, or another number of classes than of labels.
    """
    check_fit(running.model, running.preprocessing)
    check_classifier(running.model.config, labels)
    outputs = run_in_batches(running, running.model, pictures)
    model = running.model
    return (
        replace(prediction(path, logits, model, topk=topk, labels=labels), remarks=remarks)
        for path, logits, remarks in outputs
    )


def check_classifier(config: ViTConfig, labels: Sequence[str] | None) -> None:
    """Refuse a model that has no classes, or others than there are labels.

    Raises:
        ConflictingFact: So it is.
    """
    if not config.num_classes:
        raise ConflictingFact(
            "The model has no classification head.", hint="its features can still be embedded."
        )
    if config.pooling == "none":
        raise ConflictingFact(
            "The model classifies each token, not the image.",
            evidence={"pooling": f"none ({config.origins.get('pooling', 'user')})"},
            hint="its tokens can still be embedded.",
        )
    if not config.head_bias and labels is None:  # a classifier has a bias
        raise ConflictingFact(
            "The model's head is a projection, like CLIP's, and not a classifier.",
            hint="its features can still be embedded.",
        )
    if labels is not None and len(labels) != config.num_classes:
        raise ConflictingFact(
            f"The number of labels is {len(labels)}, and the number of classes "
            f"{config.num_classes}."
        )


def warn_of_names(labels: Sequence[str] | None, classes: int) -> None:
    """Tell the user of classes without names, or with names that are assumed."""
    state = "--labels FILE names them (in Python, labels=)"
    if labels is None:
        warn(f"labels: none, so the {classes} classes are numbers; {state}")
    elif isinstance(labels, Labels) and labels.doubtful:
        warn(f"labels assumed: {labels.origin.removeprefix('assumed: ')}; {state}")


@plain_arithmetic()
def prediction(
    path: Path | None,
    logits: Tensor | VitConvertError,
    model: ViT,
    *,
    topk: int,
    labels: Sequence[str] | None,
) -> Prediction:
    """The likeliest classes by logits (classes,) of a model, which says what makes scores."""
    if isinstance(logits, VitConvertError):
        return Prediction(path=path, error=logits)
    if not logits.isfinite().all():
        return Prediction(path=path, error=not_finite("logits", model))
    function = model.config.score_function
    scores = scores_of(logits, function)
    best = logits.topk(min(topk, len(logits))).indices.tolist()
    top = tuple(
        Candidate(
            index=index,
            label=None if labels is None else labels[index],
            probability=None if function == "none" else float(scores[index]),
            logit=float(logits[index]),
        )
        for index in best
    )
    return Prediction(path=path, top=top, score_function=function)
