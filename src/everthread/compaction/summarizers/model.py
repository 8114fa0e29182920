"""A model writes the summary.

What fits into the model's window is asked in one call. What does not is cut into parts, each part is written down by
a call of its own, several at a time, and the notes are joined, in as many rounds as it takes: the model sees all of
it. The order of the parts, never the order of the answers, decides the result.

Or the main model writes where it stands: the last request that was sent is sent again, byte for byte, with one message
more. Reading a cached prefix costs a fraction of what the same text costs anywhere else. Tools and parameters stay as
they are, since a change there would lose the cache; the model is told to call none.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.compaction.summarizers.chain import Price, Reading
from everthread.compaction.summarizers.prompts import (
    TOLERATED,
    RecordEntry,
    SummaryAnswer,
    SummaryPrompt,
    block,
    cut,
    fill,
    fit,
    inert,
    instructions,
    judge,
    pack,
    record,
    size,
    task,
)
from everthread.compaction.summary import Sections, SummaryDraft, SummaryRequest, TemplateName, render_sections
from everthread.core.fingerprints import message_fingerprint
from everthread.core.messages import Message, calls_of, clip, message_key, one_line, text_of
from everthread.core.provider_errors import Evidence, classify_error
from everthread.core.redaction import redact
from everthread.core.tokens import TokenCounter
from everthread.core.types import Model, Reply, Request
from everthread.errors import SummaryError, WireError

# --- asked anew -------------------------------------------------------------------------------------------------------


_TOO_LONG = frozenset({"prompt_too_long", "max_tokens_too_large", "payload_too_large"})
_MISSING = frozenset({401, 402, 403, 404})
_PASSING = frozenset({408, 409, 425, 429})
_NETWORK = re.compile(r"timeout|connect|unreach|network|transport|protocol|jsondecode")
_NO_ACCESS = re.compile(r"authenticat|unauthori[sz]ed|credential|api[ _-]?key|no provider|not configured")
_SHOWN = 300


class PromptTooLongError(SummaryError):
    """The prompt is longer than the model takes. `limit`: the window, where the error states it."""

    def __init__(self, message: str, *, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit


def failure(error: Exception) -> SummaryError:
    """A model's exception as a `SummaryError`: one line, without secrets."""
    message = clip(redact(one_line(str(error))), _SHOWN)
    message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    verdict = classify_error(error)
    if verdict.kind in _TOO_LONG:
        return PromptTooLongError(message, limit=verdict.context_limit)
    if verdict.kind == "rate_limit":
        return SummaryError(message, passing=True)
    evidence = Evidence()
    evidence.add(error)
    if evidence.status is not None:
        passing = evidence.status in _PASSING or evidence.status >= 500
        return SummaryError(message, passing=passing, missing=evidence.status in _MISSING)
    kinds = " ".join(kind.__name__ for kind in type(error).__mro__).lower()
    if isinstance(error, OSError | WireError) or _NETWORK.search(kinds):
        return SummaryError(message, passing=True)
    return SummaryError(message, missing=_NO_ACCESS.search(f"{kinds} {message.lower()}") is not None)


TIME_LIMIT = 300.0
"""Seconds one call may take. Twelve thousand tokens at forty a second."""


