"""Of a large repository only headers and the image tower are moved; a server counts the bytes."""

import json
import re

import pytest
import torch

from tests.hub_server import HubServer, use_hub
from tests.packages import transformers
from tests.small_models import randomise
from vitconvert.api import convert, inspect, load_checkpoint, load_model, verify
from vitconvert.errors import IntegrityError, SourceError, VitConvertError
from vitconvert.sources import hub_ranges, locate

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
    monkeypatch.setattr("vitconvert.sources.hub.WORTHWHILE", 0)
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
    local = load_checkpoint(published)
    assert all(torch.equal(local.tensors[name], t) for name, t in checkpoint.tensors.items())


def test_a_second_time_nothing_but_headers(hub):
    load_model(f"hf-hub:{REPO}")
    first = moved(hub)
    hub.requests.clear()
    checkpoint = load_checkpoint(f"hf-hub:{REPO}")
    assert moved(hub) == first - tower_bytes(checkpoint)


def test_the_proof_and_the_record(hub, tmp_path):
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
    with pytest.raises(SourceError, match="Another part"):
        load_checkpoint(locate(f"hf-hub:{REPO}", headers_only=True))


def test_another_tower_than_was_fetched_is_not_read(hub):
    located = locate(f"hf-hub:{REPO}")
    with pytest.raises(VitConvertError):
        load_checkpoint(located, tower="language_model")


@pytest.mark.parametrize("fault", ["whole", "etag", "range"])
def test_servers_that_send_something_else(fault, hub, published, monkeypatch):
    if fault == "whole":
        hub.faults.ignore_range = True
        checkpoint = load_checkpoint(f"hf-hub:{REPO}")
        assert checkpoint.located.fetched is None  # all of it, with its hashes
        assert len(checkpoint.located.verified) >= 2
        return
    check = hub_ranges._check

    def lied(wanted, answer, start, end):
        name = {"etag": "ETag", "range": "Content-Range"}[fault]
        answer.headers[name] = {"etag": f'"{"0" * 64}"', "range": f"bytes 0-{end - 1}/7"}[fault]
        check(wanted, answer, start, end)

    monkeypatch.setattr(hub_ranges, "_check", lied)
    with pytest.raises((SourceError, IntegrityError), match="not what was asked for"):
        load_checkpoint(f"hf-hub:{REPO}")
