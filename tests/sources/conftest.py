from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hub_server import HubServer, use_hub

StartHub = Callable[[Mapping[str, Mapping[str, bytes]]], HubServer]


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
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits seconds between its attempts."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
