"""A client that sends its whole history each time, the manager, and the simulated provider."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import httpx2

from everthread import open_store
from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.core.costs.canonical_usage import normalize_usage
from everthread.core.types import Api, ModelReply, ModelRequest
from everthread.gateway.access.authentication import Caller
from everthread.gateway.contracts import IncomingRequest, Mode, Outgoing, RequestHandler
from everthread.gateway.managed.deferred_records import MAX_DELAY_SECONDS
from everthread.gateway.managed.managed_handler import ManagedHandler
from everthread.gateway.managed.manager import ProxyManager
from everthread.gateway.request.body_reading import RequestBody
from everthread.gateway.request.outer_fields import OuterFields
from everthread.gateway.request.request_head import RequestHead
from everthread.lab.provider import Provider, ServedModel
from everthread.store.store import Store
from everthread.thread.caller.caller_request import Outcome
from everthread.thread.caller.caller_setup import CallerSetup
from everthread.thread.engines.summary_wait import call_later
from everthread.thread.events import Event
from everthread.thread.options import SessionOptions
from everthread.thread.thread_setup import SummarizerContext
from everthread.wire.codecs import CODECS
from tests.apis import PATHS
from tests.chat_messages import result_message
from tests.gateway.store_wrappers import StoreWrapper

NAMES: dict[Api, str] = {
    "openai_chat": "gpt-4o",
    "openai_responses": "gpt-5",
    "anthropic": "claude-sonnet-4-5",
}
MANAGED: Any = "managed"


@dataclass
class Managers:
    """Managers on one store."""

    store: Store
    window: int = 8_000
    events: list[Event] = field(default_factory=list)
    opened: list[ProxyManager] = field(default_factory=list)

    def open(
        self,
        *,
        cache_marks: bool = False,
        recall: bool = False,
        summarizer: Any = None,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        is_sole_writer: bool = False,
        timer: Any = call_later,
        record_delay: float = MAX_DELAY_SECONDS,
        store: StoreWrapper | None = None,
        **options: Any,
    ) -> ProxyManager:
        async def window(_api: Api, _model: str, _upstream: str, _betas: str) -> int:
            return self.window

        def engine(services: Services) -> ContextEngine:
            return ContextCompressor(services)

        def writer(context: SummarizerContext) -> Any:
            return summarizer or JournalWriter(context.counter)

        proxy_manager = ProxyManager(
            CallerSetup(
                store=cast("Store", store) if store is not None else self.store,
                make_engine=engine,
                engine_key="compressor",
                make_summarizer=writer,
                find_window=window,
                options=SessionOptions(**options),
                listener=self.events.append,
                wall_clock=wall_clock,
                clock=clock,
                is_sole_writer=lambda: is_sole_writer,
                timer=timer,
            ),
            set_cache_marks=cache_marks,
            offer_recall=recall,
            record_delay=record_delay,
        )
        self.opened.append(proxy_manager)
        return proxy_manager

    def events_of(self, kind: type[Any]) -> list[Any]:
        """Return the events of this class, in order."""
        return [event for event in self.events if isinstance(event, kind)]


@dataclass(kw_only=True)
class ManagersWithProvider(Managers):
    """Managers on one store in front of one provider."""

    provider: Provider

    async def send(self, manager: ProxyManager, client: HistoryClient) -> Exchange:
        """Send a request that the provider must answer."""
        exchange = await send_request(manager, client, self.provider)
        assert exchange.reply is not None, exchange.error
        return exchange


@asynccontextmanager
async def open_managers_with_provider(
    folder: Path,
    script: Any = None,
    *,
    window: int = 8_000,
    served: int | None = None,
    names: Iterable[str] = NAMES.values(),
    **more: Any,
) -> AsyncIterator[ManagersWithProvider]:
    models = [ServedModel(name, served or window, **more) for name in names]
    async with (
        Provider(models, script) as provider,
        open_managers(folder) as managers,
    ):
        yield ManagersWithProvider(
            managers.store,
            window,
            opened=managers.opened,
            provider=provider,
        )


@asynccontextmanager
async def open_managers(folder: Path) -> AsyncIterator[Managers]:
    store = open_store(folder / "store.db")
    managers = Managers(store)
    try:
        yield managers
    finally:
        for manager in managers.opened:
            await manager.close()
        await store.close()


@dataclass
class HistoryClient:
    """A client that sends its whole history in the form of its API and knows nothing of the gateway."""

    api: Api
    system: str | None = "Be brief."
    tools: list[Any] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)
    """In the form of the API."""
    headers: dict[str, str] = field(default_factory=dict)
    tenant: str = "t"
    mode: Mode = "managed"
    extra: Any = field(default_factory=dict)

    model: str = ""
    """The usual one of the API if not given."""

    def __post_init__(self) -> None:
        self.model = self.model or NAMES[self.api]

    def body(self) -> dict[str, Any]:
        codec = CODECS[self.api]
        frame = codec.encode_request(
            ModelRequest(
                self.model,
                [],
                system=self.system,
                tools=self.tools,
                params=dict(self.extra),
            )
        )
        listed = "input" if self.api == "openai_responses" else "messages"
        return {**frame, listed: [*(frame.get(listed) or []), *self.messages]}

    def incoming(self, upstream: str = "http://upstream.test") -> IncomingRequest:
        raw = json.dumps(self.body(), ensure_ascii=False).encode()
        return self.make_incoming(raw, upstream)

    def make_incoming(self, raw: bytes, upstream: str = "http://upstream.test") -> IncomingRequest:
        """Return a request with this body."""
        head = RequestHead(
            method="POST",
            path=PATHS[self.api],
            raw_path=PATHS[self.api].encode(),
            query=b"",
            raw_headers=[],
            headers=self.headers,
            caller=Caller(self.tenant),
        )
        body = RequestBody(raw, raw, OuterFields(raw))
        return IncomingRequest(head, body, self.api, upstream, self.mode)

    def add_user_message(self, text: Any) -> None:
        self.messages.append({"role": "user", "content": text})

    def add_assistant_message(self, text: Any) -> None:
        self.messages.append({"role": "assistant", "content": text})

    def add_answer(self, text: str) -> None:
        """Add an answer as the API writes it."""
        self.add_reply(text_reply(text))

    def add_reply(self, reply: ModelReply) -> None:
        written = CODECS[self.api].encode_messages([reply.message], model=self.model)
        self.messages += [message for message in written if message.get("role") != "user"]

    def add_result(self, call_id: str, text: str) -> None:
        message: Any = result_message(call_id, text)
        if self.api == "openai_responses":
            self.messages.append(
                {
                    "type": "function_call_output",
                    "call_id": call_id,
                    "output": text,
                }
            )
        else:
            self.messages += CODECS[self.api].encode_messages([message])


@dataclass
class Exchange:
    incoming: IncomingRequest
    sent: Outgoing
    status: int
    reply: Any
    """None after an error."""
    error: str = ""
    attempts: int = 1


async def send_request(
    manager: ProxyManager, client: HistoryClient, provider: Provider
) -> Exchange:
    """Send one request through the manager to the provider, as the proxy does.

    The client's history gets the answer.
    """
    incoming = client.incoming(provider.url)
    turn = await prepare_request(manager, incoming)
    sent = turn.outgoing
    tries = 0
    async with httpx2.AsyncClient(timeout=60) as http:
        while True:
            tries += 1
            answer = await http.post(
                provider.url + incoming.head.path,
                content=sent.body,
                headers=_HEADERS | client.headers,
            )
            if answer.status_code < 400:
                break
            again = await turn.recover(answer.status_code, answer.content)
            if again is None:
                break
            sent = again
    reply = None
    if answer.status_code < 400:
        reply = CODECS[client.api].decode_reply(answer.json(), model=client.model)
        client.add_reply(reply)
    usage = normalize_usage(reply.usage, api=client.api) if reply else None
    await turn.record(Outcome(answer.status_code, reply, usage))
    sent = replace(sent, headers=await turn.make_response_headers())
    return Exchange(
        incoming,
        sent,
        status=answer.status_code,
        reply=reply,
        error=answer.text if reply is None else "",
        attempts=tries,
    )


_HEADERS = {
    "content-type": "application/json",
    "x-api-key": "k",
    "anthropic-version": "2023-06-01",
}


async def prepare_request(manager: ProxyManager, incoming: IncomingRequest) -> ManagedHandler:
    """Prepare a request that has to be managed."""
    handler = await manager.prepare(incoming)
    assert handler is not None
    return handler


async def answer_request(
    manager: ProxyManager, client: HistoryClient, text: str = "Yes."
) -> Outgoing:
    """Send the client's history without a provider; the answer is this text."""
    incoming = client.incoming()
    turn = await prepare_request(manager, incoming)
    reply = text_reply(text)
    client.add_reply(reply)
    await turn.record(Outcome(200, reply))
    return replace(turn.outgoing, headers=await turn.make_response_headers())


