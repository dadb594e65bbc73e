"""A headless Chromium for tests, driven over its own pipe: no driver and no package is needed."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.procs import DEADLINE_S

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NEEDED = "no Chromium is installed (on Debian: apt-get install chromium)"


class Browser:
    """One page of a browser, over the DevTools protocol.

    Attributes
    ----------
    complaints : list of str
        What the page wrote to the console as an error or warning, threw, or could not load.
    """

    def __init__(self, process: subprocess.Popen[bytes], to: int, of: int):
        self._process, self._to, self._of = process, to, of
        self._numbers = itertools.count(1)
        self._unread = b""
        self._session: str | None = None
        self.complaints: list[str] = []

    def begin(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol; what the page says meanwhile is taken down."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + DEADLINE_S
        while True:
            answer = self._next(end, method)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self._listen(answer)

    def _next(self, end: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._unread:
            left = max(end - time.monotonic(), 0.0)
            ready, _, _ = select.select([self._of], [], [], left)
            more = os.read(self._of, 1 << 20) if ready else b""
            assert more, f"no answer of the browser to {what}, status {self._process.poll()}"
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(line))

    def _listen(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(params["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(params["entry"]["text"])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is on the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true on the page, and return it."""
        end = time.monotonic() + DEADLINE_S
        while not (found := self.value(expression)):
            assert time.monotonic() < end, f"never true: {expression}\n{self.complaints}"
            select.select([self._of], [], [], 0.05)
        return found

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def prefer(self, theme: str) -> None:
        """The user prefers ``light`` or ``dark``."""
        feature = {"name": "prefers-color-scheme", "value": theme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self, path: Path) -> bytes:
        """A picture of the whole page, also written to ``path``."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        content = base64.b64decode(shot["data"])
        path.write_bytes(content)
        return content


@contextmanager
def chromium(folder: Path, width: int = 1280, height: int = 900) -> Iterator[Browser]:
    """A browser of its own, with its files in ``folder``; skips the test where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(NEEDED)
    (its_read, to), (of, its_write) = os.pipe(), os.pipe()
    places = {3: os.dup(its_read), 4: os.dup(its_write)}

    def place() -> None:
        # The browser reads its descriptor 3 and writes 4.
        high = {number: os.dup2(old, 100 + number) for number, old in places.items()}
        for number, old in high.items():
            os.dup2(old, number, inheritable=True)

    options = f"--headless=new --no-sandbox --disable-gpu --window-size={width},{height}"
    more = "--remote-debugging-pipe --no-first-run --disable-background-networking --mute-audio"
    with open(folder / "chromium.log", "wb") as log:
        process = subprocess.Popen(
            [program, *options.split(), *more.split(), f"--user-data-dir={folder / 'profile'}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=place,
            close_fds=False,
        )
    for number in (its_read, its_write, *places.values()):
        os.close(number)
    browser = Browser(process, to, of)
    try:
        browser.begin()
        yield browser
    finally:
        process.kill()
        process.wait()
        os.close(to)
        os.close(of)
