"""How people word rules and decisions, language by language: the patterns of `data/rules/`, compiled."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from everthread.core.terms import query_terms

LATIN = ("en", "de", "es")
LANGUAGES = (*LATIN, "zh", "ja", "ko")
LONGEST = 2_000
"""So many characters of a sentence are read: a longer one is pasted, and a pattern must not be slow on it."""


class Regex:
    """A pattern compiled when it is first used: most of them never are, in a conversation in one language."""

    def __init__(self, source: str) -> None:
        self.source = source

    @functools.cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.source, re.IGNORECASE)

    def found(self, text: str) -> bool:
        return self.compiled.search(text, 0, LONGEST) is not None


@dataclass(frozen=True, slots=True)
class Match:
    """Where a sentence states a rule, and what: in groups of the pattern, where it has them."""

    polarity: str
    start: int
    end: int
    want: str = ""
    reject: str = ""
    topic: str = ""
    spoken: str = ""
    """The language to answer in, as a code."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One way to state a rule."""

    polarity: str
    topic: str
    hints: tuple[str, ...]
    """It can match only where one of these stands; none: anywhere. Looking for them first is much cheaper."""
    regex: Regex
    unless: Regex | None

    def find(self, plain: str) -> Match | None:
        match = self.regex.compiled.search(plain)
        if match is None or (self.unless and self.unless.found(plain)):
            return None
        groups = {name.rstrip("234"): value for name, value in match.groupdict().items() if value}
        scope = groups.get("scope", "").lower().rstrip("s")
        return Match(
            self.polarity,
            *match.span(),
            want=groups.get("want", ""),
            reject=groups.get("reject", ""),
            topic=f"{self.topic} {scope}".strip(),
            spoken=_spoken(groups["lang"]) if "lang" in groups else "",
        )


@dataclass(frozen=True, slots=True)
class Wording:
    """One language. Sentences come as `plain` text: single spaces, straight quotes."""

    code: str
    verb_last: bool
    """What a verb governs stands before it, and what is rejected before what is wanted."""
    words: Regex
    questions: Regex
    polite_tag: Regex
    idioms: Regex
    once: Regex
    standing: Regex
    reported: Regex
    headings: Regex
    contrast: Regex
    decisions: Regex
    decision_hints: tuple[str, ...]
    settles: Regex
    retracts: Regex
    revises: Regex
    reasons: Regex
    requests: Regex
    filler: Regex
    acting: Regex
    """Any action, to the end of its word."""
    actions: tuple[tuple[str, Regex], ...]
    rules: tuple[Pattern, ...]
    hints: tuple[str, ...]
    """Those of all rules."""

    def hinted(self, lowered: str) -> list[Pattern]:
        """The patterns that may match."""
        present = {hint for hint in self.hints if hint in lowered}
        return [rule for rule in self.rules if not rule.hints or not present.isdisjoint(rule.hints)]

    def asks(self, plain: str) -> bool:
        if len(plain) <= LONGEST:
            plain = self.polite_tag.compiled.sub("", plain)
        return plain.endswith("?") or self.questions.found(plain)

    def may_decide(self, lowered: str) -> bool:
        """Whether it pays to look for decisions in a text."""
        return any(hint in lowered for hint in self.decision_hints) and bool(self.decisions.compiled.search(lowered))

    def decides(self, plain: str) -> bool:
        return self.decisions.found(plain) and not self.asks(plain)

    def matches(self, plain: str, patterns: list[Pattern]) -> list[Match]:
        """What the patterns find, by place; of several at one place the first, those with a topic being before.

        Somebody else's words state nothing; what is meant for this time only at most lifts a rule.
        """
        if not patterns or self.reported.found(plain):
            return []
        once = self.once.found(plain) and not self.standing.found(plain)
        plain = self.idioms.compiled.sub(lambda match: "…" * len(match[0]), plain)
        found: dict[int, Match] = {}
        for pattern in patterns:
            match = pattern.find(plain)
            if match and not (once and match.polarity != "may"):
                found.setdefault(match.start, match)
        return [found[start] for start in sorted(found)]

    def contrasted(self, text: str) -> tuple[str, str]:
        """What is wanted and what is rejected in its place."""
        first, *others = self.contrast.compiled.split(text, maxsplit=1)
        if not others:
            return first, ""
        return (others[0], first) if self.verb_last else (first, others[0])

    def subject(self, text: str) -> frozenset[str]:
        """The terms that say what a text is about."""
        words = query_terms(self.filler.compiled.sub(" ", self.acting.compiled.sub(" ", text)))
        return frozenset(word.removesuffix("s") for word in words if len(word) > 1 or not word.isascii())

    def actions_in(self, plain: str) -> frozenset[str]:
        return frozenset(name for name, regex in self.actions if regex.found(plain))


_HANGUL = re.compile(r"[가-힣]")
_KANA = re.compile(r"[ぁ-んァ-ヺ]")
_HAN = re.compile(r"[一-鿿]")


def candidates(text: str) -> tuple[str, ...]:
    """The languages a sentence may be in, by its script."""
    if text.isascii():
        return LATIN
    for pattern, code in ((_HANGUL, "ko"), (_KANA, "ja"), (_HAN, "zh")):
        if pattern.search(text):
            return (code,)
    return LATIN


@functools.cache
def wording(code: str) -> Wording:
    """The wording of one language."""
    data = _load(code)
    macros = {**data["macros"], "languages": "(?:" + "|".join(_load("languages").values()) + ")"}
    latin = code in LATIN

    def regex(pattern: str | list[str]) -> Regex:
        text = pattern if isinstance(pattern, str) else "|".join(pattern)
        while (wider := _MACRO.sub(lambda match: macros[match[1]], text)) != text:
            text = wider
        return Regex(text)

    def words(listed: str) -> Regex:
        return regex(rf"\b(?:{listed})\b" if latin else listed)

    def rule(row: dict[str, str]) -> Pattern:
        unless = regex(row["unless"]) if "unless" in row else None
        hints = tuple(row["hints"].split("|")) if "hints" in row else ()
        return Pattern(row["polarity"], row.get("topic", ""), hints, regex(row["pattern"]), unless)

    rules = tuple(map(rule, sorted(data["rules"], key=lambda row: "topic" not in row)))
    own_names = (
        "questions",
        "polite_tag",
        "idioms",
        "once",
        "standing",
        "reported",
        "headings",
        "contrast",
        "decisions",
        "settles",
        "retracts",
        "revises",
        "reasons",
        "requests",
    )
    return Wording(
        code=code,
        verb_last=data.get("verb_last", False),
        words=words(data["function_words"]),
        filler=words(data["filler"]),
        decision_hints=tuple(data["decision_hints"].split("|")),
        acting=regex(f"(?:{'|'.join(data['actions'].values())})" + (r"\w*" if latin else "")),
        actions=tuple((name, regex(pattern)) for name, pattern in data["actions"].items()),
        rules=rules,
        hints=tuple(dict.fromkeys(hint for rule in rules for hint in rule.hints)),
        **{name: regex(data[name]) for name in own_names},
    )


_MACRO = re.compile(r"%(\w+)%")


def _spoken(name: str) -> str:
    return next(code for code, pattern in _spoken_languages().items() if pattern.fullmatch(name))


@functools.cache
def _spoken_languages() -> dict[str, re.Pattern[str]]:
    return {code: re.compile(names, re.IGNORECASE) for code, names in _load("languages").items()}


@functools.cache
def _load(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("everthread.core").joinpath(f"data/rules/{name}.toml").read_text("utf-8"))
