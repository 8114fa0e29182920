"""Decide on the request to send upstream, for a client that sends its whole history each time.

    manager = ProxyManager(ManagerSetup(store, engine, engine_key, summarizer, window))
    turn = await manager.prepare(incoming)          # turn.sent: the client's bytes, or the beginning rewritten
    again = await turn.recover(400, error)          # after an error of the provider
    await turn.record(outcome)

Rewrites are kept in the store and found again by the history itself, so a manager may die at any moment and another
one, in another process, sends the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from everthread.compaction.summary import CompactionLevel
from everthread.core.canonical_usage import CanonicalUsage
from everthread.core.economics import EARLIEST
from everthread.core.tokens import TokenCounter
from everthread.core.types import Reply
from everthread.errors import EverthreadError, StoreError, WireError
from everthread.gateway.contracts import (
    RECEIPT_HEADER,
    THREAD_HEADER,
    Incoming,
    Outcome,
    Outgoing,
    ProxyTurn,
    Replacement,
    UnmanagedTurn,
    encode_messages,
)
from everthread.gateway.identify import scope_of
from everthread.gateway.management.caller import CallerContext, CallerServices
from everthread.gateway.management.client_request import ClientRequest
from everthread.gateway.management.compaction_items import (
    TRIGGER,
    expand_items,
    has_item,
    item_key,
    make_item,
)
from everthread.gateway.management.forwarding import (
    ForwardedTurn,
    forward,
    make_terms,
)
from everthread.gateway.management.gateway_events import (
    CompactionReceipt,
    RecallAnswered,
    RecordFailed,
    Unmanaged,
)
from everthread.gateway.management.known_bodies import BodyMatch, BodyOrigin
from everthread.gateway.management.recall_offer import (
    MAX_RECALL_ROUNDS,
    RECALL_SECONDS,
    RecallService,
)
from everthread.gateway.management.recorder import PendingAnswer, ThreadRecorder
from everthread.gateway.management.replacement import is_compaction
from everthread.gateway.management.request_reader import (
    OURS,
    BodyOutline,
    RequestReader,
    SizeCache,
)
from everthread.gateway.management.rewrites import (
    RewriteDraft,
    RewriteState,
    RewriteStore,
    rewrite_key,
)
from everthread.gateway.management.setup import ManagerSetup
from everthread.gateway.management.sizing import PromptSizer
from everthread.gateway.management.thread_index import ThreadIndex
from everthread.gateway.management.thread_match import Family, ThreadMatch
from everthread.gateway.management.thread_memory import ThreadMemories, ThreadMemory
from everthread.gateway.management.turn import ManagedTurn
from everthread.gateway.render import build_outgoing, receipt_text, send_untouched
from everthread.store.records import NewUsage
from everthread.thread.accounting import Accounting, complete_usage
from everthread.thread.engine_jobs import CompactionRunner, EngineSetup
from everthread.thread.history import identify
from everthread.thread.managed import (
    CompactionOrder,
    ManagedThread,
    ProviderRefusal,
    ThreadTools,
)
from everthread.thread.model_limits import ModelLimits
from everthread.thread.policy import CompactionPolicy, PolicyDecision
from everthread.thread.recovery import room_for_output

_STATE = "gateway"
_MAX_WINDOWS = 1_000
"""Models whose windows are remembered: clients name them."""
_CLOSE_SECONDS = 5.0
"""Seconds for summaries that are being written when the gateway ends."""
_CANCEL_SECONDS = 1.0
"""Seconds for cancelled summaries to report their usage."""


class ProxyManager:
    """The `gateway.contracts.Manager` that stores, matches and rewrites requests."""

    def __init__(self, setup: ManagerSetup) -> None:
        self.setup = setup
        self.accounting = Accounting(
            setup.store, setup.wall, setup.listener, early=True
        )
        self.limits = ModelLimits(setup.store, setup.clock)
        self.policy = CompactionPolicy(setup.options, setup.wall)
        self.runner = CompactionRunner(
            is_built_in=setup.is_built_in_engine,
            seconds=setup.compaction_seconds,
            processes=setup.compaction_processes,
        )
        self._windows: dict[tuple[str, str, str], int] = {}
        self._threads = ThreadIndex(setup.store)
        self._recorder = ThreadRecorder(
            self._threads, setup.listener, is_alone=setup.is_alone
        )
        self._rewrites = RewriteStore(
            setup.store, setup.listener, self.accounting, self.runner
        )
        sizes = SizeCache()
        self._sizer = PromptSizer(sizes)
        self._reader = RequestReader(sizes)
        self._recall = RecallService(setup.store, enabled=setup.recall)
        self._memories = ThreadMemories()
        self._services = CallerServices(
            setup=setup,
            accounting=self.accounting,
            limits=self.limits,
            recorder=self._recorder,
            rewrites=self._rewrites,
            recall=self._recall,
            sizer=self._sizer,
        )
        self._tools = ThreadTools(self.policy, setup.options, setup.wall, setup.timer)

    # The moments of a request

    def find_known(self, origin: BodyOrigin, body: bytes) -> BodyMatch | None:
        return self._reader.find_known(origin, body)

    def locate(
        self, origin: BodyOrigin, body: bytes, match: BodyMatch | None
    ) -> BodyOutline | None:
        try:
            return self._reader.locate(origin, body, match)
        except WireError:  # reading its fields in another way shows the reason
            return None

    def forward_first(self, incoming: Incoming) -> ProxyTurn | None:
        outline = incoming.outline
        if outline is None or outline.match is None:
            return None
        thread = outline.match.known.thread
        memory = self._memories.get(thread)
        if memory is None:
            return None
        sent = forward(
            incoming, outline, memory, reader=self._reader, ttl=self._mark_ttl
        )
        if sent is None:
            return None
        return ForwardedTurn(self, incoming, outline, thread=thread, sent=sent)

    def reading_answered(
        self, incoming: Incoming, outline: BodyOutline
    ) -> AbstractContextManager[None]:
        """Make other requests of the session wait while a forwarded one is read."""
        scope = scope_of(incoming.headers, outline.sliced.fields)
        return self._threads.reading_answered(Family(incoming.tenant, scope))

    async def read_forwarded(
        self,
        incoming: Incoming,
        outline: BodyOutline,
        sent: Outgoing,
        *,
        is_answered: bool,
    ) -> ManagedTurn:
        """Read a request that was forwarded, and store it once it is answered."""
        turn = await self._begin(incoming, outline)
        turn.sent = sent
        self._recall.offer(turn)
        turn.estimate = self._sizer.estimate(turn, None)
        self._recorder.start(turn, is_answered=is_answered)
        return turn

    async def prepare(self, incoming: Incoming) -> ProxyTurn:
        if incoming.mode == "off":
            return UnmanagedTurn(incoming)
        outline = incoming.outline or self._locate(incoming)
        plain = self._expand_own_items(incoming) if OURS in outline.holds else incoming
        if plain is not incoming:
            outline = self._locate(plain)
        turn = await self._begin(plain, outline)
        if not len(turn.request.history):
            return UnmanagedTurn(incoming)  # without messages it belongs to no thread
        turn.is_expanded = plain is not incoming
        await self._thread(turn).cancel_idle_timer()
        try:
            await self._choose_outgoing(turn)
        finally:  # also after a failure or disconnect: other requests may wait for these messages
            self._recorder.start(turn)
        return turn

    async def _begin(self, incoming: Incoming, outline: BodyOutline) -> ManagedTurn:
        """Read a request and expect it in the store; requests of a known thread in their order."""
        memory = None
        if outline.match is not None:
            memory = self._memories.get(outline.match.known.thread)
        async with memory.reading if memory is not None else nullcontext():
            turn = await self._read(incoming, outline)
            if len(turn.request.history):
                self._recorder.begin(turn)
            return turn

    async def _choose_outgoing(self, turn: ManagedTurn) -> None:
        if turn.request.is_rewritable and self.setup.options.enabled:
            await self._fit(turn)
        if turn.request.is_rewritable:
            turn.sent = self.send(turn)
        else:
            turn.estimate = turn.request.fixed + turn.request.size
            turn.sent = send_untouched(turn)
            if (
                turn.request.unmanaged_reason
                and turn.request.incoming.mode == "managed"
            ):
                self.setup.listener(
                    Unmanaged(turn.match.thread, turn.request.unmanaged_reason)
                )

    def _expand_own_items(self, incoming: Incoming) -> Incoming:
        """Replace our compaction items in the request by the messages that they represent."""
        if (
            incoming.mode != "managed"
            or incoming.api != "openai_responses"
            or not has_item(incoming.body)
        ):
            return incoming
        key = self.setup.key_of(incoming.tenant)
        expanded = expand_items(incoming.body, key)
        if expanded is None:
            return incoming
        return replace(
            incoming,
            raw=expanded.body,
            body=expanded.body,
            outline=None,
            replacement=Replacement(expanded.key, expanded.end),
        )

    async def response_headers(self, turn: ManagedTurn) -> Mapping[str, str]:
        """Return the headers for the client; the thread id is among them once the thread is stored."""
        if turn.storage.storing is None or (
            turn.match.is_named and not turn.storage.storing.done()
        ):
            # The thread is known: an answer that is quicker than the store does not wait for it.
            return {THREAD_HEADER: turn.thread, **turn.sent.headers}
        match = await self._recorder.store_request(turn)
        return (
            {THREAD_HEADER: match.thread, **turn.sent.headers}
            if turn.storage.is_stored
            else turn.sent.headers
        )

    async def record(self, turn: ManagedTurn, outcome: Outcome) -> None:
        """Store the answer and its usage, and prepare the next rewrite if it will soon be due."""
        if turn.request.asks_compaction:
            await self._record_compaction(turn, outcome)
            return
        answer = self._recorder.expect_answer(turn, outcome)
        turn.memory.forwarding = None
        if answer is not None:
            self._recall.expect(turn, answer.history)
            turn.memory.forwarding = make_terms(
                turn, outcome, self.setup.options, answer.history
            )
        try:
            await self._store_outcome(turn, outcome, answer)
        finally:
            if answer is not None:
                self._recorder.give_up(answer)
                self._recall.settle(turn)
        is_managed = turn.request.is_rewritable and not turn.request.sliced.single
        if 200 <= outcome.status < 300 and is_managed and not turn.is_undone:
            context = self._context(turn)
            context.answer_tokens = outcome.usage.output_tokens if outcome.usage else 0
            thread = self._thread(turn, context)
            await thread.prepare_ahead()
            if self.setup.options.idle:
                thread.start_idle_timer()

    async def _record_compaction(self, turn: ManagedTurn, outcome: Outcome) -> None:
        """Record a compaction of the provider: a history may begin with it from now on.

        It is not stored as an answer: the conversation may continue without it.
        """
        reply = outcome.reply
        if 200 <= outcome.status < 300 and reply is not None:
            request = turn.request
            values = encode_messages(
                request.incoming.api, [reply.message], request.model
            )
            for value in filter(is_compaction, values):
                key = identify(request.incoming.api, value).fingerprint
                self._threads.expect_replacement(turn.match, request.history, key)
            await self._recorder.store_request(turn)
            await self._keep_replacements(turn)
        await self._store_outcome(turn, outcome, None)

    async def _keep_replacements(self, turn: ManagedTurn) -> None:
        try:
            await self._threads.keep_replacements()
        except EverthreadError as error:
            self.setup.listener(RecordFailed(turn.match.thread, str(error)))

    async def _store_outcome(
        self, turn: ManagedTurn, outcome: Outcome, answer: PendingAnswer | None
    ) -> None:
        """Store the answer and its usage, and learn from the usage."""
        is_success = 200 <= outcome.status < 300
        if is_success and outcome.usage is not None and not outcome.estimated:
            prompt = outcome.usage.prompt_tokens
            turn.memory.context.calibration.observe(
                turn.request.model, prompt, turn.estimate
            )
            self._thread(turn).learn_from_usage(outcome.usage)
        usage = (
            self._price_calls(turn, outcome)
            if is_success or outcome.usage is not None
            else []
        )
        try:
            state = _STATE, turn.memory.context.dump()
            await self._recorder.store_outcome(turn, answer, usage, state)
            for record in usage:
                self.accounting.report(record)
            thread = turn.match.thread
            if self.accounting.has_lost(thread):
                await self.accounting.record_lost(thread)
            if turn.recall.rows:
                await self._recall.keep(turn, thread)
        except EverthreadError as error:
            self.setup.listener(RecordFailed(turn.match.thread, str(error)))
        if is_success and outcome.usage is not None and not outcome.estimated:
            await self._learn_success(turn, outcome.usage.prompt_tokens)

    async def _learn_success(self, turn: ManagedTurn, prompt: int) -> None:
        """Learn that the model takes a prompt of this size."""
        try:
            if prompt:
                await self.limits.succeed(turn.request.limit_key, prompt)
        except EverthreadError as error:
            self.setup.listener(RecordFailed(turn.match.thread, str(error)))

    def _price_calls(self, turn: ManagedTurn, outcome: Outcome) -> list[NewUsage]:
        """Return the usage of hidden rounds, then of the client's call; estimated if the provider reported none."""
        usage = outcome.usage
        estimated = outcome.estimated
        if usage is None:
            counter = TokenCounter(turn.request.model)
            usage, estimated = complete_usage(
                CanonicalUsage(), outcome.reply, turn.estimate, counter
            )
        hidden = [
            self.accounting.price_call(turn.match.thread, turn.request.model, used)
            for used in outcome.hidden
        ]
        return [
            *hidden,
            self.accounting.price_call(
                turn.match.thread, turn.request.model, usage, estimated=estimated
            ),
        ]

    def offers_recall(self, turn: ManagedTurn) -> bool:
        """Return whether the client of a request gets our recall tool."""
        return self._recall.serves(turn)

    def warm(self) -> None:
        """Start a process for the first compaction ahead."""
        setup = EngineSetup(
            self.setup.engine,
            "gpt-4o",
            self.setup.options.budget(128_000),
            self.setup.summary_key,
        )
        self.runner.start_ahead(setup)

    async def close(self) -> None:
        """Let background compactions end within a few seconds; cancel the others and record their usage."""
        await self._memories.end_preparations(_CLOSE_SECONDS)
        await self._rewrites.close(_CANCEL_SECONDS)
        await self.accounting.record_lost()

    # Reading

    async def _read(self, incoming: Incoming, outline: BodyOutline) -> ManagedTurn:
        """Find the thread of a request and count its tokens; only new messages are read in full."""
        read = await self._reader.read(outline)
        request = ClientRequest(incoming, read)
        scope = scope_of(incoming.headers, read.sliced.fields)
        match = await self._threads.find_match(
            Family(incoming.tenant, scope), read.history, request.wire_messages
        )
        self._reader.remember(match.thread, outline, read)
        memory = await self._load_memory(
            match, is_shortened=request.replacement is not None
        )
        turn = ManagedTurn(self, request, match, memory)
        turn.limit.window = await self.limits.window(
            turn.request.limit_key, await self._load_window(turn)
        )
        await self._context(turn).load_caps()
        return turn

    def _locate(self, incoming: Incoming) -> BodyOutline:
        origin = BodyOrigin.of(incoming.api, incoming.tenant, incoming.headers)
        match = self._reader.find_known(origin, incoming.body)
        return self._reader.locate(origin, incoming.body, match)

    async def _load_window(self, turn: ManagedTurn) -> int:
        """Return the window of a model at an address, looked up once."""
        incoming = turn.request.incoming
        key = (incoming.upstream, turn.request.model, turn.request.limit_key.headers)
        if key not in self._windows:
            if len(self._windows) >= _MAX_WINDOWS:
                self._windows.clear()
            self._windows[key] = await self.setup.window(
                incoming.api,
                turn.request.model,
                incoming.upstream,
                turn.request.limit_key.headers,
            )
        return self._windows[key]

    async def _load_memory(
        self, match: ThreadMatch, *, is_shortened: bool
    ) -> ThreadMemory:
        """Return the memory of a thread. `is_shortened`: its beginning is not sent."""
        memory = self._memories.get(match.thread)
        if memory is not None:
            memory.continues_other = memory.continues_other or is_shortened
            return memory
        store = self.setup.store
        source = match.branch_of[0] if match.branch_of else match.thread
        state = await store.get_state(source, _STATE) if match.matched else None
        begun = self._memories.begin(match.thread, state, is_stored=not match.is_new)
        begun.has_hidden_rounds = await self._recall.has_rounds(match)
        begun.continues_other = is_shortened or (
            match.continues_other
            if match.is_new
            else await store.continues_other(match.thread)
        )
        return begun

    # Fitting

    def _context(self, turn: ManagedTurn) -> CallerContext:
        return CallerContext(turn, self._services)

    def _thread(
        self, turn: ManagedTurn, context: CallerContext | None = None
    ) -> ManagedThread[RewriteDraft]:
        return ManagedThread(
            context or self._context(turn), self._tools, turn.memory.preparation
        )

    @property
    def _mark_ttl(self) -> str | None:
        """Return the lifetime of the cache marks that we set; None if we set none."""
        return self.setup.options.cache_ttl if self.setup.cache_markers else None

    def send(self, turn: ManagedTurn) -> Outgoing:
        """Return the request to send as things are now."""
        key = None if turn.used is None else rewrite_key(turn.used)
        is_new = key is not None and key != turn.memory.rewrite
        turn.memory.rewrite = key
        self._recall.offer(turn)
        turn.estimate = self._sizer.estimate(turn, turn.used)
        before = self._sizer.tokens(turn, None)
        after = self._sizer.tokens(turn, turn.used)
        if turn.limit.learnt_window is not None:
            counted = turn.memory.context.calibration
            unreported = (
                after
                if is_new
                else counted.unreported(turn.request.model, turn.estimate)
            )
            turn.limit.room = room_for_output(
                turn.limit.learnt_window, after, unreported=unreported
            )
        if is_new and turn.used is not None:
            turn.memory.context.compacted = after
            turn.headers[RECEIPT_HEADER] = receipt = receipt_text(
                turn.used, before, after, recall=turn.recall.offered
            )
            self.setup.listener(CompactionReceipt(turn.match.thread, receipt))
        sent = build_outgoing(turn, before, after, ttl=self._mark_ttl)
        return replace(sent, rewritten=True) if turn.is_expanded else sent

    async def _fit(self, turn: ManagedTurn) -> None:
        """Use the rewrite there is, and compact if the policy says so."""
        options = self.setup.options
        budget = turn.budget(options)
        earliest = (
            EARLIEST * budget.threshold
            if options.economics
            else budget.background_start
        )
        is_small = self._sizer.tokens(turn, None) < earliest
        if turn.request.sliced.single or (
            is_small
            and not turn.memory.slim
            and not turn.memory.continues_other
            and not turn.memory.has_hidden_rounds
        ):
            return
        context = self._context(turn)
        async with turn.memory.compacting:
            await context.look_up()
            if turn.is_undone and not context.size.is_full:
                turn.decision = PolicyDecision(
                    "send", "the last compaction was taken back by hand"
                )
                return
            turn.decision = await self._thread(turn, context).compact_if_needed(
                reason="in-loop"
            )

    # The rounds of our own tool

    async def resume(self, turn: ManagedTurn, reply: Reply) -> Outgoing | None:
        """Return the request to send after a round that called our own tool; None if the response ends."""
        now = self.setup.clock()
        turn.recall.started_at = turn.recall.started_at or now
        await self._recorder.store_request(turn)
        if not await self._recall.answer(turn, reply):
            return None
        if now - turn.recall.started_at > RECALL_SECONDS:
            turn.recall.rounds = MAX_RECALL_ROUNDS
        turn.sent = self.send(turn)
        self.setup.listener(
            RecallAnswered(turn.match.thread, turn.recall.rounds, turn.recall.calls)
        )
        return turn.sent

    def retry_without_recall(self, turn: ManagedTurn, reply: Reply) -> Outgoing:
        """Return a smaller request after the next round was refused, and no longer offer the tool."""
        self._recall.refuse_last_round(turn, reply)
        turn.sent = self.send(turn)
        return turn.sent

    async def compact_once(
        self, incoming: Incoming, level: CompactionLevel, window: int | None = None
    ) -> dict[str, Any]:
        """Compact a conversation now for this window.

        Return its messages, a receipt, and the thread for recall.
        """
        turn = await self._read_to_compact(incoming)
        turn.limit.window = window or turn.limit.window
        before = self._sizer.tokens(turn, None)
        why = self._refusal(turn) or await self._compact_by_hand(turn, level)
        rewrite = turn.used
        receipt = {
            "changed": rewrite is not None,
            "reason": why,
            "tokens_before": before,
            "tokens_after": self._sizer.tokens(turn, rewrite),
            "messages_covered": rewrite.length if rewrite else 0,
            "thread": turn.match.thread,
            "system_note": RewriteState.load(rewrite.state).note if rewrite else "",
        }
        lead = turn.request.sliced.elements[: turn.request.first]
        messages = [*(element.value for element in lead), *turn.compacted_values()]
        return {
            "messages": messages,
            "receipt": receipt,
            "handle": turn.match.thread,
        }

    async def _read_to_compact(self, incoming: Incoming) -> ManagedTurn:
        """Read and store a conversation that is to be compacted by hand."""
        plain = self._expand_own_items(incoming)
        turn = await self._read(plain, self._locate(plain))
        await self._recorder.store_request(turn)
        if not turn.storage.is_stored:
            raise StoreError(
                "the conversation cannot be stored, and what is not stored is not taken out of it"
            )
        return turn

    async def _compact_by_hand(self, turn: ManagedTurn, level: CompactionLevel) -> str:
        """Compact whatever the size; return why nothing changed, empty if something did."""
        order = CompactionOrder("manual", level=level, is_manual=True)
        async with turn.memory.compacting:
            made = await self._thread(turn).compact_by_hand(order)
        return "" if made.changed else made.reason

    def _refusal(self, turn: ManagedTurn) -> str:
        """Return why this conversation may not be compacted at all; empty if it may."""
        if not self.setup.options.enabled:
            return "compression is disabled (compression.enabled: false)"
        if turn.request.incoming.mode != "managed":
            return f"requests of this key are not managed (mode {turn.request.incoming.mode})"
        if turn.request.unmanaged_reason not in ("", TRIGGER):
            return f"the provider keeps or changes this history itself ({turn.request.unmanaged_reason})"
        return ""

    async def compaction_item(self, incoming: Incoming) -> tuple[dict[str, Any], int]:
        """Return one item that replaces a conversation, and the tokens it represents.

        The thread continues when a history begins with it.
        """
        turn = await self._read_to_compact(incoming)
        if not self._refusal(turn):
            await self._compact_by_hand(turn, CompactionLevel.NORMAL)
        lead = turn.request.sliced.elements[: turn.request.first]
        messages = [*(element.value for element in lead), *turn.compacted_values()]
        item = make_item(messages, self.setup.key_of(incoming.tenant))
        self._threads.expect_replacement(
            turn.match, turn.request.history, item_key(item)
        )
        await self._threads.keep_replacements()
        return item, self._sizer.tokens(turn, turn.used)

    # After a refusal

    async def recover(
        self, turn: ManagedTurn, status: int, body: bytes
    ) -> Outgoing | None:
        """Return the request to send after a refusal; None if the client gets the error."""
        refusal = ProviderRefusal(status, body.decode("utf-8", "replace"))
        async with turn.memory.compacting:
            step = await self._thread(turn).recover(turn.attempts, refusal)
        if step is None or step.action == "give_up":
            return None
        return self.send(turn)

    async def settle(self) -> None:
        """Wait for the background compactions."""
        await self._memories.wait_for_preparations()
