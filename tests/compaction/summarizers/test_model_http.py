"""Failures of a summary call over HTTP: detected, retried if that helps, or given up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from everthread.compaction.summarizers import answer_judging
from everthread.compaction.summarizers.llm_summarizer import LlmSummarizer
from everthread.compaction.summarizers.summarizer import SummaryDraft
from everthread.compaction.summary.sections import render_sections
from everthread.errors import SummaryError
from tests.compaction.summarizers.http_model import (
    USAGE,
    HttpModel,
    client_for,
    completion_reply,
    error_reply,
    prompts_sent,
    serve_model,
)
from tests.compaction.summarizers.model_doubles import (
    COUNTER,
    GOOD,
    GOOD_TEXT,
    make_history,
    summary_request,
)
from tests.wire.recording import RecordingServer, Scripted

WORDY = GOOD_TEXT.replace("8443", "8443 " * 500)


async def _summarize(
    *replies: Scripted,
) -> tuple[SummaryDraft | SummaryError, RecordingServer]:
    async with serve_model(*replies) as (model, server):
        try:
            return await LlmSummarizer(model, COUNTER).summarize(summary_request()), server
        except SummaryError as error:
            return error, server


async def draft_of(*replies: Scripted) -> tuple[SummaryDraft, RecordingServer]:
    draft, server = await _summarize(*replies)
    assert isinstance(draft, SummaryDraft)
    return draft, server


async def error_of(*replies: Scripted) -> tuple[SummaryError, RecordingServer]:
    error, server = await _summarize(*replies)
    assert isinstance(error, SummaryError)
    return error, server


async def test_a_good_answer_takes_one_call() -> None:
    draft, server = await draft_of(completion_reply(GOOD_TEXT))
    assert draft.sections == GOOD
    assert draft.author == "gpt-4o"
    assert draft.usage == ({**USAGE, "model": "gpt-4o-2024"},)
    assert draft.warnings == ()
    body = server.requests[0].body
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert "tools" not in body


async def test_reasoning_beside_an_answer_is_ignored() -> None:
    reply = completion_reply(GOOD_TEXT, reasoning_content="## Goal\nthink")
    draft, server = await draft_of(reply)
    assert draft.sections == GOOD
    assert len(server.requests) == 1


REFUSAL = completion_reply(None, refusal="I will not.")


async def test_a_bad_answer_is_requested_again_with_the_reason() -> None:
    draft, server = await draft_of(REFUSAL, completion_reply(GOOD_TEXT))
    assert draft.sections == GOOD
    assert len(draft.usage) == 2, "the bad answer was paid for too"
    first, second = prompts_sent(server)
    assert second.startswith(first)
    assert answer_judging.FAULT_REFUSED in second[len(first) :]
    assert '"## Goal"' in second[len(first) :]
    assert server.requests[0].body["messages"][0] == server.requests[1].body["messages"][0]


async def test_two_bad_answers_raise_an_error() -> None:
    error, server = await error_of(REFUSAL, REFUSAL, completion_reply(GOOD_TEXT))
    assert answer_judging.FAULT_REFUSED in str(error)
    assert len(server.requests) == 2
    assert not error.is_transient
    assert not error.has_no_provider
    assert error.usage == ({**USAGE, "model": "gpt-4o-2024"},) * 2


async def test_an_answer_that_is_too_long_twice_is_cut() -> None:
    draft, server = await draft_of(completion_reply(WORDY), completion_reply(WORDY))
    assert len(server.requests) == 2
    assert COUNTER.text(render_sections(draft.sections, skip_empty=True)) <= 600
    assert draft.sections["Goal"] == GOOD["Goal"]
    assert [warning for warning in draft.warnings if "cut to 600 tokens" in warning]


async def test_a_long_answer_before_an_empty_one_is_cut() -> None:
    draft, _ = await draft_of(completion_reply(WORDY), completion_reply(""))
    assert draft.sections["Goal"] == GOOD["Goal"]


async def test_a_summary_truncated_late_is_used_with_a_warning() -> None:
    draft, server = await draft_of(completion_reply(GOOD_TEXT[:-30], stop="length"))
    assert draft.sections["Goal"] == GOOD["Goal"]
    assert len(server.requests) == 1
    assert "before its summary was complete" in draft.warnings[0]


FAILURES = {
    "server error": (error_reply(500, "Internal error"), True, False),
    "overloaded": (error_reply(529, "Overloaded"), True, False),
    "rate limit": (error_reply(429, "Rate limit reached for gpt-4o"), True, False),
    "wrong key": (error_reply(401, "Incorrect API key provided"), False, True),
    "no such model": (error_reply(404, "The model does not exist"), False, True),
    "no money": (error_reply(402, "Insufficient credits"), False, True),
    "bad request": (error_reply(400, "Unsupported value: temperature"), False, False),
    "no completion": (Scripted((b'{"choices": []}',)), True, False),
    "no json": (Scripted((b"<html>",)), True, False),
}


@pytest.mark.parametrize(("reply", "passing", "missing"), FAILURES.values(), ids=FAILURES)
async def test_errors_are_classified(reply: Scripted, passing: bool, missing: bool) -> None:
    error, server = await error_of(reply, completion_reply(GOOD_TEXT))
    assert error.is_transient == passing
    assert error.has_no_provider == missing
    assert len(server.requests) == 1, "the next summariser is asked, not this one again"
    assert error.usage == ()


async def test_an_error_never_shows_the_key() -> None:
    key = "sk-proj-" + "aB3dE6gH9j" * 5
    error, _ = await error_of(error_reply(401, f"Incorrect API key provided: {key}"))
    assert key not in str(error)


async def test_a_stated_window_is_used_and_remembered() -> None:
    too_long = error_reply(
        400, "maximum context length is 4000 tokens, your prompt has 9500 tokens"
    )
    replies = [too_long, *[completion_reply(GOOD_TEXT)] * 90]
    async with serve_model(*replies) as (model, server):
        summarizer = LlmSummarizer(model, COUNTER, parallel=1)
        draft = await summarizer.summarize(summary_request(make_history(120)))
        assert draft.sections == GOOD
        sizes = [COUNTER.request(request.body["messages"]) for request in server.requests]
        assert sizes[0] > 4000
        assert 2000 < max(sizes[1:]) <= 4000, "what it says it takes, not half of it"
        before = len(sizes)
        await summarizer.summarize(summary_request(make_history(120)))
        later = [COUNTER.request(request.body["messages"]) for request in server.requests[before:]]
        assert max(later) <= 4000, "it is not forgotten"


async def test_a_window_that_is_not_stated_is_halved() -> None:
    too_long = error_reply(400, "the prompt is too long")
    async with serve_model(*[too_long] * 9) as (model, server):
        with pytest.raises(SummaryError, match="too long"):
            await LlmSummarizer(model, COUNTER, context_length=32_000, parallel=1).summarize(
                summary_request(make_history(400))
            )
        assert len(server.requests) == 3


@contextlib.asynccontextmanager
async def silence() -> AsyncIterator[str]:
    """Run a server that accepts a request and never answers."""
    served: set[asyncio.Task[None]] = set()

    async def wait(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.add(task)
        try:
            await asyncio.sleep(60)
        finally:
            writer.close()

    server = await asyncio.start_server(wait, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(0.2, 30.0), (30.0, 0.2)],
    ids=["our limit", "the client's limit"],
)
async def test_a_model_that_hangs_is_abandoned(ours: float, theirs: float) -> None:
    async with silence() as url, client_for(url, timeout=theirs) as client:
        summarizer = LlmSummarizer(HttpModel(client), COUNTER, time_limit=ours)
        with pytest.raises(SummaryError, match=r"0\.2 seconds|APITimeoutError") as caught:
            await summarizer.summarize(summary_request())
    assert caught.value.is_transient


async def test_an_unreachable_server_is_a_transient_failure() -> None:
    async with client_for("http://127.0.0.1:9") as client:
        with pytest.raises(SummaryError) as caught:
            await LlmSummarizer(HttpModel(client), COUNTER).summarize(summary_request())
    assert caught.value.is_transient
