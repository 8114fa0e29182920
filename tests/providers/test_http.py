"""Connections, odd servers, and what each protocol does besides what all do."""

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
from everthread.core.provider_errors.classification import classify_error
from everthread.core.types import Api, Reply, Request
from everthread.errors import ModelError, ModelUnreachableError
from everthread.providers.clients import AnthropicModel, OpenAIResponsesModel
from tests.providers.http_models import (
    APIS,
    NAME,
    collect_pieces,
    failure_at,
    make_request,
    model_at,
    open_model,
    wire_reply,
    wire_stream,
)
from tests.python_process import printed_by
from tests.wire.recording import Scripted, json_reply, recording_server, sse_reply

ROOT = Path(__file__).parents[2]
SAID = Reply({"role": "assistant", "content": "Hello."}, stop="stop")
every_api = pytest.mark.parametrize("api", APIS)


@asynccontextmanager
async def counting_server(
    answer: bytes, gone: asyncio.Event | None = None
) -> AsyncIterator[tuple[str, list[int]]]:
    """Answers every request with these bytes; how many requests came on each connection. `gone`: a client left."""
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
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return head + body + (b"0\r\n\r\n" if end else b"")


@every_api
async def test_a_stream_read_to_its_end_leaves_the_connection_for_the_next(
    api: Api,
) -> None:
    async def run() -> list[int]:
        async with counting_server(chunked(list(wire_stream(api, SAID)))) as (
            url,
            connections,
        ):
            model = model_at(api, url)
            for _ in range(3):
                await collect_pieces(model, make_request())
            await model.aclose()
            return connections

    assert await run() == [3]


@pytest.mark.parametrize("api", ["openai_chat", "anthropic"])
async def test_the_mark_of_the_end_counts_even_if_the_connection_is_never_closed(
    api: Api,
) -> None:
    async def run() -> Reply:
        async with counting_server(
            chunked(list(wire_stream(api, SAID)), end=False)
        ) as (url, _):
            model = model_at(api, url)
            _, [reply] = await collect_pieces(model, make_request())
            await model.aclose()
            return reply

    assert text_of((await run()).message) == "Hello."


@every_api
async def test_a_stream_left_early_closes_its_connection(api: Api) -> None:
    gone = asyncio.Event()
    async with counting_server(
        chunked(list(wire_stream(api, SAID))[:-2], end=False), gone
    ) as (url, connections):
        model = model_at(api, url)
        stream = model.stream(make_request())
        await anext(stream)
        await stream.aclose()
        async with asyncio.timeout(60):
            await gone.wait()
        assert connections == [1]
        await model.aclose()


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
async def test_a_stream_not_read_to_its_end_leaves_no_generator_to_the_collector(
    api: Api, broken: bool
) -> None:
    pieces = list(wire_stream(api, SAID))[:-2] + ([b"data: {\n\n"] if broken else [])
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
async def test_a_server_that_answers_whole_when_asked_to_stream(api: Api) -> None:
    async def run(url: str) -> None:
        model = model_at(api, url)
        deltas, [reply] = await collect_pieces(model, make_request())
        await model.aclose()
        assert (
            "".join(delta.text for delta in deltas)
            == text_of(reply.message)
            == "Hello."
        )

    with recording_server([json_reply(wire_reply(api, SAID))]) as server:
        await run(server.url)


@every_api
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_error_with_status_200_is_an_error(api: Api, stream: bool) -> None:
    body = {"error": {"message": "Provider returned error: overloaded", "code": 503}}
    with recording_server([json_reply(body)]) as server:
        error = await failure_at(api, server.url, stream=stream)
    assert error.status == 503
    assert error.body == body
    assert "overloaded" in str(error)


@every_api
async def test_a_page_instead_of_a_stream_is_not_taken_for_a_prompt_too_long(
    api: Api,
) -> None:
    page = Scripted(
        (b"<html><body>Please log in</body></html>",),
        content_type="text/html; charset=utf-8",
    )
    with recording_server([page]) as server:
        error = await failure_at(api, server.url, stream=True)
    assert classify_error(error).kind == "other"
    assert "base_url" in str(error)


