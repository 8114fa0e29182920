"""Measure how many of an agent's later needs its client's own summaries contained, compared with Everthread's.

A need is a file name or an identifier that occurred before a compaction and that the agent typed in a call afterwards,
before any result showed it again. It is looked for in the context that the client made, and in Everthread's compaction
of the same messages, in two sizes: the size of the client's context, and the default size. No model is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from everthread import estimate_request_tokens
from everthread.core.json_values import iterate_strings
from everthread.core.messages import Message, calls_of, list_texts, parts_of, text_of
from everthread.core.turns import is_user_message, user_text
from everthread.errors import EverthreadError
from everthread.factory import compress
from everthread.lab.importers.log import (
    CLIENT_NAMES,
    ClientCompaction,
    Log,
    LoggedMessage,
    without_reasoning,
)
from everthread.lab.importers.log_fields import make_injected_message

DEFAULT_WINDOW = 200_000
MAX_LATER_BLOCKS = 120
"""Blocks of the agent's answers after a compaction (thoughts, words, calls) that are read for needs."""
MIN_MESSAGES = 20
MIN_NEEDED_NAMES = 2
"""A compaction of fewer messages, or with fewer needs after it, is not counted."""
MIN_WINDOW = 2_000
MAX_WINDOW = 400_000
WINDOW_SEARCH_STEPS = 9
"""Steps of the binary search for the window that gives a size."""
OWN_CONTEXT = "own"
SAME_SIZE = "same_size"
DEFAULT_SIZE = "default_size"

_PATH_CHARACTERS_PATTERN = re.compile(r"[A-Za-z0-9_.\-/]++")
_EXTENSION_PATTERN = re.compile(r"\.[A-Za-z0-9]{1,6}")
_SOURCE_FILE_PATTERN = re.compile(
    r"(?<![A-Za-z0-9_\-])[A-Za-z0-9_\-]++\.(?:go|ts|tsx|py|md|json|yaml|yml|ex|exs|sh|toml|js|rs|css|html)\b"
)
_MIN_EXTENSION_OFFSET = 2
"""A slash and one character come before the extension of a path."""
_IDENTIFIER_PATTERN = re.compile(
    r"\b(?:[a-z0-9]+_[a-z0-9_]{4,}|[A-Za-z]*[a-z][A-Z][A-Za-z0-9]{4,})\b"
)
_MIN_FILE_CHARS = 5
_MIN_IDENTIFIER_CHARS = 10


@dataclass(frozen=True, slots=True)
class Names:
    """File names and identifiers."""

    files: frozenset[str] = frozenset()
    identifiers: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.files) + len(self.identifiers)

    def __or__(self, other: Names) -> Names:
        return Names(self.files | other.files, self.identifiers | other.identifiers)

    def select_newly_typed(self, typed_names: Names, shown_text: str) -> Names:
        """Return the names that were typed before any result showed them."""
        typed_files = self.files & typed_names.files
        typed_identifiers = self.identifiers & typed_names.identifiers
        return Names(
            frozenset(name for name in typed_files if name not in shown_text),
            frozenset(name for name in typed_identifiers if name not in shown_text),
        )


def _find_paths(path_text: str) -> list[str]:
    """Return the paths with a slash and an extension in a run of path characters, or else names of source files."""
    slash = path_text.find("/")
    if slash >= 0:
        extensions = [
            extension
            for extension in _EXTENSION_PATTERN.finditer(path_text)
            if extension.start() >= slash + _MIN_EXTENSION_OFFSET
        ]
        if extensions:
            end = extensions[-1].end()
            return [path_text[:end], *_find_paths(path_text[end:])]
    return [name.lstrip("-") for name in _SOURCE_FILE_PATTERN.findall(path_text)]


def find_names(text: str) -> Names:
    """Return the file names and identifiers of a text."""
    paths: list[str] = []
    for path_text in _PATH_CHARACTERS_PATTERN.findall(text):
        paths += _find_paths(path_text)
    files = frozenset(path.rsplit("/", 1)[-1] for path in paths if len(path) >= _MIN_FILE_CHARS)
    words = _IDENTIFIER_PATTERN.findall(text)
    identifiers = frozenset(word for word in words if len(word) >= _MIN_IDENTIFIER_CHARS)
    return Names(files, identifiers)


