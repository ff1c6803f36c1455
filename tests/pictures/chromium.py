"""A headless Chromium that is driven as by a person: it moves a mouse, presses keys, and looks.

The DevTools protocol over a pair of pipes (`--remote-debugging-pipe`): messages are JSON and end
with a zero byte, https://chromedevtools.github.io/devtools-protocol/. So no package is needed.
"""

import base64
import io
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from PIL import Image

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
_SAFE = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
_SECONDS = 30.0


class Browser:
    """One page of Chromium; each action returns when the page has shown what it does."""

    def __init__(self, profile: Path, *, width: int = 1100, height: int = 1900) -> None:
        assert CHROMIUM is not None
        theirs, self._to = os.pipe()
        self._from, ours = os.pipe()
        # Chromium reads from descriptor 3 and writes to 4.
        pipes = f'exec "$@" 3<&{theirs} 4>&{ours} {theirs}<&- {ours}>&-'
        rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
        alone = (rules, f"--user-data-dir={profile}")
        window = (f"--window-size={width},{height}", "--hide-scrollbars")
        command = [CHROMIUM, *_SAFE, *alone, *window, "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            [shutil.which("bash") or "bash", "-c", pipes, "bash", *command],
            pass_fds=(theirs, ours),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(ours)
        self._buffer, self._count, self._session = b"", 0, ""
        self.requests: list[str] = []  # of what the page has asked for
        self.complaints: list[str] = []  # errors of scripts, and refusals
        (target,) = (
            found
            for found in self._call("Target.getTargets")["targetInfos"]
            if found["type"] == "page"
        )
        attached = {"targetId": target["targetId"], "flatten": True}
        self._session = self._call("Target.attachToTarget", **attached)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def open(self, file: Path) -> None:
        """Show a page, and wait until its script has drawn everything."""
        self.go(file.as_uri())
        self.wait("document.body && document.body.dataset.ready === 'yes'")

    def go(self, address: str) -> None:
        """Show a page."""
        self.requests, self.complaints = [], []
        self._call("Page.navigate", url=address)

    def wait(self, expression: str, seconds: float = _SECONDS) -> None:
        """Wait until an expression of JavaScript is true."""
        end = time.monotonic() + seconds
        while not self.run(expression):
            assert time.monotonic() < end, self.complaints
            time.sleep(0.02)

    def choose(self, selector: str, *files: Path) -> None:
        """Choose files in the field for them."""
        found = self._call("Runtime.evaluate", expression=f"document.querySelector('{selector}')")
        field = found["result"]["objectId"]
        self._call("DOM.setFileInputFiles", files=[*map(os.fspath, files)], objectId=field)

    def drop(self, x: float, y: float, *files: Path) -> None:
        """Let files, or folders, fall there."""
        data = {"items": [], "files": [*map(os.fspath, files)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self._call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def run(self, expression: str) -> Any:
        """The value of an expression of JavaScript; promises are awaited."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        found = self._call("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def move(self, x: float, y: float) -> None:
        """Point somewhere."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Press the left button there, and let go."""
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            button = {"button": "left", "clickCount": 1}
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def press(self, key: str, *, shift: bool = False, control: bool = False) -> None:
        """Press a key, by its name in JavaScript, and let go."""
        for kind in ("rawKeyDown", "keyUp"):
            modifiers = 8 * shift + 2 * control
            self._call("Input.dispatchKeyEvent", type=kind, key=key, modifiers=modifiers)

    def look(self) -> Image.Image:
        """What is on the screen."""
        found = base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])
        return Image.open(io.BytesIO(found)).convert("RGB")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(method)
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        match event:
            case {"method": "Network.requestWillBeSent", "params": {"request": {"url": url}}}:
                self.requests.append(url)
            case {"method": "Runtime.exceptionThrown" | "Log.entryAdded", "params": told}:
                self.complaints.append(str(told))

    def _next(self, method: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], _SECONDS)
            assert ready, f"Chromium does not answer {method}"
            self._buffer += os.read(self._from, 2**20)
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found
