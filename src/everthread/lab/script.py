"""What the provider answers: from a list, from a function, from a recorded conversation, or an echo."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from everthread.core.exchange import Reply, Request
from everthread.core.messages import Message, results_of, text_of
from everthread.errors import InputError
from everthread.lab.faults import Fault

Answer = Reply | Fault | str
Step = Answer | Callable[[Request], Answer | Awaitable[Answer]]
Script = Sequence[Step] | Callable[[Request], Answer | Awaitable[Answer]]

_SHOWN = 200
_LOOKED_AT = 20


class Answers:
    """Hands out the answers of a script, one for each request that gets as far."""

    def __init__(self, script: Script | None = None) -> None:
        self._steps = None if script is None or callable(script) else list(script)
        self._always = script if callable(script) else echo
        self._given = 0

    async def next(self, request: Request) -> Answer:
        step: Step = self._always
        if self._steps is not None:
            if self._given >= len(self._steps):
                raise InputError(f"the script has {len(self._steps)} answers, and all were given")
            step = self._steps[self._given]
        self._given += 1
        if not callable(step):
            return step
        made = step(request)
        return await made if inspect.isawaitable(made) else made


def echo(request: Request) -> str:
    """What was said last, so that a person sees that it arrived."""
    last = request.messages[-1] if request.messages else None
    words = (text_of(last) or " ".join(result.text for result in results_of(last))) if last else ""
    return f"You said: {words[:_SHOWN]}" if words.strip() else "You said nothing."


class Recorded:
    """Answers with what followed in a recorded conversation.

    The place is found by the end of the request, so that a client may have replaced the beginning by a summary: where
    the words of several places fit, the one with the longest run of equal words before it, else the next one on.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._spoken = _spoken(messages)
        self._place = 0

    def __call__(self, request: Request) -> Answer:
        asked = _spoken(request.messages)
        places = [
            at for at, said in enumerate(self._spoken) if asked and asked[-1].ends_with(said) and self._answer(at)
        ]
        if not places:
            return echo(request)
        self._place = max(places, key=lambda at: (self._run(asked, at), at >= self._place, -abs(at - self._place)))
        message = self._answer(self._place)
        return Reply(message) if message else echo(request)

    def _answer(self, place: int) -> Message | None:
        """The first assistant message after this place."""
        after = self._messages[self._spoken[place].end :]
        return next((message for message in after if message["role"] == "assistant"), None)

    def _run(self, asked: Sequence[_Said], place: int) -> int:
        before = zip(reversed(asked[-_LOOKED_AT:]), reversed(self._spoken[: place + 1]), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], before))


@dataclass(frozen=True, slots=True)
class _Said:
    """What somebody said in one go: some protocols make one message of neighbours of one role."""

    role: str
    words: str
    end: int = field(compare=False)
    """The index after its last message."""

    def ends_with(self, other: _Said) -> bool:
        """Whether the other is what was said last: a summary may stand right before it, in one message."""
        return self == other or (
            self.role == other.role and bool(other.words) and self.words.endswith(f"\n{other.words}")
        )


def _spoken(messages: Sequence[Message]) -> list[_Said]:
    said: list[_Said] = []
    for at, message in enumerate(messages, 1):
        role = message["role"]
        words = (text_of(message) or "\n".join(result.text for result in results_of(message))).strip()
        if said and said[-1].role == role == "user":
            words = f"{said.pop().words}\n{words}".strip()
        said.append(_Said(role, words, at))
    return said


def read_script(value: Any) -> list[Step]:
    """A script from JSON: texts, `{"fault": KIND, …}`, or assistant messages (in chat's form, `{"content": …}`)."""
    if not isinstance(value, list):
        raise InputError(f"a script is a list of answers, not {type(value).__name__}")
    return [_read_step(step, at) for at, step in enumerate(value)]


def _read_step(step: Any, at: int) -> Step:
    if isinstance(step, str):
        return step
    if not isinstance(step, Mapping):
        raise InputError(f"answer {at} of the script is a text or an object, not {type(step).__name__}")
    if "fault" in step:
        fields = {key: value for key, value in step.items() if key != "fault"}
        try:
            return Fault(step["fault"], **fields)
        except TypeError as error:
            raise InputError(f"answer {at} of the script: {error}") from None
    if not ({"content", "tool_calls"} & step.keys()):
        raise InputError(f"answer {at} of the script has neither content nor tool_calls nor fault")
    message: Any = {"content": None, **step, "role": "assistant"}
    return Reply(message)
