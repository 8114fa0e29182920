"""What was not finished: the step at the end (In Progress) and errors that nothing has settled since (Blocked)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from everthread.compaction.summarizers.extract_actions import runs_again, target
from everthread.compaction.summarizers.extract_commands import CHECK, RUN, TEST, Command
from everthread.compaction.summarizers.extract_lines import Line, Scale, aged, once, recalled
from everthread.compaction.summarizers.extract_plan import plan_of
from everthread.compaction.summarizers.extract_reading import CALL, Deed, Episode, Story
from everthread.compaction.summarizers.extract_text import exact, opening, said

_STEPS = 3
_ERRORS = 3
_RECENT = 5
"""What failed in one of so many last turns, or in the last third, is not long ago."""
_MOST = 50
"""So many failures are followed at a time; of more, the oldest are past."""
_COMMAND = re.compile(r"`[^`\n]+`…?")
_STARTED = "Begun: "
_OWN = (_STARTED, "Last request: ", "Last said: ", "Last step: ", "Waiting for: ", "Last finished: ")


def progress_lines(story: Story, previous: str, scale: Scale) -> list[Line]:
    """What was being done at the end; what an earlier summary had in progress, unless it was ours and is now past."""
    last = story.episodes[-1] if story.episodes else None
    known = [text for text in recalled(previous) if not (last and text.startswith(_OWN))]
    if last is None:
        return aged(known, 1.0)
    finished = any(episode.answer for episode in story.episodes)
    plan = plan_of(story)
    started = [Line(f"{_STARTED}{text}", 3.5, plan.where) for text in plan.started]
    return once([*aged([] if finished else known, 0.5), *started, *_at_the_end(last, scale)])


def _at_the_end(last: Episode, scale: Scale) -> Iterator[Line]:
    if last.answer:
        told = f"{said(last.ask, scale.request)} — " if last.ask else ""
        yield Line(f"Last finished: {told}{opening(last.answer, scale.answer)}", 2.0, last.end)
        return
    if last.ask:
        yield Line(f"Last request: {said(last.ask, scale.request)}", 4.0, last.start)
    if last.last_said:
        yield Line(f"Last said: {opening(last.last_said, scale.answer)}", 3.0, last.end)
    for place, deed in enumerate(last.deeds[-_STEPS:]):
        lead = "Waiting for" if deed.outcome is None else "Last step"
        told = f" — {deed.outcome.text}" if deed.outcome else ""
        line = f"{lead}: {deed.step.act} {target(deed, scale)}{told}"
        yield Line(line, 2.0 + place / 10, last.end + 1 + place / 10)


def blocked_lines(story: Story, previous: str, scale: Scale) -> list[Line]:
    """Errors word for word, with their command, that no later success has settled.

    A failure long ago that nobody came back to is past, not blocking; so is one of a finished turn, unless it is a test
    or a check.
    """
    deeds = list(story.deeds)
    lines = [line for line in aged(recalled(previous), 1.5) if not _settled_since(line.text, deeds)]
    ended = story.episodes[-1].start if story.episodes and not story.episodes[-1].answer else story.size
    late = min(ended, story.size * 2 // 3, *(episode.start for episode in story.episodes[-_RECENT:]))
    lines += (
        _blocked(deed, story, scale)
        for deed in unsettled(story)
        if deed.where >= ended or (deed.where >= late and deed.step.act in (TEST, CHECK))
    )
    return once(lines)


def unsettled(story: Story) -> list[Deed]:
    """The last failures of what has not succeeded since."""
    waiting: dict[str, Deed] = {}
    for deed in story.deeds:
        if deed.step.command is None:
            _follow_call(waiting, deed)
        elif deed.failed and deed.step.act in (RUN, TEST, CHECK):
            waiting[_key(deed.step.command)] = deed
        elif deed.outcome is not None and not deed.failed:
            for key, failed in list(waiting.items()):
                if failed.step.command and deed.step.command.settles(failed.step.command):
                    del waiting[key]
        if len(waiting) > _MOST:
            del waiting[next(iter(waiting))]
    return list(waiting.values())


def _key(command: Command) -> str:
    return command.jobs[-1].text if command.jobs else command.line


def _follow_call(waiting: dict[str, Deed], deed: Deed) -> None:
    """A tool other than a shell: settled when it succeeds for the same file, or at all where it is for none."""
    if deed.step.act != CALL and not deed.step.changes:
        return
    key = f"{deed.step.call.name} {deed.step.files[0][1] if deed.step.files else ''}"
    if deed.failed:
        waiting[key] = deed
    elif deed.outcome is not None:
        waiting.pop(key, None)


def _blocked(deed: Deed, story: Story, scale: Scale) -> Line:
    outcome = deed.outcome
    errors = outcome.errors[:_ERRORS] if outcome else ()
    told = " | ".join(exact(error, scale.error) for error in errors) or (outcome.text if outcome else "")
    failing = ", ".join(outcome.failing[:8]) if outcome else ""
    extra = f" (failing: {failing})" if failing else ""
    return Line(f"{target(deed, scale)}: {told}{extra}", 3.0 * story.recency(deed.where), deed.where)


def _settled_since(text: str, deeds: list[Deed]) -> bool:
    """Whether a command that an earlier summary said was blocked has run well, or is told anew."""
    found = _COMMAND.match(text)
    if found is None:
        return False
    return any(deed.step.command and deed.outcome and runs_again(deed.step.command, found[0]) for deed in deeds)
