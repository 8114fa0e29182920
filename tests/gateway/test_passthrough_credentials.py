"""`auth: passthrough`: nothing is done for a credential that no upstream has accepted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.factory import open_store
from everthread.gateway.access.authentication import (
    AcceptedCredentials,
    PassthroughAuthenticator,
)
from everthread.gateway.contracts import IncomingRequest, Outgoing
from everthread.gateway.error_answers import RequestRefused
from everthread.store.store import Store
from everthread.testing import SteppedClock
from tests.apis import CHAT_PATH
from tests.gateway.gateway_setup import LATE_EVENING
from tests.gateway.raw_http import (
    JSON,
    STREAM,
    PassThroughManager,
    RawMessage,
    encode_chunk,
    fixed_answer,
    post_request,
    raw_gateway,
    response_head,
    send_bytes,
    send_post,
)

BODY = b'{"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}'
FINE = b'{"id": "x", "model": "gpt-4o", "choices": [{"message": {"role": "assistant", "content": "Hello"}}]}'


def shown(key: bytes) -> bytes:
    return post_request(
        CHAT_PATH,
        BODY,
        (b"authorization", b"Bearer " + key),
        *JSON,
    )


async def answer(request: RawMessage, writer: asyncio.StreamWriter) -> None:
    """Accepts `good` keys; refuses the size of a request that is not smaller."""
    key = request.header_values.get("authorization", "")
    if "good" not in key:
        await fixed_answer(401 if "made" in key else 403, JSON, b'{"error": {"message": "no"}}')(
            request, writer
        )
    elif "large" in key and request.body == BODY:
        await fixed_answer(
            400,
            JSON,
            b'{"error": {"code": "context_length_exceeded", "message": "large"}}',
        )(request, writer)
    else:
        await fixed_answer(200, JSON, FINE)(request, writer)


class AuthorizingManager(PassThroughManager):
    """Sends less after a refusal, and notes whether it could have used the operator's key for that."""

    def __init__(self) -> None:
        super().__init__()
        self.may_spend: list[bool] = []
        self.items: list[IncomingRequest] = []

    async def recover_with(self, incoming: IncomingRequest, *_given: Any) -> Outgoing | None:
        try:
            await incoming.head.caller.authorize(CanonicalUsage(1_000), "gpt-4o")
        except RequestRefused:
            self.may_spend.append(False)
        else:
            self.may_spend.append(True)
        return Outgoing(b'{"model": "gpt-4o", "messages": []}', is_rewritten=True)

    async def make_item(self, incoming: IncomingRequest) -> tuple[dict[str, Any], int]:
        self.items.append(incoming)
        return {"type": "compaction", "encrypted_content": "x"}, 1


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = open_store(tmp_path / "s.db")
    yield opened
    await opened.close()


@pytest.fixture
def auth(store: Store) -> PassthroughAuthenticator:
    return PassthroughAuthenticator(b"secret", AcceptedCredentials(store))


async def test_records_nothing_for_an_unaccepted_credential(
    store: Store, auth: PassthroughAuthenticator
) -> None:
    manager = PassThroughManager()
    async with raw_gateway(answer, manager, authenticator=auth) as (url, upstream):
        for key in (b"made-up", b"forbidden", b"made-up"):
            response = await send_bytes(url, shown(key))
            assert response.status in (401, 403)
    assert len(upstream.received) == 3
    assert manager.prepared == []
    assert await store.list_sessions(limit=10) == []


async def test_manages_an_accepted_credential_from_its_second_request_on(
    auth: PassthroughAuthenticator,
) -> None:
    manager = PassThroughManager()
    async with raw_gateway(answer, manager, authenticator=auth) as (url, upstream):
        for _ in range(2):
            response = await send_bytes(url, shown(b"good"))
            assert response.status == 200
            assert response.body == FINE
    modes = [incoming.mode for incoming in manager.prepared]
    assert modes == ["observe", "managed"], "the first is recorded"
    bodies = [request.body for request in upstream.received]
    assert bodies == [BODY, BODY]


