"""Folders, lists, tars and Parquet files of images: every image is a row, or a failure."""

import datetime
import errno
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import vitconvert.embedding.files
from tests.embedding.layouts import (
    add,
    contents,
    read_failures,
    read_rows,
    write_folder,
    write_parquet,
    write_tar,
    write_tree,
)
from tests.embedding.null_model import embed_null, features_of
from vitconvert.demo.demonstration import DIGITS
from vitconvert.embedding.shards import check
from vitconvert.errors import SourceError, UsageError

IMAGES = contents(8, bad=[5])
GOOD = [features_of(image) for image in IMAGES if image != b"bad"]


def make(kind: str, folder: Path, images):
    """The same images in each layout: the source, and what is said of it."""
    match kind.split("-"):
        case ["folder"]:
            return [write_folder(folder / "images", images)], {}
        case ["tree"]:
            return [write_tree(folder / "images", images)], {"recursive": True}
        case ["list"]:
            files = sorted(write_folder(folder / "images", images).iterdir())
            return ["-"], {"listed": map(str, files)}
        case ["tar", *mode]:
            path = folder / f"a.{kind.replace('-', '.')}"
            return [write_tar(path, images, mode=f"w:{''.join(mode)}")], {}
        case ["parquet", layout]:
            return [write_parquet(folder / "a.parquet", images, layout=layout, group=3)], {}
    raise AssertionError(kind)


KINDS = ["folder", "tree", "list", "tar", "tar-gz", "tar-bz2", "tar-xz"]
KINDS += ["parquet-datasets", "parquet-struct", "parquet-bytes"]


