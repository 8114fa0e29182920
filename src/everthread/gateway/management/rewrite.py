"""What stands for the beginning of a client's history: found, or made.

A rewrite is never changed. Whoever needs one for a beginning that has one reads it; of two that make one at the same
time the first is used by both. So the next, longer request begins with the same bytes, in every process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from everthread.compaction.composition import reading_tools
from everthread.compaction.engine import ContextEngine
from everthread.compaction.summary import Compaction, CompactionLevel, Summarizer
from everthread.context.accounting import Accounting
from everthread.context.recovery import slim_messages
from everthread.context.worker import CompactionWorker, EngineSetup, WorkItem, check_compaction
from everthread.conversation.events import CompactionVoid, Listener
from everthread.conversation.options import SummarizerContext
from everthread.core.cache_control import cache_route
from everthread.core.messages import Message, calls_of, kind_of
from everthread.core.outputs import OPEN, ToStore, name_reader
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.core.transcript import recognize
from everthread.core.types import Api, Request
from everthread.errors import EngineError, EverthreadError
from everthread.gateway.base import Account, decode_messages, encode_messages
from everthread.gateway.body import LIST_FIELD, Element, SlicedBody, encode_value
from everthread.gateway.management.events import Drifted, Rewritten, Slimmed
from everthread.gateway.management.identity import History
from everthread.store.models import NewCompaction, Rewrite
from everthread.store.store import Store
from everthread.wire.codecs import CODECS

if TYPE_CHECKING:
    from everthread.gateway.management.turn import ManagedTurn

SLIM = -1
"""The strength of a rewrite that leaves every message in its place: images dropped, big results stored."""


NO_COVER = "all messages since the last compaction have to stay as they are"


RewriteKey = tuple[int, bytes]


def rewrite_key(rewrite: Rewrite) -> RewriteKey:
    """What tells a rewrite from another of the same thread."""
    return rewrite.length, rewrite.replacement


@dataclass(frozen=True, slots=True)
class RewriteMatch:
    """The longest rewrite that is in use, and one that is ready for when it is time."""

    used: Rewrite | None = None
    ready: Rewrite | None = None
    candidates: Sequence[Rewrite] = ()
    """All that fit, the longest first."""

    def prefer(self, key: RewriteKey | None) -> RewriteMatch:
        """The match with this rewrite in use, if it fits: the rewrite sent last stays until the next one is due."""
        rewrite = next((candidate for candidate in self.candidates if rewrite_key(candidate) == key), None)
        if rewrite is None:
            return self
        longest = self.candidates[0]
        return RewriteMatch(rewrite, longest if longest.length > rewrite.length else None, self.candidates)


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """A history to be compacted, with all that the compaction needs."""

    tenant: str
    thread: str
    engine_key: str
    api: Api
    frame: Request
    """Model, system prompt and tools."""
    sent: Sequence[tuple[Any, str]]
    """The client's messages and their text."""
    history: History
    budget: Budget
    tokens: int
    """What the provider counts for it."""
    base: Rewrite | None = None
    """The rewrite it goes on from."""
    level: CompactionLevel = CompactionLevel.NORMAL
    ripe: int = 0
    background: bool = False
    account: Account | None = None
    """Who pays for the summary."""
    reason: str = "in-loop"
    decision: str = ""
    """Why it is done now, in dollars, where that was weighed."""

    @property
    def ground(self) -> Rewrite | None:
        """What the engine starts with. Not a summary of the version before: the client's own messages are all here."""
        return None if self.base is None or self.base.is_older else self.base

    @property
    def start(self) -> int:
        """How many of the client's messages are covered already."""
        return self.ground.length if self.ground else 0

    @property
    def aimed_tokens(self) -> int:
        """The prompt size the rewrite is made for: in the background, the size at which it will be used."""
        return max(self.tokens, self.budget.threshold) if self.background else self.tokens

    def pairs(self) -> list[tuple[Any, str]]:
        """What goes upstream now: messages and their text."""
        return [*(replacement_messages(self.ground) if self.ground else ()), *self.sent[self.start :]]


