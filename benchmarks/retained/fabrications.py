"""Whether a summary's inventions are marked: drafts that mix names of the conversation with names nobody ever said.

True names are read from the raw messages by plain patterns, in the forms in which people write them. Invented ones are
made up, or are true ones with a piece changed. Each stands in a line of its own, some beside a true one. One line in
six is an invention: a summary in which more than a quarter is invented must be refused whole, which is measured apart.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.retained.conversations import Conversation
from benchmarks.retained.finding import text_of
from everthread import TokenCounter, compress
from everthread.core.messages import Message
from everthread.testing import ScriptedSummarizer

WINDOW = 200_000
EACH = 14
"""So many true names of a kind in one draft."""
DRAFTS = 3
"""So many drafts of a conversation."""
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
class Item:
    """A line of a draft, and whether it names something invented."""

    line: str
    kind: str
    invented: bool


@dataclass(frozen=True, slots=True)
class Marked:
    """How many lines of each sort there were in the summary, and how many of them were marked."""

    items: tuple[Item, ...]
    marked: tuple[bool, ...]

    def of(self, *, invented: bool) -> list[bool]:
        return [
            mark
            for item, mark in zip(self.items, self.marked, strict=True)
            if item.invented == invented
        ]


def measure(conversation: Conversation, *, again: bool = False) -> Marked:
    """The lines of some drafts in their summaries; `again`: told once more, unmarked, in the summary after that."""
    counter = TokenCounter("gpt-4o")
    coming = conversation.messages()
    messages = _until(coming, WINDOW // 2, counter)
    more = _until(coming, WINDOW // 4, counter) if again else []
    items: list[Item] = []
    marks: list[bool] = []
    for number in range(DRAFTS):
        told = draft(messages, conversation.seed + 1_000 * number, 1 / 5)
        summarizer = ScriptedSummarizer(_sections(told))
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
            line = next(
                (line for line in lines if line.startswith(f"- {item.line}")), None
            )
            if line is not None:
                items.append(item)
                marks.append(line.endswith(MARK))
    return Marked(tuple(items), tuple(marks))


def is_refused(conversation: Conversation) -> bool:
    """Whether none of a draft stands in the summary that invents as many names as it tells true ones."""
    messages = _until(conversation.messages(), WINDOW // 2, TokenCounter("gpt-4o"))
    told = draft(messages, conversation.seed, 1)
    result = compress(
        messages,
        window=WINDOW,
        summarizer=ScriptedSummarizer(_sections(told)),
        force=True,
    )
    return not any(item.line in result.summary for item in told)


def _until(
    coming: Iterator[Message], tokens: int, counter: TokenCounter
) -> list[Message]:
    """The next so many tokens of a conversation, to the end of a turn."""
    messages: list[Message] = []
    size = 0
    for message in coming:
        messages.append(message)
        size += counter.message(message)
        if (
            size >= tokens
            and message["role"] == "assistant"
            and not message.get("tool_calls")
        ):
            break
    return messages


def _sections(items: Sequence[Item]) -> dict[str, str]:
    """The lines, dealt to four sections."""
    return {
        name: "\n".join(f"- {item.line}" for item in items[place :: len(SECTIONS)])
        for place, name in enumerate(SECTIONS)
    }


def draft(messages: Sequence[Message], seed: int, share: float) -> list[Item]:
    """Lines with true names, and for each true one so much of an invention, dealt to the kinds in turn."""
    rng = random.Random(seed)  # noqa: S311 - always the same
    text = "\n".join(map(text_of, messages))
    names = {
        kind: sorted({name for name in pattern.findall(text) if len(name) < 100})
        for kind, pattern in PATTERNS.items()
    }
    true = {
        kind: rng.sample(found, min(len(found), EACH)) for kind, found in names.items()
    }
    items = [
        Item(
            rng.choice(LINES[kind]).format(_written(name, kind, rng)),
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
        line = rng.choice(LINES[kind]).format(_invented(kind, base, text, rng))
        beside = (
            f" (as in {rng.choice(true[kind])})"
            if true[kind] and number % 7 == 4 and kind != "error"
            else ""
        )
        items.append(Item(line + beside, kind, invented=True))
    rng.shuffle(items)
    return items


def _written(name: str, kind: str, rng: random.Random) -> str:
    """A true name as people write it: a path from the folder on or with a line number, an error's first words."""
    if kind == "path":
        return rng.choice(
            (
                name,
                f"{name}:{rng.randrange(1, 400)}",
                name.split("/", 1)[1] if "/" in name else name,
            )
        )
    return name


def _invented(kind: str, base: str, text: str, rng: random.Random) -> str:
    """A name that stands nowhere in the text: a true one with a piece changed, or all made up."""
    while True:
        name = _changed(kind, base, rng) if base else _made_up(kind, rng)
        if not re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", text):
            return name
        base = ""


def _changed(kind: str, base: str, rng: random.Random) -> str:
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
            return shorter  # the beginning of a true name, which is no name itself
        return shorter + (
            f"_{rng.choice(WORDS)}" if "_" in base else rng.choice(WORDS).capitalize()
        )
    return re.sub(
        r"\d+|\w+$", lambda match: f"{len(match[0])}{rng.choice(WORDS)}", base
    )


def _made_up(kind: str, rng: random.Random) -> str:
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
        return (
            "".join(rng.choices("0123456789abcdef", k=rng.choice((8, 12, 40)) - 2))
            + "a7"
        )
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