@pytest.mark.parametrize("shard_rows", [1, 3, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_each_image_is_a_row_or_a_failure(tmp_path, whole, kind, shard_rows):
    given, stated = make(kind, tmp_path, IMAGES)
    done = embed_null(tmp_path / "output", *given, **stated, shard_rows=shard_rows)
    assert (done.images, done.failed, done.shards) == (8, 1, -(-8 // shard_rows))
    rows = read_rows(tmp_path / "output")
    if kind == "tree":  # whose order is that of its folders
        assert sorted(row["features"] for row in rows) == sorted(GOOD)
    else:
        assert [row["features"] for row in rows] == GOOD
    assert len({row["key"] for row in rows}) == 7
    (failure,) = read_failures(tmp_path / "output")
    assert failure["code"] == "corrupt-file"
    whole(tmp_path / "output")


@pytest.mark.slow
def test_a_model_gives_the_same_features_of_each_layout(tmp_path):
    import vitconvert

    samples = [path.read_bytes() for path in sorted((DIGITS / "samples").iterdir())]
    wanted = [
        embedding.features.numpy()
        for embedding in vitconvert.embed(DIGITS, str(DIGITS / "samples"), fast=False)
    ]
    for kind in ("folder", "tar-gz", "parquet-datasets", "parquet-bytes"):
        folder = tmp_path / kind
        folder.mkdir()
        if kind == "folder":
            given, stated = [write_folder(folder / "images", samples, suffix=".png")], {}
        else:
            given, stated = make(kind, folder, samples)
        for fast in (False, True):
            output = folder / f"output-{fast}"
            vitconvert.embed_dataset(DIGITS, given, output, fast=fast, **stated, shard_rows=4)
            found = np.array([row["features"] for row in read_rows(output)], np.float32)
            if not fast:
                assert np.array_equal(found, wanted), kind
            assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


# Folders and lists.


def test_sub_folders_are_classes(tmp_path):
    tree = write_tree(tmp_path / "tree", contents(6))
    write_folder(tree / "cat" / "old", contents(1))
    embed_null(tmp_path / "output", tree, recursive=True)
    classes = [row["class"] for row in read_rows(tmp_path / "output")]
    assert classes == ["cat"] * 4 + ["dog"] * 3


def test_a_loop_of_folders_ends(tmp_path, whole):
    tree = write_tree(tmp_path / "tree", contents(4))
    (tree / "cat" / "loop").symlink_to(tree)
    assert embed_null(tmp_path / "output", tree, recursive=True).images == 4
    whole(tmp_path / "output")


def test_names_that_are_no_text(tmp_path, whole):
    folder = tmp_path / "images"
    folder.mkdir()
    names = [b"\xff\xfe.jpg", b"new\nline.jpg", b"\x1b[31m.jpg", b"d\xc3\xa9j\xc3\xa0.jpg"]
    for name in names:
        (folder / os.fsdecode(name)).write_bytes(name)
    (folder / os.fsdecode(b"bad\xff.jpg")).write_bytes(b"bad")
    embed_null(tmp_path / "output", folder)
    rows = read_rows(tmp_path / "output")
    found = {row["key"].rpartition("/")[2]: row["features"] for row in rows}
    shown = [r"\udcff\udcfe.jpg", "new\nline.jpg", "\x1b[31m.jpg", "déjà.jpg"]
    assert found == dict(zip(shown, map(features_of, names), strict=True))
    assert read_failures(tmp_path / "output")[0]["key"].endswith(r"/bad\udcff.jpg")
    whole(tmp_path / "output")
    assert embed_null(tmp_path / "output", folder, append=True).images == 0


def test_names_of_a_list_that_no_file_can_have(tmp_path, whole):
    listed = ["a\0b.jpg", "\ud800.jpg", "long" * 2000, "gone.jpg", str(tmp_path)]
    done = embed_null(tmp_path / "output", "-", listed=listed)
    assert (done.images, done.failed) == (5, 5)
    whole(tmp_path / "output")


def test_a_name_that_is_listed_twice_is_two_rows(tmp_path, whole):
    file = str(write_folder(tmp_path / "images", contents(1)) / "0000.jpg")
    embed_null(tmp_path / "output", "-", listed=[file, file, file, file], shard_rows=3)
    assert [row["key"] for row in read_rows(tmp_path / "output")] == [file] * 4
    whole(tmp_path / "output")


@pytest.mark.parametrize("source", ["gone", "empty", "gone/*.jpg", "gone.tar", "gone.parquet"])
def test_a_source_that_leads_nowhere_is_refused(tmp_path, source):
    (tmp_path / "empty").mkdir()
    images = write_folder(tmp_path / "images", contents(2))
    with pytest.raises(SourceError) as caught:
        embed_null(tmp_path / "output", images, tmp_path / source)
    assert str(tmp_path / source) in caught.value.evidence.values()
    assert embed_null(tmp_path / "output", images).images == 2


def test_no_names_at_all(tmp_path):
    with pytest.raises(SourceError, match="There are no images"):
        embed_null(tmp_path / "output", "-", listed=[])


def test_many_sources_take_little_room_in_each_shard(tmp_path):
    images = write_folder(tmp_path / "images", contents(50))
    given = sorted(map(str, images.iterdir()))
    embed_null(tmp_path / "output", *given)
    (shard, *_) = sorted((tmp_path / "output" / "features").iterdir())
    assert len(pq.read_metadata(shard).metadata[b"vitconvert"]) < 1000
    assert embed_null(tmp_path / "output", *given).images == 0
    with pytest.raises(Exception, match="not mixed"):
        embed_null(tmp_path / "output", *given[1:])


# Tars.


def test_a_sample_of_a_tar_may_have_several_images_and_texts(tmp_path, whole):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("a", "b", "deep.er/c"):
            add(archive, f"{name}.left.jpg", f"{name} left".encode())
            add(archive, f"{name}.cls", b" 7 \n")
            add(archive, f"{name}.JSON", b'{"caption": "\xff"}')
            add(archive, f"{name}.right.png", f"{name} right".encode())
            folder, slash, base = name.rpartition("/")
            add(archive, f"{folder}{slash}._{base}.jpg", b"what macOS adds")
        add(archive, "text.txt", b"no image")
    stated = {"keep": ["cls", "json", "none"], "shard_rows": 3}
    assert embed_null(tmp_path / "output", tmp_path / "a.tar", **stated).images == 6
    rows = read_rows(tmp_path / "output")
    assert [row["key"].removeprefix("a.tar/") for row in rows] == [
        *("a.left.jpg", "a.right.png", "b.left.jpg", "b.right.png"),
        *("deep.er/c.left.jpg", "deep.er/c.right.png"),
    ]
    assert {row["cls"] for row in rows} == {"7"}
    assert {row["json"] for row in rows} == {'{"caption": "\ufffd"}'}
    assert {row["none"] for row in rows} == {None}
    assert rows[3]["features"] == features_of(b"b right")
    whole(tmp_path / "output")


@pytest.mark.parametrize("kept", [[], ["cls"]])
def test_a_tar_whose_images_have_all_one_name_is_many_shards(tmp_path, whole, kept):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(100):
            add(archive, f"frame.{number:03d}.jpg", str(number).encode())
    done = embed_null(tmp_path / "output", tmp_path / "a.tar", keep=kept, shard_rows=20)
    assert (done.images, done.shards) == (100, 5)
    found = [row["features"] for row in read_rows(tmp_path / "output")]
    assert found == [features_of(str(number).encode()) for number in range(100)]
    whole(tmp_path / "output")


def test_a_file_that_a_tar_has_twice_is_two_rows(tmp_path, whole):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for content in (b"old", b"other", b"new"):
            add(archive, "other.jpg" if content == b"other" else "same.jpg", content)
    embed_null(tmp_path / "output", tmp_path / "a.tar")
    assert len(read_rows(tmp_path / "output")) == 3
    whole(tmp_path / "output")


def sizes(path: Path) -> list[tuple[int, int]]:
    """Where each file of a tar begins, and where its content does."""
    with tarfile.open(path) as archive:
        return [(member.offset, member.offset_data) for member in archive]


@pytest.mark.parametrize("compression", ["", "gz"])
@pytest.mark.parametrize("where", ["header", "content", "boundary"])
def test_a_tar_that_is_cut_short_is_told(tmp_path, whole, where, compression):
    path = write_tar(tmp_path / "a.tar", [image * 90 for image in contents(5)])
    begin, content = sizes(path)[3]
    cut = {"header": begin + 100, "content": content + 300, "boundary": begin}[where]
    data = path.read_bytes()[:cut]
    if compression:
        import gzip

        path = tmp_path / "a.tar.gz"
        data = gzip.compress(data)
    path.write_bytes(data)
    done = embed_null(tmp_path / "output", path)
    found = [row["features"] for row in read_rows(tmp_path / "output")]
    assert found == [features_of(image * 90) for image in contents(3)]
    failed = read_failures(tmp_path / "output")
    assert len(failed) == done.failed == (2 if where == "content" else 1)
    assert {failure["message"].partition(";")[0] for failure in failed} == {
        "The archive ends early"
    }
    whole(tmp_path / "output")


def test_a_gz_that_is_cut_short_is_told(tmp_path, whole):
    images = [os.urandom(3000) for _ in range(9)]
    path = write_tar(tmp_path / "a.tar.gz", images, mode="w:gz")
    path.write_bytes(path.read_bytes()[:15_000])
    done = embed_null(tmp_path / "output", path)
    found = [row["features"] for row in read_rows(tmp_path / "output")]
    assert 3 <= len(found) < 9
    assert found == [features_of(image) for image in images[: len(found)]]
    assert 1 <= done.failed <= 2
    whole(tmp_path / "output")


def test_what_is_no_archive_is_given_up_and_others_go_on(tmp_path, whole):
    images = write_folder(tmp_path / "images", contents(2))
    given = [tmp_path / name for name in ("a.tar", "b.tar", "c.tar.gz", "d.parquet")]
    for path, content in zip(given, (b"", b"x" * 2000, b"x" * 2000, b"PAR1"), strict=True):
        path.write_bytes(content)
    told = []
    done = embed_null(tmp_path / "output", *given, images, notify=told.append)
    assert (done.images, done.abandoned) == (2, 4)
    found = {event.name: event.message for event in told if event.what == "abandoned"}
    assert set(found) == set(map(str, given))
    assert sum("This is not a tar archive" in message for message in found.values()) == 3
    assert check(str(tmp_path / "output")).problems == ("the last run did not finish",)
    write_tar(given[0], contents(3)[2:])
    for path in given[1:]:
        path.unlink()
    write_tar(given[1], [])
    write_tar(given[2], [], mode="w:gz")
    write_parquet(given[3], [])
    assert embed_null(tmp_path / "output", *given, images).images == 1
    whole(tmp_path / "output")


# Parquet.


def test_columns_of_a_parquet_file_are_kept_as_they_are(tmp_path, whole):
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=datetime.UTC)
    columns = {
        "label": pa.array([1, None, 3, 4, 5, 6, 7, 8], pa.int8()),
        "caption": pa.array([*"abcdefg", None], pa.large_string()),
        "kind": pa.array(["x", "y"] * 4).dictionary_encode(),
        "score": pa.array(np.arange(8) / 3, pa.float64()),
        "when": pa.array([1_700_000_000_123_456_789] * 8, pa.timestamp("ns")),
        "day": pa.array([moment.date()] * 8, pa.date32()),
        "raw": pa.array([b"\xff\x00"] * 8, pa.binary()),
        "key": pa.array([f"k{i}" for i in range(8)]),
        "class": pa.array([3] * 8, pa.int16()),
        "features": pa.array([True] * 8),
    }
    source = write_parquet(tmp_path / "a.parquet", IMAGES, columns=columns, group=3)
    embed_null(tmp_path / "output", source, keep=list(columns))
    table = pa.concat_tables(
        pq.read_table(path) for path in sorted((tmp_path / "output" / "features").iterdir())
    )
    left = [0, 1, 2, 3, 4, 6, 7]
    for name, column in columns.items():
        kept = table.column(f"source_{name}" if name in ("key", "features") else name)
        if name == "kind":
            column = column.dictionary_decode()
        assert kept.type == column.type
        assert kept.combine_chunks().equals(column.take(left)), name
    whole(tmp_path / "output")


def test_columns_that_cannot_be_kept(tmp_path):
    columns = {"box": pa.array([[1, 2]] * 8), "n": pa.array(range(8))}
    source = write_parquet(tmp_path / "a.parquet", IMAGES, columns=columns)
    with pytest.raises(UsageError, match="'box' cannot be kept"):
        embed_null(tmp_path / "output", source, keep=["box"])
    with pytest.raises(UsageError, match="no column 'none' to keep"):
        embed_null(tmp_path / "output", source, keep=["none"])
    other = write_parquet(tmp_path / "b.parquet", IMAGES, columns={"n": pa.array("abcdefgh")})
    with pytest.raises(UsageError, match="another type in another file"):
        embed_null(tmp_path / "output", source, other, keep=["n"])
    with pytest.raises(UsageError, match="Files of their own have no columns"):
        embed_null(tmp_path / "output", write_folder(tmp_path / "images", IMAGES), keep=["n"])


def test_the_column_of_images(tmp_path):
    columns = {"thumbnail": pa.array([b"small"] * 8), "n": pa.array(range(8))}
    source = write_parquet(tmp_path / "a.parquet", IMAGES, layout="bytes", columns=columns)
    with pytest.raises(UsageError, match="not clear which column"):
        embed_null(tmp_path / "output", source)
    with pytest.raises(UsageError, match="No column 'n'"):
        embed_null(tmp_path / "output", source, image_column="n")
    embed_null(tmp_path / "output", source, image_column="image")
    assert [row["features"] for row in read_rows(tmp_path / "output")] == GOOD
    declared = write_parquet(tmp_path / "b.parquet", IMAGES, columns=columns)
    embed_null(tmp_path / "declared", declared)
    assert [row["features"] for row in read_rows(tmp_path / "declared")] == GOOD


def test_rows_without_an_image(tmp_path, whole):
    source = write_parquet(tmp_path / "a.parquet", [b"one", None, b"", b"two"])
    embed_null(tmp_path / "output", source)
    assert [row["key"][-2:] for row in read_rows(tmp_path / "output")] == ["#0", "#3"]
    failed = read_failures(tmp_path / "output")
    assert failed[0]["message"].startswith("The row has no bytes of an image")
    assert len(failed) == 2
    whole(tmp_path / "output")


def test_a_part_of_a_parquet_file_that_is_damaged(tmp_path, whole):
    images = [os.urandom(200) for _ in range(12)]
    source = write_parquet(tmp_path / "a.parquet", images, group=4, compression="zstd")
    group = pq.read_metadata(source).row_group(1).column(0)
    data = bytearray(source.read_bytes())
    begin = group.data_page_offset
    data[begin : begin + 300] = bytes(300)
    source.write_bytes(data)
    done = embed_null(tmp_path / "output", source, shard_rows=5)
    assert (done.images, done.failed, done.shards) == (12, 4, 3)
    rows = read_rows(tmp_path / "output")
    found = {row["key"].rpartition("#")[2]: row["features"] for row in rows}
    assert found == {str(n): features_of(images[n]) for n in (0, 1, 2, 3, 8, 9, 10, 11)}
    assert {f["message"].partition(";")[0] for f in read_failures(tmp_path / "output")} == {
        "This part of the Parquet file is damaged"
    }
    whole(tmp_path / "output")


def test_text_that_is_none_in_a_column_that_goes_along(tmp_path, whole):
    # pyarrow writes it, and reads it, without a look.
    raw = pa.array([b"fine", b"\xff\xff", b"fine", b"fine"])
    broken = pa.StringArray.from_buffers(4, *raw.buffers()[1:])
    source = write_parquet(tmp_path / "a.parquet", contents(4), columns={"text": broken}, group=2)
    done = embed_null(tmp_path / "output", source, keep=["text"])
    assert (done.images, done.failed) == (4, 2)
    assert [row["text"] for row in read_rows(tmp_path / "output")] == ["fine", "fine"]
    whole(tmp_path / "output")


# Archives.


@pytest.mark.parametrize("kind", ["tar", "tar-gz", "parquet-datasets"])
def test_trouble_with_the_disk_is_no_damage(tmp_path, whole, monkeypatch, kind):
    """What cannot be read now is not recorded as damaged: the same run reads it later."""
    given, _ = make(kind, tmp_path, IMAGES)

    class Failing(io.FileIO):
        left = 3  # times

        def read(self, size=-1):
            if not self.left:
                raise OSError(errno.EIO, "Input/output error")
            self.left -= 1
            return super().read(size)

    monkeypatch.setattr(vitconvert.embedding.files, "open_regular", Failing)
    done = embed_null(tmp_path / "output", *given)
    assert done.images < 8 and done.abandoned == 1
    monkeypatch.undo()
    assert embed_null(tmp_path / "output", *given).images == 8 - done.images
    assert len(read_failures(tmp_path / "output")) == 1
    whole(tmp_path / "output")


@pytest.mark.parametrize("kind", ["folder", "tar", "parquet-datasets"])
def test_keys_are_as_sources_were_named_and_not_of_this_machine(tmp_path, whole, monkeypatch, kind):
    given, _ = make(kind, tmp_path, IMAGES)
    monkeypatch.chdir(tmp_path)
    name = Path(given[0]).name
    embed_null(tmp_path / "output", name)
    first = {"folder": "images/0000.jpg", "tar": "a.tar/0000.jpg"}.get(kind, "a.parquet#0")
    keys = [row["key"] for row in read_rows(tmp_path / "output")]
    assert keys[0] == first
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    whole("../output")
    next((tmp_path / "output" / "features").iterdir()).unlink()
    assert embed_null("../output", f"../{name}").images == 3
    assert sorted(row["key"] for row in read_rows(tmp_path / "output")) == sorted(keys)
    assert str(tmp_path) not in str(read_failures(tmp_path / "output"))
    assert embed_null("../output", f"../{name}", append=True).images == 0


@pytest.mark.parametrize("kind", ["a.tar", "*.tar", "."])
def test_keys_in_archives_have_no_folders_of_this_machine(tmp_path, kind):
    folder = tmp_path / "shards"
    folder.mkdir()
    with tarfile.open(folder / "a.tar", "w") as archive:
        add(archive, "1.jpg", b"one")
    embed_null(tmp_path / "output", folder if kind == "." else folder / kind)
    (row,) = read_rows(tmp_path / "output")
    assert row["key"] == ("shards/a.tar/1.jpg" if kind == "." else "a.tar/1.jpg")
