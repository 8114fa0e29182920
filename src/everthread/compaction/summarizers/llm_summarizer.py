"""Write the summary with a model, from a record of the conversation.

Material that fits into the model's window takes one call. Anything larger is cut into parts: each part is summarised by
its own call, several at a time, and the notes are joined in as many rounds as it takes, so that the model sees all of
it. The order of the parts, never the order of the answers, decides the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.compaction.summarizers.answer_judging import MAX_OVERSHOOT
from everthread.compaction.summarizers.conversation_record import (
    RecordEntry,
    count_entry_tokens,
    cut_text,
    make_marked_block,
    make_record,
    pack_chunks,
    to_inert_text,
)
from everthread.compaction.summarizers.model_errors import PromptTooLongError
from everthread.compaction.summarizers.prompts import (
    SummaryPrompt,
    compose_instructions,
    compose_task_prompt,
)
from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.compaction.summarizers.summary_calls import (
    TIME_LIMIT_SECONDS,
    SummaryCalls,
    SummaryWriter,
)
from everthread.compaction.summarizers.summary_prices import CallPrice
from everthread.compaction.summary.sections import (
    Sections,
    TemplateName,
    render_sections,
)
from everthread.core.tokens import TokenCounter
from everthread.core.types import Model, ModelRequest
from everthread.errors import SummaryError

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
        self._max_parallel_calls = max(parallel, 1)
        self._price = price

    @property
    def name(self) -> str:
        return self._writer.model.name

    def quote_price(self, tokens: int, budget: int) -> float | None:
        """Return the dollars for reading `tokens` uncached and writing the summary, or None if a price is unknown."""
        return None if self._price is None else self._price(tokens, budget)

    def quote_request_price(self, request: SummaryRequest) -> float | None:
        """Return the price of this request, whose prompt is made of the pruned messages."""
        return self.quote_price(self._writer.counter.messages(request.pruned), request.budget)

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """Return the draft, or raise `SummaryError`.

        Retry with the stated window if the model accepts less than assumed.
        """
        calls = SummaryCalls()
        with calls.report_usage_of_failure():
            sections = await self._write_sections(request, calls)
        return calls.make_draft(sections, self.name)

    async def _write_sections(self, request: SummaryRequest, calls: SummaryCalls) -> Sections:
        """Write the sections. If a prompt is too long, retry with the window that the error states, or with half."""
        refusal_count = 0
        while True:
            window = self._find_window()
            job = _SummaryJob(
                self._writer,
                request,
                window,
                calls=calls,
                parallel=self._max_parallel_calls,
            )
            try:
                return await job.write_sections()
            except PromptTooLongError as error:
                refusal_count += 1
                if refusal_count > MAX_LENGTH_REFUSALS:
                    raise
                limit = error.limit
                self._windows[self.name] = (
                    limit if limit is not None and limit < window else window // 2
                )

    def _find_window(self) -> int:
        """Return the smallest window that is known for the model."""
        model_window = self._writer.model.window
        return min(
            model_window,
            self._context_length or model_window,
            self._windows.get(self.name, model_window),
        )


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
        previous_text = self._render_previous()
        new_tokens = sum(count_entry_tokens(group, self._count_tokens) for group in groups)
        previous_tokens = self._count_tokens(previous_text)
        spare_tokens = int(
            (self._find_max_material_tokens(1) - new_tokens - previous_tokens) / MAX_OVERSHOOT
        )
        note_target = self._choose_note_target()
        if spare_tokens >= note_target:
            target = min(
                self._choose_summary_target(),
                spare_tokens,
                previous_tokens + max(new_tokens // 2, _MIN_TARGET_TOKENS),
            )
            return await self._write_summary(
                self._make_full_prompt(groups, previous_text, target, new_tokens + previous_tokens)
            )
        chunks = pack_chunks(
            groups, self._find_max_material_tokens(note_target), self._count_tokens
        )
        notes = await self._ask_all(
            [
                self._make_part_prompt(chunk, number, len(chunks), note_target)
                for number, chunk in enumerate(chunks, 1)
            ]
        )
        earlier_texts = (
            cut_text(previous_text, note_target, self._count_tokens) if previous_text else []
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
        max_tokens = self._find_max_material_tokens(self._choose_summary_target())
        note_target = self._choose_note_target()
        groups = pack_chunks([[note] for note in notes], max_tokens, self._count_tokens)
        while len(groups) > 1:
            groups_to_merge = [group for group in groups if len(group) > 1]
            joined_notes = iter(
                self._make_note_entries(
                    await self._ask_all(
                        [self._make_merge_prompt(group, note_target) for group in groups_to_merge]
                    )
                )
            )
            notes = [next(joined_notes) if len(group) > 1 else group[0] for group in groups]
            groups = pack_chunks([[note] for note in notes], max_tokens, self._count_tokens)
        return await self._write_summary(
            self._make_merge_prompt(groups[0], self._choose_summary_target())
        )

    async def _write_summary(self, prompt: SummaryPrompt) -> Sections:
        """Write the summary itself. Tell the model why the previous one was refused."""
        fault = self.request.last_refusal_reason
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
                answers[index] = await self.writer.write(prompts[index], calls_by_prompt[index])

        workers = [
            asyncio.create_task(write_remaining()) for _ in range(min(self.parallel, len(prompts)))
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
                self.calls.was_retried |= prompt_calls.was_retried
        return answers

    def _make_full_prompt(
        self,
        groups: Sequence[Sequence[RecordEntry]],
        previous_text: str,
        target_tokens: int,
        material_tokens: int,
    ) -> SummaryPrompt:
        """Return the prompt for all messages at once, and the earlier summary."""
        blocks = [make_marked_block(_EARLIER_LABEL, previous_text)] if previous_text else []
        blocks.append(
            make_marked_block(
                "record", _render_entries(entry for group in groups for entry in group)
            )
        )
        return self._make_prompt(
            [*blocks, *self._make_open_request_blocks()],
            "update" if previous_text else "first",
            target_tokens,
            material_tokens,
        )

    def _make_part_prompt(
        self, chunk: Sequence[RecordEntry], number: int, total: int, target_tokens: int
    ) -> SummaryPrompt:
        """Return the prompt for notes on one of several parts."""
        material_tokens = count_entry_tokens(chunk, self._count_tokens)
        target_tokens = min(target_tokens, max(material_tokens // 2, _MIN_TARGET_TOKENS))
        return self._make_prompt(
            [make_marked_block("record", _render_entries(chunk))],
            "part",
            target_tokens,
            material_tokens,
            number=number,
            total=total,
        )

    def _make_merge_prompt(self, notes: Sequence[RecordEntry], target_tokens: int) -> SummaryPrompt:
        """Return the prompt that joins several notes."""
        blocks = [
            make_marked_block("notes", _render_entries(notes)),
            *self._make_open_request_blocks(),
        ]
        note_tokens = count_entry_tokens(notes, self._count_tokens)
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
        instruction = compose_task_prompt(
            task_name, target_tokens=target_tokens, focus=self.request.focus, **values
        )
        content = "\n\n".join([*blocks, instruction])
        system = compose_instructions(self.writer.template)
        request = ModelRequest(
            self.writer.model.name,
            [{"role": "user", "content": content}],
            system=system,
        )
        return SummaryPrompt(request, target_tokens, material_tokens)

    def _render_previous(self) -> str:
        """Return the earlier summary as inert text, or an empty string if there is none."""
        if not self.request.previous:
            return ""
        return to_inert_text(
            render_sections(self.request.previous, template=self.writer.template, skip_empty=True)
        )

    def _make_open_request_blocks(self) -> list[str]:
        """Return the user's open request as a block, cut short because it is quoted elsewhere."""
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

    def _choose_summary_target(self) -> int:
        """Return the target size of the summary: the budget, but at most a quarter of the window."""
        return max(min(self.request.budget, self.window // 4), 1)

    def _choose_note_target(self) -> int:
        """Return the target size of the notes on one part.

        Two notes fit into one call even if each is one and a half times as large.
        """
        return min(
            max(self._choose_summary_target(), _MIN_TARGET_TOKENS),
            self._find_max_material_tokens(self._choose_summary_target()) // 4,
        )

    def _find_max_material_tokens(self, target_tokens: int) -> int:
        """Return the tokens of material that fit into one call, beside its instructions and an answer of this size."""
        request = self._make_prompt(
            self._make_open_request_blocks(), "update", target_tokens, 0
        ).request
        max_tokens = int(self.window * _SAFE_WINDOW_SHARE) - int(MAX_OVERSHOOT * target_tokens)
        max_tokens -= self.writer.counter.request(request.messages, system=request.system)
        if max_tokens < _MIN_MATERIAL_TOKENS:
            raise SummaryError(f"a window of {self.window} tokens is too small for a summary")
        return max_tokens

    def _count_tokens(self, text: str) -> int:
        return self.writer.counter.text(text)


def _render_entries(entries: Iterable[RecordEntry]) -> str:
    """Return the entries as text, one below the other."""
    return "\n".join(map(str, entries))
