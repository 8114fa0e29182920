"""A transcript read once: what was said, what was done and how it went, turn by turn.

What a single message holds is remembered per message object, so that reading a history again costs little.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

from everthread.compaction.summarizers.extract_commands import RUN, Command, understood
from everthread.compaction.summarizers.extract_outcomes import Outcome, outcome
from everthread.compaction.summarizers.extract_tasks import task_list
from everthread.compaction.summarizers.extract_text import closing_question, opening, trim
from everthread.core.facts import Fact, MessageFacts, facts_of_message, rank
from everthread.core.mentions import IDENTIFIER, mentions
from everthread.core.messages import Call, Message, Result, calls_of, kind_of, parts_of, results_of, text_of
from everthread.core.summary import without_summary
from everthread.core.toolkinds import Action, action_of
from everthread.core.transcript import user_text

REMEMBERED = 20_000
INTENT = 140

EDIT, WRITE, READ, SEARCH, FETCH, LIST, CALL = "EDIT", "WRITE", "READ", "SEARCH", "FETCH", "LIST", "CALL"
_ACTS = {"patch": EDIT, "write": WRITE, "read": READ, "search": SEARCH, "web": FETCH, "list": LIST}
_PATCHED = re.compile(r"(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ b/)([^\s\"\\]{1,200})")
_LOOKING = re.compile(
    r"(?:get|list|find|search|read|show|fetch|check|calculate|look|query|view|describe|think|status|count|recall)(?![a-z])"
)


@dataclass(frozen=True, slots=True)
class Step:
    """One call, understood. Depends on the call alone."""

    call: Call
    action: Action
    act: str
    command: Command | None = None
    files: tuple[tuple[str, str], ...] = ()
    """(what was done, path)"""
    names: tuple[str, ...] = ()
    """Names an edit brought in; where it brought none, its first new line."""
    tasks: tuple[tuple[str, str], ...] = ()
    """The task list it wrote down: (text, state)."""

    @property
    def changes(self) -> bool:
        """Whether it was meant to change something."""
        return self.act in (EDIT, WRITE, RUN) or (self.act == CALL and not _LOOKING.match(self.call.name.lower()))


@dataclass(frozen=True, slots=True)
class Deed:
    """A call and its outcome; None where no result is there."""

    where: int
    step: Step
    outcome: Outcome | None
    intent: str = ""
    """What the assistant said it was about to do."""

    @property
    def failed(self) -> bool:
        return self.outcome is not None and self.outcome.failed


@dataclass(frozen=True, slots=True)
class Episode:
    """A user's request, what was done about it, and the answer; `ask` is empty for what stands before the first."""

    start: int
    end: int
    ask: str
    deeds: tuple[Deed, ...]
    answer: str
    """The final answer: the last message, when it made no calls."""
    last_said: str
    reply_to: str = ""
    """The assistant's question this request answers."""

    @property
    def changes(self) -> bool:
        return any(deed.step.changes and not deed.failed for deed in self.deeds)


@dataclass(frozen=True, slots=True)
class Story:
    """Everything a summary is made from."""

    episodes: tuple[Episode, ...]
    facts: tuple[MessageFacts, ...]
    said: tuple[str, ...]
    """What each message's author said."""
    by_user: tuple[bool, ...]
    ranked: Sequence[Fact]
    """The facts as one list, the most important first."""

    @property
    def size(self) -> int:
        return len(self.facts)

    @property
    def deeds(self) -> Iterator[Deed]:
        return (deed for episode in self.episodes for deed in episode.deeds)

    def recency(self, where: int) -> float:
        """0.5 for the first message, 1 for the last."""
        return 0.5 + 0.5 * (where + 1) / max(self.size, 1)


@dataclass(frozen=True, slots=True)
class _Reading:
    """What one message holds."""

    said: str = ""
    by_user: bool = False
    facts: MessageFacts = field(default_factory=MessageFacts)
    steps: tuple[Step, ...] = ()
    outcomes: tuple[tuple[str, Outcome], ...] = ()
    intent: str = ""

    @property
    def acts(self) -> bool:
        """Whether the assistant speaks or does something here."""
        return bool(self.steps) or (bool(self.said) and not self.by_user)


@dataclass(slots=True)
class Reader:
    """Reads transcripts; remembers messages."""

    _known: dict[int, tuple[Any, tuple[Step, ...], _Reading]] = field(default_factory=dict)
    """By identity: the message, the calls its results answer, what it holds."""

    def story(
        self, messages: Sequence[Message], facts: Sequence[MessageFacts] = (), ranked: Sequence[Fact] = ()
    ) -> Story:
        """The transcript, as turns; `facts` of the messages and their ranking, where they are known already."""
        readings = self._readings(messages, facts if len(facts) == len(messages) else (None,) * len(messages))
        return Story(
            tuple(_episodes(readings)),
            tuple(reading.facts for reading in readings),
            tuple(reading.said for reading in readings),
            tuple(reading.by_user for reading in readings),
            ranked or rank(reading.facts for reading in readings),
        )

    def _readings(self, messages: Sequence[Any], facts: Sequence[MessageFacts | None]) -> list[_Reading]:
        steps: dict[str, Step] = {}
        found: list[_Reading] = []
        for message, known in zip(messages, facts, strict=True):
            reading = self._reading(cast("Message", message), steps, known) if isinstance(message, dict) else _Reading()
            found.append(reading)
            steps.update((step.call.id, step) for step in reading.steps)
        for key in list(self._known)[: max(len(self._known) - REMEMBERED, 0)]:
            del self._known[key]
        return found

    def _reading(self, message: Message, steps: Mapping[str, Step], facts: MessageFacts | None) -> _Reading:
        results = results_of(message)
        answered = tuple(steps[result.call_id] for result in results if result.call_id in steps)
        known = self._known.get(id(message))
        if known is None or known[0] is not message or known[1] != answered:
            facts = facts or facts_of_message(message, {step.call.id: step.call for step in answered})
            known = (message, answered, _read(message, steps, results, facts))
            self._known[id(message)] = known
        return known[2]


