"""How many checkpoints are inspected a minute by their headers: in a folder, and on a Hub.

    python -m benchmarks.headers

The Hub is a server of this program, on this machine. Whole processes, in turn with a script that
reads headers and recognises nothing.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring import (
    as_figures,
    need_linux,
    origin,
    parser_of,
    ratios,
    spread,
    table,
    timed,
)
from tests.hub_server import HubServer

ARCHITECTURES = ("vit_base_patch16_224", "vit_small_patch16_224", "deit_base_distilled_patch16_224")
PACKAGES = ("torch", "timm", "safetensors", "huggingface_hub")
FOLDER_SCRIPT = """
import json, sys
from pathlib import Path
from safetensors import safe_open

for path in sorted(Path(sys.argv[1]).rglob("*.safetensors")):
    with safe_open(path, "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
    print(json.dumps({"model": str(path), "tensors": shapes}))
"""
HUB_SCRIPT = """
import json, sys
from huggingface_hub import get_safetensors_metadata

for repo in sys.stdin.read().split():
    metadata = get_safetensors_metadata(repo.removeprefix("hf:"))
    print(json.dumps({"model": repo, "parameters": metadata.parameter_count}))
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Checkpoints for vitconvert and for a script: what is typed, and what both are given."""

    title: str
    peer: str
    typed: tuple[str, ...]
    script: tuple[str, ...]
    given: str = ""


def main() -> None:
    parser = parser_of("headers", __doc__, 3)
    parser.add_argument("--checkpoints", type=int, default=1000)
    options = parser.parse_args()
    need_linux()
    with (
        tempfile.TemporaryDirectory() as name,
        many_checkpoints(Path(name), options.checkpoints) as (jobs, environment),
    ):
        found: dict[str, list[tuple[float, float]]] = {job.title: [] for job in jobs}
        for round_ in range(options.rounds):
            for job in jobs:
                # A cache of its own: nothing is known of any repository.
                cache = environment | {"HF_HOME": f"{name}/cache-{round_}"}
                ours, printed = timed(
                    ["-m", "vitconvert", "inspect", *job.typed], given=job.given, **cache
                )
                assert printed.count('"ok": true') == options.checkpoints, printed[:1000]
                theirs, _ = timed(["-c", *job.script], given=job.given, **cache)
                found[job.title].append((ours, theirs))
    if options.json:
        print(as_figures("headers", PACKAGES, checkpoints=options.checkpoints, seconds=found))
        return
    print(as_markdown(jobs, found, options.checkpoints))


@contextmanager
def many_checkpoints(folder: Path, count: int) -> Iterator[tuple[list[Job], dict[str, str]]]:
    """Checkpoints in a folder and on a Hub, and how to inspect them all."""
    made = [make_checkpoint(folder / name, name) for name in ARCHITECTURES]
    below = folder / "models"
    for i in range(count):
        place = below / f"vit-{i:05}"
        place.mkdir(parents=True)
        for file in made[i % len(made)].iterdir():
            os.link(file, place / file.name)
    files = [{file.name: file.read_bytes() for file in one.iterdir()} for one in made]
    repos = {f"org/vit-{i:05}": files[i % len(files)] for i in range(count)}
    jobs = [
        Job(
            title="files of a folder",
            peer="`safetensors`, names and shapes",
            typed=(str(below), "--lines"),
            script=(FOLDER_SCRIPT, str(below)),
        ),
        Job(
            title="repositories of a list",
            peer="`huggingface_hub.get_safetensors_metadata`",
            typed=("-", "--lines"),
            script=(HUB_SCRIPT,),
            given="".join(f"hf:{repo}\n" for repo in repos),
        ),
    ]
    with HubServer(repos) as server:
        yield jobs, {"HF_ENDPOINT": server.endpoint, "HF_HUB_OFFLINE": "0"}


def make_checkpoint(folder: Path, architecture: str) -> Path:
    """A directory of timm's with a narrow model: as many tensors as a real one, in a small file."""
    import timm
    from timm.models import save_for_hf

    narrow = {"embed_dim": 48, "num_heads": 3}
    model = timm.create_model(architecture, **narrow)
    save_for_hf(model, folder, model_args=narrow, safe_serialization=True)
    return folder


def as_markdown(jobs: list[Job], found: dict[str, list[tuple[float, float]]], count: int) -> str:
    """The table: checkpoints a minute, and seconds."""
    made = []
    for job in jobs:
        ours, theirs = zip(*found[job.title], strict=True)
        minute = [60 * count / seconds for seconds in ours]
        script = [60 * count / seconds for seconds in theirs]
        made.append([job.title, spread(minute), job.peer, spread(script)])
        made[-1].append(spread(ratios(minute, script)))
    header = ["", "inspected a minute", "the script", "read a minute", "ratio"]
    return "\n".join(
        [
            f"{count:,} checkpoints of 152 tensors or more, whole processes in turn. Median"
            f" (smallest..largest) of {len(found[jobs[0].title])}.",
            "",
            table(header, made),
            "",
            *origin("headers", PACKAGES),
        ]
    )


if __name__ == "__main__":
    main()
