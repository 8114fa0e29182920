"""The memory kept of requests is bounded in bytes: clients decide how large requests are."""

from __future__ import annotations

import json
import tracemalloc

from everthread.gateway.identify import find_scope
from everthread.gateway.request.body_cache import BodyOrigin
from everthread.gateway.request.byte_cache import ByteCache
from everthread.gateway.request.request_reader import RequestReader
from everthread.thread.caller.message_caches import SizeCache


def test_a_cache_keeps_the_last_used_values_within_its_bytes() -> None:
    cache: ByteCache[int, str] = ByteCache(100)
    for number in range(10):
        cache.keep(number, f"value {number}", 20)
        cache.find(0)
    assert [number for number in range(10) if cache.find(number) is not None] == [
        0,
        6,
        7,
        8,
        9,
    ]
    assert cache.size == 100
    assert cache.keep(11, "large", 26) == [11]
    assert cache.find(11) is None
    assert cache.keep(9, "again", 10) == []
    assert cache.find(9) == "again"
    assert len(cache) == 5
    assert cache.size == 90


def test_requests_with_ever_new_tools_use_little_memory() -> None:
    """Two megabytes of new tools in each request do not accumulate."""
    reader = RequestReader(SizeCache())
    origin = BodyOrigin("anthropic")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(16):
            tools = [
                {
                    "name": f"t{number}_{index}",
                    "description": "x" * 1_900,
                    "input_schema": {"n": number},
                }
                for index in range(1_000)
            ]
            body = {
                "model": "claude-sonnet-5",
                "messages": [{"role": "user", "content": "Hi"}],
                "tools": tools,
            }
            located_body = reader.locate(origin, json.dumps(body).encode(), None)
            reader.remember(f"{number}", located_body, reader.read_now(located_body))
        kept_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept_bytes < 160 * 1024 * 1024


def test_a_long_session_name_is_kept_by_its_digest() -> None:
    """Session names of a megabyte do not stay in memory."""
    scopes = [find_scope({}, {"prompt_cache_key": "x" * 1_000_000 + end}) for end in "ab"]
    scopes.append(find_scope({"x-everthread-session": "x" * 60_000}))
    assert len(set(scopes)) == 3
    assert max(map(len, scopes)) < 120
    assert find_scope({"session_id": "short"}) == "session_id:short"
