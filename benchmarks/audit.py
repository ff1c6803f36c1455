"""What `vitconvert.audit_load` costs for a large model, beside reading its file once.

The tensors are those of Qwen2.5-VL-7B, in bfloat16: 8.3 billion numbers, 16.6 GB. Its file and the
model's memory are sparse files that are mapped, so neither the disk nor the memory holds them; each
tensor begins with a page of its own random numbers. What is read, hashed and compared is the whole.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import nn

from benchmarks.measuring import (
    ROOT,
    as_figures,
    memory_of,
    need_linux,
    origin,
    parser_of,
    peak_until_exit,
    spread,
    table,
)
from vitconvert import audit_load
from vitconvert.formats import open_container

PACKAGES = ("torch", "safetensors")
PAGE = 4096
READ, BY_NAME, LOST, RENAMED = "read", "by-name", "lost", "renamed"
CASES = {
    READ: "the file, read once",
    BY_NAME: "the load, audited",
    LOST: "the same, the vision encoder lost",
    RENAMED: "the same, no name as in the file",
}


def shapes(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of Qwen2.5-VL-7B, which has 28 layers (and 32 of its vision encoder)."""
    width, hidden, words = 3584, 18944, 152064
    yield "model.embed_tokens.weight", (words, width)
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for part, rows in (("q", width), ("k", 512), ("v", 512)):
            yield f"{at}.self_attn.{part}_proj.weight", (rows, width)
            yield f"{at}.self_attn.{part}_proj.bias", (rows,)
        yield f"{at}.self_attn.o_proj.weight", (width, width)
        yield f"{at}.mlp.gate_proj.weight", (hidden, width)
        yield f"{at}.mlp.up_proj.weight", (hidden, width)
        yield f"{at}.mlp.down_proj.weight", (width, hidden)
        yield f"{at}.input_layernorm.weight", (width,)
        yield f"{at}.post_attention_layernorm.weight", (width,)
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (words, width)
    width, hidden = 1280, 3420
    yield "visual.patch_embed.proj.weight", (width, 3, 2, 14, 14)
    for layer in range(layers + 4):
        at = f"visual.blocks.{layer}"
        linear = {"attn.qkv": (3 * width, width), "attn.proj": (width, width)}
        linear |= {f"mlp.{part}_proj": (hidden, width) for part in ("gate", "up")}
        linear["mlp.down_proj"] = (width, hidden)
        for name, shape in linear.items():
            yield f"{at}.{name}.weight", shape
            yield f"{at}.{name}.bias", shape[:1]
        yield f"{at}.norm1.weight", (width,)
        yield f"{at}.norm2.weight", (width,)
    yield "visual.merger.ln_q.weight", (width,)
    for layer, rows in ((0, 4 * width), (2, 3584)):
        yield f"visual.merger.mlp.{layer}.weight", (rows, 4 * width)
        yield f"visual.merger.mlp.{layer}.bias", (rows,)


