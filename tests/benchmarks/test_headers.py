"""The benchmark of headers inspects all that it makes, in the folder and on the Hub."""

import re

import pytest

from benchmarks import headers


@pytest.mark.slow
def test_all_are_inspected(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["headers", "--checkpoints", "4", "--rounds", "1"])
    headers.main()
    out = capsys.readouterr().out
    assert re.search(r"^\| files of a folder \| \d+", out, re.MULTILINE)
    assert re.search(r"^\| repositories of a list \| \d+", out, re.MULTILINE)
    monkeypatch.setattr(headers, "make_checkpoint", lambda folder, _: folder)
    with pytest.raises(FileNotFoundError):
        headers.main()
