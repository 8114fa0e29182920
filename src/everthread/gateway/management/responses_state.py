"""`previous_response_id` for upstreams that keep no state: an earlier answer is put in by us."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

from everthread.core.types import Api, Reply
from everthread.gateway.base import Incoming, encode_messages
from everthread.gateway.body import peek_field
from everthread.gateway.management.threads import PLATFORM, ThreadMatch
from everthread.gateway.management.turn import ManagedTurn
from everthread.store.models import NewSession, NewThreadLink, ThreadLink
from everthread.store.store import Store

_API: Api = "openai_responses"
_FIELD = "previous_response_id"
_SCOPE = "response-id"
_PAUSES = (0.05, 0.2, 0.5)
"""An answer is recorded when its client has it: who goes on at once, perhaps elsewhere, may come before that."""


class Responses:
    """Stored answers of the Responses protocol, by their ids."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def expand_request(self, incoming: Incoming) -> Incoming | None:
        """The request with the earlier items put in; None where it names no stored answer."""
        if incoming.api != _API:
            return None
        named = peek_field(incoming.body, _FIELD)
        if named is None or not isinstance(named.value, str):
            return None
        body = json.loads(incoming.body)
        before = await self._load_items(incoming.tenant, named.value, str(body.get("model") or ""))
        if before is None:
            return None
        new = body.get("input")
        items = [{"role": "user", "content": new}] if isinstance(new, str) else new or []
        full_body = {key: value for key, value in body.items() if key != _FIELD} | {"input": [*before, *items]}
        raw = json.dumps(full_body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
        return replace(incoming, raw=raw, body=raw, outline=None)

    async def keep(self, match: ThreadMatch, reply: Reply, turn: ManagedTurn) -> None:
        """Store an answer under its id, unless the client says `store: false`."""
        if turn.sliced.fields.get("store") is False:
            return
        point = await self._store.find_link(match.tenant, match.scope, [match.previous])
        if point is None or point.link.message is None:
            return
        items = [item for item in encode_messages(_API, [reply.message], turn.model) if item.get("role") != "user"]
        state = {"at": point.link.message, "items": items}
        await self._store.put_state(match.thread, _name(reply.id), state)
        link = ThreadLink(match.tenant, _SCOPE, reply.id, "", "", match.thread, point.link.length, point.link.message)
        session = NewSession(id=match.thread, tenant=match.tenant, platform=PLATFORM)
        await self._store.extend_thread(match.thread, [NewThreadLink(link, f"{_SCOPE}:{reply.id}", session)])

    async def _load_items(self, tenant: str, response: str, model: str) -> list[Any] | None:
        """The items of a conversation up to and including an answer."""
        link_match = await self._store.find_link(tenant, _SCOPE, [response])
        for pause in _PAUSES:
            if link_match is not None:
                break
            await asyncio.sleep(pause)
            link_match = await self._store.find_link(tenant, _SCOPE, [response])
        if link_match is None:
            return None
        thread = link_match.link.thread
        state = await self._store.get_state(thread, _name(response))
        messages = []
        for message in await self._store.history(thread):
            messages.append(message.body)
            if state and message.id == state["at"]:
                return [*encode_messages(_API, messages, model), *state["items"]]
        return None


def _name(response: str) -> str:
    return f"{_SCOPE}:{response}"
