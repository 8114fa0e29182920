"""Connections, unusual servers, and behaviour of single protocols."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from everthread.core.messages import text_of
from everthread.core.types import Api, ModelReply, ModelRequest
from everthread.errors import ModelError, ModelTimeoutError, ModelUnreachableError
from everthread.providers.clients import AnthropicModel, HttpModel, OpenAIResponsesModel
from tests.apis import APIS
from tests.providers.http_models import (
    NAME,
    both_ways,
    collect_pieces,
    connect_model,
    encode_stream,
    failure_at,
    make_request,
    model_at,
    open_model,
    script_answer,
)
from tests.wire.recording import json_reply, recording_server, sse_reply

ROOT = Path(__file__).parents[2]
HELLO = ModelReply({"role": "assistant", "content": "Hello."}, stop="stop")
every_api = pytest.mark.parametrize("api", APIS)


@asynccontextmanager
async def counting_server(
    answer: bytes, gone: asyncio.Event | None = None
) -> AsyncIterator[tuple[str, list[int]]]:
    """Answer every request with these bytes; yield the number of requests on each connection.

    `gone`: set when a client leaves.
    """
    connections: list[int] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        at = len(connections)
        connections.append(0)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    line
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                )
                await reader.readexactly(int(length.split(b":")[1]))
                connections[at] += 1
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            if gone:
                gone.set()
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", connections
    finally:
        server.close()
        for writer in writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def chunked(pieces: list[bytes], *, end: bool = True) -> bytes:
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return head + body + (b"0\r\n\r\n" if end else b"")


@every_api
async def test_reuses_the_connection_after_a_whole_stream(api: Api) -> None:
    answer = chunked(encode_stream(api, HELLO))
    async with (
        counting_server(answer) as (url, connections),
        connect_model(api, url) as model,
    ):
        for _ in range(3):
            await collect_pieces(model, make_request())
        assert connections == [3]


@pytest.mark.parametrize("api", ["openai_chat", "anthropic"])
async def test_ends_at_the_end_mark_although_the_connection_stays_open(
    api: Api,
) -> None:
    answer = chunked(encode_stream(api, HELLO), end=False)
    async with (
        counting_server(answer) as (url, _),
        connect_model(api, url) as model,
    ):
        _, [reply] = await collect_pieces(model, make_request())
    assert text_of(reply.message) == "Hello."


@every_api
async def test_closing_a_stream_early_closes_its_connection(api: Api) -> None:
    gone = asyncio.Event()
    answer = chunked(encode_stream(api, HELLO)[:-2], end=False)
    async with (
        counting_server(answer, gone) as (url, connections),
        connect_model(api, url) as model,
    ):
        stream = model.stream(make_request())
        await anext(stream)
        await stream.aclose()
        async with asyncio.timeout(60):
            await gone.wait()
        assert connections == [1]


@contextlib.contextmanager
def abandoned_generators() -> Iterator[list[str]]:
    """Async generators that are left open: the garbage collector closes them, in any thread."""
    names: list[str] = []
    first, finish = sys.get_asyncgen_hooks()

    def note(generator: AsyncGenerator[Any, Any]) -> None:
        names.append(repr(generator))
        if finish:
            finish(generator)

    sys.set_asyncgen_hooks(first, note)
    try:
        yield names
        gc.collect()
    finally:
        sys.set_asyncgen_hooks(first, finish)


@every_api
@pytest.mark.parametrize("broken", [False, True], ids=["left", "unreadable"])
async def test_an_unfinished_stream_leaves_no_open_generator(api: Api, broken: bool) -> None:
    pieces = encode_stream(api, HELLO)[:-2] + ([b"data: {\n\n"] if broken else [])
    async with counting_server(chunked(pieces, end=False)) as (url, _):
        model = model_at(api, url)
        with abandoned_generators() as names:
            stream = model.stream(make_request())
            with pytest.raises(ModelError) if broken else contextlib.nullcontext():
                await anext(stream)
                while broken:
                    await anext(stream)
            await stream.aclose()
            del stream
        await model.aclose()
    assert all("PoolByteStream.__aiter__" in name for name in names), (
        "httpcore drops its own, at once and in the loop's thread"
    )


@every_api
async def test_accepts_a_whole_answer_to_a_stream_request(api: Api) -> None:
    with recording_server([script_answer(api, HELLO, stream=False)]) as server:
        async with connect_model(api, server.url) as model:
            deltas, [reply] = await collect_pieces(model, make_request())
    assert "".join(delta.text for delta in deltas) == "Hello."
    assert text_of(reply.message) == "Hello."


@every_api
@both_ways
async def test_raises_for_an_error_with_status_200(api: Api, stream: bool) -> None:
    body = {"error": {"message": "Provider returned error: overloaded", "code": 503}}
    with recording_server([json_reply(body)]) as server:
        error = await failure_at(api, server.url, stream=stream)
    assert error.status == 503
    assert error.body == body
    assert "overloaded" in str(error)


@every_api
async def test_an_unreadable_event_keeps_the_partial_answer(
    api: Api,
) -> None:
    pieces = encode_stream(api, HELLO)[:-2]
    with recording_server([sse_reply([*pieces, b"data: {broken\n\n"])]) as server:
        error = await failure_at(api, server.url, stream=True)
    assert "cannot be read" in str(error)
    assert text_of(error.partial.message) == "Hello."


def test_a_model_works_in_several_event_loops() -> None:
    """In a process of its own, which collects what a closed loop leaves open."""
    program = (
        "import asyncio, sys\n"
        "from tests.providers.http_models import make_request, model_at\n"
        "model = model_at('openai_chat', sys.argv[1])\n"
        "print([asyncio.run(model.complete(make_request())).stop for _ in range(3)])\n"
        "asyncio.run(model.aclose())\n"
    )
    with recording_server([script_answer("openai_chat", HELLO, stream=False)] * 3) as server:
        command = [sys.executable, "-c", program, server.url]
        result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "['stop', 'stop', 'stop']"


async def test_a_failed_response_reports_its_usage() -> None:
    failed = {
        "id": "r",
        "object": "response",
        "status": "failed",
        "error": {"code": "server_error", "message": "It broke."},
        "output": [],
        "usage": {"input_tokens": 11, "output_tokens": 0},
    }
    with recording_server([json_reply(failed)]) as server:
        error = await failure_at("openai_responses", server.url, stream=False)
    assert (error.status, error.partial.usage["input_tokens"]) == (500, 11)


async def test_a_connection_without_a_valid_answer_is_unreachable() -> None:
    async with (
        counting_server(b"") as (url, _),
        connect_model("openai_chat", url, read_seconds=0.2) as model,
    ):
        with pytest.raises(ModelTimeoutError, match="did not answer in time"):
            await model.complete(make_request())
    async with (
        counting_server(b"nonsense\r\n\r\n") as (url, _),
        connect_model("openai_chat", url) as model,
    ):
        with pytest.raises(ModelUnreachableError, match=url):
            await model.complete(make_request())


@every_api
@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1", "http://[1", "http://no-such-host.invalid", "nonsense"]
)
async def test_names_an_invalid_address(api: Api, url: str) -> None:
    error = await failure_at(api, url, stream=True)
    assert isinstance(error, ModelUnreachableError)
    assert url in str(error)


async def sent_by(model: HttpModel, request: ModelRequest) -> dict[str, Any]:
    """Return the body that the model sends."""
    with recording_server([script_answer(model.api, HELLO, stream=False)]) as server:
        model.base_url = server.url if model.api == "anthropic" else f"{server.url}/v1"
        await model.complete(request)
        await model.aclose()
    body: dict[str, Any] = server.requests[0].body
    return body


@pytest.mark.parametrize(
    ("params", "store", "include"),
    [
        ({}, False, ["reasoning.encrypted_content"]),
        ({"include": []}, False, []),
        ({"store": True}, True, None),
        ({"previous_response_id": "r"}, None, None),
    ],
)
async def test_responses_are_stored_only_on_request(params: Any, store: Any, include: Any) -> None:
    model = OpenAIResponsesModel("gpt-5", window=400_000, base_url="")
    body = await sent_by(model, ModelRequest("gpt-5", make_request().messages, params=params))
    assert (body.get("store"), body.get("include")) == (store, include)
    assert "include" not in await sent_by(model, ModelRequest("gpt-4o", make_request().messages))


@pytest.mark.parametrize(
    ("name", "window", "own", "params", "cap"),
    [
        ("claude-sonnet-4-5", 200_000, None, {}, 64_000),
        ("claude-sonnet-4-5", 200_000, None, {"max_tokens": 7}, 7),
        ("claude-sonnet-4-5", 200_000, 99, {}, 99),
        ("claude-sonnet-4-5", 20_000, None, {}, 10_000),
        ("who-is-this", 200_000, None, {}, 8_192),
    ],
)
async def test_anthropic_requests_always_have_an_output_cap(
    name: str, window: int, own: Any, params: Any, cap: int
) -> None:
    model = AnthropicModel(name, window=window, base_url="", max_tokens=own)
    assert (await sent_by(model, ModelRequest(name, make_request().messages, params=params)))[
        "max_tokens"
    ] == cap


async def test_sends_headers_and_the_key() -> None:
    headers = {}
    for api in APIS:
        async with open_model(api, ["a"], headers={"X-Title": "Everthread"}) as (
            model,
            provider,
        ):
            await model.complete(make_request())
        headers[api] = provider.log[0].headers
    assert headers["openai_chat"]["x-title"] == "Everthread"
    assert headers["anthropic"]["x-api-key"] == "sk-secret-0123456789"


async def test_sends_the_model_name_of_the_request() -> None:
    model = AnthropicModel("ours", window=8_000, base_url="")
    assert (await sent_by(model, make_request()))["model"] == NAME
