"""Archives that somebody made to do harm: rows, failures or a message, and no more memory."""

import bz2
import gzip
import io
import lzma
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
from tests.sampling import sampled
from vitconvert.embedding import tars
from vitconvert.errors import VitConvertError

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


def long_names(count: int) -> bytes:
    """Headers of long names, one before the other."""
    name = b"name\0"
    one = header(member("././@LongLink", len(name), tarfile.GNUTYPE_LONGNAME))
    return (one + name.ljust(512, b"\0")) * count


END = bytes(1024)


def sparse(size: int) -> bytes:
    """A file of any number of zeros, in 1.5 kB."""
    texts = (b"GNU.sparse.map=0,1\n", b"GNU.sparse.size=%010d\n" % size)
    records = b"".join(b"%d %s" % (len(text) + 3, text) for text in texts)
    pax = header(member("pax", len(records), tarfile.XHDTYPE)) + records.ljust(512, b"\0")
    return pax + header(member("holes.jpg", 1)) + b"x".ljust(512, b"\0")


HOSTILE = {
    "a size beyond the end": with_size(member("huge.jpg"), b"77777777777\0"),
    "a size of 88 bits": with_size(member("huge.jpg"), b"\x80" + b"\xff" * 11),
    "a size that leads back": with_size(member("back.jpg"), b"\xff" * 10 + b"\xfe\x00"),
    "headers of headers": long_names(5000) + header(member("deep.jpg")),
    "a header that is too large": header(member("pax", 2**30, tarfile.XHDTYPE)) + bytes(2**22),
    "lengths of many digits": header(member("pax", 10_000, tarfile.XHDTYPE)) + b"9" * 10_240,
    "a header without text": header(member("pax", 512, tarfile.XHDTYPE)) + b"\xff" * 512,
    "holes": sparse(2**33),
    "small holes": sparse(512),
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", sampled(HOSTILE, 4, "slow"))
def test_a_hostile_tar(tmp_path, whole, kind, compressed):
    data = good_member("good.jpg") + HOSTILE[kind] + good_member("more.jpg") + END
    path = tmp_path / ("a.tar.gz" if compressed else "a.tar")
    path.write_bytes(gzip.compress(data, 1) if compressed else data)

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


@pytest.mark.slow
@pytest.mark.parametrize("depth", [50, 2000])
def test_columns_within_columns(tmp_path, depth):
    kind = pa.binary()
    for _ in range(depth):
        kind = pa.struct([("bytes", kind)])
    path = tmp_path / "a.parquet"

    def write():
        pq.write_table(pa.table({"image": pa.array([None], kind)}), path)

    def work():
        embed_null(tmp_path / "output", path)

    if call_limited(write).code == 0:
        answer = call_limited(work)
        assert "Traceback" not in answer.err
        assert answer.code in (1, 2), answer


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


@pytest.mark.parametrize("stated", [b"{", b"[]", b'{"info": 1}', b"\xff", b"[" * 100_000])
def test_what_datasets_says_of_columns_is_no_more_than_a_word(tmp_path, stated):
    path = write_parquet(tmp_path / "a.parquet", contents(2), layout="bytes")
    table = pq.read_table(path).replace_schema_metadata({"huggingface": stated})
    pq.write_table(table, path)
    assert embed_null(tmp_path / "output", path).images == 2


@pytest.mark.slow
@pytest.mark.coverage
def test_damage_anywhere_in_a_parquet_file_is_a_message_or_a_failure(tmp_path):
    """No traceback, whatever byte is another; rows are as many as the plan has."""
    import random

    path = write_parquet(tmp_path / "a.parquet", contents(9), group=3, compression="zstd")
    content = path.read_bytes()

    def work():
        draw = random.Random(3)
        for number in range(150):
            damaged = bytearray(content)
            for _ in range(draw.randrange(1, 4)):
                damaged[draw.randrange(4, len(content))] = draw.randrange(256)
            path.write_bytes(damaged)
            output = tmp_path / f"output-{number}"
            try:
                done = embed_null(output, path, shard_rows=50)
            except VitConvertError:
                continue
            assert len(read_rows(output)) + len(read_failures(output)) == done.images

    answer = call_limited(work, seconds=60, mebibytes=2048)
    assert answer.code == 0, answer.err


BOMBS = {
    "one value of many rows": (100, 4, {"use_dictionary": True}),
    "pages of zeros": (60, 3, {"use_dictionary": False}),
    "values that begin alike": (
        *(60, 4),
        {"use_dictionary": False, "column_encoding": {"image": "DELTA_BYTE_ARRAY"}},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOMBS)
def test_a_parquet_file_that_unpacks_to_far_more(tmp_path, kind):
    mebibytes, rows, how = BOMBS[kind]
    path = tmp_path / "a.parquet"

    def write():
        images = pa.array([bytes(mebibytes * 2**20)] * rows, pa.large_binary())
        large = {"data_page_size": 2**30, "dictionary_pagesize_limit": 2**30}
        pq.write_table(pa.table({"image": images}), path, compression="zstd", **large, **how)

    assert call_limited(write, seconds=60, mebibytes=8000).code == 0
    assert path.stat().st_size < 20_000

    def work():
        embed_null(tmp_path / "output", path, shard_rows=100)

    answer = call_limited(work, seconds=30, mebibytes=2000)
    assert answer.code == 0, answer.err
    assert answer.peak_mib < 1000  # 750 here; an allocator keeps what it had before the fork
    failed = [failure["message"] for failure in read_failures(tmp_path / "output")]
    assert len(failed) + len(read_rows(tmp_path / "output")) == rows
    assert failed[-1].startswith("This part of the Parquet file unpacks to far more than it is")


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


def packed_zeros(suffix: str, gibibytes: int) -> bytes:
    """Zeros of any number, of which each image of a tar has 64 MiB."""
    size = 2**26
    one = header(member("zeros.jpg", size))
    pack = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    begin, zeros = pack[suffix](one), pack[suffix](bytes(size))
    return (begin + zeros) * gibibytes * 16


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
def test_a_compressed_tar_that_unpacks_to_far_more(tmp_path, suffix):
    path = tmp_path / f"a.tar.{suffix}"
    path.write_bytes(packed_zeros(suffix, 4))
    assert path.stat().st_size < 2**23

    def work():
        told = []
        done = embed_null(tmp_path / "output", path, notify=told.append)
        assert done.abandoned == 1
        assert any("unpacks to far more than it is" in (event.message or "") for event in told)

    answer = call_limited(work, seconds=60, mebibytes=1500)
    assert answer.code == 0, answer
    assert answer.peak_mib < 600  # of 4 GiB: a few images of 64 MiB are in memory


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
