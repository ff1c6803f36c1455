"""`check` finds whatever is missing, doubled, damaged or strange."""

import json
import random
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.embedding.layouts import contents, write_folder, write_parquet
from tests.embedding.null_model import NullTask, embed_null
from vitconvert.embedding.checking import check
from vitconvert.errors import CorruptFile, MissingFact, VitConvertError


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
    assert problems(output) == ("features/part-000001-of-000003.parquet is missing",)


def test_missing_failures(output):
    next((output / "failed").iterdir()).unlink()
    assert "2 images, and 3 in the plan" in problems(output)[0]


@pytest.mark.parametrize("folder", ["features", "failed"])
def test_strange_files(output, folder):
    (output / folder / "notes.txt").touch()
    assert problems(output) == (f"{folder}/notes.txt is not in the plan",)


def rewritten(path, table):
    footer = {"vitconvert": pq.read_metadata(path).metadata[b"vitconvert"]}
    pq.write_table(table.replace_schema_metadata(footer), path)


def test_a_row_that_stands_for_another(output):
    table = pq.read_table(parts(output)[0])
    rewritten(parts(output)[0], pa.concat_tables([table.slice(0, 2), table.slice(0, 1)]))
    assert "its keys are not those of the plan" in problems(output)[0]


def test_a_row_too_many(output):
    table = pq.read_table(parts(output)[0])
    rewritten(parts(output)[0], pa.concat_tables([table, table.slice(0, 1)]))
    assert "4 images, and 3 in the plan" in problems(output)[0]


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
    assert "of another model" in problems(output)[0]


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
    with pytest.raises(MissingFact, match="no plan"):
        check(str(tmp_path))


def test_a_damaged_list_of_files(tmp_path):
    output = tmp_path / "output"
    images = write_folder(tmp_path / "images", contents(8))
    embed_null(output, images)
    parts(output)[0].unlink()
    (output / "plan" / "files-000000.parquet").write_bytes(b"PAR1")
    (output / "plan" / "files-000001.parquet").unlink()
    told = []
    done = embed_null(output, images, notify=lambda event: told.append(event.message))
    assert done.abandoned == 1
    assert any("list of files in the plan" in message for message in told if message)
    assert any("its keys cannot be compared" in problem for problem in problems(output))


def changes():
    """What somebody may have made of a plan: a name, what is changed, and how."""
    plan = {
        "no version": lambda plan: plan.pop("version"),
        "no lists": lambda plan: plan.pop("lists"),
        "lists that are none": lambda plan: plan.update(lists="many"),
        "more lists": lambda plan: plan.update(lists=10**12),
        "another field": lambda plan: plan.update(more=1),
        "columns that are none": lambda plan: plan.update(columns={"a": "no type"}),
        "a list of columns": lambda plan: plan.update(columns=["a"]),
        "names that are none": lambda plan: plan.update(kept={"a": "b"}),
        "no identity": lambda plan: plan.update(identity=None),
        "nothing computed": lambda plan: plan["identity"].pop("computed"),
    }
    unit = {
        "a path": {"part": "../../evil.parquet"},
        "an absolute path": {"part": "/tmp/evil.parquet"},
        "another number": {"number": 7},
        "no rows": {"rows": 0},
        "a text of rows": {"rows": "many"},
        "another kind": {"kind": "zip"},
        "another list": {"file": "../a.parquet"},
        "no file": {"file": None},
        "another place": {"begin": -5},
        "an odd state": {"state": 7},
    }
    yield from ((name, "plan.json", change) for name, change in plan.items())
    for name, change in unit.items():
        yield name, "units-000.jsonl", lambda unit, change=change: unit.update(change)


@pytest.mark.parametrize(("file", "change"), [pytest.param(*c[1:], id=c[0]) for c in changes()])
def test_a_plan_that_somebody_changed(tmp_path, file, change):
    output = tmp_path / "in" / "output"
    images = write_folder(tmp_path / "images", contents(8))
    embed_null(output, images)
    for path in parts(output):
        path.unlink()
    path = output / "plan" / file
    first, *rest = path.read_bytes().splitlines() if "units" in file else [path.read_bytes()]
    value = json.loads(first)
    change(value)
    path.write_bytes(b"\n".join([json.dumps(value).encode(), *rest]))
    before = set(tmp_path.rglob("*"))
    for work in (lambda: embed_null(output, images), lambda: check(str(output))):
        with pytest.raises(VitConvertError):
            work()
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000, b"\xff", b'{"version": 2}'])
@pytest.mark.parametrize("file", ["plan.json", "units-000.jsonl"])
def test_a_plan_that_is_none(tmp_path, content, file):
    images = write_folder(tmp_path / "images", contents(8))
    embed_null(tmp_path / "output", images)
    (tmp_path / "output" / "plan" / file).write_bytes(content)
    if content == b"" and file != "plan.json":
        return  # a plan without units: it is compared with nothing
    with pytest.raises(VitConvertError) as caught:
        embed_null(tmp_path / "output", images)
    assert isinstance(caught.value, CorruptFile) or content == b'{"version": 2}'
