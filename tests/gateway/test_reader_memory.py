"""What is kept of requests is bounded by bytes: a client decides how large they are."""

from __future__ import annotations

import json
import tracemalloc

from everthread.gateway.management.reader import ByteCache, RequestReader, Sizes


def test_the_values_used_last_fit_into_so_many_bytes() -> None:
    cache: ByteCache[int, str] = ByteCache(100)
    for number in range(10):
        cache.keep(number, f"value {number}", 20)
        cache.find(0)
    assert [number for number in range(10) if cache.find(number) is not None] == [0, 6, 7, 8, 9]
    assert cache.size == 100
    assert cache.keep(11, "large", 26) == ["large"]
    assert cache.find(11) is None
    assert cache.keep(9, "again", 10)[0] == "value 9"
    assert (cache.find(9), len(cache), cache.size) == ("again", 5, 90)


def test_many_requests_with_other_tools_keep_little() -> None:
    """The attack: each request has two megabytes of tools that were never seen before."""
    reader = RequestReader(Sizes())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(16):
            tools = [
                {"name": f"t{number}_{index}", "description": "x" * 1_900, "input_schema": {"n": number}}
                for index in range(1_000)
            ]
            body = {"model": "claude-sonnet-5", "messages": [{"role": "user", "content": "Hi"}], "tools": tools}
            reader.read("anthropic", json.dumps(body).encode())
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept < 160 * 1024 * 1024
