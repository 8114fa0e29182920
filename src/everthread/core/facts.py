"""What must not be lost: names, commands, errors, values, decisions and rules of a conversation, ranked.

Read from the unpruned messages. What one message holds depends on it alone (and on the calls its results answer), so
`facts_of_message` can be remembered per message; `rank` puts any number of messages together.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from everthread.core.decisions import decided, decided_by_user, told_in
from everthread.core.errorlines import error_lines
from everthread.core.figures import figures
from everthread.core.lookalikes import lookalikes
from everthread.core.mentions import ERROR, HASH, IDENTIFIER, PATH, URL, VALUE, mentions
from everthread.core.messages import Call, Messages, calls_of, results_of, strings_in, text_of
from everthread.core.notes import notes
from everthread.core.outcomes import counts_tests, exit_code, leading_error, unwrap
from everthread.core.rules import Rule, active_rules, rules_of_message, settled
from everthread.core.summary import without_summary
from everthread.core.toolkinds import Action, action_of
from everthread.core.transcript import user_text
from everthread.core.values import values

COMMAND, DECISION, RULE, FIGURE, NOTE = "command", "decision", "rule", "figure", "note"

SCANNED = 32_000
"""How many characters of a text's start, and of its end, are read; `MessageFacts.unread` counts the rest."""
MAX_ARGUMENT = 500
"""A longer argument is content (a file, a patch): only what it defines is read from it."""
MAX_ARGUMENTS = 200
"""So many strings among a call's arguments are read."""
PER_KIND = 60
"""So many facts of a kind are taken from one text: a listing names everything and tells nothing."""
QUOTE = 160

KIND_WEIGHTS = {
    RULE: 10.0,
    DECISION: 6.0,
    NOTE: 6.0,
    ERROR: 5.0,
    COMMAND: 3.0,
    PATH: 3.0,
    URL: 3.0,
    HASH: 2.5,
    FIGURE: 2.5,
    VALUE: 2.0,
    IDENTIFIER: 2.0,
}
USER, ASSISTANT, OUTPUT = 2.0, 1.2, 0.8
"""What a fact weighs by who named it."""
ASKED = 0.5
"""What is left of that for what a user names in a request or a question: it is told with what became of it."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Something a conversation states. `value` is verbatim."""

    kind: str
    value: str
    weight: float = 1.0
    """Of one message: who named it, among how many others. After `rank`: the score."""
    where: int = 0
    """Index of the message that named it last."""
    source: str = ""
    """Of an error: the call it came from."""
    quote: str = ""
    """Of a value: the line it stands in."""
    by_user: bool = False
    held: bool = False
    """Worth holding on to, whoever named it: a thing's id in a call, a name that is easily taken for another one."""
    mentions: int = 1
    """How many messages name it."""


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """The facts and rules of one message, and how many of its characters were too many to read for facts."""

    facts: tuple[Fact, ...] = ()
    rules: tuple[Rule, ...] = ()
    unread: int = 0


def extract_facts(messages: Messages) -> list[Fact]:
    """Every fact of a conversation, once, the most important first."""
    calls: dict[str, Call] = {}
    found: list[MessageFacts] = []
    for message in messages:
        found.append(facts_of_message(message, calls))
        if isinstance(message, Mapping):
            calls.update((call.id, call) for call in calls_of(message))
    return rank(found)


def facts_in_text(text: str) -> list[Fact]:
    """What a text states and names, each once: values, names, decisions."""
    if not isinstance(text, str):
        return []
    return _stated(text, 1.0)


def facts_of_message(message: Mapping[str, Any], calls: Mapping[str, Call] | None = None) -> MessageFacts:
    """The facts of one message. `calls` holds the calls made before it, by id, so that errors name theirs."""
    if not isinstance(message, Mapping):
        return MessageFacts()
    found: list[Fact] = []
    unread = 0
    for result in results_of(message):
        facts, left_out = _of_output(result.text, (calls or {}).get(result.call_id))
        found += facts
        unread += left_out
    if message.get("role") == "user":
        text, left_out = _bounded(user_text(message))
        found += _of_user(text)
        unread += left_out
    elif message.get("role") == "assistant":
        text, left_out = _bounded(without_summary(text_of(message)))
        found += _stated(text, ASSISTANT)
        unread += left_out
        for call in calls_of(message):
            found += _of_call(call)
    return MessageFacts(tuple(found), tuple(rules_of_message(message)), unread)


