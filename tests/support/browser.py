"""A page as a browser has it: headless Chromium, asked over its DevTools protocol.

Tests that use it are skipped where neither Chromium nor Chrome is installed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from tests.support.programs import program

_PATIENCE = 120.0  # seconds for anything, on a busy machine


@contextmanager
def browser() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(prefix="any2ds-chromium-", ignore_cleanup_errors=True) as profile:
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
        options += ["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
        process = subprocess.Popen(
            [program("chromium"), *options, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            with _Runner() as runner, Browser(runner, _address(process)) as found:
                yield found
        finally:
            process.kill()
            process.communicate()


def _address(process: subprocess.Popen[bytes]) -> str:
    """Where it listens, which it says on standard error."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(b"DevTools listening on "):
            return line.split()[-1].decode()
    raise RuntimeError(f"Chromium ended with {process.wait()} before it listened")


class _Runner:
    """What `asyncio.Runner` is, which Python 3.10 has not got."""

    def __enter__(self) -> _Runner:
        self._loop = asyncio.new_event_loop()
        return self

    def run(self, what: Any) -> Any:
        return self._loop.run_until_complete(what)

    def __exit__(self, *error: object) -> None:
        self._loop.close()


class Browser:
    """One page at a time. `requests` are the URLs that it asked for, `complaints` what its console said."""

    def __init__(self, runner: Any, address: str) -> None:
        self._runner, self._address = runner, address
        self._numbers = itertools.count(1)
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def __enter__(self) -> Browser:
        self._run(self._connect())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(Exception):
            self._run(self._session.close())

    def show(self, path: Path, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Open a file in a window of so many pixels."""
        self.requests.clear()
        self.complaints.clear()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme, media="")
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self._run(self._loaded(path.resolve().as_uri()))

    def value(self, expression: str) -> Any:
        """Of JavaScript, as JSON has it. Raises RuntimeError for what throws."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def picture(self) -> bytes:
        """The whole page, as PNG."""
        found = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def pdf(self) -> bytes:
        """As it is printed."""
        found = self.ask("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
        return base64.b64decode(found["data"])

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What DevTools answers. Raises RuntimeError if that is an error."""
        found: dict[str, Any] = self._run(self._ask(method, parameters))
        return found

    def _run(self, what: Any) -> Any:
        async def patiently() -> Any:
            return await asyncio.wait_for(what, _PATIENCE)

        return self._runner.run(patiently())

    async def _connect(self) -> None:
        self._session = aiohttp.ClientSession()
        base = self._address.replace("ws://", "http://").partition("/devtools")[0]
        async with self._session.get(f"{base}/json/list") as answer:
            pages = [page for page in await answer.json() if page["type"] == "page"]
        self._socket = await self._session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self._ask(f"{domain}.enable", {})

    async def _loaded(self, url: str) -> None:
        await self._ask("Page.navigate", {"url": url})
        while (await self._next()).get("method") != "Page.loadEventFired":
            pass

    async def _ask(self, method: str, parameters: dict[str, Any]) -> Any:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while (said := await self._next()).get("id") != number:
            pass
        if "error" in said:
            raise RuntimeError(f"{method}: {said['error']}")
        return said["result"]

    async def _next(self) -> dict[str, Any]:
        """What the browser says next; what happens on the page is noted down on the way."""
        said: dict[str, Any] = await self._socket.receive_json()
        parameters = said.get("params", {})
        if said.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif said.get("method") == "Log.entryAdded":
            self.complaints.append(f"{parameters['entry']['level']}: {parameters['entry']['text']}")
        elif said.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(str(parameters["args"]))
        elif said.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        return said
