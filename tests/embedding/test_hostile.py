"""Archives of strangers: rows, failures or a message, and no more memory than they justify."""

import gzip
import io
import os
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.embedding.layouts import (
    add,
    contents,
    read_failures,
    read_rows,
    write_parquet,
    write_tar,
)
from tests.embedding.null_model import embed_null, features_of
from tests.hostile.harness import call_limited
from vitconvert.embedding import parquet, tars

GOOD = b"good"


def member(name, size=0, kind=tarfile.REGTYPE, **fields):
    found = tarfile.TarInfo(name)
    found.size, found.type = size, kind
    for field, value in fields.items():
        setattr(found, field, value)
    return found


def header(info, **how) -> bytes:
    return info.tobuf(**{"format": tarfile.GNU_FORMAT, **how})


def with_size(info, size: bytes) -> bytes:
    """A header with other bytes for the size, whose checksum is right."""
    data = bytearray(header(info))
    data[124:136] = size
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data)
    return bytes(data)


def good_member(name: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        add(archive, name, GOOD)
    return file.getvalue()[:1024]


END = bytes(1024)


def sparse(size: int) -> bytes:
    """A file of any number of zeros, in 1.5 kB."""
    texts = (b"GNU.sparse.map=0,1\n", b"GNU.sparse.size=%010d\n" % size)
    records = b"".join(b"%d %s" % (len(text) + 3, text) for text in texts)
    pax = header(member("pax", len(records), tarfile.XHDTYPE)) + records.ljust(512, b"\0")
    return pax + header(member("holes.jpg", 1)) + b"x".ljust(512, b"\0")


HOSTILE = {
    "a size beyond the end": with_size(member("huge.jpg"), b"77777777777\0"),
    "a size that leads back": with_size(member("back.jpg"), b"\xff" * 10 + b"\xfe\x00"),
    "a header that is too large": header(member("pax", 2**30, tarfile.XHDTYPE)) + bytes(2**22),
    "holes": sparse(2**33),
    "small holes": sparse(512),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_tar(tmp_path, whole, kind):
    data = good_member("good.jpg") + HOSTILE[kind] + good_member("more.jpg") + END
    path = tmp_path / "a.tar"
    path.write_bytes(data)

    def work():
        embed_null(tmp_path / "output", path)

    answer = call_limited(work, seconds=20, mebibytes=700)
    assert answer.code == 0, answer.err
    assert answer.peak_mib < 300
    rows = read_rows(tmp_path / "output")
    assert rows[0]["features"] == features_of(GOOD)
    failed = [failure["message"] for failure in read_failures(tmp_path / "output")]
    assert failed or len(rows) == 2  # what tarfile does not mind
    if kind == "small holes":
        assert failed == ["The image has holes"]
        assert len(rows) == 2
    whole(tmp_path / "output")


def test_members_that_are_no_files_or_lead_elsewhere(tmp_path, whole):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("../../up.jpg", "/absolute.jpg", "a/../../b.jpg"):
            add(archive, name, name.encode())
        archive.addfile(member("link.jpg", kind=tarfile.SYMTYPE, linkname="/etc/passwd"))
        archive.addfile(member("hard.jpg", kind=tarfile.LNKTYPE, linkname="/etc/passwd"))
        archive.addfile(member("device.jpg", kind=tarfile.CHRTYPE))
        archive.addfile(member("pipe.jpg", kind=tarfile.FIFOTYPE))
        archive.addfile(member("folder.jpg", kind=tarfile.DIRTYPE))
    before = set(tmp_path.iterdir())
    assert embed_null(tmp_path / "output", path).images == 3
    assert set(tmp_path.iterdir()) - before == {tmp_path / "output"}
    whole(tmp_path / "output")


def test_a_bomb_in_a_tar_is_no_image(tmp_path, monkeypatch):
    monkeypatch.setattr(tars, "MOST_BYTES", 1000)
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        add(archive, "zeros.jpg", bytes(1001))
        add(archive, "good.jpg", GOOD)
    embed_null(tmp_path / "output", path)
    assert len(read_rows(tmp_path / "output")) == 1
    (failed,) = read_failures(tmp_path / "output")
    assert failed["message"].startswith("The file is too large for an image")


# Parquet.


def compact(value: int) -> bytes:
    """A number as Thrift's compact protocol writes it."""
    value = value << 1
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def test_rows_that_are_but_declared(tmp_path):
    """The footer says how many rows there are; nobody computes 2^40."""
    path = write_parquet(tmp_path / "a.parquet", contents(100), group=100)
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    assert footer.count(compact(100)) >= 2
    for declared in (2**40, 101, 99):
        changed = footer.replace(compact(100), compact(declared))
        ending = changed + len(changed).to_bytes(4, "little") + b"PAR1"
        path.write_bytes(data[: -8 - length] + ending)
        if embed_null(tmp_path / f"output-{declared}", path, shard_rows=50).abandoned:
            continue
        rows = read_rows(tmp_path / f"output-{declared}")
        failed = read_failures(tmp_path / f"output-{declared}")
        assert len(rows) + len(failed) == declared
        assert declared < 1000


def test_columns_of_one_name(tmp_path):
    table = pa.Table.from_arrays([pa.array([b"a"]), pa.array([b"b"])], names=["image", "image"])
    pq.write_table(table, tmp_path / "a.parquet")
    told = []
    assert embed_null(tmp_path / "output", tmp_path / "a.parquet", notify=told.append).abandoned
    assert any("Several columns" in (event.message or "") for event in told)


def test_a_path_beside_an_image_is_not_opened(tmp_path):
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    rows = [{"bytes": None, "path": str(tmp_path / "secret.jpg")}]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({"image": pa.array(rows, kind)}), tmp_path / "a.parquet")
    assert embed_null(tmp_path / "output", tmp_path / "a.parquet").failed == 1


@pytest.mark.parametrize("stated", [b"{", b'{"info": 1}', b"\xff"])
def test_what_datasets_says_of_columns_is_no_more_than_a_word(tmp_path, stated):
    path = write_parquet(tmp_path / "a.parquet", contents(2), layout="bytes")
    table = pq.read_table(path).replace_schema_metadata({"huggingface": stated})
    pq.write_table(table, path)
    assert embed_null(tmp_path / "output", path).images == 2


def test_a_parquet_file_that_unpacks_to_far_more(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "MOST_BYTES", 2**20)
    images = pa.array([bytes(2**22)] * 2, pa.large_binary())
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": images}), path, compression="zstd", use_dictionary=False)
    embed_null(tmp_path / "output", path)
    failed = [failure["message"] for failure in read_failures(tmp_path / "output")]
    assert len(failed) == 2
    assert failed[0].startswith("This part of the Parquet file unpacks to far more than its size")


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_honest_images_that_are_large_or_stand_in_many_rows(tmp_path, compression):
    """A page with many images, and a dictionary of a few."""
    different = [os.urandom(2**20) for _ in range(20)]
    images = [*different, *different[:2] * 30]
    path = write_parquet(tmp_path / "a.parquet", images, group=100, compression=compression)
    assert embed_null(tmp_path / "output", path, shard_rows=100).failed == 0
    assert [row["features"] for row in read_rows(tmp_path / "output")] == [
        features_of(image) for image in images
    ]


# Compressed tars.


def test_a_compressed_tar_that_unpacks_to_far_more(tmp_path, monkeypatch):
    monkeypatch.setattr(tars, "MOST_BYTES", 2**20)
    path = tmp_path / "a.tar.gz"
    one = gzip.compress(header(member("zeros.jpg", 2**24)) + bytes(2**24))
    path.write_bytes(one * 8)
    told = []
    done = embed_null(tmp_path / "output", path, notify=told.append)
    assert done.abandoned == 1
    assert any("unpacks to far more than its size" in (event.message or "") for event in told)


def test_a_compressed_tar_is_not_unpacked_for_each_image(tmp_path, monkeypatch):
    """Contents that end with a block are where tarfile goes back by a byte."""
    path = write_tar(tmp_path / "a.tar.gz", [os.urandom(2**18) for _ in range(40)], mode="w:gz")
    unpacked = []

    class Counting(gzip.GzipFile):
        def read(self, size=-1):
            found = super().read(size)
            unpacked.append(len(found))
            return found

        def rewind(self):
            raise AssertionError("it is unpacked again")

    monkeypatch.setattr(tars, "_COMPRESSIONS", {".gz": lambda file: Counting(fileobj=file)})
    assert embed_null(tmp_path / "output", path, shard_rows=3).images == 40
    assert sum(unpacked) < 1.1 * 40 * 2**18
