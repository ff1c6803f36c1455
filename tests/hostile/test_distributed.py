"""Hostile directories of several processes: a message and an exit code, in 10 s and 1 GiB."""

import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

from tests.hostile.harness import call_limited, run_limited
from tests.hostile.test_containers import CORRUPT, SOURCE, UNSAFE, check, read_all
from vitconvert.errors import VitConvertError

FILES = Path(__file__).parents[1] / "distributed" / "files"


def refused(directory: Path, word: str, said: str) -> None:
    answer = run_limited("inspect", directory)
    if not answer.err:  # only the tensors show it
        answer = call_limited(read_all, directory / ".metadata")
    check(answer, word)
    assert said in answer.err


def place(metadata: Any, name: str) -> Any:
    """Where the last record of a tensor lies."""
    return [at for index, at in metadata.storage_data.items() if index.fqn == name][-1]


def beyond_the_end(metadata: Any) -> None:
    place(metadata, "model.rows").offset = 2**40


def negative(metadata: Any) -> None:
    place(metadata, "model.rows").offset = -1577


def on_another(metadata: Any) -> None:
    rows, both = place(metadata, "model.rows"), place(metadata, "model.both")
    vars(rows).update(vars(both))


def between_two(metadata: Any) -> None:
    place(metadata, "model.same").offset += 1
    place(metadata, "model.same").length -= 1


def outside(metadata: Any) -> None:
    place(metadata, "model.rows").relative_path = "../other/__0_0.distcp"


def absolute(metadata: Any) -> None:
    place(metadata, "model.rows").relative_path = "/etc/passwd"


def nowhere(metadata: Any) -> None:
    place(metadata, "model.rows").relative_path = "x" * 300


def compressed(metadata: Any) -> None:
    place(metadata, "model.rows").transform_descriptors = ["ZStandard"]


def swapped(metadata: Any) -> None:
    """The record of another tensor of the same size."""
    same, rows = place(metadata, "model.same"), place(metadata, "model.number")
    first, second = dict(vars(same)), dict(vars(rows))
    vars(same).update(second)
    vars(rows).update(first)


def of_tensor(metadata: Any, name: str) -> Any:
    return metadata.state_dict_metadata[name]


def overlapping(metadata: Any) -> None:
    chunk = of_tensor(metadata, "model.both").chunks[-1]
    chunk.offsets = torch.Size([chunk.offsets[0] - 1, *chunk.offsets[1:]])


def with_a_gap(metadata: Any) -> None:
    of_tensor(metadata, "model.both").chunks.pop()


def twice(metadata: Any) -> None:
    chunks = of_tensor(metadata, "model.both").chunks
    chunks.append(chunks[0])


def larger_than_memory(metadata: Any) -> None:
    tensor = of_tensor(metadata, "model.number")
    tensor.size = torch.Size([2**60])
    tensor.chunks = [ChunkStorageMetadata(torch.Size([0]), torch.Size([2**60]))]


def with_no_chunk(metadata: Any) -> None:
    tensor = of_tensor(metadata, "model.number")
    tensor.size, tensor.chunks = torch.Size([2**60]), []


def many_chunks(metadata: Any) -> None:
    """One list, named by many tensors."""
    chunks = [ChunkStorageMetadata(torch.Size([0]), torch.Size([0]))] * 30_000
    of_tensor(metadata, "model.number").chunks = chunks
    for number in range(3000):
        metadata.state_dict_metadata[f"x{number}"] = of_tensor(metadata, "model.number")


def in_one_place(metadata: Any) -> None:
    metadata.planner_data["model.rows"] = metadata.planner_data["model.both"]


def below_a_tensor(metadata: Any) -> None:
    metadata.planner_data["model.rows"] = (*metadata.planner_data["model.both"], "x")


def deep(metadata: Any) -> None:
    metadata.planner_data["model.rows"] = ("x",) * 10_000


def keys_of_lists(metadata: Any) -> None:
    metadata.planner_data["model.rows"] = ([1], "x")


class Calls:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


def calling(metadata: Any) -> None:
    metadata.planner_data["model.rows"] = Calls()


CASES: list[tuple[Callable[[Any], None], str, str]] = [
    (beyond_the_end, CORRUPT, "truncated"),
    (negative, CORRUPT, "no file, offset and length"),
    (on_another, CORRUPT, "overlap"),
    (between_two, CORRUPT, "archive"),
    (outside, UNSAFE, "outside its own directory"),
    (absolute, UNSAFE, "outside its own directory"),
    (nowhere, SOURCE, "are missing"),
    (compressed, CORRUPT, "is compressed"),
    (swapped, CORRUPT, "another tensor"),
    (overlapping, CORRUPT, "overlap or leave gaps"),
    (with_a_gap, CORRUPT, "overlap or leave gaps"),
    (twice, CORRUPT, "two chunks"),
    (larger_than_memory, CORRUPT, "say"),
    (with_no_chunk, CORRUPT, "leave gaps"),
    (many_chunks, CORRUPT, "more than 1,000,000 chunks"),
    (in_one_place, CORRUPT, "stands where another value stands"),
    (below_a_tensor, CORRUPT, "stands where another value stands"),
    (deep, CORRUPT, "no place"),
    (keys_of_lists, CORRUPT, "neither text nor numbers"),
    (calling, UNSAFE, "posix.system"),
]


@pytest.mark.parametrize(("change", "word", "said"), CASES)
def test_metadata_that_lie(
    tmp_path: Path, change: Callable[[Any], None], word: str, said: str
) -> None:
    directory = tmp_path / "x"
    shutil.copytree(FILES, directory)
    file = directory / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    change(metadata)
    file.write_bytes(pickle.dumps(metadata))
    refused(directory, word, said)
    assert not Path("pwned").exists()


def test_metadata_that_are_cut_or_changed(tmp_path: Path) -> None:
    """Each end, and a bit of each byte: an answer, and never a traceback."""
    directory = tmp_path / "x"
    shutil.copytree(FILES, directory)
    file = directory / ".metadata"
    data = file.read_bytes()

    def try_all() -> None:
        for at in range(0, len(data), 29):
            bit = bytes([data[at] ^ 1 << at % 8])
            for changed in (data[:at], data[:at] + bit + data[at + 1 :]):
                file.write_bytes(changed)
                with suppress(VitConvertError):
                    read_all(file)

    answer = call_limited(try_all, seconds=60)
    assert answer.code == 0, answer.err
