"""The command line in this process: arguments in, exit code and both streams out."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from vitconvert.cli import main


class Answer(NamedTuple):
    """What a shell would have seen."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """`run("timm", "vit_tiny_patch16_224")`."""

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Answer(int(exit_.value.code or 0), out, err)

    return run
