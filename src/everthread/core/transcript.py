"""The parts of a list of messages: groups, turns, user messages, Everthread's summaries, lookups of earlier messages.

A message that is, or holds, a summary carries the private key `_summary`; every other function trusts that key alone.
`recognize` sets it for lists that come from outside, if a tag made with the home's key proves the text. Without a key
the tag is a plain content hash: it distinguishes a summary from text that quotes one, and gives no protection. A proved
tag is the value of `_summary`: by it the summary is found among words that look like one.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from everthread.core.messages import (
    SYSTEM_ROLES,
    Message,
    Messages,
    calls_of,
    clip,
    content_text,
    kind_of,
    part_text,
    parts_of,
    results_of,
    user_words_in,
    with_content,
)

SUMMARY_START = "[EVERTHREAD SUMMARY"
"""How the first line of a summary begins; the rest of that line is for the reader."""
SUMMARY_END = "[END OF EVERTHREAD SUMMARY"
"""How its last line begins; a tag and a bracket follow."""

_END_LINE = re.compile(
    r"\[(?<![^\n]\[)END OF EVERTHREAD SUMMARY(?: ([0-9a-f]{16}))?\][ \t]*$",
    re.MULTILINE,
)
_SUMMARY_MARK = re.compile(r"\[(?=(?:END OF )?EVERTHREAD SUMMARY)")


def seal_summary(text: str, key: bytes = b"") -> str:
    """Return the summary with its last line, which carries a tag over everything before it."""
    return f"{text}\n\n{SUMMARY_END} {_tag(text, key)}]"


def defuse(text: str) -> str:
    """Return the text without anything that could pass for the first or last line of a summary."""
    return _SUMMARY_MARK.sub("(", text)


def is_summary(message: Mapping[str, Any]) -> bool:
    """Return whether the message is, or contains, an Everthread summary."""
    return bool(message.get("_summary"))


def mark_summary(message: Message, key: bytes | None = None) -> Message:
    """Return the message marked as holding an Everthread summary; with `key`, only one that the key proves."""
    texts = _texts(message) if key is not None else []
    tags = (
        _tag_in(text[slice(*span)])
        for text in texts
        for span in _spans(text)
        if _is_ours(text, span, key or b"")
    )
    return cast("Message", {**message, "_summary": next(filter(None, tags), True)})


def summary_text(message: Mapping[str, Any]) -> str:
    """Return the summary in a message, markers included; empty if there is none."""
    place = _find(message) if is_summary(message) else None
    return _texts(message)[place[0]][slice(*place[1])] if place else ""


def is_unproven(summary: str) -> bool:
    """Return whether a summary has no tag. Its text is used as background only."""
    last = _END_LINE.search(summary)
    return last is None or last[1] is None


def summary_leads(message: Mapping[str, Any]) -> bool:
    """Return whether the summary comes before the rest of the message."""
    place = _find(message)
    return (
        place is not None
        and place[0] == 0
        and not _texts(message)[0][: place[1][0]].strip()
    )


def without_summary(message: Message) -> Message | None:
    """Return the message without its summary; None if nothing else is left."""
    if not is_summary(message):
        return message
    plain = cast(
        "Message", {key: value for key, value in message.items() if key != "_summary"}
    )
    place = _find(message)
    if place is None:
        return plain
    number, (start, end) = place
    text = _texts(message)[number]
    rest: Any = f"{text[:start]}{text[end:]}".strip()
    content: Any = message.get("content")
    if isinstance(content, list):
        at = [index for index, part in enumerate(content) if kind_of(part) == "text"][
            number
        ]
        rest = [
            *content[:at],
            *([{**content[at], "text": rest}] if rest else []),
            *content[at + 1 :],
        ]
    return (
        with_content(plain, rest or None) if rest or message.get("tool_calls") else None
    )


def recognize(messages: Sequence[Message], key: bytes = b"") -> list[Message]:
    """Mark our summaries among messages from outside, by their tags.

    Marks that came along are dropped, and a tool's result is never a summary. If there is a key, a content hash proves
    nothing: a whole message with one loses its tag, and is used as background only.
    """
    return [_recognize(message, key) for message in messages]


def strip_marks(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without private marks, as other programs are given them."""
    return [
        cast(
            "Message",
            {name: value for name, value in message.items() if name != "_summary"},
        )
        if "_summary" in message
        else message
        for message in messages
    ]


