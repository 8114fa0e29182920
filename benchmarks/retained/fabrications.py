"""Whether a summary's inventions are marked: drafts that mix names of the conversation with names nobody ever said.

True names are read from the raw messages by plain patterns, in the forms in which people write them. Invented ones are
made up, or are true ones with a piece changed. Each stands in a line of its own, some beside a true one.
"""

from __future__ import annotations

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
"""So many true and as many invented names of a kind in one draft."""
MARK = "(unverified)"
SECTIONS = ("Completed Actions", "Key Decisions", "Relevant Files", "Critical Context")

PATTERNS = {
    "path": re.compile(r"(?<![\w/.:-])(?:[\w-]+/){1,6}[\w-]+\.(?:py|ts|json|md|log|yaml|sql)\b(?!/)"),
    "url": re.compile(r"https?://[\w./-]+\w"),
    "hash": re.compile(r"(?<![\w-])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,40}(?![\w-])"),
    "identifier": re.compile(
        r"(?<![\w/.-])(?:[a-z]{3,}(?:_[a-z0-9]{2,}){1,3}|[a-z]{3,}(?:[A-Z][a-z]{2,}){1,3})(?![\w/-])"
    ),
    "error": re.compile(r"\b[A-Z]\w+Error: [^\n\"`]{12,90}"),
}
LINES = {
    "path": ("Changed {} so that the totals agree.", "{} holds the defaults", "Read `{}`, nothing to do there."),
    "url": ("The format is described at {}.", "See {} for the rates", "Fetched <{}> once"),
    "hash": ("Went back to commit {}, which was good.", "Batch {} is the broken one", "`{}` is deployed on staging"),
    "identifier": (
        "`{}` now refuses negative amounts.",
        "The bug is in {}, it runs twice",
        "Renamed nothing; `{}()` stays",
    ),
    "error": ('The run ended with "{}" and was repeated.', "It failed: `{}`", 'Still open: "{}"'),
}
WORDS = ("harbour", "quartz", "lantern", "velvet", "cobalt", "meadow", "falcon", "ember", "willow", "saffron", "tundra")


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
        return [mark for item, mark in zip(self.items, self.marked, strict=True) if item.invented == invented]


def measure(conversation: Conversation, *, again: bool = False) -> Marked:
    """The lines of a draft in the summary; `again`: told once more, unmarked, in the summary after that."""
    counter = TokenCounter("gpt-4o")
    coming = conversation.messages()
    messages = _until(coming, WINDOW // 2, counter)
    items = draft(messages, conversation.seed)
    summarizer = ScriptedSummarizer(_sections(items))
    result = compress(messages, window=WINDOW, summarizer=summarizer)
    if again:
        messages = [*result.messages, *_until(coming, WINDOW // 4, counter)]
        result = compress(messages, window=WINDOW, summarizer=summarizer)
    lines = result.summary.split("\n")
    told = [(item, next((line for line in lines if line.startswith(f"- {item.line}")), None)) for item in items]
    found = [(item, line.endswith(MARK)) for item, line in told if line is not None]
    return Marked(tuple(item for item, _ in found), tuple(mark for _, mark in found))


def _until(coming: Iterator[Message], tokens: int, counter: TokenCounter) -> list[Message]:
    """The next so many tokens of a conversation, to the end of a turn."""
    messages: list[Message] = []
    size = 0
    for message in coming:
        messages.append(message)
        size += counter.message(message)
        if size >= tokens and message["role"] == "assistant" and not message.get("tool_calls"):
            break
    return messages


def _sections(items: Sequence[Item]) -> dict[str, str]:
    """The lines, dealt to four sections."""
    return {
        name: "\n".join(f"- {item.line}" for item in items[place :: len(SECTIONS)])
        for place, name in enumerate(SECTIONS)
    }


def draft(messages: Sequence[Message], seed: int) -> list[Item]:
    rng = random.Random(seed)  # noqa: S311 - always the same
    text = "\n".join(map(text_of, messages))
    items: list[Item] = []
    for kind, pattern in PATTERNS.items():
        names = sorted({name for name in pattern.findall(text) if len(name) < 100})
        true = rng.sample(names, min(len(names), EACH))
        items += (
            Item(rng.choice(LINES[kind]).format(_written(name, kind, rng)), kind, invented=False) for name in true
        )
        for number in range(EACH):
            base = rng.choice(names) if names and number % 2 else ""
            name = _invented(kind, base, text, rng)
            line = rng.choice(LINES[kind]).format(name)
            beside = f" (as in {rng.choice(true)})" if true and number % 5 == 4 and kind != "error" else ""
            items.append(Item(line + beside, kind, invented=True))
    rng.shuffle(items)
    return items


def _written(name: str, kind: str, rng: random.Random) -> str:
    """A true name as people write it: a path from the folder on or with a line number, an error's first words."""
    if kind == "path":
        return rng.choice((name, f"{name}:{rng.randrange(1, 400)}", name.split("/", 1)[1] if "/" in name else name))
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
        return f"{folder}/{rng.choice(WORDS)}_{file}" if rng.random() < 0.5 else f"{folder}/{rng.choice(WORDS)}/{file}"
    if kind == "url":
        return f"{base.rpartition('/')[0]}/{rng.choice(WORDS)}.json"
    if kind == "hash":
        place = rng.randrange(len(base))
        return (
            base[:place] + rng.choice([char for char in "0123456789abcdef" if char != base[place]]) + base[place + 1 :]
        )
    if kind == "identifier":
        pieces = re.findall(r"_?[a-z0-9]+|[A-Z][a-z]+", base)
        shorter = "".join(pieces[:-1])
        if len(pieces) > 2 and rng.random() < 0.3:
            return shorter  # the beginning of a true name, which is no name itself
        return shorter + (f"_{rng.choice(WORDS)}" if "_" in base else rng.choice(WORDS).capitalize())
    return re.sub(r"\d+|\w+$", lambda match: f"{len(match[0])}{rng.choice(WORDS)}", base)


def _made_up(kind: str, rng: random.Random) -> str:
    one, two, three = rng.sample(WORDS, 3)
    if kind == "path":
        return rng.choice(
            (f"/srv/{one}/{two}.py", f"src/{one}/{two}_{three}.ts", f"~/{one}/{two}.json", f"{one}_{two}.py")
        )
    if kind == "url":
        return f"https://{one}.example/{two}/{three}"
    if kind == "hash":
        return "".join(rng.choices("0123456789abcdef", k=rng.choice((8, 12, 40)) - 2)) + "a7"
    if kind == "identifier":
        return rng.choice(
            (f"{one}_{two}", f"{one}{two.capitalize()}", f"{one.upper()}_{two.upper()}", f"{one}_{two}_{three}")
        )
    return f"{one.capitalize()}Error: the {two} cannot be opened twice"
