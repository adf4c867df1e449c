"""A real browser without a window: Chromium, spoken to by its own protocol over a pair of pipes."""

from __future__ import annotations

import base64
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60.0
_LAUNCH = """import fcntl, os, sys
to, back = (fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3])
os.dup2(to, 3), os.dup2(back, 4)
os.execvp(sys.argv[3], sys.argv[3:])"""
"""The browser reads its third file and writes its fourth."""


class Browser:
    """One page of a browser. What it complains of (errors, what a policy forbids) is in `complaints`."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int) -> None:
        self._process, self._to, self._back = process, to, back
        self._number, self._rest = 0, b""
        self._events: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = self._ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> Any:
        """Return what the browser answers to a command of its protocol."""
        return self._ask(method, session=self._session, **parameters)

    def window(
        self, width: int, height: int, *, dark: bool = False, scale: float = 1, mobile: bool = False
    ) -> None:
        """Make the page so large, on a light or a dark screen."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=mobile,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def go(self, url: str) -> None:
        """Open an address, and wait until it is there."""
        self._events.clear()
        self.ask("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired")

    def wait_for(self, event: str, seconds: float = SECONDS) -> dict[str, Any]:
        """Return the next event of a kind."""
        deadline = time.monotonic() + seconds
        while True:
            for at, each in enumerate(self._events):
                if each["method"] == event:
                    del self._events[: at + 1]
                    found: dict[str, Any] = each["params"]
                    return found
            self._receive(deadline)

    def shows(self, *texts: str, failing: tuple[str, ...] = ()) -> None:
        """Wait until the page has these texts, and changes in nothing but numbers: a page that loads its data after
        itself. A text of `failing` is an error."""
        deadline, before = time.monotonic() + SECONDS, ""
        while True:
            text = str(self.value("document.body.innerText"))
            missing = [each for each in texts if each not in text]
            found = [each for each in failing if each in text]
            if not missing and re.sub(r"\d", "", text) == before:
                assert not found, text
                return
            assert time.monotonic() < deadline, (
                f"not on the page: {missing or 'an end of its changes'}: {text}"
            )
            before = re.sub(r"\d", "", text)
            time.sleep(0.7)

    def value(self, expression: str) -> Any:
        """Return what an expression in the page is, awaited where it is a promise."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, path: Path, height: int | None = None) -> None:
        """Take a picture of the page, whole or down to a height."""
        metrics = self.ask("Page.getLayoutMetrics")
        size = metrics["cssContentSize"]
        clip = {
            "x": 0,
            "y": 0,
            "scale": 1,
            "width": size["width"],
            "height": min(height or 10_000, size["height"]),
        }
        # Chromium lays the page out again for that, and lists that draw only what is visible are empty then.
        beyond = clip["height"] > metrics["cssLayoutViewport"]["clientHeight"]
        taken = self.ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=beyond)
        path.write_bytes(base64.b64decode(taken["data"]))

    def overflow(self) -> int:
        """Return by how much the page is wider than the window: 0 on a page that nobody has to push sideways."""
        return int(self.value("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def _ask(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            left = deadline - time.monotonic()
            assert left > 0, "the browser does not answer"
            if select.select([self._back], [], [], left)[0]:
                piece = os.read(self._back, 1 << 20)
                assert piece, "the browser has ended"
                self._rest += piece
        one, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(one)
        if "method" in message:
            self._events.append(message)
            if message["method"] == "Log.entryAdded":
                self.complaints.append(message["params"]["entry"]["text"])
            elif message["method"] == "Runtime.exceptionThrown":
                self.complaints.append(str(message["params"]["exceptionDetails"]))
        return message


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium, and end it."""
    command = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert command is not None, "there is no Chromium: install it (Debian: apt install chromium)"
    read_command, to = os.pipe()
    back, write_answer = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", _LAUNCH, str(read_command), str(write_answer), command),
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
                *("--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={profile}"),
            ],
            pass_fds=(read_command, write_answer),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_command)
        os.close(write_answer)
        try:
            yield Browser(process, to, back)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            os.close(to)
            os.close(back)