def rank(found: Iterable[MessageFacts]) -> list[Fact]:
    """The facts of a conversation's messages, in their order, as one list: each once, the most important first.

    What counts: the kind; who named it; that it was not one of many named at once; how often it came up again, and
    how late. Ties keep the order of appearance. Of the rules those count that no later one replaces.
    """
    merged: dict[tuple[str, str], list[tuple[int, Fact]]] = {}
    rules: list[Rule] = []
    total = 0
    for index, message in enumerate(found):
        total = index + 1
        rules += (replace(rule, where=index) for rule in message.rules)
        for fact in message.facts:
            merged.setdefault((fact.kind, fact.value), []).append((index, fact))
    for rule in active_rules(settled(rules)):
        merged[RULE, rule.text] = [(rule.where, Fact(RULE, rule.text, USER, by_user=True))]
    return sorted((_joined(seen, total) for seen in merged.values()), key=lambda fact: -fact.weight)


def _joined(seen: list[tuple[int, Fact]], total: int) -> Fact:
    """One fact from all that name it, with its score."""
    index, last = seen[-1]
    if len(seen) == 1:
        weight, mentions, source, quote, by_user = last.weight, 1, last.source, last.quote, last.by_user
        held = last.held
    else:
        weight = max(fact.weight for _, fact in seen)
        mentions = len({index for index, _ in seen})
        source = next((fact.source for _, fact in reversed(seen) if fact.source), "")
        quote = next((fact.quote for _, fact in reversed(seen) if fact.quote), "")
        by_user = any(fact.by_user for _, fact in seen)
        held = any(fact.held for _, fact in seen)
    again = 1 + 0.5 * math.log2(mentions)
    recency = 0.5 + 0.5 * (index + 1) / total
    score = round(KIND_WEIGHTS[last.kind] * weight * again * recency, 4)
    return Fact(last.kind, last.value, score, index, source, quote, by_user, held, mentions)


def _of_user(text: str) -> Iterator[Fact]:
    settled_here = (Fact(DECISION, decision.text, USER) for decision in decided_by_user(text))
    errors = (Fact(ERROR, line, USER) for line in error_lines(text))
    asked_for = (Fact(NOTE, note, USER) for note in islice(notes(text), PER_KIND))
    stated = [*islice(settled_here, PER_KIND), *asked_for]
    told = "\n".join(told_in(text))
    for fact in _once([*_valued(text, USER), *_told_apart(text, USER), *stated, *errors]):
        asked = fact.kind not in (DECISION, NOTE) and fact.value not in told
        yield replace(fact, by_user=True, weight=fact.weight * ASKED if asked else fact.weight)


@functools.lru_cache(maxsize=1024)
def _action(call: Call | None) -> Action | None:
    """Asked for by the call and again by its result."""
    return action_of(call)


def _of_call(call: Call) -> Iterator[Fact]:
    """The command, file or address a call is about, and what its other arguments name."""
    action = _action(call)
    if action is None:
        return
    if action.kind == "shell":
        yield Fact(COMMAND, action.target[:MAX_ARGUMENT], ASSISTANT)
    elif action.kind in ("read", "write", "patch", "list"):
        yield Fact(PATH, action.target.removeprefix("./"), ASSISTANT)
    for text in islice(strings_in(call.parsed), MAX_ARGUMENTS):
        if _ID.fullmatch(text):
            yield Fact(IDENTIFIER, text, ASSISTANT, held=True)
        elif len(text) <= MAX_ARGUMENT:
            yield from _named(text, ASSISTANT)
        else:
            defined = dict.fromkeys(_DEFINITION.findall(_bounded(text)[0]))
            yield from _weighted([(IDENTIFIER, name, "") for name in defined], ASSISTANT)


