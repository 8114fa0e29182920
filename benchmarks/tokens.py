"""Compare token counts with the providers' reports, and measure the cost of counting.

Not held out: the providers' overheads were measured on these conversations and requests, and the texts and the
standard library took part in choosing the estimator's weights. Expect somewhat more on other material.

The logs of real sessions are in two halves by their names. The compared figure is the sum
of the tokens that calls added to the prompt, by the provider's count and by ours of the messages in between, without
calibration. Two parts of
such prompts are not in the logs: secrets, which the program that recorded them replaced by a word (a link with a token
of 1,500 tokens, say), so these calls are left out; and encrypted reasoning, which OpenAI's models get back until the
turn ends, so the size that the provider reported is added.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.shared import find_shared, half_of
from benchmarks.table import Row, format_section, make_absent_row
from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter, estimate_request_tokens
from everthread.core.tokens.calibration import Calibration
from everthread.lab.importers.log import Log, LoggedMessage
from everthread.lab.importers.read_logs import read_log

TEXTS: dict[str, list[str]] = json.loads(
    (Path(__file__).parents[1] / "tests/core/tokens/texts.json").read_text("utf-8")
)
LONG_SESSION = "coding-long-claude.json"
CLAUDE = "claude-sonnet-4-5"
GPT = "gpt-4.1"
Counter = Callable[[dict[str, Any]], float]


def run() -> list[Row]:
    return [
        *_measure_projections(),
        *_measure_logs(),
        *_measure_requests(),
        *_measure_speed(),
    ]


MAX_ADDED_TOKENS = 50_000
"""More tokens than this between two calls are a change of the context, not a message."""


def _measure_logs() -> Iterator[Row]:
    folder = find_shared("logs")
    if folder is None:
        yield make_absent_row("counts of the logs of real sessions")
        return
    sums: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for path in sorted(folder.glob("*.gz")):
        log = read_log(str(path))
        half = half_of(path.name)
        for model, added_tokens, estimate in _list_added_tokens(log):
            sums.setdefault((half, model), []).append((added_tokens, estimate))
    for (half, model), pairs in sorted(sums.items()):
        reported_tokens = sum(pair[0] for pair in pairs)
        counted_tokens = sum(pair[1] for pair in pairs)
        yield Row(
            f"logs, {half}: {model}, {len(pairs)} calls, sum of deltas",
            f"{counted_tokens / reported_tokens - 1:+.1%}",
        )


def _list_added_tokens(log: Log) -> Iterator[tuple[str, int, int]]:
    """Yield the model, the tokens that the provider counted, and those counted here."""
    last_answer: LoggedMessage | None = None
    messages_since: list[Message] = []
    for entry in log.entries:
        usage = entry.usage
        if usage is None or not usage.prompt_tokens:
            messages_since.append(entry.message)
            continue
        if (
            last_answer is not None
            and last_answer.usage is not None
            and last_answer.model == entry.model
        ):
            added_tokens = usage.prompt_tokens - last_answer.usage.prompt_tokens
            messages = [last_answer.message, *messages_since]
            if 0 < added_tokens < MAX_ADDED_TOKENS and not _is_redacted(messages):
                counted_tokens = TokenCounter(entry.model).messages(messages)
                yield (
                    entry.model,
                    added_tokens,
                    counted_tokens + _count_hidden_reasoning(last_answer, messages_since),
                )
        last_answer = entry
        messages_since = []


def _is_redacted(messages: Sequence[Message]) -> bool:
    return "REDACTED" in json.dumps(messages, default=str)


def _count_hidden_reasoning(answer: LoggedMessage, messages_since: Sequence[Message]) -> int:
    """Return the tokens of the answer's encrypted reasoning that the next prompt of its turn holds."""
    is_mid_turn = all(message["role"] == "tool" for message in messages_since)
    if answer.usage is None or "claude" in answer.model or not is_mid_turn:
        return 0
    return answer.usage.reasoning_tokens


def _measure_projections() -> Iterator[Row]:
    path = find_shared("transcripts", LONG_SESSION)
    if path is None:
        yield make_absent_row("projections against reported prompt tokens")
        return
    calls, delta = _replay(path, CLAUDE, TokenCounter(CLAUDE).message)
    rough_calls, rough_delta = _replay(path, CLAUDE, _count_chars_by_four)
    yield _make_error_row(
        "long session, calibrated, mean error per call",
        calls,
        2,
        f"characters / 4: {rough_calls:.2%}",
    )
    yield _make_error_row(
        "long session, uncalibrated, sum of deltas",
        abs(delta),
        5,
        f"characters / 4: {rough_delta:+.1%}",
    )
    for name, model, goal in (
        ("support-gpt41-*", GPT, 3),
        ("support-claude45-*", CLAUDE, None),
    ):
        paths = sorted(path.parent.glob(name))
        counter = TokenCounter(model)
        means, deltas = zip(*(_replay(each, model, counter.message) for each in paths), strict=True)
        rough_error = fmean(_replay(each, model, _count_chars_by_four)[0] for each in paths)
        yield _make_error_row(
            f"{name}, mean error per call",
            fmean(means),
            goal,
            f"characters / 4: {rough_error:.2%}",
        )
        yield _make_error_row(
            f"{name}, uncalibrated, sum of deltas, worst", max(map(abs, deltas)), goal
        )


