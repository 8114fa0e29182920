"""Decides what goes upstream for a client that sends its whole history each time.

    manager = ProxyManager(ManagerSetup(store, engine, engine_key, summarizer, window))
    turn = await manager.prepare(incoming)          # turn.sent: the very bytes, or the beginning rewritten
    again = await turn.recover(400, error)          # after an error of the provider
    await turn.record(outcome)

Rewrites are kept in the store and found again by the history itself, so a manager may die at any moment and another
one, in another process, sends the same bytes.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.compaction.composition import tools_key
from everthread.compaction.engine import ContextEngine, Services, progress_text
from everthread.compaction.summary import CompactionLevel, Summarizer
from everthread.context.accounting import Accounting, complete_usage
from everthread.context.policy import (
    COLD,
    FADING,
    GRACE,
    CallPrices,
    CompactionPolicy,
    PolicyDecision,
    PromptSize,
    fading_text,
    paused_text,
)
from everthread.context.recovery import (
    NEAR_LIMIT,
    SMALLEST_CAP,
    TOO_LARGE,
    ModelLimits,
    RecoveryStep,
    lasting_cap,
)
from everthread.context.worker import DEFAULT_COMPACTION_SECONDS, PROCESSES, CompactionWorker, EngineSetup
from everthread.conversation.events import (
    CompactionFailed,
    CompactionProgress,
    CompactionVoid,
    Event,
    LimitLearnt,
    Listener,
    Notice,
    UsageRecorded,
)
from everthread.conversation.events import Recovery as RecoveryEvent
from everthread.conversation.options import Route, SessionOptions, SummarizerContext
from everthread.core.cache_control import cache_route
from everthread.core.pricing import EARLIEST, CanonicalUsage
from everthread.core.provider_errors import ErrorVerdict, classify_error
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, Reply, Request
from everthread.errors import EverthreadError, StoreError, WireError
from everthread.gateway.base import RECEIPT_HEADER, THREAD_HEADER, Incoming, Outcome, Outgoing, ProxyTurn, UnmanagedTurn
from everthread.gateway.body import Values
from everthread.gateway.deadlines import run_together
from everthread.gateway.management.clients import scope_of
from everthread.gateway.management.compaction_items import TRIGGER, expand_items, has_item, make_item
from everthread.gateway.management.events import CompactionReceipt, RecallAnswered, RecordFailed, Unmanaged
from everthread.gateway.management.notice import has_notice, notice_line, strip_notices, takes_notice
from everthread.gateway.management.reader import MARK, OURS, BodyOutline, RequestReader, SizeCache, TableCache
from everthread.gateway.management.recall import MAX_RECALL_ROUNDS, RECALL_SECONDS, RecallService, hidden_values
from everthread.gateway.management.responses_state import Responses
from everthread.gateway.management.rewrite import (
    SLIM,
    RewriteState,
    RewriteStore,
    RewriteTask,
    rewrite_key,
)
from everthread.gateway.management.threads import PendingAnswer, ThreadIndex, ThreadMatch, ThreadRecorder, WireMessages
from everthread.gateway.management.turn import ManagedTurn, ThreadMemories, build_outgoing, receipt_text, send_untouched
from everthread.store.models import DEFAULT_TENANT, UNDONE_STATE, NewUsage, Rewrite
from everthread.store.store import Store


def _ignore_event(event: Event) -> None:
    """Drop an event: the default listener."""


@dataclass(frozen=True, slots=True)
class ManagerSetup:
    """Everything a manager needs from outside."""

    store: Store
    engine: Callable[[Services], ContextEngine]
    engine_key: str
    """Names the engine with its options: a rewrite is only for those who would have made the same."""
    summarizer: Callable[[SummarizerContext], Summarizer]
    window: Callable[[Api, str, str, str], Awaitable[int]]
    """Of a model at an address: `window(api, model, upstream, betas)`; asked once for each."""
    options: SessionOptions = field(default_factory=SessionOptions)
    cache_markers: bool = True
    """Set marks for Claude clients that set none."""
    portable_engine: bool = False
    """The engine can be made in another process: compactions then have processes of their own."""
    compaction_seconds: float = DEFAULT_COMPACTION_SECONDS
    """For one compaction, below what a request may take in all; then it is ended and the request goes on without."""
    compaction_processes: int = PROCESSES
    """So many at once."""
    recall: bool = True
    """Offer our own tool `recall` to clients whose thread was compacted."""
    summary_key: bytes = b""
    """Proves that a summary in a client's history is ours: the store's own secret; `key_of` a tenant's."""
    notice: bool = False
    """Show the person one line in the answer when a compaction takes effect."""
    emulate_state: bool = False
    """Resolve `previous_response_id` here, for upstreams that keep no state."""
    alone: bool = False
    """No other gateway writes to the store: a request can be stored with its answer, and its thread told before."""
    listener: Listener = _ignore_event
    clock: Callable[[], float] = time.monotonic
    """Seconds that only grow."""
    wall: Callable[[], float] = time.time

    def key_of(self, tenant: str) -> bytes:
        """The key that tags what is made for this tenant: a summary that another one had made proves nothing here.

        The default tenant has the store's own, as `everthread compress` has.
        """
        if not self.summary_key or tenant == DEFAULT_TENANT:
            return self.summary_key
        return hmac.digest(self.summary_key, tenant.encode(), "sha256")


