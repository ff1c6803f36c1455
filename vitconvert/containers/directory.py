"""Which file of a directory holds the weights."""

import re
from pathlib import Path

from vitconvert.containers.recognition import distributed, is_distributed
from vitconvert.errors import SourceError

# The names that the libraries themselves look for, best first. Several of them in one directory
# are the same weights in several formats, so the first one stands for all.
STANDARD_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_pytorch_model.bin",
)
SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt", ".pth.tar")
_INDICES = (".safetensors.index.json", ".bin.index.json")
_SHARD = re.compile(r"-\d+-of-\d+\.")
# What trainers leave beside the weights.
_NOT_WEIGHTS = re.compile(
    r"(training_args\.bin|optimizer\.|scheduler\.|scaler\.|rng_state|.*_optim_states\.pt)"
)


def weights_in(directory: Path) -> Path:
    """The one weights file, or index of shards, of a directory.

    Raises:
        SourceError: There is no such directory, or it holds no weights file, several without a
            standard name, or a distributed checkpoint.
    """
    for name in STANDARD_NAMES:
        if (directory / name).is_file():
            return directory / name
    if not directory.is_dir():
        raise SourceError("There is no such directory.", evidence={"path": directory})
    if is_distributed(directory):
        raise distributed(directory)
    candidates = sorted(
        path
        for path in directory.iterdir()
        if path.is_file()
        and path.name.endswith((*SUFFIXES, *_INDICES))
        and not _NOT_WEIGHTS.match(path.name)
    )
    indices = [path for path in candidates if path.name.endswith(_INDICES)]
    if len(indices) == 1:
        return indices[0]
    if len(candidates) == 1:
        return candidates[0]
    raise _none(directory) if not candidates else _several(directory, candidates)


def _none(directory: Path) -> SourceError:
    names = sorted(
        path.name if path.exists() else f"{path.name}, a link to what is not there"
        for path in directory.iterdir()
    )
    inside = {path.parent.name for path in directory.glob("*/*") if path.name.endswith(SUFFIXES)}
    return SourceError(
        "The directory holds no weights file.",
        evidence={"directory": directory, "looked for": " ".join(f"*{s}" for s in SUFFIXES)},
        details=[f"found {name}" for name in names[:10]],
        hint=f"name a folder that holds some: {', '.join(sorted(inside)[:5])}." if inside else None,
    )


def _several(directory: Path, candidates: list[Path]) -> SourceError:
    if all(_SHARD.search(path.name) for path in candidates):
        return SourceError(
            "The directory holds shards of a checkpoint, and no index that says what is in them.",
            evidence={"directory": directory},
            details=[path.name for path in candidates[:10]],
            hint="get the file that ends with .index.json, too.",
        )
    return SourceError(
        f"The directory holds {len(candidates)} weights files, none with a standard name.",
        evidence={"directory": directory},
        details=[path.name for path in candidates[:10]],
        hint="name one of them.",
    )
