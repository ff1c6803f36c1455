"""The benchmark of GPUs works where there is none, so that it works on the day when there is."""

import re

import pytest

from benchmarks import gpu


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:CUDA is not available:UserWarning")
def test_everything_is_measured_on_a_processor(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu", "--quick"])
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # others compute beside it
    gpu.main()
    out = capsys.readouterr().out
    row = r"^\| (\w[\w ]*) \| [\d.e+]+ \| .+ \| (\d\.\de-\d+) \|$"
    apart = re.findall(row, out, re.MULTILINE)
    assert [name for name, _ in apart] == 2 * [
        "vitconvert fast",
        "vitconvert",
        "timm",
        "transformers",
    ]
    assert all(0 < float(difference) < 1e-5 for _, difference in apart[:4])
    assert all(1e-5 < float(difference) < 0.05 for _, difference in apart[4:])
    assert re.search(r"^\| float32, 1 workers \| [\d.e+]+ \|.*\| 0 \| 0% \|$", out, re.MULTILINE)
