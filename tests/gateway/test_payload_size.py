"""Effects of a rewrite: fewer bytes if there are too many, a note, a pause if it hardly helps, its record."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from everthread.compaction.summarizers.summarizer import SummaryDraft
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.summary_marks import SUMMARY_START
from everthread.core.types import Api, ModelRequest
from everthread.gateway.contracts import Outgoing
from everthread.lab.provider import Fault
from everthread.thread.caller.caller_request import Outcome
from everthread.thread.events import CompactionDone, Notice, PayloadShrunk
from everthread.wire.codecs import CODECS
from tests.apis import APIS
from tests.chat_messages import calls_message, function_call
from tests.gateway.manager_setup import (
    HistoryClient,
    Managers,
    ask,
    numbered_text,
    open_managers_with_provider,
    prepare_request,
    statuses_of,
    text_of_tokens,
    thread_of,
)

MAX_BYTES = 60_000


def image(number: int) -> dict[str, Any]:
    data = base64.b64encode(bytes([number]) * 9_000).decode()
    return {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{data}"},
    }


def answer_or_refuse(request: ModelRequest) -> Any:
    size = len(json.dumps([request.messages]))
    return Fault("payload_too_large") if size > MAX_BYTES else "Seen."


@pytest.mark.parametrize("api", APIS)
async def test_a_too_large_request_loses_old_images_first(api: Api, tmp_path: Path) -> None:
    """Every request is answered, the latest image stays, and no summary is written."""
    async with open_managers_with_provider(
        tmp_path, answer_or_refuse, window=100_000
    ) as managers_with_provider:
        extra = {"max_tokens": 500} if api == "anthropic" else {}
        client = HistoryClient(api, extra=extra)
        manager = managers_with_provider.open()
        sent = b""
        for number in range(10):
            text = {"type": "text", "text": f"Picture {number}"}
            message: Any = {"role": "user", "content": [text, image(number)]}
            client.messages += CODECS[api].encode_messages([message], model=client.model)
            exchange = await managers_with_provider.send(manager, client)
            sent = exchange.sent.body
            assert base64.b64encode(bytes([number]) * 30) in sent
            assert exchange.sent.headers["x-everthread-compactions"] == "0"
        assert managers_with_provider.events_of(PayloadShrunk)
        assert not managers_with_provider.events_of(CompactionDone)
        refused = statuses_of(managers_with_provider.provider).count(413)
        assert 1 <= refused <= 4, "later requests use the smaller form"
        assert all(b"Picture %d" % number in sent for number in range(10))


async def test_a_too_large_result_is_stored_and_cited(tmp_path: Path) -> None:
    async with open_managers_with_provider(
        tmp_path, answer_or_refuse, window=100_000
    ) as managers_with_provider:
        client = HistoryClient("openai_chat")
        manager = managers_with_provider.open()
        client.add_user_message("Read it.")
        client.messages.append(calls_message(function_call("c1", "read")))
        client.add_result("c1", text_of_tokens(16_000, "line"))
        exchange = await managers_with_provider.send(manager, client)
        [slimmed] = managers_with_provider.events_of(PayloadShrunk)
        assert slimmed.stored_count == 1
        [stored] = await managers_with_provider.store.outputs.list_outputs(thread_of(exchange.sent))
        assert stored.id in exchange.sent.body.decode()
        text = await managers_with_provider.store.outputs.load_output(stored.id, tenant="t")
        assert text == text_of_tokens(16_000, "line")


@pytest.mark.parametrize(
    ("api", "system"),
    [
        *((api, "Be brief.") for api in APIS),
        ("anthropic", [{"type": "text", "text": "Be brief."}]),
    ],
)
async def test_the_note_follows_the_system_text_from_the_first_rewrite_on(
    api: Api, system: Any, managers: Managers
) -> None:
    client = HistoryClient(api, system=system)
    manager = managers.open(background=False)
    notes: list[str] = []
    body: Any = {}
    for number in range(16):
        sent = await ask(manager, client, numbered_text(number, 700, "note"))
        body = json.loads(sent.body)
        text = read_system_text(body)
        assert text.startswith("Be brief.")
        notes.append(text.removeprefix("Be brief."))
    assert notes[0] == ""
    assert len(set(notes)) == 2, "it stays the same through every later compaction"
    assert "compacted" in notes[-1]
    assert notes == sorted(notes, key=len)
    assert len(managers.events_of(CompactionDone)) >= 3
    if api == "anthropic":
        assert body["system"][0] == {"type": "text", "text": "Be brief."}, (
            "the note is a block of its own"
        )


def read_system_text(body: dict[str, Any]) -> str:
    prompt = body.get("system") or body.get("instructions")
    if prompt is None:
        prompt = body["messages"][0]["content"]
    if isinstance(prompt, str):
        return prompt
    return "|".join(block["text"] for block in prompt)


async def test_pauses_compactions_that_hardly_help(
    managers: Managers,
) -> None:
    """The provider counts what the client sent, as if no rewrite had made anything smaller."""

    client = HistoryClient("openai_chat")
    manager = managers.open(background=False)

    async def send_turn(text: str) -> None:
        client.add_user_message(text)
        incoming = client.incoming()
        turn = await prepare_request(manager, incoming)
        client.add_assistant_message("Yes.")
        usage = CanonicalUsage(len(incoming.body.plain) // 5, 3)
        await turn.record(Outcome(200, None, usage))

    def count_pauses() -> int:
        return sum("paused" in event.text for event in managers.events_of(Notice))

    while not count_pauses():
        assert len(managers.events_of(CompactionDone)) < 5
        await send_turn(text_of_tokens(300, f"note {len(client.messages)}"))
    compaction_count = len(managers.events_of(CompactionDone))
    for _ in range(3):
        await send_turn("And on.")
    assert len(managers.events_of(CompactionDone)) == compaction_count
    assert count_pauses() == 1
    await send_turn(text_of_tokens(900, "much more"))
    assert len(managers.events_of(CompactionDone)) > compaction_count, "a tenth more ends it"


class PaidSummarizer:
    """Writes a summary that cost something."""

    name = "paid"

    async def summarize(self, _request: Any) -> Any:
        tokens = {"input_tokens": 1_000, "output_tokens": 100}
        usage = {"model": "claude-sonnet-4-5", **tokens}
        return SummaryDraft({"Goal": "- settle the ledger"}, self.name, usage=(usage,))


async def test_compactions_are_recorded_with_their_cost(managers: Managers) -> None:
    client = HistoryClient("anthropic")
    manager = managers.open(background=False, summarizer=PaidSummarizer())
    sent = Outgoing(b"")
    for number in range(12):
        sent = await ask(manager, client, numbered_text(number, 700, "note"))
    thread = thread_of(sent)
    assert SUMMARY_START in sent.body.decode()
    compactions = managers.events_of(CompactionDone)
    records = [entry.record for entry in await managers.store.list_compactions(thread)]
    tokens_before = [record.tokens_before for record in records]
    tokens_befores = [event.tokens_before for event in compactions]
    assert tokens_before == tokens_befores
    authors = {record.author for record in records}
    assert authors == {"paid"}
    assert all(record.cost and record.tokens_after < record.tokens_before for record in records)
    usage = [
        entry
        for entry in await managers.store.usage.list_usage(thread)
        if entry.task == "auxiliary"
    ]
    assert len(usage) == len(compactions) >= 2
    insights = await managers.store.usage.load_insights(since=0, until=1e12, tenant="t")
    assert insights.compactions == len(compactions)
    fading = [event.text for event in managers.events_of(Notice) if "may fade" in event.text]
    assert len(fading) == len(compactions) - 1
    assert f"compacted {len(compactions)} times" in sent.headers["x-everthread-notice"]
