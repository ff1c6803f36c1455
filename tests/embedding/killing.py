"""Runs that are killed at a write, an fsync or a rename; then the same run goes on.

    python -m tests.embedding.killing FOLDER

kills runs of the null model before, in the middle of, and after these calls, and prints as JSON
what came of each. Every run is a fork of this process, which imports torch once, and
has no threads.
"""

import json
import os
import random
import shutil
import signal
import sys
import traceback
from pathlib import Path

import pyarrow as pa

from tests.embedding.layouts import (
    contents,
    left_over,
    read_failures,
    read_rows,
    write_folder,
    write_parquet,
    write_tar,
    write_tree,
)
from tests.embedding.null_model import NullTask, embed_null, features_of
from vitconvert.embedding.shards import check

IMAGES = contents(7, bad=[4])
SHARD_ROWS = 4


class Deaths:
    """Kills this process at the N-th moment: each call has one before, one after, a write one more.

    Args:
        at: N, from 0.
        counted: A file that gets a letter for each moment.
    """

    def __init__(self, at: int, counted: Path) -> None:
        self._left = at
        self._counted = os.open(counted, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._write = os.write
        for name in ("write", "fsync", "replace"):
            setattr(os, name, self._deadly(name, getattr(os, name)))

    def _deadly(self, name, call):
        def deadly(*args):
            self._moment()
            if name == "write" and self._left == 0:
                call(args[0], args[1][: len(args[1]) // 2])
            if name == "write":
                self._moment()
            result = call(*args)
            self._moment()
            return result

        return deadly

    def _moment(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1
        self._write(self._counted, b".")


def forked(function) -> int:
    """Call a function in a fork; the signal that ended it, or its exit code, negative."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return -status if status < 0 else status


def make(folder: Path, kind: str):
    """The source of a kind, and the sources' arguments."""
    if kind == "list":
        files = write_folder(folder / "images", IMAGES)
        return ["-"], {"listed": [str(path) for path in sorted(files.iterdir())]}
    if kind == "tree":
        return [write_tree(folder / "images", IMAGES)], {"recursive": True}
    if kind == "tar":
        classes = {"cls": [str(number) for number in range(len(IMAGES))]}
        return [write_tar(folder / "a.tar", IMAGES, classes)], {"keep": ["cls"]}
    return [write_parquet(folder / "a.parquet", IMAGES)], {}


def trial(folder: Path, kind: str, at: int, again: int | None) -> dict:
    """A run that is killed at a moment, goes on and may be killed again; then one to the end."""
    (folder / "source").mkdir(parents=True)
    given, stated = make(folder / "source", kind)
    output, log = folder / "output", folder / "log"

    def work(at=None):
        if at is not None:
            Deaths(at, folder / "moments")
        embed_null(output, *given, task=NullTask(log=log), **stated, shard_rows=SHARD_ROWS)

    return _tried(folder, output, log, work, at, again)


def _tried(folder, output, log, work, at, again):
    died = forked(lambda: work(at))
    kills = int(died == signal.SIGKILL)
    if again is not None:
        kills += forked(lambda: work(again)) == signal.SIGKILL

    def finish():
        work()
        report = check(str(output))
        rows = read_rows(output)
        expected = sorted(features_of(image) for image in IMAGES if image != b"bad")
        found = {
            "whole": report.whole,
            "problems": report.problems,
            "rows": sorted(row["features"] for row in rows) == expected,
            "failures": len(read_failures(output)),
            "left": left_over(output),
            "again": _lines(log) - len(IMAGES),
        }
        (folder / "found.json").write_text(json.dumps(found))

    finished = forked(finish)
    found = json.loads((folder / "found.json").read_text()) if finished == 0 else {}
    return {"died": died, "kills": kills, "finished": finished, **found}


def _lines(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def sweep(folder: Path, kind: str, stride: int) -> list[dict]:
    """What came of a run of a kind that is killed at each STRIDE-th moment that it has."""
    draw = random.Random(kind)
    results = []
    for at in range(draw.randrange(stride), 10_000, stride):
        place = folder / f"{kind}-{at}"
        again = draw.randrange(40) if at % 3 == 0 else None
        result = {"kind": kind, "at": at, "second": again, **trial(place, kind, at, again)}
        results.append(result)
        shutil.rmtree(place)
        if result["died"] != signal.SIGKILL:
            break
    return results


if __name__ == "__main__":
    pa.array(["a"])  # which imports pandas, where it is
    strides = {"list": 2, "tree": 4, "tar": 4, "parquet": 4}
    swept = [sweep(Path(sys.argv[1]), kind, stride) for kind, stride in strides.items()]
    print(json.dumps([result for results in swept for result in results]))
