"""What the conversation is compared with: no management at all, a cache alone, the oldest messages dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from everthread.conversation.state import SPARE_OUTPUT
from everthread.core.exchange import System
from everthread.core.messages import Message, with_content
from everthread.lab.prompt_cache import CacheUse
from everthread.lab.replay import result
from everthread.lab.replay.plan import Planned
from everthread.lab.replay.pricing import Ledger
from everthread.lab.replay.result import Played, Way
from everthread.lab.replay.simulator import Cache, Marking, Prompts
from everthread.testing import SteppedClock

UNCACHED, CACHED, TRUNCATED = "uncached", "cached", "truncated"
_DROPPED = "oldest messages dropped"


@dataclass(frozen=True, slots=True)
class Setting:
    """What all ways of holding one conversation share."""

    calls: tuple[Planned, ...]
    models: tuple[str, ...]
    """Who is asked, call by call."""
    outputs: tuple[int, ...]
    """Tokens of each answer."""
    window: int
    ttl: str
    began: float
    system: System
    tools: list[dict[str, Any]]
    prompts: Prompts
    step: Callable[[], None]
    """Called after each call."""

    @property
    def fits(self) -> int:
        """The largest prompt that leaves room for an answer."""
        return self.window - min(SPARE_OUTPUT, self.window // 8)


def unmanaged(setting: Setting) -> tuple[Way, Way]:
    """Without and with a cache, the whole history in every request; it ends where the window does."""
    bare, cached = Ledger(setting.ttl, setting.began, caching=False), Ledger(setting.ttl, setting.began)
    clock, marking = SteppedClock(0.0), Marking(setting.ttl)
    cache = Cache(clock)
    history: list[Message] = []
    plain: list[Played] = []
    kept: list[Played] = []
    refused: int | None = None
    for number, call in enumerate(setting.calls):
        history += call.given
        request = marking.request(setting.models[number], history, setting.system, setting.tools)
        prompt = setting.prompts.read(request)
        if prompt.tokens > setting.window:
            refused = number
            break
        clock.now = call.at
        plain.append(bare.played(request, CacheUse(prompt.tokens), setting.outputs[number], call.at))
        use = cache.use(request.model, prompt)
        kept.append(cached.played(request, use, setting.outputs[number], call.at))
        history.append(call.answer)
        setting.step()
    return (
        Way(UNCACHED, "no management, no caching", plain, refused),
        Way(CACHED, "caching, no compaction", kept, refused),
    )


def truncated(setting: Setting, cached: Way) -> tuple[Way, list[Message]]:
    """The oldest messages dropped so that the rest fits, with a cache; and what is left of them at the end."""
    if cached.refused is None and cached.peak <= setting.fits:  # nothing is dropped, so it is the same
        whole = [message for call in setting.calls for message in (*call.given, call.answer)]
        return replace(cached, name=TRUNCATED, what=_DROPPED), whole
    ledger, clock, marking = Ledger(setting.ttl, setting.began), SteppedClock(0.0), Marking(setting.ttl)
    cache = Cache(clock)
    history: list[Message] = []
    played: list[Played] = []
    for number, call in enumerate(setting.calls):
        history += call.given
        fitting = _fitting(setting, history, setting.models[number])
        dropped = len(fitting) < len(history)
        history, marking = fitting, Marking(setting.ttl) if dropped else marking
        request = marking.request(setting.models[number], history, setting.system, setting.tools)
        prompt = setting.prompts.read(request)
        if prompt.tokens > setting.window:
            return Way(TRUNCATED, _DROPPED, played, number), history
        clock.now = call.at
        use = cache.use(request.model, prompt)
        reshaped = result.DROPPED if dropped else ""
        played.append(ledger.played(request, use, setting.outputs[number], call.at, reshaped=reshaped))
        history.append(call.answer)
        setting.step()
    return Way(TRUNCATED, _DROPPED, played), history


def _fitting(setting: Setting, history: list[Message], model: str) -> list[Message]:
    """The end of the history that fits, whole groups of calls and results."""
    counter = setting.prompts.counter(model)
    size = counter.request((), system=setting.system, tools=setting.tools) + counter.messages(history)
    start, left = 0, size
    for start, dropped in _starts(history, counter.message):
        left = size - dropped
        if left <= setting.fits:
            return history[start:] if start else history
    return _cut(history[start:], setting.fits / left, setting.fits // 2)


def _cut(group: list[Message], share: float, least: int) -> list[Message]:
    """The last group where it does not fit by itself: its long texts lose their ends."""
    return [
        with_content(message, text[: int(share * len(text) * 0.9)])
        if isinstance(text := message.get("content"), str) and len(text) > least
        else message
        for message in group
    ]


def _starts(history: list[Message], count: Callable[[Message], int]) -> Iterator[tuple[int, int]]:
    """Where the history may begin, with how many tokens come before; a result never stands without its call."""
    before = 0
    for at, message in enumerate(history):
        if message["role"] != "tool":
            yield at, before
        before += count(message)
