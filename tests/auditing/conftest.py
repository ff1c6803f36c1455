"""The verb, run in a folder of its own."""

import sys

import pytest

from vitconvert.cli import main


@pytest.fixture
def audit(capsys, tmp_path, monkeypatch):
    """Runs the verb in a folder of its own: the exit code and what is printed."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        sys.modules.pop("ours", None)
        capsys.readouterr()  # of what saved the model
        with pytest.raises(SystemExit) as ended:
            main(["audit", *map(str, words)])
        printed = capsys.readouterr()
        return ended.value.code, printed.out + printed.err

    return run
