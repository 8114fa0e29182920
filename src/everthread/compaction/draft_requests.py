"""Request drafts from a summariser, and request them again if they are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.compaction.summarizers.summarizer import (
    JOURNAL_AUTHOR,
    RefusedDraft,
    Summarizer,
    SummaryDraft,
    SummaryRequest,
)
from everthread.compaction.summary.sections import (
    NAMES,
    TASK,
    USER_WORDS,
    Sections,
    find_section_name,
    parse_sections,
)
from everthread.core.secrets.redaction import redact
from everthread.errors import SummaryError

NOTHING_WRITTEN = "wrote nothing in the sections of a summary"
MAX_PARALLEL_DRAFTS = 4
"""Maximum drafts to request at the same time."""


def empty_draft(
    warnings: Sequence[str] = (), usage: Sequence[Mapping[str, Any]] = ()
) -> SummaryDraft:
    """Return a draft without sections, in whose place the journal is written."""
    return SummaryDraft({}, JOURNAL_AUTHOR, tuple(warnings), tuple(usage))


async def request_drafts(
    summarizer: Summarizer, requests: Sequence[SummaryRequest]
) -> list[SummaryDraft]:
    """Return a draft for each request, in order. If the summariser fails, the draft is empty."""
    slots = asyncio.Semaphore(MAX_PARALLEL_DRAFTS)

    async def ask(request: SummaryRequest) -> SummaryDraft:
        async with slots:
            return await _request_draft(summarizer, request)

    tasks = [asyncio.ensure_future(ask(request)) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _request_draft(summarizer: Summarizer, request: SummaryRequest) -> SummaryDraft:
    """Return one draft; an empty one with a warning if the summariser fails."""
    name = summarizer.name
    try:
        return _clean_draft(await summarizer.summarize(request))
    except SummaryError as error:
        return empty_draft([f"{name} wrote no summary: {error}"], error.usage)
    except Exception as error:  # noqa: BLE001 - a summariser may be third-party code; the journal always works
        return empty_draft([f"{name} failed: {type(error).__name__}: {error}"])


def _clean_draft(draft: SummaryDraft) -> SummaryDraft:
    """Return the draft with only the known sections that a summariser may write.

    A heading inside a section gets a backslash, so that it is not read back as the start of another section.
    """
    sections: Sections = {}
    for name, text in draft.sections.items():
        if isinstance(text, str):
            lines = (f"\\{line}" if find_section_name(line) else line for line in text.split("\n"))
            for section, body in parse_sections("\n".join([f"## {name}", *lines])).items():
                sections[section] = "\n".join(filter(None, (sections.get(section), body)))
    return replace(
        draft,
        sections={
            name: text for name, text in sections.items() if name not in (TASK, USER_WORDS, NAMES)
        },
        author=str(draft.author),
        warnings=tuple(map(str, draft.warnings)),
        usage=tuple(map(dict, draft.usage)),
    )


@dataclass(frozen=True, slots=True)
class PendingDraft:
    """A draft that was requested and not accepted yet.

    Each route of a chain gets at most two attempts, including its own retries. Then the chain takes the next one.
    """

    request: SummaryRequest
    brief_request: SummaryRequest | None = None
    """The request to use after a refusal."""
    warnings: tuple[str, ...] = ()
    usage: tuple[Mapping[str, Any], ...] = ()
    refused_drafts: tuple[RefusedDraft, ...] = ()

    @property
    def next_request(self) -> SummaryRequest:
        """The next request to send, with the drafts refused so far."""
        request = self.request
        if self.refused_drafts and self.brief_request is not None:
            request = self.brief_request
        return replace(request, refused=self.refused_drafts)

    def receive_draft(
        self, draft: SummaryDraft, check: Callable[[SummaryDraft], SummaryDraft | str]
    ) -> PendingDraft | SummaryDraft:
        """Return the draft with the warnings and usage of all calls, or a pending draft with the next request.

        `check` returns a model's draft in its final form, or the reason to refuse it. If no route is left, return an
        empty draft, so that the journal is written.
        """
        usage = (*self.usage, *draft.usage)
        warnings = (*self.warnings, *draft.warnings)
        checked: SummaryDraft | str = draft
        if draft.is_from_model:
            checked = check(draft) if draft.sections else f"{draft.author} {NOTHING_WRITTEN}"
        if isinstance(checked, SummaryDraft):
            return replace(checked, warnings=tuple(map(redact, warnings)), usage=usage)
        if checked not in warnings:
            warnings = (*warnings, checked)
        is_route_exhausted = draft.was_retried or any(
            earlier_draft.route == draft.route for earlier_draft in self.refused_drafts
        )
        if is_route_exhausted and not draft.route:
            return empty_draft(tuple(map(redact, warnings)), usage)
        refused_draft = RefusedDraft(draft.route, redact(checked), is_route_exhausted)
        return replace(
            self,
            warnings=warnings,
            usage=usage,
            refused_drafts=(*self.refused_drafts, refused_draft),
        )