def _read(message: Message, steps: Mapping[str, Step], results: list[Result], facts: MessageFacts) -> _Reading:
    outcomes = tuple(
        (result.call_id, outcome(step.action, step.command, result.text, failed=_is_error(message, result.call_id)))
        for result in results
        if (step := steps.get(result.call_id))
    )
    if message.get("role") == "user":
        said = user_text(message)
        return _Reading(said, bool(said), facts, outcomes=outcomes)
    if message.get("role") == "assistant":
        made = tuple(step for call in calls_of(message) if (step := _step(call)))
        said = without_summary(text_of(message)).strip()
        intent = opening(said, INTENT).rstrip(":：") if made and said else ""
        return _Reading(said, facts=facts, steps=made, intent=intent)
    return _Reading(facts=facts, outcomes=outcomes)


def _is_error(message: Mapping[str, Any], call_id: str) -> bool:
    holders = (message, *(part for part in parts_of(message) if kind_of(part) == "tool_result"))
    return any(
        holder.get("is_error") is True and call_id in (holder.get("tool_call_id"), holder.get("tool_use_id"))
        for holder in holders
    )


def _step(call: Call) -> Step | None:
    action = action_of(call)
    if action is None:
        return None
    arguments = call.parsed
    if action.kind == "shell":
        command = understood(_command_line(arguments, action))
        return Step(call, action, command.act, command, command.files)
    act = _ACTS.get(action.kind, CALL)
    if act not in (EDIT, WRITE, READ, LIST):
        return Step(call, action, act, tasks=tuple(task_list(arguments)))
    verb = {EDIT: "edited", WRITE: "written", READ: "read", LIST: "listed"}[act]
    paths = dict.fromkeys([*_PATCHED.findall(call.arguments), action.target] if act == EDIT else [action.target])
    files = tuple((verb, path.removeprefix("./")) for path in paths if path)
    names = _brought_in(arguments) if act in (EDIT, WRITE) else ()
    return Step(call, action, act, files=files, names=names, tasks=tuple(task_list(arguments)))


def _command_line(arguments: Mapping[str, Any], action: Action) -> str:
    """The command as it was given, line breaks and all: the action has it as one line."""
    given = (value for value in arguments.values() if isinstance(value, str))
    return next((value for value in given if value[:40].split()[:1] == action.target[:40].split()[:1]), action.target)


_BODIES = re.compile(r"new|content|text|code|patch|insert|file_text", re.IGNORECASE)
_READ_CHARS = 2_000


def _brought_in(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The identifiers an edit's new text has and its old text has not."""
    new: dict[tuple[str, str], None] = {}
    texts: list[str] = []
    old = ""
    for key, value in _strings(arguments):
        if key.lower().startswith("old"):
            old += value
        elif _BODIES.search(key):
            texts.append(value)
            new |= mentions(value[:_READ_CHARS])
    named = tuple(value for kind, value in new if kind == IDENTIFIER and value not in old)[:4]
    return named or tuple(line for text in texts if (line := _new_line(text, old)))[:1]


def _strings(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The arguments that are text, those of the objects in a list among them."""
    lists = [value for value in arguments.values() if isinstance(value, list)]
    for holder in (arguments, *(item for items in lists for item in items if isinstance(item, dict))):
        yield from ((key, value) for key, value in holder.items() if isinstance(value, str))


def _new_line(text: str, old: str) -> str:
    """The first line that was not there before."""
    lines = (line.strip() for line in text[:_READ_CHARS].split("\n"))
    return trim(next((line for line in lines if len(line) > 5 and line not in old), ""), 60)


def _episodes(readings: Sequence[_Reading]) -> Iterator[Episode]:
    """Turns; what was said before anybody answered is one request."""
    late = {call_id: found for reading in readings for call_id, found in reading.outcomes}
    starts = [place for place, reading in enumerate(readings) if reading.by_user and not _is_command(reading.said)]
    bounds = sorted({0, *starts, len(readings)})
    question, asked, begun = "", [], 0
    for start, end in pairwise(bounds):
        asked += [readings[start].said] if readings[start].by_user and not _is_command(readings[start].said) else []
        if end < len(readings) and not any(reading.acts for reading in readings[start:end]):
            continue
        episode = _episode(readings, (begun, end), "\n".join(asked), question, late)
        yield episode
        question, asked, begun = closing_question(episode.answer), [], end


def _episode(
    readings: Sequence[_Reading], span: tuple[int, int], ask: str, question: str, late: Mapping[str, Outcome]
) -> Episode:
    outcomes: dict[str, Outcome] = {}
    for reading in readings[slice(*span)]:
        outcomes |= dict(reading.outcomes)
    deeds: list[Deed] = []
    answer = last_said = ""
    for place in range(*span):
        reading = readings[place]
        spoken = reading.said if not reading.by_user else ""
        deeds += (
            Deed(place, step, outcomes.get(step.call.id) or late.get(step.call.id), reading.intent)
            for step in reading.steps
        )
        last_said = spoken or last_said
        if reading.acts or reading.outcomes:
            answer = spoken if not reading.steps else ""
    return Episode(*span, ask, tuple(deeds), answer, last_said, question if ask else "")


def _is_command(said: str) -> bool:
    """`/compress` and the like speak to the client, not to the assistant."""
    return said.startswith("/") and len(said) < 40 and not any(mark in said[1:] for mark in "/ \n.")
