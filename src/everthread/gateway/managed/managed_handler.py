"""Handle one managed request, from its arrival to the record of its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from everthread.core.caching.claude_cache_marks import MIN_CACHED_TOKENS
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.types import ModelReply
from everthread.gateway.contracts import (
    COMPACTIONS_HEADER,
    NOTICE_HEADER,
    PLAN_HEADER,
    RECEIPT_HEADER,
    THREAD_HEADER,
    TOKENS_HEADER,
    Outgoing,
)
from everthread.gateway.managed.forwarding import BodyMemory, make_forwarding_terms
from everthread.gateway.managed.render import RenderOptions, render_request
from everthread.gateway.recall.recall_answers import answer_recall_calls, refuse_last_round
from everthread.gateway.recall.recall_offer import offers_recall
from everthread.gateway.request.client_request import ClientRequest
from everthread.thread.caller.caller_request import Outcome
from everthread.thread.caller.caller_threads import CallerThreads, PromptTokens
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.caller.provider_compactions import is_compaction
from everthread.thread.events import CompactionReceipt, RecallAnswered, Unmanaged
from everthread.thread.matching.history import identify_message
from everthread.thread.policy.notices import (
    MIN_REPEATED_COMPACTIONS,
    make_repeated_compaction_notice,
)
from everthread.thread.recovery import ProviderRefusal
from everthread.thread.wire_messages import encode_messages

MIN_HOLD_SHARE = 0.70
"""Share of the window from which on an overflow is likely, so that the beginning of a stream is held back."""


class ManagedHandler:
    """Handle one managed request: know the client's request, the thread's decisions about it, and the bytes to send."""

    def __init__(
        self,
        threads: CallerThreads,
        request: ClientRequest,
        call: PreparedCall,
        *,
        body_memory: BodyMemory,
        mark_ttl: str | None,
    ) -> None:
        """`mark_ttl`: the lifetime of the cache marks to set; None to set none."""
        self.request = request
        self.call = call
        self._threads = threads
        self._setup = threads.setup
        self._body_memory = body_memory
        self._mark_ttl = mark_ttl
        self._is_expanded = request.incoming.leading_compaction is not None
        """Whether compaction items were replaced on arrival, so that the client's own bytes are never sent upstream."""
        self.outgoing = Outgoing(request.incoming.body.raw, is_rewritten=self._is_expanded)
        """The request to send."""
        self._headers: dict[str, str] = {}
        """Headers for the client."""

    @property
    def thread(self) -> str:
        return self.call.thread_id

    async def prepare(self) -> None:
        """Decide on the request to send."""
        decision = await self._threads.prepare(self.call)
        if decision.cost_decision is not None:
            self._headers[PLAN_HEADER] = str(decision.cost_decision)
        if self.call.settings.is_rewritable:
            self.outgoing = self._render()
        else:
            self._keep_unchanged()

    async def recover(self, status: int, body: bytes) -> Outgoing | None:
        """Return another request to send after an error of the provider; None to pass the error to the client."""
        if not self.call.settings.is_rewritable:
            return None
        refusal = ProviderRefusal(status, body.decode("utf-8", "replace"))
        if not await self._threads.recover(self.call, refusal):
            return None
        self.outgoing = self._render()
        return self.outgoing

    async def resume_after_recall(self, reply: ModelReply) -> Outgoing | None:
        """Return the next request after a round that called our own tool; None if the round was the last."""
        rounds = self.call.rounds
        now = self._setup.clock()
        await self.call.recorder.store_request()
        if not await answer_recall_calls(self._setup.store, self.call, reply):
            return None
        rounds.limit_time(now)
        self.outgoing = self._render()
        self._setup.listener(
            RecallAnswered(self.call.thread_id, rounds.round_count, rounds.call_count)
        )
        return self.outgoing

    async def retry_without_recall(self, reply: ModelReply) -> Outgoing | None:
        """Return a smaller request after the request of `resume_after_recall` was refused, without offering the tool.

        The first call returns a request that tells the model that its calls have no answer. The second one returns a
        request without any round, as if the tool did not exist; the third returns None.
        """
        rounds = self.call.rounds
        if not rounds.texts:
            return None
        if rounds.is_refused:
            rounds.drop()
        else:
            refuse_last_round(self.call, reply)
        self.outgoing = self._render()
        return self.outgoing

    async def make_response_headers(self) -> Mapping[str, str]:
        """Return the headers for the client, with the thread id if the thread is stored."""
        if THREAD_HEADER in self.outgoing.headers:
            return self.outgoing.headers
        recorder = self.call.recorder
        if recorder.is_thread_known:  # a fast answer does not wait for the store
            return {THREAD_HEADER: self.thread, **self.outgoing.headers}
        match = await recorder.store_request()
        if not recorder.is_stored:
            return self.outgoing.headers
        return {THREAD_HEADER: match.thread_id, **self.outgoing.headers}

    async def record(self, outcome: Outcome, earlier_usage: Sequence[CanonicalUsage] = ()) -> None:
        """Store the answer and its usage, and start background work.

        `earlier_usage`: the usage of earlier calls that are recorded together with this one.
        """
        threads = self._threads
        if self.request.asks_for_compaction:
            names = self._list_compaction_names(outcome)
            await threads.record_compaction(self.call, outcome, names)
            return
        answer = threads.expect_answer(self.call, outcome)
        self._body_memory.forwarding_terms = None
        if answer is not None and not self._is_expanded:
            self._body_memory.forwarding_terms = make_forwarding_terms(
                self.request,
                self.call,
                outcome,
                options=self._setup.options,
                answered_history=answer.history,
            )
        await threads.record(self.call, outcome, answer, earlier_usage)

    def _list_compaction_names(self, outcome: Outcome) -> list[str]:
        """Return the names of the compactions in an answer of the provider."""
        if outcome.reply is None:
            return []
        api = self.call.settings.api
        wire_messages = encode_messages(api, [outcome.reply.message], self.call.model)
        return [
            identify_message(api, value).fingerprint
            for value in wire_messages
            if is_compaction(value)
        ]

    def _render(self) -> Outgoing:
        """Return the request to send with the current rewrite, rounds and limits."""
        call = self.call
        has_recall = offers_recall(call, self.request.slices)
        tokens = self._threads.remember_prompt(call)
        self._set_headers(tokens, has_recall=has_recall)
        marks_pay = tokens.with_rewrite >= MIN_CACHED_TOKENS
        options = RenderOptions(
            has_recall,
            self._mark_ttl if marks_pay else None,
            self._body_memory.marks,
        )
        body = render_request(self.request, call, options)
        return Outgoing(
            self.request.incoming.body.raw if body is None else body,
            is_rewritten=body is not None or self._is_expanded,
            headers=self._headers,
            compaction_count=call.rewrite.depth if call.rewrite else 0,
            tokens=tokens.with_rewrite,
            should_hold_first_events=tokens.with_rewrite > MIN_HOLD_SHARE * call.limits.window,
            offers_recall=has_recall,
        )

    def _set_headers(self, tokens: PromptTokens, *, has_recall: bool) -> None:
        rewrite = self.call.rewrite
        depth = rewrite.depth if rewrite else 0
        if rewrite is not None and tokens.is_new_rewrite:
            recall_text = "; the model gets it back with recall" if has_recall else ""
            receipt = (
                f"compaction {depth}: {tokens.without_rewrite} -> {tokens.with_rewrite} tokens, "
                f"{rewrite.replaced_count} messages covered{recall_text}"
            )
            self._headers[RECEIPT_HEADER] = receipt
            self._setup.listener(CompactionReceipt(self.thread, receipt))
        self._headers[COMPACTIONS_HEADER] = str(depth)
        self._headers[TOKENS_HEADER] = f"{tokens.without_rewrite}/{tokens.with_rewrite}"
        if depth >= MIN_REPEATED_COMPACTIONS:
            self._headers[NOTICE_HEADER] = make_repeated_compaction_notice(depth)

    def _keep_unchanged(self) -> None:
        """Send the client's bytes unchanged."""
        reason = self.request.unmanaged_reason
        if reason:
            self._headers[NOTICE_HEADER] = f"passed on unmanaged: {reason}"
        if reason and self.request.incoming.mode == "managed":
            self._setup.listener(Unmanaged(self.thread, reason))
        self.outgoing = replace(self.outgoing, headers=self._headers)
