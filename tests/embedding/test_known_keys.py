"""Which keys are known: asked for in groups, and never another answer than one by one."""

import pickle
import random
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from tests.embedding.layouts import contents, read_failures, read_rows, write_tar
from tests.embedding.null_model import embed_null, stop
from tests.sampling import sampled
from vitconvert.embedding import tars
from vitconvert.embedding.files import grouped
from vitconvert.embedding.shards import Keys
from vitconvert.embedding.sources import Layout
from vitconvert.errors import SourceError

LONG = 300 * "x"
STRANGE = ["", "\0", "\0\0", "a", "a\0", "a\0\0\0\0", "ä", LONG, f"{LONG}\0", f"{LONG}y", 64 * "ä"]


def keys_of(*groups):
    return Keys([pa.array(group, pa.string()) for group in groups], sum(map(len, groups)))


@pytest.mark.parametrize("seed", range(3))
def test_each_key_is_known_as_often_as_it_was_given(seed):
    draw = random.Random(seed)
    names = [*STRANGE, *(f"photographs/{n:0{draw.randrange(1, 9)}d}.jpg" for n in range(500))]
    given = [draw.choices(names, k=draw.randrange(300)) for _ in range(4)]
    known, left = keys_of(*given), Counter(name for group in given for name in group)
    for _ in range(6):
        asked = draw.choices(names, k=draw.randrange(400))
        wanted = []
        for name in asked:
            wanted.append(left[name] > 0)
            left[name] -= wanted[-1]
        assert known.take(asked) == wanted


def test_names_that_differ_by_one_character_are_others():
    names = [f"{number:06d}" for number in range(0, 100_000, 2)]
    known = keys_of(names)
    assert not any(known.take([f"{number:06d}" for number in range(1, 100_000, 2)]))
    assert all(known.take(names)) and not any(known.take(names))


def test_a_worker_asks_anew_of_what_it_may_not_write_into():
    """Arrays that Ray hands out are read-only."""
    keys, buffers = keys_of(["a", "b"]), []
    assert keys.take(["a"]) == [True]
    sent = pickle.dumps(keys, protocol=5, buffer_callback=buffers.append)
    found = pickle.loads(sent, buffers=[bytes(buffer.raw()) for buffer in buffers])
    assert found.take(["a", "b", "c"]) == [True, True, False]


NAMES = {
    "of one folder": ["a/b/1.jpg", "a/b/2.jpg", "a/c/3.jpg"],
    "of none": ["1.jpg", "2.jpg"],
    "of the root": ["/1.jpg", "/2.jpg"],
    "above the base": ["/d/a.jpg", "/d/base/x.jpg", "/d/z.jpg"],
    "below the base": ["/d/base/a/x.jpg", "/d/base/b/y.jpg"],
    "the base": ["/d/base/x.jpg", "/d/base/y.jpg"],
    "up": ["../1.jpg", "a/../b/2.jpg", "../a..jpg"],
    "up and down": ["a/../1.jpg", "a/b/2.jpg"],
    "beside": ["../a/1.jpg", "../a/b/2.jpg"],
    "hidden": ["a/.b.jpg", "a/.c/d.jpg"],
    "urls": ["s3://bucket/a/1.jpg?region=x", "s3://bucket/a/2.jpg"],
    "colons": ["a/1:2.jpg", "a/2:3.jpg"],
    "no text": ["a/\udcff/1.jpg", "a/\udcff/2\udcfe.jpg"],
    "no file's": ["a/1\0.jpg", "a/\0a/2.jpg"],
    "the folder itself": ["."],
    "others": ["a/1.jpg", "/d/base/2.jpg", "b/3.jpg"],
    "nothing": [],
}


@pytest.mark.parametrize("base", [None, "/d/base", "/", "here"])
@pytest.mark.parametrize("named", sampled(NAMES, 4, "slow"))
def test_keys_together_are_those_one_by_one(base, named):
    base = str(Path.cwd()) if base == "here" else base
    layout, names = Layout(base=base, columns={}, kept={}), NAMES[named]
    assert layout.keys(names) == [layout.key(name) for name in names]


def test_slow_names_do_not_wait_for_others(monkeypatch):
    def slowly():
        for number in range(6):
            now[0] += 0 if number < 3 else 1
            yield number

    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert list(grouped(slowly(), 2)) == [[0, 1], [2, 3], [4], [5], []]


def test_what_came_before_an_error_is_not_lost():
    def failing():
        yield 1
        raise SourceError("The disk is gone.")

    found = grouped(failing())
    assert next(found) == [1]
    with pytest.raises(SourceError):
        next(found)


@pytest.mark.parametrize("headers", [1, 5])
def test_a_tar_goes_on_where_headers_are_read_ahead(tmp_path, whole, monkeypatch, headers):
    monkeypatch.setattr(tars, "_MOST_HEADERS", headers)
    images = contents(11)
    classes = {"cls": [str(number) for number in range(11)]}
    source = write_tar(tmp_path / "a.tar", images, classes)
    with pytest.raises(KeyboardInterrupt):
        embed_null(tmp_path / "output", source, keep=["cls"], notify=stop)
    assert embed_null(tmp_path / "output", source, keep=["cls"]).known == 3
    rows = read_rows(tmp_path / "output")
    assert [(row["key"], row["cls"]) for row in rows] == [
        (f"a.tar/{number:04d}.jpg", str(number)) for number in range(11)
    ]
    assert read_failures(tmp_path / "output") == []
    whole(tmp_path / "output")
