"""Build prompts for a model that writes a summary, and read its answer.

The model reads the conversation as a record: text between marker lines, so that everything in it is data. Only marker
lines have the signs `⟦ ⟧`. Material loses those signs, so nothing in it can close the record, speak for another role or
pose as an instruction. Secrets are redacted before anything is cut, so that no cut can hide half of one. The words of
the prompts are in `texts/`.
"""

from __future__ import annotations

import functools
import math
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import accumulate
from typing import Any

from everthread.compaction.summary import (
    CLASSIC,
    DONE,
    HANDOFF,
    NAMES,
    TASK,
    USER_WORDS,
    Sections,
    TemplateName,
    parse_sections,
    render_sections,
)
from everthread.core.messages import (
    CALL_BLOCKS,
    REASONING_BLOCKS,
    RESULT_BLOCKS,
    Messages,
    Part,
    calls_of,
    clip,
    kind_of,
    one_line,
    part_text,
    parts_of,
    results_of,
    strip_injected,
    text_of,
)
from everthread.core.secrets.redaction import redact
from everthread.core.transcript import SUMMARY_END, SUMMARY_START, spans
from everthread.core.types import Reply, Request

OPEN = "⟦"
CLOSE = "⟧"
_MATERIAL = str.maketrans({OPEN: "[", CLOSE: "]"})
_NAME = 80


def as_inert_text(text: str) -> str:
    """Return the text as material: without secrets and marker signs."""
    return redact(text).translate(_MATERIAL)


def line(label: str) -> str:
    """Return a marker line."""
    return f"{OPEN}{label}{CLOSE}"


def block(name: str, material: str) -> str:
    """Return material between two marker lines. Pass it through `as_inert_text` or `RecordEntry` first."""
    return f"{line(name)}\n{material}\n{line(f'end of {name}')}"


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """One thing that was said or done. Both fields are inert."""

    label: str
    text: str

    def __str__(self) -> str:
        return f"{line(self.label)}\n{self.text}"


def record(messages: Messages) -> list[list[RecordEntry]]:
    """Return the messages as entries, in pieces that belong together: calls and their results are one piece."""
    names: dict[str, str] = {}
    return [
        [
            entry
            for index in range(span.start, span.end)
            for entry in _entries(index + 1, messages[index], names)
        ]
        for span in spans(messages)
    ]


def _entries(
    number: int, message: Mapping[str, Any], names: dict[str, str]
) -> Iterator[RecordEntry]:
    """Yield the entries of one message. `names`: the tool of each call so far, by the call's id."""
    calls = calls_of(message)
    results = results_of(message)
    names |= {call.id: call.name for call in calls}
    for who, text in _spoken_parts(message):
        if text.strip():
            yield RecordEntry(f"{number} {who}", as_inert_text(text.strip()))
    for call in calls:
        yield RecordEntry(
            f"{number} assistant calls {_name(call.name)}",
            as_inert_text(call.arguments),
        )
    for result in results:
        name = _name(result.name or names.get(result.call_id, ""))
        yield RecordEntry(
            f"{number} result of {name}", as_inert_text(_render_content(result.content))
        )


