"""How a run over many images goes, and what it tells on its way."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from vitconvert.arguments import FLAG, TEXT, VALUES, described_by, option, read_fields, refuse
from vitconvert.errors import UsageError, VitConvertError
from vitconvert.inference.options import EmbedArguments

ENGINES = ("local", "ray")
TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
PARQUETS = (".parquet",)
STORES = {"float32": 4, "float16": 2}  # bytes of a number
WORKERS = "Workers for that"  # the heading of options on where a run computes
OF_RAY = ("address", "cpus_per_worker", "gpus_per_worker")


def check_engine(name: str) -> None:
    """Refuse an engine that there is not.

    Raises:
        UsageError: Perhaps a runtime was meant, which is another option.
    """
    if name not in ENGINES:
        raise UsageError(
            f"The engine {name!r} is not one of {', '.join(ENGINES)}.",
            hint="an engine is where work is done; what computes is the runtime: --runtime "
            "onnxruntime, openvino or auto (in Python, runtime=).",
        )


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run goes, whatever it computes, with the help of each option.

    `only` is (k, n): the k-th of n parts of the images, from 1. Images of an archive are of one
    part.
    """

    shard_rows: int = option(
        VALUES["shard_rows"],
        "Images of a Parquet file, at most; it also ends after about a minute.",
        default=65536,
        kind=int,
    )
    store: str = option(TEXT, "Numbers of features.", default="float32", choices=tuple(STORES))
    append: bool = option(FLAG, "Add images of other sources.", default=False, kind=bool)
    retry_failed: bool = option(FLAG, "Compute only images that failed.", default=False, kind=bool)
    only: tuple[int, int] | None = option(
        VALUES["only"],
        "Compute the K-th of N parts of the images.",
        more="In Python, (K, N).",
        metavar="K/N",
    )
    max_errors: int | None = option(VALUES["max_errors"], "End if more images fail.", kind=int)
    engine: str = option(
        TEXT,
        "This process, or workers of Ray.",
        default="local",
        metavar="local|ray",
        heading=WORKERS,
    )
    address: str | None = option(
        TEXT,
        "Of a cluster; default: $RAY_ADDRESS, the one of this machine, or a new one on it.",
        metavar="HOST:PORT",
        heading=WORKERS,
    )
    cpus_per_worker: float = option(
        VALUES["cpus_per_worker"],
        "Processors that Ray reserves, and threads if --threads says nothing.",
        default=1,
        kind=float,
        heading=WORKERS,
    )
    gpus_per_worker: float = option(
        VALUES["gpus_per_worker"],
        "GPUs that Ray reserves, for --device cuda.",
        default=0,
        kind=float,
        heading=WORKERS,
    )

    def __post_init__(self) -> None:
        read_fields(self)
        check_engine(self.engine)
        if self.store not in STORES:
            raise UsageError(f"{self.store!r} is not one of {', '.join(STORES)}.")
        if self.only and not (len(self.only) == 2 and 1 <= self.only[0] <= self.only[1]):
            raise UsageError("--only K/N (in Python, only=(K, N)) needs 1 <= K <= N.")
        if self.engine != "ray":
            of_ray = (name for name in OF_RAY if getattr(self, name) != getattr(RunOptions, name))
            refuse(of_ray, "this is for the engine ray.", hint="engine='ray', or --engine ray.")

    @property
    def part(self) -> str:
        """What the names of shards end with."""
        return f"-{self.only[0]}-of-{self.only[1]}" if self.only else ""


@described_by(RunOptions)
class RunArguments(TypedDict, total=False):
    """How a run goes: keyword arguments of `vitconvert.embed_dataset`."""

    shard_rows: int
    store: str
    append: bool
    retry_failed: bool
    only: tuple[int, int] | None
    max_errors: int | None
    engine: str
    address: str | None
    cpus_per_worker: float
    gpus_per_worker: float


class DatasetArguments(EmbedArguments, RunArguments, total=False):
    """Which features are taken of a model, how images go through it, and how a run goes."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a run.

    Attributes:
        what: "begun", "note", "images", "shard", "abandoned" or "finished".
        images, failed: How many: since the last event, for "images"; of the shard, for "shard"; of
            the run, for "finished".
        shards: How many were computed.
        known, known_failed: Images of shards that were there before, and those that failed.
        abandoned: Archives, or shards, that were given up.
        name: Of a shard, or of what was given up.
        message: Of a note, what should be known; why something was given up.
        shape, features: What an image became, and what that is in words, for "finished".
    """

    what: str
    images: int = 0
    failed: int = 0
    shards: int = 0
    known: int = 0
    known_failed: int = 0
    abandoned: int = 0
    name: str | None = None
    message: str | None = None
    shape: tuple[int, ...] | None = None
    features: str | None = None

    def to_dict(self) -> dict[str, object]:
        """As JSON types, without what says nothing."""
        return {name: value for name, value in vars(self).items() if value is not None}


Notify = Callable[[Event], None]


class TooManyFailures(VitConvertError):
    """More images failed than are allowed."""

    code = "too-many-failures"


@dataclass
class Totals:
    """What became of a run so far.

    Attributes:
        notify: Is told what happens.
        max_errors: How many images may fail; None: all.
        shards: The rows and failures of each shard that is there.
    """

    notify: Notify
    max_errors: int | None
    shards: dict[str, list[int]]
    done: int = 0
    failed: int = 0
    computed: int = 0
    given_up: int = 0

    def images(self, done: int, failed: int) -> None:
        """Images were computed.

        Raises:
            TooManyFailures: So it is.
        """
        self.done += done
        self.failed += failed
        self.notify(Event(what="images", images=done, failed=failed))
        if self.max_errors is not None and self.failed > self.max_errors:
            raise TooManyFailures(
                f"{self.failed} images failed, and {self.max_errors} may.",
                hint="finished shards are kept; failed/ says why images of theirs failed."
                if self.computed
                else "--max-errors allows more, and failed/ then says why they did.",
            )

    def shard(self, name: str, rows: int, failed: int) -> None:
        """A shard was written."""
        self.computed += 1
        self.shards[name] = [rows, failed]
        self.notify(Event(what="shard", name=name, images=rows + failed, failed=failed))

    def abandoned(self, name: str, message: str) -> None:
        """An archive, or a shard, was given up."""
        self.given_up += 1
        self.notify(Event(what="abandoned", name=name, message=message))
