"""What is computed of each image, and by which model; and the model, once it is loaded."""

import dataclasses
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from PIL import Image

from vitconvert.arguments import read_fields, refuse, split
from vitconvert.checkpoint import Checkpoint, ReadArguments, ReadOptions, read_checkpoint
from vitconvert.comparison import fingerprint
from vitconvert.conversion.changes import at_size
from vitconvert.documents import JsonDict
from vitconvert.errors import UsageError, VitConvertError
from vitconvert.inference.batches import MakeEngine, ready
from vitconvert.inference.embed import Embedding, Features, embed
from vitconvert.inference.options import (
    AUTO,
    ComputeOptions,
    FeatureArguments,
    FeatureOptions,
    TorchArguments,
)
from vitconvert.inference.predict import Prediction, predict, warn_of_names
from vitconvert.inference.preparing import Picture
from vitconvert.preprocessing import Preprocessing
from vitconvert.settings import plain_arithmetic
from vitconvert.sources import Located, locate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LOADING = threading.Lock()  # threads that share an Embedder share its model
COMPUTED = ("features", "tokens", "projected", "classes")


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is computed of each image. It pickles to little: the model is loaded where it runs.

    Attributes:
        model: A path or a reference, as for `load_model`; each machine must find it.
        computed: "features", "tokens" or "projected", as for `embed`; "classes", as for `predict`.
        fetching: Arguments of `sources.locate`: revision, token, cache_dir, offline, quiet.
        reading: How to read the checkpoint.
        preprocessing: By default, the checkpoint's own.
        which: Of the features, as for `embed`.
        topk, labels: Of classes, as for `predict`.
        computing: How; `threads` are those that decode and those that torch takes.
        make_engine: Makes what computes in the place of torch's model, where the task runs.
    """

    model: str | PathLike[str] | Located
    computed: str = "features"
    fetching: Mapping[str, Any] = field(default_factory=dict)
    reading: ReadOptions = field(default_factory=ReadOptions)
    preprocessing: Preprocessing | None = None
    which: FeatureOptions = field(default_factory=FeatureOptions)
    topk: int = 5
    labels: Sequence[str] | None = None
    computing: ComputeOptions = field(default_factory=ComputeOptions)
    make_engine: MakeEngine | None = None

    def __post_init__(self) -> None:
        read_fields(self, but=("reading",))
        if self.computed not in COMPUTED:
            raise UsageError(
                f"Nothing is called {self.computed!r}.",
                evidence={"what can be computed": ", ".join(COMPUTED)},
            )
        if self.computing.dtype == AUTO:
            raise UsageError(
                "All rows of an output are computed in one dtype.", hint="name float32 or bfloat16."
            )
        self.which.check(self.computed, self.computing.runtime)
        if self.computed != "classes":
            asked = {"labels": self.labels is not None, "topk": self.topk != 5}
            refuse(
                (name for name, given in asked.items() if given),
                f"this is about classes, and {self.computed} are computed.",
            )

    def checkpoint(self) -> Checkpoint:
        """The checkpoint, whose tensors are not read yet."""
        tower = self.reading.tower
        located = locate(self.model, **{"quiet": True, **self.fetching}, tower=tower)
        return at_size(read_checkpoint(located, self.reading), self.reading.image_size)

    def settled(self) -> "Task":
        """The same where files of classes and preprocessing are read: others need not find them."""
        if not self.reading.of_images:
            return self
        known, reading = self.checkpoint(), self.reading
        found: JsonDict = dict.fromkeys(reading.of_images)
        return dataclasses.replace(
            self,
            reading=dataclasses.replace(reading, **found),
            preprocessing=self.preprocessing or known.preprocessing,
            labels=self.labels or (known.labels if self.computed == "classes" else None),
        )

    @plain_arithmetic()
    def load(self) -> "LoadedTask":
        """The model, ready to compute."""
        return LoadedTask(self, self.checkpoint())

    def with_computing(self, **changes: Any) -> "Task":
        """The same task, computed otherwise."""
        return dataclasses.replace(self, computing=dataclasses.replace(self.computing, **changes))


class LoadedTask:
    """A task whose model is in memory.

    Attributes:
        features: What is taken of an image; None of classes.
        shape: What an image becomes; of classes, (k,).
        labels: Names of the classes, where classes are computed.
        identity: Everything that decides the numbers of a row, but for rounding: two tasks of one
            identity give the same. In words that can be compared, and read.
        doubts: What of a `vitconvert.json` beside the model is not believed, and what a larger
            model reads in place of these features.
    """

    def __init__(self, task: Task, checkpoint: Checkpoint) -> None:
        self.task = task
        checkpoint.config.require_images("Embedding into a directory or by an Embedder")
        stated, size = task.preprocessing, task.reading.image_size
        running = ready(
            checkpoint,
            stated.at_size(size) if stated and size else stated,
            task.computing,
            computed=task.computed,
            make_engine=task.make_engine,
        )
        self.running = dataclasses.replace(running, threads=task.computing.threads)
        classes = task.computed == "classes"
        config = self.running.model.config
        self.features = None if classes else Features.of(config, task.computed, task.which)
        self.shape = self.features.shape if self.features else (min(task.topk, config.num_classes),)
        self.labels = (task.labels or checkpoint.labels) if classes else None
        if classes:
            warn_of_names(self.labels, config.num_classes)
        own = self.features is not None and not task.which.asked
        self.doubts = (*checkpoint.doubts, *(checkpoint.read_by_larger if own else ()))
        prepared = dataclasses.asdict(self.running.preprocessing)
        del prepared["origin"], prepared["assumed"]  # where it is stated changes no pixel
        dtype = str(task.computing.dtype or "as stored").removeprefix("torch.")
        what = self.features.computed if self.features else task.computed
        computed: dict[str, Any] = {"what": what, "dtype": dtype}
        if self.features and self.features.pool:
            computed |= {"layer": self.features.layer, "pool": self.features.pool}
        if classes:
            computed |= {"topk": task.topk, "labels": list(self.labels or ())}
            if config.score_function != "softmax":
                computed |= {"scores": config.score_function}
        self.identity: dict[str, Any] = {
            "weights": fingerprint(checkpoint.tensors),
            "configuration": checkpoint.config.function(),
            "preprocessing": {
                **prepared,
                "fast": task.computing.fast_preprocessing,
                **({"decode": "gpu"} if running.decoder else {}),
            },
            "computed": computed,
        }

    def answers(
        self, pictures: Iterable[Picture], *, few: bool = False
    ) -> "Iterator[Embedding | Prediction]":
        """The features, or the likeliest classes, of each image in order, or its error.

        For `few` images, no processes are started unless they were asked for.
        """
        running = self.running
        if few and running.options.workers is None:
            running = dataclasses.replace(
                running, options=dataclasses.replace(running.options, workers=0)
            )
        if self.features is None:
            return predict(running, pictures, topk=self.task.topk, labels=self.labels)
        return embed(running, pictures, self.features)


class EmbedderArguments(FeatureArguments, TorchArguments, ReadArguments, total=False):
    """Which features are taken of a model, how images go through it, and how it is read."""


class Embedder:
    """Computes features of images in other programs, such as Ray Data, Daft, Spark or `datasets`.

    Its pickle has only the arguments (a few kB). Each process that calls it loads the model once.

    Args:
        model: A path or a reference, as for `vitconvert.load_model`, that every machine can read.
        computed: "features", "tokens" or "projected", as for `vitconvert.embed`.
        preprocessing: By default, the checkpoint's own.
        image_size: As for `vitconvert.embed`.
        how: Which features, how images go through the model, and how it is read:
            `FeatureArguments`, `ComputeArguments` (but `runtime`) and `ReadArguments` list these
            options. `threads` are those that decode and those that torch computes with.

    Raises:
        UsageError: An argument makes no sense.
        VitConvertError: When the first image comes, one of the errors of `vitconvert.embed`.

    Example:
        >>> embedder = vitconvert.Embedder("my-vit")
        >>> [row] = embedder(["photos/1.png"])
        >>> row.shape
        (48,)
    """

    def __init__(
        self,
        model: str | PathLike[str] | Located,
        *,
        computed: str = "features",
        preprocessing: Preprocessing | None = None,
        image_size: int | tuple[int, int] | None = None,
        **how: Unpack[EmbedderArguments],
    ) -> None:
        if computed == "classes":
            raise UsageError("An Embedder has no classes.", hint="vitconvert.predict has.")
        if isinstance(model, str | PathLike) and os.path.exists(model):  # noqa: PTH110
            model = Path(model).absolute()  # processes elsewhere may start in another directory
        which, others = split(how, FeatureOptions)
        if "runtime" in others:
            raise TypeError("'runtime' is not an option of an Embedder, which computes in torch.")
        computing, others = split(others, ComputeOptions)
        self.task = Task(
            model=model,
            computed=computed,
            preprocessing=preprocessing,
            which=which,
            computing=computing,
            reading=ReadOptions.of(others).sized(image_size),
        )
        self._loaded: LoadedTask | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    @property
    def loaded(self) -> LoadedTask:
        """The model, which is loaded when it is first asked for."""
        with _LOADING:
            if self._loaded is None:
                self._loaded = self.task.load()
            return self._loaded

    @property
    def width(self) -> int:
        """How many numbers an image becomes; of tokens, each token."""
        return self.loaded.shape[-1]

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the numbers: weights, configuration, preprocessing, what is
        computed. Not the device, the size of batches, threads, or `fast`, which change rounding.
        """
        return self.loaded.identity

    def stream(
        self, images: "Iterable[Picture | str]"
    ) -> "Iterator[NDArray[np.float32] | VitConvertError]":
        """For each image, in order, its features, (D,) or (N, D) float32, or its error.

        Threads decode the next images while the model computes, or processes (`workers`); memory
        does not grow with their number.

        Args:
            images: Paths, contents of files, open images, or functions that give contents.

        Raises:
            UsageError: `images` is one image, and not several.
        """
        return self._rows(images, few=False)

    def _rows(
        self, images: "Iterable[Picture | str]", *, few: bool
    ) -> "Iterator[NDArray[np.float32] | VitConvertError]":
        if isinstance(images, str | bytes | PathLike):
            raise UsageError("An Embedder takes several images.", hint="[image] is a list of one.")

        def features(found: Embedding | Prediction) -> "NDArray[np.float32] | VitConvertError":
            assert isinstance(found, Embedding)
            if found.error is not None:
                return found.error
            assert found.features is not None
            return found.features.numpy()

        found = self.loaded.answers(map(_picture, images), few=few)
        return (features(one) for one in found)

    def __call__(
        self, images: "Sequence[Picture | str]"
    ) -> "list[NDArray[np.float32] | VitConvertError]":
        """The same for a batch: one row for each image, in order; errors are values.

        Processes that prepare images are started for it only if `workers` asks for them.
        """
        return list(self._rows(images, few=True))


def _picture(image: object) -> Picture:
    if isinstance(image, str | PathLike):
        return Path(image)
    if isinstance(image, bytearray | memoryview):
        return bytes(image)
    if isinstance(image, bytes | Image.Image | VitConvertError) or callable(image):
        return image
    return UsageError(
        "This is not an image.",
        evidence={"type": type(image).__name__},
        hint="a path, the content of a file, or an open image of Pillow.",
    )
