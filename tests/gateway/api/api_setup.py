"""A gateway with the native API on loopback, and a model that waits until a test lets it answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from everthread import open_store
from everthread.config import parse_config
from everthread.core.messages import text_of
from everthread.core.types import ModelReply, ModelRequest, StreamDelta
from everthread.factory.threads_api_factory import make_agent_opener, make_preview_function
from everthread.gateway.access.authentication import Caller
from everthread.gateway.api import QueueOptions
from everthread.gateway.api.queue import TurnQueue
from everthread.gateway.api.threads_api import ThreadsApi
from everthread.gateway.app import GatewayApp
from everthread.gateway.proxy import Proxy
from everthread.gateway.router import Routes, Upstream
from everthread.gateway.server import Gateway
from everthread.store.store import Store
from everthread.testing import ScriptedModel
from everthread.wire.sse import SseParser
from tests.gateway.authenticators import FixedKeys
from tests.gateway.raw_http import PassThroughManager

FAST_OPTIONS = QueueOptions(
    max_queued=3,
    lease_seconds=0.6,
    poll_seconds=0.03,
    sweep_seconds=0.1,
)
KEYS = FixedKeys(
    {
        "ann": Caller("acme", "ann", frozenset({"threads"})),
        "amy": Caller("acme", "amy", frozenset({"threads", "tools"})),
        "pat": Caller("acme", "pat", frozenset({"proxy"})),
        "bob": Caller("other", "bob", frozenset({"threads"})),
    }
)
"""A key is a person's name."""


class WaitingModel(ScriptedModel):
    """Answers `re: …` to the last message, or by `answers`. A test can block the answer to a message."""

    def __init__(self, answers: Callable[[ModelRequest], Any] | None = None, **more: Any) -> None:
        super().__init__(
            answers or (lambda request: f"re: {text_of(request.messages[-1])}"), **more
        )
        self.gates: dict[str, asyncio.Event] = {}
        self.started: list[str] = []

    def block_answer_to(self, text: str) -> asyncio.Event:
        """Hold the answer to this message until the returned event is set."""
        return self.gates.setdefault(text, asyncio.Event())

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamDelta | ModelReply, None]:
        question = text_of(request.messages[-1])
        self.started.append(question)
        if question in self.gates:
            yield StreamDelta("text", text="Wait. ")
            await self.gates[question].wait()
        async for piece in super().stream(request):
            yield piece

    async def wait_until_asked(self, text: str) -> None:
        async with asyncio.timeout(10):
            while text not in self.started:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.005)


class EventReader:
    """Reads the events of a stream as they arrive."""

    def __init__(self, response: Any) -> None:
        self.headers = response.headers
        self._response = response
        self._parser = SseParser()
        self.raw = b""

    async def __aiter__(self) -> AsyncIterator[tuple[str, Any]]:
        async for chunk in self._response.aiter_bytes():
            self.raw += chunk
            for event in self._parser.feed(chunk):
                yield event.event or "", json.loads(event.data)

    async def all(self) -> list[tuple[str, Any]]:
        return [event async for event in self]


