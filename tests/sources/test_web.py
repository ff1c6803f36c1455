import base64
import hashlib
import json
import threading
from pathlib import Path

import pytest

from tests.hub_server import HubServer
from tests.sources.conftest import StartHub
from vitconvert.errors import IntegrityError, OfflineError, SourceError
from vitconvert.sources import Located, locate, references

BODY = bytes(range(251)) * 9000  # two chunks and a part of one
SHA256 = hashlib.sha256(BODY).hexdigest()
PREFIX = SHA256[:8]
HINT = (
    "  hint: name the path of a file that you have; `vitconvert timm NAME --no-pretrained` "
    "builds a timm model without its weights."
)


@pytest.fixture
def server(start_hub: StartHub, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """A server of plain files, at which the named checkpoints lie."""
    server = start_hub({})
    server.files = {"ViT.npz": BODY, f"vit-{PREFIX}.pth": BODY, "vit-00000000.pth": BODY}
    base = f"{server.endpoint}/files/"
    collections = {
        "google": references.Collection(
            base=base, files={"ViT": "ViT.npz", "gone": "gone.npz"}, sha256_in_name=False
        ),
        "torchvision": references.Collection(
            base=base,
            files={"vit": f"vit-{PREFIX}.pth", "damaged": "vit-00000000.pth"},
            sha256_in_name=True,
        ),
    }
    monkeypatch.setattr(references, "collections", lambda: collections)
    return server


@pytest.fixture
def google(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """The same without hashes in names."""
    collections = {"google": references.collections()["google"]}
    monkeypatch.setattr(references, "collections", lambda: collections)
    return server


def weights(found: Located) -> Path:
    assert found.weights is not None
    return found.weights


def test_a_named_checkpoint(google: HubServer, tmp_path: Path) -> None:
    found = locate("google:ViT")
    assert weights(found).read_bytes() == BODY
    assert weights(found).is_relative_to(tmp_path / "cache/vitconvert/downloads")
    assert (found.name, found.url) == ("ViT", f"{google.endpoint}/files/ViT.npz")
    assert found.sha256 == {"ViT.npz": SHA256}
    assert found.verified == ()
    assert (found.config, found.repo, found.revision) == (None, None, None)


def test_the_name_vouches_for_the_content(server: HubServer) -> None:
    assert locate("torchvision:vit").verified == (f"vit-{PREFIX}.pth",)


def test_a_plain_address_and_the_cache(google: HubServer, tmp_path: Path) -> None:
    url = f"{google.endpoint}/files/vit-00000000.pth"
    found = locate(url, cache_dir=tmp_path / "mine")
    assert weights(found).is_relative_to(tmp_path / "mine")
    # Elsewhere eight digits in a name promise nothing.
    assert (found.url, found.name, found.verified) == (url, None, ())
    count = len(google.requests)
    assert locate(url, cache_dir=tmp_path / "mine") == found
    assert locate(url, cache_dir=tmp_path / "mine", offline=True) == found
    assert len(google.requests) == count
    files = {path.name for path in weights(found).parent.iterdir()}
    assert files - {"lock"} == {"vit-00000000.pth", "download.json"}
    record = json.loads(weights(found).with_name("download.json").read_text())
    assert (record["url"], record["size"], record["sha256"]) == (url, len(BODY), SHA256)


def test_google_md5_vouches_for_the_content(google: HubServer) -> None:
    digest = base64.b64encode(hashlib.md5(BODY).digest()).decode()
    google.faults.headers = {"x-goog-hash": f"crc32c=AAAAAA==,md5={digest}"}
    assert locate("google:ViT").verified == ("ViT.npz",)


def test_a_broken_download_goes_on_where_it_stopped(google: HubServer) -> None:
    google.faults.cut = {"ViT.npz": (1_500_000, 2)}
    assert weights(locate("google:ViT")).read_bytes() == BODY
    ranges = [request.headers.get("range") for request in google.requests]
    assert ranges == [None, "bytes=1500000-", "bytes=2259000-"][: len(ranges)]
    assert ranges[1] == "bytes=1500000-"
    etag = hashlib.sha1(b"blob %d\0" % len(BODY) + BODY).hexdigest()
    assert google.requests[1].headers["if-range"] == f'"{etag}"'


def test_a_later_run_goes_on_too(google: HubServer) -> None:
    google.faults.cut = {"ViT.npz": (300_000, 3)}
    with pytest.raises(SourceError) as caught:
        locate("google:ViT")
    url = f"{google.endpoint}/files/ViT.npz"
    assert (
        str(caught.value)
        == f"""\
error: source-not-found
  The download broke off.
  address   {url}
  received  900000 bytes
  cause     peer closed connection without sending complete message body \
(received 300000 bytes, expected {len(BODY) - 600_000})
  hint: run again: it goes on where it stopped."""
    )
    assert weights(locate("google:ViT")).read_bytes() == BODY
    assert google.requests[-1].headers["range"] == "bytes=900000-"


@pytest.mark.parametrize("change", ["content", "no_etag", "ignore_range", "longer"])
def test_what_cannot_go_on_begins_again(google: HubServer, change: str) -> None:
    google.faults.cut = {"ViT.npz": (600_000, 3)}
    google.faults.no_etag = change == "no_etag"
    google.faults.ignore_range = change == "ignore_range"
    with pytest.raises(SourceError):
        locate("google:ViT")
    if change == "content":
        google.files["ViT.npz"] = BODY[::-1]
    if change == "longer":
        part = next(Path(google.cache).parents[1].rglob("ViT.npz.part"))
        part.write_bytes(BODY + b"too much")
    assert weights(locate("google:ViT")).read_bytes() == google.files["ViT.npz"]


def test_two_at_once_download_once(google: HubServer) -> None:
    found: list[Located] = []
    threads = [threading.Thread(target=lambda: found.append(locate("google:ViT"))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert google.paths("GET") == ["/files/ViT.npz"]


def test_redirects_are_followed_within_safe_schemes(google: HubServer) -> None:
    google.faults.redirect_to = {"here.npz": f"{google.other_host}/files/ViT.npz"}
    found = locate(f"{google.endpoint}/files/here.npz")
    assert weights(found).read_bytes() == BODY
    assert weights(found).name == "here.npz"


@pytest.mark.parametrize("target", ["http://example.org/a.npz", "ftp://example.org/a.npz"])
def test_error_redirect_out_of_https(google: HubServer, target: str) -> None:
    google.faults.redirect_to = {"ViT.npz": target}
    with pytest.raises(SourceError) as caught:
        locate("google:ViT")
    assert (
        str(caught.value)
        == f"""\
error: source-not-found
  {target} is not an https address.
  hint: download the file yourself and give its path."""
    )


@pytest.mark.parametrize("url", ["http://example.org/a.npz", "HTTP://example.org/a.npz"])
def test_error_plain_http(url: str) -> None:
    with pytest.raises(SourceError) as caught:
        locate(url)
    assert caught.value.fact == f"{url} is not an https address."


@pytest.mark.parametrize("tail", ["", "folder/", "..", "%2e%2e", "a%5Cb.npz"])
def test_error_address_without_a_name(google: HubServer, tail: str) -> None:
    with pytest.raises(SourceError) as caught:
        locate(f"{google.endpoint}/files/{tail}")
    assert (
        str(caught.value)
        == f"""\
error: source-not-found
  {google.endpoint}/files/{tail} names no file.
  hint: give the address of one file of weights."""
    )


def test_error_name_that_contradicts_the_content(server: HubServer, tmp_path: Path) -> None:
    for _ in range(2):  # what was refused once is not taken for complete by the next run
        with pytest.raises(IntegrityError) as caught:
            locate("torchvision:damaged")
        assert (
            str(caught.value)
            == f"""\
error: hash-mismatch
  vit-00000000.pth is not the file that was published.
  published  sha256 00000000
  found      sha256 {PREFIX}
  It was damaged on the way or on this disk, or changed by someone.
  hint: run again; if it repeats, the server or a proxy alters the file."""
        )
        assert not list(tmp_path.rglob("vit-00000000*"))


def test_error_google_md5(google: HubServer) -> None:
    digest = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    found = base64.b64encode(hashlib.md5(BODY).digest()).decode()
    google.faults.headers = {"x-goog-hash": f"md5={digest}"}
    with pytest.raises(IntegrityError) as caught:
        locate("google:ViT")
    assert caught.value.evidence == {"published": f"md5 {digest}", "found": f"md5 {found}"}


def test_error_cached_file_that_changed(google: HubServer) -> None:
    path = weights(locate("google:ViT"))
    path.write_bytes(BODY[:-1] + b"!")
    with pytest.raises(IntegrityError) as caught:
        locate("google:ViT", offline=True)
    found = hashlib.sha256(BODY[:-1] + b"!").hexdigest()
    assert (
        str(caught.value)
        == f"""\
error: hash-mismatch
  ViT.npz is not the file that was published.
  published  sha256 {SHA256}
  found      sha256 {found}
  It was damaged on the way or on this disk, or changed by someone.
  hint: remove {path.parent} and run again"""
    )


def test_error_not_there(google: HubServer) -> None:
    with pytest.raises(SourceError) as caught:
        locate("google:gone")
    assert (
        str(caught.value)
        == f"""\
error: source-not-found
  There is no file at this address, or it is not public.
  address  {google.endpoint}/files/gone.npz
  answer   404 Not Found
  hint: --checkpoint PATH reads a file that you have."""
    )


@pytest.mark.usefixtures("no_sleep")
def test_error_server_trouble(google: HubServer) -> None:
    google.faults.status = {"ViT": [503] * 20}
    with pytest.raises(SourceError) as caught:
        locate("google:ViT")
    assert (
        str(caught.value)
        == f"""\
error: source-not-found
  The server does not send the file now.
  address  {google.endpoint}/files/ViT.npz
  answer   503 Service Unavailable
  hint: try again later; what has arrived is kept."""
    )


def test_error_offline(google: HubServer, tmp_path: Path) -> None:
    with pytest.raises(OfflineError) as caught:
        locate("google:ViT", offline=True)
    assert (
        str(caught.value)
        == f"""\
error: offline
  {google.endpoint}/files/ViT.npz is not in the cache, and offline was asked for.
  cache  {tmp_path / "cache/vitconvert"}
{HINT}"""
    )


def test_error_no_network(google: HubServer, tmp_path: Path) -> None:
    google.stop()
    with pytest.raises(OfflineError) as caught:
        locate("google:ViT")
    assert (
        str(caught.value)
        == f"""\
error: offline
  {google.endpoint}/files/ViT.npz is not in the cache, and no network answers.
  cache  {tmp_path / "cache/vitconvert"}
  cause  {caught.value.evidence["cause"]}
{HINT}"""
    )


def test_progress_is_silent_without_a_terminal(
    google: HubServer, capfd: pytest.CaptureFixture[str]
) -> None:
    locate("google:ViT")
    assert capfd.readouterr() == ("", "")
