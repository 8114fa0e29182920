"""The tool `recall`: answered by the gateway, hidden from the client. Over real HTTP."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everthread.core.costs.canonical_usage import normalize_usage
from everthread.core.messages import calls_of, text_of
from everthread.core.types import Api, ModelReply
from everthread.gateway.filters.answer_recall import RecallWatch
from everthread.gateway.managed.manager import ProxyManager
from everthread.gateway.recall.merged_stream import is_recall
from everthread.lab.provider.prompt_blocks import PromptReader
from everthread.store.topics.state_store import StateStore
from everthread.testing import SteppedClock
from everthread.thread.caller import recall_rounds
from tests.apis import APIS
from tests.chat_messages import calls_reply
from tests.conversation.http_setup import TOOL
from tests.gateway.manager_setup import (
    HistoryClient,
    Managers,
    answer_request,
    numbered_text,
    prepare_request,
    text_of_tokens,
)
from tests.gateway.proxied_conversation import (
    FACT,
    ProxiedConversation,
    numbered_call,
    open_conversation,
)

BOTH = [(api, streams) for api in APIS for streams in (False, True)]


@pytest.fixture
def api() -> Api:
    return "openai_chat"


@pytest.fixture
def streams() -> bool:
    return False


@pytest.fixture
def settings() -> str:
    return ""


@pytest.fixture
async def conversation(
    tmp_path: Path, api: Api, streams: bool, settings: str
) -> AsyncIterator[ProxiedConversation]:
    async with open_conversation(
        tmp_path,
        api,
        streams=streams,
        settings=settings,
    ) as opened:
        yield opened


def has_usage(api: Api, streams: bool) -> bool:
    """A chat client that streams gets none unless it asks."""
    return not (api == "openai_chat" and streams)


def text_and_calls(reply: ModelReply) -> tuple[str, list[str]]:
    return text_of(reply.message), [found.name for found in calls_of(reply.message)]


@pytest.mark.parametrize(("api", "streams"), BOTH)
async def test_finds_compacted_text_and_hides_the_round_from_the_client(
    conversation: ProxiedConversation, api: Api, streams: bool
) -> None:
    await conversation.send_until_compacted()
    assert conversation.response_headers["x-everthread-receipt"].startswith("compaction 1: ")
    request_count = len(conversation.log)
    reply = await conversation.ask("What is the boat called?")
    assert "x-everthread-receipt" not in conversation.response_headers
    text, calls = text_and_calls(reply)
    assert "Let me look that up." in text
    assert "Wilhelmina" in text
    assert calls == []
    assert reply.stop == "stop"
    assert len(conversation.log) == request_count + 2
    assert b"call_recall" not in conversation.response_bytes
    first = conversation.messages_sent(2)
    second = conversation.messages_sent(1)
    assert second[: len(first)] == first, "the second round continues the first"
    rounds = [normalize_usage(record.usage or {}, api=api) for record in conversation.log[-2:]]
    stated_usage = normalize_usage(reply.usage or {}, api=api) if has_usage(api, streams) else None
    if stated_usage is not None:
        assert stated_usage.output_tokens == sum(usage.output_tokens for usage in rounds)
        assert stated_usage.prompt_tokens == rounds[-1].prompt_tokens

    await conversation.ask("Thank you.")
    third = conversation.messages_sent(1)
    assert third[: len(second)] == second, "the hidden round stands there again"
    assert all(record.status == 200 for record in conversation.log)
    threads = await conversation.gateways.store.list_threads(limit=10)
    assert len(threads) == 1
    while len(await conversation.gateways.store.usage.list_usage(threads[0].first.id)) < len(  # noqa: ASYNC110
        conversation.log
    ):
        await asyncio.sleep(0.05)  # written after the answer


@pytest.mark.parametrize(("api", "streams"), BOTH)
async def test_answers_recall_together_with_the_clients_own_call(
    conversation: ProxiedConversation,
) -> None:
    await conversation.send_until_compacted()
    reply = await conversation.ask("What is the boat called? I want that and the date.")
    calls = calls_of(reply.message)
    names = [one.name for one in calls]
    assert names == ["terminal"]
    assert reply.stop == "tool_calls"
    before = conversation.messages_sent()
    conversation.client.add_result(calls[0].id, "Monday")
    reply = await conversation.ask()
    assert "Wilhelmina" in text_of(reply.message)
    after = conversation.messages_sent()
    assert after[: len(before)] == before
    added_text = json.dumps(after[len(before) :])
    assert "Monday" in added_text
    assert "call_recall" in added_text
    await conversation.ask("Thank you.")
    assert conversation.messages_sent()[: len(after)] == after
    assert all(record.status == 200 for record in conversation.log)


@pytest.mark.parametrize(
    ("api", "streams"),
    [
        ("anthropic", True),
        ("openai_chat", False),
        ("openai_responses", True),
    ],
)
async def test_recall_is_not_offered_after_three_rounds(
    conversation: ProxiedConversation,
) -> None:
    conversation.client.messages.clear()
    await conversation.send_until_compacted()
    request_count = len(conversation.log)
    reply = await conversation.ask("Search without end: what is the boat called?")
    assert text_and_calls(reply)[1] == []
    assert len(conversation.log) <= request_count + 4
    assert all(record.status == 200 for record in conversation.log)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("api", ["anthropic"])
async def test_hides_a_round_that_the_provider_refuses(
    conversation: ProxiedConversation, is_compacted: bool
) -> None:
    """With thinking on, Claude refuses a continued turn that has no thoughts, with or without results."""
    await conversation.ask(FACT)
    if is_compacted:
        await conversation.send_until_compacted()
    request_count = len(conversation.log)
    thinking = {"type": "enabled", "budget_tokens": 1_024}
    conversation.client.extra = {"max_tokens": 2_000, "thinking": thinking}
    reply = await conversation.ask("What is the boat called?")
    text, calls = text_and_calls(reply)
    assert calls == []
    assert "Let me look that up." in text
    assert "I do not know." in text
    log = conversation.log
    statuses = [record.status for record in log[request_count:]]
    assert statuses == [200, 400, 400, 200]
    assert not conversation.offers_recall()
    assert "call_recall" not in json.dumps(conversation.messages_sent())
    assert conversation.messages_sent() == conversation.messages_sent(4), (
        "what the first round was asked"
    )

    await conversation.ask("Thank you.")
    assert "call_recall" not in json.dumps(conversation.messages_sent())
    assert log[-1].status == 200


@pytest.mark.parametrize(
    ("api", "more", "headers", "settings"),
    [
        ("openai_chat", {"tool_choice": "required"}, {}, ""),
        ("openai_chat", {"tool_choice": "none"}, {}, ""),
        ("openai_chat", {"n": 2}, {}, ""),
        ("anthropic", {"tool_choice": {"type": "any"}}, {}, ""),
        (
            "openai_responses",
            {
                "tool_choice": {"type": "function", "name": "terminal"},
            },
            {},
            "",
        ),
        ("openai_chat", {}, {"x-everthread-recall": "off"}, ""),
        ("openai_chat", {}, {}, "  recall: false\n"),
    ],
)
async def test_recall_is_not_offered_if_forbidden_or_switched_off(
    conversation: ProxiedConversation,
    more: dict[str, Any],
    headers: dict[str, str],
    settings: str,
) -> None:
    conversation.headers = headers
    await conversation.send_until_compacted()
    assert conversation.offers_recall() is not bool(headers or settings)
    await conversation.ask("And now?", **more)
    assert not conversation.offers_recall()


@pytest.mark.parametrize(("api", "streams"), BOTH)
async def test_offers_recall_to_a_client_with_tools_from_the_first_request(
    conversation: ProxiedConversation,
) -> None:
    await conversation.ask(FACT)
    assert conversation.offers_recall()
    reply = await conversation.ask("What is the boat called?")
    assert "Wilhelmina" in text_of(reply.message)
    sent_text = json.dumps(conversation.messages_sent())
    assert "Nothing has left this conversation yet" in sent_text
    assert sent_text.count("Wilhelmina") >= 2, "it names where the text is"
    before = conversation.messages_sent()
    await conversation.ask("Thank you.")
    assert conversation.messages_sent()[: len(before)] == before, "the round is put back"
    other = await conversation.gateways.start("none", key=None)
    await conversation.wait_until_recorded()
    conversation.url = other
    await conversation.ask("And again.")
    assert conversation.messages_sent()[: len(before)] == before, "by another process too"


async def test_offers_recall_to_a_client_without_tools_from_the_first_compaction(
    conversation: ProxiedConversation,
) -> None:
    conversation.client.tools = []
    await conversation.ask(FACT)
    assert "tools" not in conversation.body_sent()
    await conversation.send_until_compacted()
    assert conversation.offers_recall()


@pytest.mark.parametrize("api", APIS)
async def test_the_first_compaction_reads_tools_and_system_from_the_cache(
    api: Api, tmp_path: Path
) -> None:
    """And the call after it reads all but what is new."""
    system = "You keep the ledger. " + text_of_tokens(2_000, "rules")
    async with open_conversation(
        tmp_path,
        api,
        streams=False,
        system=system,
    ) as conversation:
        await conversation.send_until_compacted()
        first = conversation.log[-1]
        reader = PromptReader(first.body["model"])
        assert first.request is not None
        prompt = reader.read(api, first.request, first.body)
        fixed = sum(
            block.tokens for block in prompt.blocks if block.path.startswith(("tools.", "system.0"))
        )
        assert first.cached_tokens >= fixed - 256, "a cache has steps"
        await conversation.ask("Go on.")
        second = conversation.log[-1]
        assert second.cached_tokens >= 0.9 * first.prompt_tokens


@pytest.mark.parametrize(("api", "streams"), [("anthropic", True)])
async def test_a_stream_without_a_call_passes_byte_for_byte(
    conversation: ProxiedConversation,
) -> None:
    await conversation.ask("I recall a boat with the name of a queen.")
    assert conversation.offers_recall()
    with_tool = conversation.response_bytes
    conversation.headers = {"x-everthread-recall": "off"}
    conversation.client.messages[:] = conversation.client.messages[:1]
    await conversation.ask()
    assert not conversation.offers_recall()
    assert _masked(with_tool) == _masked(conversation.response_bytes)


@pytest.mark.parametrize("api", ["anthropic"])
async def test_a_whole_answer_without_a_call_keeps_its_length(
    conversation: ProxiedConversation,
) -> None:
    await conversation.ask("Which boat was it?")
    assert conversation.offers_recall()
    assert conversation.response_headers["content-length"] == str(len(conversation.response_bytes))
    assert "transfer-encoding" not in conversation.response_headers


def _masked(raw: bytes) -> bytes:
    """A stream without the figures that differ between two calls."""
    return re.sub(rb'"(?:id|\w*_tokens)":\s*(?:"[^"]*"|\d+)', b"", raw)


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        ([b'event: a\ndata: {"text":"recall"}\n\n'], False),
        ([b'data: {"name":"recall"}\n\n'], True),
        ([b'data: {"na', b'me": "rec', b'all"}\n\n'], True),
        ([b'data: {"name":"rec"}\r\n\r\n'], True),
        ([b'data: {"name":""}\n\n'], True),
        ([b'data: {"name":"record"}\n\n'], False),
    ],
)
def test_watches_a_stream_for_the_name_of_recall(pieces: list[bytes], found: bool) -> None:
    watch = RecallWatch()
    passed = b"".join(watch.feed(piece) for piece in pieces)
    assert watch.must_merge is found
    assert passed == watch.passed_bytes
    assert passed + watch.held_bytes == b"".join(pieces)
    assert bool(passed) is not found


async def send_until_rewritten(manager: ProxyManager, client: HistoryClient) -> None:
    """Until the client's history is rewritten, without a provider."""
    for turn in range(20):
        client.add_user_message(numbered_text(turn, 600, "ledger"))
        if (await answer_request(manager, client)).is_rewritten:
            client.add_user_message("And now?")
            return
    raise AssertionError("nothing was compacted")


