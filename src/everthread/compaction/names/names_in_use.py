"""Names in Use: the file names, identifiers, commands, hashes and addresses that the work uses, ranked.

A name weighs most if the agent typed it in a call, half as much if it appears in a text, and little if only a tool's
output showed it. The weight fades with the messages that follow, so the rank shows how often and how recently a name
was used. Agents come back to files most, so files rank higher. Local variables, hashes and long names rank lower.

Calls and texts are read once, when they are new. The names are stored as JSON with the state of the thread.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import mul
from typing import Any, NamedTuple

from everthread.compaction.history.call_effects import EffectsByIndex
from everthread.compaction.history.compaction_history import MessageFacts
from everthread.compaction.history.tool_calls import CallEffect
from everthread.compaction.names.name_shapes import (
    find_file_name,
    is_file,
    is_folder,
    is_path,
    is_short_lived,
    read_file_names,
    read_names,
)
from everthread.core.json_values import iterate_strings
from everthread.core.messages import Message, calls_of, results_of, text_of
from everthread.core.secrets.redaction import find_secrets

MAX_NAMES = 600
"""Maximum names to remember from one compaction to the next."""
MAX_COMMAND_CHARS = 60
HALF_LIFE_MESSAGES = 60
"""After this many messages a use counts half."""
CALL_WEIGHT = 1.0
TEXT_WEIGHT = 0.5
ATTACHED_WEIGHT = 0.05
"""The weight of a name that a client attached to a user's message: a summary, a pasted file."""
COMMAND_WEIGHT = 0.5
"""The weight of a command from its second run on; a command that ran only once is probably not needed again."""
FIRST_COMMAND_WEIGHT = 0.002
"""About the weight of a name that was typed nine half-lives ago."""
OUTPUT_WEIGHT = 0.05
FILE_RANK_FACTOR = 2
"""The factor for the weight of a file in the ranking."""
FOLDER_RANK_FACTOR = 0.5
SHORT_LIVED_RANK_FACTOR = 0.5
"""The factor for short identifiers, which are usually local variables, and for hashes."""
LONG_NAME_CHARS = 20
"""A longer name ranks lower, in proportion to its length."""
MAX_OUTPUT_AGE_MESSAGES = 80
"""From the outputs of older messages only the files are read: agents come back to files."""
REBASE_AFTER_MESSAGES = 20_000
"""After this many messages the weights are rebased."""
OUTPUT_END_CHARS = 4_000
"""Characters to read at each end of an output."""
_COMMAND_ARGUMENTS = ("command", "cmd")
_CHARS_BEFORE_NAME = 160
"""Characters to read before a name, to check whether it is part of a secret."""
_CHARS_AFTER_NAME = 40
_QUOTED_WORDS_PATTERN = re.compile(r"\"[^\"\n]*\s[^\"\n]*\"|'[^'\n]*\s[^'\n]*'")
"""A quoted text in a command, whose hyphens join words of a sentence instead of parts of a name."""
_JSON_KEY_PATTERN = re.compile(r'"[\w.-]{1,80}"\s{0,4}:')


class MessageNames(NamedTuple):
    """The names in one message, each listed once, by the part of the message that has it."""

    call_names: tuple[str, ...] = ()
    text_names: tuple[str, ...] = ()
    attached_names: tuple[str, ...] = ()
    """Names in a user message outside the user's own words: the client wrote or pasted them."""
    commands: tuple[str, ...] = ()
    """The short commands that the message ran."""


