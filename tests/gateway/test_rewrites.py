"""When a rewrite is used, made again, made harder, or left alone; and what else of a body is touched."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.summary_marks import SUMMARY_START
from everthread.core.types import Api
from everthread.gateway.contracts import Outgoing, RequestHandler
from everthread.gateway.request.json_slices import slice_body
from everthread.testing import ScriptedSummarizer
from everthread.thread.caller.caller_request import Outcome
from everthread.thread.events import (
    CompactionDone,
    CompactionReceipt,
    Drifted,
    Unmanaged,
)
from tests.apis import APIS
from tests.chat_messages import (
    calls_message,
    calls_reply,
    function_call,
)
from tests.gateway.manager_setup import (
    HistoryClient,
    Managers,
    answer_request,
    ask,
    numbered_text,
    open_managers_with_provider,
    prepare_request,
    send_request,
    text_of_tokens,
    text_reply,
    thread_of,
    tokens_of,
)

TOO_LONG = b'{"error":{"code":"context_length_exceeded"}}'


async def prepare(managers: Managers, client: HistoryClient, **options: Any) -> RequestHandler:
    """Prepare the client's next request by a new manager."""
    manager = managers.open(background=False, **options)
    return await prepare_request(manager, client.incoming())


def add_old_turns(client: HistoryClient, turns: int, size: int = 300) -> None:
    """Give a client a history that never went through the gateway."""
    for turn in range(turns):
        client.add_user_message(numbered_text(turn, size, "entry"))
        client.add_assistant_message(numbered_text(turn, size, "reply"))
    client.add_user_message("And now?")


async def test_a_compaction_has_one_receipt(managers: Managers) -> None:
    manager = managers.open(background=False)
    client = HistoryClient("openai_chat")
    sent = await ask(manager, client, "Hello")
    while not sent.is_rewritten:
        text = text_of_tokens(600, f"ledger {len(client.messages)}")
        sent = await ask(manager, client, f"Ledger: {text}")
    receipt = sent.headers["x-everthread-receipt"]
    assert receipt.startswith("compaction 1: ")
    texts = [event.text for event in managers.events_of(CompactionReceipt)]
    assert texts == [receipt]
    later = await ask(manager, client, "And now?")
    assert "x-everthread-receipt" not in later.headers


async def test_sends_a_short_request_with_the_clients_own_bytes(
    managers: Managers,
) -> None:
    raw = (
        b'{ "model":"gpt-4o",\n "messages" : [ {"content":"h\\u00e9","role":"user"} ] , "x":1.0e0 }'
    )
    incoming = HistoryClient("openai_chat").make_incoming(raw)
    incoming = replace(incoming, body=replace(incoming.body, raw=b"zipped"))
    sent = (await prepare_request(managers.open(), incoming)).outgoing
    assert sent.body == b"zipped"
    assert not sent.is_rewritten


@pytest.mark.parametrize("api", APIS)
async def test_a_rewrite_leaves_the_rest_of_the_body_unchanged(
    api: Api, managers: Managers
) -> None:
    extra = {
        "temperature": 0.5,
        "metadata": {"user_id": "u"},
    }
    client = HistoryClient(api, system=None, extra=extra)
    add_old_turns(client, 12)
    sent = (await prepare(managers, client)).outgoing
    assert sent.is_rewritten
    assert SUMMARY_START.encode() in sent.body
    before = slice_body(client.incoming().body.plain, api)
    after = slice_body(sent.body, api)
    assert after.fields == before.fields
    assert after.messages[-1].text == before.messages[-1].text
    assert after.messages[0].text == before.messages[0].text


async def test_an_observed_request_is_recorded_and_not_rewritten(managers: Managers) -> None:
    client = HistoryClient("openai_chat", mode="observe")
    add_old_turns(client, 12)
    incoming = client.incoming()
    turn = await prepare_request(managers.open(background=False), incoming)
    assert turn.outgoing.body is incoming.body.raw
    assert await turn.recover(400, TOO_LONG) is None
    await turn.record(Outcome(400))
    threads = await managers.store.list_threads(tenant="t")
    assert len(threads) == 1


