"""Paraphrase a recorded sentence so that it stays true: synonyms, another order, fewer words, an introduction."""

from __future__ import annotations

import random
import re

FRAMES = (
    "It was established that {}",
    "The user was told that {}",
    "Noted in the session: {}",
    "{} (as reported)",
    "At that point, {}",
    "{}",
)
SYNONYMS = {
    "add": "introduce",
    "added": "introduced",
    "all": "every one of the",
    "also": "as well",
    "because": "since",
    "big": "large",
    "bug": "defect",
    "change": "modify",
    "changed": "modified",
    "check": "examine",
    "checked": "examined",
    "create": "make",
    "created": "made",
    "currently": "at present",
    "delete": "remove",
    "deleted": "removed",
    "ensure": "make sure",
    "error": "failure",
    "fail": "break",
    "failed": "broke",
    "fix": "repair",
    "fixed": "repaired",
    "found": "discovered",
    "get": "obtain",
    "help": "assist",
    "however": "though",
    "issue": "problem",
    "issues": "problems",
    "just": "only",
    "keep": "retain",
    "let": "allow",
    "look": "see",
    "main": "primary",
    "make": "produce",
    "need": "require",
    "needs": "requires",
    "new": "fresh",
    "now": "at this point",
    "old": "former",
    "place": "location",
    "problem": "issue",
    "quickly": "fast",
    "remove": "drop",
    "removed": "dropped",
    "run": "execute",
    "running": "executing",
    "see": "notice",
    "show": "display",
    "shows": "displays",
    "start": "begin",
    "started": "began",
    "still": "yet",
    "update": "revise",
    "updated": "revised",
    "use": "employ",
    "used": "employed",
    "uses": "employs",
    "using": "with the help of",
    "want": "wish",
    "wants": "wishes",
    "which": "that",
    "work": "function",
    "works": "functions",
    "wrong": "incorrect",
}
FILLERS = frozenset(
    (
        "a",
        "an",
        "the",
        "just",
        "also",
        "really",
        "actually",
        "very",
        "now",
        "then",
        "already",
        "currently",
        "simply",
    )
)
_CLAUSES = re.compile(r"(?<=\w), (?=[a-z])| because | so that | which means ")
_WORD = re.compile(r"\S+")
_PLAIN = re.compile(r"[A-Za-z]+[.,;:!?]?")
_THOUSANDS = re.compile(r"(?<![\w.,])(\d{1,3}),(\d{3})(?![\w.,])")


def paraphrase(sentence: str, rng: random.Random) -> str:
    """Return the sentence in other words. Keep names and figures; a figure may lose its separator."""
    text = _THOUSANDS.sub(r"\1\2", sentence) if rng.random() < 0.5 else sentence
    text = _swap_clauses(text) if rng.random() < 0.5 else text
    words = [_choose_synonym(word, rng) for word in _WORD.findall(text)]
    text = " ".join(word for word in words if word).rstrip(".")
    return rng.choice(FRAMES).format(text)


def _choose_synonym(word: str, rng: random.Random) -> str:
    """Return a synonym of a word; an empty text to leave the word out."""
    if not _PLAIN.fullmatch(word):
        return word
    plain = word.rstrip(".,;:!?")
    if plain in FILLERS and rng.random() < 0.7:
        return ""
    other = SYNONYMS.get(plain.lower())
    if other is None or rng.random() < 0.2:
        return word
    return (other.capitalize() if plain[0].isupper() else other) + word[len(plain) :]


def _swap_clauses(text: str) -> str:
    """Return the sentence with its second clause before the first."""
    clause = _CLAUSES.search(text)
    if clause is None:
        return text
    first = text[: clause.start()]
    second = text[clause.end() :].rstrip(".")
    joint = clause[0].strip(" ,")
    return f"{joint} {second}, {first}".strip() if joint else f"{second}, {first}"
