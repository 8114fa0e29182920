"""The simulated provider in a thread of its own, so that a test can wait for a process that calls it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from everthread.core.types import Reply
from everthread.lab.provider import Provider, ServedModel
from tests.chat_messages import calls_reply, function_call

MODEL = "gpt-4o"


@contextmanager
def provider_in_thread(script: Any = None, models: Any = None) -> Iterator[Provider]:
    """Start a provider. At the end, raise the error that its script raised, if any."""
    made: list[Provider] = []
    failures: list[BaseException] = []
    ready = threading.Event()
    stop = list[Callable[[], object]]()

    async def serve() -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(done.set))
        async with Provider(
            models or [ServedModel(MODEL, 64_000, shows="max_model_len")], script
        ) as served:
            made.append(served)
            ready.set()
            await done.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(20)
    try:
        yield made[0]
    finally:
        stop[0]()
        thread.join()
    if failures:
        raise failures[0]


def configure(home: Path, text: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(text, "utf-8")


def configure_provider(
    home: Path, served: Provider, model: str = MODEL, extra: str = ""
) -> None:
    """Configure the home for this provider, without a key."""
    configure(
        home, f"model: {{default: {model}, base_url: '{served.url}/v1'}}\n{extra}"
    )


def call_reply(*wanted: tuple[str, dict[str, Any]], say: str | None = None) -> Reply:
    """Return an answer that calls tools."""
    made: Any = [
        function_call(f"call_{at}", name, json.dumps(arguments))
        for at, (name, arguments) in enumerate(wanted)
    ]
    return calls_reply(*made, text=say)