async def test_a_request_is_not_managed_if_managing_is_off(managers: Managers) -> None:
    client = HistoryClient("openai_chat", mode="off")
    add_old_turns(client, 12)
    assert await managers.open().prepare(client.incoming()) is None
    assert await managers.store.list_threads(tenant="t") == []


def manage_context(edit: str, **options: Any) -> dict[str, Any]:
    return {
        "context_management": {
            "edits": [{"type": edit, **options}],
        }
    }


@pytest.mark.parametrize(
    ("api", "field"),
    [
        ("openai_responses", {"previous_response_id": "resp_1"}),
        ("openai_responses", {"conversation": "conv_1"}),
        ("anthropic", manage_context("clear_tool_uses_20250919")),
        ("anthropic", manage_context("clear_thinking_20251015", keep=2)),
        (
            "openai_responses",
            {
                "context_management": [{"type": "compaction"}],
            },
        ),
    ],
)
async def test_only_records_a_history_that_the_provider_changes(
    api: Api, field: dict[str, Any], managers: Managers
) -> None:
    client = HistoryClient(api, extra=field)
    add_old_turns(client, 12)
    incoming = client.incoming()
    turn = await prepare_request(managers.open(cache_marks=True, background=False), incoming)
    assert turn.outgoing.body is incoming.body.raw
    assert await turn.recover(400, TOO_LONG) is None
    await turn.record(Outcome(200))
    [row] = await managers.store.list_threads(tenant="t")
    assert row.message_count == len(client.messages)
    [event] = managers.events_of(Unmanaged)
    assert event.reason in field
    notice = (await turn.make_response_headers())["x-everthread-notice"]
    assert notice == f"passed on unmanaged: {event.reason}"


@pytest.mark.parametrize(
    ("api", "field"),
    [
        ("anthropic", {"context_management": {"edits": []}}),
        ("anthropic", manage_context("clear_thinking_20251015", keep="all")),
        ("openai_responses", {"prompt_cache_key": "k1", "store": False}),
    ],
)
async def test_manages_requests_whose_fields_change_no_history(
    api: Api, field: dict[str, Any], managers: Managers
) -> None:
    client = HistoryClient(api, extra=field)
    add_old_turns(client, 12)
    turn = await prepare(managers, client)
    assert turn.outgoing.is_rewritten
    assert not managers.events_of(Unmanaged)
    await turn.record(Outcome(200))


async def test_never_covers_the_clients_own_compaction(managers: Managers) -> None:
    manager = managers.open(background=False)
    client = HistoryClient("openai_responses")
    client.add_user_message("The beginning, before the client compacted.")
    item = {
        "type": "compaction",
        "id": "cmp_1",
        "encrypted_content": "b3BhcXVl",
    }
    client.messages.append(item)
    add_old_turns(client, 14)
    turn = await prepare_request(manager, client.incoming())
    assert turn.outgoing.is_rewritten
    sent = json.loads(turn.outgoing.body)["input"]
    summaries = [at for at, one in enumerate(sent) if SUMMARY_START in str(one)]
    assert sent.index(item) < summaries[0]
    await turn.record(Outcome(200))
    client.messages.append({"type": "compaction_trigger"})
    incoming = client.incoming()
    passed = await prepare_request(manager, incoming)
    assert passed.outgoing.body is incoming.body.raw
    assert thread_of(passed) == thread_of(turn)
    await passed.record(Outcome(200))


async def test_a_model_summary_is_written_ahead_and_used_when_due(
    managers: Managers,
) -> None:
    writer = ScriptedSummarizer()
    manager = managers.open(summarizer=writer)
    client = HistoryClient("openai_chat")
    add_old_turns(client, 5, 260)
    sent = await answer_request(manager, client)
    assert 0.8 * 4_000 <= tokens_of(sent).before < 4_000, "the threshold is 4,000"
    await manager.threads.wait_for_background_work()
    request_count = len(writer.requests)
    assert request_count
    assert not (await ask(manager, client, "Short.")).is_rewritten, "not due yet"
    assert (await ask(manager, client, text_of_tokens(700, "more"))).is_rewritten
    [compaction] = managers.events_of(CompactionDone)
    assert compaction.is_background
    assert len(writer.requests) == request_count, "the prepared summary was used"


