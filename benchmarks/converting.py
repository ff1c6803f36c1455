"""Converting file to file, against `cp` of the same bytes and against what people do today.

    python -m benchmarks.converting [--rounds 5] [--architecture NAME] [--json] [--proof]

Random weights of one ViT are written as timm, transformers, torch.save and Google's npz have
them. Each conversion then runs in a process of its own, all of them in turn, round after round,
with the files in the page cache; a ratio compares with the `cp` of the same round. Every result
is on the disk (fsync) when the clock stops. vitconvert's is also hashed, as is what it read.

`--proof` measures conversions with their proof instead, from start to end of a process, against one
that only imports the programs which the proof runs.
"""

import json
import os
import re
import resource
import shutil
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.loading import transformers_vit
from benchmarks.measuring import (
    as_figures,
    mebibytes,
    need_linux,
    origin,
    parser_of,
    ratios,
    spread,
    table,
    timed,
)

ROOT = Path(__file__).parent.parent
BASE = "vit_base_patch16_224"
PACKAGES = ("torch", "timm", "transformers", "safetensors", "numpy")
RUN_ONCE = "import sys; from benchmarks.converting import run_once; run_once(*sys.argv[1:])"
TIMM, HF, ZIP, NPZ = "timm/model.safetensors", "hf/model.safetensors", "timm.pth", "jax/model.npz"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One way to get from a file to another."""

    title: str
    source: str
    run: str  # a key of RUNNERS
    needs: str = ""  # a package that may be absent


@dataclass(frozen=True, kw_only=True)
class Run:
    """Seconds of the work alone and of the whole process, and its peak of memory in MiB."""

    work: float
    process: float
    resident: float | None


JOBS = {
    "copy": Job(title="`cp` and fsync", source=TIMM, run="copy"),
    "split": Job(title="timm to hf (q, k, v apart)", source=TIMM, run="hf"),
    "join": Job(title="hf to timm (q, k, v joined)", source=HF, run="timm"),
    "zip": Job(title="torch zip to timm safetensors", source=ZIP, run="timm"),
    "npz": Job(title="Google npz to timm safetensors (transposes)", source=NPZ, run="timm"),
    "to npz": Job(title="timm to Google npz (transposes)", source=TIMM, run="jax"),
    "library": Job(
        title="`safetensors` load_file, save_file (no renaming)", source=TIMM, run="library"
    ),
    "numpy": Job(title="numpy: load, transpose, save", source=NPZ, run="numpy"),
    "models": Job(
        title="timm model to transformers model, save_pretrained",
        source=TIMM,
        run="models",
        needs="transformers",
    ),
}
Runs = dict[str, list[Run]]
AS_USUAL = ("-m", "vitconvert")
WITHOUT_TRANSFORMERS = (
    "-c",
    "import sys; sys.modules['transformers'] = None; from vitconvert.cli import main; main()",
)
# Row -> how vitconvert is run, the target, and what its proof imports. transformers opens a timm
# directory too, where it is installed.
PROOFS = {
    "timm to timm": (WITHOUT_TRANSFORMERS, "timm", "torch, timm"),
    "timm to timm, transformers installed": (AS_USUAL, "timm", "torch, timm"),
    "timm to hf": (AS_USUAL, "hf", "torch, timm, transformers"),
}
Proofs = dict[str, list[tuple[tuple[float, float], tuple[float, float]]]]


def main() -> None:
    parser = parser_of("converting", __doc__, 5)
    parser.add_argument("--architecture", default=BASE, help=f"of timm (default: {BASE})")
    parser.add_argument("--proof", action="store_true", help="with their proof, against imports")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    need_linux()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if options.proof:
        print(as_proof_table(options.architecture, measure_proofs(options)))
        return
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        size = make_files(Path(folder), options.architecture)
        runs = measure(Path(folder), options.architecture, options.rounds)
    show = as_json if options.json else as_markdown
    print(show(options.architecture, size, runs))


def make_files(folder: Path, architecture: str) -> float:
    """Write one model in every layout; the size of the weights in MiB.

    The model has Google's GELU, so that one function can be said in all of them.
    """
    import timm
    import torch
    from timm.models import save_for_hf

    import vitconvert
    from vitconvert.formats import hash_file

    model = timm.create_model(architecture, act_layer="gelu_tanh")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02)
    save_for_hf(
        model, folder / "timm", model_args={"act_layer": "gelu_tanh"}, safe_serialization=True
    )
    torch.save(model.state_dict(), folder / ZIP)
    del model
    for to, name in (("hf", "hf"), ("jax", "jax")):
        vitconvert.convert(folder / "timm", to=to, output=folder / name, verify=False)
        (folder / name / "vitconvert.json").unlink()
    for source in (TIMM, HF, ZIP, NPZ):
        hash_file(folder / source)  # into the page cache, past which the last were written
    return mebibytes(folder / TIMM)


def measure(folder: Path, architecture: str, rounds: int) -> Runs:
    """Every job in turn, as often as there are rounds."""
    present = [name for name, job in JOBS.items() if not job.needs or find_spec(job.needs)]
    runs: Runs = {name: [] for name in present}
    for _ in range(rounds):
        for name in present:
            runs[name].append(time_job(JOBS[name], folder, architecture))
    return runs


def measure_proofs(options: Namespace) -> Proofs:
    """Imports and the conversion with its proof in turn: row -> seconds of each, for a round."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        make_files(folder, options.architecture)
        found: Proofs = {row: [] for row in PROOFS}
        for _ in range(options.rounds):
            for row, (command, to, imports) in PROOFS.items():
                typed = ["convert", str(folder / "timm"), "--to", to, "-o", str(folder / "out")]
                imported = time_whole(["-c", f"import {imports}"])
                proved = time_whole([*command, *typed, "--force"])
                found[row].append((imported, proved))
    return found


