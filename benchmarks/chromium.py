"""A browser that is only told what to do: nothing listens to what it fetches, which would take its processor's time.

Speaks the Chrome DevTools Protocol (https://chromedevtools.github.io/devtools-protocol/). The browser tests' Playwright
hears of every request and message of a page: on two cores, half a second of each first visit.
"""

from __future__ import annotations

import base64
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from scripts.ensure_browser import find_browser
from tests.serving import free_port

SIZE = {"width": 1280, "height": 720}
PATIENCE_SECONDS = 30.0
SETTLING_SECONDS = 2.0  # in which a browser does what it does at its start
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)


class Browser:
    """A connection to a running browser."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._asked = 0

    def ask(self, method: str, session: str | None = None, **parameters: object) -> dict[str, Any]:
        """Call a method of the protocol and return its result.

        Raises:
            RuntimeError: the browser refuses it.
        """
        self._asked += 1
        message = {"id": self._asked, "method": method, "params": parameters}
        self._connection.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while True:
            answer = json.loads(self._connection.recv(timeout=PATIENCE_SECONDS))
            if answer.get("id") == self._asked:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    @contextmanager
    def tab(self, script: str) -> Iterator[Tab]:
        """Open a visitor's first tab, with a cache of its own; ``script`` runs at the start of its pages."""
        context = self.ask("Target.createBrowserContext")["browserContextId"]
        target = self.ask("Target.createTarget", url="about:blank", browserContextId=context, **SIZE)["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable", session)
        self.ask("Page.addScriptToEvaluateOnNewDocument", session, source=script)
        yield Tab(self, session)
        self.ask("Target.disposeBrowserContext", browserContextId=context)


class Tab:
    """A page that can be opened, clicked and asked."""

    def __init__(self, owner: Browser, session: str) -> None:
        self._browser = owner
        self._session = session

    def open(self, url: str) -> None:
        """Begin to load ``url``."""
        self._browser.ask("Page.navigate", self._session, url=url)

    def value(self, expression: str) -> Any:
        """Return what a JavaScript expression, or the promise that it is, comes to.

        Raises:
            RuntimeError: it throws.
        """
        parameters = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        answer = self._browser.ask("Runtime.evaluate", self._session, **parameters)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def wait_for(self, expression: str, patience_seconds: float = PATIENCE_SECONDS) -> Any:
        """Return the value of ``expression`` once it is something.

        Raises:
            TimeoutError: it stays nothing.
        """
        deadline = time.monotonic() + patience_seconds
        while time.monotonic() < deadline:
            if found := self.value(expression):
                return found
            time.sleep(0.1)
        raise TimeoutError(f"{expression} came to nothing in {patience_seconds:g} s.")

    def screenshot(self, path: Path) -> None:
        """Write what is in sight now to ``path``, a PNG file."""
        answer = self._browser.ask("Page.captureScreenshot", self._session)
        path.write_bytes(base64.b64decode(answer["data"]))

    def click(self, element: str) -> None:
        """Click on the middle of ``element``, an expression, as a mouse does."""
        script = f"""(() => {{
            const element = {element};
            element.scrollIntoViewIfNeeded();
            const box = element.getBoundingClientRect();
            const [top, bottom] = [Math.max(box.top, 0), Math.min(box.bottom, innerHeight)];
            return [box.x + box.width / 2, (top + bottom) / 2];
        }})()"""
        x, y = self.value(script)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._browser.ask(
                "Input.dispatchMouseEvent", self._session, type=kind, x=x, y=y, button="left", clickCount=1
            )


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium with a new ``profile``, and end it after the body.

    Raises:
        RuntimeError: there is none, or it does not start.
    """
    path = find_browser()
    if path is None:
        raise RuntimeError("No Chrome or Chromium was found: install Debian's package chromium.")
    port = free_port()
    command = [path, *_FLAGS, f"--user-data-dir={profile}", f"--remote-debugging-port={port}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with connect(_address(port), max_size=None) as connection:
            time.sleep(SETTLING_SECONDS)
            yield Browser(connection)
    finally:
        process.terminate()
        process.wait()


def _address(port: int) -> str:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/version", timeout=1) as answer:
                return str(json.load(answer)["webSocketDebuggerUrl"])
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"Chromium did not start in {PATIENCE_SECONDS:g} s.")
