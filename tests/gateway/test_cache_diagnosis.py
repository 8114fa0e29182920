"""Why the cache missed: an answer that the client asked for is read, and nothing is added."""

from __future__ import annotations

from pathlib import Path

from everthread.core.types import ModelReply
from everthread.gateway.answer_reader import read_usage
from everthread.gateway.dashboard.call_history import make_calls_view
from everthread.thread.caller.caller_request import Outcome
from tests.gateway.manager_setup import (
    HistoryClient,
    open_managers_with_provider,
    prepare_request,
    text_of_tokens,
)

DIAGNOSED = {
    "diagnostics": {"cache_miss_reason": {"type": "system_changed"}},
}


def answer_of(prompt: int, *, read: int, is_diagnosed: bool) -> ModelReply:
    usage = {
        "input_tokens": prompt - read,
        "cache_read_input_tokens": read,
        "output_tokens": 9,
    }
    raw = DIAGNOSED if is_diagnosed else {}
    return ModelReply(
        {"role": "assistant", "content": "Yes."},
        "stop",
        usage,
        raw=dict(raw),
    )


async def test_stores_and_shows_the_reason_in_an_answer(tmp_path: Path) -> None:
    async with open_managers_with_provider(tmp_path, None) as managers_with_provider:
        manager = managers_with_provider.open()
        fields = {
            "max_tokens": 400,
            "diagnostics": {"previous_message_id": "msg_1"},
        }
        client = HistoryClient("anthropic", extra=fields)
        for number, prompt in enumerate((4_000, 5_000, 6_000)):
            client.add_user_message(f"Note {number}: {text_of_tokens(50, 'ledger')}")
            turn = await prepare_request(manager, client.incoming())
            assert turn.outgoing.body == client.incoming().body.raw, "nothing is added"
            reply = answer_of(
                prompt,
                read=3_900 * (number == 1),
                is_diagnosed=number == 2,
            )
            await turn.record(Outcome(200, reply, read_usage("anthropic", reply)))
            client.add_reply(reply)
        (row,) = await managers_with_provider.store.list_threads(tenant="t")
        calls = await managers_with_provider.store.usage.list_usage(row.first.id)
        cache_misses = [call.usage.cache_miss for call in calls]
        assert cache_misses == ["", "", "system changed"]
        (miss,) = make_calls_view(calls, [], ttl=300.0).misses
        assert miss.is_reported
        assert miss.cause == "system changed (says the provider)"


async def test_finds_the_reason_if_the_answer_states_none(tmp_path: Path) -> None:
    reply = answer_of(4_000, read=0, is_diagnosed=False)
    usage = read_usage("anthropic", reply)
    assert usage is not None
    assert not usage.cache_miss
    assert read_usage("anthropic", None) is None