def _spoken_parts(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the speakers and texts of a message, without calls and results."""
    role = _name(message.get("role"))
    if role == "tool":
        return
    thought = message.get("reasoning_content")
    if isinstance(thought, str):
        yield f"{role}, thinking", thought
    for part in parts_of(message):
        kind = kind_of(part)
        if kind in REASONING_BLOCKS:
            yield f"{role}, thinking", _thought(part)
        elif kind not in CALL_BLOCKS | RESULT_BLOCKS:
            yield from _split_client_text(role, _words(part))
    refusal = message.get("refusal")
    if isinstance(refusal, str):
        yield role, refusal


def _split_client_text(role: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield the speaker's own words, then the text that a client put around them."""
    own = strip_injected(text) if role == "user" else text.strip()
    yield role, own
    yield f"{role}'s client adds", text.replace(own, "", 1) if own else text


def _thought(part: Part) -> str:
    """Return the readable reasoning, without encrypted reasoning."""
    summary = part.get("summary")
    texts = [
        part.get("thinking"),
        part.get("text"),
        *map(part_text, summary if isinstance(summary, list) else ()),
    ]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def _render_content(content: Any) -> str:
    """Return a result's text; media by their kind."""
    parts = parts_of(
        {"content": content if isinstance(content, str | list) else str(content or "")}
    )
    return "\n".join(filter(None, map(_words, parts)))


def _words(part: Part) -> str:
    """Return the text of a part, or its kind if it has no text."""
    kind = kind_of(part)
    return part_text(part) or ("" if kind.endswith("text") else f"[{_name(kind)}]")


def _name(name: Any) -> str:
    """Return a role, kind or tool for a marker line: short, on one line, without marker signs."""
    return clip(one_line(as_inert_text(str(name or "something"))), _NAME)


Count = Callable[[str], int]
_LABEL_TOKENS = 24
"""Tokens kept free in a chunk for the label of a part of an entry."""


def size(entries: Iterable[RecordEntry], count: Count) -> int:
    """Return the tokens of the rendered entries, one per line."""
    return sum(count(str(entry)) + 1 for entry in entries)


def pack(
    pieces: Sequence[Sequence[RecordEntry]], room: int, count: Count
) -> list[list[RecordEntry]]:
    """Pack the entries into chunks of at most `room` tokens, in order."""
    chunks: list[list[RecordEntry]] = []
    remaining = 0
    for piece in pieces:
        for unit, tokens in _units(piece, room, count):
            if tokens > remaining or not chunks:
                chunks.append([])
                remaining = room
            chunks[-1] += unit
            remaining -= tokens
    return chunks


def cut(text: str, room: int, count: Count) -> list[str]:
    """Cut the text into parts of at most `room` tokens; joined, they equal the text."""
    tokens = count(text)
    if tokens <= room or len(text) < 2:
        return [text]
    step = math.ceil(len(text) / max(2, math.ceil(1.05 * tokens / room)))
    return [part for coarse in _steps(text, step) for part in cut(coarse, room, count)]


def _units(
    piece: Sequence[RecordEntry], room: int, count: Count
) -> Iterator[tuple[Sequence[RecordEntry], int]]:
    """Yield the smallest units of a piece that must stay together, with their sizes."""
    tokens = size(piece, count)
    if tokens <= room:
        if piece:
            yield piece, tokens
    elif len(piece) > 1:
        for entry in piece:
            yield from _units([entry], room, count)
    else:
        parts = cut(piece[0].text, max(room - _LABEL_TOKENS, 1), count)
        for number, part in enumerate(parts, start=1):
            entry = RecordEntry(
                f"{piece[0].label}, part {number} of {len(parts)}", part
            )
            yield [entry], size([entry], count)


def _steps(text: str, step: int) -> Iterator[str]:
    """Yield parts of at most `step` characters, cut after a line or a word that ends in the second half."""
    start = 0
    while start < len(text):
        end = start + step
        if end < len(text):
            least = start + step // 2
            end = (
                text.rfind("\n", least, end) + 1
                or text.rfind(" ", least, end) + 1
                or end
            )
        yield text[start:end]
        start = end


_HEADING_TOKENS = 6
_NOTE_TOKENS = 12
"""Tokens of a heading, and of the note about omitted lines."""


def fit(sections: Mapping[str, str], room: int, count: Count) -> Sections:
    """Fit the sections into `room` tokens: short ones whole, long ones in equal shares of the rest."""
    sizes = {name: count(text) + _HEADING_TOKENS for name, text in sections.items()}
    remaining = room
    fitting: Sections = {}
    for rank, name in enumerate(sorted(sizes, key=sizes.__getitem__)):
        share = remaining // (len(sizes) - rank)
        text = sections[name]
        fitting[name] = (
            text
            if sizes[name] <= share
            else _shorten_section(name, text, share - _HEADING_TOKENS, count)
        )
        remaining -= min(sizes[name], share)
    return {name: fitting[name] for name in sections}


def _shorten_section(name: str, text: str, room: int, count: Count) -> str:
    """Keep the whole lines that fit: the latest ones of the journal, the first ones of any other section."""
    lines = text.splitlines()
    ordered = lines[::-1] if name == DONE else lines
    shown = sum(
        tokens <= room - _NOTE_TOKENS
        for tokens in accumulate(count(each) + 1 for each in ordered)
    )
    if not shown:
        chars = len(text) * max(room - _NOTE_TOKENS, 1) // max(count(text), 1)
        return f"{text[:chars].rstrip()} … (the rest was left out)"
    note = f"({len(lines) - shown} lines left out)"
    return "\n".join(
        [note, *lines[-shown:]] if name == DONE else [*lines[:shown], note]
    )


# Instructions to the model


_TOPIC = 500


@dataclass(frozen=True, slots=True)
class SummaryPrompt:
    """One request for a summary. Its last message is the instruction."""

    request: Request
    target: int
    """Tokens the answer should have."""
    material: int
    """Tokens of the material: a longer answer does not count as a summary."""

    def repeat_with_reason(self, reason: str, template: TemplateName) -> SummaryPrompt:
        """Return the prompt again, with the reason why the answer was refused."""
        instruction = fill(
            "firmer",
            reason=reason,
            target=self.target,
            heading=f"## {headings(template)[0]}",
        )
        *before, last = self.request.messages
        last = {"role": "user", "content": f"{last['content']}\n\n{instruction}"}
        return replace(self, request=replace(self.request, messages=[*before, last]))


def headings(template: TemplateName) -> tuple[str, ...]:
    """Return the main headings that a model fills, in order.

    The engine itself writes the task and the user's words.
    """
    if template == "handoff":
        return tuple(name for name in HANDOFF if name not in (TASK, USER_WORDS, NAMES))
    return tuple(heading for heading, _ in CLASSIC if heading != USER_WORDS)


def instructions(template: TemplateName) -> str:
    """Return the system prompt: how to read, how to write, which sections.

    It is the same for every call of a layout.
    """
    return f"{fill('checkpoint')}\n\n{fill(f'sections_{template}')}"


def task(name: str, *, target: int, focus: str | None = None, **values: Any) -> str:
    """Return the instruction that follows the material; `name` is one of the tasks in `texts/`."""
    instruction = fill(name, target=target, words=max(target * 3 // 4, 1), **values)
    topic = clip(one_line(as_inert_text(focus)), _TOPIC) if focus else ""
    return f"{instruction}\n\n{fill('focus', focus=topic)}" if topic else instruction


def fill(name: str, **values: Any) -> str:
    """Fill in the blanks of a text in `texts/`. Values are not expanded again."""
    return _text(name).substitute(values)


@functools.cache
def _text(name: str) -> string.Template:
    path = resources.files("everthread.compaction.summarizers").joinpath(
        f"texts/{name}.txt"
    )
    return string.Template(path.read_text("utf-8").strip())


# Answers of the model


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


@dataclass(frozen=True, slots=True)
class SummaryAnswer:
    """The sections found. `fault`: the reason to refuse them; `usable`: whether they serve if nothing better comes."""

    sections: Sections
    fault: str = ""
    usable: bool = True
    truncated: bool = False


def judge(
    reply: Reply, question: SummaryPrompt, count: Count, template: TemplateName
) -> SummaryAnswer:
    """Return the answer and its fault, if it has one."""
    raw = text_of(reply.message)
    text = without_thinking(raw)
    marked, found_headings = with_headings(text)
    sections = _clean(parse_sections(without_fence(marked)))
    truncated = reply.stop in ("length", "content_filter")
    if len(found_headings) < MIN_HEADINGS:
        return SummaryAnswer({}, _explain_unusable(reply, raw, text), usable=False)
    if not sections:
        return SummaryAnswer({}, FAULT_EMPTY_SECTIONS, usable=False)
    if truncated and 2 * len(found_headings) < len(headings(template)):
        return SummaryAnswer(sections, FAULT_CUT_OFF, usable=False, truncated=True)
    tokens = count(render_sections(sections, template=template, brief=True))
    if tokens > max(question.material, question.target):
        return SummaryAnswer(
            sections, FAULT_LONGER_THAN_SOURCE, usable=False, truncated=truncated
        )
    fault = FAULT_TOO_LONG if tokens > MAX_OVERSHOOT * question.target else ""
    return SummaryAnswer(sections, fault, truncated=truncated)


def _explain_unusable(reply: Reply, raw: str, text: str) -> str:
    if reply.stop in ("refusal", "content_filter") or reply.message.get("refusal"):
        return FAULT_REFUSED
    if calls_of(reply.message):
        return FAULT_CALLED_TOOLS
    if not raw.strip():
        return FAULT_EMPTY
    return FAULT_NO_SECTIONS if text.strip() else FAULT_ONLY_THINKING


# Thinking

_TAGS = r"(think|thinking|thoughts?|reasoning|analysis|scratchpad)"
_THINKING = re.compile(rf"^[ \t]*<{_TAGS}>", re.MULTILINE | re.IGNORECASE)
_THOUGHT = re.compile(rf"</{_TAGS}>", re.IGNORECASE)
_TAG = re.compile(rf"</?{_TAGS}>", re.IGNORECASE)


def without_thinking(text: str) -> str:
    """Return the text without thinking that was written into it.

    A tag at the start of a line opens it; elsewhere it is quoted. If a tag opens the whole text and is never closed,
    all of it is thinking. Some chat templates swallow the opening tag: then a closing one ends the thinking from the
    start of the text.
    """
    parts: list[str] = []
    position = 0
    for opened in _THINKING.finditer(text):
        if opened.start() < position:
            continue
        closed = _THOUGHT.search(text, opened.end())
        if closed is None:
            return (
                ""
                if not text[: opened.start()].strip()
                else "".join((*parts, text[position:]))
            )
        parts.append(text[position : opened.start()])
        position = closed.end()
    first = None if position else _TAG.search(text)
    if first and first[0].startswith("</") and _HEADING.search(text, first.end()):
        position = first.end()
    return "".join((*parts, text[position:]))


# Headings

_NAMES = {
    name.casefold(): name
    for name in (
        *HANDOFF,
        *(heading for heading, _ in CLASSIC),
        "Done",
        "State",
        "Constraints",
    )
}
_ANY_NAME = "|".join(
    re.escape(name).replace("\\&", "(?:&|&amp;|and)") for name in _NAMES
)
_HEADING = re.compile(
    rf"^[ \t]*(?:#{{1,6}}[ \t]*(?:\d{{1,2}}[.)][ \t]*)?[*_]{{0,3}}({_ANY_NAME}):?[*_]{{0,3}}:?"
    rf"|(?:\d{{1,2}}[.)][ \t]*)?[*_]{{2,3}}({_ANY_NAME}):?[*_]{{2,3}}:?)[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)


def with_headings(text: str) -> tuple[str, frozenset[str]]:
    """Return the text with every known heading in one form, and the set of those headings."""
    present: set[str] = set()

    def plain(match: re.Match[str]) -> str:
        written = re.sub(
            r"&amp;|\band\b", "&", match[1] or match[2], flags=re.IGNORECASE
        )
        present.add(_NAMES[written.casefold()])
        return f"## {_NAMES[written.casefold()]}"

    return _HEADING.sub(plain, text), frozenset(present)


# Wrapping

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*$", re.MULTILINE)


def without_fence(text: str) -> str:
    """Return the text from its first heading on; if it is in a code fence, up to the end of the fence.

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
    """Return the sections without secrets, and without lines that only this package may write."""
    clean = {
        name: redact(
            "\n".join(
                line
                for line in text.splitlines()
                if not line.lstrip().startswith(_OURS)
            )
        ).strip()
        for name, text in sections.items()
    }
    return {name: text for name, text in clean.items() if text}
