"""Names in Use: the file names, identifiers, commands, hashes and addresses that the work uses, ranked.

A name weighs most if the agent typed it in a call, half as much if it appears in a text, and little if only a tool's
output showed it. The weight fades with the messages that follow, so the rank shows how often and how recently a name
was used. Names are recognised by their shape, in any language and for any tool; plain words are not names.

Calls and texts are read once, when they are new. The result travels as JSON with the state of the thread.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib import resources
from itertools import chain
from typing import Any, NamedTuple

from everthread.compaction.history import MessageFacts
from everthread.compaction.tool_calls import Effect
from everthread.core.messages import Message, iterate_strings, text_of
from everthread.core.secrets.redaction import find_secrets

MAX_NAMES = 600
"""Names that are remembered from one compaction to the next."""
MAX_NAME_CHARS = 120
MAX_COMMAND_CHARS = 60
MAX_SHOWN_PARTS = 2
"""Parts of a path that are shown: its last folder and the name of the file."""
HALF_LIFE_MESSAGES = 60
"""After this many messages a use counts half."""
CALL_WEIGHT = 1.0
TEXT_WEIGHT = 0.5
COMMAND_WEIGHT = 0.5
OUTPUT_WEIGHT = 0.002
"""About the weight of a name that was typed nine half-lives ago."""
MAX_OUTPUT_AGE_MESSAGES = 80
"""Outputs of older messages are not read: their weight has faded."""
MAX_GROWN_MESSAGES = 20_000
"""After this many messages the weights are rebased."""
OUTPUT_CHARS = 4_000
"""Characters to read at each end of an output."""
_COMMAND_ARGUMENTS = ("command", "cmd")
_CONTEXT_CHARS = 160
"""Characters to read before a name, to check whether it is part of a secret."""
_CONTEXT_AFTER_CHARS = 40
_TEXT_SEPARATOR = "\n\n"
_ESCAPE = re.compile(r"\\[nrt]")
"""White space in a JSON text inside a text."""
_QUOTED_WORDS = re.compile(r"\"[^\"\n]*\s[^\"\n]*\"|'[^'\n]*\s[^'\n]*'")
"""A text that is quoted in a command: its hyphens join words of a sentence."""
_NAME_CHARS_RUN = re.compile(r"[A-Za-z0-9_$@~./:+-]{4,200}")
_WORD = re.compile(r"[A-Za-z0-9_-]+")
_EDGE_CHARS = ".:-+@$~/"
_LETTER = re.compile("[A-Za-z]")
_DIGIT = re.compile("[0-9]")
_HUMP = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]")
_LINE_NUMBER = re.compile(r"(?<=\w):\d+(?:[:-].*)?$")
_PART_SEPARATORS = re.compile(r"[.:/+@$~]+")
_HEX = re.compile(r"[0-9a-f]{7,64}|[0-9A-F]{7,64}")
_CODE = re.compile(r"[A-Z]{2,}-?\d{2,}|[A-Z0-9]{5,}")
"""Ids in capitals and digits: tickets, reservations, orders."""
_ADDRESS = re.compile(
    r"[\w.+-]++@[\w-]++(?:\.[\w-]++)+|(?=[\d._-]*+[A-Za-z])[\w.-]++:\d{2,5}"
)
_JSON_KEY = re.compile(r'"[\w.-]{1,80}"\s{0,4}:')
_DATE = re.compile(r"\d{4}-?\d\d-?\d\d(?:T|$)")
_VERSION = re.compile(r"v?\d+(?:\.\d+)+")


class MessageNames(NamedTuple):
    """The names in one message: typed in its calls, and written in its text."""

    typed: tuple[str, ...]
    written: tuple[str, ...]
    """Names written in the text, without the typed ones."""
    attached: tuple[str, ...] = ()
    """Names in a user message outside the user's own words: the client wrote or pasted them."""
    commands: tuple[str, ...] = ()
    """The short commands that it ran."""