@dataclass(slots=True)
class SummaryCalls:
    """What the calls for one summary reported, and what was odd about them, in the order of the questions."""

    usage: list[Mapping[str, Any]]
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class Writer:
    """A model that is asked for summaries."""

    model: Model
    counter: TokenCounter
    template: TemplateName
    time_limit: float = TIME_LIMIT

    async def write(self, question: SummaryPrompt, ledger: SummaryCalls) -> Sections:
        """The sections, or `SummaryError`. A bad answer gets one firmer question; one that is merely too long will
        then do, cut to its size."""
        answers: list[SummaryAnswer] = []
        prompt = question
        for _ in range(2):
            reply = await self._call(prompt.request, ledger)
            answers.append(judge(reply, question, self.counter.text, self.template))
            if not answers[-1].fault:
                break
            prompt = question.firmer(answers[-1].fault, self.template)
        usable = [answer for answer in answers if answer.usable]
        if not usable:
            faults = ", then ".join(dict.fromkeys(answer.fault for answer in answers))
            raise SummaryError(f"the answer could not be used: {faults}")
        return self._final(usable[-1], question, ledger)

    def _final(self, answer: SummaryAnswer, question: SummaryPrompt, ledger: SummaryCalls) -> Sections:
        if answer.truncated:
            ledger.warnings.append(f"{self.model.name} stopped before its summary was complete")
        if not answer.fault:
            return answer.sections
        ledger.warnings.append(f"{self.model.name} wrote too much; its summary was cut to {question.target} tokens")
        return fit(answer.sections, question.target, self.counter.text)

    async def _call(self, request: Request, ledger: SummaryCalls) -> Reply:
        scope = asyncio.timeout(self.time_limit)
        try:
            async with scope:
                reply = await self.model.complete(request)
        except SummaryError:
            raise
        except Exception as error:
            if scope.expired():
                raise SummaryError(f"no answer within {self.time_limit:g} seconds", passing=True) from error
            raise failure(error) from error
        if reply.usage is not None:
            ledger.usage.append({**reply.usage, "model": reply.model or self.model.name})
        return reply


_SAFE = 0.95
"""How much of a window is used: the model may count otherwise than we do."""
_LEAST_ROOM = 1_000
"""With less room for material a window is of no use."""
_SMALL = 200
"""A summary of anything may have so many tokens."""
_EARLIER = "earlier checkpoint"


class LlmSummarizer:
    """Asks `model` for the summary. `context_length` bounds what one call is given, below the model's own window."""

    def __init__(  # noqa: PLR0913 - one keyword per setting
        self,
        model: Model,
        counter: TokenCounter,
        *,
        context_length: int | None = None,
        template: TemplateName = "handoff",
        parallel: int = 4,
        time_limit: float = TIME_LIMIT,
        price: Price | None = None,
    ) -> None:
        self._writer = Writer(model, counter, template, time_limit)
        self._context_length = context_length
        self._parallel = max(parallel, 1)
        self._price = price

    @property
    def name(self) -> str:
        return self._writer.model.name

    def quote(self, tokens: int, budget: int) -> float | None:
        """Dollars for reading so much, plainly, and writing the summary; None where a price is unknown."""
        return None if self._price is None else self._price(tokens, budget)

    def quote_for(self, request: SummaryRequest) -> float | None:
        """The same for this request: it is given the pruned messages."""
        return self.quote(self._writer.counter.messages(request.pruned), request.budget)

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """The sections, or `SummaryError`. A model that takes less than it was thought to is given half, once."""
        ledger = SummaryCalls([], [])
        window = min(self._writer.model.window, self._context_length or self._writer.model.window)
        try:
            try:
                sections = await self._attempt(request, window, ledger)
            except PromptTooLongError as error:
                window = min(window, error.limit or window) // 2
                sections = await self._attempt(request, window, ledger)
        except SummaryError as error:
            error.usage = tuple(ledger.usage)
            raise
        return SummaryDraft(sections, self.name, tuple(ledger.warnings), tuple(ledger.usage))

    async def _attempt(self, request: SummaryRequest, window: int, ledger: SummaryCalls) -> Sections:
        return await _Work(self._writer, request, window, ledger, self._parallel).sections()


