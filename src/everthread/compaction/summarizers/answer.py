"""What a model answered, as the sections of a summary, and what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from everthread.compaction.summarizers.prompts import SummaryPrompt, headings
from everthread.compaction.summarizers.record import OPEN, Count
from everthread.compaction.summary import CLASSIC, HANDOFF, Sections, TemplateName, parse_sections, render_sections
from everthread.core.messages import calls_of, text_of
from everthread.core.redaction import redact
from everthread.core.transcript import SUMMARY_END, SUMMARY_START
from everthread.core.types import Reply

FEWEST = 3
"""An answer with fewer known headings is no summary."""
TOLERATED = 1.5
"""How far an answer may exceed its target."""

REFUSED = "it declined to answer"
CALLED = "it called tools instead of writing"
EMPTY = "it was empty"
THOUGHT = "it held nothing but thinking"
UNSTRUCTURED = "it was no checkpoint in the sections asked for"
HOLLOW = "every section in it was empty"
CUT_OFF = "it was cut off before it had enough sections"
LONGER = "it was longer than what it summarises"
TOO_LONG = "it was far longer than it may be"


@dataclass(frozen=True, slots=True)
class SummaryAnswer:
    """The sections found. `fault` tells what is wrong, `usable` whether it will do when nothing better comes."""

    sections: Sections
    fault: str = ""
    usable: bool = True
    truncated: bool = False


def judge(reply: Reply, question: SummaryPrompt, count: Count, template: TemplateName) -> SummaryAnswer:
    """The answer and its fault, if it has one."""
    raw = text_of(reply.message)
    text = without_thinking(raw)
    marked, found = with_headings(text)
    sections = _clean(parse_sections(without_fence(marked)))
    truncated = reply.stop in ("length", "content_filter")
    if len(found) < FEWEST:
        return SummaryAnswer({}, _why_none(reply, raw, text), usable=False)
    if not sections:
        return SummaryAnswer({}, HOLLOW, usable=False)
    if truncated and 2 * len(found) < len(headings(template)):
        return SummaryAnswer(sections, CUT_OFF, usable=False, truncated=True)
    tokens = count(render_sections(sections, template=template, brief=True))
    if tokens > max(question.given, question.target):
        return SummaryAnswer(sections, LONGER, usable=False, truncated=truncated)
    fault = TOO_LONG if tokens > TOLERATED * question.target else ""
    return SummaryAnswer(sections, fault, truncated=truncated)


def _why_none(reply: Reply, raw: str, text: str) -> str:
    if reply.stop in ("refusal", "content_filter") or reply.message.get("refusal"):
        return REFUSED
    if calls_of(reply.message):
        return CALLED
    if not raw.strip():
        return EMPTY
    return UNSTRUCTURED if text.strip() else THOUGHT


# Thinking

_TAGS = r"(think|thinking|thoughts?|reasoning|analysis|scratchpad)"
_THINKING = re.compile(rf"^[ \t]*<{_TAGS}>", re.MULTILINE | re.IGNORECASE)
_THOUGHT = re.compile(rf"</{_TAGS}>", re.IGNORECASE)
_TAG = re.compile(rf"</?{_TAGS}>", re.IGNORECASE)


def without_thinking(text: str) -> str:
    """The text without thinking that was written into it.

    A tag at the start of a line opens it; elsewhere it is quoted. What opens the whole text and is never closed is
    all thinking. Some chat templates swallow the opening tag: then a closing one ends what began with the text.
    """
    kept: list[str] = []
    position = 0
    for opened in _THINKING.finditer(text):
        if opened.start() < position:
            continue
        closed = _THOUGHT.search(text, opened.end())
        if closed is None:
            return "" if not text[: opened.start()].strip() else "".join((*kept, text[position:]))
        kept.append(text[position : opened.start()])
        position = closed.end()
    first = None if position else _TAG.search(text)
    if first and first[0].startswith("</") and _HEADING.search(text, first.end()):
        position = first.end()
    return "".join((*kept, text[position:]))


# Headings

_NAMES = {
    name.casefold(): name for name in (*HANDOFF, *(heading for heading, _ in CLASSIC), "Done", "State", "Constraints")
}
_ANY_NAME = "|".join(re.escape(name).replace("\\&", "(?:&|&amp;|and)") for name in _NAMES)
_HEADING = re.compile(
    rf"^[ \t]*(?:#{{1,6}}[ \t]*(?:\d{{1,2}}[.)][ \t]*)?[*_]{{0,3}}({_ANY_NAME}):?[*_]{{0,3}}:?"
    rf"|(?:\d{{1,2}}[.)][ \t]*)?[*_]{{2,3}}({_ANY_NAME}):?[*_]{{2,3}}:?)[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)


def with_headings(text: str) -> tuple[str, frozenset[str]]:
    """The text with every known heading in one form, however it was dressed up, and which there are."""
    found: set[str] = set()

    def plain(match: re.Match[str]) -> str:
        written = re.sub(r"&amp;|\band\b", "&", match[1] or match[2], flags=re.IGNORECASE)
        found.add(_NAMES[written.casefold()])
        return f"## {_NAMES[written.casefold()]}"

    return _HEADING.sub(plain, text), frozenset(found)


# Wrapping

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*$", re.MULTILINE)


def without_fence(text: str) -> str:
    """The text from its first heading on; if that stood in a code fence, up to the end of the fence.

    Fences inside come in pairs, so an odd one out at the end is the closing one.
    """
    first = _HEADING.search(text)
    if first is None:
        return ""
    before = text[: first.start()].rstrip().rsplit("\n", 1)[-1]
    body = text[first.start() :]
    if not _FENCE.fullmatch(before):
        return body
    fences = list(_FENCE.finditer(body))
    return body[: fences[-1].start()] if len(fences) % 2 else body


_OURS = (OPEN, SUMMARY_START, SUMMARY_END)


def _clean(sections: Mapping[str, str]) -> Sections:
    """The sections without secrets, and without lines that only we may write."""
    kept = {
        name: redact("\n".join(line for line in text.splitlines() if not line.lstrip().startswith(_OURS))).strip()
        for name, text in sections.items()
    }
    return {name: text for name, text in kept.items() if text}