@dataclass(frozen=True, slots=True)
class MeasurableCompaction:
    """A compaction of the client with the messages before it, the context that it made, and the needs after it."""

    number: int
    messages: list[Message]
    client_context: str
    is_readable: bool
    """Whether the client's summary is readable. If it is encrypted, `client_context` has only the text beside it."""
    needed_names: Names

    @property
    def user_messages(self) -> list[list[str]]:
        """Return the user's words in each part of each message, between which the client may have added parts."""
        messages = [
            _list_user_pieces(message) for message in self.messages if is_user_message(message)
        ]
        return [pieces for pieces in messages if pieces]


@dataclass(frozen=True, slots=True)
class HeldCounts:
    """How many of the needs and user messages a context contains, and its size in tokens."""

    files: int
    identifiers: int
    user_messages: int
    tokens: int

    @property
    def names(self) -> int:
        return self.files + self.identifiers


@dataclass(frozen=True, slots=True)
class ComparedCompaction:
    """One compaction of the client beside Everthread's.

    `held` has the counts of the context by the client (`own`) and by Everthread (`same_size`, `default_size`).
    """

    number: int
    files: int
    identifiers: int
    user_messages: int
    is_readable: bool
    held: dict[str, HeldCounts]

    @property
    def names(self) -> int:
        return self.files + self.identifiers


@dataclass(frozen=True, slots=True)
class Comparison:
    """The compared compactions of one log. `skipped` counts those with too little before or after them to measure."""

    source: str
    client: str
    compactions: list[ComparedCompaction] = field(default_factory=list)
    skipped: int = 0


def compare_log(log: Log) -> Comparison:
    """Compare each compaction that the client made itself with Everthread's."""
    compactions = list(find_measurable_compactions(log))
    compared_compactions = [_compare_compaction(compaction) for compaction in compactions]
    client = CLIENT_NAMES.get(log.kind, log.kind)
    return Comparison(
        log.source,
        client,
        compared_compactions,
        len(log.compactions) - len(compared_compactions),
    )


def find_measurable_compactions(log: Log) -> Iterator[MeasurableCompaction]:
    """Yield the compactions of a log that can be measured."""
    start = 0
    previous_compaction: ClientCompaction | None = None
    for number, compaction in enumerate(log.compactions):
        next_compactions = log.compactions[number + 1 : number + 2]
        end = next_compactions[0].next_entry_index if next_compactions else len(log.entries)
        messages = without_reasoning(
            entry.message for entry in log.entries[start : compaction.next_entry_index]
        )
        if previous_compaction is not None and previous_compaction.context:
            messages.insert(0, make_injected_message(previous_compaction.context))
        known_names = find_names(_join_texts(messages))
        needed_names = _find_needed_names(
            known_names, log.entries[compaction.next_entry_index : end]
        )
        start = compaction.next_entry_index
        previous_compaction = compaction
        if len(messages) >= MIN_MESSAGES and len(needed_names) >= MIN_NEEDED_NAMES:
            yield MeasurableCompaction(
                number,
                messages,
                compaction.context,
                compaction.summary is not None,
                needed_names,
            )


def _find_needed_names(known_names: Names, entries: Sequence[LoggedMessage]) -> Names:
    needed_names = Names()
    shown_text = ""
    block_count = 0
    for entry in entries:
        message = entry.message
        if message["role"] != "assistant":
            if block_count:
                is_by_user = message["role"] == "user"
                text = user_text(message) if is_by_user else _join_texts([message])
                shown_text += f"\n{text}"
            continue
        block_count += _count_blocks(message)
        typed_names = find_names("\n".join(_list_argument_texts(message)))
        needed_names |= known_names.select_newly_typed(typed_names, shown_text)
        if block_count > MAX_LATER_BLOCKS:
            break
    return needed_names


def _count_blocks(message: Message) -> int:
    return bool(message.get("reasoning_content")) + bool(text_of(message)) + len(calls_of(message))


def _join_texts(messages: Iterable[Message]) -> str:
    return "\n".join(text for message in messages for text in list_texts(message))


def _list_argument_texts(message: Message) -> list[str]:
    texts: list[str] = []
    for call in calls_of(message):
        texts += iterate_strings(call.parsed)
    return texts


