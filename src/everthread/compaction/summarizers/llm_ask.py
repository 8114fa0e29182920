"""One question to a model, until there is an answer that can be used: asked, judged, asked once more, or given up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everthread.compaction.summarizers.llm_answer import Answer, judge
from everthread.compaction.summarizers.llm_failures import failure
from everthread.compaction.summarizers.llm_prompt import Question
from everthread.compaction.summarizers.llm_trim import fit
from everthread.compaction.summary import Sections, TemplateName
from everthread.core.tokens import TokenCounter
from everthread.core.types import Model, Reply, Request
from everthread.errors import SummaryError

TIME_LIMIT = 300.0
"""Seconds one call may take. Twelve thousand tokens at forty a second."""


@dataclass(slots=True)
class Ledger:
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

    async def write(self, question: Question, ledger: Ledger) -> Sections:
        """The sections, or `SummaryError`. A bad answer gets one firmer question; one that is merely too long will
        then do, cut to its size."""
        answers: list[Answer] = []
        asked = question
        for _ in range(2):
            reply = await self._call(asked.request, ledger)
            answers.append(judge(reply, question, self.counter.text, self.template))
            if not answers[-1].fault:
                break
            asked = question.firmer(answers[-1].fault, self.template)
        usable = [answer for answer in answers if answer.usable]
        if not usable:
            faults = ", then ".join(dict.fromkeys(answer.fault for answer in answers))
            raise SummaryError(f"the answer could not be used: {faults}")
        return self._final(usable[-1], question, ledger)

    def _final(self, answer: Answer, question: Question, ledger: Ledger) -> Sections:
        if answer.truncated:
            ledger.warnings.append(f"{self.model.name} stopped before its summary was complete")
        if not answer.fault:
            return answer.sections
        ledger.warnings.append(f"{self.model.name} wrote too much; its summary was cut to {question.target} tokens")
        return fit(answer.sections, question.target, self.counter.text)

    async def _call(self, request: Request, ledger: Ledger) -> Reply:
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
