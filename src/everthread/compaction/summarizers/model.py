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
from everthread.compaction.summarizers.chain import CallPrice, PromptRate
from everthread.compaction.summarizers.conversation_record import (
    RecordEntry,
    count_entry_tokens,
    cut_text,
    make_marked_block,
    make_record,
    pack_chunks,
    to_inert_text,
)
from everthread.compaction.summarizers.prompts import (
    SummaryPrompt,
    fill_template,
    fit_sections,
    write_instructions,
    write_task_prompt,
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

_TOO_LONG_KINDS = frozenset(
    {"prompt_too_long", "max_tokens_too_large", "payload_too_large"}
)
_NO_ACCESS_STATUSES = frozenset({401, 402, 403, 404})
_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})
_NETWORK_ERROR = re.compile(
    r"timeout|connect|unreach|network|transport|protocol|jsondecode"
)
_NO_ACCESS_MESSAGE = re.compile(
    r"authenticat|unauthori[sz]ed|credential|api[ _-]?key|no provider|not configured"
)
_MAX_ERROR_CHARS = 300


class PromptTooLongError(SummaryError):
    """The prompt is longer than the model accepts. `limit`: the window, if the error states it."""

    def __init__(self, message: str, *, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit


def as_summary_error(error: Exception) -> SummaryError:
    """Return a model's exception as a `SummaryError` with one line of text, without secrets."""
    message = clip(redact(one_line(str(error))), _MAX_ERROR_CHARS)
    message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    verdict = classify_error(error)
    if verdict.kind in _TOO_LONG_KINDS:
        return PromptTooLongError(message, limit=verdict.context_limit)
    if verdict.kind == "rate_limit":
        return SummaryError(message, is_transient=True)
    evidence = Evidence()
    evidence.add(error)
    if evidence.status is not None:
        is_transient = evidence.status in _TRANSIENT_STATUSES or evidence.status >= 500
        return SummaryError(
            message,
            is_transient=is_transient,
            has_no_provider=evidence.status in _NO_ACCESS_STATUSES,
        )
    kinds = " ".join(kind.__name__ for kind in type(error).__mro__).lower()
    if isinstance(error, OSError | WireError) or _NETWORK_ERROR.search(kinds):
        return SummaryError(message, is_transient=True)
    return SummaryError(
        message,
        has_no_provider=_NO_ACCESS_MESSAGE.search(f"{kinds} {message.lower()}")
        is not None,
    )


MAX_ATTEMPTS = 2
"""Maximum attempts for one prompt."""
TIME_LIMIT_SECONDS = 300.0
"""Maximum duration of one call: enough for 12,000 tokens at 40 per second."""


@dataclass(slots=True)
class SummaryCalls:
    """Usage and warnings of the calls for one summary, in the order of the prompts."""

    usage: list[Mapping[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    was_repeated: bool = False
    """Whether a prompt was sent again."""


@dataclass(frozen=True, slots=True)
class SummaryWriter:
    """A model that writes summaries."""

    model: Model
    counter: TokenCounter
    template: TemplateName
    time_limit: float = TIME_LIMIT_SECONDS

    async def write(
        self, prompt: SummaryPrompt, calls: SummaryCalls, *, fault: str = ""
    ) -> Sections:
        """Return the sections, or raise `SummaryError`.

        After a bad answer, repeat the prompt once with the reason. If the second answer is only too long, cut it.
        `fault`: the reason why an earlier summary was refused. It is added to the prompt, which is then not repeated.
        """
        answers: list[SummaryAnswer] = []
        prompt = prompt.repeat_with_reason(fault, self.template) if fault else prompt
        while True:
            reply = await self._call(prompt.request, calls)
            answers.append(
                judge_answer(reply, prompt, self.counter.text, self.template)
            )
            if not answers[-1].fault or fault or len(answers) == MAX_ATTEMPTS:
                break
            calls.was_repeated = True
            prompt = prompt.repeat_with_reason(answers[-1].fault, self.template)
        usable = [answer for answer in answers if answer.is_usable]
        if not usable:
            faults = ", then ".join(dict.fromkeys(answer.fault for answer in answers))
            raise SummaryError(
                f"the answer could not be used: {faults}", is_unusable_answer=True
            )
        return self._take_sections(usable[-1], prompt, calls)

    def _take_sections(
        self, answer: SummaryAnswer, prompt: SummaryPrompt, calls: SummaryCalls
    ) -> Sections:
        """Return the sections of a usable answer, with a warning if it is incomplete or must be cut."""
        if answer.is_truncated:
            calls.warnings.append(
                f"{self.model.name} stopped before its summary was complete"
            )
        if not answer.fault:
            return answer.sections
        calls.warnings.append(
            f"{self.model.name} wrote too much; its summary was cut to {prompt.target_tokens} tokens"
        )
        return fit_sections(answer.sections, prompt.target_tokens, self.counter.text)

    async def _call(self, request: Request, calls: SummaryCalls) -> Reply:
        """Return the model's reply and record its usage. Raise any failure as a `SummaryError`."""
        timeout = asyncio.timeout(self.time_limit)
        try:
            async with timeout:
                reply = await self.model.complete(request)
        except SummaryError:
            raise
        except Exception as error:
            if timeout.expired():
                raise SummaryError(
                    f"no answer within {self.time_limit:g} seconds", is_transient=True
                ) from error
            raise as_summary_error(error) from error
        if reply.usage is not None:
            calls.usage.append({**reply.usage, "model": reply.model or self.model.name})
        return reply


MAX_LENGTH_REFUSALS = 2
"""Maximum refusals of a prompt because of its length before the last attempt."""
_SAFE_WINDOW_SHARE = 0.95
"""Share of a window to use, since the model may count differently."""
_MIN_MATERIAL_TOKENS = 1_000
"""A window with fewer tokens for material is not used."""
_MIN_TARGET_TOKENS = 200
"""Minimum target for a summary, however short its sources."""
_EARLIER_LABEL = "earlier checkpoint"


class LlmSummarizer:
    """A summariser that sends the messages to a model."""

    def __init__(  # noqa: PLR0913 - one keyword per setting
        self,
        model: Model,
        counter: TokenCounter,
        *,
        context_length: int | None = None,
        template: TemplateName = "handoff",
        parallel: int = 4,
        time_limit: float = TIME_LIMIT_SECONDS,
        price: CallPrice | None = None,
        windows: dict[str, int] | None = None,
    ) -> None:
        """Set up the summariser.

        `context_length`: the limit for the input of one call, if it is below the model's window. `windows`: the windows
        that models stated, by name, if several summarisers share them.
        """
        self._writer = SummaryWriter(model, counter, template, time_limit)
        self._context_length = context_length
        self._windows: dict[str, int] = {} if windows is None else windows
        self._parallel = max(parallel, 1)
        self._price = price

    @property
    def name(self) -> str:
        return self._writer.model.name

    def quote_price(self, tokens: int, budget: int) -> float | None:
        """Return the dollars for reading `tokens` uncached and writing the summary; None if a price is unknown."""
        return None if self._price is None else self._price(tokens, budget)

    def quote_request_price(self, request: SummaryRequest) -> float | None:
        """Return the price of this request, whose prompt is made of the pruned messages."""
        return self.quote_price(
            self._writer.counter.messages(request.pruned), request.budget
        )

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """Return the draft, or raise `SummaryError`.

        Retry with the stated window if the model accepts less than assumed.
        """
        calls = SummaryCalls()
        try:
            sections = await self._summarize_in_window(request, calls)
        except SummaryError as error:
            error.usage = tuple(calls.usage)
            raise
        return SummaryDraft(
            sections,
            self.name,
            warnings=tuple(calls.warnings),
            usage=tuple(calls.usage),
            was_repeated=calls.was_repeated,
        )

    async def _summarize_in_window(
        self, request: SummaryRequest, calls: SummaryCalls
    ) -> Sections:
        """Write the sections. If a prompt is too long, retry with the window that the error states, or with half."""
        for _ in range(MAX_LENGTH_REFUSALS):
            window = self._find_window()
            try:
                return await self._write_sections(request, window, calls)
            except PromptTooLongError as error:
                smaller_window = (
                    error.limit
                    if error.limit is not None and error.limit < window
                    else window // 2
                )
                self._windows[self.name] = smaller_window
        return await self._write_sections(request, self._find_window(), calls)

    def _find_window(self) -> int:
        """Return the smallest window that is known for the model."""
        model_window = self._writer.model.window
        return min(
            model_window,
            self._context_length or model_window,
            self._windows.get(self.name, model_window),
        )

    async def _write_sections(
        self, request: SummaryRequest, window: int, calls: SummaryCalls
    ) -> Sections:
        """Write the sections with calls of at most `window` tokens."""
        return await _SummaryJob(
            self._writer, request, window, calls, self._parallel
        ).write_sections()


@dataclass(frozen=True, slots=True)
class _SummaryJob:
    """The job of writing one summary by calls of at most `window` tokens."""

    writer: SummaryWriter
    request: SummaryRequest
    window: int
    calls: SummaryCalls
    parallel: int

    async def write_sections(self) -> Sections:
        """Return the sections: with one call if the material fits, else by joining notes on its parts."""
        if self.request.notes:
            return await self._join_notes(self._make_note_entries(self.request.notes))
        groups = make_record(self.request.pruned)
        previous_text = self._previous_text()
        new_tokens = sum(count_entry_tokens(group, self._count) for group in groups)
        previous_tokens = self._count(previous_text)
        spare_tokens = int(
            (self._max_material_tokens(1) - new_tokens - previous_tokens)
            / MAX_OVERSHOOT
        )
        note_target = self._note_target()
        if spare_tokens >= note_target:
            target = min(
                self._summary_target(),
                spare_tokens,
                previous_tokens + max(new_tokens // 2, _MIN_TARGET_TOKENS),
            )
            return await self._write_summary(
                self._full_prompt(
                    groups, previous_text, target, new_tokens + previous_tokens
                )
            )
        chunks = pack_chunks(
            groups, self._max_material_tokens(note_target), self._count
        )
        notes = await self._ask_all(
            [
                self._part_prompt(chunk, number, len(chunks), note_target)
                for number, chunk in enumerate(chunks, 1)
            ]
        )
        earlier_texts = (
            cut_text(previous_text, note_target, self._count) if previous_text else []
        )
        return await self._join_notes(
            [
                *(RecordEntry(_EARLIER_LABEL, text) for text in earlier_texts),
                *self._make_note_entries(notes),
            ]
        )

    async def _join_notes(self, notes: list[RecordEntry]) -> Sections:
        """Join successive notes into one summary.

        Several notes fit into one call, so each round leaves at most half of them.
        """
        max_tokens = self._max_material_tokens(self._summary_target())
        note_target = self._note_target()
        groups = pack_chunks([[note] for note in notes], max_tokens, self._count)
        while len(groups) > 1:
            groups_to_merge = [group for group in groups if len(group) > 1]
            joined_notes = iter(
                self._make_note_entries(
                    await self._ask_all(
                        [
                            self._merge_prompt(group, note_target)
                            for group in groups_to_merge
                        ]
                    )
                )
            )
            notes = [
                next(joined_notes) if len(group) > 1 else group[0] for group in groups
            ]
            groups = pack_chunks([[note] for note in notes], max_tokens, self._count)
        return await self._write_summary(
            self._merge_prompt(groups[0], self._summary_target())
        )

    async def _write_summary(self, prompt: SummaryPrompt) -> Sections:
        """Write the summary itself. Tell the model why the previous one was refused."""
        fault = self.request.refused[-1].reason if self.request.refused else ""
        return await self.writer.write(prompt, self.calls, fault=fault)

    async def _ask_all(self, prompts: Sequence[SummaryPrompt]) -> list[Sections]:
        """Return the answers, in the order of the prompts.

        If one fails or the caller is cancelled, the others stop.
        """
        calls_by_prompt = [SummaryCalls() for _ in prompts]
        answers: list[Sections] = [{} for _ in prompts]
        remaining_indices = iter(range(len(prompts)))

        async def write_remaining() -> None:
            for index in remaining_indices:
                answers[index] = await self.writer.write(
                    prompts[index], calls_by_prompt[index]
                )

        workers = [
            asyncio.create_task(write_remaining())
            for _ in range(min(self.parallel, len(prompts)))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            for prompt_calls in calls_by_prompt:
                self.calls.usage.extend(prompt_calls.usage)
                self.calls.warnings.extend(prompt_calls.warnings)
                self.calls.was_repeated |= prompt_calls.was_repeated
        return answers

    def _full_prompt(
        self,
        groups: Sequence[Sequence[RecordEntry]],
        previous_text: str,
        target_tokens: int,
        material_tokens: int,
    ) -> SummaryPrompt:
        """Return the prompt for all messages at once, and the earlier summary."""
        blocks = (
            [make_marked_block(_EARLIER_LABEL, previous_text)] if previous_text else []
        )
        blocks.append(
            make_marked_block(
                "record", _render_entries(entry for group in groups for entry in group)
            )
        )
        return self._make_prompt(
            [*blocks, *self._open_request_blocks()],
            "update" if previous_text else "first",
            target_tokens,
            material_tokens,
        )

    def _part_prompt(
        self, chunk: Sequence[RecordEntry], number: int, total: int, target_tokens: int
    ) -> SummaryPrompt:
        """Return the prompt for notes on one of several parts."""
        material_tokens = count_entry_tokens(chunk, self._count)
        target_tokens = min(
            target_tokens, max(material_tokens // 2, _MIN_TARGET_TOKENS)
        )
        return self._make_prompt(
            [make_marked_block("record", _render_entries(chunk))],
            "part",
            target_tokens,
            material_tokens,
            number=number,
            total=total,
        )

    def _merge_prompt(
        self, notes: Sequence[RecordEntry], target_tokens: int
    ) -> SummaryPrompt:
        """Return the prompt that joins several notes."""
        blocks = [
            make_marked_block("notes", _render_entries(notes)),
            *self._open_request_blocks(),
        ]
        note_tokens = count_entry_tokens(notes, self._count)
        # Notes are dense already: joining few of them may take more words than they have.
        return self._make_prompt(
            blocks,
            "merge",
            min(target_tokens, note_tokens),
            int(MAX_OVERSHOOT * note_tokens),
        )

    def _make_prompt(
        self,
        blocks: Iterable[str],
        task_name: str,
        target_tokens: int,
        material_tokens: int,
        **values: Any,
    ) -> SummaryPrompt:
        """Return a prompt of these blocks, followed by the instruction `task_name`."""
        instruction = write_task_prompt(
            task_name, target_tokens=target_tokens, focus=self.request.focus, **values
        )
        content = "\n\n".join([*blocks, instruction])
        system = write_instructions(self.writer.template)
        request = Request(
            self.writer.model.name,
            [{"role": "user", "content": content}],
            system=system,
        )
        return SummaryPrompt(request, target_tokens, material_tokens)

    def _previous_text(self) -> str:
        """Return the earlier summary as inert text; empty if there is none."""
        if not self.request.previous:
            return ""
        return to_inert_text(
            render_sections(
                self.request.previous, template=self.writer.template, skip_empty=True
            )
        )

    def _open_request_blocks(self) -> list[str]:
        """Return the user's open request as a block, cut to a small part of the window, as it is quoted elsewhere."""
        text = to_inert_text(self.request.task.strip())
        half_chars = self.window // 32
        if len(text) > 2 * half_chars:
            text = f"{text[:half_chars]}\n[…]\n{text[-half_chars:]}"
        return [make_marked_block("open request of the user", text)] if text else []

    def _make_note_entries(self, notes: Iterable[Sections]) -> list[RecordEntry]:
        """Return the notes as entries of the record, numbered."""
        texts = (
            render_sections(sections, template=self.writer.template, skip_empty=True)
            for sections in notes
        )
        return [
            RecordEntry(f"notes {number}", to_inert_text(text))
            for number, text in enumerate(texts, start=1)
        ]

    def _summary_target(self) -> int:
        """Return the target size of the summary: the budget, but at most a quarter of the window."""
        return max(min(self.request.budget, self.window // 4), 1)

    def _note_target(self) -> int:
        """Return the target size of the notes on one part.

        Two notes fit into one call even if each is one and a half times as large.
        """
        return min(
            max(self._summary_target(), _MIN_TARGET_TOKENS),
            self._max_material_tokens(self._summary_target()) // 4,
        )

    def _max_material_tokens(self, target_tokens: int) -> int:
        """Return the tokens of material that fit into one call, beside its instructions and an answer of this size."""
        request = self._make_prompt(
            self._open_request_blocks(), "update", target_tokens, 0
        ).request
        max_tokens = int(self.window * _SAFE_WINDOW_SHARE) - int(
            MAX_OVERSHOOT * target_tokens
        )
        max_tokens -= self.writer.counter.request(
            request.messages, system=request.system
        )
        if max_tokens < _MIN_MATERIAL_TOKENS:
            raise SummaryError(
                f"a window of {self.window} tokens is too small for a summary"
            )
        return max_tokens

    def _count(self, text: str) -> int:
        return self.writer.counter.text(text)


def _render_entries(entries: Iterable[RecordEntry]) -> str:
    """Return the entries as text, one below the other."""
    return "\n".join(map(str, entries))


_MAX_QUOTE_CHARS = 200


class WarmPrefixSummarizer:
    """A summariser that sends the last request again with one message more, so that the provider reads its cache."""

    def __init__(  # noqa: PLR0913 - one keyword per setting
        self,
        model: Model,
        counter: TokenCounter,
        last_request: Callable[[], Request | None],
        *,
        template: TemplateName = "handoff",
        time_limit: float = TIME_LIMIT_SECONDS,
        price: CallPrice | None = None,
        is_warm: Callable[[], bool] = lambda: True,
    ) -> None:
        """Set up the summariser.

        `last_request`: returns the last request sent to the model, or None; `is_warm`: whether the provider still has
        its prefix in the cache.
        """
        self._writer = SummaryWriter(model, counter, template, time_limit)
        self._last_request = last_request
        self._price = price
        self._is_warm = is_warm

    @property
    def name(self) -> str:
        """The route's name, not the model's: this route can be paused while the model is used the ordinary way."""
        return f"{self._writer.model.name} on its warm prefix"

    def quote_price(self, tokens: int, budget: int) -> float | None:
        """Return the dollars for reading `tokens` from or into the cache and writing the summary; None if unknown."""
        rate: PromptRate = "read" if self._is_warm() else "write"
        return None if self._price is None else self._price(tokens, budget, rate=rate)

    def quote_request_price(self, request: SummaryRequest) -> float | None:
        """Return the price for this request, which is appended to the last one sent."""
        last_request = self._last_request()
        if last_request is None:
            return None
        tokens = self._writer.counter.request(
            last_request.messages, system=last_request.system, tools=last_request.tools
        )
        return self.quote_price(tokens, request.budget)

    def suits(self, request: SummaryRequest) -> bool:
        """Return whether the request has no notes to join: the prefix would only distract from them."""
        return not request.notes

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """Return the draft, or raise `SummaryError`.

        The error is also raised if the last request lacks some of the messages, or leaves no tokens for the answer.
        """
        calls = SummaryCalls()
        prompt = self._make_prompt(request)
        try:
            fault = request.refused[-1].reason if request.refused else ""
            sections = await self._writer.write(prompt, calls, fault=fault)
        except SummaryError as error:
            error.usage = tuple(calls.usage)
            raise
        return SummaryDraft(
            sections,
            self._writer.model.name,
            warnings=tuple(calls.warnings),
            usage=tuple(calls.usage),
            was_repeated=calls.was_repeated,
        )

    def _make_prompt(self, request: SummaryRequest) -> SummaryPrompt:
        """Return the last request with the instruction added.

        Raise `SummaryError` if the last request lacks messages or leaves no tokens for the answer.
        """
        last_request = self._last_request()
        if last_request is None or not _has_all_messages(last_request, request):
            raise SummaryError(
                "the last request does not hold the messages to be summarised"
            )
        template = self._writer.template
        counter = self._writer.counter
        quotes = {
            "last": _quote_message(request.messages[-1]) if request.messages else ""
        }
        if request.is_stretch and request.messages:
            quotes["first"] = _quote_message(request.messages[0])
        instruction = write_task_prompt(
            "warm_stretch" if "first" in quotes else "warm",
            target_tokens=request.budget,
            focus=request.focus,
            sections=fill_template(f"sections_{template}"),
            **quotes,
        )
        messages: list[Message] = [
            *last_request.messages,
            {"role": "user", "content": instruction},
        ]
        tokens = counter.request(
            messages, system=last_request.system, tools=last_request.tools
        )
        if tokens + MAX_OVERSHOOT * request.budget > self._writer.model.window:
            raise SummaryError(
                f"the window of {self._writer.model.window} tokens has no room left for a summary"
            )
        return SummaryPrompt(
            replace(last_request, messages=messages), request.budget, tokens
        )


def _has_all_messages(sent_request: Request, request: SummaryRequest) -> bool:
    """Return whether every message to summarise is in the sent request, ignoring cache markers."""
    sent_messages = {message_key(message): message for message in sent_request.messages}
    changed_messages = [
        message
        for message in request.messages
        if sent_messages.get(message_key(message)) != message
    ]
    if not changed_messages:
        return True
    fingerprints = set(map(message_fingerprint, sent_request.messages))
    return all(
        message_fingerprint(message) in fingerprints for message in changed_messages
    )


def _quote_message(message: Message) -> str:
    """Return a quote that identifies a message among the others."""
    words = text_of(message) or " ".join(
        f"{call.name} {call.arguments}" for call in calls_of(message)
    )
    return clip(
        one_line(to_inert_text(f"{message['role']}: {words}")), _MAX_QUOTE_CHARS
    )
