"""Relevant Files: every file that was touched, how often, and what was done last."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from everthread.compaction.summarizers.extract_lines import NAMED, TOUCHED, Line, Scale, recalled
from everthread.compaction.summarizers.extract_reading import Story
from everthread.compaction.summarizers.extract_text import trim
from everthread.core.mentions import PATH, checkable_tokens, mentions

_VERBS = ("edited", "written", "created", "copied", "moved", "changed", "deleted", "read", "used", "listed", "named")
_CHANGED = frozenset(_VERBS[:7])
_COUNT = re.compile(rf"\b({'|'.join(_VERBS)})(?: (\d{{1,6}})×)?")
_NOTE = 90
_AMPLE = 2_000


@dataclass(slots=True)
class Record:
    """What happened to one file."""

    path: str
    counts: Counter[str] = field(default_factory=Counter)
    last: str = ""
    note: str = ""
    touched: bool = False
    """It was read or changed, however often."""
    order: float = -1e9

    @property
    def changed(self) -> bool:
        return any(verb in _CHANGED for verb in self.counts)

    @property
    def gone(self) -> bool:
        return self.last == "deleted"


def files_of(story: Story, previous: str, root: str) -> list[Record]:
    """Every file of an earlier summary and of the transcript."""
    records: dict[str, Record] = {}

    def record(path: str) -> Record:
        path = path.rstrip("/") or path
        key = path.removeprefix(f"{root}/") if len(root) > 1 else path
        return records.setdefault(key, Record(path))

    _recall(previous, record)
    for deed in story.deeds:
        if deed.failed and not deed.step.changes:
            continue
        for verb, path in deed.step.files:
            known = record(path)
            known.counts[verb] += 1
            known.touched = known.touched or verb in (*_CHANGED, "read")
            known.order = deed.where
            if verb in _CHANGED or not known.last or known.last not in _CHANGED:
                known.last = verb
            if deed.intent and verb in _CHANGED:
                known.note = deed.intent
    for where, (spoken, by_user) in enumerate(zip(story.said, story.by_user, strict=True)):
        if by_user:
            for kind, path in mentions(spoken[:4_000]):
                if kind == PATH and "/" in path and "." in path.rpartition("/")[2] and len(path) < 120:
                    known = record(path.removeprefix("./"))
                    known.counts["named"] += 1
                    known.order = max(known.order, where)
    return list(records.values())


def _recall(previous: str, record: Callable[[str], Record]) -> None:
    """Takes over what an earlier summary said of files, in our form or in another."""
    texts = recalled(previous)
    for place, text in enumerate(texts):
        head, _, names = text.partition(": ")
        if head in (TOUCHED, NAMED):
            for path in names.split(", "):
                known = record(path)
                known.order = max(known.order, place - len(texts))
                known.touched = known.touched or head == TOUCHED
            continue
        path, dash, rest = text.partition(" — ")
        named = [token.value for token in checkable_tokens(text) if token.kind == PATH]
        if not dash or " " in path.strip("`"):
            path, rest = (named[0], text) if named else ("", "")
        if not path:
            remark = record(text)
            remark.order, remark.touched = place - len(texts), True
            continue
        known = record(path.strip("`"))
        told, _, note = rest.partition("; last: ")
        counted = _COUNT.findall(told) if re.fullmatch(rf"(?:{_COUNT.pattern}(?:, )?)+", told) else []
        known.counts.update({verb: int(times or 1) for verb, times in counted})
        known.last = counted[0][0] if counted else ""
        known.touched = True
        known.note = note or ("" if counted else rest)
        known.order = place - len(texts)


def file_lines(records: list[Record], story: Story, scale: Scale) -> Iterator[Line]:
    """One line for each file; where room is short, its name; where it is very short, not those only spoken of."""
    for known in records:
        counts = [f"{verb} {known.counts[verb]}×" for verb in _VERBS if known.counts[verb] and verb != "deleted"]
        state = ["deleted"] if known.gone else []
        told = ", ".join(state + counts)
        note = f"; last: {trim(known.note, _NOTE)}" if told and known.note else known.note
        kind = TOUCHED if known.touched else NAMED
        bare = not note and (not told or (kind == NAMED and known.counts.total() < 2))
        text = f"{kind}: {known.path}" if bare else f"{known.path} — {told}{note}"
        if kind == NAMED and scale.budget < _AMPLE:
            continue
        if " " in known.path:  # a remark of an earlier summary, about no file in particular
            yield Line(known.path, 1.0, 1.0)
            continue
        total = known.counts.total()
        worth = (2.5 if known.changed else 1.5) + 0.5 * math.log2(1 + total)
        worth *= story.recency(int(known.order)) if known.order >= 0 else 0.45
        worth *= 1.0 if known.touched else 0.2
        yield Line(text, worth, -worth, known.path, kind)
