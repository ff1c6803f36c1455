"""Loading a checkpoint and starting the program, against timm and transformers.

    python -m benchmarks.loading [--rounds 5] [--threads N] [--tiny] [--json]

Random weights of one ViT are saved the way timm and transformers save them and as a Google npz.
Each load then runs in a process of its own, all loads in turn, round after round, with the files
in the page cache; a ratio compares two loads of the same round. The clock and the memory start
when the imports are done. A mapped file is read when it is first used, so a model that is ready
says little until it has answered once: that is timed too.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE
from typing import Any

from benchmarks.measuring import (
    as_figures,
    mebibytes,
    memory_of,
    need_linux,
    origin,
    parser_of,
    peak_until_exit,
    ratios,
    spread,
    table,
    timed,
)

ROOT = Path(__file__).parent.parent
OURS, FAST = "vitconvert", "vitconvert, fast=True"
BASE, TINY = "vit_base_patch16_224", "vit_tiny_patch16_224"
TIMM_FILE, HF_DIRECTORY, NPZ_FILE = "timm/model.safetensors", "hf", "google/model.npz"
LOAD_ONCE = "import sys; from benchmarks.loading import load_once; load_once(*sys.argv[1:])"

# A file, what it is called in the table, and whose loader vitconvert is compared with.
FILES = {
    TIMM_FILE: ("timm, safetensors", "timm"),
    HF_DIRECTORY: ("transformers, safetensors", "transformers"),
    NPZ_FILE: ("Google, npz", "timm"),
}
YARDSTICK = 'python -c "import click"'
COMMANDS = {
    YARDSTICK: "import click",
    'python -c "import vitconvert"': "import vitconvert",
    "vitconvert --help": "from vitconvert.cli import main; main(['--help'])",
    'python -c "import torch"': "import torch",
}
OPTIONAL = ("transformers",)  # timm is a dependency
PACKAGES = ("torch", "timm", "transformers", "safetensors")


@dataclass(frozen=True, kw_only=True)
class Load:
    """One load: seconds until the model is ready and has answered, and MiB above the imports."""

    ready: float
    answered: float
    anonymous: float
    resident: float


Loads = dict[tuple[str, str], list[Load]]  # by file and loader, one for each round
Starts = dict[str, list[float]]  # by command


def main() -> None:
    parser = parser_of("loading", __doc__, 5)
    parser.add_argument("--threads", type=int, help="torch's threads (default: its own choice)")
    parser.add_argument("--tiny", action="store_true", help=f"{TINY} instead of {BASE}")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    need_linux()
    if options.threads:  # Inherited by the measured processes.
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(options.threads)
    os.environ["HF_HUB_OFFLINE"] = "1"
    architecture = TINY if options.tiny else BASE
    absent = [peer for peer in OPTIONAL if find_spec(peer) is None]
    with tempfile.TemporaryDirectory() as folder:
        size = make_files(Path(folder), architecture, absent)
        loads, starts = measure(Path(folder), architecture, options.rounds)
    show = as_json if options.json else as_markdown
    print(show(architecture, size, loads, starts, absent))


def make_files(folder: Path, architecture: str, absent: Sequence[str] = ()) -> float:
    """Write the same kind of model as each project writes it; the size of the weights in MiB.

    Only the weights of the npz are kept: what vitconvert notes beside its own output would spare
    it the recognition that other people's files need.
    """
    import timm
    from timm.models import save_for_hf

    import vitconvert

    model = timm.create_model(architecture)
    _randomise(model)
    save_for_hf(model, folder / "timm", safe_serialization=True)
    if "transformers" not in absent:
        _save_transformers(model, folder / HF_DIRECTORY)
    # Google's models compute GELU by its tanh formula, so vitconvert refuses to write others.
    tanh = {"activation": "gelu_tanh"}
    google = vitconvert.convert(
        folder / "timm", to="jax", output=folder / "google", overrides=tanh, verify=False
    )
    (google.output / "vitconvert.json").unlink()
    return mebibytes(folder / TIMM_FILE)


def _save_transformers(model: Any, directory: Path) -> None:
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    theirs = transformers_vit(model)
    _randomise(theirs)
    theirs.save_pretrained(directory)


def transformers_vit(model: Any) -> Any:
    """transformers' ViT with the sizes of timm's."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=model.patch_embed.img_size[0],
        patch_size=model.patch_embed.patch_size[0],
        hidden_size=model.embed_dim,
        num_hidden_layers=len(model.blocks),
        num_attention_heads=model.blocks[0].attn.num_heads,
        intermediate_size=model.blocks[0].mlp.fc1.out_features,
        num_labels=model.num_classes,
    )
    return ViTForImageClassification(config)


def _randomise(model: Any) -> None:
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02)


def measure(folder: Path, architecture: str, rounds: int) -> tuple[Loads, Starts]:
    """Every load and every start, in turn, as often as there are rounds."""
    files = [file for file in FILES if (folder / file).exists()]
    pairs = [(file, loader) for file in files for loader in (OURS, FAST, FILES[file][1])]
    loads: Loads = {pair: [] for pair in pairs}
    starts: Starts = {command: [] for command in COMMANDS}
    for _ in range(rounds):
        for file, loader in pairs:
            loads[file, loader].append(time_load(loader, folder / file, architecture))
        for command, code in COMMANDS.items():
            starts[command].append(time_start(code))
    return loads, starts


