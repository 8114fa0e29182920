"""The texts that a chat prints at its start and at its end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.text import Text

from everthread.cli.formats import format_cost, format_share, shorten_id
from everthread.cli.output import escape_controls
from everthread.cli.start_options import StartOptions
from everthread.cli.summary_writer import describe_own_writer
from everthread.conversation.conversation import Conversation
from everthread.core.caching.cache_lifetimes import CACHE_SECONDS
from everthread.core.caching.claude_cache_marks import make_caching_notice
from everthread.core.costs.prices import prices_for
from everthread.core.messages import Message, text_of
from everthread.core.secrets.redaction import redact
from everthread.core.text import count_noun, excerpt
from everthread.core.turns import user_text
from everthread.factory.model_setup import check_choice
from everthread.gateway.dashboard.headlines import describe_difference
from everthread.gateway.dashboard.savings import CostComparison, PriceTable, compare_thread
from everthread.store.store import Store
from everthread.store.usage_records import sum_calls
from everthread.thread.lookup.thread_usage import load_thread_usage
from everthread.thread.used_window import describe_window


def render_last_exchange(messages: Sequence[Message]) -> Text | None:
    """Render the last question of the user and the last answer of the model, in a few lines."""
    question = ""
    answer = ""
    for message in reversed(messages):
        question = question or user_text(message).strip()
        if message["role"] == "assistant":
            answer = answer or text_of(message).strip()
        if question and answer:
            break
    if not question and not answer:
        return None
    exchange = Text(f"› {excerpt(redact(question), 300)}\n" if question else "", "bold")
    return exchange.append(excerpt(redact(answer), 600), "not bold")


def render_greeting(
    conversation: Conversation, start_options: StartOptions, *, is_resumed: bool
) -> Text:
    """Render the model, its window, the workspace, prompt caching and the thread."""
    config = start_options.config
    route = conversation.route
    lines = [f"Everthread · {escape_controls(route.name)} · {_describe_window(conversation)}"]
    caching_notice = make_caching_notice(
        route.name, route.provider, route.base_url, ttl=config.prompt_caching.cache_ttl
    )
    if caching_notice:
        lines.append(caching_notice)
    is_priced = prices_for(route.name, time=datetime.now(UTC)) is not None
    if not is_priced and route.provider != "local":
        lines.append(f"no price is known for {escape_controls(route.name)}: cost is not shown")
    choice, _ = check_choice(config.model)
    if (
        not is_resumed
        and config.model.default is None
        and choice
        and choice.model == route.name
        and choice.reason
    ):
        lines.append(
            f"{escape_controls(route.name)}: {choice.reason}; `everthread init` changes it"
        )
    lines.append(f"summaries by {escape_controls(describe_own_writer(config, route.name))}")
    thread_text = f"thread {shorten_id(conversation.id)}"
    count_text = count_noun(len(conversation.messages), "message")
    if is_resumed:
        lines.append(f"continuing {thread_text}: {count_text} in context")
    else:
        lines.append(f"{thread_text} · {escape_controls(str(start_options.workspace))}")
    lines.append("/help · Alt-Enter: new line · Ctrl-C: stop · Ctrl-D: end")
    return Text("\n".join(lines), "dim")


def _describe_window(conversation: Conversation) -> str:
    """Return the size of the window, with its source if it was only assumed."""
    window_text = describe_window(conversation.window, conversation.route)
    if "assumed" in window_text:
        return f"window {escape_controls(window_text)}"
    return f"window {conversation.window:,} tokens"


async def render_farewell(
    store: Store, thread_id: str, *, window: int, resume_options: str
) -> Text | None:
    """Render the summary at exit; None for an empty thread. A resumed chat needs the `resume_options`."""
    row = await store.overview.load_thread_row(thread_id)
    if not row.message_count:
        return None
    calls = (await load_thread_usage(store, thread_id))["all"]
    usage = sum_calls("all", calls)
    comparison = compare_thread(
        await store.usage.list_usage(thread_id),
        await store.list_compactions(thread_id),
        find_prices=PriceTable(),
        find_window=lambda _model: window,
        ttl=CACHE_SECONDS["5m"],
    )
    beyond_text = (
        f", {comparison.outgrown_count:,} beyond the window" if comparison.outgrown_count else ""
    )
    compactions_text = (
        f", {count_noun(row.compaction_count, 'compaction')}" if row.compaction_count else ""
    )
    messages_text = f"{count_noun(row.message_count, 'message')} kept and searchable"
    lines = [f"{count_noun(usage.calls, 'call')}{beyond_text}{compactions_text}; {messages_text}."]
    if usage.calls:
        cached_text = format_share(usage.cache_read, usage.prompt) if usage.prompt else "0 %"
        cost_text = f"Cost {format_cost(usage)}: " if usage.cost else ""
        lines.append(
            f"{cost_text}{usage.prompt:,} tokens read ({cached_text} from the cache), {usage.output:,} "
            f"written{_describe_saving(comparison)}."
        )
    return Text.assemble(
        ("\n".join(lines), "dim"),
        ("\nContinue with: ", "dim"),
        (f"everthread chat --resume {shorten_id(thread_id)}{resume_options}", "bold"),
    )


def _describe_saving(comparison: CostComparison) -> str:
    figure = describe_difference(comparison)
    return f"; {figure.value} {figure.label} {figure.detail}" if figure else ""