class RewriteStore:
    def __init__(
        self,
        store: Store,
        listener: Listener,
        accounting: Accounting,
        worker: CompactionWorker,
    ) -> None:
        self._store = store
        self._listener = listener
        self._accounting = accounting
        self._worker = worker

    async def find(
        self, turn: ManagedTurn, engines: Sequence[str], states: Sequence[tuple[str, str]] = ()
    ) -> tuple[RewriteMatch, list[Any | None]]:
        """The rewrites of a request's history, of the first engine that has any; and state of these scopes and keys."""
        history, memory = turn.history, turn.memory
        histories = [history.digests, *([history.legacy_digests] if history.has_legacy else [])]
        candidates, memory.search, stored = await self._store.match_rewrites(
            turn.incoming.tenant, engines, histories, history.skeletons, memory.search, states=states
        )
        for exact, similar in candidates:
            match = await self._match(exact, similar, history, turn.size)
            if match.candidates:
                return match, stored
        return RewriteMatch(None, None, []), stored

    async def _match(
        self, exact: Sequence[Rewrite], similar: Sequence[Rewrite], history: History, size: int
    ) -> RewriteMatch:
        longest = exact[0].length if exact else 0
        every = [*await self._find_drifted(similar, history, longest), *exact]
        used = next((rewrite for rewrite in every if rewrite.ripe <= size), None)
        ready = next((rewrite for rewrite in every if rewrite.ripe > size), None)
        if ready is not None and used is not None and ready.length <= used.length:
            ready = None
        return RewriteMatch(used, ready, every)

    async def _find_drifted(self, candidates: Sequence[Rewrite], history: History, longest: int) -> list[Rewrite]:
        """Rewrites of more, where the client cleared results or dropped thinking since; kept for its new form too."""
        rewrites = []
        for similar in candidates:
            length = history.skeletons.index(similar.skeleton) + 1
            if length > longest and history.drifted_from(similar.results, length):
                same = replace(similar, chain=history.digest(length), length=length, results=history.results(0, length))
                rewrites.append(await self._store.put_rewrite(same))
                self._listener(Drifted(similar.thread, length))
        return sorted(rewrites, key=lambda rewrite: (-rewrite.length, -rewrite.strength))

    async def make(
        self, task: RewriteTask, setup: EngineSetup, context: SummarizerContext, writer: Summarizer
    ) -> Rewrite | CompactionVoid:
        """Make a rewrite that covers more than the one before; where nothing can be saved, the event that says why."""
        pairs = task.pairs()
        before = RewriteState.load(task.ground.state) if task.ground else RewriteState()
        pins = [pin.text for pin in await self._store.pins(task.thread)]
        head = protected_head([value for value, _ in pairs])
        values = [value for value, _ in pairs[head:]]
        job = CompressionJob(
            task.api, task.frame, values, task.aimed_tokens, task.level, before.engine, pins,
            setup.summary_key, min(len(task.sent) - task.start, len(values)),
        )  # fmt: skip
        result = await self._worker.run(WorkItem(setup, compress_history, job), writer, context.events)
        compaction, cut = result.compaction, result.cover
        cost = await self._accounting.record_summary(task.thread, compaction.usage, task.account)
        if cut is None or cut.tail == len(task.sent) - task.start or not cut.replacement:
            void = CompactionVoid(task.thread, compaction.reason if cut is None else NO_COVER)
            self._listener(void)
            return void
        await self._store_outputs(task.thread, compaction.messages, compaction.to_store)
        counted = (task.frame.model, result.tokens) if not head else ("", 0)
        state = RewriteState(result.state, before.note or compaction.system_note, *counted)
        new = replace(
            _row(task, len(task.sent) - cut.tail, replacement_text(cut.replacement, pairs, head)),
            depth=(task.base.depth if task.base else 0) + 1,
            state=state.dump(),
        )
        stored = await self._store.put_rewrite(new, _record(task, compaction, cost))
        if stored.replacement == new.replacement:
            sizes = compaction.tokens_before, compaction.tokens_after
            self._listener(
                Rewritten(task.thread, new.length, *sizes, compaction.author, new.depth, task.background, cost)
            )
        else:
            self._listener(
                CompactionVoid(task.thread, "another process rewrote this beginning first; its rewrite is used")
            )
        return stored

    async def slim(self, task: RewriteTask) -> Rewrite | None:
        """Fewer bytes and no word lost: old images out, big results stored and cited. None where there is neither."""
        pairs = task.pairs()
        head = protected_head([value for value, _ in pairs])
        values = [value for value, _ in pairs[head:]]
        bodies = decode_messages(task.api, values, task.frame.model)
        slim, to_store = slim_messages(bodies, task.budget.preview_chars)
        cut = cover(task.api, slim, values, task.frame.model, most=min(len(task.sent) - task.start, len(values)))
        if all(new is old for new, old in zip(slim, bodies, strict=True)) or not cut.replacement:
            return None
        cut = name_tool(cut, values, task.frame.tools)
        await self._store_outputs(task.thread, bodies, to_store)
        text = replacement_text(cut.replacement, pairs, head)
        depth = task.base.depth if task.base else 0
        state = replace(RewriteState.load(task.base.state), model="", tokens=0).dump() if task.base else {}
        new = replace(_row(task, len(task.sent) - cut.tail, text), strength=SLIM, depth=depth, state=state)
        before = sum(len(original) for _, original in pairs[: len(pairs) - cut.tail])
        self._listener(Slimmed(task.thread, new.length, before, len(text), len(to_store)))
        return await self._store.put_rewrite(new)

    async def close(self, seconds: float) -> None:
        """Close the worker; cancelled compactions have this long to end."""
        await self._worker.close(seconds)

    async def _store_outputs(self, thread: str, messages: Sequence[Message], to_store: Sequence[ToStore]) -> None:
        """Store the outputs that the messages cite."""
        tools = {call.id: call.name for message in messages for call in calls_of(message)}
        for item in to_store:
            await self._store.put_output(thread, item.text, call_id=item.call_id, tool=tools.get(item.call_id, ""))


