"""The commands on a thread that a client of `everthread serve` made, the gateway killed in between."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread.core.messages import text_of
from everthread.lab.provider import ServedModel
from everthread.store.store import Store
from tests.chat_messages import calls_message, function_call, result_message
from tests.cli.conftest import Command, RunOnStore, environment
from tests.cli.provider_thread import MODEL, configured_provider

pytestmark = pytest.mark.timeout(240)
LINE = "the ledger of the northern branch was compared with its receipts. "
RUN: Any = {
    "type": "function",
    "function": {
        "name": "run",
        "parameters": {"type": "object"},
    },
}


@contextmanager
def killed_gateway(home: Path, provider: str) -> Iterator[str]:
    """Yield the address of `everthread serve` in this home; kill it at the end."""
    options = ("--port", "0", "--upstream", f"lab={provider}", "--json")
    with subprocess.Popen(
        [sys.executable, "-m", "everthread", "serve", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(home),
    ) as process:
        assert process.stdout
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            os.kill(process.pid, signal.SIGKILL)


class Client:
    """A chat client that keeps its history."""

    def __init__(self) -> None:
        call = function_call("call_1", "run", '{"command": "pytest -q tests"}')
        result = "3 failed, 10 passed\nexit code 1"
        self.messages: list[Any] = [
            {"role": "user", "content": "Run the tests."},
            calls_message(call),
            result_message("call_1", result),
        ]
        self.headers: httpx2.Headers | None = None

    def ask(self, url: str, text: str) -> str:
        """Return how many compactions the prompt went through."""
        self.messages.append({"role": "user", "content": text})
        response = httpx2.post(
            f"{url}/v1/chat/completions",
            json={
                "model": MODEL,
                "messages": self.messages,
                "tools": [RUN],
            },
            headers={"authorization": "Bearer k"},
            timeout=120,
        )
        assert response.status_code == 200, response.text
        self.messages.append(response.json()["choices"][0]["message"])
        self.headers = response.headers
        return str(response.headers["x-everthread-compactions"])

    def run_on_store(self, url: str) -> None:
        """Send messages until the first compaction."""
        for number in range(40):
            if self.ask(url, f"Ledger {number}: {LINE * 60}") != "0":
                return
        raise AssertionError("nothing was compacted")


def test_commands_work_on_a_proxied_thread(
    everthread: Command, run_on_store: RunOnStore, home: Path
) -> None:
    models = [ServedModel(MODEL, 12_000, shows="max_model_len")]
    client = Client()
    with configured_provider(
        home, lambda _: "Noted.", models, config="compression: {background: false}\n"
    ) as provider:
        with killed_gateway(home, provider.url) as url:
            client.run_on_store(url)
            assert client.headers
            thread = client.headers["x-everthread-thread"]
        state = everthread.json(f"sessions state {thread}")
        assert [one["command"] for one in state["commands"]] == ["pytest -q tests"]
        output = everthread.succeeds(
            f"chat --resume {thread}", stdin=b"/compress --preview\n/branch Aside\n"
        )
        assert "would be" in output
        assert "A branch: " in output
        report = everthread.json("sessions list")
        assert {one["title"] for one in report["sessions"]} >= {"Aside"}
        with killed_gateway(home, provider.url) as url:
            assert client.ask(url, "And now?") == "1", "the thread is unchanged"
            assert client.headers["x-everthread-thread"] == thread
        everthread.succeeds(f"sessions undo {thread} --json")
        with killed_gateway(home, provider.url) as url:
            assert client.ask(url, "And then?") == "0"
            assert client.headers["x-everthread-thread"] == thread
            assert len(provider.log[-1].body["messages"]) == len(client.messages) - 1
            texts = stored_texts(run_on_store, thread, len(client.messages))
        assert texts == [text_of(message) for message in client.messages], (
            "the next request stores what the kill lost, once"
        )


def stored_texts(run_on_store: RunOnStore, thread: str, count: int) -> list[str]:
    """Return the texts of a thread once the store has this many messages of it."""

    async def read(store: Store) -> list[str]:
        while len(messages := await store.load_history(thread)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return [text_of(message.body) for message in messages]

    texts: list[str] = run_on_store(read)
    return texts
