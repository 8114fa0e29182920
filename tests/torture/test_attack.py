"""Attack three gateways for ten minutes, with a faulty upstream and kills, while honest clients use them.

Each honest client compares every byte that it gets with the upstream's answer to its request.

"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from everthread import open_store
from everthread.core.types import Api
from tests.gateway.odd_requests import ANSWER_ODDITIES, HEADER_ODDITIES, JSON_ODDITIES
from tests.gateway.raw_http import (
    RawMessage,
    connect,
    encode_chunk,
    open_raw_upstream,
    post_request,
    read_message,
    response_head,
)
from tests.torture.fleet import Fleet

pytestmark = pytest.mark.timeout(3_600)
SEED = int(os.environ.get("EVERTHREAD_SEED", "7"))
SECONDS = 60 * float(os.environ.get("EVERTHREAD_MINUTES", "10"))
HONEST = 9
ATTACKERS = 2
PATHS: dict[Api, str] = {
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "anthropic": "/v1/messages",
}
NAMES: dict[Api, str] = {
    "openai_chat": "gpt-4o",
    "openai_responses": "gpt-4o",
    "anthropic": "claude-sonnet-4-5",
}
FILLER = "the ledger of the northern branch was settled and every entry was compared twice with its receipt. "
FAULTS = ("500", "429", "reset", "short", "silent", "odd")
COMPLETE = ("", "500", "429")
WAITS = b": everthread is waiting\n\n"


def answer_body(api: Api, text: str, *, stream: bool) -> list[bytes]:
    """Return an answer in the protocol, in pieces."""
    usage = {"prompt_tokens": 50, "completion_tokens": 9, "total_tokens": 59}
    tokens = {"input_tokens": 50, "output_tokens": 9, "total_tokens": 59}
    if api == "openai_chat" and not stream:
        message = {"role": "assistant", "content": text}
        value: Any = {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": NAMES[api],
            "usage": usage,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
    elif api == "openai_responses" and not stream:
        part = {"type": "output_text", "text": text, "annotations": []}
        item = {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
        value = {
            "id": "r",
            "object": "response",
            "status": "completed",
            "model": NAMES[api],
            "output": [item],
            "usage": tokens,
        }
    elif not stream:
        value = {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": NAMES[api],
            "stop_reason": "end_turn",
            "content": [{"type": "text", "text": text}],
            "usage": {"input_tokens": 50, "output_tokens": 9},
        }
    else:
        return [f"data: {json.dumps(event)}\n\n".encode() for event in chat_events(text, usage)] + [
            b"data: [DONE]\n\n"
        ]
    return [json.dumps(value).encode()]


def chat_events(text: str, usage: Any) -> list[Any]:
    """Return the events of a streamed chat answer."""
    frame = {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": NAMES["openai_chat"],
    }
    words = [
        {"role": "assistant", "content": ""},
        *({"content": f"{word} "} for word in text.split()),
    ]
    events = [
        {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in words
    ]
    ended = {**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return [*events, ended, {**frame, "choices": [], "usage": usage}]


@dataclass
class UpstreamAnswer:
    """The upstream's answer to one request."""

    status: int
    body: bytes
    fault: str


