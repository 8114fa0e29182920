"""Requests as the proxy gives them to the manager: located, and forwarded before they are read if possible."""

from __future__ import annotations

from dataclasses import replace

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import text_of
from everthread.gateway.contracts import IncomingRequest, RequestHandler
from everthread.gateway.managed.manager import ProxyManager
from everthread.gateway.request.body_cache import BodyOrigin
from everthread.store.store import Store
from everthread.thread.caller.caller_request import Outcome
from tests.gateway.manager_setup import HistoryClient, prepare_request, text_reply


def locate_request(manager: ProxyManager, client: HistoryClient) -> IncomingRequest:
    """Return a request with its body located, as the proxy does it."""
    incoming = client.incoming()
    origin = BodyOrigin.of(client.api, client.tenant, client.headers)
    match = manager.reader.bodies.find(origin, incoming.body.plain)
    located_body = manager.reader.locate(origin, incoming.body.plain, match)
    return replace(incoming, body=replace(incoming.body, located_body=located_body))


async def begin_turn(manager: ProxyManager, client: HistoryClient) -> RequestHandler:
    incoming = locate_request(manager, client)
    return manager.forward_first(incoming) or await prepare_request(manager, incoming)


def answer_outcome(client: HistoryClient, text: str = "Yes.", tokens: int = 900) -> Outcome:
    """Return an answer, which the client puts into its history."""
    reply = text_reply(text)
    client.add_reply(reply)
    return Outcome(200, reply, CanonicalUsage(tokens, 20))


async def send_and_record(
    manager: ProxyManager, client: HistoryClient, text: str
) -> RequestHandler:
    client.add_user_message(text)
    turn = await begin_turn(manager, client)
    await turn.record(answer_outcome(client))
    return turn


async def stored_texts(store: Store, thread: str) -> list[str]:
    return [text_of(message.body) for message in await store.load_history(thread)]