async def test_compacts_later_messages_though_nothing_could_be_shortened_before(
    managers: Managers,
) -> None:
    manager = managers.open(summarizer=ScriptedSummarizer(), economics=False)
    client = HistoryClient("openai_chat")
    await ask(manager, client, text_of_tokens(2_900, "entry"))
    await manager.threads.wait_for_background_work()
    assert not managers.events_of(CompactionDone), "it is too short, though large enough"
    await ask(manager, client, text_of_tokens(300, "second entry"))
    sent = await ask(manager, client, text_of_tokens(300, "third entry"))
    assert 4_000 <= tokens_of(sent).before < 4_400
    assert sent.is_rewritten


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("says_much", [False, True])
async def test_shortens_messages_that_followed_a_prepared_summary(
    managers: Managers, api: Api, says_much: bool
) -> None:
    """The model's summary stays, and the request is as small as after any compaction."""

    managers.window = 16000
    writer = ScriptedSummarizer({"Goal": "Keep the books."})
    manager = managers.open(summarizer=writer)
    client = HistoryClient(api)
    for turn in range(5):
        client.add_user_message(numbered_text(turn, 490, "entry"))
        client.add_answer(numbered_text(turn, 490, "reply"))
    assert not (await ask(manager, client, "And now read all of it.")).is_rewritten
    await manager.threads.wait_for_background_work()
    for number in range(4):
        calls: Any = [function_call(f"since_{number}", "read")]
        text = text_of_tokens(600, f"note {number}") if says_much else None
        client.add_reply(calls_reply(*calls, text=text))
        client.add_result(
            f"since_{number}",
            text_of_tokens(30 if says_much else 1_200, f"page {number}"),
        )
    sent = await answer_request(manager, client)
    assert sent.is_rewritten
    assert tokens_of(sent).after <= 0.6 * 8_000
    assert b"Keep the books." in sent.body
    assert len(writer.requests) == 1, "the model is not asked again"
    assert b"page 3 item" in sent.body
    again = await ask(managers.open(summarizer=writer), client, "Go on.")
    first = [one.value for one in slice_body(sent.body, api).messages]
    second = [one.value for one in slice_body(again.body, api).messages]
    assert second[: len(first)] == first


async def test_a_journal_is_never_written_ahead(managers: Managers) -> None:
    """Messages between its making and its use would stay in the prompt."""

    manager = managers.open()
    client = HistoryClient("openai_chat")
    prompt = 0
    while not managers.events_of(CompactionDone):
        client.add_user_message(text_of_tokens(120, f"entry {prompt}"))
        turn = await prepare_request(manager, client.incoming())
        before, after = map(
            int, turn.outgoing.headers.get("x-everthread-tokens", "300/300").split("/")
        )
        assert turn.outgoing.is_rewritten == (before >= 4_000), "the threshold is 4,000"
        prompt = after
        reply = text_reply("Yes.")
        client.add_reply(reply)
        await turn.record(Outcome(200, reply, CanonicalUsage(input_tokens=prompt, output_tokens=2)))
        await manager.threads.wait_for_background_work()


def clear_results(client: HistoryClient, cleared: str) -> None:
    for message in client.messages:
        if message.get("role") == "tool" and len(message["content"]) > 500:
            message["content"] = cleared


def with_tools(turns: int = 10) -> HistoryClient:
    client = HistoryClient("openai_chat")
    for turn in range(turns):
        client.add_user_message(f"Look at {turn}. {text_of_tokens(60, f'entry {turn}')}")
        message = calls_message(function_call(f"call_{turn}", "terminal"))
        thought = {"reasoning_content": f"I think of {turn}."}
        client.messages.append({**message, **thought})
        client.add_result(f"call_{turn}", text_of_tokens(400, f"line {turn}"))
        client.add_assistant_message(f"Done {turn}.")
    client.add_user_message("And now?")
    return client