def _compare_compaction(compaction: MeasurableCompaction) -> ComparedCompaction:
    size = 0
    if compaction.client_context:
        size = estimate_request_tokens([{"role": "user", "content": compaction.client_context}])
    text_and_tokens_by_name = {
        OWN_CONTEXT: (compaction.client_context, size),
        SAME_SIZE: read_context(compact_to_size(compaction.messages, size)),
        DEFAULT_SIZE: read_context(compact_messages(compaction.messages, DEFAULT_WINDOW)),
    }
    user_messages = compaction.user_messages
    needed_names = compaction.needed_names
    held = {
        name: HeldCounts(
            _count_contained(needed_names.files, text),
            _count_contained(needed_names.identifiers, text),
            user_messages=count_whole_messages(user_messages, text),
            tokens=tokens,
        )
        for name, (text, tokens) in text_and_tokens_by_name.items()
    }
    return ComparedCompaction(
        compaction.number,
        len(needed_names.files),
        len(needed_names.identifiers),
        user_messages=len(user_messages),
        is_readable=compaction.is_readable,
        held=held,
    )


def _list_user_pieces(message: Message) -> list[str]:
    pieces = (user_text({"role": "user", "content": [part]}) for part in parts_of(message))
    return [piece for piece in pieces if piece]


def count_whole_messages(messages: Iterable[Sequence[str]], text: str) -> int:
    """Return the number of user messages all of whose pieces are in the text, word for word."""
    return sum(all(piece in text for piece in pieces) for pieces in messages)


def _count_contained(names: Iterable[str], text: str) -> int:
    return sum(name in text for name in names)


def compact_to_size(
    messages: Sequence[Message],
    size: int,
    edit: Callable[[list[Message]], list[Message]] | None = None,
) -> list[Message]:
    """Return the largest compaction of at most this many tokens over all windows, or an empty list if none is as small.

    `edit` changes each compaction before its size is counted.
    """
    min_window = MIN_WINDOW
    max_window = MAX_WINDOW
    best_messages: list[Message] = []
    for _ in range(WINDOW_SEARCH_STEPS):
        window = (min_window + max_window) // 2
        compacted_messages = compact_messages(messages, window)
        if edit is not None:
            compacted_messages = edit(compacted_messages)
        if estimate_request_tokens(compacted_messages) <= size:
            best_messages = compacted_messages
            min_window = window
        else:
            max_window = window
    return best_messages


def compact_messages(messages: Sequence[Message], window: int) -> list[Message]:
    """Return the messages after a compaction without a model, unchanged if there is nothing to compact."""
    try:
        return compress(messages, window=window, summarizer="journal", force=True).messages
    except EverthreadError:
        return list(messages)


def read_context(messages: Sequence[Message]) -> tuple[str, int]:
    """Return all text of a context, and its tokens."""
    if not messages:
        return "", 0
    return _join_texts(messages), estimate_request_tokens(list(messages))


def sum_held_counts(comparisons: Sequence[Comparison], name: str) -> HeldCounts:
    """Return the sums over all compactions whose own summary can be read, with the mean of their tokens."""
    readable_counts = [compaction.held[name] for compaction in _list_readable(comparisons)]
    return HeldCounts(
        sum(held.files for held in readable_counts),
        sum(held.identifiers for held in readable_counts),
        user_messages=sum(held.user_messages for held in readable_counts),
        tokens=sum(held.tokens for held in readable_counts) // max(len(readable_counts), 1),
    )


def _list_readable(comparisons: Sequence[Comparison]) -> list[ComparedCompaction]:
    """Return the compactions whose own summary can be read."""
    readable_compactions: list[ComparedCompaction] = []
    for comparison in comparisons:
        readable_compactions += [
            compaction for compaction in comparison.compactions if compaction.is_readable
        ]
    return readable_compactions


def describe(comparisons: Sequence[Comparison]) -> str:
    """Compare in one sentence how many of the needs the client's summaries and Everthread's contain."""
    readable_compactions = _list_readable(comparisons)
    name_count = sum(compaction.names for compaction in readable_compactions)
    if not name_count:
        compaction_count = sum(len(comparison.compactions) for comparison in comparisons)
        if compaction_count > len(readable_compactions):
            return "The client's summaries are encrypted: what they kept cannot be read."
        return "No compaction of a client with enough before and after it was found."
    readable_clients = [
        comparison.client for comparison in comparisons if _list_readable([comparison])
    ]
    clients = " and ".join(dict.fromkeys(readable_clients))
    own_share = sum_held_counts(comparisons, OWN_CONTEXT).names / name_count
    same_size_share = sum_held_counts(comparisons, SAME_SIZE).names / name_count
    occasions = "its compaction"
    if len(readable_compactions) > 1:
        occasions = f"its {len(readable_compactions)} compactions"
    return (
        f"At {occasions} {clients}'s summary kept {own_share:.0%} of the names that the agent used next; "
        f"Everthread would have kept {same_size_share:.0%} in the same room."
    )
