"""Files of features, in formats that other programs read."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from io import RawIOBase
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitconvert.atomic_write import Check, atomic_file, require_place
from vitconvert.errors import OutputExists, UsageError, VitConvertError, as_typed
from vitconvert.formats import open_container, write_safetensors
from vitconvert.inference.embed import Embedding

_LINE = re.compile(rb'\{"path": (null|"([^"\\]|\\.)*"), "features": ')  # of JSON, as it begins
_LONGEST_PATH = 2**16  # bytes of a path in JSON, and more


def check_output(path: Path, *, overwrite: bool) -> None:
    """Check, before any work is done, that a file of this name can be written.

    Raises:
        UsageError: The suffix is unknown, or the directory does not exist.
        OutputExists: The file exists, and `overwrite` is false or it holds no such features.
    """
    require_place(path)
    if path.suffix not in _WRITERS:
        folder = as_typed(f"{path.with_suffix('')}/")
        raise UsageError(
            f"Features cannot be written as {path.suffix or 'a file without suffix'}.",
            evidence={"output": path, "known": ", ".join(_WRITERS)},
            hint=f"-o {folder} is a directory of Parquet files."
            if path.suffix == ".parquet"
            else None,
        )
    if path.exists() and not overwrite:
        raise OutputExists(
            "The output exists already.",
            evidence={"output": path},
            hint="--force (in Python, overwrite=True) replaces it, if it holds features.",
        )
    if path.exists() and not _holds_features(path):
        raise OutputExists(
            "The file does not hold features of images, so it is not replaced.",
            evidence={"output": path},
            hint="-o names another file.",
        )


def _holds_features(path: Path) -> bool:
    """Whether `write_embeddings` may have written a file; others are the user's."""
    with suppress(OSError, ValueError, VitConvertError):
        if path.suffix == ".jsonl":
            with path.open("rb") as file:
                start = file.read(_LONGEST_PATH)
            return not start or _LINE.match(start) is not None
        with open_container(path) as found:
            beside = {**found.metadata, **found.extras}
            return set(found.manifest) == {"features"} and "paths" in beside
    return False


def write_embeddings(
    path: Path, embeddings: Iterable[Embedding], *, overwrite: bool = False
) -> int | None:
    """Write the features of images, in their order.

        .npz            arrays "features" (images, D), or (images, N, D) of tokens, and "paths"
        .safetensors    a tensor "features", and "paths" in the metadata: a list in JSON
        .jsonl          one object for each image, {"path", "features", "error", "remarks"}, failed
                        ones too

    Where something of an image was left out, as the lower bits of a 16-bit one, the first two also
    have "remarks": a text for each image, "" for most.

    The first two keep all features in memory until they are written, leave out images that failed,
    and appear whole or not at all. Lines of JSON are written as they come, and those that are
    written stay; an earlier file stays until the new one is whole.

    Returns:
        How many images have features in the file; None if no file was written, because the first
        two formats had no features to hold.

    Raises:
        UsageError: The directory does not exist.
        OutputExists: As for `check_output`, of what appeared meanwhile.
    """
    check = partial(check_output, overwrite=overwrite)
    return _WRITERS[path.suffix](path, embeddings, check)


def _write_arrays(path: Path, embeddings: Iterable[Embedding], check: Check) -> int | None:
    rows, paths, remarks = [], [], []
    for one in embeddings:
        if one.features is not None:
            rows.append(one.features)
            paths.append(str(one.path or ""))
            remarks.append("; ".join(one.remarks))
    if not rows:
        return None
    features = torch.stack(rows)
    texts = {"paths": paths, **({"remarks": remarks} if any(remarks) else {})}
    if path.suffix == ".npz":
        with atomic_file(path, check=check) as file:
            arrays: dict[str, Any] = {name: np.array(values) for name, values in texts.items()}
            np.savez(file, features=features.numpy(), **arrays)
    else:
        metadata = {name: json.dumps(values) for name, values in texts.items()}
        write_safetensors(path, {"features": features}, metadata=metadata, check=check)
    return len(rows)


def _write_jsonl(path: Path, embeddings: Iterable[Embedding], check: Check) -> int:
    count = 0
    # Each line at once, and whole; but an earlier file stays until the new one is.
    try:
        opened: AbstractContextManager[RawIOBase] = path.open("xb", buffering=0)
    except FileExistsError:
        check(path)
        opened = atomic_file(path, check=check)
    with opened as file:
        for embedding in embeddings:
            _write_line(file, json.dumps(embedding.to_dict()).encode() + b"\n")
            count += embedding.features is not None
    return count


def _write_line(file: RawIOBase, line: bytes) -> None:
    """All of a line, or none of it: of a raw write, a full disk takes a part without an error."""
    begin, rest = file.tell(), memoryview(line)
    try:
        while rest:
            rest = rest[file.write(rest) or 0 :]
    except OSError:
        if begin < file.tell():
            file.truncate(begin)
        raise


_WRITERS: Mapping[str, Callable[[Path, Iterable[Embedding], Check], int | None]] = {
    ".npz": _write_arrays,
    ".safetensors": _write_arrays,
    ".jsonl": _write_jsonl,
}
SUFFIXES = tuple(_WRITERS)