async def test_keeps_the_thread_if_results_are_cleared_and_thinking_dropped(
    managers: Managers,
) -> None:
    client = with_tools()
    manager = managers.open(background=False)
    first = await answer_request(manager, client)
    [compaction] = managers.events_of(CompactionDone)
    for message in client.messages[: compaction.covered_count]:
        message.pop("reasoning_content", None)
    clear_results(client, "[Old tool result content cleared]")
    client.add_user_message("Go on.")
    client.add_user_message(text_of_tokens(900, "much"))
    turn = await prepare_request(manager, client.incoming())
    second = turn.outgoing
    assert second.is_rewritten
    assert managers.events_of(Drifted)
    assert turn.thread == thread_of(first)
    assert SUMMARY_START in head_of(first)
    assert head_of(second) == head_of(first), "the drifted part keeps its bytes"


async def test_another_tool_result_begins_another_conversation(
    managers: Managers,
) -> None:
    manager = managers.open(background=False)
    client = with_tools()
    first = await answer_request(manager, client)
    other = with_tools()
    clear_results(other, text_of_tokens(400, "something else altogether"))
    second = await answer_request(manager, other)
    assert second.headers["x-everthread-thread"] != first.headers["x-everthread-thread"]
    assert not managers.events_of(Drifted)
    assert b"line 3 item" not in second.body


async def test_passes_the_error_of_a_request_that_cannot_fit(
    tmp_path: Path,
) -> None:
    async with open_managers_with_provider(
        tmp_path, window=100_000, served=500
    ) as managers_with_provider:
        client = HistoryClient("openai_chat", system=text_of_tokens(6_000, "rule"))
        add_old_turns(client, 10)
        exchange = await send_request(
            managers_with_provider.open(), client, managers_with_provider.provider
        )
        assert exchange.status == 400
        assert "maximum context length" in exchange.error
        assert exchange.attempts <= 4


async def test_lowers_an_output_cap_and_changes_nothing_else(
    tmp_path: Path,
) -> None:
    async with open_managers_with_provider(tmp_path, window=8_000) as managers_with_provider:
        client = HistoryClient("anthropic", extra={"max_tokens": 7_990})
        client.add_user_message(text_of_tokens(400, "entry"))
        exchange = await managers_with_provider.send(managers_with_provider.open(), client)
        before = json.loads(exchange.incoming.body.plain)
        after = json.loads(exchange.sent.body)
        assert after["max_tokens"] < 7_990
        assert {**after, "max_tokens": 7_990} == before
        assert managers_with_provider.events_of(CompactionDone) == []


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (
            429,
            b'{"error":{"message":"Rate limit: too many tokens","code":"rate_limit"}}',
        ),
        (500, b"oops"),
    ],
)
async def test_passes_other_errors_to_the_client(
    status: int, body: bytes, managers: Managers
) -> None:
    client = HistoryClient("openai_chat")
    client.add_user_message("Hi")
    turn = await prepare(managers, client)
    assert await turn.recover(status, body) is None


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {"type": "object"},
        },
    }
]


async def test_adds_cache_marks_for_claude_clients_without_any(tmp_path: Path) -> None:
    async with open_managers_with_provider(tmp_path, window=200_000) as managers_with_provider:
        manager = managers_with_provider.open(cache_marks=True)
        client = HistoryClient(
            "anthropic", system=text_of_tokens(3_000, "rule"), extra={"max_tokens": 500}
        )
        for turn in range(4):
            client.add_user_message(text_of_tokens(600, f"entry {turn}"))
            exchange = await managers_with_provider.send(manager, client)
            assert exchange.sent.is_rewritten == (turn > 0)
        last = managers_with_provider.provider.log[-1]
        assert last.cached_tokens > 0.7 * last.prompt_tokens
        assert "cache_control" not in json.dumps(client.messages)


