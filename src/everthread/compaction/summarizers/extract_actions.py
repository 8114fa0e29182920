"""Completed Actions: what was asked for and answered, what was run, changed and looked at, and how it went.

Repeated actions are one line with a count; of a command that was run before, an earlier summary's line gives way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from everthread.compaction.summarizers.extract_commands import CHECK, LOOK, READ_CHARS, RUN, TEST, Command, understood
from everthread.compaction.summarizers.extract_lines import ALSO_DONE, ALSO_RAN, SEPARATORS, Line, Scale, once, recalled
from everthread.compaction.summarizers.extract_reading import (
    CALL,
    EDIT,
    FETCH,
    LIST,
    READ,
    SEARCH,
    WRITE,
    Deed,
    Episode,
    Story,
)
from everthread.compaction.summarizers.extract_text import opening, questions, said, trim

TASK = "TASK"
_WORTH = {TASK: 4.0, TEST: 3.2, WRITE: 3.0, EDIT: 3.0, RUN: 3.0, CHECK: 2.4, CALL: 3.0, FETCH: 1.4}
_LOOKING = {LOOK: 1.0, READ: 1.0, SEARCH: 0.9, LIST: 0.7}
_EARLIER = 0.55
"""What a line of an earlier summary is worth, compared with a new one."""
_FORM = re.compile(
    r"(?:\d{1,6}\.\s+)?(?P<act>[A-Z]{3,})\s(?P<aim>.*?) — .*?"
    r"(?: \((?P<times>\d{1,6})×[^)]{0,40}\))?(?: \[tool: [^\]]{0,200}\])?$"
)
_NUMBER = re.compile(r"(\d{1,6})\.\s+")


def action_lines(story: Story, previous: str, scale: Scale) -> list[Line]:
    """The actions of an earlier summary and the new ones, by message; those of the earlier one keep their numbers."""
    groups: dict[tuple[int, str, str], list[Deed]] = {}
    lines: list[Line] = []
    for number, episode in enumerate(story.episodes):
        lines += _task(episode, story, scale, last=number == len(story.episodes) - 1)
        for deed in episode.deeds:
            alone = number if deed.step.changes and deed.step.act != RUN else -1
            groups.setdefault((alone, deed.step.act, target(deed, scale)), []).append(deed)
    earlier = list(_earlier(previous, {(act, aim) for _, act, aim in groups}))
    counts = Counter({(act, aim): times for act, aim, times, line in earlier if line is None})
    for (_, act, aim), deeds in groups.items():
        lines.append(_line(act, aim, deeds, counts[act, aim], story))
    lines += (line for *_, line in earlier if line is not None)
    return once(lines)


def next_number(previous: str) -> int:
    """The number after the last one an earlier summary used."""
    return max((int(match[1]) for line in recalled(previous) if (match := _NUMBER.match(line))), default=0) + 1


def is_numbered(text: str) -> bool:
    return _NUMBER.match(text) is not None


def target(deed: Deed, scale: Scale) -> str:
    """What a call was about: the file, the command as it was typed, the arguments."""
    step = deed.step
    if step.command is not None:
        return quoted_command(step.command.line, scale.command)
    if step.act in (EDIT, WRITE, READ, LIST) and step.files:
        return ", ".join(path for _, path in step.files[:4])
    return trim(step.action.target or step.action.tool, scale.command)


def runs_again(command: Command, quoted: str) -> bool:
    """Whether a command is the one a summary quotes, perhaps cut, or takes it in."""
    shown, line = quoted.strip("…").strip("`"), _in_a_row(command.line)
    return line == shown or (quoted.endswith("…") and line.startswith(shown)) or command.settles(understood(shown))


def quoted_command(line: str, room: int) -> str:
    """The beginning of a command in quotes; the sign that something is left out stands outside of them."""
    whole = _in_a_row(line)
    if len(whole) <= room:
        return f"`{whole}`"
    cut = whole[:room]
    words = cut.rpartition(" ")[0] if whole[room] != " " else cut
    return f"`{(words if 2 * len(words) > room else cut).rstrip()}`…"


def _in_a_row(line: str) -> str:
    """A command as one line."""
    return line[:READ_CHARS].strip().replace("\n", " ").replace("`", "'")


def _task(episode: Episode, story: Story, scale: Scale, *, last: bool) -> Iterator[Line]:
    """What the user asked for and what became of it. A question that changed nothing is not an action."""
    if not episode.ask or not episode.deeds or (last and not episode.answer):
        return
    if questions(episode.ask) and not episode.changes:
        return
    told = opening(episode.answer, scale.answer) if episode.answer else ""
    if not told:
        told = (
            f"no final answer; last: {opening(episode.last_said, scale.answer)}" if episode.last_said else "interrupted"
        )
    tools = Counter(deed.step.action.tool for deed in episode.deeds)
    used = ", ".join(f"{name} {times}×" for name, times in tools.most_common(4))
    text = f"{TASK} {said(episode.ask, scale.asked)} — {told} [tool: {used}]"
    worth = _WORTH[TASK] * story.recency(episode.end - 1)
    yield Line(text, worth, episode.end - 0.5, _short(episode.ask), ALSO_DONE)


def _short(ask: str) -> str:
    """A request as one name among others."""
    return said(ask, 60).replace(SEPARATORS[ALSO_DONE], " ")


def _line(act: str, aim: str, deeds: Sequence[Deed], before: int, story: Story) -> Line:
    last = deeds[-1]
    times = len(deeds) + before
    failed = sum(deed.failed for deed in deeds)
    count = f" ({times}×{f', {failed} failed' if failed and not last.failed else ''})" if times > 1 else ""
    text = f"{act} {aim} — {_told(deeds)}{count} [tool: {last.step.action.tool}]"
    worth = _WORTH.get(act, 1.0) if last.step.changes or act in (TEST, CHECK, FETCH) else _LOOKING.get(act, 1.2)
    worth *= story.recency(last.where) * (1.2 if last.failed else 1.0)
    brief = aim if last.step.command is not None else ""
    about = " ".join(dict.fromkeys(deed.intent for deed in deeds))
    return Line(text, worth, last.where, brief, ALSO_RAN if brief else "", about)


def _told(deeds: Sequence[Deed]) -> str:
    """How it went, last; of an edit what it was for."""
    last = deeds[-1]
    if last.outcome is None:
        return "no result"
    if last.step.act in (EDIT, WRITE) and not last.failed:
        intents = list(dict.fromkeys(deed.intent for deed in deeds if deed.intent))
        names = list(dict.fromkeys(name for deed in deeds for name in deed.step.names))[:5]
        told = trim(" / ".join(intents[-2:]), 160)
        if names and not any(name in told for name in names):
            told = f"{told} (+ {', '.join(names)})" if told else f"+ {', '.join(names)}"
        return told or last.outcome.text
    failing = ", ".join(name.rpartition("::")[2] for name in last.outcome.failing[:8])
    return last.outcome.text + (f"; failing: {failing}" if failing else "")


def _earlier(previous: str, again: set[tuple[str, str]]) -> Iterator[tuple[str, str, int, Line | None]]:
    """An earlier summary's actions: (act, target, times, line); no line for what was done again."""
    texts = recalled(previous)
    for place, text in enumerate(texts):
        order = place - len(texts)
        lead, _, rest = text.partition(": ")
        if lead in (ALSO_RAN, ALSO_DONE):
            for name in re.findall(r"`[^`\n]+`…?", rest) if lead == ALSO_RAN else rest.split(SEPARATORS[ALSO_DONE]):
                yield "", name, 1, Line(f"{lead}: {name}", 0.5 if lead == ALSO_RAN else 1.5, order, name, lead)
            continue
        form = _FORM.match(text)
        act, aim, times = (form["act"], form["aim"], int(form["times"] or 1)) if form else ("", "", 1)
        if (act, aim) in again and act != TASK:
            yield act, aim, times, None
            continue
        worth = _WORTH.get(act, 3.0) if act not in _LOOKING else _LOOKING[act]
        worth *= _EARLIER * (0.85 + 0.15 * (place + 1) / len(texts))
        brief = _short(aim) if act == TASK else aim if aim.startswith("`") else ""
        yield act, aim, times, Line(text, worth, order, brief, ALSO_DONE if act == TASK else ALSO_RAN if brief else "")