def time_load(loader: str, path: Path, architecture: str) -> Load:
    """One load in a process of its own, whose memory is watched once its imports are done."""
    command = [sys.executable, "-c", LOAD_ONCE, loader, str(path), architecture]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=log, text=True
        )
        assert process.stdin and process.stdout
        process.stdout.readline()  # The imports are done, and it waits for a word.
        before = memory_of(process.pid)
        process.stdin.close()
        peak = peak_until_exit(process)
        log.seek(0)
        if process.returncode or not before:
            raise SystemExit(f"{loader} did not load {path}:\n{log.read()}")
        seconds = json.loads(process.stdout.read())
        process.stdout.close()
    return Load(
        **seconds,
        anonymous=peak.anonymous - before.anonymous,
        resident=peak.resident - before.resident,
    )


def time_start(code: str) -> float:
    """Seconds that a whole Python process takes."""
    return timed(["-c", code])[0]


def load_once(loader: str, path: str, architecture: str) -> None:
    """What a measured process does: import, say so, wait for a word, load, answer once."""
    import torch

    load = LOADERS[loader](Path(path), architecture)
    image = torch.rand(1, 3, 224, 224)
    print("imported", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    model = load()
    ready = time.perf_counter()
    with torch.inference_mode():
        model(image)
    answered = time.perf_counter()
    print(json.dumps({"ready": ready - start, "answered": answered - start}))


def _with_vitconvert(path: Path, _architecture: str, *, fast: bool = False) -> Callable[[], Any]:
    import vitconvert.facts.materialise
    import vitconvert.model  # noqa: F401  # load_model imports them late, and imports do not count
    from vitconvert import load_model

    return lambda: load_model(path, fast=fast)


def _with_timm(path: Path, architecture: str) -> Callable[[], Any]:
    import timm

    return lambda: timm.create_model(architecture, checkpoint_path=str(path)).eval()


def _with_transformers(path: Path, _architecture: str) -> Callable[[], Any]:
    from transformers import ViTForImageClassification

    return lambda: ViTForImageClassification.from_pretrained(path).eval()


LOADERS: Mapping[str, Callable[[Path, str], Callable[[], Any]]] = {
    OURS: _with_vitconvert,
    FAST: partial(_with_vitconvert, fast=True),
    "timm": _with_timm,
    "transformers": _with_transformers,
}


def as_markdown(
    architecture: str, size: float, loads: Loads, starts: Starts, absent: list[str]
) -> str:
    """The tables, and what a reader needs to judge them."""
    rounds = len(starts[YARDSTICK])
    header = ["file", "loaded by", "ready, s", "ready + first image, s", "own memory, MiB"]
    lines = [
        f"Loading {architecture}, {size:.0f} MiB of random float32 weights. Median"
        f" (smallest..largest) of {rounds}; ratios are taken within each round.",
        "",
        table([*header, "resident memory, MiB"], loading_rows(loads)),
        "",
        "Time and memory do not include those of the imports. Memory is the peak until the outputs"
        " for one image are computed. Own memory is not backed by a file (RssAnon). Resident memory"
        " (VmRSS) includes pages of mapped files, which the system may drop at any time. The files"
        " are in the page cache.",
        "",
        table(["process", "from start to exit, s", "against click"], starting_rows(starts)),
        "",
        *origin("loading", PACKAGES),
    ]
    lines += [f"Left out: {peer} is not installed." for peer in absent]
    return "\n".join(lines)


def loading_rows(loads: Loads) -> Iterator[list[str]]:
    """For each file: vitconvert, the project it is compared with, and the ratio of the two."""
    for file, (title, peer) in FILES.items():
        for loader in (OURS, FAST, peer):
            if runs := loads.get((file, loader)):
                yield [title, loader, *(spread(values) for values in _columns(runs))]
        if theirs := loads.get((file, peer)):
            for ours in (OURS, FAST):
                pairs = zip(_columns(loads[file, ours]), _columns(theirs), strict=True)
                yield [title, f"*{ours} / {peer}*", *(spread(ratios(a, b)) for a, b in pairs)]


def starting_rows(starts: Starts) -> Iterator[list[str]]:
    """For each command, its time and how often click would have been imported in it."""
    for command, seconds in starts.items():
        yield [f"`{command}`", spread(seconds), spread(ratios(seconds, starts[YARDSTICK]))]


def _columns(runs: list[Load]) -> Iterator[list[float]]:
    return ([getattr(run, field.name) for run in runs] for field in fields(Load))


def as_json(architecture: str, size: float, loads: Loads, starts: Starts, absent: list[str]) -> str:
    """Every single figure."""
    return as_figures(
        "loading",
        PACKAGES,
        architecture=architecture,
        weights_mib=size,
        loads=[
            {"file": FILES[file][0], "loader": loader, "rounds": [asdict(run) for run in runs]}
            for (file, loader), runs in loads.items()
        ],
        starts_s=starts,
        absent=absent,
    )


if __name__ == "__main__":
    main()