class NamesInUse:
    """The names that a thread's work uses, each with its weight.

    Instead of fading earlier uses, later uses weigh more: then no weight changes when messages follow, and the order is
    the same.
    """

    def __init__(
        self, weights: Mapping[str, float] | None = None, position: int = 0
    ) -> None:
        """Start with these `weights` at `position`, the number of messages that were read."""
        self._weights: dict[str, float] = dict(weights or {})
        self._position = position
        self._base = position
        """The message at which a use has exactly the weight of its kind."""
        self._sources: dict[str, MessageFacts] = {}
        """The message with the first use of each name that has not been checked for secrets yet."""

    def add(self, messages: Iterable[MessageFacts]) -> None:
        """Count the calls and texts of new messages."""
        for one in messages:
            self._position += 1
            if one.rest is None:
                continue
            names = read_message(one)
            self._count(names.written, TEXT_WEIGHT, one)
            self._count(names.typed, CALL_WEIGHT, one)
            self._count(names.attached, OUTPUT_WEIGHT, one)
            self._count(names.commands, COMMAND_WEIGHT, one)

    def with_outputs(self, messages: Sequence[MessageFacts]) -> NamesInUse:
        """Return a copy that counts the newest outputs too, bounded and without secrets."""
        other = self.copy()
        start = max(len(messages) - MAX_OUTPUT_AGE_MESSAGES, 0)
        for at, one in enumerate(
            messages[start:], self._position - len(messages) + start + 1
        ):
            if one.outputs:
                other._count(_read_outputs(one), OUTPUT_WEIGHT, one, at=at)
        kept = other.ranked()[:MAX_NAMES]
        other._weights = {name: other._weights[name] for name in kept}
        for name in other._find_secret_names():
            del other._weights[name]
        other._sources = {}
        return other

    def followed_by(self, messages: Sequence[MessageFacts]) -> NamesInUse:
        """Return a copy that also counts the messages of the tail: much of them may be cut."""
        other = self.copy()
        other.add(messages)
        return other.with_outputs(messages)

    def ranked(self) -> list[str]:
        """Return the names, the most used first."""
        return sorted(self._weights, key=self._weights.__getitem__, reverse=True)

    def copy(self) -> NamesInUse:
        other = NamesInUse(self._weights, self._position)
        other._base = self._base
        other._sources = {**self._sources}
        return other

    def dump(self) -> dict[str, Any]:
        """Return the names as JSON. Only a copy from `with_outputs` is free of secrets."""
        faded = 1 / self._growth(self._position)
        weights = {
            name: float(f"{weight * faded:.4g}")
            for name, weight in self._weights.items()
        }
        return {"messages": self._position, "names": weights}

    @classmethod
    def load(cls, data: Any) -> NamesInUse:
        """Restore the result of `dump`."""
        if not isinstance(data, Mapping):
            return cls()
        weights = {
            str(name): float(weight) for name, weight in data.get("names", {}).items()
        }
        return cls(weights, int(data.get("messages", 0)))

    @classmethod
    def of_list(cls, names: Sequence[str]) -> NamesInUse:
        """Build the ranking from a list of names, the most used first."""
        return cls({name: CALL_WEIGHT / (1 + at / 10) for at, name in enumerate(names)})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamesInUse) and self.dump() == other.dump()

    __hash__ = None  # type: ignore[assignment] # it changes

    def _growth(self, at: int) -> float:
        return float(2.0 ** ((at - self._base) / HALF_LIFE_MESSAGES))

    def _count(
        self, names: Iterable[str], weight: float, source: MessageFacts, *, at: int = 0
    ) -> None:
        at = at or self._position
        if at - self._base > MAX_GROWN_MESSAGES:
            self._rebase(at)
        grown = weight * self._growth(at)
        weights = self._weights
        for name in names:
            if name in weights:
                weights[name] += grown
            else:
                weights[name] = grown
                self._sources[name] = source

    def _rebase(self, at: int) -> None:
        """Rebase the weights to this message, because they would outgrow a float."""
        faded = 1 / self._growth(at)
        self._weights = {name: one * faded for name, one in self._weights.items()}
        self._base = at

    def _find_secret_names(self) -> list[str]:
        """Return the new names that are a secret, or part of one, in their source text."""
        new = [
            (name, source)
            for name, source in self._sources.items()
            if name in self._weights
        ]
        unchecked: dict[int, tuple[MessageFacts, list[str]]] = {}
        for name, source in new:
            if name not in source.secret_names:
                unchecked.setdefault(id(source), (source, []))[1].append(name)
        if unchecked:
            _check_names(unchecked.values())
        return [name for name, source in new if source.secret_names[name]]


def _check_names(sources: Iterable[tuple[MessageFacts, list[str]]]) -> None:
    """Record for each message which of these names are a secret, or part of one, in its text.

    Only the parts around the names are searched, all in one call because that is cheaper.
    """
    excerpts: list[str] = []
    spans: list[tuple[int, int, MessageFacts, str]] = []
    length = 0
    for source, names in sources:
        text = _source_text(source)
        places = []
        for name in names:
            start = max(text.find(name), 0)
            places.append((start, start + len(name), name))
        for excerpt, within in _cut_excerpts(text, sorted(places)):
            spans += (
                (length + start, length + end, source, name)
                for start, end, name in within
            )
            excerpts.append(excerpt)
            length += len(excerpt) + len(_TEXT_SEPARATOR)
    secrets = find_secrets(_TEXT_SEPARATOR.join(excerpts))
    for start, end, source, name in spans:
        source.secret_names[name] = any(
            one.start < end and start < one.end for one in secrets
        )


