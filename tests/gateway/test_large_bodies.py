"""Large bodies are read off the event loop, and reading takes linear time."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from everthread.core.types import Api
from everthread.errors import WireError
from everthread.gateway.filters.charging import estimate_body_tokens
from everthread.gateway.request.body_cache import BodyMatch, BodyOrigin
from everthread.gateway.request.body_reading import (
    MAX_LOOP_BYTES,
)
from everthread.gateway.request.request_reader import (
    MIN_PROCESS_BYTES,
    LocatedBody,
    RequestReader,
    read_body,
)
from everthread.thread.caller.message_caches import SizeCache
from everthread.thread.engines.worker_processes import WorkerProcesses
from tests.apis import CHAT_PATH
from tests.cpu_limit import cpu_limit
from tests.gateway.authenticators import AnyKey, RecordingAccount
from tests.gateway.raw_http import (
    JSON,
    PassThroughManager,
    fixed_answer,
    raw_gateway,
    send_post,
)


def body_of(size: int) -> bytes:
    return json.dumps(
        {
            "model": "gpt-4o",
            "messages": [{"role": "user", "content": "x" * size}],
        }
    ).encode()


class WatchedReader(RequestReader):
    """Notes in which thread a body is looked into, and locates nothing."""

    def __init__(self) -> None:
        super().__init__(SizeCache())
        self.threads: list[int] = []

    def locate(self, origin: BodyOrigin, body: bytes, match: BodyMatch | None) -> LocatedBody:  # noqa: ARG002
        self.threads.append(threading.get_ident())
        raise WireError("nothing is located")


@pytest.mark.parametrize(
    ("body", "encoding", "is_apart"),
    [
        (body_of(1_000), b"identity", False),
        (body_of(MAX_LOOP_BYTES), b"identity", True),
        (body_of(5_000_000), b"identity", True),
        (gzip.compress(body_of(1_000_000)), b"gzip", True),
    ],
    ids=["small", "medium", "large", "compressed"],
)
async def test_reads_a_large_body_in_another_thread(
    body: bytes, encoding: bytes, *, is_apart: bool
) -> None:
    reader = WatchedReader()
    manager = PassThroughManager()
    manager.reader = reader
    async with raw_gateway(manager=manager) as (url, upstream):
        response = await send_post(
            url,
            CHAT_PATH,
            body,
            *JSON,
            (b"content-encoding", encoding),
        )
        assert response.status == 200
    assert [thread != threading.get_ident() for thread in reader.threads] == [is_apart]
    assert upstream.received[0].body == body or encoding == b"identity"


class WatchedSizes(SizeCache):
    """Notes in which thread messages are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def count_together(self, api: Api, model: str, key: Any, values: Sequence[Any]) -> int:
        self.threads.add(threading.get_ident())
        return super().count_together(api, model, key, values)


async def test_reads_new_messages_in_another_thread() -> None:
    sizes = WatchedSizes()
    reader = RequestReader(sizes)
    body = json.dumps(
        {
            "model": "gpt-4o",
            "messages": [{"role": "user", "content": "word " * 40_000}],
        }
    ).encode()
    origin = BodyOrigin("openai_chat")
    read = await reader.read(reader.locate(origin, body, None))
    assert sizes.threads
    assert threading.get_ident() not in sizes.threads
    again = await reader.read(reader.locate(origin, body, None))
    assert again.sizes == read.sizes


def long_body(turns: int) -> bytes:
    messages = [
        {"role": ("user", "assistant")[turn % 2], "content": f"{turn} " + "word " * 500}
        for turn in range(turns)
    ]
    return json.dumps({"model": "gpt-4o", "messages": messages}).encode()


async def test_reads_a_long_new_history_in_another_process() -> None:
    processes = WorkerProcesses(1)
    await processes.call(os.getpid)
    sizes = WatchedSizes()
    reader = RequestReader(sizes, call_in_process=processes.call_if_free)
    body = long_body(121)
    assert len(body) > MIN_PROCESS_BYTES
    located_body = reader.locate(BodyOrigin("openai_chat"), body, None)
    read = await reader.read(located_body)
    assert not sizes.threads
    assert read == reader.read_now(located_body)
    await processes.close(10)


async def test_reads_in_a_thread_if_no_process_is_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    processes = WorkerProcesses(1)
    sizes = WatchedSizes()
    reader = RequestReader(sizes, call_in_process=processes.call_if_free)
    located_body = reader.locate(BodyOrigin("openai_chat"), long_body(121), None)
    assert await reader.read(located_body) == reader.read_now(located_body)
    assert sizes.threads
    assert not caplog.messages


async def test_logs_a_call_that_fails_in_another_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    processes = WorkerProcesses(1)
    await processes.call(os.getpid)
    assert await processes.call_if_free(read_body, BodyOrigin("openai_chat"), b"?") is None
    assert "read_body failed in a worker process" in caplog.text
    await processes.close(10)


def test_estimating_tokens_takes_linear_time() -> None:
    """Runs that are just too short for a file are scanned in linear time."""
    with cpu_limit("estimate_body_tokens"):
        assert estimate_body_tokens((b"a" * 1_999 + b" ") * 2_000) == 1_000_000


def test_counts_a_long_file_once() -> None:
    words = b"a word " * 40_000
    one = b'{"url": "' + b"QUJD" * 250_000 + b'"}'
    assert estimate_body_tokens(words + one + words) == (2 * len(words) + 11) // 4 + 1_500
    assert estimate_body_tokens(one + one) == 22 // 4 + 3_000
    assert estimate_body_tokens(b"") == 0


@pytest.mark.parametrize("mode", ["managed", "off"])
async def test_charges_a_large_request_after_its_answer(mode: Any) -> None:
    """The provider states no usage, so that the request is counted: for a large one not on the event loop."""
    account = RecordingAccount()
    answer = {
        "id": "x",
        "model": "gpt-4o",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi"},
            }
        ],
    }
    reply = fixed_answer(200, JSON, json.dumps(answer).encode())
    body = json.dumps(
        {
            "model": "gpt-4o",
            "messages": [{"role": "user", "content": "word " * 40_000}],
        }
    ).encode()
    async with raw_gateway(reply, authenticator=AnyKey(account), mode=mode) as (url, _):
        response = await send_post(url, CHAT_PATH, body, *JSON)
        assert response.status == 200
    [(usage, _)] = account.calls
    assert usage.input_tokens == len(body) // 4
