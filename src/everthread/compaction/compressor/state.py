"""What a thread's compactions know beside the text of their summaries: files, rules, decisions, errors.

Read from calls and user messages, updated with every compaction, JSON in the engine's state. It feeds the pinned rules,
Relevant Files and Critical Context; a summary that forgets a file does not make the thread forget it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from everthread.compaction.compressor import carried
from everthread.compaction.steps import pins, verify
from everthread.compaction.steps.cutting import Plan
from everthread.compaction.steps.files import CHANGED, KNOWN, touched
from everthread.compaction.steps.reading import Read
from everthread.core.facts import Fact
from everthread.core.mentions import PATH, checkable_tokens
from everthread.core.summary import FILES, RULES
from everthread.core.transcript import user_text

MOST_FILES = 2_000


@dataclass(frozen=True, slots=True)
class ThreadState:
    files: dict[str, str] = field(default_factory=dict)
    """Path -> what was done last that matters most: `changed`, `read`, or `listed` by an earlier summary."""
    rules: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    """Decisions, errors and what the user named; `where` counts the thread's messages."""
    gone: tuple[str, ...] = ()
    """Decisions that hold no longer."""
    seen: int = 0
    """How many messages were covered so far."""

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> ThreadState:
        known = {entry.name for entry in fields(cls)}
        found = {key: value for key, value in state.items() if key in known}
        rules, facts = tuple(state.get("rules", ())), tuple(Fact(**fact) for fact in state.get("facts", ()))
        return cls(**(found | {"rules": rules, "facts": facts, "gone": tuple(state.get("gone", ()))}))

    def dump(self) -> dict[str, Any]:
        lists = {"rules": list(self.rules), "facts": [_plain(fact) for fact in self.facts], "gone": list(self.gone)}
        return {"files": dict(self.files), "seen": self.seen} | lists

    def after(self, plan: Plan, ranked: Sequence[Fact]) -> ThreadState:
        """What is known once the messages of the plan's middle are covered; `ranked` are their facts."""
        previous, middle, read, covered = plan.previous, plan.middle, plan.read, plan.covered
        told = checkable_tokens(verify.verified(previous.get(FILES, "")))
        listed = [token.value for token in told if token.kind == PATH]
        files = {**dict.fromkeys(listed, KNOWN), **self.files}
        for path, action in touched(middle):
            files[path] = CHANGED if files.pop(path, "") == CHANGED else action
        pinned = dict.fromkeys([*self.rules, *pins.pinned_in(previous.get(RULES, ""))])
        rules = pins.rules_in_force(list(pinned), read, covered)
        carried_on = self._carried(read, covered, ranked)
        return ThreadState(
            files=dict(list(files.items())[-MOST_FILES:]),
            rules=tuple(rules),
            facts=carried_on.facts,
            gone=carried_on.gone,
            seen=self.seen + len(covered),
        )

    def _carried(self, read: Sequence[Read], covered: Sequence[int], ranked: Sequence[Fact]) -> carried.Carried:
        new = [replace(fact, where=self.seen + fact.where) for fact in ranked] if self.seen else list(ranked)
        first = covered[0] if covered else 0
        spoken = [
            (self.seen + index - first, said)
            for index in range(first, len(read))
            if (said := user_text(read[index].message))
        ]
        return carried.carry(self.facts, new, spoken, self.gone, self.seen + len(read) - first)


_FACT_FIELDS = tuple(entry.name for entry in fields(Fact))


def _plain(fact: Fact) -> dict[str, Any]:
    """A fact as JSON values; `dataclasses.asdict` copies each of them and takes ten times as long."""
    return {name: getattr(fact, name) for name in _FACT_FIELDS}