def _cut_excerpts(
    text: str, places: Sequence[tuple[int, int, str]]
) -> Iterator[tuple[str, list[tuple[int, int, str]]]]:
    """Yield the parts of a text around these places, and the places within each part. Near ones share a part."""
    begin = 0
    end = -1
    within: list[tuple[int, int, str]] = []
    for start, stop, name in places:
        if start - _CONTEXT_CHARS > end:
            if within:
                yield text[begin:end], within
            begin = max(start - _CONTEXT_CHARS, 0)
            within = []
        end = max(end, stop + _CONTEXT_AFTER_CHARS)
        within.append((start - begin, stop - begin, name))
    if within:
        yield text[begin:end], within


def read_message(one: MessageFacts) -> MessageNames:
    """Return the names in a message's calls and text. They are read once."""
    if one.names is None:
        effects = one.effects[1] if one.effects else ()
        arguments = [effect.arguments for effect in effects] if one.calls else []
        if len(arguments) < len(one.calls):
            arguments = [call.parsed for call in one.calls]
        strings = [
            text for values in arguments for text in iterate_strings(dict(values))
        ]
        commands = {
            text
            for values in arguments
            for name in _COMMAND_ARGUMENTS
            for text in iterate_strings(values.get(name))
        }
        texts = [text for text in strings if " " in text or "\n" in text]
        lines = [text for text in strings if " " not in text and "\n" not in text]
        lines += (_bare_words(text) for text in texts if text in commands)
        typed = dict.fromkeys(read_names("\n".join(lines), is_line=True))
        typed |= dict.fromkeys(read_names("\n".join(texts)))
        is_user = one.message.get("role") == "user"
        spoken = one.words if is_user else _assistant_text(one)
        written = [name for name in read_names(spoken) if name not in typed]
        said = text_of(one.rest or {}) if is_user else ""
        attached = read_names(said) if len(said) > len(spoken) else []
        one.names = MessageNames(
            tuple(typed),
            tuple(written),
            tuple(name for name in attached if name not in written),
            tuple(_list_commands(effects)),
        )
    return one.names


def _bare_words(command: str) -> str:
    """Return a command without its quoted texts and here-documents."""
    return _QUOTED_WORDS.sub(" ", command.partition("<<")[0])


def read_shown(one: MessageFacts, message: Message) -> frozenset[str]:
    """Return the names that a message shows, outputs included, with the ends of paths.

    `message`: the message itself, or as it is in the context after pruning.
    """
    if one.shown_names is None or one.shown_names[0] is not message:
        visible = one if message is one.message else MessageFacts(message)
        shown: set[str] = set()
        if visible.rest is not None:
            names = read_message(visible)
            shown.update(names.typed, names.written, names.attached)
        for text, _ in visible.outputs:
            shown.update(read_names(text))
        one.shown_names = message, with_ends(shown)
    return one.shown_names[1]


def _list_commands(effects: Iterable[Effect]) -> list[str]:
    """Return the short commands among the effects of a message."""
    ran = (
        effect.target
        for effect in effects
        if effect.kind == "ran" and "code" not in effect.arguments
    )
    return [
        command
        for command in ran
        if " " in command and len(command) <= MAX_COMMAND_CHARS and "`" not in command
    ]


def read_names(text: str, *, is_line: bool = False) -> list[str]:
    """Return the names in a text, each once.

    `is_line`: it is a command or one word that was typed, so hyphens join names, not words of a sentence.
    """
    if "\\" in text and ":\\" not in text:
        text = _ESCAPE.sub(" ", text)
    names_of = _names_of_line if is_line else _names_of_text
    runs = dict.fromkeys(_NAME_CHARS_RUN.findall(text))
    return list(dict.fromkeys(chain.from_iterable(map(names_of, runs))))


def _assistant_text(one: MessageFacts) -> str:
    is_spoken = one.message.get("role") == "assistant" and one.rest is not None
    return text_of(one.rest or {}) if is_spoken else ""


def _read_outputs(one: MessageFacts) -> tuple[str, ...]:
    """Return the names at both ends of each output of a message. They are read once."""
    if one.output_names is None:
        names = [name for text, _ in one.outputs for name in _read_ends(text)]
        one.output_names = tuple(names)
    return one.output_names


