"""Servers that lie: nothing outside the cache is written, and every refusal has its words."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub_server import HubServer, git_hash, raw_answer
from tests.sources.conftest import StartHub, refused
from vitconvert.errors import IntegrityError, SourceError
from vitconvert.sources import locate
from vitconvert.sources.transport import redirected

WEIGHTS = bytes(range(249)) * 53
REPO = {"config.json": b"{}\n", "model.safetensors": WEIGHTS}
FILE = "model.safetensors"


@pytest.fixture
def hub(start_hub: StartHub, tmp_path: Path) -> Iterator[HubServer]:
    """A Hub; whatever it says, no file appears, goes or changes outside the cache."""
    precious = tmp_path / "precious" / "mine.txt"
    precious.parent.mkdir()
    precious.write_text("mine")
    server = start_hub({"org/vit": REPO})
    before = outside(tmp_path)
    yield server
    assert outside(tmp_path) == before


def outside(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in files}
    kept = {n: p for n, p in names.items() if not n.startswith(("hf/hub/", "cache/vitconvert/"))}
    return {name: path.read_bytes() for name, path in kept.items()}


def listing(server: HubServer) -> dict[str, Any]:
    """What the Hub truthfully says of its repository."""
    files = server.commits["org/vit"][server.branches["org/vit"]["main"]]
    siblings = [
        {"rfilename": name, "blobId": git_hash(body), "size": len(body)}
        for name, body in files.items()
    ]
    return {"id": "org/vit", "sha": server.branches["org/vit"]["main"], "siblings": siblings}


def say(server: HubServer, body: bytes) -> None:
    length = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    server.faults.raw = {"/api/": [raw_answer("200 OK", length, body)]}


def say_of_file(server: HubServer, **fields: object) -> None:
    """Change what is said of the first file."""
    answer = listing(server)
    answer["siblings"][0] |= fields
    say(server, json.dumps(answer).encode())


def test_a_truthful_listing_is_taken(hub: HubServer) -> None:
    say(hub, json.dumps(listing(hub)).encode())
    assert locate("org/vit").verified == ("config.json", FILE)


NO_LISTINGS = [
    b"<html>Log in to the hotel</html>",
    b"",
    b"null",
    b"[]",
    b"3",
    b'"text"',
    b"\xff\xfe{}",
    b'{"sha": ',
    b'{"sha": "half a character \\ud800"}',
    b"[" * 200_000,
    b"1" * 5000,
    b"{}",
]
WRONG = {
    "sha": ["../../precious", "", "main", "A" * 40, "0" * 40 + "\n", 7, None],
    "siblings": [None, {}, "files", [3], [None], [[]], [{}]],
}
WRONG_OF_A_FILE = {
    "rfilename": [
        *("../../precious/mine.txt", "/etc/passwd", "a/../../b", "a//b", "./a", "a/", "", ".."),
        *("nul\0.bin", "\x1b[2Jcleared.bin", "line\nbreak", "\u202egnp.bin", "back\\slash"),
        *("x" * 300 + ".safetensors", "x" * 250 + ".safetensors", "x/" * 40 + "\u00e9" * 150),
        *("C:drive", 12, None, ["config.json"]),
    ],
    "blobId": ["/tmp/x", "../../../precious/mine.txt", "", "f" * 39, "F" * 40, "f" * 64, 5, []],
    "lfs.sha256": ["/tmp/x", "../../../precious/mine.txt", "", "f" * 40, "F" * 64, 5, []],
    "lfs": [3, "text", []],
    "size": [-1, "3", 1.5, True, 10**30],
}


def test_error_listing_that_states_what_cannot_be(hub: HubServer) -> None:
    """One by one: each is refused whole, for its own field."""

    def check(field: str | None, said: object) -> None:
        error = refused()
        assert error.fact == "What the server says of org/vit is not what a Hub says.", said
        assert error.evidence.keys() == {"field", "expected", "found"}
        assert field in (None, error.evidence["field"]), said

    for body in NO_LISTINGS:
        say(hub, body)
        check(None, body)
    for field, values in WRONG.items():
        for value in values:
            say(hub, json.dumps(listing(hub) | {field: value}).encode())
            check(field if field == "sha" else None, value)
    for field, values in WRONG_OF_A_FILE.items():
        for value in values:
            lfs = {"lfs": {"sha256": value, "size": 3}}
            say_of_file(hub, **(lfs if field == "lfs.sha256" else {field: value}))
            check(field, value)
    answer = listing(hub)
    answer["siblings"].append({**answer["siblings"][0], "blobId": "0" * 40})
    say(hub, json.dumps(answer).encode())
    assert refused().evidence["found"] == "'1 again'"


def test_error_listing_without_hashes(hub: HubServer) -> None:
    say_of_file(hub, blobId=None)
    assert (
        str(refused())
        == """\
