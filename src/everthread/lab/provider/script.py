"""Choose the provider's answers from a list, a function, a recorded conversation, or an echo."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.core.messages import (
    Message,
    results_of,
    text_of,
)
from everthread.core.types import ModelReply, ModelRequest
from everthread.errors import InputError
from everthread.lab.provider.faults import Fault

Answer = ModelReply | Fault | str
Step = Answer | Callable[[ModelRequest], Answer | Awaitable[Answer]]
Script = Sequence[Step] | Callable[[ModelRequest], Answer | Awaitable[Answer]]

_MAX_ECHO_CHARS = 200
_MAX_COMPARED_UTTERANCES = 20


class ScriptedAnswers:
    """Hands out the answers of a script, one for each request that passes the checks."""

    def __init__(self, script: Script | None = None) -> None:
        self._steps = None if script is None or callable(script) else list(script)
        self._respond = script if callable(script) else echo
        self._used_count = 0

    async def next(self, request: ModelRequest) -> Answer:
        """Return the next answer; raise `InputError` if the script is used up."""
        step: Step = self._respond
        if self._steps is not None:
            if self._used_count >= len(self._steps):
                raise InputError(f"the script has {len(self._steps)} answers, and all were given")
            step = self._steps[self._used_count]
        self._used_count += 1
        if not callable(step):
            return step
        answer = step(request)
        return await answer if inspect.isawaitable(answer) else answer


def echo(request: ModelRequest) -> str:
    """Echo the last message, to show a person that it arrived."""
    words = ""
    if request.messages:
        last_message = request.messages[-1]
        results = [result.text for result in results_of(last_message)]
        words = text_of(last_message) or " ".join(results)
    if not words.strip():
        return "You said nothing."
    return f"You said: {words[:_MAX_ECHO_CHARS]}"


class RecordedAnswers:
    """Answers with the message that followed in a recorded conversation.

    The position is found by the end of the request: a client may have replaced the beginning by a summary. If several
    positions fit, the one with the longest run of equal messages before it is used, else the next one.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self._utterances = _split_utterances(messages)
        self._position = 0

    def __call__(self, request: ModelRequest) -> Answer:
        requested = _split_utterances(request.messages)
        answers_by_position = {
            position: utterance.answer
            for position, utterance in enumerate(self._utterances)
            if requested and requested[-1].ends_with(utterance) and utterance.answer
        }
        if not answers_by_position:
            return echo(request)
        self._position = max(
            answers_by_position,
            key=lambda position: (
                self._count_equal_utterances(requested, position),
                position >= self._position,
                -abs(position - self._position),
            ),
        )
        return ModelReply(answers_by_position[self._position])

    def _count_equal_utterances(self, requested: Sequence[_Utterance], position: int) -> int:
        latest_requested = reversed(requested[-_MAX_COMPARED_UTTERANCES:])
        latest_recorded = reversed(self._utterances[: position + 1])
        count = 0
        for requested_utterance, recorded_utterance in zip(
            latest_requested, latest_recorded, strict=False
        ):
            if requested_utterance != recorded_utterance:
                break
            count += 1
        return count


@dataclass(frozen=True, slots=True)
class _Utterance:
    """A message, or several messages of the user in a row, which some protocols join into one."""

    role: str
    words: str
    answer: Message | None = field(compare=False)
    """The next message of the assistant."""

    def ends_with(self, other: _Utterance) -> bool:
        """Return whether this is the other message, possibly after a summary in the same message."""
        return self == other or (
            self.role == other.role
            and bool(other.words)
            and self.words.endswith(f"\n{other.words}")
        )


def _split_utterances(messages: Sequence[Message]) -> list[_Utterance]:
    utterances: list[_Utterance] = []
    for next_index, message in enumerate(messages, 1):
        role = message["role"]
        results = [result.text for result in results_of(message)]
        words = (text_of(message) or "\n".join(results)).strip()
        if utterances and utterances[-1].role == role == "user":
            words = f"{utterances.pop().words}\n{words}".strip()
        utterances.append(_Utterance(role, words, _find_answer(messages, next_index)))
    return utterances


def _find_answer(messages: Sequence[Message], start: int) -> Message | None:
    """Return the first message of the assistant from an index on."""
    for index in range(start, len(messages)):
        if messages[index]["role"] == "assistant":
            return messages[index]
    return None


def read_script(value: Any) -> list[Step]:
    """Read a script from JSON: texts, `{"fault": KIND, …}`, or assistant messages (`{"content": …}`)."""
    if not isinstance(value, list):
        raise InputError(f"a script is a list of answers, not {type(value).__name__}")
    return [_read_step(step, number) for number, step in enumerate(value)]


def _read_step(step: Any, number: int) -> Step:
    if isinstance(step, str):
        return step
    if not isinstance(step, Mapping):
        raise InputError(
            f"answer {number} of the script is a text or an object, not {type(step).__name__}"
        )
    if "fault" in step:
        fields = {key: value for key, value in step.items() if key != "fault"}
        try:
            return Fault(step["fault"], **fields)
        except TypeError as error:
            raise InputError(f"answer {number} of the script: {error}") from None
    if not ({"content", "tool_calls"} & step.keys()):
        raise InputError(
            f"answer {number} of the script has neither content nor tool_calls nor fault"
        )
    message: Any = {"content": None, **step, "role": "assistant"}
    return ModelReply(message)