@pytest.mark.parametrize("name", ["mcp__everthread__expand", "everthread_expand"])
async def test_recall_is_not_offered_beside_the_mcp_server(name: str, managers: Managers) -> None:
    manager = managers.open(recall=True, background=False)
    client = HistoryClient(
        "openai_chat",
        tools=[
            {
                **TOOL,
                "function": {**TOOL["function"], "name": name},
            }
        ],
    )
    await send_until_rewritten(manager, client)
    turn = await prepare_request(manager, client.incoming())
    assert turn.outgoing.is_rewritten
    assert not turn.outgoing.offers_recall


async def test_recall_is_not_offered_beside_the_mcp_server_in_a_namespace(
    managers: Managers,
) -> None:
    manager = managers.open(recall=True, background=False)
    inner = [
        {
            "type": "function",
            "name": name,
            "parameters": {"type": "object"},
        }
        for name in ("search", "expand")
    ]
    client = HistoryClient(
        "openai_responses",
        tools=[
            {
                "type": "namespace",
                "name": "mcp__everthread",
                "tools": inner,
            }
        ],
    )
    await send_until_rewritten(manager, client)
    turn = await prepare_request(manager, client.incoming())
    assert turn.outgoing.is_rewritten
    assert not turn.outgoing.offers_recall
    assert b"`mcp__everthread__expand` and `mcp__everthread__search`" in turn.outgoing.body