_FAILURE = re.compile(r"^\S+[(:]\d+[,:)]|\w(?:Error|Exception)\b|^npm (?:ERR!|error)")
"""A line that is an error and no figure: it names a place in a file, or what was raised."""
_ID = re.compile(r"#?(?=[\w-]*\d)(?=[\w-]*[A-Za-z#])[A-Za-z0-9][\w-]{2,39}|#\d{3,20}")
"""A thing's id, as the whole of an argument."""
_DEFINITION = re.compile(
    r"^[ \t+]*(?:(?:export|default|async|pub|public|private|static|abstract|final)\s+){0,4}"
    r"(?:def|class|function|fn|func|interface|type|struct|enum|trait|const)\s+\*?([A-Za-z_$][\w$]{2,80})",
    re.MULTILINE,
)


def _of_output(text: str, call: Call | None) -> tuple[list[Fact], int]:
    """What a tool's output names; its errors, unless it shows a file: what that speaks of did not happen here."""
    output = unwrap(text)
    body, left_out = _bounded(output.body)
    action = _action(call)
    shows = action is not None and action.kind in ("read", "list", "search", "web")
    failed = bool(exit_code(body) if output.exit_code is None else output.exit_code)
    errors = [leading_error(body)] if shows else error_lines(body, failed=failed)
    errors += output.error.strip().split("\n")[-1:]
    source = f"{action.tool}: {action.target}"[:QUOTE] if action else ""
    found = [Fact(ERROR, line, OUTPUT, source=source) for line in dict.fromkeys(errors) if line]
    if not shows:
        found += _valued(body, OUTPUT)
        telling = (line for line in figures(body) if not (counts_tests(line) or _FAILURE.search(line)))
        found += (Fact(FIGURE, line, OUTPUT) for line in telling)
    return _once([*found, *_named(body, OUTPUT)]), left_out


def _stated(text: str, weight: float) -> list[Fact]:
    settled_here = (Fact(DECISION, sentence, weight) for sentence in islice(decided(text), PER_KIND))
    return _once([*_valued(text, weight), *_told_apart(text, weight), *settled_here])


def _once(facts: list[Fact]) -> list[Fact]:
    found: dict[tuple[str, str], Fact] = {}
    for fact in facts:
        found.setdefault((fact.kind, fact.value), fact)
    return list(found.values())


def _named(text: str, weight: float) -> Iterator[Fact]:
    return _weighted([(kind, value.removeprefix("./"), "") for kind, value in mentions(text)], weight)


def _told_apart(text: str, weight: float) -> Iterator[Fact]:
    """What somebody's words name; names that are easily mixed up are worth holding on to."""
    found = [*_named(text, weight)]
    twins = lookalikes(fact.value for fact in found if fact.kind in (IDENTIFIER, PATH, HASH))
    return (replace(fact, held=True) if fact.value in twins else fact for fact in found)


def _valued(text: str, weight: float) -> Iterator[Fact]:
    found = dict(reversed([*values(text)]))
    return _weighted([(VALUE, value, _line(text, start)) for value, start in reversed(found.items())], weight)


def _weighted(named: list[tuple[str, str, str]], weight: float) -> Iterator[Fact]:
    """Facts that were named together (kind, value, quote): the more of a kind, the less each says."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for kind, value, quote in named:
        kinds.setdefault(kind, []).append((value, quote))
    for kind, members in kinds.items():
        share = weight / math.sqrt(len(members))
        for value, quote in members[:PER_KIND]:
            yield Fact(kind, value, share, quote=quote)


def _line(text: str, place: int) -> str:
    """The line around a place; of a long one what is near it."""
    start = max(text.rfind("\n", max(0, place - QUOTE), place) + 1, place - QUOTE // 2)
    end = text.find("\n", place, start + QUOTE)
    return text[start : end if end >= 0 else start + QUOTE].strip()


def _bounded(text: str) -> tuple[str, int]:
    """The start and the end of a long text, and how many characters were left out."""
    left_out = len(text) - 2 * SCANNED
    return (f"{text[:SCANNED]}\n{text[-SCANNED:]}", left_out) if left_out > 0 else (text, 0)