@dataclass(frozen=True, slots=True)
class _Work:
    """The work for one summary, by calls of at most `window` tokens."""

    writer: Writer
    request: SummaryRequest
    window: int
    ledger: SummaryCalls
    parallel: int

    async def sections(self) -> Sections:
        if self.request.notes:
            return await self._join(self._entries(self.request.notes))
        pieces = record(self.request.pruned)
        previous = self._previous()
        new, old = sum(size(piece, self._count) for piece in pieces), self._count(previous)
        spare, short = int((self._room(1) - new - old) / TOLERATED), self._note_target()
        if spare >= short:
            target = min(self._target(), spare, old + max(new // 2, _SMALL))
            return await self.writer.write(self._full_prompt(pieces, previous, target, new + old), self.ledger)
        chunks = pack(pieces, self._room(short), self._count)
        notes = await self._ask_all(
            [self._part_prompt(chunk, n, len(chunks), short) for n, chunk in enumerate(chunks, 1)]
        )
        earlier = cut(previous, short, self._count) if previous else []
        return await self._join([*(RecordEntry(_EARLIER, text) for text in earlier), *self._entries(notes)])

    async def _join(self, notes: list[RecordEntry]) -> Sections:
        """One summary of successive notes. Several fit into one call, so that each round leaves at most half of
        them."""
        room, short = self._room(self._target()), self._note_target()
        groups = pack([[note] for note in notes], room, self._count)
        while len(groups) > 1:
            several = [group for group in groups if len(group) > 1]
            joined = iter(self._entries(await self._ask_all([self._merge(group, short) for group in several])))
            notes = [next(joined) if len(group) > 1 else group[0] for group in groups]
            groups = pack([[note] for note in notes], room, self._count)
        return await self.writer.write(self._merge(groups[0], self._target()), self.ledger)

    async def _ask_all(self, questions: Sequence[SummaryPrompt]) -> list[Sections]:
        """The answers, in the order of the questions. When one fails, or the caller gives up, the others stop."""
        ledgers = [SummaryCalls([], []) for _ in questions]
        answers: list[Sections] = [{} for _ in questions]
        waiting = iter(range(len(questions)))

        async def work() -> None:
            for index in waiting:
                answers[index] = await self.writer.write(questions[index], ledgers[index])

        workers = [asyncio.create_task(work()) for _ in range(min(self.parallel, len(questions)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            for ledger in ledgers:
                self.ledger.usage.extend(ledger.usage)
                self.ledger.warnings.extend(ledger.warnings)
        return answers

    # Questions

    def _full_prompt(
        self, pieces: Sequence[Sequence[RecordEntry]], previous: str, target: int, tokens: int
    ) -> SummaryPrompt:
        blocks = [block(_EARLIER, previous)] if previous else []
        blocks.append(block("record", _render_entries(entry for piece in pieces for entry in piece)))
        return self._question([*blocks, *self._open()], "update" if previous else "first", target, tokens)

    def _part_prompt(self, chunk: Sequence[RecordEntry], number: int, total: int, target: int) -> SummaryPrompt:
        tokens = size(chunk, self._count)
        target = min(target, max(tokens // 2, _SMALL))
        return self._question(
            [block("record", _render_entries(chunk))], "part", target, tokens, number=number, total=total
        )

    def _merge(self, notes: Sequence[RecordEntry], target: int) -> SummaryPrompt:
        blocks = [block("notes", _render_entries(notes)), *self._open()]
        tokens = size(notes, self._count)
        # Notes are dense already: joining few of them may take more words than they have.
        return self._question(blocks, "merge", min(target, tokens), int(TOLERATED * tokens))

    def _question(self, blocks: Iterable[str], name: str, target: int, tokens: int, **values: Any) -> SummaryPrompt:
        instruction = task(name, target=target, focus=self.request.focus, **values)
        content = "\n\n".join([*blocks, instruction])
        system = instructions(self.writer.template)
        request = Request(self.writer.model.name, [{"role": "user", "content": content}], system=system)
        return SummaryPrompt(request, target, tokens)

    def _previous(self) -> str:
        if not self.request.previous:
            return ""
        return inert(render_sections(self.request.previous, template=self.writer.template, brief=True))

    def _open(self) -> list[str]:
        """The user's open request as far as a small part of the window holds it: it is known word for word anyway."""
        text, half = inert(self.request.task.strip()), self.window // 32
        if len(text) > 2 * half:
            text = f"{text[:half]}\n[…]\n{text[-half:]}"
        return [block("open request of the user", text)] if text else []

    def _entries(self, notes: Iterable[Sections]) -> list[RecordEntry]:
        texts = (render_sections(sections, template=self.writer.template, brief=True) for sections in notes)
        return [RecordEntry(f"notes {number}", inert(text)) for number, text in enumerate(texts, start=1)]

    # Sizes

    def _target(self) -> int:
        """The summary's size: the budget, as far as the window leaves room for it beside what it is about."""
        return max(min(self.request.budget, self.window // 4), 1)

    def _note_target(self) -> int:
        """The size of the notes on one part. At half as much again, two of them still fit into one call."""
        return min(max(self._target(), _SMALL), self._room(self._target()) // 4)

    def _room(self, target: int) -> int:
        """Tokens of material one call can take, beside its instructions and an answer of this size."""
        request = self._question(self._open(), "update", target, 0).request
        room = int(self.window * _SAFE) - int(TOLERATED * target)
        room -= self.writer.counter.request(request.messages, system=request.system)
        if room < _LEAST_ROOM:
            raise SummaryError(f"a window of {self.window} tokens is too small for a summary")
        return room

    def _count(self, text: str) -> int:
        return self.writer.counter.text(text)


def _render_entries(entries: Iterable[RecordEntry]) -> str:
    return "\n".join(map(str, entries))


# --- asked on the prefix that its provider has cached -----------------------------------------------------------------


_QUOTED = 200


class WarmPrefixSummarizer:
    """Asks `model` on `live()`: the last request it was sent, None before there was one."""

    def __init__(  # noqa: PLR0913 - one keyword per setting
        self,
        model: Model,
        counter: TokenCounter,
        live: Callable[[], Request | None],
        *,
        template: TemplateName = "handoff",
        time_limit: float = TIME_LIMIT,
        price: Price | None = None,
        warm: Callable[[], bool] = lambda: True,
    ) -> None:
        """`warm`: whether the provider still has the prefix."""
        self._writer = Writer(model, counter, template, time_limit)
        self._live = live
        self._price = price
        self._warm = warm

    @property
    def name(self) -> str:
        """The route's name, not the model's: this route may rest while the model is used the ordinary way."""
        return f"{self._writer.model.name} on its warm prefix"

    def quote(self, tokens: int, budget: int) -> float | None:
        """Dollars for reading so much from the cache, or into it, and writing the summary; None: unknown."""
        reading: Reading = "read" if self._warm() else "write"
        return None if self._price is None else self._price(tokens, budget, reading=reading)

    def quote_for(self, request: SummaryRequest) -> float | None:
        """The same for this request: it is put behind the last one that was sent."""
        live = self._live()
        if live is None:
            return None
        tokens = self._writer.counter.request(live.messages, system=live.system, tools=live.tools)
        return self.quote(tokens, request.budget)

    def suits(self, request: SummaryRequest) -> bool:
        """Notes are to be joined by themselves: the prefix would only distract from them."""
        return not request.notes

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """The sections, or `SummaryError`: also when the last request does not hold all that is to be summarised, or
        has no room for the answer."""
        ledger = SummaryCalls([], [])
        question = self._question(request)
        try:
            sections = await self._writer.write(question, ledger)
        except SummaryError as error:
            error.usage = tuple(ledger.usage)
            raise
        return SummaryDraft(sections, self._writer.model.name, tuple(ledger.warnings), tuple(ledger.usage))

    def _question(self, request: SummaryRequest) -> SummaryPrompt:
        live = self._live()
        if live is None or not _holds(live, request):
            raise SummaryError("the last request does not hold the messages to be summarised")
        template, counter = self._writer.template, self._writer.counter
        ends = {"last": _quote(request.messages[-1]) if request.messages else ""}
        if request.stretch and request.messages:
            ends["first"] = _quote(request.messages[0])
        instruction = task(
            "warm_stretch" if "first" in ends else "warm",
            target=request.budget,
            focus=request.focus,
            sections=fill(f"sections_{template}"),
            **ends,
        )
        messages: list[Message] = [*live.messages, {"role": "user", "content": instruction}]
        tokens = counter.request(messages, system=live.system, tools=live.tools)
        if tokens + TOLERATED * request.budget > self._writer.model.window:
            raise SummaryError(f"the window of {self._writer.model.window} tokens has no room left for a summary")
        return SummaryPrompt(replace(live, messages=messages), request.budget, tokens)


def _holds(live: Request, request: SummaryRequest) -> bool:
    """Whether every message is in the request, whatever markers it was sent with."""
    sent = {message_key(message): message for message in live.messages}
    others = [message for message in request.messages if sent.get(message_key(message)) != message]
    if not others:
        return True
    fingerprints = set(map(message_fingerprint, live.messages))
    return all(message_fingerprint(message) in fingerprints for message in others)


def _quote(message: Message) -> str:
    """A quote that identifies a message among the others."""
    words = text_of(message) or " ".join(f"{call.name} {call.arguments}" for call in calls_of(message))
    return clip(one_line(inert(f"{message['role']}: {words}")), _QUOTED)