async def ask(
    manager: ProxyManager, client: HistoryClient, question: str, text: str = "Yes."
) -> Outgoing:
    """Add the question to the client's history and send it; the answer is this text."""
    client.add_user_message(question)
    return await answer_request(manager, client, text)


def text_reply(text: str) -> ModelReply:
    return ModelReply({"role": "assistant", "content": text}, "stop")


def text_of_tokens(count: int, topic: str) -> str:
    """Return a text of about `count` tokens that names its topic."""
    return " ".join(
        f"{topic} item {index} was entered and checked." for index in range(max(1, count // 8))
    )


def numbered_text(number: int, count: int, topic: str) -> str:
    """Return a text of about `count` tokens that names its topic and number."""
    return f"{topic.capitalize()} {number}: {text_of_tokens(count, f'{topic} {number}')}"


def thread_of(request: RequestHandler | Outgoing) -> str:
    return (
        request.headers["x-everthread-thread"] if isinstance(request, Outgoing) else request.thread
    )


@dataclass(frozen=True)
class TokenCounts:
    """The tokens of a request as the client sent it, and as it went upstream."""

    before: int
    after: int


def tokens_of(sent: Outgoing) -> TokenCounts:
    before, after = sent.headers["x-everthread-tokens"].split("/")
    return TokenCounts(int(before), int(after))


def compactions_of(sent: Outgoing) -> int:
    return int(sent.headers["x-everthread-compactions"])


def statuses_of(provider: Provider) -> list[int | None]:
    """Return the statuses of the provider's answers, in order."""
    return [record.status for record in provider.log]
