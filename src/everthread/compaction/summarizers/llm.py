"""A model writes the summary.

What fits into the model's window is asked in one call. What does not is cut into parts, each part is written down by
a call of its own, several at a time, and the notes are joined, in as many rounds as it takes: the model sees all of
it. The order of the parts, never the order of the answers, decides the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.compaction.summarizers.llm_answer import TOLERATED
from everthread.compaction.summarizers.llm_ask import TIME_LIMIT, Ledger, Writer
from everthread.compaction.summarizers.llm_failures import PromptTooLongError
from everthread.compaction.summarizers.llm_prompt import Question, instructions, task
from everthread.compaction.summarizers.llm_record import RecordEntry, block, inert, record
from everthread.compaction.summarizers.llm_split import cut, pack, size
from everthread.compaction.summarizers.pricing import Price
from everthread.compaction.summary import Sections, SummaryDraft, SummaryRequest, TemplateName, render_sections
from everthread.core.tokens import TokenCounter
from everthread.core.types import Model, Request
from everthread.errors import SummaryError

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
        ledger = Ledger([], [])
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

    async def _attempt(self, request: SummaryRequest, window: int, ledger: Ledger) -> Sections:
        return await _Work(self._writer, request, window, ledger, self._parallel).sections()


@dataclass(frozen=True, slots=True)
class _Work:
    """One summary in the making, by calls of at most `window` tokens."""

    writer: Writer
    request: SummaryRequest
    window: int
    ledger: Ledger
    parallel: int

    async def sections(self) -> Sections:
        if self.request.notes:
            return await self._join(self._entries(self.request.notes))
        pieces = record(self.request.pruned)
        previous = self._previous()
        new, known = sum(size(piece, self._count) for piece in pieces), self._count(previous)
        spare, short = int((self._room(1) - new - known) / TOLERATED), self._note_target()
        if spare >= short:
            target = min(self._target(), spare, known + max(new // 2, _SMALL))
            return await self.writer.write(self._whole(pieces, previous, target, new + known), self.ledger)
        chunks = pack(pieces, self._room(short), self._count)
        notes = await self._ask_all([self._part(chunk, n, len(chunks), short) for n, chunk in enumerate(chunks, 1)])
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

    async def _ask_all(self, questions: Sequence[Question]) -> list[Sections]:
        """The answers, in the order of the questions. When one fails, or the caller gives up, the others stop."""
        ledgers = [Ledger([], []) for _ in questions]
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

    def _whole(self, pieces: Sequence[Sequence[RecordEntry]], previous: str, target: int, given: int) -> Question:
        blocks = [block(_EARLIER, previous)] if previous else []
        blocks.append(block("record", _written(entry for piece in pieces for entry in piece)))
        return self._question([*blocks, *self._open()], "update" if previous else "first", target, given)

    def _part(self, chunk: Sequence[RecordEntry], number: int, total: int, target: int) -> Question:
        given = size(chunk, self._count)
        target = min(target, max(given // 2, _SMALL))
        return self._question([block("record", _written(chunk))], "part", target, given, number=number, total=total)

    def _merge(self, notes: Sequence[RecordEntry], target: int) -> Question:
        blocks = [block("notes", _written(notes)), *self._open()]
        tokens = size(notes, self._count)
        # Notes are dense already: joining few of them may take more words than they have.
        return self._question(blocks, "merge", min(target, tokens), int(TOLERATED * tokens))

    def _question(self, blocks: Iterable[str], name: str, target: int, given: int, **values: Any) -> Question:
        told = task(name, target=target, focus=self.request.focus, **values)
        content = "\n\n".join([*blocks, told])
        system = instructions(self.writer.template)
        request = Request(self.writer.model.name, [{"role": "user", "content": content}], system=system)
        return Question(request, target, given)

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
        """Tokens of material one call can take, beside what it is told and an answer of this size."""
        told = self._question(self._open(), "update", target, 0).request
        room = int(self.window * _SAFE) - int(TOLERATED * target)
        room -= self.writer.counter.request(told.messages, system=told.system)
        if room < _LEAST_ROOM:
            raise SummaryError(f"a window of {self.window} tokens is too small for a summary")
        return room

    def _count(self, text: str) -> int:
        return self.writer.counter.text(text)


def _written(entries: Iterable[RecordEntry]) -> str:
    return "\n".join(map(str, entries))
