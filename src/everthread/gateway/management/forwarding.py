"""Forward a request before it is read, if it cannot need a change.

Most requests continue a known thread far below its threshold. For these the messages need not be decoded, counted and
matched before the upstream can have them. That is done while the upstream answers, and the request is stored with its
answer. If the process ends before that, the client's next request holds all of it, and stores it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from everthread.core.cache_breakpoints import OPTIONS, takes_breakpoints
from everthread.core.cache_control import MIN_CACHED
from everthread.core.economics import EARLIEST
from everthread.core.types import Reply
from everthread.gateway.contracts import (
    COMPACTIONS_HEADER,
    THREAD_HEADER,
    TOKENS_HEADER,
    Incoming,
    Outcome,
    Outgoing,
)
from everthread.gateway.filters.cache_marks import (
    place_breakpoint,
    place_cache_marks,
    takes_marks,
)
from everthread.gateway.json_slices import Change, splice
from everthread.gateway.management.client_request import find_unmanaged_reason
from everthread.gateway.management.compaction_items import has_item
from everthread.gateway.management.known_bodies import BodyMatch
from everthread.gateway.management.recall_offer import RECALL_HEADER, tool_change
from everthread.gateway.management.request_reader import (
    BREAKPOINT_MARK,
    MARK,
    OURS,
    BodyOutline,
    RequestReader,
)
from everthread.gateway.management.thread_memory import ThreadMemory
from everthread.gateway.management.turn import ManagedTurn
from everthread.gateway.quotas import BYTES_PER_TOKEN
from everthread.thread.history import History
from everthread.thread.policy import ContextOptions

if TYPE_CHECKING:
    from everthread.gateway.management.manager import ProxyManager

READ_SECONDS = 1.0
"""A forwarded request is read after this time, or once it is answered."""


@dataclass(frozen=True, slots=True)
class ForwardingTerms:
    """The conditions under which a thread's next request can be forwarded before it is read."""

    upstream: str
    length: int
    """How many messages the thread has, its last answer included."""
    digest: str
    """Digest of those messages."""
    body_bytes: int
    """The size of the last body."""
    tokens: int
    """Tokens of the last prompt and its answer, as the provider counted them."""
    max_tokens: int
    """Half of the compaction threshold."""
    offers_recall: bool
    """Whether our own tool was offered with the last request."""
    recall_header: str
    """The value of the client's recall header."""

    def estimate(self, outline: BodyOutline) -> int:
        """Return the most tokens the next prompt can have: one for every new byte."""
        grown = len(outline.sliced.body) - self.body_bytes
        return self.tokens + max(outline.added_bytes, grown)


def make_terms(
    turn: ManagedTurn, outcome: Outcome, options: ContextOptions, answered: History
) -> ForwardingTerms | None:
    """Return the terms for a thread's next request; None if it has to be read first.

    `answered`: the history that ends with the answer to this one.
    """
    request = turn.request
    memory = turn.memory
    usage = outcome.usage
    if usage is None or outcome.estimated or not request.is_rewritable:
        return None
    is_changed = (
        turn.used is not None
        or turn.recall.has_rounds
        or memory.has_hidden_rounds
        or turn.is_undone
        or turn.is_expanded
        or turn.output_cap is not None
    )
    if is_changed or memory.slim or memory.continues_other or _has_plans(memory):
        return None
    if request.sliced.single or not options.enabled:
        return None
    return ForwardingTerms(
        request.incoming.upstream,
        length=len(answered),
        digest=answered.digest(len(answered)),
        body_bytes=len(request.sliced.body),
        tokens=usage.prompt_tokens + usage.output_tokens,
        max_tokens=round(EARLIEST * turn.budget(options).threshold),
        offers_recall=turn.recall.offered,
        recall_header=request.incoming.headers.get(RECALL_HEADER, ""),
    )


def _has_plans(memory: ThreadMemory) -> bool:
    """Return whether a compaction is being prepared, or will be if the thread stays idle."""
    preparation = memory.preparation
    return preparation.is_under_way or preparation.idle_timer is not None


