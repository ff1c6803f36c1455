"""A base and its adapter from the Hub; an adapter alone names its base."""

import json

import pytest
import torch

from tests.adapters.writing import VIT, saved
from tests.hub_server import HubServer, use_hub
from tests.packages import transformers
from tests.small_models import relative
from vitconvert.api import convert, inspect, load_checkpoint, load_model
from vitconvert.errors import TensorMismatch
from vitconvert.sources import locate

BASE, ADAPTER = "org/vit", "me/vit-lora"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The two repositories, as PEFT and transformers upload them, and PEFT's own merge."""
    model = VIT.model()
    model.config._name_or_path = BASE
    base, adapter, theirs = saved(
        model, tmp_path, target_modules=["q_proj", "fc1"], modules_to_save=["classifier"]
    )
    processor = transformers.ViTImageProcessor(size={"height": 24, "width": 24})
    processor.save_pretrained(base)
    repos = {
        name: {path.name: path.read_bytes() for path in folder.iterdir()}
        for name, folder in ((BASE, base), (ADAPTER, adapter))
    }
    config = json.loads(repos[ADAPTER]["adapter_config.json"])
    config["base_model_name_or_path"] = BASE
    repos[ADAPTER]["adapter_config.json"] = json.dumps(config).encode()
    with HubServer(repos) as server:
        use_hub(monkeypatch, server, tmp_path)
        server.theirs = theirs
        yield server


def test_merged_and_recorded_by_commit_and_alone_it_names_its_base(hub, tmp_path):
    merged = load_model(f"hf-hub:{BASE}", adapter=f"hf-hub:{ADAPTER}")
    base = load_model(f"hf-hub:{BASE}")
    images = torch.randn(2, 3, *merged.config.image_size)
    with torch.no_grad():
        theirs = hub.theirs(images).logits
        assert relative(merged(images), theirs) < 2e-5
        assert relative(base(images), theirs) > 0.01
    convert(BASE, adapter=ADAPTER, output=tmp_path / "out", verify=False)
    record = json.loads((tmp_path / "out" / "vitconvert.json").read_text())
    changed = record["ledger"]["changed"][0]
    commit = hub.branches[ADAPTER]["main"]
    assert f"merged the LoRA adapter {ADAPTER}@{commit[:12]}: rank 4" in changed
    assert f"trained for {BASE}" in changed
    problem = inspect(f"hf-hub:{ADAPTER}").problem
    assert problem.evidence["its base"] == BASE
    assert problem.hint.startswith(f"`vitconvert hf {BASE} --adapter hf-hub:{ADAPTER}` merges")


def test_alone_it_is_merged_into_the_base_that_it_names(hub, tmp_path):
    cache = tmp_path / "cache"
    locate(f"hf-hub:{ADAPTER}", cache_dir=cache)
    with pytest.raises(TensorMismatch, match="only an adapter"):  # of the base, nothing is there
        load_checkpoint(locate(f"hf-hub:{ADAPTER}", cache_dir=cache, offline=True))
    alone = load_checkpoint(f"hf-hub:{ADAPTER}")
    named = load_checkpoint(f"hf-hub:{BASE}", adapter=f"hf-hub:{ADAPTER}")
    assert alone.tensors.keys() == named.tensors.keys()
    assert all(torch.equal(alone.tensors[name], tensor) for name, tensor in named.tensors.items())
    note = f"the adapter was merged into {BASE}, which its adapter_config.json names"
    assert note in alone.ledger.notes and note not in named.ledger.notes
    assert (alone.located.repo, alone.located.revision) == (BASE, hub.branches[BASE]["main"])
