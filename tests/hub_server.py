"""A Hugging Face Hub in one thread: what its API reads and writes, and the ways in which it fails.

    with HubServer({"org/name": {"config.json": b"{}", "model.safetensors": weights}}) as server:
        use_hub(monkeypatch, server, tmp_path)
        huggingface_hub.hf_hub_download("org/name", "config.json")

It also serves plain files with Range under `/files/`, as any https download would.
"""

import hashlib
import importlib
import json
import re
import threading
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import unquote, urlsplit

import pytest

T = TypeVar("T")
_LFS = (".safetensors", ".bin", ".npz", ".pth", ".pt", ".h5")


@dataclass(kw_only=True)
class Request:
    """A request that arrived, with the names of its headers in lower case."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass(kw_only=True)
class Faults:
    """What goes wrong, by the last part of a path.

    Attributes:
        corrupt: Files sent with one bit changed and the right size.
        cut: Files whose body ends after so many bytes, and how often that happens.
        status: Answers to send instead, in turn, for any request whose path contains the key.
        redirect: Whether files of weights are fetched from another host.
        redirect_to: Where plain files redirect.
        ignore_range: Whether Range is overlooked.
        headers: Headers to add to plain files.
    """

    corrupt: set[str] = field(default_factory=set)
    cut: dict[str, tuple[int, int]] = field(default_factory=dict)
    status: dict[str, list[int]] = field(default_factory=dict)
    redirect: bool = False
    redirect_to: dict[str, str] = field(default_factory=dict)
    ignore_range: bool = False
    headers: dict[str, str] = field(default_factory=dict)


class HubServer:
    """Repositories served as the Hub does; a context manager.

    Attributes:
        repos: Repository to branch or commit to files.
        gated: Repositories whose files need `token`.
        private: Repositories that only exist for `token`.
        read_only: Repositories that `token` may not write to.
        ignored: Files that the `.gitignore` of every repository names.
        token: The token that opens them.
        files: Plain files, under `/files/`.
        faults: What goes wrong.
        requests: What arrived.
        on_request: Called with the method and path of each request before it is answered.
        cache: The client's cache, once `use_hub` has pointed it here.
    """

    def __init__(self, repos: Mapping[str, Mapping[str, bytes]]) -> None:
        self.commits: dict[str, dict[str, dict[str, bytes]]] = {}
        self.branches: dict[str, dict[str, str]] = {}
        self.gated: set[str] = set()
        self.private: set[str] = set()
        self.read_only: set[str] = set()
        self.ignored: set[str] = set()
        self.stored: dict[str, bytes] = {}  # sha256 to what was uploaded
        self.messages: list[str] = []  # of commits that came in
        self.token = "hf_of_the_test"
        self.files: dict[str, bytes] = {}
        self.faults = Faults()
        self.requests: list[Request] = []
        self.on_request: Callable[[str, str], None] | None = None
        self.cache = Path()
        for repo, files in repos.items():
            self.push(repo, files)

    def push(self, repo: str, files: Mapping[str, bytes], *, branch: str = "main") -> str:
        """Commit these files to a branch and return the commit."""
        listing = json.dumps({name: git_hash(body) for name, body in sorted(files.items())})
        commit = hashlib.sha1(f"{repo} {listing}".encode()).hexdigest()
        self.commits.setdefault(repo, {})[commit] = dict(files)
        self.branches.setdefault(repo, {})[branch] = commit
        return commit

    def paths(self, method: str) -> list[str]:
        """The paths of the requests so far."""
        return [request.path for request in self.requests if request.method == method]

    @property
    def endpoint(self) -> str:
        """The address to use as `HF_ENDPOINT`."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def other_host(self) -> str:
        """The same server under another host name."""
        return f"http://localhost:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"hub": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop answering; nothing listens at the endpoint afterwards."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
            self._http.server_close()


def git_hash(body: bytes) -> str:
    """Git's hash of a file."""
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


