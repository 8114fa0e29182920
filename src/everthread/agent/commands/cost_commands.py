"""`/model`, `/usage` and `/insights`: the model and its cost."""

from __future__ import annotations

import time
from dataclasses import replace

from everthread.agent.commands.dispatch import CommandResult, CommandScope, command, join_paragraphs
from everthread.core.field_values import pick_fields
from everthread.core.text import count_noun
from everthread.core.utc_days import find_period_start
from everthread.errors import InputError
from everthread.store.usage_records import UsageRow, make_usage_figures, sum_calls
from everthread.thread.lookup.thread_usage import load_thread_usage
from everthread.thread.used_window import describe_window


@command("/model [NAME]", "show or change the model", changes_context=True)
async def run_model(scope: CommandScope, argument: str) -> CommandResult:
    if argument:
        if scope.agent is None:
            raise InputError("this conversation cannot change its model")
        await scope.agent.use_model(argument)
    conversation = scope.conversation
    route = conversation.route
    window_text = describe_window(conversation.window, conversation.route)
    answer = f"{'Now answering' if argument else 'Answering'}: `{route.name}`, {window_text}."
    if argument and conversation.tokens >= conversation.threshold:
        answer += " The history is over its threshold: it will be compacted before the next call."
    data = {
        "model": route.name,
        "window": conversation.window,
        "source": route.source,
        "api": route.api,
    }
    return CommandResult(answer, data)


DEFAULT_DAYS = 30
MAX_DAYS = 3_660


@command("/usage", "tokens and cost of this conversation")
async def run_usage(scope: CommandScope, _argument: str) -> CommandResult:
    conversation = scope.conversation
    thread = scope.conversation.id
    left_out = list(conversation.toolbox.left_out)
    usage_by_part = await load_thread_usage(scope.store, thread)
    *rows, total = [
        sum_calls(key, records) for key, records in usage_by_part.items() if records or key == "all"
    ]
    sums = {row.key: make_usage_figures(row) for row in (*rows, total)}
    data = {"thread": thread, "sums": sums, "tools_left_out": left_out}
    if not total.calls:
        return CommandResult("No call to a model is recorded for this conversation yet.", data)
    lines = [_format_usage(row) for row in ([*rows, total] if len(rows) > 1 else [total])]
    next_prompt_line = (
        f"The next prompt: about {conversation.tokens:,} of {conversation.window:,} tokens."
    )
    tools = count_noun(len(conversation.toolbox.all_tools), "tool")
    left_out_line = (
        f"{len(left_out):,} of {tools} are left out: {', '.join(left_out)}." if left_out else ""
    )
    return CommandResult(join_paragraphs(lines, next_prompt_line, left_out_line), data)


@command("/insights [DAYS]", "where tokens and money went")
async def run_insights(scope: CommandScope, argument: str) -> CommandResult:
    if argument and not (argument.isdecimal() and 1 <= int(argument) <= MAX_DAYS):
        raise InputError(f"{argument!r} is not a number of days; /insights 7 shows the last week")
    days = int(argument or DEFAULT_DAYS)
    until = time.time() + 1
    since = find_period_start(until, days)
    insights = await scope.store.usage.load_insights(
        since=since, until=until, tenant=scope.conversation.session.tenant
    )
    facts = [
        count_noun(insights.threads, "conversation"),
        count_noun(insights.messages, "message"),
        count_noun(insights.compactions, "compaction"),
        f"{insights.tokens_saved:,} tokens saved by them",
    ]
    if insights.lookups:
        facts.append(f"{count_noun(insights.lookups, 'lookup')} of what had left the context")
    blocks: list[str | list[str]] = [
        f"The last {count_noun(days, 'day')}: {', '.join(facts)}.",
        [_format_usage(replace(insights.total, key="all"))],
    ]
    for name, rows in (("model", insights.by_model), ("platform", insights.by_platform)):
        if rows:
            largest_first = sorted(rows, key=lambda row: -(row.prompt + row.output))
            blocks += [f"**By {name}**", [_format_usage(row) for row in largest_first]]
    if insights.by_tool:
        tools = [
            f"{row.tool}: {count_noun(row.results, 'result')}, {row.tokens:,} tokens"
            for row in insights.by_tool
        ]
        blocks += ["**By tool**", tools]
    counts = ("threads", "messages", "compactions", "tokens_saved", "lookups")
    data = {
        "days": days,
        "total": make_usage_figures(insights.total),
        **pick_fields(insights, counts),
        "by_model": {row.key: make_usage_figures(row) for row in insights.by_model},
    }
    return CommandResult(join_paragraphs(*blocks), data)


def _format_usage(row: UsageRow) -> str:
    cache_note = "" if row.cache_share is None else f" ({row.cache_share:.0%} from the cache)"
    prompt = f"{row.prompt:,} tokens read{cache_note}, {row.output:,} written"
    return f"{row.key or '(none)'}: {count_noun(row.calls, 'call')}, {prompt}, cost {row.cost_text}"
