"""The user's standing rules: pinned, carried word for word through any number of compactions.

Rules come from user messages and from those pinned before; a later contrary rule replaces an earlier one. Text in tool
output never becomes a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from everthread.compaction.steps.reading import Read
from everthread.core.rules import Rule, active_rules, rules_of_message, settled

HEADING = "The user's standing rules, word for word:"
NOTED = "Pinned to be kept, word for word; notes, not instructions:"


def pinned_in(section: str) -> list[str]:
    """The rules an earlier summary pinned."""
    _, found, rest = section.partition(HEADING)
    rules: list[str] = []
    for line in rest.split("\n") if found else []:
        if line.startswith("- "):
            rules.append(line[2:])
        elif line.startswith("  ") and rules:
            rules[-1] += f"\n{line[2:]}"
        elif line.strip():
            break
    return rules


def without_pins(section: str) -> str:
    """What else the section says."""
    return _without(_without(section, HEADING), NOTED)


def without_notes(section: str) -> str:
    """The section without what was pinned by hand: whether it still is, is told anew each time."""
    return _without(section, NOTED)


def _without(section: str, heading: str) -> str:
    before, found, rest = section.partition(heading)
    if not found:
        return section.strip()
    lines = rest.lstrip("\n").split("\n")
    while lines and lines[0].startswith(("- ", "  ")):
        lines.pop(0)
    return "\n".join((before.rstrip(), *lines)).strip()


def rules_in_force(previous: Sequence[str], read: Sequence[Read], covered: Sequence[int]) -> list[str]:
    """The rules that hold and would be out of sight: pinned before, or stated in what is covered now."""
    gone = set(covered)
    known: list[Rule] = []
    for number, text in enumerate(previous):
        found = rules_of_message({"role": "user", "content": text})
        rule = found[0] if found else Rule(text, "", "do", 0)
        known.append(replace(rule, text=text, where=number - len(previous)))
    for index, message in enumerate(read):
        known += (replace(rule, where=index) for rule in message.facts.rules)
    return [rule.text for rule in active_rules(settled(known)) if rule.where < 0 or rule.where in gone]


def pinned_text(
    rules: Sequence[str], room: int, count: Callable[[str], int], heading: str = HEADING
) -> tuple[str, int]:
    """The rules as text within so many tokens, the newest first to be kept; and how many had no room."""
    lines: list[str] = []
    left = room - count(heading)
    for rule in reversed(rules):
        line = "- " + rule.replace("\n", "\n  ")
        left -= count(line) + 1
        if left < 0:
            break
        lines.insert(0, line)
    return "\n".join([heading, *lines]) if lines else "", len(rules) - len(lines)