def time_whole(arguments: Sequence[str]) -> tuple[float, float]:
    """Seconds of a process of Python, and of the processors for it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, _ = timed(arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def time_job(job: Job, folder: Path, architecture: str) -> Run:
    """One job in a process of its own."""
    output = folder / "out"
    shutil.rmtree(output, ignore_errors=True)
    os.sync()  # no other's writing is left to the disk when the clock starts
    if job.run == "copy":
        output.mkdir()
        command = ["cp", str(folder / job.source), str(output / "copy")]
        start = time.perf_counter()
        subprocess.run(command, check=True)
        sync(output / "copy")
        seconds = time.perf_counter() - start
        return Run(work=seconds, process=seconds, resident=None)
    paths = [str(folder / job.source), str(output)]
    seconds, printed = timed(["-c", RUN_ONCE, job.run, *paths, architecture])
    told = json.loads(printed)
    return Run(work=told["work"], process=seconds, resident=told["resident"])


def sync(path: Path) -> None:
    """Wait until a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def run_once(run: str, source: str, output: str, architecture: str) -> None:
    """What a measured process does: import, convert, tell how long the latter took."""
    work = RUNNERS[run](Path(source), Path(output), architecture)
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    # The peak of this program; what wait4 tells goes back to the process that was forked.
    status = Path("/proc/self/status").read_text()
    peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    print(json.dumps({"work": seconds, "resident": int(peak) / 1024}))


def _with_vitconvert(to: str) -> Callable[[Path, Path, str], Callable[[], Any]]:
    def prepare(source: Path, output: Path, architecture: str) -> Callable[[], Any]:
        from vitconvert.api import convert

        stated = {"activation": "gelu_tanh"}
        named = None if source.parent.name in ("hf", "jax") else architecture
        return lambda: convert(
            source, to=to, output=output, architecture=named, overrides=stated, verify=False
        )

    return prepare


def _with_library(source: Path, output: Path, _architecture: str) -> Callable[[], Any]:
    from safetensors.torch import load_file, save_file

    def work() -> None:
        output.mkdir()
        save_file(load_file(source), output / "model.safetensors", metadata={"format": "pt"})
        sync(output / "model.safetensors")

    return work


def _with_numpy(source: Path, output: Path, _architecture: str) -> Callable[[], Any]:
    import numpy as np

    def work() -> None:
        output.mkdir()
        with np.load(source) as arrays:
            turned = {name: np.ascontiguousarray(arrays[name].T) for name in arrays.files}
        np.savez(output / "model.npz", **turned)
        sync(output / "model.npz")

    return work