@pytest.mark.parametrize("where", ["top", "block"])
async def test_leaves_the_clients_own_cache_marks_alone(where: str, managers: Managers) -> None:
    mark = {"type": "ephemeral"}
    client = HistoryClient("anthropic", extra={"cache_control": mark} if where == "top" else {})
    client.add_user_message([{"type": "text", "text": "Hi"}])
    if where == "block":
        client.messages[0]["content"][0]["cache_control"] = mark
    incoming = client.incoming()
    turn = await prepare_request(managers.open(cache_marks=True), incoming)
    assert turn.outgoing.body is incoming.body.raw


@pytest.mark.parametrize(
    ("count", "has_tools", "is_answered", "is_marked"),
    [
        (100, True, True, False),
        (1_500, False, False, False),
        (1_500, True, False, True),
        (1_500, False, True, True),
    ],
    ids=[
        "too short to be cached",
        "a one-shot prompt",
        "tools are offered",
        "an answer is there",
    ],
)
async def test_marks_only_prompts_that_a_next_call_can_read_from_the_cache(
    count: int, has_tools: bool, is_answered: bool, is_marked: bool, managers: Managers
) -> None:
    client = HistoryClient("anthropic", tools=TOOLS if has_tools else [])
    client.add_user_message(text_of_tokens(count, "entry"))
    if is_answered:
        client.add_assistant_message("Fine.")
        client.add_user_message("Go on.")
    incoming = client.incoming()
    sent = (await prepare_request(managers.open(cache_marks=True), incoming)).outgoing.body
    assert (b"cache_control" in sent) == is_marked
    assert is_marked or sent is incoming.body.raw


async def test_holds_streams_of_nearly_full_requests(managers: Managers) -> None:
    client = HistoryClient("openai_chat")
    client.add_user_message("Hi")
    manager = managers.open(enabled=False)
    turn = await prepare_request(manager, client.incoming())
    assert not turn.outgoing.should_hold_first_events
    client.messages[-1]["content"] = text_of_tokens(7_000, "entry")
    turn = await prepare_request(manager, client.incoming())
    assert turn.outgoing.should_hold_first_events


def head_of(sent: Outgoing) -> str:
    """Return the summary with which a rewritten request begins."""
    elements = slice_body(sent.body, "openai_chat").messages
    return elements[1].text if sent.is_rewritten else ""


def count_changes(heads: list[str]) -> int:
    return sum(one != other for one, other in itertools.pairwise(heads))


async def test_a_client_without_pauses_gets_one_rewrite_at_a_time(
    managers: Managers,
) -> None:
    """The beginning of a request changes only if a compaction was due, whatever finishes in the background."""

    manager = managers.open(economics=False, protect_last_n=2)
    client = HistoryClient("openai_chat", tools=[])
    heads = []
    for number in range(60):
        sent = await ask(
            manager,
            client,
            question=numbered_text(number, 120, "entry"),
            text=numbered_text(number, 60, "reply"),
        )
        heads.append(head_of(sent))
    depth = max(event.count for event in managers.events_of(CompactionDone))
    assert depth > 2
    assert count_changes(heads) <= depth


async def test_a_late_summary_changes_the_prefix_only_once(
    managers: Managers,
) -> None:
    """A late summary covers too little: the next one continues from it, and the sent prefix changes once."""

    class Late(ScriptedSummarizer):
        async def summarize(self, request: SummaryRequest) -> SummaryDraft:
            await written.wait()
            return await super().summarize(request)

    written = asyncio.Event()

    manager = managers.open(
        economics=False,
        protect_last_n=2,
        summarizer=Late({"Goal": "Compare the entries."}),
    )
    client = HistoryClient("openai_chat")
    heads = []
    add_old_turns(client, 5, 260)
    for number in range(8):
        sent = await ask(
            manager,
            client,
            question=numbered_text(number, 160, "entry"),
            text=numbered_text(number, 30, "reply"),
        )
        heads.append(head_of(sent))
        if number == 3:
            assert not sent.is_rewritten, "sent unchanged meanwhile"
            written.set()
            await manager.threads.wait_for_background_work()
    assert any(heads)
    assert count_changes(heads) == 1
