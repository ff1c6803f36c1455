"""`check` finds whatever is missing, doubled, damaged or strange."""

import json
import random
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.embedding.layouts import contents, write_folder, write_parquet
from tests.embedding.null_model import NullTask, embed_null
from tests.sampling import sampled
from vitconvert.embedding.shards import check
from vitconvert.errors import SourceError, VitConvertError


@pytest.fixture(params=["files", "parquet"])
def output(request, tmp_path):
    images = contents(8, bad=[5])
    source = tmp_path / "source.parquet"
    if request.param == "files":
        write_folder(source, images)
    else:
        write_parquet(source, images)
    embed_null(tmp_path / "output", source)
    assert check(str(tmp_path / "output")).whole
    return tmp_path / "output"


def parts(output):
    return sorted((output / "features").iterdir())


def rewritten(change):
    """A shard with another table; what it says of itself stays."""

    def damage(output):
        path = parts(output)[0]
        footer = {"vitconvert": pq.read_metadata(path).metadata[b"vitconvert"]}
        pq.write_table(change(pq.read_table(path)).replace_schema_metadata(footer), path)

    return damage


def without_a_key(table):
    return table.set_column(0, "key", pa.array([None, *table["key"].to_pylist()[1:]], pa.string()))


def with_a_nan(table):
    field = table.schema.field("features")
    values = pa.array([float("nan")] + [0.0] * 11, pa.float32())
    return table.set_column(1, field, pa.FixedSizeListArray.from_arrays(values, type=field.type))


def shard_of_another_model(output):
    embed_null(output.parent / "other", output.parent / "source.parquet", task=NullTask("another"))
    shutil.copy(parts(output.parent / "other")[0], parts(output)[0])


def cut(length):
    return lambda output: parts(output)[0].write_bytes(parts(output)[0].read_bytes()[:length])


def interrupted(output):
    def stop(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_null(output, output.parent / "source.parquet", notify=stop)


OTHER_KEYS = "its keys are not those that were written"
DAMAGES = {
    "a missing shard": (
        lambda output: parts(output)[1].unlink(),
        "features/part-000001.parquet is missing",
    ),
    "missing failures": (
        lambda output: next((output / "failed").iterdir()).unlink(),
        "2 images, and a run left 3",
    ),
    "a strange file": (
        lambda output: (output / "features" / "notes.txt").touch(),
        "features/notes.txt was not written by vitconvert",
    ),
    "strange failures": (
        lambda output: (output / "failed" / "notes.txt").touch(),
        "failed/notes.txt was not written by vitconvert",
    ),
    "a row that stands for another": (
        rewritten(lambda table: pa.concat_tables([table.slice(0, 2), table.slice(0, 1)])),
        OTHER_KEYS,
    ),
    "a row too many": (
        rewritten(lambda table: pa.concat_tables([table, table.slice(0, 1)])),
        OTHER_KEYS,
    ),
    "a row without a key": (rewritten(without_a_key), "keys are missing"),
    "numbers that are none": (rewritten(with_a_nan), "numbers are not finite"),
    "other columns": (
        rewritten(lambda table: table.append_column("more", pa.array([1] * table.num_rows))),
        "its columns are not those of the others",
    ),
    "another model": (shard_of_another_model, "of another output"),
    "another name": (
        lambda output: shutil.copy(parts(output)[0], parts(output)[1]),
        "another shard",
    ),
    "nothing of a shard": (cut(0), "part-000000.parquet cannot be read"),
    "the begin of a shard": (cut(3), "part-000000.parquet cannot be read"),
    "half a shard": (cut(500), "part-000000.parquet cannot be read"),
    "a run that did not finish": (interrupted, "the last run did not finish"),
}


@pytest.mark.parametrize("damage", sampled(DAMAGES, 4, "slow"))
def test_what_is_wrong_is_told(output, damage):
    change, told = DAMAGES[damage]
    change(output)
    report = check(str(output))
    assert not report.whole
    assert told in report.problems[0]
    assert json.loads(json.dumps(report.to_dict()))["problems"] == list(report.problems)


@pytest.mark.slow
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


def test_there_is_nothing_to_check(tmp_path):
    with pytest.raises(SourceError, match="no features"):
        check(str(tmp_path))


def changed(change):
    def content(before):
        record = json.loads(before)
        change(record)
        return json.dumps(record).encode()

    return content


RECORDS = {
    "no format": changed(lambda record: record.pop("format")),
    "another format": changed(lambda record: record.update(format=7)),
    "no layout": changed(lambda record: record.pop("layout")),
    "another field": changed(lambda record: record["layout"].update(more=1)),
    "columns that are none": changed(
        lambda record: record["layout"].update(columns={"a": "no type"})
    ),
    "a list of columns": changed(lambda record: record["layout"].update(columns=["a"])),
    "names that are none": changed(lambda record: record["layout"].update(kept={"a": "b"})),
    "a base that is none": changed(lambda record: record["layout"].update(base=7)),
    "no identity": changed(lambda record: record.update(identity=None)),
    "nothing computed": changed(lambda record: record["identity"].pop("computed")),
    "a path": changed(lambda record: record["identity"]["computed"].update(what="../../evil")),
    **{str(raw[:3]): lambda _, raw=raw: raw for raw in (b"", b"[]", b"{", b"\xff", b"{}")},
    "deep": lambda _: b"[" * 100_000,
}


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_that_somebody_changed_is_refused_and_nothing_written(tmp_path, record):
    output = tmp_path / "in" / "output"
    images = write_folder(tmp_path / "images", contents(8))
    embed_null(output, images)
    path = output / "vitconvert.json"
    path.write_bytes(RECORDS[record](path.read_bytes()))
    before = set(tmp_path.rglob("*"))
    for work in (lambda: embed_null(output, images), lambda: check(str(output))):
        with pytest.raises(VitConvertError):
            work()
    assert set(tmp_path.rglob("*")) == before