def _row(task: RewriteTask, length: int, replacement: str) -> Rewrite:
    history = task.history
    return Rewrite(
        task.tenant, task.engine_key, history.digest(length), int(task.level), length, history.skeleton(length),
        history.results(0, length), task.thread, replacement.encode(), task.ripe,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CompressionJob:
    """The input of an engine, in this process or another."""

    api: Api
    frame: Request
    """Model, system prompt and tools."""
    values: Sequence[Any]
    """What goes upstream now, as the wire has it."""
    tokens: int
    level: CompactionLevel
    state: Mapping[str, Any]
    """Of the engine that made the rewrite before."""
    pins: Sequence[str]
    summary_key: bytes
    most: int
    """How many messages at the end are the client's own."""


@dataclass(frozen=True, slots=True)
class CompressionResult:
    """What an engine made of it: where that becomes the client's own words again, and what it knows then."""

    compaction: Compaction
    cover: Cover | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    tokens: int = 0
    """Of the replacement: counted here, so that the event loop need not count it."""


async def compress_history(engine: ContextEngine, job: CompressionJob) -> CompressionResult:
    """Compact the messages of a job with an engine. Also called in another process."""
    model, tools = job.frame.model, job.frame.tools
    messages = recognize(decode_messages(job.api, job.values, model), job.summary_key)
    try:
        if job.state:
            engine.load_state(job.state)
        engine.pin(job.pins)
        compaction = await engine.compress(
            messages, current_tokens=job.tokens, system=job.frame.system, tools=tools, level=job.level
        )
        check_compaction(engine.name, compaction, len(messages))
        if not compaction.changed:
            return CompressionResult(compaction)
        engine.on_compacted(compaction)
        state = engine.dump_state()
    except EverthreadError:
        raise
    except Exception as error:  # an engine is anybody's code
        raise EngineError(f"the context engine {engine.name} failed: {type(error).__name__}: {error}") from error
    cut = name_tool(cover(job.api, compaction.messages, job.values, model, most=job.most), job.values, tools)
    tokens = TokenCounter(model).messages(decode_messages(job.api, cut.replacement, model))
    return CompressionResult(compaction, cut, state, tokens)


_STATE_FIELDS = {"engine", "note", "model", "tokens"}


@dataclass(frozen=True, slots=True)
class RewriteState:
    """What is kept with a rewrite: what the engine knows, and the note behind the system prompt of its history."""

    engine: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    model: str = ""
    """The model whose tokenizer counted the replacement; empty where nobody did."""
    tokens: int = 0

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> RewriteState:
        """Earlier versions kept the note among what the engine knows."""
        if {"engine", "note"} <= set(state) <= _STATE_FIELDS and isinstance(state["engine"], Mapping):
            return cls(state["engine"], str(state["note"]), str(state.get("model", "")), int(state.get("tokens", 0)))
        return cls(
            {key: value for key, value in state.items() if key != "_system_note"}, str(state.get("_system_note", ""))
        )

    def dump(self) -> dict[str, Any]:
        return {"engine": dict(self.engine), "note": self.note, "model": self.model, "tokens": self.tokens}


def _record(task: RewriteTask, compaction: Compaction, cost: Decimal | None) -> NewCompaction:
    """A compaction as the store keeps it; what it covers is in the rewrite's own row."""
    figures = asdict(compaction.verification) | {
        "phases": [asdict(phase) for phase in compaction.phases],
        "steps": list(compaction.steps),
        "decision": task.decision,
    }
    return NewCompaction(
        tokens_before=compaction.tokens_before, tokens_after=compaction.tokens_after, summary=compaction.summary,
        author=compaction.author, figures=figures, warnings=compaction.warnings, reason=task.reason,
        duration=compaction.duration, cost=cost,
    )  # fmt: skip


def replacement_messages(rewrite: Rewrite) -> list[tuple[Any, str]]:
    """The messages of a rewrite with their text."""
    text = rewrite.replacement.decode()
    decode = json.JSONDecoder().raw_decode
    messages = []
    at = 0
    while at < len(text):
        value, end = decode(text, at)
        messages.append((value, text[at:end]))
        at = end + 1
    return messages


# From a compacted history back to the client's bytes


@dataclass(frozen=True, slots=True)
class Cover:
    """How much of what was sent is replaced, and by what."""

    tail: int
    """How many messages at the end stay as they are."""
    replacement: list[Any]


def frame_of(api: Api, sliced: SlicedBody, leading: Sequence[Element]) -> Request:
    """The request without its messages: model, system prompt and tools, in core form."""
    field = LIST_FIELD[api]
    body = {**sliced.fields, field: [element.value for element in leading]}
    return CODECS[api].decode_request(body)


def cover(api: Api, compacted: Sequence[Message], sent: Sequence[Any], model: str, *, most: int) -> Cover:
    """Where the compacted history becomes what was sent again; at most that many messages of the end."""
    wire = encode_messages(api, compacted, model)
    tail = 0
    while tail < min(most, len(wire), len(sent)) and wire[-1 - tail] == sent[-1 - tail]:
        tail += 1
    return Cover(tail, wire[: len(wire) - tail])


def name_tool(cover: Cover, sent: Sequence[Any], tools: Sequence[Mapping[str, Any]] | None) -> Cover:
    """The same where blocks of ours name the tool by which this client reads them; what was sent stays as it is."""
    named = [name for name in reading_tools(tools) if name.lower().endswith(("recall", "expand"))]
    tool = named[0] if named else None
    replacement = []
    for index, value in enumerate(cover.replacement):
        same = index < len(sent) and sent[index] == value
        replacement.append(
            value if same or OPEN not in encode_value(value) or value in sent else name_reader(value, tool)
        )
    return replace(cover, replacement=replacement)


def protected_head(values: Sequence[Any]) -> int:
    """How many messages lead through the last compaction of the provider's own: never covered, edited or dropped."""
    lengths = [length for length, value in enumerate(values, 1) if _is_compaction(value)]
    return lengths[-1] if lengths else 0


def _is_compaction(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    content = value.get("content")
    parts = content if isinstance(content, list) else ()
    return any(kind_of(part) == "compaction" for part in (value, *parts) if isinstance(part, dict))


def replacement_text(replacement: Sequence[Any], sent: Sequence[tuple[Any, str]], head: int = 0) -> str:
    """The replacement as text; what it begins with unchanged keeps the client's own bytes.

    The first `head` messages stand before it as they were sent.
    """
    texts = [text for _, text in sent[:head]]
    sent, same = sent[head:], True
    for index, value in enumerate(replacement):
        same = same and index < len(sent) and sent[index][0] == value
        texts.append(sent[index][1] if same else encode_value(value))
    return ",".join(texts)


def replacement_change(sliced: SlicedBody, first: int, covered: int, replacement: str) -> tuple[int, int, str]:
    """What puts the replacement in the place of the `covered` messages from `first` on."""
    return sliced.elements[first].start, sliced.elements[first + covered - 1].end, replacement


# The note that there are summaries, behind the client's system prompt

_GAP = "\n\n"

Change = tuple[int, int, str]
"""From, to, and what stands there instead."""


def takes_blocks(api: Api, model: str, upstream: str) -> bool:
    """Whether a system prompt that is one text may become blocks: not everybody who speaks OpenAI's takes them."""
    return api == "anthropic" or (api == "openai_chat" and cache_route(model, base_url=upstream) is not None)


def note_change(api: Api, sliced: SlicedBody, first: int, note: str, *, blocks: bool) -> Change | None:
    """Where the note goes, and as what. `first`: how many messages at the start are the system prompt."""
    field = {"anthropic": "system", "openai_responses": "instructions"}.get(api)
    if field is not None and sliced.fields.get(field):
        return (*sliced.spans[field], encode_value(_append_note(sliced.fields[field], note, blocks=blocks)))
    if not first:
        return None
    last = sliced.elements[first - 1]
    content = last.value.get("content")
    if not content:
        return None
    if api == "openai_responses":
        added = {**last.value, "content": note}
        added.pop("id", None)
        return last.end, last.end, f",{encode_value(added)}"
    return last.start, last.end, encode_value({**last.value, "content": _append_note(content, note, blocks=blocks)})


def _append_note(system: Any, note: str, *, blocks: bool) -> Any:
    block = {"type": "text", "text": note}
    if isinstance(system, list):
        return [*system, block]
    return [{"type": "text", "text": system}, block] if blocks else f"{system}{_GAP}{note}"
