"""Which files of a repository to read, from their names alone."""

from collections.abc import Collection
from pathlib import PurePosixPath

from vitconvert.errors import SourceError, nearest
from vitconvert.sources.located import COMPANIONS

INDEX = ".index.json"
# The safe format first; open_clip's own spelling of the same weights last.
_PREFERRED = (
    "model.safetensors",
    f"model.safetensors{INDEX}",
    "pytorch_model.bin",
    f"pytorch_model.bin{INDEX}",
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.bin",
)
_SUFFIXES = ((".safetensors",), (".bin", ".pt", ".pth"), (".npz",))
# TensorFlow, Flax msgpack, ONNX and quantised files: weights, but none that we read.
_UNREADABLE = (".h5", ".msgpack", ".onnx", ".gguf", ".tflite", ".ckpt.index", ".pb")


def choose_weights(repo: str, names: Collection[str]) -> str:
    """The file of weights, or the index of its shards, among a repository's files.

    Raises:
        SourceError: There is none, or several could be meant.
    """
    for name in _PREFERRED:
        if name in names:
            return name
    top = sorted(name for name in names if "/" not in name)
    for suffixes in _SUFFIXES:
        candidates = [name for name in top if name.endswith(suffixes)]
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise SourceError(
                f"{repo} holds {len(candidates)} files of weights.",
                details=candidates,
                hint=f"choose one: hf:{repo}/{candidates[0]}",
            )
    raise _no_weights(repo, names)


def _no_weights(repo: str, names: Collection[str]) -> SourceError:
    readable = tuple(suffix for suffixes in _SUFFIXES for suffix in suffixes)
    if nested := sorted(name for name in names if name.endswith(readable)):
        return SourceError(
            f"{repo} holds weights only in folders.",
            details=nested,
            hint=f"choose one: hf:{repo}/{nested[0]}",
        )
    return SourceError(
        f"{repo} holds no weights that vitconvert reads.",
        details=sorted(name for name in names if name.endswith(_UNREADABLE)),
        hint="safetensors, PyTorch (.bin, .pt, .pth) and .npz are read.",
    )


def require(repo: str, name: str, names: Collection[str]) -> str:
    """The name itself, if the repository has it.

    Raises:
        SourceError: It has not. Names the nearest.
    """
    if name in names:
        return name
    near = nearest(name, names, 3)
    raise SourceError(
        f"{repo} holds no file {name}.",
        hint=f"did you mean {' or '.join(f'hf:{repo}/{match}' for match in near)}?"
        if near
        else f"the files are listed at https://huggingface.co/{repo}/tree/main",
    )


def companions(weights: str, names: Collection[str]) -> list[str]:
    """The configuration files beside the weights."""
    folder = PurePosixPath(weights).parent
    return [path for name in COMPANIONS if (path := str(folder / name)) in names]