class NamesInUse:
    """The names that a thread's work uses, each with its weight.

    Earlier uses do not lose weight; later uses weigh more instead. The order is the same, and no weight has to be
    changed when messages follow.
    """

    def __init__(self, weights: Mapping[str, float] | None = None, message_count: int = 0) -> None:
        """Start with these `weights` after `message_count` messages."""
        self._weights: dict[str, float] = dict(weights or {})
        self._message_count = message_count
        self._base_position = message_count
        """The message at which a use has exactly the weight of its kind."""
        self._unchecked_sources: dict[str, MessageFacts] = {}
        """The message with the first use of each name that has not been checked for secrets yet."""

    def add_messages(
        self, messages: Sequence[MessageFacts], effects_by_index: EffectsByIndex
    ) -> None:
        """Count the names in calls and texts of new messages, which have these effects."""
        for index, message_facts in enumerate(messages):
            self._message_count += 1
            if message_facts.without_summary is None:
                continue
            names = _read_message_names(message_facts, effects_by_index.get(index, ()))
            self._add_uses(names.text_names, TEXT_WEIGHT, message_facts)
            self._add_uses(names.call_names, CALL_WEIGHT, message_facts)
            self._add_uses(names.attached_names, ATTACHED_WEIGHT, message_facts)
            for command in names.commands:
                was_run_before = command in self._weights
                weight = COMMAND_WEIGHT if was_run_before else FIRST_COMMAND_WEIGHT
                self._add_uses((command,), weight, message_facts)

    def with_outputs(self, messages: Sequence[MessageFacts]) -> NamesInUse:
        """Return a copy without secrets that also counts the names in outputs; in old outputs, only the files."""
        counted_names = self.copy()
        last_old_position = self._message_count - MAX_OUTPUT_AGE_MESSAGES
        for position, message_facts in enumerate(messages, self._message_count - len(messages) + 1):
            if message_facts.outputs:
                is_recent = position > last_old_position
                names = (
                    _read_output_names(message_facts)
                    if is_recent
                    else _read_output_files(message_facts)
                )
                counted_names._add_uses(names, OUTPUT_WEIGHT, message_facts, position=position)
        counted_names._weights = dict(counted_names._rank()[:MAX_NAMES])
        for name in counted_names._find_secret_names():
            del counted_names._weights[name]
        counted_names._unchecked_sources = {}
        return counted_names

    def with_tail(
        self, messages: Sequence[MessageFacts], effects_by_index: EffectsByIndex
    ) -> NamesInUse:
        """Return a copy that also counts the messages of the tail, because much of them may be cut."""
        counted_names = self.copy()
        counted_names.add_messages(messages, effects_by_index)
        return counted_names.with_outputs(messages)

    def rank_names(self) -> list[str]:
        """Return the names, the most used first."""
        return [name for name, _ in self._rank()]

    def copy(self) -> NamesInUse:
        """Return an independent copy."""
        duplicate = NamesInUse(self._weights, self._message_count)
        duplicate._base_position = self._base_position
        duplicate._unchecked_sources = {**self._unchecked_sources}
        return duplicate

    def dump(self) -> dict[str, Any]:
        """Return the names as JSON. Only a copy from `with_outputs` is free of secrets."""
        fade_factor = 1 / self._growth_factor(self._message_count)
        weights = {
            name: float(f"{weight * fade_factor:.4g}") for name, weight in self._weights.items()
        }
        return {"messages": self._message_count, "names": weights}

    @classmethod
    def load(cls, data: Any) -> NamesInUse:
        """Restore the result of `dump`."""
        if not isinstance(data, Mapping):
            return cls()
        weights = {str(name): float(weight) for name, weight in data.get("names", {}).items()}
        return cls(weights, int(data.get("messages", 0)))

    @classmethod
    def from_list(cls, names: Sequence[str]) -> NamesInUse:
        """Build the ranking from a list of names, the most used first."""
        return cls({name: CALL_WEIGHT / (1 + rank / 10) for rank, name in enumerate(names)})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamesInUse) and self.dump() == other.dump()

    __hash__ = None  # type: ignore[assignment] # it changes

    def _rank(self) -> list[tuple[str, float]]:
        """Return the names with their weights, the most used first. A bare file name counts for the path it ends."""
        weights = _join_files(self._weights)
        factors = map(_rank_factor, weights)
        values = dict(zip(weights, map(mul, weights.values(), factors), strict=True))
        order = sorted(values, key=values.__getitem__, reverse=True)
        return [(name, weights[name]) for name in order]

    def _growth_factor(self, position: int) -> float:
        """Return the factor by which a use at this position weighs more than a use at the base position."""
        return float(2.0 ** ((position - self._base_position) / HALF_LIFE_MESSAGES))

    def _add_uses(
        self,
        names: Sequence[str],
        weight: float,
        source: MessageFacts,
        *,
        position: int = 0,
    ) -> None:
        """Add the weight of one use to each of these names. `position`: the message, if it is not the newest."""
        if not names:
            return
        position = position or self._message_count
        if position - self._base_position > REBASE_AFTER_MESSAGES:
            self._rebase(position)
        grown_weight = weight * self._growth_factor(position)
        weights = self._weights
        for name in names:
            if name in weights:
                weights[name] += grown_weight
            else:
                weights[name] = grown_weight
                self._unchecked_sources[name] = source

    def _rebase(self, position: int) -> None:
        """Make this message the base of all weights, which would outgrow a float after 61,000 messages."""
        fade_factor = 1 / self._growth_factor(position)
        self._weights = {name: weight * fade_factor for name, weight in self._weights.items()}
        self._base_position = position

    def _find_secret_names(self) -> list[str]:
        """Return the new names that are a secret, or part of a secret, in the message they came from."""
        names_by_source: dict[MessageFacts, list[str]] = {}
        for name, source in self._unchecked_sources.items():
            if name in self._weights:
                names_by_source.setdefault(source, []).append(name)
        return [
            name
            for source, names in names_by_source.items()
            for name in _find_secrets_among(names, _join_source_text(source))
        ]


