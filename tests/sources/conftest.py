from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hub_server import HubServer, use_hub
from vitconvert.errors import SourceError
from vitconvert.sources import locate

StartHub = Callable[[Mapping[str, Mapping[str, bytes]]], HubServer]
NO_FILE = (
    "\n  hint: name the path of a file that you have; `vitconvert timm NAME --no-pretrained` "
    "builds a timm model without its weights."
)


@pytest.fixture
def start_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StartHub]:
    """Start a Hub with these repositories, in place of the real one."""
    with ExitStack() as stack:

        def start(repos: Mapping[str, Mapping[str, bytes]]) -> HubServer:
            server = stack.enter_context(HubServer(repos))
            use_hub(monkeypatch, server, tmp_path)
            return server

        yield start


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited, without waiting them."""
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    return waits


def refused(reference: str = "org/vit", **options: object) -> SourceError:
    """The error for a reference; its message is ASCII and has a hint."""
    with pytest.raises(SourceError) as caught:
        locate(reference, **options)  # type: ignore[arg-type]
    assert caught.value.hint
    assert str(caught.value).isascii()
    return caught.value
