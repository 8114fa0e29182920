"""What a model is told. The words are in `texts/`; here they are filled in and put around the record."""

from __future__ import annotations

import functools
import string
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from everthread.compaction.summarizers.record import inert
from everthread.compaction.summary import CLASSIC, HANDOFF, TASK, WORDS, TemplateName
from everthread.core.messages import clip, one_line
from everthread.core.types import Request

_TOPIC = 500


@dataclass(frozen=True, slots=True)
class SummaryPrompt:
    """One request for a summary. Its last message is ours."""

    request: Request
    target: int
    """Tokens the answer should have."""
    given: int
    """Tokens of what it is to summarise: an answer longer than that is none."""

    def firmer(self, reason: str, template: TemplateName) -> SummaryPrompt:
        """The same once more, after an answer that could not be used."""
        told = fill("firmer", reason=reason, target=self.target, heading=f"## {headings(template)[0]}")
        *before, last = self.request.messages
        last = {"role": "user", "content": f"{last['content']}\n\n{told}"}
        return replace(self, request=replace(self.request, messages=[*before, last]))


def headings(template: TemplateName) -> tuple[str, ...]:
    """The main headings of a layout that a model fills, in order: the engine knows the task and the user's words."""
    if template == "handoff":
        return tuple(name for name in HANDOFF if name not in (TASK, WORDS))
    return tuple(heading for heading, _ in CLASSIC if heading != WORDS)


def instructions(template: TemplateName) -> str:
    """The system prompt: how to read, how to write, which sections. The same for every call of a layout."""
    return f"{fill('checkpoint')}\n\n{fill(f'sections_{template}')}"


def task(name: str, *, target: int, focus: str | None = None, **values: Any) -> str:
    """What is to be done with the material before it; `name` is one of the tasks in `texts/`."""
    told = fill(name, target=target, words=max(target * 3 // 4, 1), **values)
    topic = clip(one_line(inert(focus)), _TOPIC) if focus else ""
    return f"{told}\n\n{fill('focus', focus=topic)}" if topic else told


def fill(name: str, **values: Any) -> str:
    """A text of `texts/` with its blanks filled in; what is filled in is not looked at again."""
    return _text(name).substitute(values)


@functools.cache
def _text(name: str) -> string.Template:
    path = resources.files("everthread.compaction.summarizers").joinpath(f"texts/{name}.txt")
    return string.Template(path.read_text("utf-8").strip())