def _join_files(weights: Mapping[str, float]) -> dict[str, float]:
    """Add the weight of each bare file name to that of the heaviest path that ends with the file name."""
    paths: dict[str, str] = {}
    for name in weights:
        if is_path(name):
            base = find_file_name(name)
            heaviest = paths.get(base)
            if heaviest is None or weights[name] > weights[heaviest]:
                paths[base] = name
    joined_weights = {**weights}
    for base, path in paths.items():
        if base in joined_weights:
            joined_weights[path] += joined_weights.pop(base)
    return joined_weights


@lru_cache(maxsize=1 << 14)
def _rank_factor(name: str) -> float:
    """Return the factor by which the weight of a name is multiplied for the ranking, by its kind and length."""
    length_factor = LONG_NAME_CHARS / max(len(name), LONG_NAME_CHARS)
    if is_folder(name):
        return FOLDER_RANK_FACTOR * length_factor
    if is_file(name):
        return FILE_RANK_FACTOR * length_factor
    return SHORT_LIVED_RANK_FACTOR * length_factor if is_short_lived(name) else length_factor


def _find_secrets_among(names: Iterable[str], text: str) -> list[str]:
    """Return the names that are a secret, or part of a secret, in the text. Only the text around each is searched."""
    secret_names: list[str] = []
    for name in names:
        start = max(text.find(name), 0)
        excerpt_start = max(start - _CHARS_BEFORE_NAME, 0)
        name_start = start - excerpt_start
        name_end = name_start + len(name)
        excerpt = text[excerpt_start : start + len(name) + _CHARS_AFTER_NAME]
        if any(
            secret.start < name_end and name_start < secret.end for secret in find_secrets(excerpt)
        ):
            secret_names.append(name)
    return secret_names


def _read_message_names(message_facts: MessageFacts, effects: Sequence[CallEffect]) -> MessageNames:
    """Return the names in the calls and the text of a message with these effects."""
    role = message_facts.message.get("role")
    if role == "assistant":
        return _read_answer_names(message_facts, effects)
    if role == "user":
        return _read_user_names(message_facts)
    return MessageNames()


def _read_answer_names(message_facts: MessageFacts, effects: Sequence[CallEffect]) -> MessageNames:
    """Return the names in an assistant's message."""
    call_names, repeated_names = _read_call_names(effects)
    text = text_of(message_facts.without_summary or {})
    text_names = dict.fromkeys(read_names(text)) if text else {}
    return MessageNames(
        tuple(call_names),
        tuple(name for name in text_names | repeated_names if name not in call_names),
        commands=tuple(_list_commands(effects)),
    )


