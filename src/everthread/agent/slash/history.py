"""`/compress` and `/undo`: the history made smaller, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from everthread.agent.slash.base import CommandResult, Here, counted, one_line, paragraphs
from everthread.core.messages import Message
from everthread.core.redaction import redact
from everthread.core.summary import Compaction
from everthread.store.index import searchable_text

PREVIEW = "--preview"
SHOWN = 20


async def compress(here: Here, argument: str) -> CommandResult:
    words = argument.split()
    focus = " ".join(word for word in words if word != PREVIEW) or None
    before = len(here.conversation.messages)
    if PREVIEW in words:
        return _previewed(await here.conversation.preview(focus), here.conversation.messages)
    done = await here.conversation.compress(focus)
    if not done.changed:
        return CommandResult(f"Nothing was changed: {done.reason}.", _figures(done, before))
    after = len(here.conversation.messages)
    sizes = f"{counted(before, 'message')} → {after:,}, {done.tokens_before:,} → {done.tokens_after:,} tokens"
    text = paragraphs(
        f"Compacted: {sizes}. The summary was written by {done.author} and {_checked(done)}.",
        [*done.steps, *(f"Warning: {warning}" for warning in done.warnings)],
        "`/undo` takes it back.",
    )
    return CommandResult(text, _figures(done, before) | {"messages_after": after})


async def undo(here: Here, _argument: str) -> CommandResult:
    session = await here.conversation.undo()
    count, tokens = len(here.conversation.messages), here.conversation.tokens
    text = f"The last compaction was taken back: {counted(count, 'message')}, about {tokens:,} tokens in view again."
    return CommandResult(text, {"session": session.id, "messages": count, "tokens": tokens})


def _previewed(made: Compaction, messages: Sequence[Message]) -> CommandResult:
    made = replace(made, tokens_after=min(made.tokens_after, made.tokens_before))  # else it would not be done
    figures = _figures(made, len(messages))
    if not made.covered and not made.phases:
        return CommandResult(f"Nothing would be changed: {made.reason}.", figures)
    sizes = f"{made.tokens_before:,} tokens to at most {made.tokens_after:,}"
    covered = f"of {counted(len(messages), 'message')} {len(made.covered):,} would be summarised"
    phases = [f"{item.name}: {item.before:,} → {item.after:,} tokens. {item.note}".rstrip() for item in made.phases]
    going = [messages[index] for index in made.covered]
    text = paragraphs(
        f"A compaction would take {sizes}: {covered}. Nothing was changed.",
        [*phases, *made.steps],
        "Out of view:" if going else "",
        [_line(message) for message in going[:SHOWN]],
        f"… and {len(going) - SHOWN:,} more" if len(going) > SHOWN else "",
    )
    return CommandResult(text, figures)


def _line(message: Message) -> str:
    return f"{message['role']}: {one_line(redact(searchable_text(message)[:4_000]), 90)}"


def _checked(done: Compaction) -> str:
    checked = done.verification
    if not checked.facts and not checked.checked:
        return "had nothing to be checked against"
    return (
        f"checked: {checked.present + checked.added:,} of {checked.facts:,} top facts in it, {checked.added:,} added; "
        f"{checked.unverified:,} of {checked.checked:,} names unverified"
    )


def _figures(made: Compaction, before: int) -> dict[str, Any]:
    return {
        "changed": made.changed, "reason": made.reason, "messages_before": before, "covered": len(made.covered),
        "tokens_before": made.tokens_before, "tokens_after": made.tokens_after, "author": made.author,
        "verification": asdict(made.verification), "steps": list(made.steps), "warnings": list(made.warnings),
    }  # fmt: skip
