"""Checkpoints in several files, held together by an index (`*.index.json`)."""

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath

from vitconvert.errors import CorruptFile, SourceError, UnsafeFile
from vitconvert.file_formats import LONGEST_SAFETENSORS_HEADER as LONGEST_INDEX
from vitconvert.formats.container import Container, TensorInfo, joined
from vitconvert.formats.hashing import hash_file
from vitconvert.formats.headers import corrupt, parse_strict_object


def write_index(
    path: Path, shards: Mapping[str, Collection[str]], infos: Mapping[str, TensorInfo]
) -> str:
    """Write the index of several files as transformers writes it, and return its sha256.

    Args:
        path: Of the index.
        shards: Names of the files beside it, and which tensors each holds.
        infos: The tensors.
    """
    weight_map = {name: shard for shard, names in shards.items() for name in names}
    total = sum(info.nbytes for info in infos.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    path.write_text(
        json.dumps(index, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n"
    )
    return hash_file(path)


def split(file: str, infos: Mapping[str, TensorInfo], most: int | None) -> dict[str, list[str]]:
    """Names of files, and which tensors go into each; one file keeps its name.

    Args:
        file: `model.safetensors` becomes `model-00001-of-00003.safetensors` and so on.
        infos: The tensors.
        most: Bytes of tensors in a file; a tensor that is larger has a file of its own.
    """
    groups: list[list[str]] = []
    size = 0
    for name in sorted(infos):
        nbytes = infos[name].nbytes
        if not groups or (most is not None and size + nbytes > most):
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += nbytes
    if len(groups) < 2:
        return {file: list(infos)}
    stem, suffix = Path(file).stem, Path(file).suffix
    return {
        f"{stem}-{number:05}-of-{len(groups):05}{suffix}": names
        for number, names in enumerate(groups, start=1)
    }


def open_shards(index: Path, open_shard: Callable[[Path], Container]) -> Container:
    """Open every shard that an index names, as one container.

    Raises:
        CorruptFile: The file is not an index, or it and the shards contradict each other.
        SourceError: Shards are missing, or are Keras' (ShardedH5IOStore).
        UnsafeFile: A shard's name leads out of the directory of the index.
    """
    weight_map = read_index(index)
    paths = {name: index.parent / name for name in sorted(set(weight_map.values()))}
    if missing := [name for name, path in paths.items() if not is_file(path)]:
        raise SourceError(
            f"{len(missing)} of {len(paths)} shards are missing.",
            evidence={"index": index},
            details=[name[:255] for name in missing[:10]],
            hint="download them into the same directory.",
        )
    with ExitStack() as stack:
        shards = {name: stack.enter_context(open_shard(path)) for name, path in paths.items()}
        _check_agreement(index, weight_map, shards)
        stack.pop_all()
    whole = joined(list(shards.values()))
    return replace(whole, path=index, files=(index, *whole.files))


def read_index(index: Path) -> dict[str, str]:
    """The file that holds each tensor, by the tensor's name.

    Raises:
        CorruptFile: The file is no index.
        SourceError: It is Keras' (ShardedH5IOStore).
        UnsafeFile: A shard's name leads out of the directory of the index.
    """
    if (size := index.stat().st_size) > LONGEST_INDEX:
        fact = "The file begins as JSON, but is too long for an index of shards."
        raise corrupt(index, fact, found=f"{size:,} bytes", limit=f"{LONGEST_INDEX:,}")
    content = parse_strict_object(index, index.read_bytes(), what="The index of shards")
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise corrupt(
            index,
            "This is a JSON file without a weight_map, so it is not an index of shards.",
            hint="name the file that holds the weights.",
            keys=", ".join(list(content)[:5])[:160],
        )
    if all(name.startswith("/") for name in weight_map):
        raise SourceError(
            "This is the index of a Keras model's weights in several files, which are not read.",
            evidence={"file": index},
            hint='write one: load them into the model, and model.save_weights("model.weights.h5").',
        )
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard:
            raise corrupt(index, f"The index names no shard for {name!r}.")
        if leads_out(shard):
            raise UnsafeFile(
                "The index names a shard outside its own directory.",
                evidence={"file": index, "shard": shard},
            )
    return weight_map


def is_file(path: Path) -> bool:
    """Whether there is a file of this name, which somebody else chose."""
    try:
        return path.is_file()
    except OSError:  # a name longer than the file system has
        return False


def leads_out(shard: str) -> bool:
    """Whether a name that a file gives leads out of the directory of that file."""
    return any(
        path.is_absolute() or path.drive or path.root or ".." in path.parts
        for path in (PurePosixPath(shard), PureWindowsPath(shard))
    )


def _check_agreement(
    index: Path, weight_map: Mapping[str, str], shards: Mapping[str, Container]
) -> None:
    problems = [
        f"{name} is not in {shard}"
        for name, shard in weight_map.items()
        if name not in shards[shard].manifest
    ]
    for shard, container in shards.items():
        problems += [
            f"{name} is in {shard} but not in the index"
            if name not in weight_map
            else f"{name} is in {shard} and in {weight_map[name]}"
            for name in container.manifest
            if weight_map.get(name) != shard
        ]
    if problems:
        raise CorruptFile(
            "The index and its shards contradict each other.",
            evidence={"index": index, "problems": len(problems)},
            details=problems[:10],
            hint="download the index and all shards from one revision.",
        )
    first = next(iter(shards.values()))
    layout = (first.format, first.wrapper)
    if odd := [name for name, s in shards.items() if (s.format, s.wrapper) != layout]:
        raise CorruptFile(
            "The shards have different formats or wrappers.", evidence={"index": index}, details=odd
        )
