"""Judge a model's answer: read its sections, and say why it cannot be used as a summary."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from everthread.compaction.summarizers.conversation_record import OPEN
from everthread.compaction.summarizers.prompts import SummaryPrompt, list_headings
from everthread.compaction.summary.sections import (
    CLASSIC_SECTIONS,
    HANDOFF_SECTIONS,
    Sections,
    TemplateName,
    parse_sections,
    render_sections,
)
from everthread.compaction.summary.sentences import CountTokens
from everthread.core.messages import calls_of, text_of
from everthread.core.secrets.redaction import redact
from everthread.core.summary_marks import SUMMARY_END, SUMMARY_START
from everthread.core.types import ModelReply

MIN_HEADINGS = 3
"""An answer with fewer known headings does not count as a summary."""
MAX_OVERSHOOT = 1.5
"""The factor by which an answer may exceed its target."""

FAULT_REFUSED = "it declined to answer"
FAULT_CALLED_TOOLS = "it called tools instead of writing"
FAULT_EMPTY = "it was empty"
FAULT_ONLY_THINKING = "it held nothing but thinking"
FAULT_NO_SECTIONS = "it lacked the sections asked for"
FAULT_EMPTY_SECTIONS = "every section in it was empty"
FAULT_CUT_OFF = "it was cut off before it had enough sections"
FAULT_LONGER_THAN_SOURCE = "it was longer than what it summarises"
FAULT_TOO_LONG = "it was far longer than it may be"
_THINKING_TAGS = r"(think|thinking|thoughts?|reasoning|analysis|scratchpad)"
_THINKING_START_PATTERN = re.compile(rf"^[ \t]*<{_THINKING_TAGS}>", re.MULTILINE | re.IGNORECASE)
_THINKING_END_PATTERN = re.compile(rf"</{_THINKING_TAGS}>", re.IGNORECASE)
_THINKING_TAG_PATTERN = re.compile(rf"</?{_THINKING_TAGS}>", re.IGNORECASE)
_HEADING_NAMES = {
    name.casefold(): name
    for name in (
        *HANDOFF_SECTIONS,
        *(heading for heading, _ in CLASSIC_SECTIONS),
        "Done",
        "State",
        "Constraints",
    )
}
_ANY_HEADING = "|".join(
    re.escape(name).replace("\\&", "(?:&|&amp;|and)") for name in _HEADING_NAMES
)
_HEADING_PATTERN = re.compile(
    rf"^[ \t]*(?:#{{1,6}}[ \t]*(?:\d{{1,2}}[.)][ \t]*)?[*_]{{0,3}}({_ANY_HEADING}):?[*_]{{0,3}}:?"
    rf"|(?:\d{{1,2}}[.)][ \t]*)?[*_]{{2,3}}({_ANY_HEADING}):?[*_]{{2,3}}:?)[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
_FENCE_PATTERN = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*$", re.MULTILINE)
_RESERVED_STARTS = (OPEN, SUMMARY_START, SUMMARY_END)


@dataclass(frozen=True, slots=True)
class SummaryAnswer:
    """The sections of a model's answer."""

    sections: Sections
    fault: str = ""
    """The reason to refuse the answer, or an empty string if there is none."""
    is_usable: bool = True
    """Whether the sections serve if no better answer comes."""
    is_truncated: bool = False
    """Whether the model stopped before its answer was complete."""