@every_api
async def test_an_event_that_is_no_json_is_told_with_what_was_said_before(
    api: Api,
) -> None:
    pieces = list(wire_stream(api, SAID))[:-2]
    with recording_server([sse_reply([*pieces, b"data: {broken\n\n"])]) as server:
        error = await failure_at(api, server.url, stream=True)
    assert "cannot be read" in str(error)
    assert text_of(error.partial.message) == "Hello."


def test_a_model_outlives_the_event_loop_it_was_first_used_in() -> None:
    """In a process of its own, which collects what a closed loop leaves open."""
    program = (
        "import asyncio, sys\n"
        "from tests.providers.http_models import make_request, model_at\n"
        "model = model_at('openai_chat', sys.argv[1])\n"
        "print([asyncio.run(model.complete(make_request())).stop for _ in range(3)])\n"
        "asyncio.run(model.aclose())\n"
    )
    with recording_server([json_reply(wire_reply("openai_chat", SAID))] * 3) as server:
        command = [sys.executable, "-c", program, server.url]
        result = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=ROOT
        )
    assert result.stdout.strip() == "['stop', 'stop', 'stop']"


async def test_a_failed_response_tells_its_usage() -> None:
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


async def test_a_connection_lost_before_an_answer_is_unreachable() -> None:
    async with counting_server(b"") as (url, _):
        model = model_at("openai_chat", url, read_seconds=0.2)
        with pytest.raises(Exception, match="did not answer in time"):
            await model.complete(make_request())
        await model.aclose()
    async with counting_server(b"nonsense\r\n\r\n") as (url, _):
        model = model_at("openai_chat", url)
        with pytest.raises(ModelUnreachableError, match=url):
            await model.complete(make_request())
        await model.aclose()


@every_api
@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1", "http://[1", "http://no-such-host.invalid", "nonsense"]
)
async def test_an_address_that_leads_nowhere_is_told(api: Api, url: str) -> None:
    error = await failure_at(api, url, stream=True)
    assert isinstance(error, ModelUnreachableError)
    assert url in str(error)


# Each protocol for itself


async def sent_by(model: Any, request: Request) -> dict[str, Any]:
    with recording_server([json_reply(wire_reply(model.api, SAID))]) as server:
        model.base_url = server.url if model.api == "anthropic" else f"{server.url}/v1"

        async def run() -> None:
            await model.complete(request)
            await model.aclose()

        await run()
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
async def test_responses_keep_nothing_at_the_server_unless_told_to(
    params: Any, store: Any, include: Any
) -> None:
    model = OpenAIResponsesModel("gpt-5", window=400_000, base_url="")
    body = await sent_by(
        model, Request("gpt-5", make_request().messages, params=params)
    )
    assert (body.get("store"), body.get("include")) == (store, include)
    assert "include" not in await sent_by(
        model, Request("gpt-4o", make_request().messages)
    )


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
async def test_anthropic_is_always_told_how_much_it_may_write(
    name: str, window: int, own: Any, params: Any, cap: int
) -> None:
    model = AnthropicModel(name, window=window, base_url="", max_tokens=own)
    assert (
        await sent_by(model, Request(name, make_request().messages, params=params))
    )["max_tokens"] == cap


async def test_headers_go_along_and_a_key_where_others_look_for_it() -> None:
    async def run(api: Api) -> Any:
        async with open_model(api, ["a"], headers={"X-Title": "Everthread"}) as (
            model,
            provider,
        ):
            await model.complete(make_request())
            return provider.log[0].headers

    assert (await run("openai_chat"))["x-title"] == "Everthread"
    assert (await run("anthropic"))["x-api-key"] == "sk-secret-0123456789"


def test_choosing_a_model_loads_no_sdk() -> None:
    """`import everthread` and `everthread --help` stay quick."""
    program = (
        "import sys, everthread, everthread.providers.model_choice, everthread.providers.resilience\n"
        "import everthread.providers.catalog, everthread.providers.resilience\n"
        "print({'openai', 'anthropic', 'httpx2', 'xllamacpp', 'genai_prices'} & sys.modules.keys())"
    )
    assert printed_by(program) == "set()"


async def test_the_name_of_the_request_is_sent_not_ours() -> None:
    model = AnthropicModel("ours", window=8_000, base_url="")
    assert (await sent_by(model, make_request()))["model"] == NAME
