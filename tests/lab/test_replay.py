"""A replay: calls, cache misses, baselines, times and facts."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.conversation.conversation import Conversation
from everthread.conversation.setup import Setup
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import Message
from everthread.core.types import ModelReply
from everthread.errors import InputError
from everthread.factory import open_store
from everthread.lab.importers.log import Log, LoggedMessage
from everthread.lab.importers.read_logs import parse_log, read_log
from everthread.lab.provider import Provider
from everthread.lab.provider.cache import PrefixDigests, digest_prefixes
from everthread.lab.provider.prompt_blocks import Block
from everthread.lab.replay import Replay, replay, result
from everthread.lab.replay.replay_plan import plan_replay
from everthread.lab.replay.tracked_facts import collect_facts, read_context
from everthread.providers.clients import AnthropicModel, OpenAIChatModel
from everthread.testing import SteppedClock
from everthread.thread.route import Route
from tests.lab.recorded_histories import PLAIN, make_history
from tests.shared_data import shared_path

CLAUDE = "claude-sonnet-4-5"
GPT = "gpt-4o"
WINDOW = 12_000


@pytest.mark.parametrize("model", [CLAUDE, GPT])
async def test_a_replay_agrees_with_the_provider_over_http(model: str, tmp_path: Path) -> None:
    messages = make_history(12)
    times = [30.0 * number + (5_000 if number > 15 else 0) for number in range(24)]
    replayed = replay(
        messages,
        model=model,
        window=WINDOW,
        options=PLAIN,
        times=times,
        with_baselines=False,
    )
    log = await _send_over_http(messages, model, times, tmp_path)
    assert len(replayed.compactions) >= 2
    for call, record in zip(replayed.everthread.calls, log, strict=True):
        assert (call.use.prompt, call.use.read, call.use.write) == record
    assert any(read for _, read, _ in log)


async def _send_over_http(
    messages: list[Message], model: str, times: list[float], folder: Path
) -> list[tuple[int, int, int]]:
    """Send the same conversation over HTTP; return prompt, cached and written tokens of each call."""
    clock = SteppedClock(0.0)
    script = [ModelReply(message) for message in messages if message["role"] == "assistant"]
    store = open_store(folder / "http.db")
    async with Provider({model: WINDOW}, script, clock=clock) as provider:
        is_claude = model == CLAUDE
        model_class = AnthropicModel if is_claude else OpenAIChatModel
        api = model_class.api
        sender = model_class(model, window=WINDOW, base_url=provider.base_url(api), api_key="lab")
        setup = Setup(
            store=store,
            route=Route(
                model,
                api,
                WINDOW,
                provider="anthropic" if is_claude else "auto",
                model=sender,
            ),
            make_engine=ContextCompressor,
            make_summarizer=lambda context: JournalWriter(context.counter),
            options=PLAIN,
            clock=clock,
        )
        conversation = await Conversation.open(setup)
        inputs: list[Message] = []
        for message in messages:
            if message["role"] == "assistant":
                clock.now = times[len(provider.log)]
                await conversation.send(inputs)
                inputs = []
            else:
                inputs.append(message)
        await conversation.close()
        await sender.aclose()
    await store.close()
    return [
        (record.prompt_tokens, record.cached_tokens, record.written_tokens)
        for record in provider.log
    ]


def _log(messages: list[Message], models: list[str]) -> Log:
    names = iter(models)
    entries = [
        LoggedMessage(message, model=next(names) if message["role"] == "assistant" else "")
        for message in messages
    ]
    return Log("test", "core", entries, system="Be brief. " * 800)


def test_gives_the_cause_of_every_miss() -> None:
    models = [CLAUDE] * 38 + ["claude-opus-4-1"] * 2
    times = [10.0 * number + (1_000 if number > 9 else 0) for number in range(40)]
    tool = {
        "type": "function",
        "function": {"name": "bash", "parameters": {"type": "object"}},
    }

    def policy(call: int, conversation: Conversation) -> bool:
        if call == 34:
            conversation.use_tools([tool])
        return call == 30

    replayed = replay(
        _log(make_history(20), models),
        window=120_000,
        options=PLAIN,
        times=times,
        compact=policy,
    )
    assert {at: call.miss for at, call in enumerate(replayed.everthread.calls) if call.miss} == {
        0: result.FIRST_CAUSE,
        10: result.EXPIRED_CAUSE,
        30: result.COMPACTION_CAUSE,
        34: result.TOOLS_CAUSE,
        38: result.MODEL_CAUSE,
    }
    assert [made.call for made in replayed.compactions] == [30]
    assert all(call.missed_tokens > 0 for call in replayed.everthread.calls[1:] if call.miss)
    # After a compaction the system prompt is still read from the cache, and the call after reads all but the new.
    after = replayed.everthread.calls[30:32]
    assert after[0].use.read > 500
    assert after[1].use.read == after[0].use.read + after[0].use.write
    # The cache alone misses for the same reasons, but for what compaction and tools did.
    assert set(replayed.strategy("cached").misses) == {
        result.FIRST_CAUSE,
        result.EXPIRED_CAUSE,
        result.MODEL_CAUSE,
    }


def test_reports_prompts_too_short_for_the_cache() -> None:
    replayed = replay(make_history(2, words=3), model=GPT, window=WINDOW, options=PLAIN)
    assert [call.miss for call in replayed.everthread.calls] == [
        result.FIRST_CAUSE,
        result.SHORT_PROMPT_CAUSE,
        result.SHORT_PROMPT_CAUSE,
        result.SHORT_PROMPT_CAUSE,
    ]
    assert replayed.everthread.read == 0


def test_baselines_are_refused_or_cost_more() -> None:
    replayed = replay(make_history(30), model=CLAUDE, window=WINDOW, options=PLAIN)
    ours, uncached, cached, dropped = (
        replayed.strategy(name) for name in ("everthread", "uncached", "cached", "truncated")
    )
    assert len(ours.calls) == len(dropped.calls) == 60
    assert ours.peak <= WINDOW
    assert dropped.peak <= WINDOW
    assert uncached.refused_call == cached.refused_call == len(cached.calls) < 60
    assert uncached.read == 0
    assert [call.use.prompt for call in uncached.calls] == [
        call.use.prompt for call in cached.calls
    ]
    assert dropped.misses[result.TRUNCATION_CAUSE] > 5
    assert ours.cost is not None
    assert dropped.cost is not None
    assert ours.cost < dropped.cost
    saved = replayed.share_saved_against(uncached)
    assert saved is not None
    assert 0 < saved < 1
    ours_then = ours.cost_of_first(len(uncached.calls))
    assert ours_then is not None
    assert uncached.cost is not None
    assert saved == pytest.approx(float(1 - ours_then / uncached.cost))
    # Facts: a store loses none; truncation loses those it dropped.
    assert ours.facts is not None
    assert dropped.facts is not None
    assert ours.facts.total == dropped.facts.total > 30
    assert ours.facts.lost == 0
    assert dropped.facts.lost > 10
    assert json.loads(json.dumps(replayed.as_dict()))["ways"][0]["answered"] == 60


def test_continues_after_a_result_larger_than_the_window() -> None:
    messages = make_history(3)
    messages[6] = {
        **messages[6],
        "content": " ".join(f"huge{number}" for number in range(9_000)),
    }
    replayed = replay(messages, model=CLAUDE, window=WINDOW, options=PLAIN)
    assert replayed.everthread.refused_call is None
    assert replayed.strategy("truncated").refused_call is None
    assert replayed.strategy("cached").refused_call == 3


def test_ends_with_a_note_if_compaction_is_disabled() -> None:
    replayed = replay(
        make_history(30),
        model=CLAUDE,
        window=WINDOW,
        options=replace(PLAIN, enabled=False),
        with_baselines=False,
    )
    assert replayed.everthread.refused_call == len(replayed.everthread.calls) < 60
    assert any("compression is disabled" in note for note in replayed.notes)


def test_reports_no_cost_without_a_price() -> None:
    replayed = replay(make_history(2), model="nobodys-model", window=WINDOW, options=PLAIN)
    assert replayed.everthread.cost is None
    assert replayed.share_saved_by_caching() is None
    assert replayed.share_saved_against(replayed.strategy("uncached")) is None


def test_refuses_invalid_times() -> None:
    with pytest.raises(InputError, match="times has 3 entries; the conversation has 4 calls"):
        replay(make_history(2), times=[0.0, 1.0, 2.0])
    with pytest.raises(InputError, match="goes back"):
        replay(make_history(1), times=[5.0, 4.0])
    with pytest.raises(InputError, match="no answer"):
        replay([{"role": "user", "content": "Hello?"}])


def test_takes_times_from_the_log() -> None:
    entries = [
        LoggedMessage(message, 1_000.0 + 7 * index) for index, message in enumerate(make_history(2))
    ]
    plan = plan_replay(Log("t", "core", entries))
    assert (plan.times_from, plan.started_at) == ("log", 1_000.0)
    assert [call.sent_at for call in plan.calls] == [0.0, 14.0, 28.0, 42.0]


def test_derives_times_from_the_cache_use() -> None:
    warm = {"cache_read": 800, "cache_write": 900, "input": 3, "output": 5}
    cold = warm | {"cache_read": 0}

    def list_times(*usage: dict[str, int]) -> list[float]:
        log = parse_log(json.dumps({"messages": make_history(2), "usage": usage}))
        plan = plan_replay(log, pause=3_000, ttl=300)
        assert plan.times_from == "usage"
        return [call.sent_at for call in plan.calls]

    assert list_times(cold, warm, cold, warm) == [0.0, 15.0, 3_015.0, 3_030.0]
    assert list_times(warm, warm, warm, warm)[2] < 300


def test_assumes_times_without_any() -> None:
    entries = [LoggedMessage(message) for message in make_history(2)]
    plan = plan_replay(Log("t", "core", entries), pause=50, step=5)
    assert plan.times_from == "assumed"
    assert [call.sent_at for call in plan.calls] == [0.0, 5.0, 55.0, 60.0]
    assert "50 s before each message of a person" in plan.notes[-1]


def test_keeps_times_and_usage_of_calls_beside_a_repair() -> None:
    entries = [
        LoggedMessage(
            message,
            1_000.0 + 10 * number,
            CanonicalUsage(output_tokens=number),
            model=CLAUDE,
        )
        for number, message in enumerate(make_history(4))
    ]
    # Says nothing.
    entries[5] = replace(
        entries[5], message={**entries[5].message, "content": "", "tool_calls": []}
    )
    del entries[10]  # a call without its result
    entries[-1] = replace(entries[-1], timestamp=None)
    entries[-2] = replace(entries[-2], timestamp=None)
    plan = plan_replay(Log("log", "core", entries))
    assert plan.notes[0].startswith("repairs: ")
    assert "1 call without a time in the log; assumed" in plan.notes
    assert (plan.times_from, plan.started_at) == ("log", 1_000.0)
    outputs = [call.usage.output_tokens for call in plan.calls if call.usage]
    assert outputs == [1, 3, 7, 9, 11, 13, 15]
    assert [call.sent_at for call in plan.calls] == [0, 20, 60, 80, 110, 120, 135]


def test_finds_facts_as_whole_words() -> None:
    context = read_context(
        [{"role": "user", "content": "See `src/app.py` and\nrun  make check-all."}]
    )
    assert "src/app.py" in context
    assert "run make check-all" in context
    assert "app.py" not in context
    assert "make check" not in context
    facts = collect_facts(make_history(3))
    assert {(fact.kind, fact.text) for fact in facts} >= {
        ("commands", "pytest -q tests/test_part_1.py")
    }


def test_agrees_with_the_recorded_cost_of_a_long_transcript() -> None:
    """Against what the provider really reported: 439 calls, with their cache figures and their price."""
    log = read_log(str(shared_path("transcripts", "coding-long-claude.json")))
    replayed = replay(log, options=replace(PLAIN, economics=True), with_baselines=True)
    cached = replayed.strategy("cached")
    assert replayed.times_from == "usage"
    assert replayed.recorded_cost is not None
    assert float(cached.cost or 0) == pytest.approx(replayed.recorded_cost, rel=0.08)
    assert 0.70 < _known(replayed.share_saved_by_caching()) < 0.85
    assert cached.misses[result.EXPIRED_CAUSE] == _count_expirations(log)
    assert replayed.everthread.peak < cached.peak
    assert _known(replayed.share_saved_against(cached)) > 0.3
    assert replayed.everthread.facts is not None
    assert replayed.everthread.facts.lost <= replayed.everthread.facts.total * 0.02, (
        "long commands that a phrase search misses"
    )
    assert replayed.everthread.facts.kinds["user messages"][2] == 0


def _known(share: float | None) -> float:
    assert share is not None
    return share


def _count_expirations(log: Log) -> int:
    usage = [entry.usage for entry in log.entries if entry.usage is not None]
    return sum(
        not later.cache_read_tokens
        and bool(earlier.cache_read_tokens or earlier.cache_write_tokens)
        for earlier, later in pairwise(usage)
    )


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=6))
def test_digests_of_growing_prompts_equal_fresh_digests(
    requests: list[list[int]],
) -> None:
    blocks = [Block(f"text {number}", number) for number in range(4)]
    growing = PrefixDigests()
    for request in requests:
        given_blocks = [blocks[number] for number in request]
        assert growing(given_blocks) == digest_prefixes(given_blocks)


async def test_replay_works_inside_a_running_loop() -> None:
    async def inside() -> Replay:
        return replay(make_history(1), window=WINDOW, options=PLAIN, with_baselines=False)

    assert len((await inside()).everthread.calls) == 2