def _read_ends(text: str) -> list[str]:
    """Return the names at both ends of an output. Fields of JSON and links are the tool's, not the work's."""
    if len(text) > 2 * OUTPUT_CHARS:
        text = f"{text[:OUTPUT_CHARS]}\n{text[-OUTPUT_CHARS:]}"
    if '":' in text:
        text = _JSON_KEY.sub(" ", text)
    return [name for name in read_names(text) if "://" not in name]


def _source_text(one: MessageFacts) -> str:
    """Return all text of a message, including argument names of calls, which help to recognise secrets."""
    calls = (call.arguments for call in one.calls)
    outputs = (text for text, _ in one.outputs)
    return "\n".join([text_of(one.rest or {}), *calls, *outputs])


@lru_cache(maxsize=1 << 15)
def _names_of_text(run: str) -> tuple[str, ...]:
    return _names_of(run, is_line=False)


@lru_cache(maxsize=1 << 15)
def _names_of_line(run: str) -> tuple[str, ...]:
    return _names_of(run, is_line=True)


def _names_of(run: str, *, is_line: bool) -> tuple[str, ...]:
    """Return the names in a run of name characters."""
    if run.isalpha():
        return (run,) if _HUMP.search(run) else ()
    if _WORD.fullmatch(run):
        word = run.strip("-")
        return (word,) if len(word) >= 4 and _is_name(word, is_line) else ()
    if "://" in run:
        address = run.rstrip(_EDGE_CHARS)
        return (
            (address,)
            if len(address) <= MAX_NAME_CHARS and not address.endswith("://")
            else ()
        )
    run = run.rstrip(_EDGE_CHARS)
    if len(run) < 4 or len(run) > MAX_NAME_CHARS:
        return ()
    path = _LINE_NUMBER.sub("", run).rpartition(":")[2].removeprefix("./")
    if _is_file(path):
        return (path,)
    if _ADDRESS.fullmatch(run):
        return (run,)
    parts = (part.strip("-") for part in _PART_SEPARATORS.split(run))
    names = (part for part in parts if len(part) >= 4 and _is_name(part, is_line))
    return tuple(dict.fromkeys(names))


def is_path(name: str) -> bool:
    """Return whether a name is a path with a folder, not an address or a command."""
    return "/" in name and " " not in name and "://" not in name


@lru_cache(maxsize=1 << 14)
def end_of(name: str) -> str:
    """Return the end of a path to show in a section; other names unchanged."""
    parts = name.split("/") if is_path(name) else ()
    is_short = len(parts) <= MAX_SHOWN_PARTS + name.startswith(("/", "~"))
    return name if is_short else "/".join(parts[-MAX_SHOWN_PARTS:])


def with_ends(names: Iterable[str]) -> frozenset[str]:
    """Return the names, with the ends and the base names of those that are paths."""
    known = set(names)
    paths = [name for name in known if is_path(name)]
    known.update(map(end_of, paths))
    known.update(path.rpartition("/")[2] for path in paths)
    return frozenset(known)


def _is_file(run: str) -> bool:
    """Return whether a run is a path to a file, or a file's name."""
    folder, slash, base = run.rpartition("/")
    stem, dot, ending = base.rpartition(".")
    table = _table()
    if base in table.files:
        return bool(slash) or base[0] == "."
    if not dot or not stem.strip(".") or ending.lower() not in table.extensions:
        return False
    if slash:
        return bool(folder)
    is_plain = stem.isalpha() or "." in stem
    return not (is_plain and ending in table.methods) and not _VERSION.fullmatch(base)


def _is_name(part: str, is_line: bool) -> bool:  # noqa: FBT001 - called in a loop
    """Return whether a part of a run is a name.

    It has an underscore, a hump, or letters with digits; in typed text also a hyphen.
    """
    core = part.strip("_-")
    if len(core) < 4 or (core[0].isdigit() and (core.isdigit() or _DATE.match(core))):
        return False
    if "_" in core or _HUMP.search(core):
        return _LETTER.search(core) is not None
    if _DIGIT.search(core) and _LETTER.search(core):
        return bool(
            _HEX.fullmatch(core)
            or _CODE.fullmatch(core)
            or (len(core) >= 8 and "-" not in core)
        )
    return is_line and "-" in core and core[0].isalpha() and len(core) >= 8


class _Table(NamedTuple):
    extensions: frozenset[str]
    methods: frozenset[str]
    files: frozenset[str]


@cache
def _table() -> _Table:
    data = tomllib.loads(
        resources.files("everthread.compaction")
        .joinpath("data/names.toml")
        .read_text("utf-8")
    )
    return _Table(
        *(frozenset(data[name].split()) for name in ("extensions", "methods", "files"))
    )