def judge_answer(
    reply: ModelReply, prompt: SummaryPrompt, count: CountTokens, template: TemplateName
) -> SummaryAnswer:
    """Return the answer and its fault, if it has one."""
    raw_text = text_of(reply.message)
    text = strip_thinking(raw_text)
    text_with_headings, found_headings = normalize_headings(text)
    sections = _clean_sections(parse_sections(strip_fence(text_with_headings)))
    is_truncated = reply.stop in ("length", "content_filter")
    if len(found_headings) < MIN_HEADINGS:
        return SummaryAnswer({}, _explain_unusable(reply, raw_text, text), is_usable=False)
    if not sections:
        return SummaryAnswer({}, FAULT_EMPTY_SECTIONS, is_usable=False)
    if is_truncated and 2 * len(found_headings) < len(list_headings(template)):
        return SummaryAnswer(sections, FAULT_CUT_OFF, is_usable=False, is_truncated=True)
    tokens = count(render_sections(sections, template=template, skip_empty=True))
    if tokens > max(prompt.material_tokens, prompt.target_tokens):
        return SummaryAnswer(
            sections,
            FAULT_LONGER_THAN_SOURCE,
            is_usable=False,
            is_truncated=is_truncated,
        )
    fault = FAULT_TOO_LONG if tokens > MAX_OVERSHOOT * prompt.target_tokens else ""
    return SummaryAnswer(sections, fault, is_truncated=is_truncated)


def _explain_unusable(reply: ModelReply, raw_text: str, text: str) -> str:
    """Return the reason why an answer has no sections."""
    if reply.stop in ("refusal", "content_filter") or reply.message.get("refusal"):
        return FAULT_REFUSED
    if calls_of(reply.message):
        return FAULT_CALLED_TOOLS
    if not raw_text.strip():
        return FAULT_EMPTY
    return FAULT_NO_SECTIONS if text.strip() else FAULT_ONLY_THINKING


def strip_thinking(text: str) -> str:
    """Return the text without thinking that was written into it.

    Thinking begins with a tag at the start of a line; elsewhere a tag is a quotation. If a tag at the start of the text
    is never closed, the whole text is thinking. Some chat templates drop the opening tag: then the thinking reaches
    from the start of the text to the closing tag.
    """
    parts: list[str] = []
    position = 0
    for opening_tag in _THINKING_START_PATTERN.finditer(text):
        if opening_tag.start() < position:
            continue
        closing_tag = _THINKING_END_PATTERN.search(text, opening_tag.end())
        if closing_tag is None:
            if not text[: opening_tag.start()].strip():
                return ""
            return "".join((*parts, text[position:]))
        parts.append(text[position : opening_tag.start()])
        position = closing_tag.end()
    first_tag = None if position else _THINKING_TAG_PATTERN.search(text)
    if (
        first_tag
        and first_tag[0].startswith("</")
        and _HEADING_PATTERN.search(text, first_tag.end())
    ):
        position = first_tag.end()
    return "".join((*parts, text[position:]))


def normalize_headings(text: str) -> tuple[str, frozenset[str]]:
    """Return the text with every known heading in one form, and the set of those headings."""
    heading_names: set[str] = set()

    def rewrite_heading(match: re.Match[str]) -> str:
        heading = re.sub(r"&amp;|\band\b", "&", match[1] or match[2], flags=re.IGNORECASE)
        heading_names.add(_HEADING_NAMES[heading.casefold()])
        return f"## {_HEADING_NAMES[heading.casefold()]}"

    return _HEADING_PATTERN.sub(rewrite_heading, text), frozenset(heading_names)


def strip_fence(text: str) -> str:
    """Return the text from its first heading on, up to the end of the code fence if the heading is in one.

    Fences inside come in pairs, so with an odd number of fences the last one closes the outer fence.
    """
    first_heading = _HEADING_PATTERN.search(text)
    if first_heading is None:
        return ""
    line_before = text[: first_heading.start()].rstrip().rsplit("\n", 1)[-1]
    body = text[first_heading.start() :]
    if not _FENCE_PATTERN.fullmatch(line_before):
        return body
    fences = list(_FENCE_PATTERN.finditer(body))
    return body[: fences[-1].start()] if len(fences) % 2 else body


def _clean_sections(sections: Mapping[str, str]) -> Sections:
    """Return the sections without secrets, and without lines that begin like markers of this package."""
    clean = {
        name: redact(
            "\n".join(
                line for line in text.splitlines() if not line.lstrip().startswith(_RESERVED_STARTS)
            )
        ).strip()
        for name, text in sections.items()
    }
    return {name: text for name, text in clean.items() if text}