def test_a_recall_tool_in_the_clients_namespace_is_another_tool() -> None:
    called = {
        "type": "function_call",
        "name": "recall",
        "call_id": "c1",
        "arguments": "{}",
    }
    assert is_recall(called)
    assert not is_recall({**called, "namespace": "mcp__notes"})


async def test_begins_no_recall_round_after_the_time_limit(managers: Managers) -> None:
    clock = SteppedClock(1_000.0)

    manager = managers.open(recall=True, background=False, clock=clock)
    client = HistoryClient("openai_chat", tools=[TOOL])
    await send_until_rewritten(manager, client)
    turn = await prepare_request(manager, client.incoming())
    assert turn.outgoing.offers_recall
    for number in range(2):
        recall_reply = calls_reply(numbered_call("recall", number, query="boat"))
        following = await turn.resume_after_recall(recall_reply)
        assert following is not None, "what it looked up still reaches the model"
        assert following.offers_recall is (number == 0)
        clock.now += 100.0


async def test_counts_the_tokens_of_a_round_before_any_compaction(
    managers: Managers,
) -> None:
    manager = managers.open(recall=True, background=False)
    client = HistoryClient("openai_chat", tools=[TOOL])
    client.add_user_message("Which boat?")
    turn = await prepare_request(manager, client.incoming())
    before = turn.outgoing.tokens
    recall_reply = calls_reply(numbered_call("recall", 0, query="boat"))
    following = await turn.resume_after_recall(recall_reply)
    assert following is not None
    assert following.tokens is not None
    assert before is not None
    assert following.tokens > before + 20


