"""Write the summary with a model.

Material that fits into the model's window takes one call. Anything larger is cut into parts: each part is summarised by
its own call, several at a time, and the notes are joined in as many rounds as it takes, so that the model sees all of
it. The order of the parts, never the order of the answers, decides the result.

Alternatively the main model writes the summary in its own context: the last request is sent again, byte for byte, with
one message more. Reading a cached prefix costs a fraction of the usual price of the same text. Tools and parameters
stay the same, since a change there would lose the cache; the instruction forbids calling any.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.compaction.summarizers.answer_judging import (
    MAX_OVERSHOOT,
    SummaryAnswer,
    judge_answer,
)
from everthread.compaction.summarizers.chain import Price, Reading
from everthread.compaction.summarizers.conversation_record import (
    RecordEntry,
    as_inert_text,
    block,
    cut,
    pack,
    record,
    size,
)
from everthread.compaction.summarizers.prompts import (
    SummaryPrompt,
    fill,
    fit,
    instructions,
    task,
)
from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.compaction.summary.sections import (
    Sections,
    TemplateName,
    render_sections,
)
from everthread.core.fingerprints import message_fingerprint
from everthread.core.messages import (
    Message,
    calls_of,
    clip,
    message_key,
    one_line,
    text_of,
)
from everthread.core.provider_errors.classification import classify_error
from everthread.core.provider_errors.evidence import Evidence
from everthread.core.secrets.redaction import redact
from everthread.core.tokens import TokenCounter
from everthread.core.types import Model, Reply, Request
from everthread.errors import SummaryError, WireError

# Summary in a separate request


_TOO_LONG = frozenset({"prompt_too_long", "max_tokens_too_large", "payload_too_large"})
_MISSING = frozenset({401, 402, 403, 404})
_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})
_NETWORK = re.compile(r"timeout|connect|unreach|network|transport|protocol|jsondecode")
_NO_ACCESS = re.compile(
    r"authenticat|unauthori[sz]ed|credential|api[ _-]?key|no provider|not configured"
)
_MAX_SHOWN_CHARS = 300


class PromptTooLongError(SummaryError):
    """The prompt is longer than the model accepts. `limit`: the window, if the error states it."""

    def __init__(self, message: str, *, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit


def failure(error: Exception) -> SummaryError:
    """Convert a model's exception to a `SummaryError`: one line, without secrets."""
    message = clip(redact(one_line(str(error))), _MAX_SHOWN_CHARS)
    message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    verdict = classify_error(error)
    if verdict.kind in _TOO_LONG:
        return PromptTooLongError(message, limit=verdict.context_limit)
    if verdict.kind == "rate_limit":
        return SummaryError(message, passing=True)
    evidence = Evidence()
    evidence.add(error)
    if evidence.status is not None:
        passing = evidence.status in _TRANSIENT_STATUSES or evidence.status >= 500
        return SummaryError(
            message, passing=passing, missing=evidence.status in _MISSING
        )
    kinds = " ".join(kind.__name__ for kind in type(error).__mro__).lower()
    if isinstance(error, OSError | WireError) or _NETWORK.search(kinds):
        return SummaryError(message, passing=True)
    return SummaryError(
        message, missing=_NO_ACCESS.search(f"{kinds} {message.lower()}") is not None
    )


MAX_ANSWERS = 2
"""Maximum attempts for one question."""
TIME_LIMIT = 300.0
"""Seconds one call may take. Twelve thousand tokens at forty a second."""


