"""`/compress`, `/undo` and `/context`: the history and its window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from everthread.agent.commands.dispatch import CommandResult, CommandScope, command, join_paragraphs
from everthread.compaction.compaction_result import Compaction
from everthread.compaction.journal.journal import describe_author
from everthread.conversation.conversation import Conversation
from everthread.core.field_values import pick_fields
from everthread.core.messages import Message, calls_of, results_of
from everthread.core.secrets.redaction import redact
from everthread.core.summary_marks import is_summary
from everthread.core.text import count_noun, excerpt
from everthread.core.tokens import TokenCounter
from everthread.errors import NothingToUndoError
from everthread.store.search.text_chunks import searchable_text

PREVIEW_OPTION = "--preview"
MAX_PREVIEW_LINES = 8


@command(
    "/compress [--preview] [FOCUS]",
    "compact the history now, or only preview it",
    changes_context=True,
)
async def run_compress(scope: CommandScope, argument: str) -> CommandResult:
    words = argument.split()
    focus = " ".join(word for word in words if word != PREVIEW_OPTION) or None
    messages_before = len(scope.conversation.messages)
    if PREVIEW_OPTION in words:
        return describe_preview(
            await scope.conversation.preview(focus), scope.conversation.messages
        )
    compaction = await scope.conversation.compress(focus)
    if not compaction.changed:
        return CommandResult(
            f"Nothing was changed: {compaction.reason}.",
            _make_compaction_figures(compaction, messages_before),
        )
    messages_after = len(scope.conversation.messages)
    sizes = (
        f"{count_noun(messages_before, 'message')} → {messages_after:,}, "
        f"{compaction.tokens_before:,} → {compaction.tokens_after:,}"
    )
    text = join_paragraphs(
        f"Compacted: {sizes} tokens; summary by {describe_author(compaction.author)}. `/why` has the details, `/undo` "
        "takes it back.",
        [f"Warning: {warning}" for warning in compaction.warnings],
    )
    return CommandResult(
        text,
        _make_compaction_figures(compaction, messages_before) | {"messages_after": messages_after},
    )


def describe_preview(
    compaction: Compaction,
    messages: Sequence[Message],
    *,
    advice: str = "`/compress` does it.",
) -> CommandResult:
    """Describe the preview of a compaction."""
    tokens_after = min(compaction.tokens_after, compaction.tokens_before)
    figures = _make_compaction_figures(compaction, len(messages)) | {"tokens_after": tokens_after}
    if not compaction.covered and not compaction.phases:
        return CommandResult(f"Nothing would be changed: {compaction.reason}.", figures)
    covered_indexes = compaction.covered
    total = count_noun(len(messages), "message")
    removed_lines = [
        f"{messages[index]['role']}: {excerpt(redact(searchable_text(messages[index])[:4_000]), 90)}"
        for index in covered_indexes[:MAX_PREVIEW_LINES]
    ]
    more_count = len(covered_indexes) - len(removed_lines)
    stay_phrase = "It stays" if len(covered_indexes) == 1 else "They stay"
    effects = [
        f"{len(covered_indexes):,} of {total} would be replaced by a summary. {stay_phrase} stored and searchable.",
        f"The other {len(messages) - len(covered_indexes):,} stay; long tool results among them are shortened.",
        "What you wrote stays word for word as far as there is room.",
    ]
    blocks = [
        f"Now {compaction.tokens_before:,} tokens; after a compaction at most {tokens_after:,}.",
        effects,
        *(["Would be replaced:", removed_lines] if removed_lines else []),
        f"… and {more_count:,} more" if more_count else "",
        f"Nothing was changed. {advice}",
    ]
    text = join_paragraphs(*blocks)
    return CommandResult(text, figures)


def _make_compaction_figures(compaction: Compaction, messages_before: int) -> dict[str, Any]:
    names = ("changed", "reason", "tokens_before", "tokens_after", "author")
    return pick_fields(compaction, names) | {
        "messages_before": messages_before,
        "covered": len(compaction.covered),
        "verification": asdict(compaction.verification),
        "steps": list(compaction.steps),
        "warnings": list(compaction.warnings),
    }


@command("/undo", "undo the last compaction", changes_context=True)
async def run_undo(scope: CommandScope, _argument: str) -> CommandResult:
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
    return CommandResult(text, {"session": session.id, "messages": count, "tokens": tokens})


CONTEXT_KINDS = (
    "system prompt",
    "tools",
    "summary",
    "user",
    "assistant",
    "tool calls",
    "tool results",
)


@command("/context", "what fills the window, by kind")
async def run_context(scope: CommandScope, _argument: str) -> CommandResult:
    conversation = scope.conversation
    window = conversation.window
    threshold = conversation.threshold
    sizes = count_by_kind(conversation)
    used_tokens = sum(sizes.values())
    data = {
        "window": window,
        "threshold": threshold,
        "latest": conversation.max_delayed_tokens,
        "tokens": used_tokens,
        "kinds": sizes,
    }
    text = "\n".join(
        [
            f"{used_tokens:,} of {window:,} tokens ({used_tokens / window:.0%}); {describe_threshold(data)}.",
            _draw_bar(used_tokens / window, threshold / window),
            *list_context(sizes, window),
        ]
    )
    return CommandResult(text, data)


def describe_threshold(data: Mapping[str, Any]) -> str:
    """Describe when compaction starts, and how long a due one may wait."""
    text = f"compaction starts at {data['threshold']:,} tokens"
    is_due = data["tokens"] >= data["threshold"]
    if is_due and data["latest"] > data["threshold"]:
        return f"{text}, or up to {data['latest']:,} if waiting is cheaper"
    return text


BAR_CELLS = 50


def _draw_bar(used: float, threshold: float) -> str:
    """Return a text bar of used and free space, with a mark where compaction starts."""
    filled_cells = min(BAR_CELLS, round(used * BAR_CELLS))
    cells = ["█"] * filled_cells + ["·"] * (BAR_CELLS - filled_cells)
    cells[min(BAR_CELLS - 1, round(threshold * BAR_CELLS))] = "│"
    return "".join(cells)


def list_context(sizes: Mapping[str, int], window: int) -> list[str]:
    """Return a line, in columns, for each kind of content that is not empty, and one for the free space."""
    free = max(0, window - sum(sizes.values()))
    rows = {kind: size for kind, size in sizes.items() if size} | {"free": free}
    return [f"{kind:<14}{size:>10,}  {size / window:>6.1%}" for kind, size in rows.items()]


def count_by_kind(conversation: Conversation) -> dict[str, int]:
    """Return the tokens of the next request by kind, scaled to the conversation's own count."""
    counter = TokenCounter(conversation.route.name)
    sizes = dict.fromkeys(CONTEXT_KINDS, 0)
    sizes["system prompt"] = counter.system(conversation.session.system)
    sizes["tools"] = counter.tools(conversation.tools)
    for message in conversation.messages:
        for kind, tokens in _split_message(counter, message):
            sizes[kind] += tokens
    total = sum(sizes.values())
    scale = conversation.tokens / total if total and conversation.messages else 1.0
    return {kind: round(tokens * scale) for kind, tokens in sizes.items()}


def _split_message(counter: TokenCounter, message: Message) -> list[tuple[str, int]]:
    total = counter.message(message)
    if is_summary(message):
        return [("summary", total)]
    if results_of(message):
        return [("tool results", total)]
    if message["role"] != "assistant":
        return [("user", total)]
    call_tokens = sum(counter.text(f"{call.name} {call.arguments}") for call in calls_of(message))
    return [
        ("tool calls", min(call_tokens, total)),
        ("assistant", max(0, total - call_tokens)),
    ]