async def test_leaves_the_clients_own_recall_tool_alone(tmp_path: Path) -> None:
    own = {
        "type": "function",
        "function": {**TOOL["function"], "name": "recall"},
    }
    async with open_conversation(tmp_path, "openai_chat", streams=False) as conversation:
        conversation.client.tools = [own]
        await conversation.send_until_compacted()
        descriptions = [
            tool["function"]["description"] for tool in conversation.body_sent()["tools"]
        ]
        assert descriptions == ["Run a command"]


@pytest.mark.parametrize(("api", "streams"), [("anthropic", True)])
async def test_numbers_the_events_of_merged_rounds_consecutively(
    conversation: ProxiedConversation,
) -> None:
    await conversation.send_until_compacted()
    await conversation.ask("What is the boat called?")
    data = [json.loads(event.data) for event in conversation.events]
    kinds = [event["type"] for event in data]
    assert [kinds.count(kind) for kind in ("message_start", "message_delta", "message_stop")] == [
        1,
        1,
        1,
    ]
    indexes = [event["index"] for event in data if event["type"] == "content_block_start"]
    assert indexes == [0, 1]
    assert kinds[-1] == "message_stop"


async def test_puts_hidden_rounds_back_before_they_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hidden round is not stored yet when the next request arrives."""
    stored = asyncio.Event()
    put_state = StateStore.put_state

    async def wait(store: StateStore, scope: str, key: str, value: Any) -> None:
        if key == recall_rounds.ROUNDS_STATE:
            await stored.wait()
        await put_state(store, scope, key, value)

    monkeypatch.setattr(StateStore, "put_state", wait)
    async with open_conversation(tmp_path, "openai_chat", streams=False) as conversation:
        await conversation.send_until_compacted()
        assert "Wilhelmina" in text_of((await conversation.ask("What is the boat called?")).message)
        await conversation.ask("Thank you.")
        stored.set()
        assert "call_recall" in json.dumps(conversation.messages_sent())
