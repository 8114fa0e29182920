"""Why calls missed the provider's cache, as `/why` explains it."""

from __future__ import annotations

import pytest

from everthread.agent.cache_misses import CacheMissLog
from everthread.agent.commands.state_commands import describe_cache
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.types import ModelRequest
from everthread.testing import SteppedClock
from everthread.thread.events import RequestReady, UsageRecorded


def make_request(*texts: str, model: str = "m", system: str = "s") -> ModelRequest:
    return ModelRequest(model, [{"role": "user", "content": text} for text in texts], system)


def record_call(
    log: CacheMissLog, request: ModelRequest, usage: CanonicalUsage, session: str = "s"
) -> None:
    log(RequestReady(session, request))
    log(UsageRecorded(session, request.model, "main", usage, None))


def find_reason(log: CacheMissLog) -> str:
    assert log.last_miss is not None
    return log.last_miss.reason


FIRST = make_request("a", "b")
UNCACHED = CanonicalUsage(input_tokens=6_000)


@pytest.mark.parametrize(
    ("request_after", "session", "reason"),
    [
        (make_request("a", "b", system="other"), "s", "system"),
        (make_request("x", "b"), "s", "messages[0]"),
        (make_request("a", "b", model="n"), "s", "another model"),
        (FIRST, "t", "rewritten"),
        (make_request("a", "b", "c"), "s", "by itself"),
    ],
)
def test_the_reason_of_a_miss_is_inferred(
    request_after: ModelRequest, session: str, reason: str
) -> None:
    log = CacheMissLog(SteppedClock())
    record_call(log, make_request("a"), CanonicalUsage(input_tokens=5_000))
    assert log.last_miss is None, "the first call can hit nothing"
    hit = CanonicalUsage(input_tokens=1_000, cache_read_tokens=5_000)
    record_call(log, FIRST, hit)
    assert log.last_miss is None
    record_call(log, request_after, UNCACHED, session)
    assert reason in find_reason(log)


def test_an_old_prefix_has_expired() -> None:
    clock = SteppedClock()
    log = CacheMissLog(clock)
    record_call(log, FIRST, UNCACHED)
    clock.advance(301)
    record_call(log, make_request("a", "b", "c"), UNCACHED)
    assert "301 s passed" in find_reason(log)


def test_the_reason_that_the_provider_gives_is_preferred() -> None:
    log = CacheMissLog(SteppedClock())
    record_call(log, make_request("a"), CanonicalUsage(input_tokens=5_000))
    usage = CanonicalUsage(input_tokens=6_000, cache_miss="tools changed")
    record_call(log, FIRST, usage)
    assert log.last_miss is not None
    assert log.last_miss.reason == "tools changed"
    assert log.last_miss.is_from_provider
    record_call(log, make_request("x"), UNCACHED)
    assert not log.last_miss.is_from_provider


def test_calls_without_a_report_are_counted() -> None:
    log = CacheMissLog()
    log(RequestReady("s", FIRST))
    assert "1 call ended without a report" in describe_cache(log)
    record_call(log, make_request("two"), CanonicalUsage(input_tokens=10))
    description = describe_cache(log)
    assert "no miss in 1 reported call" in description
    assert "1 call ended without a report" in description