@dataclass
class Upstream:
    """Answer honest requests, some of them with a fault, and all others oddly."""

    chance: random.Random
    given: dict[str, list[UpstreamAnswer]] = field(default_factory=dict)
    odd: int = 0

    async def __call__(self, request: RawMessage, writer: asyncio.StreamWriter) -> None:
        attempt = request.header_values.get("x-attempt", "")
        if not attempt.startswith("honest"):
            self.odd += 1
            writer.write(self.chance.choice(list(ANSWER_ODDITIES.values())))
            if self.chance.random() < 0.5:
                writer.close()
            return
        api: Api = next(api for api, path in PATHS.items() if path.encode() in request.line)
        fault = self.chance.choice(FAULTS) if self.chance.random() < 0.15 else ""
        text = f"{attempt} {hashlib.sha256(request.body).hexdigest()} " * self.chance.randrange(
            1, 30
        )
        stream = b'"stream": true' in request.body
        pieces = answer_body(api, text, stream=stream)
        status = int(fault) if fault.isdigit() else 200
        if fault.isdigit():
            pieces = [json.dumps({"error": {"message": attempt, "type": "server_error"}}).encode()]
            stream = False
        body = b"".join(pieces)
        self.given.setdefault(attempt, []).append(UpstreamAnswer(status, body, fault))
        await self._write(writer, status, pieces, stream=stream, fault=fault)

    async def _write(
        self,
        writer: asyncio.StreamWriter,
        status: int,
        pieces: list[bytes],
        *,
        stream: bool,
        fault: str,
    ) -> None:
        body = b"".join(pieces)
        if fault == "silent":
            await asyncio.sleep(3)
            writer.close()
            return
        if fault == "odd":
            writer.write(
                self.chance.choice(
                    [ANSWER_ODDITIES[name] for name in ("status 999", "no HTTP", "half a line")]
                )
            )
            writer.close()
            return
        kind = b"text/event-stream" if stream else b"application/json"
        length = (
            (b"transfer-encoding", b"chunked") if stream else (b"content-length", b"%d" % len(body))
        )
        writer.write(response_head(status, [(b"content-type", kind), length]))
        if fault in ("reset", "short"):
            half = body[: len(body) // 2]
            writer.write(encode_chunk(half) if stream else half)
            await writer.drain()
            if fault == "reset":
                writer.transport.abort()
            else:
                writer.close()
            return
        if not stream:
            writer.write(body)
            return
        for piece in pieces:
            writer.write(encode_chunk(piece))
        writer.write(b"0\r\n\r\n")


@dataclass
class Client:
    """An honest client: it sends its whole conversation each time, and again until it is answered."""

    number: int
    url: Callable[[], str]
    upstream: Upstream
    history: list[dict[str, str]] = field(default_factory=list)
    attempts: int = 0
    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def api(self) -> Api:
        return list(PATHS)[self.number % 3]

    async def turn(self) -> None:
        said = f"{FILLER * 24}Turn {len(self.history) // 2} of client {self.number}."
        self.history.append({"role": "user", "content": said})
        while (text := await self._attempt()) is None:  # noqa: ASYNC110 - as clients do
            await asyncio.sleep(0.05)
        self.history.append({"role": "assistant", "content": text})

    async def _attempt(self) -> str | None:
        self.attempts += 1
        name = f"honest-{self.number}-{self.attempts}"
        stream = self.api == "openai_chat" and self.number % 2 == 0
        frame: dict[str, Any] = {"model": NAMES[self.api], "max_tokens": 500}
        frame |= {"input" if self.api == "openai_responses" else "messages": self.history}
        if stream:
            frame |= {"stream": True, "stream_options": {"include_usage": True}}
        request = post_request(
            PATHS[self.api], json.dumps(frame).encode(), (b"X-Attempt", name.encode())
        )
        try:
            heard = await self._exchange(request)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            self.failed[type(error).__name__] += 1
            return None
        except ValueError as error:
            # A stream may end in the middle, and says nothing else.
            if "b''" not in str(error):
                raise
            self.failed["cut"] += 1
            return None
        given = self.upstream.given.get(name, [])
        body = heard.body
        # The comment sent to a client that waits for a compaction.
        while stream and body.startswith(WAITS):
            body = body.removeprefix(WAITS)
        exact = [
            one
            for one in given
            if one.fault in COMPLETE and (one.status, one.body) == (heard.status, body)
        ]
        if exact:
            if heard.status == 200:
                self.answered += 1
                return exact[0].body.decode()[:200]
            self.failed[str(heard.status)] += 1
            return None
        ours = heard.status in (429, 502, 503, 504) and "error" in json.loads(heard.body)
        if not ours or (given and all(one.fault in COMPLETE for one in given)):
            self.wrong.append(f"{name}: {heard.status} {heard.body[:200]!r}, given {given!r:.400}")
        self.failed[f"our {heard.status}"] += 1
        return None

    async def _exchange(self, request: bytes) -> RawMessage:
        reader, writer = await connect(self.url())
        try:
            writer.write(request)
            async with asyncio.timeout(120):
                return await read_message(reader)
        finally:
            writer.close()


async def attack(url: Callable[[], str], chance: random.Random, counted: Counter[str]) -> None:
    """Send one odd request of a random kind."""
    kind = chance.choice(("headers", "json", "bytes", "half", "flood", "smuggle"))
    counted[kind] += 1
    requests = [chance.choice(list(HEADER_ODDITIES.values()))]
    if kind == "json":
        requests = [
            post_request(
                chance.choice(list(PATHS.values())),
                chance.choice(list(JSON_ODDITIES.values())),
            )
        ]
    elif kind == "bytes":
        changed = bytearray(chance.choice(list(HEADER_ODDITIES.values())))
        for _ in range(chance.randrange(1, 8)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        requests = [bytes(changed)]
    elif kind == "half":
        whole = post_request(PATHS["openai_chat"], chance.choice(list(JSON_ODDITIES.values())))
        requests = [whole[: chance.randrange(1, len(whole) + 1)]]
    elif kind == "flood":
        requests = requests * 20
    elif kind == "smuggle":
        inner = post_request(
            PATHS["openai_chat"],
            b'{"model": "gpt-4o", "messages": []}',
            (b"X-Attempt", b"smuggled"),
        )
        outer = chance.choice(
            (
                "length and chunks",
                "chunks and length",
                "a shorter length",
                "a space before the colon",
            )
        )
        requests = [HEADER_ODDITIES[outer] + inner]
    await asyncio.gather(
        *(send_and_leave(url(), request, chance.uniform(0.05, 1.5)) for request in requests)
    )


async def send_and_leave(url: str, request: bytes, seconds: float) -> None:
    """Send a request, listen for a while or not at all, and disconnect in some way."""
    try:
        reader, writer = await connect(url)
    except OSError:
        return
    try:
        async with asyncio.timeout(seconds):
            writer.write(request)
            await writer.drain()
            while await reader.read(65_536):
                pass
    except (OSError, TimeoutError):
        pass
    finally:
        (writer.transport.abort if seconds < 0.7 else writer.close)()


async def test_honest_clients_get_their_bytes_whatever_others_do(
    new_url: Callable[..., str], tmp_path: Path
) -> None:
    database = new_url("postgresql")
    home = tmp_path / "home"
    loop = asyncio.get_running_loop()
    home.mkdir()
    chance = random.Random(SEED)  # noqa: S311 - chance, not secrecy
    upstream = Upstream(random.Random(SEED + 1))  # noqa: S311
    async with open_raw_upstream(upstream) as serving:
        (home / "config.yaml").write_text(
            f"store: {{url: '{database}'}}\n"
            "compression: {threshold_tokens: 6400, economics: false}\n"
            "gateway: {recall: false, native: {enabled: false}, limits: {header_seconds: 60, body_seconds: 60, "
            f"answer_seconds: 60}}, upstreams: [{{name: lab, url: '{serving.url}'}}]}}\n"
        )
        fleet = Fleet(home, "--quiet")
        await asyncio.gather(*(fleet.start() for _ in range(3)))

        def somewhere() -> str:
            return chance.choice(fleet.processes)[1]

        end = loop.time() + SECONDS
        clients = [Client(number, somewhere, upstream) for number in range(HONEST)]
        attacks: Counter[str] = Counter()
        kills = 0

        async def talk(client: Client) -> None:
            while loop.time() < end:
                await client.turn()

        async def annoy() -> None:
            while loop.time() < end:
                await attack(somewhere, chance, attacks)
                await asyncio.sleep(chance.uniform(0, 1))

        async def kill() -> int:
            done = 0
            while loop.time() < end:
                await asyncio.sleep(chance.uniform(5, 25))
                await fleet.kill(chance)
                done += 1
            return done

        killing = asyncio.create_task(kill())
        await asyncio.gather(
            *(talk(client) for client in clients), *(annoy() for _ in range(ATTACKERS))
        )
        kills = await killing
        for _, url in fleet.processes:
            assert (await read_health(url)).status == 200
        await fleet.close()
    store = open_store(database)
    try:
        problems = (await store.check()).problems
        made = sum([row.compaction_count for row in await store.list_threads(limit=1_000)])
    finally:
        await store.close()
    failed: Counter[str] = sum((client.failed for client in clients), Counter())
    asked = sum(client.attempts for client in clients)
    answered = sum(client.answered for client in clients)
    wrong = [line for client in clients for line in client.wrong]
    print(
        f"{SECONDS / 60:g} minutes, three gateways, {kills} kills: {asked} honest requests, "
        f"{answered} answered byte for byte, {len(wrong)} wrong; "
        f"not answered: {dict(failed)}; {sum(attacks.values())} attacks {dict(attacks)}, {upstream.odd} odd answers; "
        f"{made} compactions"
    )
    assert wrong == []
    assert problems == ()
    assert min(client.answered for client in clients) > 0
    assert upstream.odd > 0
    assert kills > 0


async def read_health(url: str) -> RawMessage:
    reader, writer = await connect(url)
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        return await read_message(reader)
    finally:
        writer.close()