def _replay(path: Path, model: str, count: Counter) -> tuple[float, float]:
    """Return the mean error of the projections, and the error of the summed deltas without calibration."""
    data = json.loads(path.read_text("utf-8"))
    calibration = Calibration()
    errors: list[float] = []
    points: list[tuple[int, float]] = []
    estimate = 0.0
    message_count = 0
    for call in data["usage"]:
        reported = call.get("prompt") or call["input"] + call["cache_read"] + call["cache_write"]
        estimate += sum(map(count, data["messages"][message_count : call["before_message"]]))
        message_count = call["before_message"]
        if points:
            errors.append(abs(calibration.project(model, estimate) - reported) / reported)
        calibration.observe(model, reported, estimate)
        points.append((reported, estimate))
    (first_reported, first_estimate), (last_reported, last_estimate) = (
        points[0],
        points[-1],
    )
    return fmean(errors), (last_estimate - first_estimate) / (last_reported - first_reported) - 1


def _count_chars_by_four(message: dict[str, Any]) -> float:
    calls = message.get("tool_calls") or []
    call_chars = sum(
        len(call["function"]["name"]) + len(call["function"]["arguments"]) for call in calls
    )
    return (len(message.get("content") or "") + call_chars) / 4


def _measure_requests() -> Iterator[Row]:
    folder = find_shared("requests")
    truth = find_shared("token-truth")
    if folder is None or truth is None:
        yield make_absent_row("whole requests against reported prompt tokens")
        return
    for family in ("claude", "deepseek"):
        errors = []
        for path in sorted(folder.glob(f"*{family}*")):
            data = json.loads(path.read_text("utf-8"))
            model = path.name.rsplit("-", 1)[0].replace("__", "/")
            estimate = estimate_request_tokens(data["messages"], tools=data["tools"], model=model)
            errors.append(abs(estimate / data["response"]["usage"]["prompt_tokens"] - 1))
        yield _make_error_row(
            f"whole requests, {family}, mean error",
            fmean(errors),
            None,
            f"worst {max(errors):.2%}",
        )
    counter = TokenCounter("claude-3-7-sonnet")
    errors = []
    for path in sorted(truth.glob("*.json")):
        data = json.loads(path.read_text("utf-8"))
        # The others lack their beginning.
        if data["messages"][0].get("role") == "system":
            for call in data["usage"]:
                errors.append(
                    abs(
                        counter.request(data["messages"][: call["before_message"]]) / call["prompt"]
                        - 1
                    )
                )
    yield _make_error_row(
        "whole prompts, Claude 3.7, mean error",
        fmean(errors),
        None,
        f"worst {max(errors):.2%}",
    )


def _measure_speed() -> Iterator[Row]:
    history = [
        {
            "role": ("user", "assistant")[n % 2],
            "content": f"{n}: " + "\n".join(TEXTS["code" if n % 3 else "Chinese"]),
        }
        for n in range(500)
    ]
    history = [{**message, "content": (message["content"] * 3)[:2_000]} for message in history]
    size = sum(len(message["content"]) for message in history) / 1e6
    first_seconds = min(_time(partial(TokenCounter(GPT).messages, history)) for _ in range(5))
    counter = TokenCounter(GPT)
    counter.messages(history)
    repeated_seconds = min(_time(partial(counter.messages, history)) for _ in range(20))
    ratio = first_seconds / repeated_seconds
    yield Row(
        f"500 messages, {size:.1f} MB, counted again",
        f"{ratio:,.0f} × faster",
        "≥ 50 ×",
        ratio >= 50,
    )
    short_counter = _counter_after(50)
    long_counter = _counter_after(5_000)
    pairs = [
        (
            _time(partial(short_counter.message, _make_message(n))),
            _time(partial(long_counter.message, _make_message(n + 500))),
        )
        for n in range(500)
    ]
    ratio = min(late_seconds for _, late_seconds in pairs) / min(
        early_seconds for early_seconds, _ in pairs
    )
    yield Row(
        "one more message, at 5,000 against at 50",
        f"{ratio:.2f} × the time",
        "≤ 1.5 ×",
        ratio <= 1.5,
    )


def _counter_after(length: int) -> TokenCounter:
    counter = TokenCounter(GPT)
    counter.messages({"role": "user", "content": f"message {n}"} for n in range(length))
    return counter


def _make_message(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"{number} {TEXTS['English'][0]}"}


def _time(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _make_error_row(name: str, share: float, goal: int | None, comparison: str = "") -> Row:
    figure = f"{share:.2%}" + (f" ({comparison})" if comparison else "")
    return (
        Row(name, figure) if goal is None else Row(name, figure, f"≤ {goal} %", share <= goal / 100)
    )


if __name__ == "__main__":
    sys.stdout.write(format_section("tokens", run()))
