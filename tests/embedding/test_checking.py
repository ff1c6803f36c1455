"""`check` finds whatever is missing, doubled, damaged or strange."""

import json
import random
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.embedding.layouts import contents, write_folder, write_parquet
from tests.embedding.null_model import NullTask, embed_null
from vitconvert.embedding.shards import check
from vitconvert.errors import MissingFact, VitConvertError


@pytest.fixture(params=["files", "parquet"])
def output(request, tmp_path):
    images = contents(8, bad=[5])
    if request.param == "files":
        source = write_folder(tmp_path / "images", images)
    else:
        source = write_parquet(tmp_path / "a.parquet", images)
    embed_null(tmp_path / "output", source)
    assert check(str(tmp_path / "output")).whole
    return tmp_path / "output"


def parts(output):
    return sorted((output / "features").iterdir())


def problems(output):
    report = check(str(output))
    assert not report.whole
    assert json.loads(json.dumps(report.to_dict()))["problems"] == list(report.problems)
    return report.problems


def test_a_missing_shard(output):
    parts(output)[1].unlink()
    assert problems(output) == ("features/part-000001.parquet is missing",)


def test_missing_failures(output):
    next((output / "failed").iterdir()).unlink()
    assert "2 images, and a run left 3" in problems(output)[0]


@pytest.mark.parametrize("folder", ["features", "failed"])
def test_strange_files(output, folder):
    (output / folder / "notes.txt").touch()
    assert problems(output) == (f"{folder}/notes.txt is none of ours",)


def rewritten(path, table):
    footer = {"vitconvert": pq.read_metadata(path).metadata[b"vitconvert"]}
    pq.write_table(table.replace_schema_metadata(footer), path)


def test_a_row_that_stands_for_another(output):
    table = pq.read_table(parts(output)[0])
    rewritten(parts(output)[0], pa.concat_tables([table.slice(0, 2), table.slice(0, 1)]))
    assert "its keys are not those that were written" in problems(output)[0]


def test_a_row_too_many(output):
    table = pq.read_table(parts(output)[0])
    rewritten(parts(output)[0], pa.concat_tables([table, table.slice(0, 1)]))
    assert "its keys are not those that were written" in problems(output)[0]


def test_a_row_without_a_key(output):
    table = pq.read_table(parts(output)[0])
    keys = pa.array([None, *table["key"].to_pylist()[1:]], pa.string())
    rewritten(parts(output)[0], table.set_column(0, "key", keys))
    assert "keys are missing" in problems(output)[0]


def test_numbers_that_are_none(output):
    table = pq.read_table(parts(output)[0])
    values = pa.array([float("nan")] + [0.0] * 11, pa.float32())
    column = pa.FixedSizeListArray.from_arrays(values, type=table.schema.field("features").type)
    rewritten(parts(output)[0], table.set_column(1, table.schema.field("features"), column))
    assert "numbers are not finite" in problems(output)[0]


def test_other_columns(output):
    table = pq.read_table(parts(output)[1])
    rewritten(parts(output)[1], table.append_column("more", pa.array([1] * table.num_rows)))
    assert "its columns are not those of the others" in problems(output)[0]


def test_a_shard_of_another_model(output, tmp_path):
    source = tmp_path / "images"
    source = source if source.exists() else tmp_path / "a.parquet"
    embed_null(tmp_path / "other", source, task=NullTask("another"))
    shutil.copy(parts(tmp_path / "other")[0], parts(output)[0])
    assert "of another output" in problems(output)[0]


def test_any_flipped_bit_is_found_or_changes_nothing(output):
    path = parts(output)[0]
    content, table = path.read_bytes(), pq.read_table(path)
    draw, found = random.Random(1), 0
    for _ in range(150):
        damaged = bytearray(content)
        damaged[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        if check(str(output)).whole:
            assert pq.read_table(path).equals(table)
        else:
            found += 1
    assert found > 20


@pytest.mark.parametrize("length", [0, 3, 100, 500])
def test_a_shard_that_was_cut(output, length):
    path = parts(output)[0]
    path.write_bytes(path.read_bytes()[:length])
    assert problems(output)[0].startswith(f"{path.name} cannot be read")


def test_there_is_nothing_to_check(tmp_path):
    with pytest.raises(MissingFact, match="no features"):
        check(str(tmp_path))


def test_a_shard_of_the_same_output_under_another_name(output):
    shutil.copy(parts(output)[0], parts(output)[1])
    assert "another shard" in problems(output)[0]


def test_a_run_that_did_not_finish(output, tmp_path):
    def stop(event):
        raise KeyboardInterrupt

    source = tmp_path / "images"
    source = source if source.exists() else tmp_path / "a.parquet"
    with pytest.raises(KeyboardInterrupt):
        embed_null(output, source, notify=stop)
    assert problems(output) == ("the last run did not finish",)


CHANGES = {
    "no format": lambda record: record.pop("format"),
    "another format": lambda record: record.update(format=7),
    "no layout": lambda record: record.pop("layout"),
    "another field": lambda record: record["layout"].update(more=1),
    "columns that are none": lambda record: record["layout"].update(columns={"a": "no type"}),
    "a list of columns": lambda record: record["layout"].update(columns=["a"]),
    "names that are none": lambda record: record["layout"].update(kept={"a": "b"}),
    "a base that is none": lambda record: record["layout"].update(base=7),
    "no identity": lambda record: record.update(identity=None),
    "nothing computed": lambda record: record["identity"].pop("computed"),
    "a path": lambda record: record["identity"]["computed"].update(what="../../evil"),
}


def refused(tmp_path, content):
    """A run and a check of an output with another record; nothing is written."""
    output = tmp_path / "in" / "output"
    images = write_folder(tmp_path / "images", contents(8))
    embed_null(output, images)
    path = output / "vitconvert.json"
    path.write_bytes(content(path.read_bytes()))
    before = set(tmp_path.rglob("*"))
    for work in (lambda: embed_null(output, images), lambda: check(str(output))):
        with pytest.raises(VitConvertError):
            work()
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("change", CHANGES)
def test_a_record_that_somebody_changed(tmp_path, change):
    def content(before):
        record = json.loads(before)
        CHANGES[change](record)
        return json.dumps(record).encode()

    refused(tmp_path, content)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000, b"\xff", b"{}"])
def test_a_record_that_is_none(tmp_path, content):
    refused(tmp_path, lambda _before: content)