def _with_models(source: Path, output: Path, architecture: str) -> Callable[[], Any]:
    import timm
    import transformers.models.vit.modeling_vit  # noqa: F401  # imports do not count
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()

    def work() -> None:
        model = timm.create_model(architecture, checkpoint_path=str(source))
        theirs = transformers_vit(model)
        theirs.load_state_dict(dict(_respelled(model.state_dict())))
        theirs.save_pretrained(output)
        sync(output / "model.safetensors")

    return work


_NAMES = {  # timm's to those that transformers 5 gives its modules
    "cls_token": "vit.embeddings.cls_token",
    "pos_embed": "vit.embeddings.position_embeddings",
    "patch_embed.proj": "vit.embeddings.patch_embeddings.projection",
    "blocks": "vit.layers",
    "norm1": "layernorm_before",
    "attn.proj": "attention.o_proj",
    "norm2": "layernorm_after",
    "norm": "vit.layernorm",
    "head": "classifier",
}


def _respelled(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """timm's tensors under transformers' names, as a script for the purpose does it."""
    for name, tensor in state.items():
        new = name
        for ours, theirs in _NAMES.items():
            new = re.sub(rf"(^|\.){re.escape(ours)}(?=\.|$)", rf"\g<1>{theirs}", new)
        if ".attn.qkv." in new:
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                yield new.replace("attn.qkv", f"attention.{part}_proj"), piece
        else:
            yield new, tensor


RUNNERS: Mapping[str, Callable[[Path, Path, str], Callable[[], Any]]] = {
    "hf": _with_vitconvert("hf"),
    "timm": _with_vitconvert("timm"),
    "jax": _with_vitconvert("jax"),
    "library": _with_library,
    "numpy": _with_numpy,
    "models": _with_models,
}


def as_markdown(architecture: str, size: float, runs: Runs) -> str:
    """The table, and what a reader needs to judge it."""
    absent = [job.needs for name, job in JOBS.items() if job.needs and name not in runs]
    lines = [
        f"Converting {architecture}, {size:.0f} MiB. Median (smallest..largest) of"
        f" {len(runs['copy'])}; ratios are taken within each round.",
        "",
        table(["", "work, s", "work / cp", "process / cp", "peak memory, MiB"], rows(runs)),
        "",
        "Work is the call, without the start of Python and the imports. vitconvert runs with"
        " `--no-verify`, and computes the sha256 of all files that it reads and writes. Peak memory"
        " is the resident set of the whole process.",
        "",
        *origin("converting", PACKAGES),
    ]
    lines += [f"Left out: {peer} is not installed." for peer in absent]
    return "\n".join(lines)


def as_proof_table(architecture: str, proofs: Proofs) -> str:
    """A Markdown table: seconds, and ratios to the imports of the same round."""
    header = ["", "s", "/ imports", "processors' s", "/ imports"]
    made = []
    for title, found in proofs.items():
        row = [f"{title}, against `import {PROOFS[title][-1]}`"]
        for which in (0, 1):
            imported, proved = ([run[side][which] for run in found] for side in (0, 1))
            row += [spread(proved), spread(ratios(proved, imported))]
        made.append(row)
    return "\n".join(
        [
            f"Converting {architecture} and comparing the outputs, whole processes in turn. Median"
            f" (smallest..largest) of {len(proofs['timm to hf'])}; ratios are taken within each"
            " round.",
            "",
            table(header, made),
            "",
            *origin("converting", PACKAGES),
        ]
    )


def rows(runs: Runs) -> Iterator[list[str]]:
    """For each job its seconds, its ratios to the copy, and its memory."""
    copies = [run.process for run in runs["copy"]]
    for name, found in runs.items():
        work, process = [run.work for run in found], [run.process for run in found]
        yield [
            JOBS[name].title,
            spread(work),
            spread(ratios(work, copies)),
            spread(ratios(process, copies)),
            spread([r.resident for r in found if r.resident]) if name != "copy" else "",
        ]


def as_json(architecture: str, size: float, runs: Runs) -> str:
    """Every single figure."""
    return as_figures(
        "converting",
        PACKAGES,
        architecture=architecture,
        weights_mib=size,
        runs={JOBS[name].title: [asdict(run) for run in found] for name, found in runs.items()},
    )


if __name__ == "__main__":
    main()