def use_hub(monkeypatch: pytest.MonkeyPatch, server: HubServer, tmp_path: Path) -> Path:
    """Point huggingface_hub, whenever it was imported, to a server; returns the cache folder."""
    import huggingface_hub
    from huggingface_hub import constants

    home = tmp_path / "hf"
    values = {
        "ENDPOINT": server.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": server.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_STORED_TOKENS_PATH": str(home / "stored_tokens"),
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_DISABLE_TELEMETRY": True,
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_PROGRESS_BARS": None,
    }
    for name, value in values.items():
        monkeypatch.setattr(constants, name, value)
    # Where it decides whether to show a bar, the client keeps a copy.
    bars = importlib.import_module("huggingface_hub.utils.tqdm")
    monkeypatch.setattr(bars, "HF_HUB_DISABLE_PROGRESS_BARS", None)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Connections of the client's one session must not outlive the server they lead to.
    huggingface_hub.close_session()
    server.cache = home / "hub"
    return server.cache


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        body = self._sent()
        path = unquote(urlsplit(self.path).path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.hub.requests.append(Request(method=self.command, path=path, headers=headers))
        if self.hub.on_request is not None:
            self.hub.on_request(self.command, path)
        if (status := _next(self.hub.faults.status, path)) is not None:
            self._send(status, b"", {"Retry-After": "0"})
        elif self.command in ("POST", "PUT"):
            self._write(path, body)
        elif match := re.fullmatch(r"/files/(?P<name>.+)", path):
            self._plain(match["name"])
        elif match := re.fullmatch(
            r"/api/models/(?P<repo>[^/]+/[^/]+)(?:/(?P<what>revision|tree)/(?P<revision>.+))?", path
        ):
            self._api(match["repo"], match["what"], match["revision"] or "main")
        elif match := re.fullmatch(
            r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>refs/[^/]+/[^/]+|[^/]+)/(?P<name>.+)",
            path,
        ):
            self._file(match["repo"], match["revision"], match["name"])
        else:
            self._send(404, b"", {})

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 (the names of http.server)

    def _sent(self) -> bytes:
        """The body of the request, also one in chunks, whose length nobody knew before."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _allowed(self, repo: str) -> bool:
        return self.headers.get("Authorization") == f"Bearer {self.hub.token}"

    def _commit(self, repo: str, revision: str) -> str | None:
        """The commit, after sending an error if there is none."""
        hidden = repo in self.hub.private and not self._allowed(repo)
        if repo not in self.hub.commits or hidden:
            self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
            return None
        commit = self.hub.branches[repo].get(revision, revision)
        if commit not in self.hub.commits[repo]:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return None
        return commit

    def _api(self, repo: str, what: str | None, revision: str) -> None:
        if (commit := self._commit(repo, revision)) is None:
            return
        files = self.hub.commits[repo][commit]
        if what == "tree":
            answer: object = [
                {"type": "file", "path": name, "oid": git_hash(body), **_metadata(name, body)}
                for name, body in files.items()
            ]
        else:
            siblings = [
                {"rfilename": name, "blobId": git_hash(body), **_metadata(name, body)}
                for name, body in files.items()
            ]
            answer = {"id": repo, "sha": commit, "siblings": siblings, "tags": []}
            answer["private"] = repo in self.hub.private
        self._json(answer)

    def _write(self, path: str, body: bytes) -> None:
        """Every request that changes something; uploads themselves carry no token."""
        if match := re.fullmatch(r"/lfs/(?P<sha256>[0-9a-f]{64})", path):
            self.hub.stored[match["sha256"]] = body
            self._send(200, b"", {})
            return
        if not self._allowed(""):
            self._send(401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self._validate(json.loads(body)["content"])
        elif path.endswith("/verify"):
            self._send(200 if json.loads(body)["oid"] in self.hub.stored else 404, b"", {})
        elif match := re.fullmatch(r"/(?P<repo>[^/]+/[^/]+)[.]git/info/lfs/objects/batch", path):
            self._json({"transfer": "basic", "objects": self._actions(json.loads(body)["objects"])})
        elif match := re.fullmatch(
            r"/api/models/(?P<repo>[^/]+/[^/]+)/(?P<what>preupload|commit|branch)/(?P<revision>.+)",
            path,
        ):
            self._change(match["repo"], match["what"], match["revision"], body)
        else:
            self._send(404, b"", {})

    def _create(self, wanted: dict[str, str | None]) -> None:
        repo = f"{wanted['organization'] or 'me'}/{wanted['name']}"
        answer = {"url": f"{self.hub.endpoint}/{repo}"}
        if repo in self.hub.commits:
            self._json({**answer, "error": "You already created this model repo"}, 409)
        elif repo in self.hub.read_only:
            self._send(403, b"", {"X-Error-Message": "You don't have the rights"})
        else:
            if wanted.get("visibility") == "private":
                self.hub.private.add(repo)
            self.hub.push(repo, {})
            self._json(answer)

    def _validate(self, card: str) -> None:
        if card.startswith("---\n"):
            self._json({"errors": [], "warnings": []})
        else:
            self._json({"errors": [{"message": "no metadata"}], "warnings": []}, 400)

    def _actions(self, objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Where to send what is not there yet."""
        found = []
        for wanted in objects:
            place = f"{self.hub.other_host}/lfs/{wanted['oid']}"
            verify = f"{self.hub.endpoint}/lfs/verify"
            actions = {"upload": {"href": place}, "verify": {"href": verify}}
            known = wanted["oid"] in self.hub.stored
            found.append(wanted if known else {**wanted, "actions": actions})
        return found

    def _change(self, repo: str, what: str, revision: str, body: bytes) -> None:
        proposed = "create_pr=1" in self.path
        if repo in self.hub.read_only and not proposed:
            self._send(403, b"", {"X-Error-Message": "You don't have the rights"})
        elif what == "branch":
            self.hub.branches[repo].setdefault(revision, self.hub.branches[repo]["main"])
            self._send(200, b"", {})
        elif self._commit(repo, revision) is None:
            pass
        elif what == "preupload":
            modes = [
                {"uploadMode": "lfs" if f["path"].endswith(_LFS) else "regular", "path": f["path"]}
                for f in json.loads(body)["files"]
            ]
            answers = [{**m, "shouldIgnore": m["path"] in self.hub.ignored} for m in modes]
            self._json({"files": [{**answer, "oid": None} for answer in answers]})
        else:
            header, *changes = (json.loads(line) for line in body.splitlines())
            self.hub.messages.append(header["value"]["summary"])
            files = dict(self.hub.commits[repo][self.hub.branches[repo][revision]])
            for change in (change["value"] for change in changes):
                content = change.get("content")
                files[change["path"]] = (
                    self.hub.stored.get(change["oid"], b"")
                    if content is None
                    else b64decode(content)
                )
            branch = "refs/pr/1" if proposed else revision
            commit = self.hub.push(repo, files, branch=branch)
            page = f"{self.hub.endpoint}/{repo}"
            answer = {"commitUrl": f"{page}/commit/{commit}", "commitOid": commit}
            self._json({**answer, "pullRequestUrl": f"{page}/discussions/1" if proposed else None})

    def _json(self, answer: object, status: int = 200) -> None:
        self._send(status, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _file(self, repo: str, revision: str, name: str) -> None:
        if (commit := self._commit(repo, revision)) is None:
            return
        common = {"X-Repo-Commit": commit}
        if repo in self.hub.gated and not self._allowed(repo):
            self._send(403, b"", common | {"X-Error-Code": "GatedRepo"})
            return
        body = self.hub.commits[repo][commit].get(name)
        if body is None:
            self._send(404, b"", common | {"X-Error-Code": "EntryNotFound"})
            return
        etag = hashlib.sha256(body).hexdigest() if name.endswith(_LFS) else git_hash(body)
        common |= {"ETag": f'"{etag}"', "X-Linked-Etag": f'"{etag}"'}
        if self.hub.faults.redirect and name.endswith(_LFS):
            self.hub.files[f"cdn/{name}"] = body
            common |= {"X-Linked-Size": str(len(body))}
            common |= {"Location": f"{self.hub.other_host}/files/cdn/{name}"}
            self._send(302, b"", common)
            return
        self._body(name, body, common)

    def _plain(self, name: str) -> None:
        if (target := self.hub.faults.redirect_to.get(name)) is not None:
            self._send(302, b"", {"Location": target})
        elif (body := self.hub.files.get(name)) is None:
            self._send(404, b"", {})
        else:
            self._body(name, body, {"ETag": f'"{git_hash(body)}"'} | self.hub.faults.headers)

    def _body(self, name: str, body: bytes, headers: dict[str, str]) -> None:
        name = name.rsplit("/", 1)[-1]
        if name in self.hub.faults.corrupt:
            body = body[:-1] + bytes([body[-1] ^ 1])
        status, start, size = 200, 0, len(body)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        condition = self.headers.get("If-Range", headers.get("ETag"))
        if wanted and condition == headers.get("ETag") and not self.hub.faults.ignore_range:
            start = int(wanted[1])
            if start >= size:
                self._send(416, b"", {"Content-Range": f"bytes */{size}"})
                return
            body = body[start : int(wanted[2]) + 1 if wanted[2] else None]
            status = 206
            headers |= {"Content-Range": f"bytes {start}-{start + len(body) - 1}/{size}"}
        self._send(status, body, headers | {"Accept-Ranges": "bytes"}, keep=self._kept(name))

    def _kept(self, name: str) -> int | None:
        """How many bytes of the body to send before the line goes dead."""
        kept, times = self.hub.faults.cut.get(name, (0, 0))
        if self.command == "HEAD" or not times:
            return None
        self.hub.faults.cut[name] = (kept, times - 1)
        return kept

    def _send(
        self, status: int, body: bytes, headers: Mapping[str, str], *, keep: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Access-Control-Allow-Origin", "*")  # pages of other sites may ask
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:keep])


def _next(planned: Mapping[str, list[T]], path: str) -> T | None:
    for part, answers in planned.items():
        if part in path and answers:
            return answers.pop(0)
    return None


def _metadata(name: str, body: bytes) -> dict[str, object]:
    size: dict[str, object] = {"size": len(body)}
    if not name.endswith(_LFS):
        return size
    digest = hashlib.sha256(body).hexdigest()
    # The tree calls it oid and the model's information calls it sha256.
    return size | {"lfs": {"oid": digest, "sha256": digest, "size": len(body), "pointerSize": 134}}
