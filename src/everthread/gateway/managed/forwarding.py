"""Forward a request before it is read, if it cannot need a change.

Most requests continue a known thread far below its threshold. The messages of such a request are decoded, counted and
matched while the upstream answers, and the request is stored with its answer. If the process ends before that, the
client's next request contains the same messages and stores them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from everthread.core.caching.claude_cache_marks import MIN_CACHED_TOKENS
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.costs.compaction_economics import MIN_THRESHOLD_SHARE
from everthread.core.recent_dict import RecentDict
from everthread.gateway.access.quotas import BYTES_PER_TOKEN
from everthread.gateway.compaction_items import may_have_item
from everthread.gateway.contracts import (
    COMPACTIONS_HEADER,
    THREAD_HEADER,
    TOKENS_HEADER,
    IncomingRequest,
    Outgoing,
)
from everthread.gateway.managed.cache_marks import (
    MarkMemory,
    choose_cache_method,
    make_cache_edits,
)
from everthread.gateway.recall.recall_offer import RECALL_HEADER, offers_recall
from everthread.gateway.recall.recall_tool import make_tool_edit
from everthread.gateway.request.body_cache import BodyMatch
from everthread.gateway.request.client_request import (
    ClientRequest,
    find_unmanaged_reason,
)
from everthread.gateway.request.json_slices import BodyEdit, splice
from everthread.gateway.request.request_reader import (
    OUR_NAME,
    LocatedBody,
    RequestReader,
)
from everthread.thread.caller.caller_request import Outcome
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.caller.thread_memory import MAX_THREADS, ThreadMemory
from everthread.thread.matching.history import History
from everthread.thread.policy.context_options import ContextOptions


@dataclass(frozen=True, slots=True)
class ForwardingTerms:
    """The conditions under which a thread's next request can be forwarded before it is read."""

    upstream: str
    model: str
    message_count: int
    """Number of messages of the thread, including its last answer."""
    digest: str
    """Digest of those messages."""
    last_body_bytes: int
    """The size of the last body."""
    last_tokens: int
    """Tokens of the last prompt and its answer, as counted by the provider."""
    max_tokens: int
    """Half of the compaction threshold."""
    offers_recall: bool
    """Whether our own tool was offered with the last request."""
    recall_header: str
    """The value of the client's recall header."""

    def estimate(self, located_body: LocatedBody) -> int:
        """Return the maximum tokens of the next prompt, assuming one token for every new byte."""
        grown_bytes = len(located_body.slices.body) - self.last_body_bytes
        return self.last_tokens + max(located_body.added_bytes, grown_bytes)


@dataclass(slots=True)
class BodyMemory:
    """Facts about a thread's last body. They may be lost at any moment."""

    marks: MarkMemory = field(default_factory=MarkMemory)
    forwarding_terms: ForwardingTerms | None = None
    """The conditions for forwarding the next request before it is read, or None if it has to be read first."""


class BodyMemories:
    """The last bodies of the threads that were used last."""

    def __init__(self) -> None:
        self._memories: RecentDict[str, BodyMemory] = RecentDict(MAX_THREADS)

    def find_or_create(self, thread: str) -> BodyMemory:
        memory = self._memories.get(thread) or BodyMemory()
        self._memories[thread] = memory
        return memory


def make_forwarding_terms(
    request: ClientRequest,
    call: PreparedCall,
    outcome: Outcome,
    *,
    options: ContextOptions,
    answered_history: History,
) -> ForwardingTerms | None:
    """Return the terms for a thread's next request, or None if it has to be read first.

    `answered_history`: the history that ends with the answer to this one.
    """
    memory = call.memory
    usage = outcome.usage
    if usage is None or outcome.estimated or not call.settings.is_rewritable:
        return None
    is_changed = (
        call.rewrite is not None
        or not call.rounds.is_empty
        or memory.has_recall_rounds
        or call.is_compaction_undone
        or call.output_cap is not None
    )
    if (
        is_changed
        or memory.is_payload_shrunk
        or memory.continues_other
        or is_compaction_planned(memory)
    ):
        return None
    if call.caller_history.is_single_text or not options.enabled:
        return None
    return ForwardingTerms(
        call.settings.upstream,
        call.model,
        message_count=len(answered_history),
        digest=answered_history.digest(len(answered_history)),
        last_body_bytes=len(request.slices.body),
        last_tokens=usage.prompt_tokens + usage.output_tokens,
        max_tokens=round(MIN_THRESHOLD_SHARE * call.compute_budget(options).threshold),
        offers_recall=offers_recall(call, request.slices),
        recall_header=request.incoming.head.headers.get(RECALL_HEADER, ""),
    )


