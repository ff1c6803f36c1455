import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from tqdm import tqdm

from tests.hub_server import HubServer
from tests.sources.conftest import StartHub
from vitconvert.conversion.push import progress_bars
from vitconvert.errors import IntegrityError, OfflineError, SourceError, UsageError
from vitconvert.sources import locate

WEIGHTS = bytes(range(256)) * 41
CONFIG = b'{"architecture": "vit_odd"}\n'
REPO = {
    "README.md": b"not needed",
    "config.json": CONFIG,
    "preprocessor_config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"the same, less safe",
}
SHARDED = {
    "config.json": CONFIG,
    "model.safetensors.index.json": json.dumps(
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


def test_only_what_a_conversion_reads_is_downloaded_and_checked(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    found = locate("hf:org/vit", quiet=True)
    assert fetched(server) == {"config.json", "preprocessor_config.json", "model.safetensors"}
    assert found.weights is not None
    assert found.weights.read_bytes() == WEIGHTS
    assert found.config is not None
    assert found.config.read_bytes() == CONFIG
    assert found.preprocessor == found.weights.with_name("preprocessor_config.json")
    assert (found.own, found.name, found.url) == (None, None, None)
    assert (found.reference, found.repo) == ("hf:org/vit", "org/vit")
    assert found.revision == server.branches["org/vit"]["main"]
    assert found.sha256 == {
        "config.json": sha256(CONFIG),
        "model.safetensors": sha256(WEIGHTS),
        "preprocessor_config.json": sha256(b"{}"),
    }
    assert found.verified == ("config.json", "model.safetensors", "preprocessor_config.json")


def test_a_tokenizer_comes_with_a_model_of_texts(start_hub: StartHub) -> None:
    files = {"tokenizer.json": b"{}", "merges.txt": b"", "chat.jinja": b"", "deep/vocab.json": b""}
    texts = {**REPO, **files, "config.json": b'{"text_config": {}}'}
    openclip = {**REPO, **files, "open_clip_config.json": b'{"model_cfg": {"text_cfg": {}}}'}
    del openclip["config.json"]
    assets = {"tokenizer.json": b"{}", "assets/tokenizer/vocabulary.spm": b"words"}
    assets |= {"model.weights.h5": b"\x89HDF\r\n\x1a\n"}
    keras = {**assets, "config.json": b'{"config": {"text_encoder": {}}}'}
    server = start_hub(
        {
            "org/clip": texts,
            "org/open": openclip,
            "org/vit": {**REPO, **files},
            "org/keras": keras,
        }
    )
    for repo in ("org/clip", "org/open"):
        found = locate(f"hf:{repo}", quiet=True)
        assert list(found.tokenizer) == ["tokenizer.json", "merges.txt"]
    assert locate("hf:org/vit", quiet=True).tokenizer == {}
    found = locate("hf:org/keras", quiet=True)
    assert found.tokenizer["spiece.model"].read_bytes() == b"words"
    assert found.tokenizer["tokenizer_config.json"].name == "tokenizer.json"
    assert not {"chat.jinja", "vocab.json"} & fetched(server)


def test_the_client_says_who_it_is(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    locate("org/vit", quiet=True)
    assert all("vitconvert/" in request.headers["user-agent"] for request in server.requests)


def test_a_warm_cache_sends_no_file_again_and_answers_offline(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    first = locate("org/vit")
    before = len(server.paths("GET"))
    assert locate("org/vit") == first
    assert len(server.paths("GET")) == before + 1  # the listing
    count = len(server.requests)
    assert locate("org/vit", offline=True) == first
    assert len(server.requests) == count


def test_without_a_network_the_cache_answers_and_says_so(
    start_hub: StartHub, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_hub({"org/vit": REPO})
    first = locate("org/vit")
    server.stop()
    with caplog.at_level(logging.WARNING, "vitconvert"):
        assert locate("org/vit") == first
    assert "no network answers; org/vit is taken from the cache" in caplog.messages


def test_environment_variable_for_offline(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_hub({"org/vit": REPO})
    first = locate("org/vit")
    count = len(server.requests)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert locate("org/vit") == first
    assert len(server.requests) == count


def test_cache_dir(start_hub: StartHub, tmp_path: Path) -> None:
    start_hub({"org/vit": REPO})
    found = locate("org/vit", cache_dir=tmp_path / "elsewhere")
    assert found.weights is not None
    assert found.weights.is_relative_to(tmp_path / "elsewhere")


def test_revisions(start_hub: StartHub) -> None:
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
        assert found.weights is not None
        assert found.weights.read_bytes() == b"of the pull request"
    assert locate("org/vit").revision != commit


def test_a_new_commit_replaces_the_old(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    locate("org/vit")
    commit = server.push("org/vit", {**REPO, "model.safetensors": b"newer"})
    found = locate("org/vit")
    assert found.revision == commit
    assert found.sha256["model.safetensors"] == sha256(b"newer")


def test_shards_are_those_of_the_index(start_hub: StartHub) -> None:
    server = start_hub({"org/big": SHARDED})
    found = locate("org/big")
    assert found.weights is not None
    assert found.weights.name == "model.safetensors.index.json"
    assert (found.weights.parent / "two.safetensors").read_bytes() == b"2" * 98
    assert "three.safetensors" not in fetched(server)
    assert set(found.verified) == set(SHARDED) - {"three.safetensors"}
    assert locate("org/big", offline=True) == found


def test_one_file_by_its_name(start_hub: StartHub) -> None:
    repo = {"a.npz": b"a", "sub/b.npz": b"b", "sub/config.json": b"{}", "config.json": b"[]"}
    server = start_hub({"org/many": repo})
    found = locate("hf:org/many/sub/b.npz")
    assert found.weights is not None
    assert found.weights.read_bytes() == b"b"
    assert found.config == found.weights.with_name("config.json")
    assert set(found.sha256) == {"sub/b.npz", "sub/config.json"}
    assert fetched(server) == {"b.npz", "config.json"}


def test_only_bin(start_hub: StartHub) -> None:
    start_hub({"org/old": {"config.json": CONFIG, "pytorch_model.bin": b"zip"}})
    found = locate("org/old")
    assert found.weights is not None
    assert found.weights.name == "pytorch_model.bin"


def test_timm_name(start_hub: StartHub) -> None:
    start_hub({"timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k": REPO})
    found = locate("timm:vit_tiny_patch16_224")
    assert found.name == "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    assert found.repo == "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    assert found.verified == ("config.json", "model.safetensors", "preprocessor_config.json")


def test_gated_opens_with_the_token_which_reaches_no_other_host(start_hub: StartHub) -> None:
    server = start_hub({"org/gated": REPO})
    server.gated = {"org/gated"}
    server.faults.redirect = True
    found = locate("org/gated", token=server.token)
    assert "model.safetensors" in found.verified
    elsewhere = [r for r in server.requests if r.headers["host"].startswith("localhost")]
    assert [request.path for request in elsewhere] == ["/files/cdn/model.safetensors"]
    assert not any("authorization" in request.headers for request in elsewhere)
    assert any("authorization" in request.headers for request in server.requests)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_error_same_size_corruption(start_hub: StartHub, name: str) -> None:
    server = start_hub({"org/vit": REPO})
    server.faults.corrupt = {name}
    with pytest.raises(IntegrityError) as caught:
        locate("org/vit")
    body = REPO[name]
    bad = body[:-1] + bytes([body[-1] ^ 1])
    kind, published, found = "sha256", sha256(body), sha256(bad)
    if name == "config.json":
        kind = "git blob"
        published, found = (
            hashlib.sha1(b"blob %d\0" % len(b) + b).hexdigest() for b in (body, bad)
        )
    assert (
        str(caught.value)
        == f"""\
error: hash-mismatch
  {name} is not the file that was published.
  published  {kind} {published}
  found      {kind} {found}
  It was damaged on the way or on this disk, or changed by someone.
  hint: run again; if it repeats, the server or a proxy alters the file."""
    )
    assert not list(Path(server.cache).rglob(f"{published}*[!k]"))  # nothing but its lock is kept
    server.faults.corrupt = set()
    assert name in locate("org/vit").verified


def test_error_cached_file_that_changed(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    locate("org/vit")
    blob = next(Path(server.cache).rglob(f"blobs/{sha256(WEIGHTS)}"))
    blob.write_bytes(WEIGHTS[::-1])
    for offline in (False, True):
        with pytest.raises(IntegrityError) as caught:
            locate("org/vit", offline=offline)
        assert caught.value.hint == f"remove {blob} and run again"
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


def test_error_two_revisions(start_hub: StartHub) -> None:
    start_hub({})
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


ERRORS = {
    "org/nothing": """\
error: source-not-found
  The Hub has no repository org/nothing, or it is private.
  page  https://huggingface.co/org/nothing
  hint: check the spelling; for a private one pass --token or run `hf auth login`.""",
    "org/gated": """\
error: source-not-found
  org/gated is gated: its owners want their terms accepted first.
  page  https://huggingface.co/org/gated
  hint: accept the licence on that page, then pass --token or run `hf auth login`.""",
    "org/vit@v9": """\
error: source-not-found
  org/vit has no revision v9.
  hint: branches, tags and commits are listed at https://huggingface.co/org/vit/commits""",
    "hf:org/vit/model.safetensor": """\
error: source-not-found
  org/vit holds no file model.safetensor.
  hint: did you mean hf:org/vit/model.safetensors?""",
    "hf:org/vit/zzz": """\
error: source-not-found
  org/vit holds no file zzz.
  hint: the files are listed at https://huggingface.co/org/vit/tree/main""",
    "org/astray": """\
error: source-not-found
  org/astray holds no file ../../secret.safetensors.
  hint: the files are listed at https://huggingface.co/org/astray/tree/main""",
    "hf:org/vi--t": """\
error: source-not-found
  org/vi--t cannot be the name of a Hub repository.
  hint: letters, digits, '-', '_' and '.', as in hf:ORG/REPO""",
}


@pytest.mark.parametrize("reference", ERRORS)
def test_error_messages(start_hub: StartHub, reference: str) -> None:
    astray = {"weight_map": {"a": "../../secret.safetensors"}}
    index = {"model.safetensors.index.json": json.dumps(astray).encode()}
    server = start_hub({"org/vit": REPO, "org/gated": REPO, "org/astray": index})
    server.gated = {"org/gated"}
    with pytest.raises(SourceError) as caught:
        locate(reference)
    assert str(caught.value) == ERRORS[reference]


@pytest.mark.parametrize("index", [b"{", b"[]", b'{"weight_map": []}', b'{"weight_map": {"a": 1}}'])
def test_error_index_that_is_none(start_hub: StartHub, index: bytes) -> None:
    server = start_hub({"org/bad": {"model.safetensors.index.json": index}})
    with pytest.raises(SourceError) as caught:
        locate("org/bad")
    path = next(Path(server.cache).rglob("model.safetensors.index.json"))
    assert (
        str(caught.value)
        == f"""\
error: source-not-found
  model.safetensors.index.json of org/bad is no index of shards.
  file  {path}
  hint: an index is JSON with weight_map: tensor name to file name."""
    )


TROUBLE = {
    503: """\
error: source-not-found
  The Hub does not answer as it should.
  repository  org/vit
  answer      503 Service Unavailable
  hint: try again later; what has arrived is kept.""",
    429: """\
error: source-not-found
  The Hub takes no more requests from here for now.
  repository  org/vit
  answer      429 Too Many Requests
  hint: try again later; it takes more with a token (--token).""",
}


@pytest.mark.parametrize("status", TROUBLE)
@pytest.mark.parametrize("where", ["/api/models", "/resolve/"])
@pytest.mark.usefixtures("no_sleep")
def test_error_server_trouble(start_hub: StartHub, status: int, where: str) -> None:
    server = start_hub({"org/vit": REPO})
    server.faults.status = {where: [status] * 20}
    with pytest.raises(SourceError) as caught:
        locate("org/vit")
    assert str(caught.value) == TROUBLE[status]


@pytest.mark.usefixtures("no_sleep")
def test_a_passing_trouble_is_overcome(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    server.faults.status = {"/resolve/": [503]}
    server.faults.cut = {"model.safetensors": (1000, 2)}
    assert "model.safetensors" in locate("org/vit").verified


def test_a_later_run_goes_on_where_one_stopped(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    server.faults.redirect = True
    server.faults.cut = {"model.safetensors": (1000, 3)}
    with pytest.raises(SourceError) as caught:
        locate("org/vit")
    assert (
        str(caught.value)
        == """\
error: source-not-found
  The download of model.safetensors broke off.
  repository  org/vit
  received    3000 bytes
  cause       peer closed connection without sending complete message body (received 1000 bytes, \
expected 8496)
  hint: run again: it goes on where it stopped."""
    )
    assert "model.safetensors" in locate("org/vit").verified
    assert server.requests[-1].headers["range"] == "bytes=3000-"


def test_error_bad_token(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    server.faults.status = {"/api/models": [403]}
    with pytest.raises(SourceError) as caught:
        locate("org/vit", token="hf_wrong")
    assert (
        str(caught.value)
        == """\
error: source-not-found
  The Hub refuses the token, or wants one.
  repository  org/vit
  answer      403 Forbidden
  hint: pass --token, or run `hf auth login`."""
    )


HINT = (
    "  hint: name the path of a file that you have; `vitconvert timm NAME --no-pretrained` "
    "builds a timm model without its weights."
)


def test_error_offline_and_not_in_the_cache(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    with pytest.raises(OfflineError) as caught:
        locate("org/vit@v1", offline=True)
    assert (
        str(caught.value)
        == f"""\
error: offline
  org/vit@v1 is not in the cache, and offline was asked for.
  cache  {server.cache}
{HINT}"""
    )
    assert server.requests == []


def test_error_offline_and_only_a_part_in_the_cache(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    locate("hf:org/vit/config.json")
    with pytest.raises(OfflineError):
        locate("org/vit", offline=True)
    locate("hf:org/vit/pytorch_model.bin")
    assert locate("hf:org/vit/config.json", offline=True).revision == server.push("org/vit", REPO)


def test_offline_after_another_program_fetched_a_part(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    wanted = ["config.json", "model.safetensors"]
    huggingface_hub.snapshot_download("org/vit", allow_patterns=wanted)
    found = locate("org/vit", offline=True)
    assert found.verified == tuple(wanted)
    assert found.revision == server.branches["org/vit"]["main"]


@pytest.mark.parametrize("quiet", [True, False])
def test_quiet_hides_the_bars(
    start_hub: StartHub, quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_hub({"org/vit": REPO})
    hidden = []

    def bar(**options: Any) -> Any:
        hidden.append(options["disable"])
        return tqdm(**options)

    monkeypatch.setattr("vitconvert.sources.transfer.tqdm", bar)
    locate("org/vit", quiet=quiet)
    assert set(hidden) == {True if quiet else None}


@pytest.mark.parametrize("quiet", [True, False])
def test_quiet_hides_the_bars_of_the_client_and_brings_them_back(
    start_hub: StartHub, quiet: bool
) -> None:
    start_hub({})
    with progress_bars(quiet=quiet):
        assert huggingface_hub.utils.are_progress_bars_disabled() == quiet
    assert not huggingface_hub.utils.are_progress_bars_disabled()


def test_error_no_network(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    server.stop()
    with pytest.raises(OfflineError) as caught:
        locate("org/vit")
    assert (
        str(caught.value)
        == f"""\
error: offline
  org/vit is not in the cache, and no network answers.
  cache  {server.cache}
  cause  ConnectError: [Errno 111] Connection refused
{HINT}"""
    )


def test_error_cache_that_cannot_be_written(start_hub: StartHub, tmp_path: Path) -> None:
    start_hub({"org/vit": REPO})
    (tmp_path / "file").touch()
    with pytest.raises(SourceError) as caught:
        locate("org/vit", cache_dir=tmp_path / "file")
    assert caught.value.fact == "org/vit cannot be kept or read on this disk."
    assert caught.value.hint == "--cache-dir DIR keeps downloads elsewhere."


def test_the_token_is_in_no_message(start_hub: StartHub) -> None:
    server = start_hub({"org/vit": REPO})
    server.stop()
    with pytest.raises(OfflineError) as caught:
        locate("org/vit", token="hf_secret")
    assert "hf_secret" not in str(caught.value) + repr(caught.value.__dict__)