_STATE = "gateway"
_MOST_WINDOWS = 1_000
"""Models whose windows are remembered: clients name them."""
_CLOSE_SECONDS = 5.0
"""Seconds for summaries that are being written when the gateway ends."""
_CANCEL_SECONDS = 1.0
"""Seconds for those that are given up to say what they asked for."""


class ProxyManager:
    """`gateway.base.Manager`."""

    def __init__(self, setup: ManagerSetup) -> None:
        self.setup = setup
        self.accounting = Accounting(setup.store, setup.wall, self._report_usage, early=True)
        self.limits = ModelLimits(setup.store, setup.clock)
        self.policy = CompactionPolicy(setup.options, setup.wall)
        self.worker = CompactionWorker(
            portable=setup.portable_engine, seconds=setup.compaction_seconds, processes=setup.compaction_processes
        )
        self._windows: dict[tuple[str, str, str], int] = {}
        self._threads = ThreadIndex(setup.store)
        self._recorder = ThreadRecorder(self._threads, setup.listener, alone=setup.alone)
        self._rewrites = RewriteStore(setup.store, setup.listener, self.accounting, self.worker)
        self._sizes = SizeCache()
        self._reader = RequestReader(self._sizes)
        self._responses = Responses(setup.store)
        self._recall = RecallService(setup.store, enabled=setup.recall)
        self._memories = ThreadMemories()
        self._tables = TableCache()
        self._jobs: dict[tuple[str, str], asyncio.Task[Rewrite | None]] = {}

    # The moments of a request

    def locate(self, api: Api, body: bytes) -> BodyOutline | None:
        try:
            return self._reader.begin(api, body)
        except WireError:  # whose fault it is is found when its fields are read otherwise
            return None

    async def prepare(self, incoming: Incoming) -> ProxyTurn:
        if incoming.mode == "off":
            return UnmanagedTurn(incoming)
        outline = incoming.outline or self._reader.begin(incoming.api, incoming.body)
        plain = self._strip_own_items(incoming) if OURS in outline.holds else incoming
        expanded = await self._responses.expand_request(plain) if self._emulates_state(incoming) else None
        read = expanded or plain
        turn = await self._read(read, outline if read is incoming else self._reader.begin(read.api, read.body))
        if not len(turn.history):
            return UnmanagedTurn(incoming)  # nothing was said: there is no thread it could belong to
        turn.is_expanded = expanded is not None or plain is not incoming
        self._recorder.begin(turn)
        try:
            await self._choose_outgoing(turn)
        finally:  # also where that failed, or the client left: others may wait for what was said
            self._recorder.start(turn)
        return turn

    async def _choose_outgoing(self, turn: ManagedTurn) -> None:
        if turn.rewritable and self.setup.options.enabled:
            await self._fit(turn)
        if turn.rewritable:
            turn.sent = self.send(turn)
        else:
            turn.estimate = turn.fixed + turn.size
            turn.sent = send_untouched(turn)
            if turn.unmanaged_reason and turn.incoming.mode == "managed":
                self.setup.listener(Unmanaged(turn.match.thread, turn.unmanaged_reason))

    def _strip_own_items(self, incoming: Incoming) -> Incoming:
        """The request without what a client keeps of ours: lines for the person, and items that stand for messages."""
        if incoming.mode != "managed":
            return incoming
        text, key = None, self.setup.key_of(incoming.tenant)
        if incoming.api == "openai_responses" and has_item(incoming.body):
            text = expand_items(incoming.body.decode("utf-8", "replace"), key)
        if has_notice(incoming.body):
            text = strip_notices(text or incoming.body.decode("utf-8", "replace"), incoming.api, key) or text
        return incoming if text is None else replace(incoming, raw=text.encode(), body=text.encode(), outline=None)

    async def response_headers(self, turn: ManagedTurn) -> Mapping[str, str]:
        """The headers for the client; the thread id is among them once the thread is stored."""
        if turn.storing is None or (turn.match.explicit and not turn.storing.done()):
            # The thread is known: an answer that is quicker than the store does not wait for it.
            return {THREAD_HEADER: turn.thread, **turn.sent.headers}
        match = await self._recorder.store_request(turn)
        return {THREAD_HEADER: match.thread, **turn.sent.headers} if turn.is_stored else turn.sent.headers

    async def record(self, turn: ManagedTurn, outcome: Outcome) -> None:
        """Store the answer and its usage, and prepare the next rewrite if it will soon be due."""
        answer = self._recorder.expect_answer(turn, outcome)
        if answer is not None:
            self._recall.expect(turn, answer.history)
        try:
            await self._store_outcome(turn, outcome, answer)
        finally:
            if answer is not None:
                self._recorder.give_up(answer)
                self._recall.settle(turn)
        if 200 <= outcome.status < 300 and turn.rewritable:
            self._prepare_ahead(turn, outcome)

    async def _store_outcome(self, turn: ManagedTurn, outcome: Outcome, answer: PendingAnswer | None) -> None:
        """Store the answer and its usage, and learn from the usage."""
        is_success = 200 <= outcome.status < 300
        learns: list[Coroutine[Any, Any, bool]] = []
        if is_success and outcome.usage is not None and not outcome.estimated:
            prompt = outcome.usage.prompt_tokens
            context = turn.memory.context
            context.calibration.observe(turn.model, prompt, turn.estimate)
            context.observe(outcome.usage, self.setup.wall(), ttl=self.setup.options.cache_seconds)
            self._judge(turn, prompt)
            learns = [self.limits.succeed(turn.limit_key, prompt)] if prompt else []
        usage = self._price_calls(turn, outcome) if is_success or outcome.usage is not None else []
        try:
            state = _STATE, turn.memory.context.dump()
            await run_together(*learns, self._recorder.store_outcome(turn, answer, usage, state))
            for record in usage:
                self._report_usage(record)
            thread, reply = turn.match.thread, outcome.reply
            if self.accounting.has_lost(thread):
                await self.accounting.record_lost(thread)
            if turn.recall.rows:
                await self._recall.keep(turn, thread)
            if is_success and reply and reply.id and self._emulates_state(turn.incoming):
                await self._responses.keep(turn.match, reply, turn)
        except EverthreadError as error:
            self.setup.listener(RecordFailed(turn.match.thread, str(error)))

    def _price_calls(self, turn: ManagedTurn, outcome: Outcome) -> list[NewUsage]:
        """The usage of the client's call, estimated where the provider reported none, after that of hidden rounds."""
        usage, estimated = outcome.usage, outcome.estimated
        if usage is None:
            counter = TokenCounter(turn.model)
            usage, estimated = complete_usage(CanonicalUsage(), outcome.reply, turn.estimate, counter)
        hidden = [self.accounting.price_call(turn.match.thread, turn.model, used) for used in outcome.hidden]
        return [*hidden, self.accounting.price_call(turn.match.thread, turn.model, usage, estimated=estimated)]

    def _report_usage(self, record: NewUsage) -> None:
        self.setup.listener(
            UsageRecorded(record.session, record.model, record.task, record.usage, record.cost, record.estimated)
        )

    def _emulates_state(self, incoming: Incoming) -> bool:
        return self.setup.emulate_state and incoming.mode == "managed" and incoming.api == "openai_responses"

    def warm(self) -> None:
        """Start a worker for the first compaction in the background."""
        setup = EngineSetup(self.setup.engine, "gpt-4o", self.setup.options.budget(128_000), self.setup.summary_key)
        self.worker.warm_soon(setup)

    async def close(self) -> None:
        """Let background compactions end within a few seconds; cancel the others and record their usage."""
        jobs = [job for job in self._jobs.values() if not job.done()]
        if jobs:
            await asyncio.wait(jobs, timeout=_CLOSE_SECONDS)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        await self._rewrites.close(_CANCEL_SECONDS)
        await self.accounting.record_lost()

    # Reading

    async def _read(self, incoming: Incoming, outline: BodyOutline) -> ManagedTurn:
        """Find the thread of a request and count its tokens; only new messages are read in full."""
        read = await self._reader.read_in_steps(incoming.api, outline)
        values = WireMessages(
            incoming.api, read.frame.model,
            Values(read.sliced.elements[read.first : len(read.sliced.elements) - read.trailing]),
        )  # fmt: skip
        scope = scope_of(incoming.headers, read.sliced.fields)
        match = await self._threads.find_match(incoming.tenant, scope, read.history, values)
        memory = await self._load_memory(match)
        turn = ManagedTurn(
            self, incoming, read.sliced, read.first, read.history, read.frame, read.sizes, read.fixed, match, memory,
            read.trailing, MARK in read.holds,
        )  # fmt: skip
        if self.setup.options.tables and turn.rewritable:
            turn.tables = self._tables.read(turn.history, turn.elements)
            turn.sizes = [
                size * len(turn.tables[index]) // len(turn.elements[index].text) if index in turn.tables else size
                for index, size in enumerate(turn.sizes)
            ]
        turn.window = await self.limits.window(turn.limit_key, await self._load_window(turn))
        turn.cap = await self.limits.output_cap(turn.limit_key)
        turn.has_recall = self._recall.serves(turn)
        turn.size = sum(turn.sizes)
        return turn

    async def _load_window(self, turn: ManagedTurn) -> int:
        """The window of a model at an address, looked up once."""
        incoming = turn.incoming
        key = (incoming.upstream, turn.model, turn.limit_key.headers)
        if key not in self._windows:
            if len(self._windows) >= _MOST_WINDOWS:
                self._windows.clear()
            self._windows[key] = await self.setup.window(
                incoming.api, turn.model, incoming.upstream, turn.limit_key.headers
            )
        return self._windows[key]

    async def _load_memory(self, match: ThreadMatch) -> Any:
        memory = self._memories.get(match.thread)
        if memory is not None:
            return memory
        source = match.branch_of[0] if match.branch_of else match.thread
        state = await self.setup.store.get_state(source, _STATE) if match.matched else None
        return self._memories.begin(match.thread, state, is_stored=not match.is_new)

    # Fitting

    def tokens(self, turn: ManagedTurn, used: Rewrite | None) -> int:
        """The prompt as the provider counts it, with this rewrite or none."""
        return turn.memory.context.calibration.project(turn.model, self.estimate(turn, used))

    def estimate(self, turn: ManagedTurn, used: Rewrite | None) -> int:
        if used is None:
            return turn.fixed + turn.size
        state = RewriteState.load(used.state)
        if state.model == turn.model:
            head = state.tokens
        else:
            values = turn.replacement_values(used)
            head = self._sizes.values(turn.incoming.api, turn.model, used.replacement, values)
        note = state.note
        if note:
            messages = [{"role": "user", "content": note}]
            head += self._sizes.values(turn.incoming.api, turn.model, ("note", note), messages)
        return turn.fixed + head + sum(turn.sizes[used.length :]) + self._hidden_estimate(turn, used.length)

    def _hidden_estimate(self, turn: ManagedTurn, length: int) -> int:
        """Tokens of what the client does not send: hidden rounds and restored files, beyond those they stand for."""
        more = sum(
            self._sizes.values(turn.incoming.api, turn.model, ("restored", turn.history.digest(index + 1)), [value])
            - turn.sizes[index]
            for index, value in turn.restored(length).items()
        )
        texts, values, places = hidden_values(turn, length)
        if not texts:
            return more
        hidden = self._sizes.values(turn.incoming.api, turn.model, ("hidden", *texts), values)
        return more + hidden - sum(sum(turn.sizes[start:end]) for start, end in places)

    def send(self, turn: ManagedTurn) -> Outgoing:
        """What goes upstream as things stand."""
        key = None if turn.used is None else rewrite_key(turn.used)
        is_new, turn.memory.rewrite = key is not None and key != turn.memory.rewrite, key
        turn.memory.has_sent = True
        self._recall.offer(turn)
        turn.estimate = self.estimate(turn, turn.used)
        before, after = self.tokens(turn, None), self.tokens(turn, turn.used)
        if turn.cap is not None:
            turn.room = max(turn.window - after - after // 20, SMALLEST_CAP)  # a new rewrite is estimated only
        if is_new and turn.used is not None:
            turn.memory.context.compacted = after
            turn.headers[RECEIPT_HEADER] = receipt = receipt_text(turn.used, before, after, recall=turn.recall.offered)
            self.setup.listener(CompactionReceipt(turn.match.thread, receipt))
            if self.setup.notice and takes_notice(turn.incoming.api, turn.sliced.fields):
                tag_key = self.setup.key_of(turn.incoming.tenant)
                turn.notice = notice_line(f"{receipt}; thread {turn.match.thread[:12]}", tag_key)
        ttl = self.setup.options.cache_ttl if self.setup.cache_markers else None
        sent = build_outgoing(turn, before, after, ttl=ttl)
        return replace(sent, rewritten=True) if turn.is_expanded else sent

    async def _fit(self, turn: ManagedTurn) -> None:
        """Use the rewrite there is; make one where it is time. Waits only where the request cannot go without.

        A draft that the conversation outgrew while it was written is not sent: the next one goes on from it, so that
        one compaction breaks the provider's cache once.
        """
        options, budget = self.setup.options, turn.budget(self.setup.options)
        earliest = EARLIEST * budget.threshold if options.economics else budget.background_start
        small = self.tokens(turn, None) < earliest
        if turn.sliced.single or (small and not turn.memory.slim):
            return
        await self.look_up(turn)
        if turn.is_undone and not self.size(turn, self.tokens(turn, turn.used)).is_full:
            turn.ready, turn.decision = None, PolicyDecision("send", "the last compaction was taken back by hand")
            return
        sent = None if self._is_unsent(turn) else turn.used
        turn.decision = self._decide(turn)
        if turn.decision.action == "wait":
            return
        turn.relieved = self.tokens(turn, turn.used) if turn.decision.compacts else 0
        if turn.decision.compacts and turn.ready is not None:
            turn.used, turn.ready = turn.ready, None
        decision = turn.decision
        for _ in range(2):  # what is under way may be of an earlier request, and cover too little
            if turn.decision is not decision or turn.used is not None:
                decision = self._decide(turn, again=True)
            outgrown = self._is_outgrown(turn)
            if not decision.compacts and not outgrown:
                return
            job = self._job(turn, background=options.background, reason=decision.reason or "in-loop")
            full = decision.must_wait or (outgrown and self.size(turn, self.tokens(turn, sent)).is_full)
            await asyncio.wait({job}, timeout=None if full or not options.background else GRACE)
            if not job.done():
                turn.used = sent if outgrown else turn.used
                return
            await self.look_up(turn, forced=True)
            decision = self._decide(turn, again=True)

    def _is_unsent(self, turn: ManagedTurn) -> bool:
        """Whether the rewrite in use would go upstream for the first time."""
        return turn.used is not None and turn.memory.has_sent and rewrite_key(turn.used) != turn.memory.rewrite

    def _is_outgrown(self, turn: ManagedTurn) -> bool:
        """Whether a new rewrite leaves so much that the next one is due at once."""
        if not self._is_unsent(turn):
            return False
        size = self.size(turn, self.tokens(turn, turn.used))
        return size.tokens >= size.budget.background_start and not self.policy.is_vain(size, turn.memory.context)

    def size(self, turn: ManagedTurn, tokens: int) -> PromptSize:
        """A prompt of so many tokens, for the policy."""
        factor = turn.memory.context.calibration.factor(turn.model)
        return PromptSize(tokens, round(turn.fixed * factor), turn.budget(self.setup.options), turn.requested_cap)

    def _prices(self, turn: ManagedTurn) -> CallPrices:
        marked = cache_route(turn.model, "auto", turn.incoming.upstream) is not None
        writer = self.setup.summarizer(self._summarizer_context(turn, turn.match.thread))
        return CallPrices(turn.model, "auto", marked, writer)

    def _decide(self, turn: ManagedTurn, *, again: bool = False) -> PolicyDecision:
        """Whether to compact before this call. `again`: only what is due now, early ones were weighed before."""
        size = self.size(turn, self.tokens(turn, turn.used))
        if again and size.tokens < size.budget.threshold:
            return PolicyDecision("send", "it is small enough now")
        ready = turn.ready is not None
        return self.policy.decide(size, turn.memory.context, self._prices(turn), reason="in-loop", ready=ready)

    def _judge(self, turn: ManagedTurn, prompt: int) -> None:
        """What a rewrite that is new brought: two in a row that hardly help pause the next ones."""
        used, pause = turn.used, turn.memory.context.pause
        if used is None or used.strength == SLIM:
            return
        before = turn.relieved or turn.budget(self.setup.options).threshold
        if turn.attempts.compactions:
            pause.exempt(used.depth)
        elif pause.judge(used.depth, before, prompt, self.setup.wall()):
            self.setup.listener(Notice(turn.match.thread, paused_text(prompt)))

    async def look_up(self, turn: ManagedTurn, *, forced: bool = False) -> None:
        """The longest rewrite of the history; `forced`: also one that is not ripe."""
        hidden, expected = self._recall.state_of(turn), self._recall.expected(turn)
        states = [(turn.match.thread, UNDONE_STATE), *hidden]
        rewrites, [undone, *rounds] = await self._rewrites.find(turn, self._engine_keys(turn), states)
        if not forced:
            rewrites = rewrites.prefer(turn.memory.rewrite)
        turn.used, turn.ready = rewrites.used, rewrites.ready
        turn.is_undone = isinstance(undone, dict) and turn.size < undone.get("until", 0)
        if forced and turn.ready is not None:
            turn.used, turn.ready = turn.ready, None
        self._recall.load(turn, expected or (rounds[0] if rounds else None))

    def _engine_keys(self, turn: ManagedTurn) -> list[str]:
        """By what rewrites are kept: the engine, and the tools that its summaries name.

        Where there are none for a client that gets our own tool, those count that were made before it was offered.
        """
        frames = (turn.equipped_frame, turn.frame) if turn.has_recall else (turn.frame,)
        return [f"{turn.incoming.api} {self.setup.engine_key}{tools_key(frame.tools)}" for frame in frames]

    # The rounds of our own tool

    async def resume(self, turn: ManagedTurn, reply: Reply) -> Outgoing | None:
        """What goes upstream after a round in which our own tool was called; None where the response ends."""
        now = self.setup.clock()
        turn.recall.started_at = turn.recall.started_at or now
        await self._recorder.store_request(turn)
        if not await self._recall.answer(turn, reply):
            return None
        if now - turn.recall.started_at > RECALL_SECONDS:
            turn.recall.rounds = MAX_RECALL_ROUNDS
        turn.sent = self.send(turn)
        self.setup.listener(RecallAnswered(turn.match.thread, turn.recall.rounds, turn.recall.calls))
        return turn.sent

    def withdraw(self, turn: ManagedTurn, reply: Reply) -> Outgoing:
        """After the next round was refused: send it with less, and no longer offer the tool."""
        self._recall.withdraw(turn, reply)
        turn.sent = self.send(turn)
        return turn.sent

    # Making rewrites

    def _job(
        self, turn: ManagedTurn, *, background: bool, ripe: int = 0, reason: str = "in-loop"
    ) -> asyncio.Task[Rewrite | None]:
        """The compaction of a thread that is under way; a new one where there is none."""
        key = (turn.incoming.tenant, turn.match.thread)
        job = self._jobs.get(key)
        if job is None or job.done():
            job = asyncio.get_running_loop().create_task(
                self._make_rewrite(turn, background=background, ripe=ripe, reason=reason)
            )
            self._jobs[key] = job
            job.add_done_callback(lambda done: self._jobs.pop(key, None) if self._jobs.get(key) is done else None)
        return job

    async def _make_rewrite(self, turn: ManagedTurn, *, background: bool, ripe: int, reason: str) -> Rewrite | None:
        """Make a rewrite at the normal level. A failure is reported as an event; the request goes on without."""
        tokens = self.tokens(turn, turn.used)
        rewrite: Rewrite | None = None
        try:
            rewrite = await self._find_newer_rewrite(turn)
            if rewrite is None:
                ahead = background and reason != COLD
                made = await self.compact(
                    turn, CompactionLevel.NORMAL, tokens, ripe=ripe, background=ahead, reason=reason
                )
                rewrite = made if isinstance(made, Rewrite) else None
        except EverthreadError as error:
            self.setup.listener(CompactionFailed(turn.match.thread, str(error)))
        if rewrite is None:
            turn.memory.context.fail(tokens)
        else:
            turn.memory.context.futile = 0
        return rewrite

    async def _find_newer_rewrite(self, turn: ManagedTurn) -> Rewrite | None:
        """A longer rewrite that another request or process made in the meantime."""
        rewrites, _ = await self._rewrites.find(turn, self._engine_keys(turn))
        longest = rewrites.ready or rewrites.used
        return longest if longest and longest.length > (turn.used.length if turn.used else 0) else None

    async def compact(
        self, turn: ManagedTurn, level: CompactionLevel, tokens: int, **how: Any
    ) -> Rewrite | CompactionVoid:
        """Make a rewrite that covers more than the one in use, or say why not; `how`: fields of its `RewriteTask`."""
        task = await self._task(turn, tokens, level=level, **how)
        context = self._summarizer_context(turn, task.thread)
        setup = EngineSetup(self.setup.engine, turn.model, task.budget, self.setup.key_of(turn.incoming.tenant))
        rewrite = await self._rewrites.make(task, setup, context, self.setup.summarizer(context))
        if isinstance(rewrite, Rewrite) and rewrite.depth >= FADING:
            self.setup.listener(Notice(task.thread, fading_text(rewrite.depth)))
        return rewrite

    async def _task(self, turn: ManagedTurn, tokens: int, **how: Any) -> RewriteTask:
        match = await self._recorder.store_request(turn)
        if turn.used is not None and turn.used.is_older:
            tokens = self.tokens(turn, None)
        return RewriteTask(
            tenant=turn.incoming.tenant,
            thread=match.thread,
            engine_key=self._engine_keys(turn)[0],
            api=turn.incoming.api,
            frame=turn.equipped_frame,
            sent=turn.pairs(),
            history=turn.history,
            budget=turn.budget(self.setup.options),
            tokens=tokens,
            base=turn.used,
            account=turn.incoming.account,
            decision=turn.plan,
            **how,
        )

    def _summarizer_context(self, turn: ManagedTurn, thread: str) -> SummarizerContext:
        route = Route(turn.model, turn.incoming.api, turn.window, base_url=turn.incoming.upstream)
        payer = turn.incoming.account

        def report(kind: str, **details: Any) -> None:
            if kind == "notice":
                self.setup.listener(Notice(thread, str(details.get("text", ""))))
            else:
                self.setup.listener(CompactionProgress(thread, progress_text(kind, details)))

        def lose(request: Request) -> None:
            self.accounting.lose(thread, request, payer)

        return SummarizerContext(route, TokenCounter(turn.model), lambda: None, report, lose)

    def _prepare_ahead(self, turn: ManagedTurn, outcome: Outcome) -> None:
        """From 80 % of the threshold on, make the next rewrite in the background.

        What is said after it stays in the prompt. So a rewrite that no model has to write is made just before it is
        due, where the thread's growth is known, and buys more calls.
        """
        if turn.ready is not None or turn.is_undone or turn.sliced.single:
            return
        output_tokens = outcome.usage.output_tokens if outcome.usage else 0
        size = self.size(turn, self.tokens(turn, turn.used) + output_tokens)
        if size.tokens < size.budget.background_start:
            return
        prices, context = self._prices(turn), turn.memory.context
        if not self.policy.prepares(size, context, prices):
            return
        growth = context.rhythm.growth
        if prices.free_summary and growth and size.tokens + growth < size.budget.threshold:
            return
        factor = max(context.calibration.factor(turn.model), 0.1)
        ripe = turn.size + max(0, round((size.budget.threshold - size.tokens) / factor))
        self._job(turn, background=True, ripe=ripe)

    async def compact_once(
        self, incoming: Incoming, level: CompactionLevel, window: int | None = None
    ) -> dict[str, Any]:
        """Compact a conversation now for this window: its messages, a receipt, and the thread for recall."""
        plain = self._strip_own_items(incoming)
        turn = await self._read(plain, self._reader.begin(plain.api, plain.body))
        turn.window = window or turn.window
        match = await self._recorder.store_request(turn)
        if not turn.is_stored:
            raise StoreError("the conversation cannot be stored, and what is not stored is not taken out of it")
        before = self.tokens(turn, None)
        rewrite, why = None, self._refusal(turn)
        if not why:
            made = await self.compact(turn, level, before, reason="manual")
            rewrite, why = (made, "") if isinstance(made, Rewrite) else (None, made.why)
        remaining = [element.value for element in turn.elements[rewrite.length if rewrite else 0 :]]
        lead = [element.value for element in turn.sliced.elements[: turn.first]]
        messages = [*lead, *(turn.replacement_values(rewrite) if rewrite else ()), *remaining]
        receipt = {
            "changed": rewrite is not None, "reason": why, "tokens_before": before,
            "tokens_after": self.tokens(turn, rewrite), "messages_covered": rewrite.length if rewrite else 0,
            "thread": match.thread, "system_note": RewriteState.load(rewrite.state).note if rewrite else "",
        }  # fmt: skip
        return {"messages": messages, "receipt": receipt, "handle": match.thread}

    def _refusal(self, turn: ManagedTurn) -> str:
        """Why this conversation may not be compacted at all; empty where it may."""
        if not self.setup.options.enabled:
            return "compression is disabled (compression.enabled: false)"
        if turn.incoming.mode != "managed":
            return f"requests of this key are not managed (mode {turn.incoming.mode})"
        if turn.unmanaged_reason not in ("", TRIGGER):
            return f"the provider keeps or changes this history itself ({turn.unmanaged_reason})"
        return ""

    async def compaction_item(self, incoming: Incoming) -> tuple[dict[str, Any], int]:
        """One item that stands for a conversation, and the tokens of what it stands for."""
        result = await self.compact_once(incoming, CompactionLevel.NORMAL)
        return make_item(result["messages"], self.setup.key_of(incoming.tenant)), result["receipt"]["tokens_after"]

    # After a refusal

    async def recover(self, turn: ManagedTurn, status: int, body: bytes) -> Outgoing | None:
        """What to send instead of a request that was refused; None where the client gets the error."""
        near_limit = self.tokens(turn, turn.used) >= NEAR_LIMIT * turn.window
        verdict = classify_error(status=status, body=body.decode("utf-8", "replace"), near_limit=near_limit)
        if verdict.kind not in TOO_LARGE:
            return None
        await self._learn(turn, verdict, status, body)
        enabled = self.setup.options.enabled and not turn.sliced.single
        forced = False
        while True:
            if verdict.kind == "prompt_too_long" and enabled and turn.used is None and not forced:
                forced = True
                await self.look_up(turn, forced=True)
                if turn.used is not None:
                    return self.send(turn)
            output_cap = turn.output_cap or turn.requested_cap
            step = turn.attempts.next_step(
                verdict, output_cap=output_cap, enabled=enabled, thinking=turn.thinking_budget
            )
            if step.action == "give_up":
                return None
            if step.action == "lower_cap" and step.cap is not None:
                await self.limits.learn_cap(turn.limit_key, lasting_cap(verdict, step.cap), verdict.reason)
            self.setup.listener(RecoveryEvent(turn.match.thread, verdict.kind, step.attempt, step.text))
            if step.action == "lower_cap":
                return self.send(turn)
            rewrite = await (self._slim(turn) if step.action == "slim" else self._compact_harder(turn, step, verdict))
            if rewrite is not None:
                turn.attempts.done += step.action == "compact"
                turn.used, turn.ready = rewrite, None
                return self.send(turn)

    async def _learn(self, turn: ManagedTurn, verdict: ErrorVerdict, status: int, body: bytes) -> None:
        """Learn the window from a refusal."""
        learnt = await self.limits.learn_refusal(
            turn.limit_key, verdict, window=turn.window, tokens=self.tokens(turn, turn.used),
            output_cap=turn.output_cap or turn.requested_cap, status=status, body=body,
        )  # fmt: skip
        if learnt is not None:
            turn.window = learnt.tokens
            event = LimitLearnt(turn.match.thread, turn.model, learnt.tokens, learnt.source, stored=learnt.stored)
            self.setup.listener(event)

    async def _slim(self, turn: ManagedTurn) -> Rewrite | None:
        """Fewer bytes and no word lost: what was made smaller before, else old images out, big results stored."""
        turn.memory.slim = True
        before = turn.used
        await self.look_up(turn, forced=True)
        if turn.used is not None and turn.used != before:
            return turn.used
        return await self._rewrites.slim(await self._task(turn, self.tokens(turn, turn.used), reason="payload"))

    async def _compact_harder(self, turn: ManagedTurn, step: RecoveryStep, verdict: ErrorVerdict) -> Rewrite | None:
        tokens = verdict.input_tokens or max(self.tokens(turn, turn.used), turn.window)
        try:
            rewrite = await self.compact(turn, step.level, tokens, reason="overflow")
        except EverthreadError as failure:
            self.setup.listener(CompactionFailed(turn.match.thread, str(failure)))
            return None
        return rewrite if isinstance(rewrite, Rewrite) else None

    async def settle(self) -> None:
        """Wait for the background compactions."""
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)
