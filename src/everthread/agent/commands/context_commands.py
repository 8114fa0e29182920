"""`/compress`, `/undo` and `/context`: the history and its window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from everthread.agent.commands.dispatch import (
    CommandResult,
    CommandScope,
    command,
    paragraphs,
)
from everthread.compaction.journal.journal import name_author
from everthread.compaction.summary import Compaction
from everthread.conversation.conversation import Conversation
from everthread.core.messages import Message, calls_of, count_noun, excerpt, results_of
from everthread.core.secrets.redaction import redact
from everthread.core.tokens import TokenCounter
from everthread.core.transcript import is_summary
from everthread.errors import NothingToUndoError
from everthread.store.index_pieces import searchable_text

PREVIEW = "--preview"
MAX_PREVIEW_LINES = 8


@command(
    "/compress [--preview] [FOCUS]",
    "compact the history now, or only preview it",
    changes=True,
)
async def compress(scope: CommandScope, argument: str) -> CommandResult:
    words = argument.split()
    focus = " ".join(word for word in words if word != PREVIEW) or None
    before = len(scope.conversation.messages)
    if PREVIEW in words:
        return describe_preview(
            await scope.conversation.preview(focus), scope.conversation.messages
        )
    compaction = await scope.conversation.compress(focus)
    if not compaction.changed:
        return CommandResult(
            f"Nothing was changed: {compaction.reason}.",
            _compaction_figures(compaction, before),
        )
    after = len(scope.conversation.messages)
    sizes = f"{count_noun(before, 'message')} → {after:,}, {compaction.tokens_before:,} → {compaction.tokens_after:,}"
    text = paragraphs(
        f"Compacted: {sizes} tokens; summary by {name_author(compaction.author)}. `/why` has the details, `/undo` "
        "takes it back.",
        [f"Warning: {warning}" for warning in compaction.warnings],
    )
    return CommandResult(
        text, _compaction_figures(compaction, before) | {"messages_after": after}
    )


def describe_preview(
    compaction: Compaction,
    messages: Sequence[Message],
    *,
    advice: str = "`/compress` does it.",
) -> CommandResult:
    """Return a preview in words; a compaction that saves nothing is not made."""
    after = min(compaction.tokens_after, compaction.tokens_before)
    figures = _compaction_figures(compaction, len(messages)) | {"tokens_after": after}
    if not compaction.covered and not compaction.phases:
        return CommandResult(f"Nothing would be changed: {compaction.reason}.", figures)
    covered = compaction.covered
    total = count_noun(len(messages), "message")
    removed = [
        f"{messages[index]['role']}: {excerpt(redact(searchable_text(messages[index])[:4_000]), 90)}"
        for index in covered[:MAX_PREVIEW_LINES]
    ]
    more = len(covered) - len(removed)
    stays = "It stays" if len(covered) == 1 else "They stay"
    effects = [
        f"{len(covered):,} of {total} would be replaced by a summary. {stays} stored and searchable.",
        f"The other {len(messages) - len(covered):,} stay; long tool results among them are shortened.",
        "What you wrote stays word for word as far as there is room.",
    ]
    blocks = [
        f"Now {compaction.tokens_before:,} tokens; after a compaction at most {after:,}.",
        effects,
        *(["Would be replaced:", removed] if removed else []),
        f"… and {more:,} more" if more else "",
        f"Nothing was changed. {advice}",
    ]
    text = paragraphs(*blocks)
    return CommandResult(text, figures)


def _compaction_figures(compaction: Compaction, before: int) -> dict[str, Any]:
    names = ("changed", "reason", "tokens_before", "tokens_after", "author")
    return {name: getattr(compaction, name) for name in names} | {
        "messages_before": before,
        "covered": len(compaction.covered),
        "verification": asdict(compaction.verification),
        "steps": list(compaction.steps),
        "warnings": list(compaction.warnings),
    }


@command("/undo", "undo the last compaction", changes=True)
async def undo(scope: CommandScope, _argument: str) -> CommandResult:
    try:
        session = await scope.conversation.undo()
    except NothingToUndoError:
        return CommandResult(
            "There is nothing to undo: this conversation has not been compacted.",
            {"undone": False},
        )
    count = len(scope.conversation.messages)
    tokens = scope.conversation.tokens
    prompt = f"{count_noun(count, 'message')}, about {tokens:,} tokens"
    text = f"The last compaction was undone: {prompt} in the prompt again."
    if scope.conversation.is_full:
        text += " They do not fit the window: the next message compacts them again."
    elif tokens >= scope.conversation.threshold:
        text += " Automatic compaction waits until it has grown by a tenth."
    return CommandResult(
        text, {"session": session.id, "messages": count, "tokens": tokens}
    )


KINDS = (
    "system prompt",
    "tools",
    "summary",
    "user",
    "assistant",
    "tool calls",
    "tool results",
)


@command("/context", "what fills the window, by kind")
async def context(scope: CommandScope, _argument: str) -> CommandResult:
    conversation = scope.conversation
    window = conversation.window
    threshold = conversation.threshold
    sizes = count_by_kind(conversation)
    used = sum(sizes.values())
    data = {
        "window": window,
        "threshold": threshold,
        "latest": conversation.latest_compaction,
        "tokens": used,
        "kinds": sizes,
    }
    text = "\n".join(
        [
            f"{used:,} of {window:,} tokens ({used / window:.0%}); {describe_threshold(data)}.",
            _draw_bar(used / window, threshold / window),
            *list_context(sizes, window),
        ]
    )
    return CommandResult(text, data)


def describe_threshold(data: Mapping[str, Any]) -> str:
    """Say when compaction starts, and how long one that is due may wait."""
    text = f"compaction starts at {data['threshold']:,} tokens"
    is_due = data["tokens"] >= data["threshold"]
    if is_due and data["latest"] > data["threshold"]:
        return f"{text}, or up to {data['latest']:,} if waiting is cheaper"
    return text


BAR_CELLS = 50


def _draw_bar(used: float, threshold: float) -> str:
    """Draw a bar as text: filled, free, and where compaction starts."""
    filled = min(BAR_CELLS, round(used * BAR_CELLS))
    cells = ["█"] * filled + ["·"] * (BAR_CELLS - filled)
    cells[min(BAR_CELLS - 1, round(threshold * BAR_CELLS))] = "│"
    return "".join(cells)


def list_context(sizes: Mapping[str, int], window: int) -> list[str]:
    """Return a line for each kind that is not empty and one for the free space, in columns."""
    free = max(0, window - sum(sizes.values()))
    shown = {kind: size for kind, size in sizes.items() if size} | {"free": free}
    return [
        f"{kind:<14}{size:>10,}  {size / window:>6.1%}" for kind, size in shown.items()
    ]


def count_by_kind(conversation: Conversation) -> dict[str, int]:
    """Return the tokens of the next request by kind, scaled to the conversation's own count."""
    counter = TokenCounter(conversation.route.name)
    sizes = dict.fromkeys(KINDS, 0)
    sizes["system prompt"] = counter.system(conversation.session.system)
    sizes["tools"] = counter.tools(conversation.tools)
    for message in conversation.messages:
        for kind, tokens in _split_message(counter, message):
            sizes[kind] += tokens
    measured = sum(sizes.values())
    scale = (
        conversation.tokens / measured if measured and conversation.messages else 1.0
    )
    return {kind: round(tokens * scale) for kind, tokens in sizes.items()}


def _split_message(counter: TokenCounter, message: Message) -> list[tuple[str, int]]:
    total = counter.message(message)
    if is_summary(message):
        return [("summary", total)]
    if results_of(message):
        return [("tool results", total)]
    if message["role"] != "assistant":
        return [("user", total)]
    in_calls = sum(
        counter.text(f"{call.name} {call.arguments}") for call in calls_of(message)
    )
    return [
        ("tool calls", min(in_calls, total)),
        ("assistant", max(0, total - in_calls)),
    ]
