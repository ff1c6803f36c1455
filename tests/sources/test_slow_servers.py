"""Servers that stall without end: an answer has a deadline, and its body a least rate."""

import itertools
import socket
import threading
import time

import pytest

from tests.sources.conftest import StartHub
from vitconvert.errors import VitConvertError
from vitconvert.sources import locate, transport

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
SIZED, CHUNKED = b"Content-Length: 5000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"
HINT = b"HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n"
ENDLESS = {
    "early hints": ((), itertools.cycle([HINT])),
    "early hints as fast as they go": ((), itertools.cycle([HINT * 50])),
    "a head by bytes": ((b"HTTP/1.1 200 OK\r\nX-Long: ",), itertools.cycle([b"x"])),
    "no head": ((), itertools.cycle([b""])),
    "a body by bytes": ((OK, SIZED), itertools.cycle([b" "])),
    "chunks of a byte": ((OK, CHUNKED), itertools.cycle([b"1\r\n \r\n"])),
    "the length of a chunk by bytes": ((OK, CHUNKED, b"5;ext="), itertools.cycle([b"x"])),
}


@pytest.fixture
def stalling(request):
    """An address that sends what it is asked to, then goes on so slowly."""
    begins, goes_on = ENDLESS[request.param]
    ended = threading.Event()
    pause = 0.0005 if "fast" in request.param else 0.03

    def serve(connection):
        with connection:
            connection.recv(65536)
            try:
                for part in itertools.chain(begins, goes_on):
                    connection.sendall(part)
                    if ended.wait(pause):
                        return
            except OSError:
                return

    def accept():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        ended.set()
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize("what", ["a repository", "a file"])
@pytest.mark.parametrize("stalling", ENDLESS, indirect=True)
def test_error_a_server_that_stalls(
    stalling: str, what: str, start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_hub({})
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", stalling)
    for name, seconds in {"HEAD_SECONDS": 0.3, "RATE_SECONDS": 0.3}.items():
        monkeypatch.setattr(transport, name, seconds)
    begun = time.monotonic()
    with pytest.raises(VitConvertError) as caught:
        locate("org/vit" if what == "a repository" else f"{stalling}/vit.npz")
    assert time.monotonic() - begun < 8
    assert caught.value.hint


def test_a_slow_line_that_goes_on_is_waited_for(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is waited counts: not the time in which whoever reads does something else."""
    monkeypatch.setattr(transport, "RATE_SECONDS", 0.1)
    monkeypatch.setattr(transport, "LEAST_RATE", 1e6)
    hub = start_hub({})
    hub.files = {"vit.npz": bytes(3_000_000)}
    plain = transport.Patience.read

    def lazy(self, *arguments):
        time.sleep(0.005)
        return plain(self, *arguments)

    monkeypatch.setattr(transport.Patience, "read", lazy)
    assert locate(f"{hub.endpoint}/files/vit.npz").weights.stat().st_size == 3_000_000