def _recognize(message: Message, key: bytes) -> Message:
    if "_summary" in message:
        message = strip_marks([message])[0]
    if message.get("role") not in ("user", "assistant"):
        return message
    texts = _texts(message)
    for text in texts:
        for span in _spans(text) if SUMMARY_START in text else ():
            if _is_ours(text, span, key):
                return mark_summary(message, key)
            if (
                key
                and len(texts) == 1
                and _is_whole(text, span)
                and _is_ours(text, span, b"")
            ):
                return mark_summary(
                    with_content(message, _END_LINE.sub(f"{SUMMARY_END}]", text))
                )
    return message


def _is_ours(text: str, span: tuple[int, int], key: bytes) -> bool:
    summary = text[slice(*span)]
    last = _END_LINE.search(summary)
    if last is None or last[1] is None:
        return False
    return hmac.compare_digest(
        last[1], _tag(summary[: last.start()].removesuffix("\n\n"), key)
    )


def _tag_in(summary: str) -> str:
    """Return the tag in the last line of a summary; empty if there is none."""
    last = _END_LINE.search(summary)
    return (last[1] or "") if last else ""


def _is_whole(text: str, span: tuple[int, int]) -> bool:
    return text.strip() == text[slice(*span)].strip()


def _texts(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return (
        [part_text(part) for part in content if kind_of(part) == "text"]
        if isinstance(content, list)
        else []
    )


def _spans(text: str) -> list[tuple[int, int]]:
    """Find where a summary may be in a text: at its beginning, or at its end after other words."""
    spans: list[tuple[int, int]] = []
    begin = len(text) - len(text.lstrip())
    if text.startswith(SUMMARY_START, begin):
        last = _END_LINE.search(text, begin)
        spans.append((begin, last.end() if last else len(text)))
    start = text.rfind(f"\n{SUMMARY_START}") + 1
    last = _END_LINE.search(text, start) if start > begin else None
    if last and not text[last.end() :].strip():
        spans.append((start, last.end()))
    return spans


def _find(message: Mapping[str, Any]) -> tuple[int, tuple[int, int]] | None:
    """Return the place of the summary in a marked message: the number of the text, and the span in it."""
    texts = _texts(message)
    places = [
        (number, span) for number, text in enumerate(texts) for span in _spans(text)
    ]
    if len(places) < 2:
        return places[0] if places else None
    mark = message.get("_summary")

    def fit(place: tuple[int, tuple[int, int]]) -> int:
        summary = texts[place[0]][slice(*place[1])]
        tag = _tag_in(summary)
        if not tag or f"\n{SUMMARY_START}" in summary:
            return 0
        return 2 if tag == mark else 1

    return max(places, key=fit)


def _tag(text: str, key: bytes) -> str:
    return hmac.new(
        key, text.encode("utf-8", "surrogatepass"), hashlib.sha256
    ).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Group:
    """An assistant message with tool calls and the results that answer it.

    `results` are the indices of the messages that hold a first answer to one of its calls, in list order;
    `missing` the ids of calls that nothing answers.
    """

    assistant: int
    call_ids: tuple[str, ...]
    results: tuple[int, ...]
    missing: tuple[str, ...]

    @property
    def end(self) -> int:
        """One past the last message of the group."""
        return max((self.assistant, *self.results)) + 1


@dataclass(frozen=True, slots=True)
class Span:
    """Messages `[start, end)` that must not be separated."""

    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """A user message and everything up to the next one. `user` is None for the messages before the first."""

    start: int
    end: int
    user: int | None


def groups(messages: Messages) -> list[Group]:
    """Return every group, in order. A result belongs to the latest call of its id before it; a second one to none."""
    waiting: dict[str, list[int]] = {}
    answered: dict[int, list[int]] = {}
    pending: dict[int, list[str]] = {}
    called: dict[int, tuple[str, ...]] = {}
    for index, message in enumerate(messages):
        if calls := calls_of(message):
            called[index] = tuple(call.id for call in calls)
            pending[index] = list(called[index])
            answered[index] = []
            waiting |= {call.id: [] for call in calls}
            for call in calls:
                waiting[call.id].append(index)
        for result in results_of(message):
            owners = waiting.get(result.call_id)
            if owners:
                owner = owners.pop()
                pending[owner].remove(result.call_id)
                if index not in answered[owner]:
                    answered[owner].append(index)
    return [
        Group(i, ids, tuple(answered[i]), tuple(pending[i]))
        for i, ids in called.items()
    ]


def spans(messages: Messages) -> list[Span]:
    """Cut the list into pieces that must not be split: a group is one piece, any other message its own.

    Messages between a call and its late result belong to the piece too.
    """
    ends = {group.assistant: group.end for group in groups(messages)}
    pieces: list[Span] = []
    index = 0
    while index < len(messages):
        start = index
        end = index + 1
        while index < end:
            end = max(end, ends.get(index, 0))
            index += 1
        pieces.append(Span(start, end))
    return pieces


def user_text(message: Mapping[str, Any]) -> str:
    """Return the user's own words in this message; empty if there are none."""
    if message.get("role") != "user":
        return ""
    rest = without_summary(cast("Message", message))
    return (
        ""
        if rest is None
        else "\n".join(user_words_in([content_text([part]) for part in parts_of(rest)]))
    )


def is_user_message(message: Mapping[str, Any]) -> bool:
    """Return whether a person speaks here: words of their own, or an image, a file or a recording without words."""
    if message.get("role") != "user":
        return False
    return bool(user_text(message)) or any(
        kind_of(part) in _MEDIA for part in parts_of(message)
    )


def latest_user_index(messages: Messages) -> int | None:
    """Return the index of the latest user message."""
    for index in range(len(messages) - 1, -1, -1):
        if is_user_message(messages[index]):
            return index
    return None


def turns(messages: Messages) -> list[TurnSpan]:
    """Return the list as turns. Messages before the first user message form a turn without a user."""
    starts = [
        index for index, message in enumerate(messages) if is_user_message(message)
    ]
    bounds = [*starts, len(messages)]
    spans = [TurnSpan(start, end, start) for start, end in itertools.pairwise(bounds)]
    if messages and (not starts or starts[0] > 0):
        spans.insert(0, TurnSpan(0, bounds[0], None))
    return spans


def head_length(messages: Messages) -> int:
    """Return how many messages are protected at the start (`protect_first_n`, fixed at 3).

    The system prompt and the first exchange. If the system prompt is kept apart: everything through the first user
    message, plus the assistant message after it if that made no calls. Work without a request in this list (the request
    was lost, or is in a summary of the client's) is not a first exchange, however late a user speaks.
    """
    first = next(
        (index for index, message in enumerate(messages) if is_user_message(message)),
        None,
    )
    if first is None or any(map(calls_of, messages[:first])):
        others = (
            index
            for index, message in enumerate(messages)
            if message.get("role") not in SYSTEM_ROLES
        )
        return next(others, len(messages))
    end = first + 1
    if (
        end < len(messages)
        and messages[end].get("role") == "assistant"
        and not calls_of(messages[end])
    ):
        end += 1
    return end


_MEDIA = frozenset(
    {
        "image_url",
        "image",
        "input_image",
        "input_audio",
        "file",
        "document",
        "input_file",
    }
)


_LOOKUP_TOOL = re.compile(
    r"(?:.*[^a-z0-9])?everthread[^a-z0-9]+(?:search|expand|status|state|pin|lcm_[a-z]{1,40})|recall|lcm_[a-z]{1,40}"
)
GIST_CHARS = 200
"""Characters kept of an old answer."""
MAX_ANSWER_CHARS = 21_000
"""Our answers are shorter; a longer one comes from another tool of the same name."""


def is_lookup(tool: str) -> bool:
    """Return whether a tool only looks up earlier messages: its arguments and answers are not findings."""
    return _LOOKUP_TOOL.fullmatch(tool.lower()) is not None


def is_answer(tool: str, text: str) -> bool:
    """Return whether a result answers a lookup. Such a result is never stored and cited."""
    return len(text) <= MAX_ANSWER_CHARS and is_lookup(tool)


def gist(answer: str, limit: int = GIST_CHARS) -> str:
    """Return the first line of an old answer, which names the question and the ids."""
    return clip(answer.lstrip().partition("\n")[0].rstrip(), limit)


def lookup_tools(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the tools with which a client can search and read here, without `lcm_…`."""
    ours = (name for name in names if is_lookup(name) and "lcm_" not in name.lower())
    return tuple(
        sorted(
            name
            for name in ours
            if name.lower().endswith(("search", "expand", "recall"))
        )
    )