def forward(
    incoming: Incoming,
    outline: BodyOutline,
    memory: ThreadMemory,
    *,
    reader: RequestReader,
    ttl: str | None,
) -> Outgoing | None:
    """Return the client's bytes, with our tool, and cache marks if it sets none; None if it has to be read first.

    `ttl`: the lifetime of the marks; None if we set none.
    """
    terms = memory.forwarding
    match = outline.match
    if terms is None or match is None or _has_plans(memory):
        return None
    if not _fits(terms, incoming, outline, match=match):
        return None
    if not _continues(terms, outline, reader):
        return None
    model = match.known.frame.model
    tokens = terms.tokens + outline.added_bytes // BYTES_PER_TOKEN
    headers = {
        THREAD_HEADER: match.known.thread,
        COMPACTIONS_HEADER: "0",
        TOKENS_HEADER: f"{tokens}/{tokens}",
    }
    sent = Outgoing(
        incoming.raw, headers=headers, tokens=tokens, recall=terms.offers_recall
    )
    changes: list[Change] = []
    if terms.offers_recall:
        changes.append(tool_change(incoming.api, outline.sliced))
    if ttl is not None and tokens >= MIN_CACHED:
        changes += _cache_changes(incoming, outline, memory, model=model, ttl=ttl)
    if not changes:
        return sent
    return replace(sent, body=splice(incoming.body, changes), rewritten=True)


def _cache_changes(
    incoming: Incoming,
    outline: BodyOutline,
    memory: ThreadMemory,
    *,
    model: str,
    ttl: str,
) -> list[Change]:
    """Return the changes that mark the request for the provider's cache, if the client sets no marks."""
    api = incoming.api
    upstream = incoming.upstream
    sliced = outline.sliced
    if MARK not in outline.holds and takes_marks(api, model, upstream):
        return place_cache_marks(api, sliced, ttl, memory=memory, leading=outline.first)
    if BREAKPOINT_MARK in outline.holds or OPTIONS in sliced.fields:
        return []
    if takes_breakpoints(api, model, base_url=upstream):
        return place_breakpoint(api, sliced, outline.first)
    return []


def _fits(
    terms: ForwardingTerms,
    incoming: Incoming,
    outline: BodyOutline,
    *,
    match: BodyMatch,
) -> bool:
    """Return whether a request has the settings of the last one and is far below the threshold."""
    has_same_settings = match.parts.tail and incoming.upstream == terms.upstream
    if not has_same_settings or incoming.mode != "managed":
        return False
    if terms.estimate(outline) >= terms.max_tokens:
        return False
    if OURS in outline.holds and has_item(incoming.body):
        return False
    if incoming.headers.get(RECALL_HEADER, "") != terms.recall_header:
        return False
    return not find_unmanaged_reason(outline.sliced)


def _continues(
    terms: ForwardingTerms, outline: BodyOutline, reader: RequestReader
) -> bool:
    """Return whether a request continues its thread from the end; only messages since the last request are read."""
    if len(outline.elements) <= terms.length:
        return False
    history = reader.read_history(outline, terms.length)
    return history.digest(terms.length) == terms.digest


class ForwardedTurn:
    """A request that is forwarded before it is read."""

    def __init__(
        self,
        manager: ProxyManager,
        incoming: Incoming,
        outline: BodyOutline,
        *,
        thread: str,
        sent: Outgoing,
    ) -> None:
        self._manager = manager
        self._incoming = incoming
        self._outline = outline
        self._reading: asyncio.Task[ManagedTurn] | None = None
        self._is_answered = False
        self._timer = asyncio.get_running_loop().call_later(READ_SECONDS, self._read)
        self.thread = thread
        self.sent = sent

    async def recover(self, status: int, body: bytes) -> Outgoing | None:
        turn = await asyncio.shield(self._read())
        return await turn.recover(status, body)

    async def resume(self, reply: Reply) -> Outgoing | None:
        turn = await asyncio.shield(self._read())
        return await turn.resume(reply)

    async def retry_without_recall(self, reply: Reply) -> Outgoing | None:
        turn = await asyncio.shield(self._read())
        return await turn.retry_without_recall(reply)

    async def response_headers(self) -> Mapping[str, str]:
        return self.sent.headers

    async def record(self, outcome: Outcome) -> None:
        self._is_answered = True
        with self._manager.reading_answered(self._incoming, self._outline):
            turn = await asyncio.shield(self._read())
        await turn.record(outcome)

    def _read(self) -> asyncio.Task[ManagedTurn]:
        """Read the request in the background, once."""
        self._timer.cancel()
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(
                self._manager.read_forwarded(
                    self._incoming,
                    self._outline,
                    self.sent,
                    is_answered=self._is_answered,
                )
            )
        return self._reading