error: source-not-found
  The server publishes no hash of config.json, so nothing can vouch for it.
  repository  org/vit
  hint: HF_ENDPOINT may name a server that is no Hub; \
download the file yourself and give its path."""
    )


def test_error_listing_without_end(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitconvert.sources.hub.MOST_BYTES", 1000)
    say(hub, b" " * 2000)
    assert refused().fact == "The server's list of the files of org/vit does not end."


@pytest.mark.parametrize("place", ["{precious}", "../../../../precious/mine.txt"])
def test_headers_choose_no_path(hub: HubServer, tmp_path: Path, place: str) -> None:
    place = place.format(precious=tmp_path / "precious" / "mine.txt")
    names = {"X-Repo-Commit": "../../x", "X-Linked-Etag": f'"{place}"', "ETag": f'"{place}"'}
    proper = {"X-Repo-Commit": "0" * 40, "ETag": f'"{git_hash(REPO["config.json"])}"'}
    answers = [
        raw_answer("200 OK", headers | {"Content-Length": "3"}, b"{}\n")
        for headers in (proper, names)
    ]
    # A proper answer at first, and the hostile one to whoever asks again.
    hub.faults.raw = {
        "config.json": answers,
        FILE: [raw_answer("200 OK", names | {"Content-Length": str(len(WEIGHTS))}, WEIGHTS)],
    }
    assert locate("org/vit").verified == ("config.json", FILE)
    assert locate("org/vit", offline=True).verified == ("config.json", FILE)


@pytest.mark.parametrize("revision", ["../../../precious/new", "/etc/x", "a\0b", ".."])
def test_error_revision_that_leads_out(hub: HubServer, revision: str) -> None:
    with pytest.raises(SourceError) as caught:
        locate("org/vit", revision=revision)
    assert caught.value.fact.endswith("cannot be a revision.")
    assert hub.requests == []


LENGTH = str(len(WEIGHTS))
JUNK = {
    "length": {"Content-Length": "abc"},
    "negative length": {"Content-Length": "-5"},
    "long length": {"Content-Length": "9" * 5000},
    "no length": {},
    "encoded": {"Content-Length": LENGTH, "Content-Encoding": "gzip"},
    "chunks": {"Transfer-Encoding": "chunked"},
    "header": {"no name and no colon\r\nx": "y"},
    "redirect": {"Location": "https://[::1"},
}


def junk(kind: str) -> bytes:
    status = "302 Found" if kind == "redirect" else "200 OK"
    return raw_answer(status, JUNK[kind], b"zz\r\n" + WEIGHTS)


@pytest.mark.parametrize("kind", JUNK)
@pytest.mark.parametrize("where", ["/resolve/", "/files/"])
def test_error_junk_in_place_of_a_file(hub: HubServer, where: str, kind: str) -> None:
    hub.faults.raw = {where: [junk(kind)] * 9}
    hub.files = {"a.npz": WEIGHTS}
    error = refused("org/vit" if where == "/resolve/" else f"{hub.endpoint}/files/a.npz")
    assert error.code == "source-not-found"  # not offline: a server did answer
    assert error.evidence


@pytest.mark.parametrize("kind", ["length", "chunks", "header", "redirect"])
def test_error_junk_in_place_of_a_listing(hub: HubServer, kind: str) -> None:
    hub.faults.raw = {"/api/": [junk(kind)]}
    error = refused()
    assert error.code == "source-not-found"
    assert error.evidence


def test_error_another_length_than_was_listed(hub: HubServer) -> None:
    hub.faults.raw = {"/resolve/": [raw_answer("200 OK", {"Content-Length": "4"}, b"{ }\n")]}
    error = refused()
    assert error.fact == "What the server sends of config.json is not what it announced."
    assert error.evidence["field"] == "Content-Length"
    assert (error.evidence["expected"], error.evidence["found"]) == ("3", "4")


def test_error_more_than_was_listed(hub: HubServer) -> None:
    chunks = b"".join(b"400\r\n" + b"x" * 1024 + b"\r\n" for _ in range(99)) + b"0\r\n\r\n"
    endless = raw_answer("200 OK", {"Transfer-Encoding": "chunked"}, chunks)
    hub.faults.raw = {"/resolve/": [endless]}
    error = refused()
    assert error.evidence["expected"] == "3"
    assert error.evidence["found"].endswith(" and more'")  # the end was not waited for
    assert all(path.stat().st_size <= 3 for path in Path(hub.cache).rglob("*.part"))


# Busy servers


@pytest.mark.parametrize("where", ["/api/", "/resolve/", "/files/"])
@pytest.mark.parametrize(
    ("header", "waits"),
    [
        ("7", [7, 7, 7]),
        ("60", [60, 60, 60]),
        ("61", []),
        ("86400", []),
        ("9" * 5000, [1, 2, 4]),
        ("-1", [1, 2, 4]),
        ("Wed, 21 Oct 2065 07:28:00 GMT", [1, 2, 4]),
        ("\u00b2", [1, 2, 4]),
    ],
)
def test_error_busy_without_end(
    hub: HubServer, where: str, header: str, waits: list[float], slept: list[float]
) -> None:
    headers = {"Retry-After": header, "Content-Length": "0"}
    hub.faults.raw = {where: [raw_answer("429 Too Many Requests", headers)] * 99}
    error = refused(f"{hub.endpoint}/files/a.npz" if where == "/files/" else "org/vit")
    assert slept == waits
    assert error.evidence["answer"] == "429 Too Many Requests"
    assert ("wait" in error.evidence) == (waits != [1, 2, 4])


# Redirects


def test_error_redirects_without_end(hub: HubServer) -> None:
    again = {"Location": "/files/a.npz", "Content-Length": "0"}
    hub.faults.raw = {"/files/": [raw_answer("302 Found", again)] * 99}
    assert (
        str(refused(f"{hub.endpoint}/files/a.npz"))
        == f"""\
