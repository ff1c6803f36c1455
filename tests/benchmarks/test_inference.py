"""The benchmark of inference measures every project; it judges no figure."""

import pytest
import torch

from benchmarks import peers
from benchmarks.inference import measure
from benchmarks.peers import PEERS, Setting

TINIEST = "test_vit"  # of timm: six blocks of width 64, images of 160 pixels


@pytest.fixture
def make_setting(tmp_path):
    def make(dtype="float32", device="cpu"):
        return Setting(folder=tmp_path, architecture=TINIEST, device=device, dtype=dtype, threads=1)

    return make


@pytest.mark.coverage
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("bfloat16", 0.1)])
def test_every_project_answers_as_timm_does(dtype, bound, make_setting):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    setting = make_setting(dtype)
    peers.write_weights(setting)
    peers.export_weights(setting)
    first, second = measure("smallest", setting, (1, 3), 2)
    titles = [peer.title for peer in PEERS if peer.suits(setting) and not peer.missing]
    assert {"vitconvert fast", "vitconvert", "timm", "transformers"} <= set(titles)
    assert (first.title, second.title) == ("smallest, 1", "smallest, 3")
    for case in (first, second):
        assert list(case.seconds) == titles
        assert all(len(found) == 2 and min(found) > 0 for found in case.seconds.values())
        assert set(case.difference) == set(titles) - {"timm", "vit-pytorch"}
        assert max(case.difference.values()) < bound
        assert case.memory == {}
    assert first.operations["vitconvert fast"] < first.operations["vitconvert"]