def continue_terms(
    terms: ForwardingTerms,
    located_body: LocatedBody,
    usage: CanonicalUsage,
    *,
    answered_history: History,
) -> ForwardingTerms:
    """Return the terms for the next request, after a request that met `terms` was answered.

    `answered_history`: the history that ends with the answer.
    """
    return replace(
        terms,
        message_count=len(answered_history),
        digest=answered_history.digest(len(answered_history)),
        last_body_bytes=len(located_body.slices.body),
        last_tokens=usage.prompt_tokens + usage.output_tokens,
    )


def is_compaction_planned(memory: ThreadMemory) -> bool:
    """Return whether a compaction is being prepared, or is planned if the thread stays idle."""
    return memory.preparation.is_planned


def forward(
    incoming: IncomingRequest,
    located_body: LocatedBody,
    memory: BodyMemory,
    *,
    reader: RequestReader,
    ttl: str | None,
) -> Outgoing | None:
    """Return the client's bytes with our tool and cache marks, or None if the request has to be read first.

    `ttl`: the lifetime of the cache marks; None to set none.
    """
    terms = memory.forwarding_terms
    match = located_body.match
    if terms is None or match is None:
        return None
    if not _may_forward(terms, incoming, located_body, match=match):
        return None
    if not _continues(terms, located_body, reader):
        return None
    model = match.cached_body.settings.model
    tokens = terms.last_tokens + located_body.added_bytes // BYTES_PER_TOKEN
    headers = {
        THREAD_HEADER: match.cached_body.thread,
        COMPACTIONS_HEADER: "0",
        TOKENS_HEADER: f"{tokens}/{tokens}",
    }
    edits: list[BodyEdit] = []
    if terms.offers_recall:
        edits.append(make_tool_edit(incoming.api, located_body.slices))
    if ttl is not None and tokens >= MIN_CACHED_TOKENS:
        method = choose_cache_method(
            incoming.api,
            model,
            incoming.upstream_url,
            has_marks=located_body.has_cache_marks,
            has_breakpoints=located_body.has_breakpoints,
        )
        edits += make_cache_edits(
            method,
            incoming.api,
            located_body.slices,
            ttl,
            memory=memory.marks,
            leading_count=located_body.system_count,
        )
    return Outgoing(
        splice(incoming.body.plain, edits) if edits else incoming.body.raw,
        is_rewritten=bool(edits),
        headers=headers,
        tokens=tokens,
        offers_recall=terms.offers_recall,
    )


def _may_forward(
    terms: ForwardingTerms,
    incoming: IncomingRequest,
    located_body: LocatedBody,
    *,
    match: BodyMatch,
) -> bool:
    """Return whether a request has the settings of the last one, may be changed, and is below half the threshold."""
    has_same_settings = match.tail_bytes and incoming.upstream_url == terms.upstream
    if not has_same_settings or incoming.mode != "managed":
        return False
    if terms.estimate(located_body) >= terms.max_tokens:
        return False
    if OUR_NAME in located_body.watched_words and may_have_item(incoming.body.plain):
        return False
    if incoming.head.headers.get(RECALL_HEADER, "") != terms.recall_header:
        return False
    return not find_unmanaged_reason(located_body.slices)


def _continues(terms: ForwardingTerms, located_body: LocatedBody, reader: RequestReader) -> bool:
    """Return whether a request continues its thread at the end. Read only the messages since the last request."""
    if len(located_body.history_messages) <= terms.message_count:
        return False
    history = reader.read_history(located_body, terms.message_count)
    return history.digest(terms.message_count) == terms.digest