error: source-not-found
  The server redirects without end.
  address    '{hub.endpoint}/files/a.npz'
  redirects  10
  hint: try again later."""
    )
    assert len(hub.requests) == 10


@pytest.mark.parametrize("where", ["/api/", "/resolve/"])
@pytest.mark.parametrize("other", ["host", "port"])
def test_a_token_stays_with_its_origin(hub: HubServer, where: str, other: str) -> None:
    with HubServer({"org/vit": REPO}) as elsewhere:
        base = hub.other_host if other == "host" else elsewhere.endpoint
        path = "/api/models/org/vit?blobs=true"
        if where == "/resolve/":
            path = f"/org/vit/resolve/{hub.branches['org/vit']['main']}/{FILE}"
        away = raw_answer(
            "307 Temporary Redirect", {"Location": base + path, "Content-Length": "0"}
        )
        hub.faults.raw = {path.partition("?")[0]: [away]}
        assert FILE in locate("org/vit", token="hf_secret").verified
        reached = [r for r in [*hub.requests, *elsewhere.requests] if r.headers["host"] in base]
        assert [r.path for r in reached] == [path.partition("?")[0]]
        assert not any("hf_secret" in str(request) for request in reached)
        first = [r for r in hub.requests if r not in reached]
        assert all(r.headers["authorization"] == "Bearer hf_secret" for r in first)


def test_a_token_stays_with_a_renamed_repository(hub: HubServer) -> None:
    moved = raw_answer("307 Moved", {"Location": "/api/models/org/vit", "Content-Length": "0"})
    hub.faults.raw = {"/api/models/old/name": [moved]}
    hub.commits["old/name"], hub.branches["old/name"] = (
        table["org/vit"] for table in (hub.commits, hub.branches)
    )
    locate("old/name", token="hf_secret")
    assert all(r.headers["authorization"] == "Bearer hf_secret" for r in hub.requests)


@pytest.mark.parametrize("where", ["/api/", "/resolve/", "/files/"])
@pytest.mark.parametrize("target", ["http://example.org/a", "ftp://example.org/a", "file:///etc/x"])
def test_error_redirect_out_of_https(hub: HubServer, where: str, target: str) -> None:
    away = raw_answer("302 Found", {"Location": target, "Content-Length": "0"})
    hub.faults.raw = {where: [away]}
    error = refused(f"{hub.endpoint}/files/a.npz" if where == "/files/" else "org/vit")
    assert error.fact == f"{target} is not an https address."


def test_https_never_falls_to_http() -> None:
    with pytest.raises(SourceError):
        redirected("https://example.org/a", "http://example.org/a")
    assert redirected("https://example.org/a", "//example.net/b") == (
        "https://example.net/b",
        False,
    )


# Downloads that were begun before

BEGUN = 600_000
BODY = bytes(range(251)) * 9000
OTHER = BODY[::-1]


@pytest.fixture
def begun(hub: HubServer) -> Callable[[], bytes]:
    """A download that stopped in its middle; called, it goes on and returns the file."""
    hub.files = {"a.npz": BODY}
    hub.faults.cut = {"a.npz": (BEGUN // 3, 3)}
    refused(f"{hub.endpoint}/files/a.npz")
    hub.requests.clear()

    def go_on() -> bytes:
        found = locate(f"{hub.endpoint}/files/a.npz")
        assert found.weights is not None
        assert hub.requests[0].headers["range"] == f"bytes={BEGUN}-"
        assert found.sha256["a.npz"] == hashlib.sha256(found.weights.read_bytes()).hexdigest()
        return found.weights.read_bytes()

    return go_on


def partial(
    body: bytes,
    *,
    etag: str | None = f'"{git_hash(BODY)}"',
    of: str | None = f"{BEGUN}-{len(BODY) - 1}/{len(BODY)}",
) -> bytes:
    headers = {"Content-Length": str(len(body))}
    headers |= {} if of is None else {"Content-Range": f"bytes {of}"}
    return raw_answer("206 Partial Content", headers | ({"ETag": etag} if etag else {}), body)


@pytest.mark.parametrize(
    "answer",
    [
        partial(OTHER[BEGUN:], etag='"of the other"'),
        partial(OTHER[BEGUN:], etag=None),
        partial(OTHER[BEGUN:], etag=f'W/"{git_hash(BODY)}"'),
        partial(OTHER[BEGUN:], of=f"{BEGUN}-{len(BODY)}/{len(BODY) + 1}"),
        partial(OTHER[BEGUN:], of=f"{BEGUN - 1}-{len(BODY) - 2}/{len(BODY)}"),
        partial(OTHER[BEGUN:], of=f"{BEGUN}-{len(BODY) - 1}/*"),
        partial(OTHER[BEGUN:], of="abc-def/ghi"),
        partial(OTHER[BEGUN:], of=f"{BEGUN}-{'9' * 5000}/{'9' * 5000}"),
        partial(OTHER[BEGUN:], of=None),
    ],
)
def test_an_answer_that_does_not_go_on_is_not_glued(
    hub: HubServer, begun: Callable[[], bytes], answer: bytes
) -> None:
    hub.files = {"a.npz": OTHER}
    hub.faults.raw = {"/files/": [answer]}
    assert begun() == OTHER
    assert "range" not in hub.requests[1].headers


def test_a_part_of_the_rest_is_gone_on_from(hub: HubServer, begun: Callable[[], bytes]) -> None:
    end = BEGUN + 1000
    piece = partial(BODY[BEGUN:end], of=f"{BEGUN}-{end - 1}/{len(BODY)}")
    hub.faults.raw = {"/files/": [piece]}
    assert begun() == BODY
    assert hub.requests[1].headers["range"] == f"bytes={end}-"


def test_error_parts_without_end(hub: HubServer, begun: Callable[[], bytes]) -> None:
    pieces = [partial(BODY[n : n + 1], of=f"{n}-{n}/{len(BODY)}") for n in range(BEGUN, BEGUN + 50)]
    hub.faults.raw = {"/files/": pieces}
    error = refused(f"{hub.endpoint}/files/a.npz")
    assert error.fact == "The download of a.npz broke off."
    assert error.evidence["received"] == f"{BEGUN + 3} bytes"
    assert error.evidence["cause"] == f"{len(BODY) - BEGUN - 3} bytes were missing"
    hub.faults.raw = {}
    hub.requests.clear()
    found = locate(f"{hub.endpoint}/files/a.npz")
    assert found.sha256["a.npz"] == hashlib.sha256(BODY).hexdigest()


def test_the_whole_in_place_of_the_rest(hub: HubServer, begun: Callable[[], bytes]) -> None:
    hub.faults.ignore_range = True
    assert begun() == BODY


def test_error_the_rest_in_place_of_the_whole(hub: HubServer) -> None:
    hub.faults.raw = {"/files/": [partial(BODY[BEGUN:])]}
    error = refused(f"{hub.endpoint}/files/a.npz")
    assert error.evidence["field"] == "status"
    assert error.evidence["expected"] == "200"


@pytest.mark.parametrize("memory", [b"", b"[]", b'{"etag": 3}', b"[" * 100_000, b'{"total": "x"}'])
def test_a_memory_that_is_none(hub: HubServer, tmp_path: Path, memory: bytes) -> None:
    hub.files = {"a.npz": BODY}
    hub.faults.cut = {"a.npz": (BEGUN, 3)}
    refused(f"{hub.endpoint}/files/a.npz")
    next(tmp_path.rglob("a.npz.part.json")).write_bytes(memory)
    hub.requests.clear()
    found = locate(f"{hub.endpoint}/files/a.npz")
    assert found.sha256["a.npz"] == hashlib.sha256(BODY).hexdigest()
    assert "range" not in hub.requests[0].headers


def test_a_weak_etag_vouches_for_nothing(hub: HubServer) -> None:
    hub.files = {"a.npz": BODY}
    hub.faults.no_etag = True
    hub.faults.headers = {"ETag": 'W/"1"'}
    hub.faults.cut = {"a.npz": (BEGUN, 1)}
    assert locate(f"{hub.endpoint}/files/a.npz").sha256 == {
        "a.npz": hashlib.sha256(BODY).hexdigest()
    }
    assert not any("range" in request.headers for request in hub.requests)


def test_what_was_begun_of_another_file_is_begun_again(hub: HubServer) -> None:
    """The rest that the server sends is right; what lies here already is not."""
    hub.faults.cut = {FILE: (3000, 3)}
    refused()
    part = next(Path(hub.cache).rglob("*.part"))
    part.write_bytes(bytes(9000))
    assert FILE in locate("org/vit").verified


def test_error_another_file_than_was_published(hub: HubServer) -> None:
    hub.faults.corrupt = {FILE}
    with pytest.raises(IntegrityError):
        locate("org/vit")
    assert not list(Path(hub.cache).rglob("*.part"))
