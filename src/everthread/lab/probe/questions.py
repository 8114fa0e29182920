"""Conversations with questions: dialogues as LoCoMo has them, or a transcript with questions beside it.

A question names its evidence: the messages that hold it, or words quoted from them. A transcript without questions is
asked for the facts that it states, each by its own words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from everthread.core.messages import Message, results_of, text_of
from everthread.core.repair import repair
from everthread.core.sentences import sentences
from everthread.errors import InputError, TranscriptError
from everthread.lab.logs.base import Said
from everthread.lab.logs.reading import parse_log
from everthread.lab.replay.facts import in_context, stated

LOCOMO = {1: "several turns", 2: "time", 3: "open-ended", 4: "one turn", 5: "adversarial"}
"""What LoCoMo's numbers of categories stand for."""
SECONDS = 30.0
"""Between two turns of a dialogue of which only the beginning is dated."""
_TURN = re.compile(r"D\d+:\d+")
_DATED = "%I:%M %p on %d %B, %Y"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What answers a question: a whole message, or words quoted from one."""

    text: str
    whole: bool = False
    parts: tuple[str, ...] = field(init=False)
    """What must be found of it: its sentences, wherever each of them stands."""

    def __post_init__(self) -> None:
        spoken = tuple(sentence.text for sentence in sentences(self.text)) if self.whole else ()
        object.__setattr__(self, "parts", spoken or (" ".join(self.text.split()),))


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    evidence: tuple[Evidence, ...]
    kind: str = "questions"


@dataclass(frozen=True, slots=True)
class Case:
    """A conversation and what it is asked."""

    source: str
    said: list[Said]
    questions: list[Question]
    notes: tuple[str, ...] = ()


def read_cases(file: str, questions: str | None = None) -> list[Case]:
    """What a file holds: dialogues with questions, or a transcript with those of a second file or of its own."""
    text = _read(file)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None  # lines, perhaps: the reader of logs says what is wrong
    items = value if isinstance(value, list) else [value]
    if items and all(isinstance(item, Mapping) and "qa" in item and "conversation" in item for item in items):
        if questions is not None:
            raise InputError(f"{file}: has questions of its own; leave out --questions")
        return [_dialogue(file, item) for item in items]
    own = value.get("questions") if isinstance(value, Mapping) else None
    given = own if questions is None else _entries(questions)
    return [_transcript(file, text, given, questions or file)]


# --- dialogues --------------------------------------------------------------------------------------------------------


def _dialogue(file: str, item: Mapping[str, Any]) -> Case:
    source = f"{file}: {item.get('sample_id', 'a dialogue')}"
    try:
        turns = dict(_turns(item["conversation"]))
        asked = [found for entry in item["qa"] if (found := _asked(entry, turns))]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TranscriptError(f"{source}: is no dialogue as LoCoMo has them: {error!r}") from error
    if not turns or not asked:
        raise TranscriptError(f"{source}: holds no {'question with evidence' if turns else 'turn'}; nothing to probe")
    left = len(item["qa"]) - len(asked)
    notes = (f"{left} of {len(item['qa'])} questions name no turn of the dialogue; left out",) if left else ()
    return Case(source, list(turns.values()), asked, notes)


def _turns(talk: Mapping[str, Any]) -> Iterator[tuple[str, Said]]:
    """Each turn with its id; the first speaker is the user, and every turn says who speaks."""
    number = 1
    while f"session_{number}_date_time" in talk:
        began = datetime.strptime(talk[f"session_{number}_date_time"], _DATED).replace(tzinfo=UTC).timestamp()
        for place, turn in enumerate(talk.get(f"session_{number}", ())):
            caption = f" [{turn['blip_caption']}]" if turn.get("blip_caption") else ""
            message: Message = {
                "role": "user" if turn["speaker"] == talk["speaker_a"] else "assistant",
                "content": f"{turn['speaker']}: {turn['text']}{caption}",
            }
            yield turn["dia_id"], Said(message, began + SECONDS * place)
        number += 1


def _asked(entry: Mapping[str, Any], turns: Mapping[str, Said]) -> Question | None:
    named = dict.fromkeys(found for text in entry["evidence"] for found in _TURN.findall(text))
    pieces = tuple(Evidence(text_of(turns[turn].message), whole=True) for turn in named if turn in turns)
    kind = entry.get("category", "questions")
    return Question(str(entry["question"]), pieces, LOCOMO.get(kind, str(kind))) if pieces else None


# --- transcripts ------------------------------------------------------------------------------------------------------


def _transcript(file: str, text: str, given: Any, source: str) -> Case:
    log = parse_log(text, file)
    mended = repair([_bare(message) for message in log.messages])
    said = [Said(message) for message in mended.messages]
    if len(said) == len(log.said):  # what was said when is known only where every message is still there
        said = [replace(entry, at=known.at) for entry, known in zip(said, log.said, strict=True)]
    notes = [*log.warnings, *([f"repairs: {len(mended.actions):,}"] if mended.actions else [])]
    if given is None:
        facts = stated(mended.messages)
        asked = [Question(fact.text, (Evidence(fact.text),), fact.kind) for fact in facts]
        notes.append("no questions were given: the facts it states are asked for, each by its own words")
    else:
        asked = [*_given(given, log.messages, source)]
    if not asked:
        raise TranscriptError(f"{file}: states no fact that can be asked for; give --questions FILE")
    return Case(file, said, asked, tuple(notes))


def _bare(message: Message) -> Message:
    if message["role"] in ("system", "developer"):
        return {"role": "user", "content": message.get("content")}
    return message


def _given(entries: Any, messages: Sequence[Message], source: str) -> Iterator[Question]:
    """Questions from a file, each checked against the conversation."""
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{source}: questions are a list of objects with `question` and `evidence`")
    everything = in_context(messages)
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("question"), str):
            raise InputError(f"{source}: question {number} is no object with a text `question`")
        pieces = entry.get("evidence")
        pieces = [pieces] if isinstance(pieces, str | int) else pieces
        if not isinstance(pieces, list) or not pieces:
            raise InputError(
                f"{source}: question {number} has no `evidence`: the index of a message, or words quoted from it"
            )
        found = tuple(_piece(piece, messages, f"{source}: question {number}") for piece in pieces)
        for piece in found:
            if not piece.whole and piece.parts[0] not in everything:
                raise InputError(f"{source}: question {number} quotes what nobody says there: {piece.text[:80]!r}")
        yield Question(entry["question"], found, str(entry.get("category", "questions")))


def _piece(piece: Any, messages: Sequence[Message], where: str) -> Evidence:
    if isinstance(piece, str) and piece.strip():
        return Evidence(piece)
    if isinstance(piece, int) and not isinstance(piece, bool) and 0 <= piece < len(messages):
        message = messages[piece]
        return Evidence("\n".join(filter(None, [text_of(message), *(r.text for r in results_of(message))])), whole=True)
    raise InputError(
        f"{where} has the evidence {piece!r}: it must be the index of a message, 0 to {len(messages) - 1}, or words "
        "quoted from one"
    )


def _entries(file: str) -> Any:
    """A JSON list, an object with `questions`, or one object a line."""
    text = _read(file)
    try:
        value = json.loads(text)
    except ValueError:
        try:
            return [json.loads(line) for line in text.split("\n") if line.strip()]
        except ValueError as error:
            raise InputError(f"{file}: is neither JSON nor a JSON object a line: {error}") from error
    if isinstance(value, Mapping):
        return value.get("questions", [value])
    return value


def _read(file: str) -> str:
    try:
        return Path(file).expanduser().read_bytes().decode("utf-8-sig", "replace")
    except OSError as error:
        raise TranscriptError(f"{file}: cannot be read: {error.strerror or error}") from error
