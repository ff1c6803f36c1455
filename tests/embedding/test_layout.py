"""What lies in an output, as those who read it find it."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.embedding.layouts import (
    contents,
    read_failures,
    read_rows,
    write_folder,
    write_parquet,
    write_tree,
)
from tests.embedding.null_model import NullTask, embed_null, features_of, stop
from vitconvert.demo.demonstration import DIGITS

IMAGES = contents(8, bad=[5])


def columns_of(kind, width):
    return pa.list_(pa.field("element", kind, nullable=False), width)


@pytest.mark.parametrize("store", ["float32", "float16"])
def test_the_columns_of_a_shard(tmp_path, store):
    tree = write_tree(tmp_path / "tree", IMAGES)
    embed_null(tmp_path / "output", tree, recursive=True, store=store)
    kind = pa.float32() if store == "float32" else pa.float16()
    for path in sorted((tmp_path / "output" / "features").iterdir()):
        shard = pq.ParquetFile(path)
        wanted = [
            pa.field("key", pa.string(), nullable=False),
            pa.field("class", pa.string()),
            pa.field("features", columns_of(kind, 4), nullable=False),
        ]
        assert shard.schema_arrow.remove_metadata() == pa.schema(wanted)
        group = shard.metadata.row_group(0)
        assert {group.column(i).compression for i in range(3)} == {"ZSTD"}
        encodings = group.column(2).encodings
        assert ("BYTE_STREAM_SPLIT" in encodings) == (store == "float32")
        footer = json.loads(shard.metadata.metadata[b"vitconvert"])
        assert footer["rows"] == shard.metadata.num_rows
        assert footer["shape"] == [4]
        assert footer["identity"]["weights"] == "null"
        assert footer["identity"]["output"] == {"store": store}


def test_the_names_of_files(tmp_path):
    embed_null(tmp_path / "output", write_folder(tmp_path / "images", IMAGES))
    found = {path.name for path in (tmp_path / "output").iterdir()}
    assert found == {"README.md", "failed", "features", "finished", "tmp", "vitconvert.json"}
    parts = [path.name for path in sorted((tmp_path / "output" / "features").iterdir())]
    assert parts == [f"part-{n:06d}.parquet" for n in range(3)]
    assert [p.name for p in (tmp_path / "output" / "failed").iterdir()] == [parts[1]]
    record = json.loads((tmp_path / "output" / "vitconvert.json").read_text())
    assert (record["rows"], record["failed"], record["shards"]) == (7, 1, 3)


def test_classes(tmp_path):
    import vitconvert

    samples = DIGITS / "samples"
    vitconvert.embed_dataset(DIGITS, samples, tmp_path / "output", computed="classes", topk=3)
    (path,) = (tmp_path / "output" / "predictions").iterdir()
    wanted = {
        "key": pa.string(),
        "indices": columns_of(pa.int32(), 3),
        "scores": columns_of(pa.float32(), 3),
        "labels": columns_of(pa.string(), 3),
    }
    schema = pq.read_schema(path).remove_metadata()
    assert schema == pa.schema([pa.field(*item, nullable=False) for item in wanted.items()])
    rows = read_rows(tmp_path / "output", "predictions")
    predictions = vitconvert.predict(DIGITS, str(samples), topk=3)
    for row, prediction in zip(rows, predictions, strict=True):
        assert row["indices"] == [likely.index for likely in prediction.top]
        assert row["labels"] == [likely.label for likely in prediction.top]
        assert np.allclose(row["scores"], [likely.probability for likely in prediction.top])


def test_tokens_stand_one_after_another(tmp_path):
    import vitconvert

    samples = DIGITS / "samples"
    vitconvert.embed_dataset(DIGITS, samples, tmp_path / "output", computed="tokens", fast=False)
    (path,) = (tmp_path / "output" / "features").iterdir()
    shape = json.loads(pq.read_metadata(path).metadata[b"vitconvert"])["shape"]
    rows = read_rows(tmp_path / "output")
    tokens = vitconvert.embed(DIGITS, str(samples), tokens=True, fast=False)
    for row, embedding in zip(rows, tokens, strict=True):
        assert np.array_equal(np.reshape(row["features"], shape), embedding.features)


def test_numbers_that_float16_does_not_hold_are_failures(tmp_path, whole):
    images = write_folder(tmp_path / "images", contents(5))
    most = [max(features_of(image)) for image in contents(5)]
    scale = 65530 / sorted(most)[2]  # of three of five images, a number becomes infinite
    task = NullTask(scale=scale)
    done = embed_null(tmp_path / "output", images, task=task, store="float16")
    assert done.failed == sum(value * scale >= 65520 for value in most)
    assert {failure["code"] for failure in read_failures(tmp_path / "output")} == {
        "not-representable"
    }
    whole(tmp_path / "output")


@pytest.mark.slow
def test_datasets_loads_it(tmp_path):
    datasets = pytest.importorskip("datasets")
    output = tmp_path / "output"
    embed_null(output, write_tree(tmp_path / "tree", IMAGES), recursive=True)
    found = datasets.load_dataset(str(output), cache_dir=str(tmp_path / "cache"))["train"]
    assert found.column_names == ["key", "class", "features"]
    assert found["features"][:] == [row["features"] for row in read_rows(output)]
    failed = datasets.load_dataset(str(output), "failed", cache_dir=str(tmp_path / "cache"))
    assert failed["train"]["code"][:] == ["corrupt-file"]


def test_a_readme_that_somebody_changed_stays(tmp_path):
    images, output = write_folder(tmp_path / "images", IMAGES[:4]), tmp_path / "output"
    readme = output / "README.md"

    with pytest.raises(KeyboardInterrupt):
        embed_null(output, images, notify=stop)
    assert ": 0 shards" in readme.read_text()
    embed_null(output, images)
    assert ": 2 shards" in readme.read_text()  # nobody had changed it
    for mine in (readme.read_text() + "\nMy dataset.\n", "Mine."):
        readme.write_text(mine)
        embed_null(output, images)
        embed_null(output, images, append=True)
        assert readme.read_text() == mine
    readme.unlink()
    embed_null(output, images)
    assert ": 2 shards" in readme.read_text()


def test_a_column_steers_nothing_in_the_card(tmp_path):
    name = "a`<script>alert(1)</script>\n# b`"
    columns = {name: pa.array(["text"] * 3)}
    source = write_parquet(tmp_path / "a.parquet", IMAGES[:3], columns=columns)
    embed_null(tmp_path / "output", source, keep=[name])
    text = (tmp_path / "output" / "README.md").read_text()
    assert "`key`, `a'<script>alert(1)</script>\\n# b'` and" in text
    assert pq.read_table(tmp_path / "output" / "features").column_names[1] == name
