"""Rules the user stated: what to do or not to do from then on, in the user's own words.

A rule is a sentence of a user message. Questions, complaints, requests for this once, and what stands in quotes, code
or pasted material are no rules. How rules are worded is data (`data/rules/<language>.toml`); a language is a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from everthread.core.messages import Messages
from everthread.core.sentences import Sentence, sentences
from everthread.core.terms import query_terms
from everthread.core.transcript import user_text
from everthread.core.wording import Match, Wording, candidates, wording

MAX_SENTENCE = 400
"""A longer sentence is no rule: people keep rules short, and what is longer is pasted."""
SCANNED = 50_000
"""How many characters of a message's start, and of its end, are read for rules."""

MAX_RULES = 50
"""How many rules one message can state."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `wants` and `rejects` are the terms it asks for and against, `topic` what only one rule can settle."""

    text: str
    """The sentence as the user wrote it."""
    language: str
    polarity: str
    """`do`, `dont`, or `may`: lifts an earlier rule."""
    where: int
    """Index of the message."""
    wants: frozenset[str] = frozenset()
    rejects: frozenset[str] = frozenset()
    actions: frozenset[str] = frozenset()
    topic: str = ""

    @property
    def subject(self) -> frozenset[str]:
        return self.wants | self.rejects


def user_rules(messages: Messages) -> list[Rule]:
    """Every rule the user stated, in order; of one stated twice the last. A permission counts if it lifts a rule."""
    return settled(rule for index, message in enumerate(messages) for rule in rules_of_message(message, index))


def rules_of_message(message: Mapping[str, Any], index: int = 0) -> list[Rule]:
    """The rules in one message. Depends on nothing else, so it can be kept with the message.

    At most `MAX_RULES`: a message that states more is a document. Permissions are among them; whether one lifts an
    earlier rule shows in `settled`.
    """
    if not isinstance(message, Mapping):
        return []
    text = user_text(message)
    if len(text) > 2 * SCANNED:
        text = f"{text[:SCANNED]}\n{text[-SCANNED:]}"
    found = (rule for sentence in sentences(text) if (rule := _rule(sentence, index)))
    return list(islice(found, MAX_RULES))


def settled(rules: Iterable[Rule]) -> list[Rule]:
    """Rules of several messages, in order, as one list: the last of equal ones, permissions that lift something."""
    kept: dict[str, Rule] = {}
    for rule in rules:
        if rule.polarity == "may" and not any(supersedes(rule, older) for older in kept.values()):
            continue
        key = " ".join(query_terms(rule.text))
        kept.pop(key, None)
        kept[key] = rule
    return list(kept.values())


def active_rules(rules: Sequence[Rule]) -> list[Rule]:
    """Those no later rule replaces, in order."""
    return [
        rule for place, rule in enumerate(rules) if not any(supersedes(newer, rule) for newer in rules[place + 1 :])
    ]


def supersedes(newer: Rule, older: Rule) -> bool:
    """Whether the later rule contradicts the earlier one: lifts it, wants what it rejects, settles its topic anew."""
    if newer.where < older.where:
        return False
    if newer.topic or older.topic:
        return newer.topic == older.topic and newer.subject != older.subject
    shared = newer.actions & older.actions
    if newer.actions and older.actions and not shared:
        return False
    if newer.polarity == "may":
        return _overlap(newer.subject, older.subject)
    return any(
        _overlap(wanted, rejected) if shared else bool(wanted) and wanted == rejected
        for wanted, rejected in ((newer.wants, older.rejects), (older.wants, newer.rejects))
    )


def _overlap(some: frozenset[str], others: frozenset[str]) -> bool:
    """Whether two sets are about the same: they share half of the smaller."""
    shared = len(some & others)
    return shared > 0 and 2 * shared >= min(len(some), len(others))


def _rule(sentence: Sentence, index: int) -> Rule | None:
    if len(sentence.text) > MAX_SENTENCE:
        return None
    lowered = sentence.masked.lower()
    likely = [(language, language.hinted(lowered)) for language in map(wording, candidates(lowered))]
    if not sentence.heading:
        likely = [(language, patterns) for language, patterns in likely if patterns]
    if not likely:
        return None
    _, plain = _plain(sentence)
    for language, patterns in sorted(likely, key=lambda pair: -len(pair[0].words.compiled.findall(plain))):
        if language.asks(plain):
            return None
        matches = language.matches(plain, patterns)
        if not matches and language.headings.found(sentence.heading):
            matches = [Match("do", 0, 0)]
        if matches:
            return _made(sentence, index, language, matches)
    return None


def _made(sentence: Sentence, index: int, language: Wording, matches: list[Match]) -> Rule:
    """The rule, with what it wants and rejects: each match governs the words up to the next one."""
    text, plain = _plain(sentence)
    wants: set[str] = set()
    rejects: set[str] = set()
    ends = [match.start for match in matches[1:]] + [len(plain)]
    for match, end in zip(matches, ends, strict=True):
        want, reject = match.want, match.reject
        governed = text if language.verb_last else text[match.start : max(end, match.end)]
        if not (want or reject):
            want, reject = ("", governed) if match.polarity == "dont" else language.contrasted(governed)
        wants |= language.subject(want)
        rejects |= language.subject(reject)
    actions = language.actions_in(plain)
    if not wants | rejects:
        (rejects if matches[0].polarity == "dont" else wants).update(actions)
    settles = next((match for match in matches if match.topic), None)
    forbids = any(match.polarity == "dont" for match in matches)
    return Rule(
        text=sentence.text,
        language=language.code,
        polarity="dont" if forbids and matches[0].polarity == "may" else matches[0].polarity,
        where=index,
        wants=frozenset({settles.spoken} if settles else wants),
        rejects=frozenset(() if settles else rejects - wants),
        actions=actions,
        topic=settles.topic if settles else "",
    )


# One character for one: typographic to plain, full width to ASCII.
_PLAIN = str.maketrans(
    {"’": "'", "‘": "'", "´": "'", "*": " ", "\u00a0": " ", "\u3000": " ", "\t": " "}
    | {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
)


def _plain(sentence: Sentence) -> tuple[str, str]:
    """The sentence and its masked form, place by place: plain punctuation, single spaces, no emphasis."""
    text, masked = sentence.text.translate(_PLAIN), sentence.masked.translate(_PLAIN)
    if "  " in masked or masked.startswith(" "):
        kept = [place for place, char in enumerate(masked) if char != " " or (place and masked[place - 1] != " ")]
        text, masked = ("".join(string[place] for place in kept) for string in (text, masked))
    return text, masked