async def test_records_the_first_request_before_its_answer_has_ended(
    auth: PassthroughAuthenticator,
) -> None:
    """A client that continues at the last event of a stream does not wait for its end."""
    manager = PassThroughManager()
    enough = asyncio.Event()

    async def slowly(_request: RawMessage, writer: asyncio.StreamWriter) -> None:
        writer.write(response_head(200, STREAM) + encode_chunk(b'data: {"choices": []}\n\n'))
        await enough.wait()
        writer.write(encode_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with raw_gateway(slowly, manager, authenticator=auth) as (url, _):
        seen: list[list[str]] = []

        def look(_piece: bytes) -> None:
            seen.append([incoming.mode for incoming in manager.prepared])
            enough.set()

        response = await send_bytes(url, shown(b"good"), on_chunk=look)
        assert response.status == 200
    assert seen[0] == ["observe"]


async def test_shortens_a_refused_first_prompt_without_the_operators_key(
    auth: PassthroughAuthenticator,
) -> None:
    manager = AuthorizingManager()
    async with raw_gateway(answer, manager, authenticator=auth) as (url, _):
        response = await send_bytes(url, shown(b"good-large"))
        assert response.status == 200
        assert manager.may_spend == [False], "it counts as accepted only after the answer"
        response = await send_bytes(url, shown(b"good-large"))
        assert response.status == 200
    assert manager.may_spend == [False, True]
    modes = [incoming.mode for incoming in manager.prepared]
    assert modes == ["managed", "managed"]


REFUSALS = {
    "Gemini": (
        400,
        b'{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key."}}',
    ),
    "xAI": (
        400,
        b'{"code": "invalid argument", "error": "Incorrect API key provided: ma***up."}',
    ),
    "no credit": (402, b'{"error": {"message": "Insufficient credits"}}'),
    "no path": (404, b'{"error": {"message": "not found"}}'),
    "no path, and says compaction": (
        400,
        b'{"error": {"message": "unknown item type compaction_trigger"}}',
    ),
    "too large for the server before it": (
        413,
        b"<html>413 Request Entity Too Large</html>",
    ),
    "too many": (429, b'{"error": {"message": "slow down"}}'),
    "away": (503, b"{}"),
    "moved": (301, b""),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_only_a_2xx_answer_makes_a_credential_accepted(
    name: str, store: Store, tmp_path: Path
) -> None:
    """A made-up credential is not accepted, and no summary is paid for it."""
    status, body = REFUSALS[name]
    manager = AuthorizingManager()
    accepted = AcceptedCredentials(store)
    auth = PassthroughAuthenticator(b"secret", accepted)
    trigger = {
        "model": "gpt-5",
        "input": [
            {"role": "user", "content": "Hi"},
            {"type": "compaction_trigger"},
        ],
    }
    async with raw_gateway(
        fixed_answer(status, JSON, body),
        manager,
        authenticator=auth,
        make_item=manager.make_item,
    ) as (url, upstream):
        for number in range(3):
            key = (b"authorization", b"Bearer made-up-%d" % number)
            for path, sent in (
                (CHAT_PATH, BODY),
                ("/v1/responses", json.dumps(trigger).encode()),
                ("/v1/responses/compact", json.dumps(trigger).encode()),
            ):
                response = await send_post(
                    url,
                    path,
                    sent,
                    key,
                    *JSON,
                )
                assert response.status == status
                assert response.body == body
    assert manager.prepared == []
    assert manager.items == []
    assert manager.may_spend == []
    assert len(upstream.received) == 9
    await accepted.close()
    assert not (tmp_path / "s.db").exists() or await store.list_sessions(limit=10) == []


async def test_every_process_remembers_an_accepted_credential_for_30_days(
    store: Store,
) -> None:
    wall_clock = SteppedClock(LATE_EVENING)
    one = AcceptedCredentials(store, wall_clock=wall_clock)
    other = AcceptedCredentials(store, wall_clock=wall_clock)
    assert not await other.has("digest")
    one.add("digest")
    await one.close()
    assert await other.has("digest")
    wall_clock.now += 29 * 86_400
    assert await other.has("digest")
    wall_clock.now += 2 * 86_400
    assert not await one.has("digest")
    assert not await other.has("digest")


@pytest.mark.parametrize("broken", [b"", b"Basic"])
async def test_refuses_requests_without_a_credential(
    broken: bytes, auth: PassthroughAuthenticator
) -> None:
    async with raw_gateway(answer, authenticator=auth) as (url, upstream):
        response = await send_post(url, CHAT_PATH, BODY, (b"x-other", broken))
    assert response.status == 401
    assert upstream.received == []
