"""Build prompts for a model that writes a summary. The words of the prompts are in `texts/`."""

from __future__ import annotations

import functools
import string
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from itertools import accumulate
from typing import Any

from everthread.compaction.summarizers.conversation_record import Count, as_inert_text
from everthread.compaction.summary.sections import (
    CLASSIC_SECTIONS,
    DONE,
    HANDOFF_SECTIONS,
    NAMES,
    TASK,
    USER_WORDS,
    Sections,
    TemplateName,
)
from everthread.core.messages import (
    clip,
    one_line,
)
from everthread.core.types import Request

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
    ordered_lines = lines[::-1] if name == DONE else lines
    shown_count = sum(
        tokens <= room - _NOTE_TOKENS
        for tokens in accumulate(count(each) + 1 for each in ordered_lines)
    )
    if not shown_count:
        chars = len(text) * max(room - _NOTE_TOKENS, 1) // max(count(text), 1)
        return f"{text[:chars].rstrip()} … (the rest was left out)"
    note = f"({len(lines) - shown_count} lines left out)"
    return "\n".join(
        [note, *lines[-shown_count:]] if name == DONE else [*lines[:shown_count], note]
    )


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
        *earlier_messages, last_message = self.request.messages
        last_message = {
            "role": "user",
            "content": f"{last_message['content']}\n\n{instruction}",
        }
        return replace(
            self,
            request=replace(self.request, messages=[*earlier_messages, last_message]),
        )


def headings(template: TemplateName) -> tuple[str, ...]:
    """Return the main headings that a model fills, in order.

    The engine itself writes the task and the user's words.
    """
    if template == "handoff":
        return tuple(
            name for name in HANDOFF_SECTIONS if name not in (TASK, USER_WORDS, NAMES)
        )
    return tuple(heading for heading, _ in CLASSIC_SECTIONS if heading != USER_WORDS)


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
