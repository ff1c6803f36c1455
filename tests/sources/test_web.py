import base64
import hashlib
import json
from pathlib import Path

import pytest

from tests.hub_server import HubServer
from tests.sources.conftest import NO_FILE, StartHub, refused
from vitconvert.errors import IntegrityError, OfflineError
from vitconvert.sources import Located, locate, references

BODY = bytes(range(251)) * 9000  # two chunks and a part of one
SHA256 = hashlib.sha256(BODY).hexdigest()
PREFIX = SHA256[:8]


@pytest.fixture
def server(start_hub: StartHub, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """A server of plain files, at which the named checkpoints lie."""
    server = start_hub({})
    hashed = {"vit": f"vit-{PREFIX}.pth", "damaged": "vit-00000000.pth"}
    server.files = {"ViT.npz": BODY, "vit-00000000.pth": BODY}
    server.files |= {f"hashed/{file}": BODY for file in hashed.values()}
    plain = {"ViT": "ViT.npz", "gone": "gone.npz"}
    base = f"{server.endpoint}/files/"
    collections = {
        "google": references.Collection(base=base, files=plain, sha256_in_name=False),
        "torchvision": references.Collection(
            base=f"{base}hashed/", files=hashed, sha256_in_name=True
        ),
    }
    monkeypatch.setattr(references, "collections", lambda: collections)
    return server


def weights(found: Located) -> Path:
    assert found.weights is not None
    return found.weights


def test_a_named_checkpoint(
    server: HubServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = locate("google:ViT")
    path = tmp_path / "cache/vitconvert/downloads" / weights(found).parent.name / "ViT.npz"
    assert path.read_bytes() == BODY
    assert found == Located(
        reference="google:ViT",
        weights=path,
        name="ViT",
        url=f"{server.endpoint}/files/ViT.npz",
        sha256={"ViT.npz": SHA256},
    )
    assert capfd.readouterr() == ("", "")  # no progress where there is no terminal


def test_a_plain_address_and_the_cache(server: HubServer, tmp_path: Path) -> None:
    url = f"{server.endpoint}/files/vit-00000000.pth"
    found = locate(url, cache_dir=tmp_path / "mine")
    assert weights(found).is_relative_to(tmp_path / "mine")
    # Elsewhere eight digits in a name promise nothing.
    assert (found.url, found.name, found.verified) == (url, None, ())
    count = len(server.requests)
    assert locate(url, cache_dir=tmp_path / "mine") == found
    assert locate(url, cache_dir=tmp_path / "mine", offline=True) == found
    assert len(server.requests) == count
    files = {path.name for path in weights(found).parent.iterdir()}
    assert files - {"lock"} == {"vit-00000000.pth", "download.json"}
    record = json.loads(weights(found).with_name("download.json").read_text())
    assert (record["url"], record["size"], record["sha256"]) == (url, len(BODY), SHA256)


def test_a_name_and_google_vouch_for_the_content(server: HubServer) -> None:
    assert locate("torchvision:vit").verified == (f"vit-{PREFIX}.pth",)
    digest = base64.b64encode(hashlib.md5(BODY).digest()).decode()
    server.faults.headers = {"x-goog-hash": f"crc32c=AAAAAA==,md5={digest}"}
    assert locate("google:ViT").verified == ("ViT.npz",)


def test_error_a_download_that_breaks_off(server: HubServer) -> None:
    server.faults.cut = {"ViT.npz": (300_000, 1)}
    assert (
        str(refused("google:ViT"))
        == f"""\
error: source-not-found
  The download of ViT.npz was interrupted.
  address  {server.endpoint}/files/ViT.npz
  cause    ConnectionError: 300000 of {len(BODY)} bytes arrived
  hint: run again."""
    )
    assert not list(Path(server.cache).parents[1].rglob("*ViT.npz*"))
    assert weights(locate("google:ViT")).read_bytes() == BODY


def test_a_redirect_is_followed(server: HubServer) -> None:
    server.faults.redirect_to = {"here.npz": f"{server.other_host}/files/ViT.npz"}
    path = weights(locate(f"{server.endpoint}/files/here.npz"))
    assert (path.name, path.read_bytes()) == ("here.npz", BODY)


@pytest.mark.parametrize("url", ["http://example.org/a.npz", "HTTP://example.org/a.npz"])
def test_error_plain_http(url: str) -> None:
    assert str(refused(url)) == (
        f"error: source-not-found\n  {url} is not an https address.\n"
        "  hint: download the file yourself and give its path."
    )


@pytest.mark.parametrize("tail", ["", "folder/", "..", "%2e%2e", "a%5Cb.npz"])
def test_error_address_without_a_name(server: HubServer, tail: str) -> None:
    assert str(refused(f"{server.endpoint}/files/{tail}")) == (
        f"error: source-not-found\n  {server.endpoint}/files/{tail} names no file.\n"
        "  hint: give the address of a file of weights."
    )


def test_error_content_that_was_not_published(server: HubServer, tmp_path: Path) -> None:
    for _ in range(2):  # what was refused once is not taken for complete by the next run
        assert (
            str(refused("torchvision:damaged"))
            == f"""\
error: hash-mismatch
  vit-00000000.pth is not the file that was published.
  published  sha256 00000000
  found      sha256 {PREFIX}
  It was damaged during download or on this disk, or changed by someone.
  hint: run again; if it repeats, the server or a proxy alters the file."""
        )
    digest, found = (base64.b64encode(hashlib.md5(b).digest()).decode() for b in (b"other", BODY))
    server.faults.headers = {"x-goog-hash": f"md5={digest}"}
    error = refused("google:ViT")
    assert isinstance(error, IntegrityError)
    assert error.evidence == {"published": f"md5 {digest}", "found": f"md5 {found}"}
    assert not [*tmp_path.rglob("vit-00000000*"), *tmp_path.rglob("ViT.npz*")]


def test_error_cached_file_that_changed(server: HubServer) -> None:
    path = weights(locate("google:ViT"))
    path.write_bytes(BODY[:-1] + b"!")
    assert (
        str(refused("google:ViT", offline=True))
        == f"""\
error: hash-mismatch
  ViT.npz is not the file that was published.
  published  sha256 {SHA256}
  found      sha256 {hashlib.sha256(BODY[:-1] + b"!").hexdigest()}
  It was damaged during download or on this disk, or changed by someone.
  hint: remove {path.parent} and run again."""
    )


def test_error_not_there_and_server_trouble(server: HubServer) -> None:
    assert (
        str(refused("google:gone"))
        == f"""\
error: source-not-found
  There is no file at this address, or it is not public.
  address  {server.endpoint}/files/gone.npz
  answer   404 Not Found
  hint: name the path of a file that you have (of `vitconvert timm`: --checkpoint)."""
    )
    server.faults.status = {"ViT": [503] * 20}
    assert (
        str(refused("google:ViT"))
        == f"""\
error: source-not-found
  The server does not send the file now.
  address  {server.endpoint}/files/ViT.npz
  answer   503 Service Unavailable
  hint: try again later."""
    )


@pytest.mark.parametrize("asked", [True, False])
def test_error_offline(server: HubServer, tmp_path: Path, asked: bool) -> None:
    if not asked:
        server.stop()
    error = refused("google:ViT", offline=asked)
    assert isinstance(error, OfflineError)
    reason = "offline was asked for" if asked else "no network answers"
    cause = "" if asked else "\n  cause  [Errno 111] Connection refused"
    assert str(error) == (
        f"error: offline\n  {server.endpoint}/files/ViT.npz is not in the cache, and {reason}.\n"
        f"  cache  {tmp_path / 'cache/vitconvert'}{cause}{NO_FILE}"
    )
