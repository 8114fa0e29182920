"""Measure whether a summary's inventions are marked: drafts mix names of the conversation with invented names.

True names come from the raw messages, by plain patterns, in the forms in which people write them. Invented names are
new, or true names with one part changed. Each is on its own line, some beside a true name. One line in six is an
invention: a summary with more than a quarter of inventions must be refused, which is measured apart.

"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.retained.context_facts import whole_text
from benchmarks.retained.conversations import Conversation
from everthread import TokenCounter, compress
from everthread.core.messages import Message
from everthread.testing import ScriptedSummarizer

WINDOW = 200_000
NAMES_PER_KIND = 14
"""Number of true names of each kind in a draft."""
DRAFTS_PER_CONVERSATION = 3
"""Number of drafts for each conversation."""
MARK = "(unverified)"
SECTIONS = ("Completed Actions", "Key Decisions", "Relevant Files", "Critical Context")

PATTERNS = {
    "path": re.compile(
        r"(?<![\w/.:-])(?:[\w-]+/){1,6}[\w-]+\.(?:py|ts|json|md|log|yaml|sql)\b(?!/)"
    ),
    "url": re.compile(r"https?://[\w./-]+\w"),
    "hash": re.compile(r"(?<![\w-])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,40}(?![\w-])"),
    "identifier": re.compile(
        r"(?<![\w/.-])(?:[a-z]{3,}(?:_[a-z0-9]{2,}){1,3}|[a-z]{3,}(?:[A-Z][a-z]{2,}){1,3})(?![\w/-])"
    ),
    "error": re.compile(r"\b[A-Z]\w+Error: [^\n\"`]{12,90}"),
}
LINES = {
    "path": (
        "Changed {} so that the totals agree.",
        "{} holds the defaults",
        "Read `{}`, nothing to do there.",
    ),
    "url": (
        "The format is described at {}.",
        "See {} for the rates",
        "Fetched <{}> once",
    ),
    "hash": (
        "Went back to commit {}, which was good.",
        "Batch {} is the broken one",
        "`{}` is deployed on staging",
    ),
    "identifier": (
        "`{}` now refuses negative amounts.",
        "The bug is in {}, it runs twice",
        "Renamed nothing; `{}()` stays",
    ),
    "error": (
        'The run ended with "{}" and was repeated.',
        "It failed: `{}`",
        'Still open: "{}"',
    ),
}
WORDS = (
    "harbour",
    "quartz",
    "lantern",
    "velvet",
    "cobalt",
    "meadow",
    "falcon",
    "ember",
    "willow",
    "saffron",
    "tundra",
)


@dataclass(frozen=True, slots=True)
class DraftLine:
    """A line of a draft. `invented`: whether it names something invented."""

    line: str
    kind: str
    invented: bool


@dataclass(frozen=True, slots=True)
class MarkedLines:
    """The lines of drafts that are in the summary, and whether each is marked."""

    items: tuple[DraftLine, ...]
    marked: tuple[bool, ...]

    def of(self, *, invented: bool) -> list[bool]:
        return [
            mark
            for item, mark in zip(self.items, self.marked, strict=True)
            if item.invented == invented
        ]


def measure(conversation: Conversation, *, again: bool = False) -> MarkedLines:
    """Return the lines of some drafts in their summaries. `again`: in the next summary, which repeats them."""
    counter = TokenCounter("gpt-4o")
    coming = conversation.messages()
    messages = _take_tokens(coming, WINDOW // 2, counter)
    more = _take_tokens(coming, WINDOW // 4, counter) if again else []
    items: list[DraftLine] = []
    marks: list[bool] = []
    for number in range(DRAFTS_PER_CONVERSATION):
        told = make_draft_lines(messages, conversation.seed + 1_000 * number, 1 / 5)
        summarizer = ScriptedSummarizer(_make_sections(told))
        result = compress(messages, window=WINDOW, summarizer=summarizer, force=True)
        if again:
            result = compress(
                [*result.messages, *more],
                window=WINDOW,
                summarizer=summarizer,
                force=True,
            )
        lines = result.summary.split("\n")
        for item in told:
            line = next((line for line in lines if line.startswith(f"- {item.line}")), None)
            if line is not None:
                items.append(item)
                marks.append(line.endswith(MARK))
    return MarkedLines(tuple(items), tuple(marks))


def is_refused(conversation: Conversation) -> bool:
    """Return whether the summary contains no line of a draft with as many invented as true names."""
    messages = _take_tokens(conversation.messages(), WINDOW // 2, TokenCounter("gpt-4o"))
    told = make_draft_lines(messages, conversation.seed, 1)
    result = compress(
        messages,
        window=WINDOW,
        summarizer=ScriptedSummarizer(_make_sections(told)),
        force=True,
    )
    return not any(item.line in result.summary for item in told)


def _take_tokens(coming: Iterator[Message], tokens: int, counter: TokenCounter) -> list[Message]:
    """Take this many tokens of a conversation, to the end of a turn."""
    messages: list[Message] = []
    size = 0
    for message in coming:
        messages.append(message)
        size += counter.message(message)
        if size >= tokens and message["role"] == "assistant" and not message.get("tool_calls"):
            break
    return messages


def _make_sections(items: Sequence[DraftLine]) -> dict[str, str]:
    """Divide the lines among four sections."""
    return {
        name: "\n".join(f"- {item.line}" for item in items[place :: len(SECTIONS)])
        for place, name in enumerate(SECTIONS)
    }


def make_draft_lines(messages: Sequence[Message], seed: int, share: float) -> list[DraftLine]:
    """Return lines with true names, and this share of invented ones, of each kind in turn."""
    rng = random.Random(seed)  # noqa: S311 - always the same
    text = "\n".join(map(whole_text, messages))
    names = {
        kind: sorted({name for name in pattern.findall(text) if len(name) < 100})
        for kind, pattern in PATTERNS.items()
    }
    true = {
        kind: rng.sample(found, min(len(found), NAMES_PER_KIND)) for kind, found in names.items()
    }
    items = [
        DraftLine(
            rng.choice(LINES[kind]).format(_vary_form(name, kind, rng)),
            kind,
            invented=False,
        )
        for kind, found in true.items()
        for name in found
    ]
    for number, kind in zip(
        range(int(len(items) * share)), itertools.cycle(PATTERNS), strict=False
    ):
        base = rng.choice(names[kind]) if names[kind] and number % 2 else ""
        line = rng.choice(LINES[kind]).format(_invent_name(kind, base, text, rng))
        beside = (
            f" (as in {rng.choice(true[kind])})"
            if true[kind] and number % 7 == 4 and kind != "error"
            else ""
        )
        items.append(DraftLine(line + beside, kind, invented=True))
    rng.shuffle(items)
    return items


def _vary_form(name: str, kind: str, rng: random.Random) -> str:
    """Return a true name in a form that people write: a path relative to its folder, or with a line number."""
    if kind == "path":
        return rng.choice(
            (
                name,
                f"{name}:{rng.randrange(1, 400)}",
                name.split("/", 1)[1] if "/" in name else name,
            )
        )
    return name


def _invent_name(kind: str, base: str, text: str, rng: random.Random) -> str:
    """Return a name that is not in the text: a true one with a part changed, or a new one."""
    while True:
        name = _change_name(kind, base, rng) if base else _make_up_name(kind, rng)
        if not re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", text):
            return name
        base = ""


def _change_name(kind: str, base: str, rng: random.Random) -> str:
    if kind == "path":
        folder, _, file = base.rpartition("/")
        return (
            f"{folder}/{rng.choice(WORDS)}_{file}"
            if rng.random() < 0.5
            else f"{folder}/{rng.choice(WORDS)}/{file}"
        )
    if kind == "url":
        return f"{base.rpartition('/')[0]}/{rng.choice(WORDS)}.json"
    if kind == "hash":
        place = rng.randrange(len(base))
        return (
            base[:place]
            + rng.choice([char for char in "0123456789abcdef" if char != base[place]])
            + base[place + 1 :]
        )
    if kind == "identifier":
        pieces = re.findall(r"_?[a-z0-9]+|[A-Z][a-z]+", base)
        shorter = "".join(pieces[:-1])
        if len(pieces) > 2 and rng.random() < 0.3:
            return shorter  # the beginning of a true name, which names nothing
        return shorter + (
            f"_{rng.choice(WORDS)}" if "_" in base else rng.choice(WORDS).capitalize()
        )
    return re.sub(r"\d+|\w+$", lambda match: f"{len(match[0])}{rng.choice(WORDS)}", base)


def _make_up_name(kind: str, rng: random.Random) -> str:
    one, two, three = rng.sample(WORDS, 3)
    if kind == "path":
        return rng.choice(
            (
                f"/srv/{one}/{two}.py",
                f"src/{one}/{two}_{three}.ts",
                f"~/{one}/{two}.json",
                f"{one}_{two}.py",
            )
        )
    if kind == "url":
        return f"https://{one}.example/{two}/{three}"
    if kind == "hash":
        return "".join(rng.choices("0123456789abcdef", k=rng.choice((8, 12, 40)) - 2)) + "a7"
    if kind == "identifier":
        return rng.choice(
            (
                f"{one}_{two}",
                f"{one}{two.capitalize()}",
                f"{one.upper()}_{two.upper()}",
                f"{one}_{two}_{three}",
            )
        )
    return f"{one.capitalize()}Error: the {two} cannot be opened twice"
