"""The status line of a running session, with its context size, threshold, cache and dollars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from everthread import TokenCounter, estimate_request_tokens
from everthread.config import Config
from everthread.core.costs.canonical_usage import CanonicalUsage, normalize_usage
from everthread.core.costs.prices import compute_cost, format_dollars, prices_for
from everthread.factory.conversations import make_session_options
from everthread.lab.client_window import find_client_window
from everthread.lab.importers.log import Log, LoggedMessage
from everthread.lab.importers.log_fields import count_in, object_in, text_in


@dataclass(frozen=True, slots=True)
class ContextStatus:
    """The context of a session after its last call."""

    tokens: int
    window: int
    threshold: int
    """Number of tokens from which on Everthread compacts."""
    cached: float | None = None
    """Share of the last prompt that came from the cache, or None if unknown."""
    dollars: float | None = None
    compactions: int = 0
    """Number of compactions that the client made itself."""

    def as_line(self) -> str:
        parts = [f"context {self.tokens:,} of {self.window:,} ({self.tokens / self.window:.0%})"]
        parts.append(f"compaction from {self.threshold:,}")
        if self.cached is not None:
            parts.append(f"cache {self.cached:.0%}")
        if self.dollars is not None:
            parts.append(format_dollars(self.dollars))
        if self.compactions:
            parts.append(f"compacted {self.compactions}×")
        return " · ".join(parts)


def read_log_status(log: Log, config: Config) -> ContextStatus:
    """Return the status at the end of a log."""
    model = log.model
    largest_prompt = 0
    last_usage: CanonicalUsage | None = None
    for entry in log.entries:
        if entry.usage is not None and entry.usage.prompt_tokens:
            model = entry.model or model
            largest_prompt = max(largest_prompt, entry.usage.prompt_tokens)
            last_usage = entry.usage
    window = log.window or find_client_window(log.kind, model, largest_prompt=largest_prompt)
    threshold = _find_threshold(config, model, window)
    compaction_count = len(log.compactions)
    if last_usage is None:
        return ContextStatus(
            _estimate_context(log), window, threshold=threshold, compactions=compaction_count
        )
    return ContextStatus(
        last_usage.prompt_tokens + last_usage.output_tokens,
        window,
        threshold=threshold,
        cached=last_usage.cache_read_tokens / last_usage.prompt_tokens,
        dollars=_sum_dollars(log, model),
        compactions=compaction_count,
    )


def _sum_dollars(log: Log, default_model: str) -> float | None:
    """Return the dollars of all calls with a usage, or None if any of them has no price."""
    amounts = []
    for entry in log.entries:
        if entry.usage is None or not entry.usage.prompt_tokens:
            continue
        dollars = entry.cost
        if dollars is None:
            model = entry.model or default_model
            usage = _correct_output_tokens(entry.usage, entry, model)
            dollars = _compute_dollars(model, usage, entry.timestamp)
        if dollars is None:
            return None
        amounts.append(dollars)
    return sum(amounts)


def read_client_status(client_input: Mapping[str, Any], config: Config) -> ContextStatus | None:
    """Return the status that Claude Code sends to its status line, or None if it has no context size."""
    context = object_in(client_input, "context_window")
    figures = object_in(context, "current_usage")
    usage = normalize_usage(dict(figures)) if figures else None
    if usage is None or not usage.prompt_tokens:
        return None
    model = text_in(object_in(client_input, "model"), "id")
    window = count_in(context, "context_window_size") or find_client_window(
        "claude-code", model, largest_prompt=usage.prompt_tokens
    )
    total_cost = object_in(client_input, "cost").get("total_cost_usd")
    return ContextStatus(
        usage.prompt_tokens + usage.output_tokens,
        window,
        threshold=_find_threshold(config, model, window),
        cached=usage.cache_read_tokens / usage.prompt_tokens,
        dollars=float(total_cost) if isinstance(total_cost, int | float) else None,
    )


def _correct_output_tokens(
    usage: CanonicalUsage, entry: LoggedMessage, model: str
) -> CanonicalUsage:
    """Return the usage with the tokens of the whole answer. A log may state only the tokens of its beginning."""
    counter = TokenCounter(model)
    counted_tokens = counter.message(entry.message)
    counted_tokens += counter.text(entry.message.get("reasoning_content") or "")
    return replace(usage, output_tokens=max(usage.output_tokens, counted_tokens))


def _estimate_context(log: Log) -> int:
    """Return the estimated tokens of the messages since the last compaction, for a log without usage."""
    first_entry = log.compactions[-1].next_entry_index if log.compactions else 0
    messages = [entry.message for entry in log.entries[first_entry:]]
    return estimate_request_tokens(
        messages, system=log.system, tools=log.tools, model=log.model or None
    )


def _find_threshold(config: Config, model: str, window: int) -> int:
    return make_session_options(config).for_model(model).budget(window).threshold


def _compute_dollars(model: str, usage: CanonicalUsage, timestamp: float | None) -> float | None:
    moment = datetime.now(UTC) if timestamp is None else datetime.fromtimestamp(timestamp, UTC)
    prices = prices_for(model, time=moment, prompt_tokens=usage.prompt_tokens)
    return None if prices is None else float(compute_cost(usage, prices) or 0)
