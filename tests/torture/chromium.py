"""A real Chromium, headless, driven through its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-port=0",
    "--hide-scrollbars",
)


def find_chromium() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium here (on Debian: apt-get install chromium)")
    return found


def find_axe(folder: Path) -> str:
    """Return the source of axe-core, from the npm registry."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here, which brings axe-core")
    command = [
        npm,
        "install",
        "--silent",
        "--no-audit",
        "--no-fund",
        "--prefix",
        str(folder),
        "axe-core@4",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    file = folder / "node_modules" / "axe-core" / "axe.min.js"
    if done.returncode or not file.exists():
        pytest.skip(f"axe-core cannot be installed: {done.stderr[:200]}")
    return file.read_text("utf-8")


class Tab:
    """A page with its own cookies."""

    def __init__(self, send: Callable[..., Any], session: str) -> None:
        self._send = send
        self._session = session
        self.complaints: list[str] = []
        """The page's console output and script errors."""
        self.sizes: dict[str, int] = {}
        self._loaded: set[str] = set()
        """Documents that have finished loading."""
        self._last = ""
        self._news = asyncio.Event()

    async def call(self, method: str, **how: Any) -> Any:
        return await self._send(method, self._session, **how)

    def hear(self, method: str, told: dict[str, Any]) -> None:
        if method == "Page.lifecycleEvent" and told["name"] == "load":
            self._last = told["loaderId"]
            self._loaded.add(self._last)
            self._news.set()
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and told["entry"]["level"] in (
            "error",
            "warning",
        ):
            self.complaints.append(told["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and told["type"] in (
            "error",
            "warning",
        ):
            self.complaints.append(str(told["args"]))

    async def look(self, width: int, *, dark: bool = False) -> None:
        """Set the width of the window, and light or dark colours."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        await self.call("Emulation.setEmulatedMedia", features=scheme)

    async def open(self, address: str) -> None:
        loader = (await self.call("Page.navigate", url=address))["loaderId"]
        await self._wait(lambda: loader in self._loaded)

    async def run(self, script: str) -> Any:
        """Return the value of an expression; await a promise."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, json.dumps(answer)[:800]
        return answer["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true, also across a navigation."""
        async with asyncio.timeout(60):
            while True:
                answer = await self._send(
                    "Runtime.evaluate",
                    self._session,
                    raw=True,
                    expression=script,
                    returnByValue=True,
                )
                if answer.get("result", {}).get("result", {}).get("value"):
                    return
                await asyncio.sleep(0.05)

    async def submit(self, selector: str) -> None:
        """Press a form's button, and wait for the page that follows."""
        before = self._last
        await self.run(f"document.querySelector({json.dumps(selector)}).requestSubmit()")
        await self._wait(lambda: self._last != before)

    async def _wait(self, is_there: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not is_there():
                self._news.clear()
                await self._news.wait()

    async def picture(self, file: Path) -> None:
        drawn = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=False)
        file.write_bytes(base64.b64decode(drawn["data"]))

    async def key(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                text=key if kind == "keyDown" else "",
            )


class Chromium:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._tabs: dict[str, Tab] = {}

    async def listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                waiting = self._answers.pop(told["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(told)
            elif told.get("sessionId") in self._tabs:
                self._tabs[told["sessionId"]].hear(told["method"], told["params"])

    async def send(
        self, method: str, session: str | None = None, *, raw: bool = False, **how: Any
    ) -> Any:
        """Return the result of a command. `raw`: return the whole answer, which may be an error."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": how} | (
            {"sessionId": session} if session else {}
        )
        await self._socket.send_json(message)
        told = await asyncio.wait_for(answer, 90)
        if raw:
            return told
        assert "error" not in told, told
        return told["result"]

    async def tab(self) -> Tab:
        context = (await self.send("Target.createBrowserContext"))["browserContextId"]
        target = (
            await self.send("Target.createTarget", url="about:blank", browserContextId=context)
        )["targetId"]
        session = (await self.send("Target.attachToTarget", targetId=target, flatten=True))[
            "sessionId"
        ]
        tab = self._tabs[session] = Tab(self.send, session)
        for domain in ("Page", "Runtime", "Log"):
            await tab.call(f"{domain}.enable")
        await tab.call("Page.setLifecycleEventsEnabled", enabled=True)
        # Dialogs are answered with yes, as a person does who means it.
        await tab.call(
            "Page.addScriptToEvaluateOnNewDocument",
            source="window.confirm = () => true;",
        )
        return tab


@asynccontextmanager
async def chromium() -> AsyncIterator[Chromium]:
    """Run a browser with an empty profile until the block ends."""
    program = find_chromium()
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            program,
            *FLAGS,
            f"--user-data-dir={profile}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            address = await asyncio.wait_for(_devtools(process), 60)
            async with (
                aiohttp.ClientSession() as http,
                http.ws_connect(address, max_msg_size=0) as socket,
            ):
                browser = Chromium(socket)
                listening = asyncio.create_task(browser.listen())
                try:
                    yield browser
                finally:
                    listening.cancel()
        finally:
            process.terminate()
            await process.wait()


async def _devtools(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    async for line in process.stderr:
        if line.startswith(b"DevTools listening on "):
            return line.decode().removeprefix("DevTools listening on ").strip()
    raise AssertionError("Chromium ended before it listened")
