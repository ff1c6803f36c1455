"""Of a large repository only headers and the image tower are moved; a server counts the bytes."""

import json
import re
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file, save

from tests.cli.conftest import run
from tests.hub_server import HubServer, use_hub
from tests.packages import transformers
from tests.small_models import assert_same_tensors, randomise
from vitconvert.api import convert, diff, inspect, load_checkpoint, load_model, verify
from vitconvert.errors import OfflineError, SourceError, VitConvertError
from vitconvert.sources import hub_ranges, locate

__all__ = ["run"]

REPO = "org/llava"
VISION = {
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 11,
    "num_attention_heads": 3,
    "image_size": 24,
    "patch_size": 8,
}
TEXT = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 2000,
}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A LLaVA in several shards."""
    torch.manual_seed(5)
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION),
        text_config=transformers.LlamaConfig(**TEXT),
    )
    folder = tmp_path_factory.mktemp("llava")
    model = randomise(transformers.LlavaForConditionalGeneration(config))
    model.save_pretrained(folder, max_shard_size="4MB")
    return folder


@pytest.fixture
def hub(published, tmp_path, monkeypatch):
    monkeypatch.setattr(hub_ranges, "WORTHWHILE", 0)
    files = {path.name: path.read_bytes() for path in published.iterdir()}
    with HubServer({REPO: files}) as server:
        use_hub(monkeypatch, server, tmp_path)
        yield server


def moved(hub, suffix=".safetensors"):
    """Bytes of weights that were asked for; the server keeps every request."""
    total = 0
    for request in hub.requests:
        if request.path.endswith(suffix):
            first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers["range"]).groups()
            total += int(last) - int(first) + 1
    return total


def as_one_file(hub, published):
    """The same model, its weights in one file."""
    tensors = {}
    for shard in published.glob("*.safetensors"):
        tensors |= load_file(shard)
    files = {"config.json": (published / "config.json").read_bytes()}
    hub.push("org/single", files | {"model.safetensors": save(tensors)})
    return "hf-hub:org/single"


def tower_bytes(checkpoint):
    return sum(t.numel() * t.element_size() for t in checkpoint.tensors.values())


def test_only_the_towers_bytes_are_moved(hub, published):
    checkpoint = load_checkpoint(f"hf-hub:{REPO}")
    whole = sum(path.stat().st_size for path in published.glob("*.safetensors"))
    shards = len(list(published.glob("*.safetensors")))
    headers = 2**16 * shards
    assert tower_bytes(checkpoint) <= moved(hub) <= tower_bytes(checkpoint) + headers
    assert moved(hub) < 0.2 * whole
    fetched = checkpoint.located.fetched
    assert (fetched.tower, fetched.moved, fetched.total) == ("vision_tower.", moved(hub), whole)
    assert_same_tensors(checkpoint.tensors, load_checkpoint(published).tensors)


def test_a_second_time_nothing(hub):
    load_model(f"hf-hub:{REPO}")
    first = moved(hub)
    hub.requests.clear()
    checkpoint = load_checkpoint(f"hf-hub:{REPO}")
    assert first > 0 and moved(hub) == 0
    assert checkpoint.located.fetched.moved == 0
    assert "fetched before" in str(checkpoint.located.fetched)


@pytest.mark.parametrize("single", [False, True])
def test_offline_the_tower_that_was_fetched_is_found(single, hub, published, monkeypatch):
    repo = as_one_file(hub, published) if single else f"hf-hub:{REPO}"
    online = load_model(repo).state_dict()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert inspect(repo).problem is None
    offline = load_model(load_checkpoint(repo, tower="vision_tower")).state_dict()
    assert_same_tensors(offline, online)
    assert not hub.requests
    with pytest.raises(OfflineError):  # of which nothing was fetched
        load_checkpoint(repo, tower="model.language_model")


def test_offline_headers_are_no_tower(hub, monkeypatch):
    inspect(f"hf-hub:{REPO}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert inspect(f"hf-hub:{REPO}").dialect == "hf_clip"
    with pytest.raises(OfflineError):
        load_checkpoint(f"hf-hub:{REPO}")


def test_what_was_downloaded_whole_is_not_fetched_in_part(hub, published, monkeypatch):
    monkeypatch.setattr(hub_ranges, "WORTHWHILE", 2**40)
    load_checkpoint(f"hf-hub:{REPO}")
    monkeypatch.setattr(hub_ranges, "WORTHWHILE", 0)
    hub.requests.clear()
    for headers_only in (False, True):
        located = locate(f"hf-hub:{REPO}", headers_only=headers_only)
        assert located.fetched is None and len(located.verified) >= 2
    assert not [r for r in hub.requests if r.path.endswith(".safetensors")]


def test_the_proof_and_the_record(hub, published, tmp_path):
    whole = sum(path.stat().st_size for path in published.glob("*.safetensors"))
    assert diff(f"hf-hub:{REPO}", published).equal and moved(hub) < 0.2 * whole
    assert verify(f"hf-hub:{REPO}").ok
    convert(f"hf-hub:{REPO}", to="hf", output=tmp_path / "tower", verify=False)
    record = json.loads((tmp_path / "tower" / "vitconvert.json").read_text())
    assert "vision_tower alone, by ranges" in json.dumps(record)
    assert "sha256 of whole files" in (tmp_path / "tower" / "README.md").read_text()


def test_inspect_moves_headers_alone(hub):
    inspection = inspect(f"hf-hub:{REPO}")
    assert inspection.problem is None
    assert inspection.dialect == "hf_clip"
    assert moved(hub) <= 2**16 * len({r.path for r in hub.requests if "safetensors" in r.path})
    for path in hub.cache.rglob("headers/*.safetensors"):  # what came with a header is not kept
        body = path.read_bytes()
        assert not any(body[8 + int.from_bytes(body[:8], "little") :])
    with pytest.raises(SourceError, match="Another part"):
        load_checkpoint(locate(f"hf-hub:{REPO}", headers_only=True))


def test_inspect_where_ranges_are_ignored(hub, published):
    hub.faults.ignore_range = True
    located = inspect(as_one_file(hub, published)).located
    assert located.fetched is None and located.verified


@pytest.mark.slow
def test_a_tower_in_two_of_many_shards(hub, published, tmp_path, run):
    model = transformers.LlavaForConditionalGeneration.from_pretrained(published)
    model.save_pretrained(tmp_path / "small", max_shard_size="400KB")
    files = {path.name: path.read_bytes() for path in (tmp_path / "small").iterdir()}
    hub.push("org/many", files)
    index = json.loads(files["model.safetensors.index.json"])["weight_map"]
    of_tower = {shard for name, shard in index.items() if "vision_tower" in name}
    assert 2 <= len(of_tower) < len(set(index.values())) - 4
    told = run("inspect", "hf-hub:org/many").out
    assert "only headers, by ranges: " in told
    hub.requests.clear()
    checkpoint = load_checkpoint("hf-hub:org/many")
    asked = Counter(r.path.rsplit("/")[-1] for r in hub.requests if r.path.endswith(".safetensors"))
    assert {shard for shard, count in asked.items() if count > 1} == of_tower
    assert_same_tensors(checkpoint.tensors, load_checkpoint(published).tensors)
    done = run("hf", "org/many", "-o", tmp_path / "out", "-v")
    assert done.code == 0 and "vision_tower alone, by ranges: " in done.out + done.err


def test_another_tower_than_was_fetched_is_not_read(hub):
    located = locate(f"hf-hub:{REPO}")
    with pytest.raises(VitConvertError):
        load_checkpoint(located, tower="language_model")


def test_a_tower_that_is_nearly_everything_is_not_taken_alone(hub, monkeypatch):
    monkeypatch.setattr(hub_ranges, "_MOST", 0.01)
    located = load_checkpoint(f"hf-hub:{REPO}").located
    assert located.fetched is None and len(located.verified) >= 2


def test_a_server_without_ranges_sends_all_with_its_hashes(hub):
    hub.faults.ignore_range = True
    located = load_checkpoint(f"hf-hub:{REPO}").located
    assert located.fetched is None and len(located.verified) >= 2
