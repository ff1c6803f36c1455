"""How a run goes, whatever it computes."""

from dataclasses import dataclass

from vitconvert.arguments import read_fields, refuse
from vitconvert.embedding.shard import STORES
from vitconvert.errors import UsageError

ENGINES = ("local", "ray")
OF_RAY = ("address", "workers", "cpus_per_worker", "gpus_per_worker")


def check_engine(name: str) -> None:
    """Refuse an engine that there is not.

    Raises:
        UsageError: Perhaps a runtime was meant, which is another option.
    """
    if name not in ENGINES:
        raise UsageError(
            f"The engine {name!r} is none of {', '.join(ENGINES)}.",
            hint="an engine is where work is done; what computes is the runtime: --runtime "
            "onnxruntime, openvino or auto (in Python, runtime=).",
        )


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run goes.

    Attributes:
        shard_rows: Images of a shard, at most.
        store: Numbers of features: "float32" or "float16".
        append: Whether images that the plan does not have are added to it.
        retry_failed: Whether shards of which images failed are removed, and computed again.
        only: (k, n): compute the k-th of n parts of the units, from 1, and no others.
        max_errors: How many images may fail before the run ends; None: all.
        engine: "local": this process. "ray": workers of Ray.
        workers, cpus_per_worker, gpus_per_worker, address: Of Ray.
    """

    shard_rows: int = 65536
    store: str = "float32"
    append: bool = False
    retry_failed: bool = False
    only: tuple[int, int] | None = None
    max_errors: int | None = None
    engine: str = "local"
    workers: int | None = None
    cpus_per_worker: float = 1
    gpus_per_worker: float = 0
    address: str | None = None

    def __post_init__(self) -> None:
        read_fields(self)
        check_engine(self.engine)
        if self.store not in STORES:
            raise UsageError(f"{self.store!r} is none of {', '.join(STORES)}.")
        if self.only and not (len(self.only) == 2 and 1 <= self.only[0] <= self.only[1]):
            raise UsageError("--only K/N (in Python, only=(K, N)) needs 1 <= K <= N.")
        if self.engine != "ray":
            of_ray = (name for name in OF_RAY if getattr(self, name) != getattr(RunOptions, name))
            refuse(of_ray, "this is for the engine ray.", hint="engine='ray', or --engine ray.")
        if self.only and self.append:
            raise UsageError("A part of the units is computed, or images are added: not both.")