def _read_user_names(message_facts: MessageFacts) -> MessageNames:
    """Return the names in a user's message; names outside the user's own words are listed separately."""
    user_names = read_names(message_facts.user_words)
    text = text_of(message_facts.without_summary or {})
    all_names = read_names(text) if len(text) > len(message_facts.user_words) else []
    return MessageNames(
        text_names=tuple(user_names),
        attached_names=tuple(name for name in all_names if name not in user_names),
    )


def _read_call_names(
    effects: Sequence[CallEffect],
) -> tuple[dict[str, None], dict[str, None]]:
    """Return two groups of names in the arguments of calls: used names, and names of unchanged text.

    A name that occurs in several texts of one call is in the second group. Typically an edit has it both in the text
    to replace and in the new text, so the edit leaves it unchanged.
    """
    lines: list[str] = []
    names: dict[str, None] = {}
    repeated_names: dict[str, None] = {}
    for effect in effects:
        texts: list[str] = []
        commands: list[str] = []
        for key, value in effect.arguments.items():
            for text in (value,) if isinstance(value, str) else iterate_strings(value):
                if " " not in text and "\n" not in text:
                    lines.append(text)
                elif key in _COMMAND_ARGUMENTS:
                    commands.append(text)
                else:
                    texts.append(text)
        lines += map(_strip_quoted_texts, commands)
        texts_per_name = Counter(chain.from_iterable(map(read_names, texts)))
        for name, text_count in texts_per_name.items():
            (repeated_names if text_count > 1 else names)[name] = None
        names |= dict.fromkeys(read_names("\n".join(commands)))
    typed_names = dict.fromkeys(read_names("\n".join(lines), is_typed=True))
    return typed_names | names, repeated_names


def _strip_quoted_texts(command: str) -> str:
    """Return a command without its quoted texts and here-documents."""
    return _QUOTED_WORDS_PATTERN.sub(" ", command.partition("<<")[0])


def read_shown_names(message: Message) -> list[str]:
    """Return the names that a message shows, outputs included."""
    calls = (call.arguments for call in calls_of(message))
    outputs = (result.text for result in results_of(message))
    text = "" if message.get("role") == "tool" else text_of(message)
    return read_names("\n".join([text, *calls, *outputs]), is_typed=True)


def _list_commands(effects: Iterable[CallEffect]) -> list[str]:
    """Return the short commands among the effects of a message."""
    commands = (
        effect.target
        for effect in effects
        if effect.kind == "ran" and "code" not in effect.arguments
    )
    return [
        command
        for command in commands
        if " " in command and len(command) <= MAX_COMMAND_CHARS and "`" not in command
    ]


def _read_output_names(message_facts: MessageFacts) -> Sequence[str]:
    """Return the names at both ends of each output of a message, and all files in it."""
    names = [name for output in message_facts.outputs for name in _read_output_ends(output.text)]
    if any(len(output.text) > 2 * OUTPUT_END_CHARS for output in message_facts.outputs):
        names += _read_output_files(message_facts)
    return list(dict.fromkeys(names))


def _read_output_files(message_facts: MessageFacts) -> Sequence[str]:
    """Return the files in the outputs of a message."""
    return [name for output in message_facts.outputs for name in read_file_names(output.text)]


def _read_output_ends(text: str) -> list[str]:
    """Return the names at both ends of an output, without JSON keys and links, which the work does not use."""
    if len(text) > 2 * OUTPUT_END_CHARS:
        text = f"{text[:OUTPUT_END_CHARS]}\n{text[-OUTPUT_END_CHARS:]}"
    if '":' in text:
        text = _JSON_KEY_PATTERN.sub(" ", text)
    return [name for name in read_names(text) if "://" not in name]


def _join_source_text(message_facts: MessageFacts) -> str:
    """Return all text of a message, including argument names of calls, which help to recognise secrets."""
    calls = (call.arguments for call in message_facts.calls)
    outputs = (output.text for output in message_facts.outputs)
    return "\n".join([text_of(message_facts.without_summary or {}), *calls, *outputs])
