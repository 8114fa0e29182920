"""What a compaction took out and was fetched again: a file read anew, a command run anew, a message looked up.

Told from the calls alone (`core.toolkinds`). A file that was changed since is read anew for a reason, and so is a
command run after a change: neither is counted. What was fetched is in view again, so each thing counts once for each
time it was taken out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from everthread.core.lookup import is_lookup
from everthread.core.messages import Call, Message, Result, calls_of, results_of, strings_in
from everthread.core.outputs import cited_outputs
from everthread.core.toolkinds import action_of

Kind = Literal["read", "run", "recall"]
KINDS: tuple[Kind, ...] = ("read", "run", "recall")
MOST = 2_000
"""Things that are remembered as taken out; beyond it the oldest are forgotten."""
_ASKS = frozenset({"shell", "search", "list", "web"})
_CHANGES = frozenset({"write", "patch"})
_MESSAGE = re.compile(r"(?<![\w:])message:(\d{1,18})(?!\w)")
_ANY = "*"
"""Stands for whichever part of a file was read."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """A call that brings something back. Any of `keys` would tell it; `shown` is for a person."""

    kind: Kind
    keys: tuple[str, ...]
    shown: str
    messages: tuple[int, ...] = ()
    """Of a lookup: the messages it names."""
    whole: str = ""
    """Of a file that is read as a whole: how the keys of its parts begin."""


@dataclass(frozen=True, slots=True)
class Regret:
    """Something that was taken out by the compaction that made `session`, and fetched again."""

    kind: Kind
    session: str
    what: str
    """Its key: the same thing is the same text."""
    shown: str


@dataclass(frozen=True, slots=True)
class Tally:
    """How often what was taken out was fetched again."""

    reads: int = 0
    runs: int = 0
    recalls: int = 0

    @classmethod
    def of(cls, kinds: Iterable[str]) -> Tally:
        found = list(kinds)
        return cls(*(found.count(kind) for kind in KINDS))

    @property
    def total(self) -> int:
        return self.reads + self.runs + self.recalls

    def __str__(self) -> str:
        parts = ((self.reads, "file read"), (self.runs, "command run"), (self.recalls, "message recalled"))
        told = []
        for count, words in parts:
            noun, verb = words.split()
            told += [f"{count:,} {noun}{'' if count == 1 else 's'} {verb}"] if count else []
        return f"{', '.join(told)} again" if told else "nothing was fetched again"


NONE = Tally()


@dataclass(slots=True)
class Removed:
    """Where what is out of view went: key -> the session whose compaction took it out."""

    keys: dict[str, str] = field(default_factory=dict)
    changed: bool = False
    """Files were changed since the last compaction: what commands say is another matter then."""

    @classmethod
    def load(cls, state: Any) -> Removed:
        known = state if isinstance(state, Mapping) else {}
        keys = known.get("keys")
        texts = {str(key): str(value) for key, value in keys.items()} if isinstance(keys, Mapping) else {}
        return cls(texts, bool(known.get("changed")))

    def dump(self) -> dict[str, Any]:
        return {"keys": dict(self.keys), "changed": self.changed}

    def take_out(self, session: str, gone: Iterable[str], shown: Iterable[str]) -> None:
        """A compaction was committed: what it took out, unless it is still shown elsewhere."""
        still = set(shown)
        for key in gone:
            if key not in still:
                self.keys.pop(key, None)  # the latest stand last
                self.keys[key] = session
        for key in list(self.keys)[: max(0, len(self.keys) - MOST)]:
            del self.keys[key]
        self.changed = False

    def heard(self, call: Call, result: Result, covered: MutableMapping[int, str]) -> Regret | None:
        """A call was answered: what of the removed it fetched again. `covered`: message -> who took it out."""
        action = action_of(call)
        if action is not None and action.kind in _CHANGES:
            self.changed = True
            if _file(action.target) + _ANY in self.keys:
                self._forget(_file(action.target))
            return None
        fetch = fetch_of(call, result)
        if fetch is None:
            return None
        hits = [(key, self.keys.pop(key)) for key in fetch.keys if key in self.keys]
        if fetch.whole and hits:
            self._forget(fetch.whole)
        if fetch.kind == "run" and self.changed:
            return None
        if not hits:
            named = next((number for number in fetch.messages if number in covered), None)
            hits = [] if named is None else [(f"message:{named}", covered.pop(named))]
        return Regret(fetch.kind, hits[0][1], hits[0][0], fetch.shown) if hits else None

    def _forget(self, start: str) -> None:
        """All parts of a file: what was taken out is no longer what it holds, or the whole of it is in view."""
        for key in [key for key in self.keys if key.startswith(start)]:
            del self.keys[key]


def keys_in(messages: Sequence[Message], calls: Mapping[str, Call]) -> Iterator[str]:
    """The keys of every result in these messages, and of the stored outputs they cite. `calls`: by their ids."""
    for message in messages:
        for result in results_of(message):
            call = calls.get(result.call_id)
            fetch = None if call is None or is_lookup(call.name) else _fetch_of(call)
            if fetch is not None:
                yield fetch.keys[0]
                if fetch.kind == "read":
                    yield _file(fetch.shown) + _ANY
            yield from cited_outputs(result.text)


def calls_in(messages: Iterable[Message]) -> dict[str, Call]:
    return {call.id: call for message in messages for call in calls_of(message)}


def fetch_of(call: Call, result: Result) -> Fetch | None:
    """What a call may have fetched again; None for one that fetches nothing."""
    asked = "\n".join(strings_in(call.parsed))
    outputs = cited_outputs(asked)
    if not is_lookup(call.name) and not outputs:
        return _fetch_of(call)
    named = f"{asked}\n{result.text}" if is_lookup(call.name) else asked
    messages = tuple(dict.fromkeys(int(number) for number in _MESSAGE.findall(named)))
    keys = (*cited_outputs(named), *(f"message:{number}" for number in messages))
    return Fetch("recall", keys, " ".join(asked.split()), messages)


def _fetch_of(call: Call) -> Fetch | None:
    action = action_of(call)
    if action is None or not action.target:  # a call without a name, or about nothing
        return None
    if action.kind == "read":
        file = _file(action.target)
        part = f"{file}{_digest(action.detail)}" if action.detail else file
        other = file if action.detail else file + _ANY
        return Fetch("read", (part, other), action.target, whole="" if action.detail else file)
    if action.kind in _ASKS:
        key = f"run:{_digest(action.kind, action.target, action.detail)}"
        return Fetch("run", (key,), f"{action.target} {action.detail}".rstrip())
    return None


def _file(target: str) -> str:
    """How the keys of a file begin; alone it is the key of the whole."""
    return f"read:{_digest(target.removeprefix('./'))}:"


def _digest(*parts: str) -> str:
    """A short text for what may be long, and is nobody's to read."""
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
