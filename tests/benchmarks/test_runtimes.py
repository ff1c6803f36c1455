"""The benchmark of runtimes measures those that are installed; it judges no figure."""

import pytest

from benchmarks import peers, runtimes
from benchmarks.peers import Setting
from benchmarks.runtimes import (
    measure,
)


@pytest.mark.slow
def test_every_runtime_that_is_installed_is_measured(tmp_path, monkeypatch):
    monkeypatch.delitem(runtimes.FORMATS, "openvino")  # two exports take long
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    setting = Setting(
        folder=tmp_path, architecture="test_vit", device="cpu", dtype="float32", threads=1
    )
    peers.write_weights(setting)
    (case,) = measure("smallest", setting, (2,), 1)
    assert list(case.seconds) == ["torch", *runtimes.installed(), "auto"]
    assert case.title == "smallest, 2"