@dataclass
class ApiGateway:
    """One gateway process."""

    url: str
    store: Store
    model: WaitingModel
    queue: TurnQueue
    clients: dict[str, httpx2.AsyncClient] = field(default_factory=dict)

    def client_of(self, name: str) -> httpx2.AsyncClient:
        """Return the client with this person's key; no name is a client without a key."""
        if name not in self.clients:
            headers = {"authorization": f"Bearer {name}"} if name else {}
            self.clients[name] = httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=120)
        return self.clients[name]

    async def get(self, path: str, name: str = "ann", **params: str) -> Any:
        """Return the JSON of a successful answer."""
        return self._read(await self.client_of(name).get(path, params=params or None))

    async def post(self, path: str, name: str = "ann", **body: Any) -> Any:
        """Return the JSON of a successful answer."""
        return self._read(await self.client_of(name).post(path, json=body))

    def _read(self, answer: httpx2.Response) -> Any:
        assert answer.is_success, answer.text
        return answer.json()

    async def create_thread(self, name: str = "ann", **body: Any) -> str:
        return str((await self.post("/api/threads", name, **body))["id"])

    async def open_turns(self, thread: str) -> list[Any]:
        """Return the open turns of a thread."""
        turns: list[Any] = (await self.get(f"/api/threads/{thread}"))["turns"]
        return turns

    async def wait_for_turns(self, thread: str, count: int) -> list[Any]:
        """Return the open turns of a thread once there are as many."""
        while len(turns := await self.open_turns(thread)) < count:  # noqa: ASYNC110 - as a client
            await asyncio.sleep(0.01)
        return turns

    async def send_message(
        self,
        thread: str,
        text: Any,
        name: str = "ann",
        *,
        wait: float = 20,
        key: str = "",
    ) -> httpx2.Response:
        """Send a message and return the response with its turn."""
        path = f"/api/threads/{thread}/messages?wait={wait}"
        headers = {"idempotency-key": key} if key else {}
        return await self.client_of(name).post(
            path,
            json={"content": text},
            headers=headers,
        )

    async def read_answer(self, thread: str, text: str, name: str = "ann") -> Any:
        """Send a message or a command and return the JSON of its answer."""
        return self._read(await self.send_message(thread, text, name))["answer"]

    async def read_answer_text(self, thread: str, text: str, name: str = "ann") -> str:
        """Send a message or a command and return the text of its answer."""
        return str((await self.read_answer(thread, text, name))["text"])

    async def start_turn(self, thread: str, text: str) -> asyncio.Task[httpx2.Response]:
        """Send a message; return when its turn has begun."""
        sending = asyncio.create_task(self.send_message(thread, text))
        await self.model.wait_until_asked(text)
        return sending

    @asynccontextmanager
    async def stream(
        self, path: str, text: str | None = None, last_event: int | None = None
    ) -> AsyncIterator[EventReader]:
        """Read the events of a turn, or of a new one if there is a text to send."""
        headers = {"accept": "text/event-stream"}
        if last_event is not None:
            headers["last-event-id"] = str(last_event)
        method = "GET" if text is None else "POST"
        body = None if text is None else {"content": text}
        async with self.client_of("ann").stream(
            method, path, json=body, headers=headers
        ) as response:
            yield EventReader(response)

    async def history(self, thread: str, view: str = "whole", name: str = "ann") -> list[str]:
        path = f"/api/threads/{thread}/history?view={view}&limit=100"
        return [text_of(item["body"]) for item in (await self.get(path, name))["items"]]


def error_of(answer: httpx2.Response) -> tuple[int, str]:
    """Return the status of an answer and the code of its error."""
    return answer.status_code, answer.json()["error"]["code"]


@asynccontextmanager
async def open_api(
    url: str,
    model: WaitingModel | None = None,
    *,
    options: QueueOptions = FAST_OPTIONS,
    tools: bool = False,
    keys: bool = True,
    access: Callable[[Store], Any] = lambda _store: KEYS,
    grace_seconds: float = 5.0,
    settings: str = "",
    wrap: Callable[[Any], Any] = lambda opened: opened,
) -> AsyncIterator[ApiGateway]:
    answering_model = model or WaitingModel()
    store = await asyncio.to_thread(open_store, url)
    config = parse_config(settings)
    queue = TurnQueue(store, wrap(make_agent_opener(config, answering_model)), options)
    app = ThreadsApi(
        queue,
        preview=make_preview_function(parse_config("")),
        keyless_may_use_tools=tools,
        heartbeat_seconds=0.05,
    )
    await app.start()
    proxy = Proxy(Routes([Upstream("only", "http://127.0.0.1:9")]), PassThroughManager())
    service = GatewayApp(
        proxy,
        authenticator=access(store) if keys else None,
        threads_api=app,
    )
    api: ApiGateway | None = None
    try:
        async with Gateway(service, grace_seconds=grace_seconds) as gateway:
            api = ApiGateway(
                gateway.url,
                store,
                model=answering_model,
                queue=queue,
            )
            yield api
    finally:
        for client in api.clients.values() if api is not None else ():
            await client.aclose()
        await store.close()
