"""Ask a model for one summary: check the answer, repeat a prompt after a bad one, and record the usage."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from everthread.compaction.summarizers.answer_judging import (
    SummaryAnswer,
    judge_answer,
)
from everthread.compaction.summarizers.model_errors import as_summary_error
from everthread.compaction.summarizers.prompts import SummaryPrompt, fit_sections
from everthread.compaction.summarizers.summarizer import SummaryDraft
from everthread.compaction.summary.sections import Sections, TemplateName
from everthread.core.tokens import TokenCounter
from everthread.core.types import Model, ModelReply, ModelRequest
from everthread.errors import SummaryError

MAX_ATTEMPTS = 2
"""Maximum attempts for one prompt."""
TIME_LIMIT_SECONDS = 300.0
"""Maximum duration of one call: enough for 12,000 tokens at 40 per second."""


@dataclass(slots=True)
class SummaryCalls:
    """Usage and warnings of the calls for one summary, in the order of the prompts."""

    usage: list[Mapping[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    was_retried: bool = False
    """Whether a prompt was sent again."""

    def make_draft(self, sections: Sections, author: str) -> SummaryDraft:
        """Return the draft that these calls wrote."""
        return SummaryDraft(
            sections,
            author,
            warnings=tuple(self.warnings),
            usage=tuple(self.usage),
            was_retried=self.was_retried,
        )

    @contextmanager
    def report_usage_of_failure(self) -> Iterator[None]:
        """Add the usage of the calls so far to a `SummaryError`."""
        try:
            yield
        except SummaryError as error:
            error.usage = tuple(self.usage)
            raise


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
            answers.append(judge_answer(reply, prompt, self.counter.text, self.template))
            if not answers[-1].fault or fault or len(answers) == MAX_ATTEMPTS:
                break
            calls.was_retried = True
            prompt = prompt.repeat_with_reason(answers[-1].fault, self.template)
        usable = [answer for answer in answers if answer.is_usable]
        if not usable:
            faults = ", then ".join(dict.fromkeys(answer.fault for answer in answers))
            raise SummaryError(f"the answer could not be used: {faults}", is_unusable_answer=True)
        return self._read_sections(usable[-1], prompt, calls)

    def _read_sections(
        self, answer: SummaryAnswer, prompt: SummaryPrompt, calls: SummaryCalls
    ) -> Sections:
        """Return the sections of a usable answer, with a warning if it is incomplete or must be cut."""
        if answer.is_truncated:
            calls.warnings.append(f"{self.model.name} stopped before its summary was complete")
        if not answer.fault:
            return answer.sections
        calls.warnings.append(
            f"{self.model.name} wrote too much; its summary was cut to {prompt.target_tokens} tokens"
        )
        return fit_sections(answer.sections, prompt.target_tokens, self.counter.text)

    async def _call(self, request: ModelRequest, calls: SummaryCalls) -> ModelReply:
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