def write_sparse(path: Path, tensors: Mapping[str, tuple[int, ...]], seed: int) -> None:
    """A safetensors file with a page of random numbers for each tensor, and holes behind it."""
    header, end = {}, 0
    for name, shape in tensors.items():
        begin, end = end, end + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % PAGE - 8)
    random = np.random.default_rng(seed)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
        for name, shape in tensors.items():
            numbers = torch.from_numpy(random.standard_normal(min(PAGE // 2, prod(shape))))
            file.seek(8 + len(text) + header[name]["data_offsets"][0])
            file.write(numbers.to(torch.bfloat16).view(torch.int16).numpy().tobytes())


def model_of(tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """A module with these parameters."""
    model = nn.Module()
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        module = model
        for word in path:
            if not hasattr(module, word):
                module.add_module(word, nn.Module())
            module = module.get_submodule(word)
        module.register_parameter(last, nn.Parameter(tensor, requires_grad=False))
    return model


def mapped(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file, which stays the memory that they have."""
    container = open_container(path)
    return {name: container.read(name) for name in container.manifest}


def run_case(case: str, folder: Path) -> None:
    """One case in this process; it prints its seconds, and what was found."""
    file = folder / "file.safetensors"
    if case == READ:
        begun, begun_processor = time.perf_counter(), time.process_time()
        with file.open("rb", buffering=0) as opened:
            part = bytearray(2**20)
            while opened.readinto(part):
                pass
        seconds, processor = time.perf_counter() - begun, time.process_time() - begun_processor
        print(json.dumps({"seconds": seconds, "processor": processor}))
        return
    model, loaded = model_of(mapped(folder / "initial.safetensors")), mapped(file)
    if case == LOST:
        loaded = {name: t for name, t in loaded.items() if not name.startswith("visual.")}
    if case == RENAMED:
        file = folder / "renamed.safetensors"
    before = memory_of(os.getpid())
    assert before is not None
    begun, begun_processor = time.perf_counter(), time.process_time()
    with audit_load(model, file) as audit:
        model.load_state_dict(loaded, strict=False, assign=True)
    seconds, processor = time.perf_counter() - begun, time.process_time() - begun_processor
    found = f"{len(audit.landed)} landed, {len(audit.untouched)} untouched"
    print(
        json.dumps(
            {"seconds": seconds, "processor": processor, "found": found, "before": before.anonymous}
        )
    )


def measured(case: str, folder: Path) -> dict[str, float | str]:
    """A case in a process of its own, and the memory that it took beside the model."""
    command = [sys.executable, "-m", "benchmarks.audit", "--case", case, "--folder", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    peak = peak_until_exit(process)
    assert process.stdout is not None
    said = process.stdout.read()
    process.stdout.close()
    if process.returncode:
        raise SystemExit(f"{' '.join(command[1:])} failed")
    found: dict[str, float | str] = json.loads(said)
    return {**found, "memory": peak.anonymous - float(found.get("before", peak.anonymous))}


def main() -> None:
    need_linux()
    parser = parser_of("audit", __doc__, 1)
    parser.add_argument(
        "--layers", type=int, default=28, help="of the language model (default: 28)"
    )
    parser.add_argument("--case", choices=[*CASES], help="one case, in this process")
    parser.add_argument("--folder", type=Path, help="where its files are")
    options = parser.parse_args()
    if options.case:
        run_case(options.case, options.folder)
        return
    tensors = dict(shapes(options.layers))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sparse(folder / "initial.safetensors", tensors, seed=0)
        write_sparse(folder / "file.safetensors", tensors, seed=1)
        renamed = {f"t{number}": shape for number, shape in enumerate(tensors.values())}
        write_sparse(folder / "renamed.safetensors", renamed, seed=1)
        found = {case: [measured(case, folder) for _ in range(options.rounds)] for case in CASES}
    size = sum(map(prod, tensors.values()))
    print(as_figures("audit", PACKAGES, found=found) if options.json else report(found, size))


def report(found: Mapping[str, Sequence[Mapping[str, float | str]]], size: int) -> str:
    """The figures as Markdown."""
    once = median(float(one["seconds"]) for one in found[READ])
    rows = []
    for case, title in CASES.items():
        seconds = [float(one["seconds"]) for one in found[case]]
        last = found[case][-1]
        memory = "" if case == READ else spread([float(one["memory"]) for one in found[case]])
        ratio = spread([one / once for one in seconds])
        processor = spread([float(one["processor"]) for one in found[case]])
        found_ = str(last.get("found", ""))
        rows.append([title, spread(seconds), processor, ratio, memory, found_])
    header = ["", "s", "processor s", "times reading the file", "MiB beside the model", "tensors"]
    count = f"{size / 1e9:.1f} billion numbers in bfloat16, {2 * size / 1e9:.1f} GB."
    return "\n".join([count, "", table(header, rows), "", *origin("audit", PACKAGES)])


if __name__ == "__main__":
    main()
