import socket

import pytest

from vitconvert.demo import Demonstration, demonstrate


@pytest.fixture(scope="session")
def demonstration() -> Demonstration:
    """What the demo gives, and it asks no network."""

    def refuse(*_: object) -> None:
        raise AssertionError("the demo asked the network")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket.socket, "connect", refuse)
        patched.setattr(socket, "getaddrinfo", refuse)
        return demonstrate()