@dataclass(slots=True)
class SummaryCalls:
    """Usage and warnings of the calls for one summary, in the order of the questions."""

    usage: list[Mapping[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    was_repeated: bool = False
    """Whether a question was repeated."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A model that writes summaries."""

    model: Model
    counter: TokenCounter
    template: TemplateName
    time_limit: float = TIME_LIMIT

    async def write(
        self, question: SummaryPrompt, ledger: SummaryCalls, *, fault: str = ""
    ) -> Sections:
        """Return the sections, or raise `SummaryError`.

        Repeat the question once, more firmly, after a bad answer; if the second is merely too long, use it, cut to its
        size. `fault`: the reason why an earlier summary was refused. Then this is the firmer question, and it is not
        repeated.
        """
        answers: list[SummaryAnswer] = []
        prompt = (
            question.repeat_with_reason(fault, self.template) if fault else question
        )
        while True:
            reply = await self._call(prompt.request, ledger)
            answers.append(
                judge_answer(reply, question, self.counter.text, self.template)
            )
            if not answers[-1].fault or fault or len(answers) == MAX_ANSWERS:
                break
            ledger.was_repeated = True
            prompt = question.repeat_with_reason(answers[-1].fault, self.template)
        usable = [answer for answer in answers if answer.usable]
        if not usable:
            faults = ", then ".join(dict.fromkeys(answer.fault for answer in answers))
            raise SummaryError(f"the answer could not be used: {faults}", unusable=True)
        return self._final(usable[-1], question, ledger)

    def _final(
        self, answer: SummaryAnswer, question: SummaryPrompt, ledger: SummaryCalls
    ) -> Sections:
        if answer.truncated:
            ledger.warnings.append(
                f"{self.model.name} stopped before its summary was complete"
            )
        if not answer.fault:
            return answer.sections
        ledger.warnings.append(
            f"{self.model.name} wrote too much; its summary was cut to {question.target} tokens"
        )
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
                raise SummaryError(
                    f"no answer within {self.time_limit:g} seconds", passing=True
                ) from error
            raise failure(error) from error
        if reply.usage is not None:
            ledger.usage.append(
                {**reply.usage, "model": reply.model or self.model.name}
            )
        return reply


MAX_TOO_LONG = 2
"""Maximum refusals of a prompt for its length before the last attempt."""
_SAFE_WINDOW_SHARE = 0.95
"""Share of a window to use, since the model may count differently."""
_MIN_ROOM = 1_000
"""Minimum room for material; a smaller window is not used."""
_MIN_TARGET_TOKENS = 200
"""Minimum target for a summary, however short its sources."""
_EARLIER = "earlier checkpoint"


class LlmSummarizer:
    """A summariser that calls `model`. `context_length` limits the input of one call, below the model's own window."""

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
        windows: dict[str, int] | None = None,
    ) -> None:
        """Set up the summariser. `windows`: windows that models stated, by name, if several summarisers share them."""
        self._writer = Writer(model, counter, template, time_limit)
        self._context_length = context_length
        self._windows: dict[str, int] = {} if windows is None else windows
        self._parallel = max(parallel, 1)
        self._price = price

    @property
    def name(self) -> str:
        return self._writer.model.name

    def quote(self, tokens: int, budget: int) -> float | None:
        """Return the dollars for reading `tokens` uncached and writing the summary; None if a price is unknown."""
        return None if self._price is None else self._price(tokens, budget)

    def quote_for(self, request: SummaryRequest) -> float | None:
        """Return the price for this request, which gets the pruned messages."""
        return self.quote(self._writer.counter.messages(request.pruned), request.budget)

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """Return the draft, or raise `SummaryError`.

        Retry with the stated window if the model accepts less than assumed.
        """
        ledger = SummaryCalls()
        try:
            sections = await self._fit(request, ledger)
        except SummaryError as error:
            error.usage = tuple(ledger.usage)
            raise
        return SummaryDraft(
            sections,
            self.name,
            warnings=tuple(ledger.warnings),
            usage=tuple(ledger.usage),
            was_repeated=ledger.was_repeated,
        )

    async def _fit(self, request: SummaryRequest, ledger: SummaryCalls) -> Sections:
        """Ask with the known window; if that is too long, with the stated one, else with half, and remember it."""
        for _ in range(MAX_TOO_LONG):
            window = self._window()
            try:
                return await self._attempt(request, window, ledger)
            except PromptTooLongError as error:
                smaller_window = (
                    error.limit
                    if error.limit is not None and error.limit < window
                    else window // 2
                )
                self._windows[self.name] = smaller_window
        return await self._attempt(request, self._window(), ledger)

    def _window(self) -> int:
        model_window = self._writer.model.window
        return min(
            model_window,
            self._context_length or model_window,
            self._windows.get(self.name, model_window),
        )

    async def _attempt(
        self, request: SummaryRequest, window: int, ledger: SummaryCalls
    ) -> Sections:
        return await _Work(
            self._writer, request, window, ledger, self._parallel
        ).sections()


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
        previous_text = self._previous_text()
        new_tokens = sum(size(piece, self._count) for piece in pieces)
        previous_tokens = self._count(previous_text)
        spare_tokens = int(
            (self._room(1) - new_tokens - previous_tokens) / MAX_OVERSHOOT
        )
        note_target = self._note_target()
        if spare_tokens >= note_target:
            target = min(
                self._target(),
                spare_tokens,
                previous_tokens + max(new_tokens // 2, _MIN_TARGET_TOKENS),
            )
            return await self._write(
                self._full_prompt(
                    pieces, previous_text, target, new_tokens + previous_tokens
                )
            )
        chunks = pack(pieces, self._room(note_target), self._count)
        notes = await self._ask_all(
            [
                self._part_prompt(chunk, n, len(chunks), note_target)
                for n, chunk in enumerate(chunks, 1)
            ]
        )
        earlier_texts = (
            cut(previous_text, note_target, self._count) if previous_text else []
        )
        return await self._join(
            [
                *(RecordEntry(_EARLIER, text) for text in earlier_texts),
                *self._entries(notes),
            ]
        )

    async def _join(self, notes: list[RecordEntry]) -> Sections:
        """Join successive notes into one summary.

        Several fit into one call, so that each round leaves at most half of them.
        """
        room = self._room(self._target())
        note_target = self._note_target()
        groups = pack([[note] for note in notes], room, self._count)
        while len(groups) > 1:
            groups_to_merge = [group for group in groups if len(group) > 1]
            joined_notes = iter(
                self._entries(
                    await self._ask_all(
                        [self._merge(group, note_target) for group in groups_to_merge]
                    )
                )
            )
            notes = [
                next(joined_notes) if len(group) > 1 else group[0] for group in groups
            ]
            groups = pack([[note] for note in notes], room, self._count)
        return await self._write(self._merge(groups[0], self._target()))

    async def _write(self, question: SummaryPrompt) -> Sections:
        """Write the summary itself. Pass on the reason why the previous one was refused."""
        fault = self.request.refused[-1].reason if self.request.refused else ""
        return await self.writer.write(question, self.ledger, fault=fault)

    async def _ask_all(self, questions: Sequence[SummaryPrompt]) -> list[Sections]:
        """Return the answers, in the order of the questions.

        If one fails or the caller is cancelled, the others stop.
        """
        ledgers = [SummaryCalls() for _ in questions]
        answers: list[Sections] = [{} for _ in questions]
        waiting = iter(range(len(questions)))

        async def work() -> None:
            for index in waiting:
                answers[index] = await self.writer.write(
                    questions[index], ledgers[index]
                )

        workers = [
            asyncio.create_task(work())
            for _ in range(min(self.parallel, len(questions)))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            for ledger in ledgers:
                self.ledger.usage.extend(ledger.usage)
                self.ledger.warnings.extend(ledger.warnings)
                self.ledger.was_repeated |= ledger.was_repeated
        return answers

    # Questions

    def _full_prompt(
        self,
        pieces: Sequence[Sequence[RecordEntry]],
        previous_text: str,
        target: int,
        tokens: int,
    ) -> SummaryPrompt:
        blocks = [block(_EARLIER, previous_text)] if previous_text else []
        blocks.append(
            block(
                "record", _render_entries(entry for piece in pieces for entry in piece)
            )
        )
        return self._question(
            [*blocks, *self._open_request()],
            "update" if previous_text else "first",
            target,
            tokens,
        )

    def _part_prompt(
        self, chunk: Sequence[RecordEntry], number: int, total: int, target: int
    ) -> SummaryPrompt:
        tokens = size(chunk, self._count)
        target = min(target, max(tokens // 2, _MIN_TARGET_TOKENS))
        return self._question(
            [block("record", _render_entries(chunk))],
            "part",
            target,
            tokens,
            number=number,
            total=total,
        )

    def _merge(self, notes: Sequence[RecordEntry], target: int) -> SummaryPrompt:
        blocks = [block("notes", _render_entries(notes)), *self._open_request()]
        tokens = size(notes, self._count)
        # Notes are dense already: joining few of them may take more words than they have.
        return self._question(
            blocks, "merge", min(target, tokens), int(MAX_OVERSHOOT * tokens)
        )

    def _question(
        self, blocks: Iterable[str], name: str, target: int, tokens: int, **values: Any
    ) -> SummaryPrompt:
        instruction = task(name, target=target, focus=self.request.focus, **values)
        content = "\n\n".join([*blocks, instruction])
        system = instructions(self.writer.template)
        request = Request(
            self.writer.model.name,
            [{"role": "user", "content": content}],
            system=system,
        )
        return SummaryPrompt(request, target, tokens)

    def _previous_text(self) -> str:
        if not self.request.previous:
            return ""
        return as_inert_text(
            render_sections(
                self.request.previous, template=self.writer.template, skip_empty=True
            )
        )

    def _open_request(self) -> list[str]:
        """Return the user's open request, cut to a small part of the window: it is quoted word for word elsewhere."""
        text = as_inert_text(self.request.task.strip())
        half = self.window // 32
        if len(text) > 2 * half:
            text = f"{text[:half]}\n[…]\n{text[-half:]}"
        return [block("open request of the user", text)] if text else []

    def _entries(self, notes: Iterable[Sections]) -> list[RecordEntry]:
        texts = (
            render_sections(sections, template=self.writer.template, skip_empty=True)
            for sections in notes
        )
        return [
            RecordEntry(f"notes {number}", as_inert_text(text))
            for number, text in enumerate(texts, start=1)
        ]

    # Sizes

    def _target(self) -> int:
        """Return the target size of the summary: the budget, but at most a quarter of the window."""
        return max(min(self.request.budget, self.window // 4), 1)

    def _note_target(self) -> int:
        """Return the target size of the notes on one part.

        Two of them, half as large again, still fit into one call.
        """
        return min(
            max(self._target(), _MIN_TARGET_TOKENS), self._room(self._target()) // 4
        )

    def _room(self, target: int) -> int:
        """Return the tokens of material that one call can take, beside its instructions and an answer of this size."""
        request = self._question(self._open_request(), "update", target, 0).request
        room = int(self.window * _SAFE_WINDOW_SHARE) - int(MAX_OVERSHOOT * target)
        room -= self.writer.counter.request(request.messages, system=request.system)
        if room < _MIN_ROOM:
            raise SummaryError(
                f"a window of {self.window} tokens is too small for a summary"
            )
        return room

    def _count(self, text: str) -> int:
        return self.writer.counter.text(text)


def _render_entries(entries: Iterable[RecordEntry]) -> str:
    return "\n".join(map(str, entries))


# Summary on the prefix that the provider has cached


_QUOTED = 200


class WarmPrefixSummarizer:
    """A summariser that calls `model` on `live()`: the last request sent to it, None before the first."""

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
        """Set up the summariser. `warm`: returns whether the provider still has the prefix."""
        self._writer = Writer(model, counter, template, time_limit)
        self._live = live
        self._price = price
        self._warm = warm

    @property
    def name(self) -> str:
        """The route's name, not the model's: this route may rest while the model is used the ordinary way."""
        return f"{self._writer.model.name} on its warm prefix"

    def quote(self, tokens: int, budget: int) -> float | None:
        """Return the dollars for reading `tokens` from or into the cache and writing the summary; None if unknown."""
        reading: Reading = "read" if self._warm() else "write"
        return (
            None
            if self._price is None
            else self._price(tokens, budget, reading=reading)
        )

    def quote_for(self, request: SummaryRequest) -> float | None:
        """Return the price for this request, which is appended to the last one sent."""
        live = self._live()
        if live is None:
            return None
        tokens = self._writer.counter.request(
            live.messages, system=live.system, tools=live.tools
        )
        return self.quote(tokens, request.budget)

    def suits(self, request: SummaryRequest) -> bool:
        """Return whether the request has no notes to join: the prefix would only distract from them."""
        return not request.notes

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """Return the draft, or raise `SummaryError`.

        It is also raised if the last request lacks some of the messages, or has no room for the answer.
        """
        ledger = SummaryCalls()
        question = self._question(request)
        try:
            fault = request.refused[-1].reason if request.refused else ""
            sections = await self._writer.write(question, ledger, fault=fault)
        except SummaryError as error:
            error.usage = tuple(ledger.usage)
            raise
        return SummaryDraft(
            sections,
            self._writer.model.name,
            warnings=tuple(ledger.warnings),
            usage=tuple(ledger.usage),
            was_repeated=ledger.was_repeated,
        )

    def _question(self, request: SummaryRequest) -> SummaryPrompt:
        live = self._live()
        if live is None or not _has_all_messages(live, request):
            raise SummaryError(
                "the last request does not hold the messages to be summarised"
            )
        template = self._writer.template
        counter = self._writer.counter
        quotes = {"last": _quote(request.messages[-1]) if request.messages else ""}
        if request.stretch and request.messages:
            quotes["first"] = _quote(request.messages[0])
        instruction = task(
            "warm_stretch" if "first" in quotes else "warm",
            target=request.budget,
            focus=request.focus,
            sections=fill(f"sections_{template}"),
            **quotes,
        )
        messages: list[Message] = [
            *live.messages,
            {"role": "user", "content": instruction},
        ]
        tokens = counter.request(messages, system=live.system, tools=live.tools)
        if tokens + MAX_OVERSHOOT * request.budget > self._writer.model.window:
            raise SummaryError(
                f"the window of {self._writer.model.window} tokens has no room left for a summary"
            )
        return SummaryPrompt(replace(live, messages=messages), request.budget, tokens)


def _has_all_messages(live: Request, request: SummaryRequest) -> bool:
    """Return whether every message is in the request, ignoring its cache markers."""
    sent_messages = {message_key(message): message for message in live.messages}
    changed_messages = [
        message
        for message in request.messages
        if sent_messages.get(message_key(message)) != message
    ]
    if not changed_messages:
        return True
    fingerprints = set(map(message_fingerprint, live.messages))
    return all(
        message_fingerprint(message) in fingerprints for message in changed_messages
    )


def _quote(message: Message) -> str:
    """Return a quote that identifies a message among the others."""
    words = text_of(message) or " ".join(
        f"{call.name} {call.arguments}" for call in calls_of(message)
    )
    return clip(one_line(as_inert_text(f"{message['role']}: {words}")), _QUOTED)
