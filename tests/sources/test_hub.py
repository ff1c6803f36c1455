import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from tests.hub_server import HubServer, git_hash
from tests.sources.conftest import NO_FILE, StartHub, refused
from vitconvert.conversion.push import progress_bars
from vitconvert.documents import MOST_BYTES
from vitconvert.errors import IntegrityError, OfflineError, UnsafeFile, UsageError
from vitconvert.sources import Located, locate

WEIGHTS = bytes(range(256)) * 41
CONFIG = b'{"architecture": "vit_odd"}\n'
REPO = {
    "README.md": b"not needed",
    "config.json": CONFIG,
    "preprocessor_config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"the same, less safe",
}
INDEX = "model.safetensors.index.json"
SHARDED = {
    "config.json": CONFIG,
    INDEX: json.dumps(
        {"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "one.safetensors"}}
    ).encode(),
    "one.safetensors": b"1" * 99,
    "two.safetensors": b"2" * 98,
    "three.safetensors": b"not in the index",
}


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def fetched(server: HubServer) -> set[str]:
    return {path.rsplit("/", 1)[-1] for path in server.paths("GET") if "/resolve/" in path}


def weights(found: Located) -> Path:
    assert found.weights is not None
    return found.weights


def test_only_what_a_conversion_reads_is_downloaded_and_checked(
    start_hub: StartHub, tmp_path: Path
) -> None:
    server = start_hub({"org/vit": REPO})
    found = locate("hf:org/vit", quiet=True, cache_dir=tmp_path / "mine")
    names = ("config.json", "model.safetensors", "preprocessor_config.json")
    assert fetched(server) == set(names)
    assert all("vitconvert/" in request.headers["user-agent"] for request in server.requests)
    path = weights(found)
    assert path.is_relative_to(tmp_path / "mine")
    assert path.read_bytes() == WEIGHTS
    assert found == Located(
        reference="hf:org/vit",
        weights=path,
        config=path.with_name("config.json"),
        preprocessor=path.with_name("preprocessor_config.json"),
        repo="org/vit",
        revision=server.branches["org/vit"]["main"],
        sha256={name: sha256(REPO[name]) for name in names},
        verified=names,
    )


def test_a_tokenizer_comes_with_a_model_of_texts(start_hub: StartHub) -> None:
    files = {"tokenizer.json": b"{}", "merges.txt": b"", "chat.jinja": b"", "deep/vocab.json": b""}
    texts = {**REPO, **files, "config.json": b'{"text_config": {}}'}
    openclip = {**REPO, **files, "open_clip_config.json": b'{"model_cfg": {"text_cfg": {}}}'}
    del openclip["config.json"]
    assets = {"tokenizer.json": b"{}", "assets/tokenizer/vocabulary.spm": b"words"}
    assets |= {"model.weights.h5": b"\x89HDF\r\n\x1a\n"}
    keras = {**assets, "config.json": b'{"config": {"text_encoder": {}}}'}
    server = start_hub(
        {"org/clip": texts, "org/open": openclip, "org/vit": {**REPO, **files}, "org/keras": keras}
    )
    for repo in ("org/clip", "org/open"):
        found = locate(f"hf:{repo}", quiet=True)
        assert list(found.tokenizer) == ["tokenizer.json", "merges.txt"]
    assert locate("hf:org/vit", quiet=True).tokenizer == {}
    found = locate("hf:org/keras", quiet=True)
    assert found.tokenizer["spiece.model"].read_bytes() == b"words"
    assert found.tokenizer["tokenizer_config.json"].name == "tokenizer.json"
    assert not {"chat.jinja", "vocab.json"} & fetched(server)


def test_a_warm_cache_sends_no_file_again_and_answers_offline(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_hub({"org/vit": REPO})
    first = locate("org/vit")
    before = len(server.requests)
    assert locate("org/vit") == first
    assert len(server.requests) == before + 1  # the listing
    assert locate("org/vit", offline=True) == first
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert locate("org/vit") == first
    assert len(server.requests) == before + 1
    server.stop()
    with caplog.at_level(logging.WARNING, "vitconvert"):
        assert locate("org/vit") == first
    assert "no network answers; org/vit is taken from the cache" in caplog.messages


def test_revisions_and_a_new_commit(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    other = {**REPO, "model.safetensors": b"of the pull request"}
    commit = server.push("org/vit", other, branch="refs/pr/3")
    for found in (
        locate("org/vit@refs/pr/3"),
        locate("org/vit", revision="refs/pr/3"),
        locate(f"hf:org/vit@{commit}"),
        locate("hf:org/vit@refs/pr/3", offline=True),
    ):
        assert found.revision == commit
        assert weights(found).read_bytes() == b"of the pull request"
    assert locate("org/vit").revision != commit
    newer = server.push("org/vit", {**REPO, "model.safetensors": b"newer"})
    found = locate("org/vit")
    assert (found.revision, found.sha256["model.safetensors"]) == (newer, sha256(b"newer"))


def test_shards_are_those_of_the_index(start_hub: StartHub) -> None:
    server = start_hub({"org/big": SHARDED})
    found = locate("org/big")
    assert weights(found).name == INDEX
    assert weights(found).with_name("two.safetensors").read_bytes() == b"2" * 98
    assert fetched(server) == set(found.verified) == set(SHARDED) - {"three.safetensors"}
    assert locate("org/big", offline=True) == found


def test_one_file_by_its_name(start_hub: StartHub) -> None:
    repo = {"a.npz": b"a", "sub/b.npz": b"b", "sub/config.json": b"{}", "config.json": b"[]"}
    server = start_hub({"org/many": repo})
    found = locate("hf:org/many/sub/b.npz")
    assert weights(found).read_bytes() == b"b"
    assert found.config == weights(found).with_name("config.json")
    assert set(found.sha256) == {"sub/b.npz", "sub/config.json"}
    assert fetched(server) == {"b.npz", "config.json"}


def test_timm_name(start_hub: StartHub) -> None:
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    start_hub({f"timm/{name}": REPO})
    found = locate("timm:vit_tiny_patch16_224")
    assert (found.name, found.repo) == (name, f"timm/{name}")
    assert found.verified == ("config.json", "model.safetensors", "preprocessor_config.json")


def test_gated_opens_with_the_token_which_reaches_no_other_host(start_hub: StartHub) -> None:
    server = start_hub({"org/gated": REPO})
    server.gated = {"org/gated"}
    server.faults.redirect = True
    assert "model.safetensors" in locate("org/gated", token=server.token).verified
    elsewhere = [r for r in server.requests if r.headers["host"].startswith("localhost")]
    assert [request.path for request in elsewhere] == ["/files/cdn/model.safetensors"]
    assert not any("authorization" in request.headers for request in elsewhere)
    assert any("authorization" in request.headers for request in server.requests)


@pytest.mark.parametrize(
    ("name", "kind", "digest"),
    [("model.safetensors", "sha256", sha256), ("config.json", "git blob", git_hash)],
)
def test_error_same_size_corruption(start_hub: StartHub, name: str, kind: str, digest: Any) -> None:
    server = start_hub({"org/vit": REPO})
    server.faults.corrupt = {name}
    error = refused()
    assert isinstance(error, IntegrityError)
    body = REPO[name]
    blob = next(Path(server.cache).rglob(f"blobs/{digest(body)}"))
    assert (
        str(error)
        == f"""\
error: hash-mismatch
  {name} is not the file that was published.
  published  {kind} {digest(body)}
  found      {kind} {digest(body[:-1] + bytes([body[-1] ^ 1]))}
  It was damaged during download or on this disk, or changed by someone.
  hint: remove {blob} and run again."""
    )
    server.faults.corrupt = set()
    blob.unlink()
    assert name in locate("org/vit").verified


def test_error_cached_file_that_changed(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    locate("org/vit")
    blob = next(Path(server.cache).rglob(f"blobs/{sha256(WEIGHTS)}"))
    blob.write_bytes(WEIGHTS[::-1])
    for offline in (False, True):
        error = refused(offline=offline)
        assert isinstance(error, IntegrityError)
        assert error.hint == f"remove {blob} and run again."
    blob.unlink()
    assert "model.safetensors" in locate("org/vit").verified


def test_a_branch_that_moves_meanwhile_changes_nothing(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    listed = server.branches["org/vit"]["main"]

    def move(method: str, path: str) -> None:
        if "/resolve/" in path:
            server.push("org/vit", {**REPO, "model.safetensors": b"newer"})

    server.on_request = move
    found = locate("org/vit")
    assert server.branches["org/vit"]["main"] != listed == found.revision
    assert found.sha256["model.safetensors"] == sha256(WEIGHTS)
    assert locate("org/vit", offline=True) == found


NOT_FOUND = "error: source-not-found\n"
ERRORS = {
    "org/nothing": """\
  The Hub has no repository org/nothing, or it is private.
  page  https://huggingface.co/org/nothing
  hint: check the name; for a private one pass --token or run `hf auth login`.""",
    "org/gated": """\
  org/gated is gated: its owners want their terms accepted first.
  page  https://huggingface.co/org/gated
  hint: accept the licence on that page, then pass --token or run `hf auth login`.""",
    "org/vit@v9": """\
  org/vit has no revision v9.
  hint: branches, tags and commits are listed at https://huggingface.co/org/vit/commits""",
    "hf:org/vit/model.safetensor": """\
  org/vit holds no file model.safetensor.
  hint: did you mean hf:org/vit/model.safetensors?""",
    "hf:org/vit/zzz": """\
  org/vit holds no file zzz.
  hint: the files are listed at https://huggingface.co/org/vit/tree/main""",
    "hf:org/vi--t": """\
  org/vi--t cannot be the name of a Hub repository.
  hint: letters, digits, '-', '_' and '.', as in hf:ORG/REPO""",
}


def test_error_messages(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO, "org/gated": REPO})
    server.gated = {"org/gated"}
    for reference, message in ERRORS.items():
        assert str(refused(reference)) == NOT_FOUND + message
    with pytest.raises(UsageError) as caught:
        locate("hf:org/vit@one", revision="two")
    assert (
        str(caught.value)
        == """\
error: usage
  Two revisions are asked for.
  reference  one
  revision   two
  hint: leave one of them out."""
    )


def test_an_index_is_read_as_when_it_is_opened(start_hub: StartHub) -> None:
    longer = json.loads(SHARDED[INDEX]) | {"metadata": {"names": "x" * (MOST_BYTES + 1)}}
    astray = {"weight_map": {"a": "../../secret.safetensors"}}
    kinds = {"org/long": {**SHARDED, INDEX: longer}, "org/astray": {INDEX: astray}}
    start_hub(
        {repo: files | {INDEX: json.dumps(files[INDEX]).encode()} for repo, files in kinds.items()}
    )
    assert weights(locate("org/long")).with_name("two.safetensors").is_file()
    with pytest.raises(UnsafeFile, match="names a shard outside its own directory"):
        locate("org/astray")


@pytest.mark.parametrize("index", [b"{", b"[]", b'{"weight_map": []}', b'{"weight_map": {"a": 1}}'])
def test_error_index_that_is_none(start_hub: StartHub, index: bytes) -> None:
    server = start_hub({"org/bad": {INDEX: index}})
    message = str(refused("org/bad"))
    assert message == (
        f"{NOT_FOUND}  {INDEX} of org/bad is not an index of shards.\n"
        f"  file  {next(Path(server.cache).rglob(INDEX))}\n"
        "  hint: an index is JSON with weight_map: tensor name to file name."
    )


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (
            503,
            """\
  The Hub does not answer as it should.
  repository  org/vit
  answer      503 Service Unavailable
  hint: try again later; files that have arrived are kept.""",
        ),
        (
            429,
            """\
  The Hub takes no more requests from here for now.
  repository  org/vit
  answer      429 Too Many Requests
  hint: try again later; it takes more with a token (--token).""",
        ),
        (
            403,
            """\
  The Hub needs a token, or rejected yours.
  repository  org/vit
  answer      403 Forbidden
  hint: pass --token, or run `hf auth login`.""",
        ),
    ],
)
@pytest.mark.parametrize("where", ["/api/models", "/resolve/"])
@pytest.mark.usefixtures("slept")
def test_error_server_trouble(start_hub: StartHub, status: int, where: str, message: str) -> None:
    server = start_hub({"org/vit": REPO})
    server.faults.status = {where: [status] * 20}
    assert str(refused()) == NOT_FOUND + message


@pytest.mark.usefixtures("slept")
def test_a_passing_trouble_is_overcome(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    server.faults.status = {"/resolve/": [503]}
    server.faults.cut = {"model.safetensors": (1000, 2)}
    assert "model.safetensors" in locate("org/vit").verified


@pytest.mark.usefixtures("slept")
def test_error_a_download_that_breaks_off(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    server.faults.cut = {"model.safetensors": (1000, 50)}
    error = refused()
    assert error.fact == "The download of org/vit was interrupted."
    assert error.hint == "run again: files that have arrived are kept."
    server.faults.cut = {}
    assert "model.safetensors" in locate("org/vit").verified


def test_error_offline_and_not_in_the_cache(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    assert str(refused("org/vit@v1", offline=True)) == (
        "error: offline\n  org/vit@v1 is not in the cache, and offline was asked for.\n"
        f"  cache  {server.cache}{NO_FILE}"
    )
    assert server.requests == []
    locate("hf:org/vit/config.json")
    assert isinstance(refused(offline=True), OfflineError)  # of what is only there in part
    locate("hf:org/vit/pytorch_model.bin")
    assert locate("hf:org/vit/config.json", offline=True).revision == server.push("org/vit", REPO)


def test_offline_after_another_program_fetched_a_part(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    wanted = ["config.json", "model.safetensors"]
    huggingface_hub.snapshot_download("org/vit", allow_patterns=wanted)
    found = locate("org/vit", offline=True)
    assert found.verified == tuple(wanted)
    assert found.revision == server.branches["org/vit"]["main"]


def test_error_no_network_and_no_message_with_the_token(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    server.stop()
    error = refused(token="hf_secret")
    assert isinstance(error, OfflineError)
    assert str(error) == (
        "error: offline\n  org/vit is not in the cache, and no network answers.\n"
        f"  cache  {server.cache}\n  cause  ConnectError: [Errno 111] Connection refused{NO_FILE}"
    )
    assert "hf_secret" not in repr(error.__dict__)


def test_error_cache_that_cannot_be_written(start_hub: StartHub, tmp_path: Path) -> None:
    start_hub({"org/vit": REPO})
    (tmp_path / "file").touch()
    error = refused(cache_dir=tmp_path / "file")
    assert error.fact == "org/vit cannot be kept or read on this disk."
    assert error.hint == "--cache-dir DIR keeps downloads elsewhere."


@pytest.mark.parametrize("quiet", [True, False])
def test_quiet_hides_the_bars(
    start_hub: StartHub,
    quiet: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start_hub({"org/vit": REPO})
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    locate("org/vit", quiet=quiet)
    assert bool(capsys.readouterr().err) != quiet
    # Those of the client, while an output is published, come back afterwards.
    with progress_bars(quiet=quiet):
        assert huggingface_hub.utils.are_progress_bars_disabled() == quiet
    assert not huggingface_hub.utils.are_progress_bars_disabled()
