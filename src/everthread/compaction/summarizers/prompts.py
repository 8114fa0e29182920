"""Build prompts for a model that writes a summary. The words of the prompts are in `texts/`."""

from __future__ import annotations

import functools
import string
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from itertools import accumulate
from typing import Any

from everthread.compaction.summarizers.conversation_record import (
    to_inert_text,
)
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
from everthread.compaction.summary.sentences import CountTokens
from everthread.core.text import clip, one_line
from everthread.core.types import ModelRequest

_HEADING_TOKENS = 6
"""Tokens of a section's heading."""
_NOTE_TOKENS = 12
"""Tokens of the note about omitted lines."""
_MAX_TOPIC_CHARS = 500


def fit_sections(sections: Mapping[str, str], max_tokens: int, count: CountTokens) -> Sections:
    """Fit the sections into `max_tokens` tokens: short sections stay whole, long ones get equal shares of the rest."""
    sizes = {name: count(text) + _HEADING_TOKENS for name, text in sections.items()}
    remaining = max_tokens
    fitted_sections: Sections = {}
    for rank, name in enumerate(sorted(sizes, key=sizes.__getitem__)):
        share = remaining // (len(sizes) - rank)
        text = sections[name]
        if sizes[name] <= share:
            fitted_sections[name] = text
        else:
            fitted_sections[name] = _shorten_section(name, text, share - _HEADING_TOKENS, count)
        remaining -= min(sizes[name], share)
    return {name: fitted_sections[name] for name in sections}


def _shorten_section(name: str, text: str, max_tokens: int, count: CountTokens) -> str:
    """Keep the lines that fit: of Completed Actions the last ones, of any other section the first ones."""
    lines = text.splitlines()
    ordered_lines = lines[::-1] if name == DONE else lines
    shown_count = sum(
        tokens <= max_tokens - _NOTE_TOKENS
        for tokens in accumulate(count(line) + 1 for line in ordered_lines)
    )
    if not shown_count:
        chars = len(text) * max(max_tokens - _NOTE_TOKENS, 1) // max(count(text), 1)
        return f"{text[:chars].rstrip()} … (the rest was left out)"
    note = f"({len(lines) - shown_count} lines left out)"
    return "\n".join(
        [note, *lines[-shown_count:]] if name == DONE else [*lines[:shown_count], note]
    )


@dataclass(frozen=True, slots=True)
class SummaryPrompt:
    """One request for a summary. Its last message is the instruction."""

    request: ModelRequest
    target_tokens: int
    """Tokens that the answer should have."""
    material_tokens: int
    """Tokens of the text to summarise: a longer answer does not count as a summary."""

    def repeat_with_reason(self, reason: str, template: TemplateName) -> SummaryPrompt:
        """Return the prompt again, with the reason why the answer was refused."""
        instruction = fill_template(
            "firmer",
            reason=reason,
            target=self.target_tokens,
            heading=f"## {list_headings(template)[0]}",
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


def list_headings(template: TemplateName) -> tuple[str, ...]:
    """Return the main headings that a model fills, in order.

    The engine itself writes the task and the user's words.
    """
    if template == "handoff":
        return tuple(name for name in HANDOFF_SECTIONS if name not in (TASK, USER_WORDS, NAMES))
    return tuple(heading for heading, _ in CLASSIC_SECTIONS if heading != USER_WORDS)


def compose_instructions(template: TemplateName) -> str:
    """Return the system prompt of a layout: how to read, how to write, which sections."""
    return f"{fill_template('checkpoint')}\n\n{fill_template(f'sections_{template}')}"


def compose_task_prompt(
    template_name: str, *, target_tokens: int, focus: str | None = None, **values: Any
) -> str:
    """Return the instruction that follows the material, from the template of this name in `texts/`."""
    instruction = fill_template(
        template_name,
        target=target_tokens,
        words=max(target_tokens * 3 // 4, 1),
        **values,
    )
    topic = clip(one_line(to_inert_text(focus)), _MAX_TOPIC_CHARS) if focus else ""
    return f"{instruction}\n\n{fill_template('focus', focus=topic)}" if topic else instruction


def fill_template(name: str, **values: Any) -> str:
    """Return a text of `texts/` with its blanks filled in. Values are not expanded again."""
    return _read_template(name).substitute(values)


@functools.cache
def _read_template(name: str) -> string.Template:
    path = resources.files("everthread.compaction.summarizers").joinpath(f"texts/{name}.txt")
    return string.Template(path.read_text("utf-8").strip())
