"""Any client gets an endless conversation by changing one URL: the official OpenAI SDK through the gateway.

Upstream is a small real model on this machine, with a window of 2,048 tokens. The client knows nothing of Everthread:
it sends its whole history each time. Offline once the model's file is there, no key.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from openai import AsyncOpenAI
from starlette.requests import Request as Received
from starlette.responses import Response

from everthread.config import home_directory, parse_config
from everthread.errors import ModelError
from everthread.factory.gateways import open_gateway
from everthread.gateway.loop_server import LoopServer, listen
from everthread.gateway.router import Upstream
from everthread.providers.local import (
    SMOLLM2,
    LocalModel,
    download_model,
    find_model_file,
)

WINDOW = 2_048
TURNS = 16
FACT = "The release is called Blue Heron and its build number is BH-7741."
QUESTION = "What is the release called, and what is its build number?"


def say(text: str = "") -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@dataclass
class RecordingProxy:
    """A proxy between the gateway and the model that records the requests."""

    address: str
    key: str
    bodies: list[dict[str, Any]] = field(default_factory=list)
    refused: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        received = Received(scope, receive)
        body = await received.body()
        if received.method == "POST":
            self.bodies.append(json.loads(body))
        async with httpx2.AsyncClient(timeout=300) as client:
            answer = await client.request(
                received.method,
                self.address + received.url.path,
                content=body,
                headers={
                    "authorization": f"Bearer {self.key}",
                    "content-type": "application/json",
                },
            )
        self.refused += answer.status_code >= 400
        headers = {"content-type": answer.headers.get("content-type", "application/json")}
        await Response(answer.content, answer.status_code, headers)(scope, receive, send)


@asynccontextmanager
async def serve_recorded_model(path: Path) -> AsyncIterator[tuple[RecordingProxy, str]]:
    """Serve the local model behind a recording proxy."""
    model = LocalModel(path, name=SMOLLM2.name, window=WINDOW)
    listener = listen(0)
    watch = RecordingProxy(*await model.serve())
    server = LoopServer(watch, listener)
    await server.start()
    try:
        yield watch, f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await server.stop()
        await model.aclose()


async def talk(client: AsyncOpenAI) -> list[Any]:
    """Talk until the window was passed several times; return the whole history."""
    history: list[Any] = [
        {
            "role": "system",
            "content": "You help with a release. Answer in one short sentence.",
        }
    ]
    compactions = 0
    for turn in range(TURNS):
        history.append({"role": "user", "content": FACT if turn == 0 else _note(turn)})
        raw = await client.chat.completions.with_raw_response.create(
            model=SMOLLM2.name, messages=history, max_tokens=12, temperature=0
        )
        answer = raw.parse()
        history.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
        before, after = raw.headers["x-everthread-tokens"].split("/")
        count = int(raw.headers["x-everthread-compactions"])
        details = answer.usage.prompt_tokens_details if answer.usage else None
        cached = details.cached_tokens or 0 if details else 0
        mark = f"  <- compaction {count}" if count > compactions else ""
        compactions = count
        say(
            f"  turn {turn + 1:2}: the client sent {int(before):5,} tokens, {int(after):5,} reached the model, "
            f"{cached:5,} of them from its cache{mark}"
        )
    if compactions < 2:
        raise AssertionError(f"the conversation passed the window {compactions} times only")
    return history


def _note(turn: int) -> str:
    tests = ", ".join(f"test_{turn}_{number} took {number * 7 + turn} ms" for number in range(12))
    return f"Note {turn}: module {turn} has {turn * 37} tests and {turn % 4} of them fail: {tests}. Please confirm."


async def main() -> None:
    path = find_model_file(None, home_directory())
    logging.getLogger("everthread").setLevel(logging.ERROR)  # it has no price
    config = parse_config(
        f"model: {{default: {SMOLLM2.name}, context_length: {WINDOW}, max_tokens: 64}}\n"
        "compression: {protect_last_n: 4, background: false}"
    )
    async with serve_recorded_model(path) as (watch, address):
        upstream = Upstream("local", address)
        async with open_gateway(config, port=0, upstreams=[upstream]) as gateway:
            say(
                f"The gateway listens on {gateway.url}, in front of {SMOLLM2.name} with {WINDOW:,} tokens of context."
            )
            say(f"Only this differs in the client: OpenAI(base_url='{gateway.url}/v1')\n")
            client = AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none-needed", max_retries=0)
            history = await talk(client)
            history.append({"role": "user", "content": QUESTION})
            answer = await client.chat.completions.create(
                model=SMOLLM2.name, messages=history, max_tokens=32, temperature=0
            )
            await client.close()
            sent = json.dumps(watch.bodies[-1]["messages"])
            if "BH-7741" not in sent or "Blue Heron" not in sent:
                raise AssertionError(
                    "what was said before the first compaction is not in the request"
                )
            say(f"\n  asked: {QUESTION}")
            say(
                "  in the request that reached the model: both, word for word, though that turn was compacted away"
            )
            say(
                f"  the small model's answer, unjudged: {(answer.choices[0].message.content or '').strip()}"
            )
            say(f"\n{len(watch.bodies)} requests reached the model, {watch.refused} were refused.")


def fetch_model() -> str:
    """Fetch the local model; return why it cannot be used, or an empty text."""
    try:
        download_model(home_directory(), report=say)
    except ModelError as error:
        return str(error)
    try:
        import xllamacpp  # type: ignore[import-untyped] # noqa: F401, PLC0415 - whether it is there is the question
    except ImportError as error:
        return f"the extra `local` has no wheel for this platform ({error})"
    return ""


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ.setdefault("EVERTHREAD_HOME", home)
        missing = fetch_model()
        if missing:
            say(f"This part cannot run here: {missing}")
        else:
            asyncio.run(main())
