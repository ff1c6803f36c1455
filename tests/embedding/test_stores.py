"""Outputs and images behind URLs: an S3 server of this machine."""

import json
import logging

import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tests.embedding.layouts import contents, write_folder, write_parquet, write_tar
from tests.embedding.null_model import NullTask, embed_null, features_of
from vitconvert.embedding.shards import check
from vitconvert.errors import ConflictingFact, OutputExists, SourceError, UsageError

pytest.importorskip("moto")
pytestmark = pytest.mark.slow  # the server takes two seconds

IMAGES = contents(8, bad=[5])
GOOD = [features_of(image) for image in IMAGES if image != b"bad"]


class Store:
    """A bucket, and what is said of its server in each URL."""

    def __init__(self, server: str, bucket: str) -> None:
        self._stated = f"endpoint_override={server}&scheme=http&region=us-east-1"
        self._bucket = bucket
        self.system = fs.S3FileSystem(
            endpoint_override=server, scheme="http", allow_bucket_creation=True
        )
        self.system.create_dir(bucket)

    def url(self, path):
        return f"s3://{self._bucket}/{path}?{self._stated}"

    def put(self, path, content):
        place = f"{self._bucket}/{path}"
        with self.system.open_output_stream(place, compression=None) as stream:
            stream.write(content)

    def get(self, path):
        with self.system.open_input_file(f"{self._bucket}/{path}") as file:
            return file.read()

    def remove(self, path):
        self.system.delete_file(f"{self._bucket}/{path}")

    def names(self, path):
        folder = f"{self._bucket}/{path}"
        found = self.system.get_file_info(
            fs.FileSelector(folder, recursive=True, allow_not_found=True)
        )
        return sorted(f.path.removeprefix(f"{folder}/") for f in found if f.is_file)

    def rows(self, path):
        names = [name for name in self.names(path) if name.startswith("features/")]
        return [
            row
            for name in names
            for row in pq.read_table(
                f"{self._bucket}/{path}/{name}", filesystem=self.system
            ).to_pylist()
        ]


@pytest.fixture(scope="module")
def server():
    from moto.server import ThreadedMotoServer

    patch = pytest.MonkeyPatch()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        patch.setenv(name, "test")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    yield "{}:{}".format(*running.get_host_and_port())
    running.stop()
    patch.undo()


@pytest.fixture
def store(server, request):
    return Store(server, f"bucket-{abs(hash(request.node.name))}")


def test_images_and_features_in_a_store(store, tmp_path):
    for number, image in enumerate(IMAGES):
        store.put(f"photos/{'cat' if number < 3 else 'dog'}/{number}.jpg", image)
    store.put("photos/notes.txt", b"no image")
    source, output = store.url("photos"), store.url("out/features")
    with pytest.raises(SourceError, match="no images"):
        embed_null(output, source)
    done = embed_null(output, source, recursive=True)
    assert (done.images, done.failed, done.shards) == (8, 1, 3)
    rows = store.rows("out/features")
    assert [row["features"] for row in rows] == GOOD
    assert [row["class"] for row in rows] == ["cat"] * 3 + ["dog"] * 4
    assert check(output).whole
    assert embed_null(output, source, recursive=True).known == 8
    with pytest.raises(ConflictingFact, match="not mixed"):
        embed_null(output, source, recursive=True, task=NullTask("another"))


@pytest.mark.parametrize("kind", ["tar.gz", "parquet"])
def test_archives_in_a_store(store, tmp_path, kind):
    write = write_parquet if kind == "parquet" else lambda p, i: write_tar(p, i, mode="w:gz")
    store.put(f"a.{kind}", write(tmp_path / f"a.{kind}", IMAGES).read_bytes())
    done = embed_null(tmp_path / "output", store.url(f"a.{kind}"))
    assert (done.images, done.failed) == (8, 1)
    assert check(str(tmp_path / "output")).whole
    embed_null(tmp_path / "here", tmp_path / f"a.{kind}")
    here, there = (
        [
            row["features"]
            for path in sorted((tmp_path / name / "features").iterdir())
            for row in pq.read_table(path).to_pylist()
        ]
        for name in ("here", "output")
    )
    assert here == there == GOOD


def test_an_error_within_a_shard_leaves_no_object(store, tmp_path):
    images, output = write_folder(tmp_path / "images", IMAGES), store.url("out")

    def stop(event):
        if event.what == "images" and store.names("out/features"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_null(output, images, notify=stop)
    assert store.names("out/features") == ["part-000000.parquet"]
    assert store.names("out/failed") == []
    done = embed_null(output, images)
    assert (done.known, done.images) == (3, 5)
    assert check(output).whole
    record = json.loads(store.get("out/vitconvert.json"))
    assert record["shards"] == 3


def test_what_somebody_else_has_in_a_store_is_left(store, tmp_path):
    images = write_folder(tmp_path / "images", IMAGES)
    store.put("out/README.md", b"mine")
    with pytest.raises(OutputExists, match="files that vitconvert did not write"):
        embed_null(store.url("out"), images)
    assert store.names("out") == ["README.md"]


def test_places_that_are_none(store, tmp_path):
    images = write_folder(tmp_path / "images", IMAGES)
    with pytest.raises(UsageError, match="not a place"):
        embed_null("nowhere://bucket/features", images)
    with pytest.raises(SourceError, match="no images"):
        embed_null(tmp_path / "output", store.url("none"))


def test_a_url_of_a_file_is_its_path(tmp_path):
    images = write_folder(tmp_path / "images", IMAGES)
    embed_null(f"file://{tmp_path}/output%20here", images)
    assert check(str(tmp_path / "output here")).whole


def test_no_secret_of_an_address_is_written_or_said(store, tmp_path, capfd):
    """Names of keys, passwords and tokens; the source stays the same when they change."""
    for name, content in zip("abc", IMAGES, strict=False):
        store.put(f"photos/{name}.png", content)
    plain = store.url("photos")
    said = [
        plain.replace("s3://", f"s3://{login}@") for login in ("KEY:SECR%2FET", "NEW:SECR%2FET")
    ]
    first = embed_null(tmp_path / "out", said[0])
    assert first.images == 3
    again = embed_null(tmp_path / "out", said[1])
    assert (again.images, again.known) == (0, 3)
    with pytest.raises(SourceError) as error:
        embed_null(tmp_path / "other", said[0].replace("photos", "nothing"))
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    written += str(error.value).encode() + repr(error.value.to_dict()).encode()
    written += "".join(capfd.readouterr()).encode()
    for secret in (b"KEY", b"SECR", b"NEW:"):
        assert secret not in written
    assert b"s3://" in written


def test_a_store_that_wants_credentials(tmp_path):
    """Azure's client raises nothing of Python's own."""
    if not hasattr(fs, "AzureFileSystem"):
        pytest.skip("pyarrow was built without it")
    azure = "abfs://container@account.dfs.core.windows.net/features"
    for output, source in ((azure, tmp_path), (tmp_path / "out", azure)):
        (tmp_path / "a.png").write_bytes(IMAGES[0])
        with pytest.raises(SourceError, match="The store does not answer"):
            embed_null(output, str(source))
