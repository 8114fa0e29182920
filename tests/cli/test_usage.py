"""`everthread usage` and `everthread insights` against a real store."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.store.records import NewCompaction, NewMessage, NewSession
from everthread.store.store import Store
from everthread.store.usage_records import NewUsage, UsageTask
from tests.cli.conftest import Command, RunOnStore

DAY = 86_400
USED = CanonicalUsage(
    input_tokens=1_000,
    output_tokens=200,
    cache_read_tokens=3_000,
    cache_write_tokens=500,
    reasoning_tokens=50,
)


def call(
    session: str,
    *,
    cost: str | None = "0.25",
    task: UsageTask = "main",
    model: str = "big",
    days_ago: float = 0,
    **more: Any,
) -> NewUsage:
    price = None if cost is None else Decimal(cost)
    return NewUsage(session, model, USED, task, price, created=time.time() - days_ago * DAY, **more)


async def store_month(store: Store) -> None:
    """A thread with a subagent, another tenant's thread; calls of a month, one of them without a price."""
    await store.create_session(NewSession(id="thread", platform="cli"))
    await store.create_session(
        NewSession(
            id="helper",
            kind="subagent",
            parent="thread",
            platform="cli",
        )
    )
    await store.create_session(
        NewSession(
            id="other",
            tenant="two",
            platform="gateway",
        )
    )
    for used in (
        call("thread"),
        call("thread", days_ago=2),
        call(
            "thread",
            task="auxiliary",
            model="small [x]",
            cost=None,
            estimated=True,
        ),
        call("helper", days_ago=4),
        call("other", cost="1"),
        call("other", cost="1", days_ago=40),
    ):
        await store.usage.record_usage(used)
    result: Any = {
        "role": "tool",
        "name": "terminal",
        "tool_call_id": "c",
        "content": "done",
    }
    lookup: Any = {
        "role": "tool",
        "name": "recall",
        "tool_call_id": "d",
        "content": "here",
    }
    request = NewMessage({"role": "user", "content": "Go."})
    stored_messages = await store.append(
        "thread",
        [request, NewMessage(result, tokens=90), NewMessage(lookup, tokens=10)],
    )
    record = NewCompaction(tokens_before=5_000, tokens_after=1_000)
    await store.continue_session("thread", [stored_messages[0].id], seen_count=3, compaction=record)


@pytest.fixture
def stored_month(run_on_store: RunOnStore) -> None:
    run_on_store(store_month)


def test_a_model_that_costs_nothing_is_free_not_unknown(
    everthread: Command, run_on_store: RunOnStore
) -> None:
    async def talk_locally(store: Store) -> None:
        await store.create_session(NewSession(id="thread"))
        usage = NewUsage("thread", "smollm2-135m", USED, cost=Decimal(0))
        await store.usage.record_usage(usage)

    run_on_store(talk_locally)
    output = everthread("usage").stdout
    cost = next(line for line in output.splitlines() if line.split()[:1] == ["cost"])
    assert cost.split() == ["cost", "free", "free"]
    assert "without a known price" not in output
    assert "cost free" in everthread("insights").stdout


@pytest.mark.usefixtures("stored_month")
class TestUsage:
    def test_sums_the_usage_of_a_thread(self, everthread: Command) -> None:
        sums = everthread.json("usage thr")["sums"]
        assert {task: row["calls"] for task, row in sums.items()} == {
            "main": 2,
            "auxiliary": 1,
            "subagents": 1,
            "all": 4,
        }
        main = sums["main"]
        assert (main["input"], main["cache_read"], main["cache_write"]) == (
            2_000,
            6_000,
            1_000,
        )
        assert (main["prompt"], main["output"], main["reasoning"], main["total"]) == (
            9_000,
            400,
            100,
            9_400,
        )
        assert (main["cost"], main["cache_hit_share"]) == (0.5, pytest.approx(6 / 9))

    def test_a_missing_price_is_unknown_not_zero(self, everthread: Command) -> None:
        sums = everthread.json("usage thread")["sums"]
        assert (sums["auxiliary"]["cost"], sums["auxiliary"]["unpriced_calls"]) == (
            None,
            1,
        )
        assert (sums["all"]["cost"], sums["all"]["known_cost"]) == (None, 0.75)
        output = everthread("usage thread").stdout
        cost = next(line for line in output.splitlines() if line.split()[:1] == ["cost"])
        assert cost.split(maxsplit=1)[1].split("  ")[0] == "$0.5000"
        assert "unknown" in cost
        assert "$0.7500 + unknown" in cost
        assert "$0.00" not in output
        assert "1 of 4 calls without a known price" in output

    def test_sums_the_usage_of_all_threads(self, everthread: Command) -> None:
        sums = everthread.json("usage")["sums"]
        assert {task: row["calls"] for task, row in sums.items()} == {
            "main": 5,
            "auxiliary": 1,
            "all": 6,
        }
        assert next(iter(sums)) == "main"
        assert everthread.json("usage --tenant two")["sums"]["all"]["cost"] == 2.0

    def test_sums_the_usage_of_a_period(self, everthread: Command) -> None:
        assert everthread.json("usage --since 30d")["sums"]["all"]["calls"] == 5
        assert everthread.json("usage thread --since 3d --until 1d")["sums"]["all"]["calls"] == 1
        assert everthread("usage --until 90d").stdout == "no calls to a model are recorded\n"
        assert "is not a time" in everthread.refuses("usage --since 'when?'")

    def test_calls_of_a_thread_are_listed(self, everthread: Command) -> None:
        calls = everthread.json("usage thread --calls")["calls"]
        assert [(one["model"], one["task"], one["cost"]) for one in calls] == [
            ("big", "main", 0.25),
            ("big", "main", 0.25),
            ("small [x]", "auxiliary", None),
        ]
        assert [one["estimated"] for one in calls] == [False, False, True]
        output = everthread("usage thread --calls").stdout
        for words in (
            "2 d ago",
            "small [x]",
            "unknown",
            "3,000",
            "1 of 3 calls estimated",
        ):
            assert words in output

    def test_figures_keep_their_digits_on_a_narrow_terminal(self, everthread: Command) -> None:
        wide = everthread("usage thread --calls").stdout
        for word in ("1,000", "3,000", "$0.2500"):
            assert word in wide
        narrow = everthread("usage thread --calls", columns=40).stdout
        assert narrow.count("3,000") == wide.count("3,000")
        assert narrow.count("$0.2500") == wide.count("$0.2500")

    def test_explains_a_wrong_argument(self, everthread: Command) -> None:
        for arguments, words in (
            ("--calls", "give its id"),
            ("nobody", "begins with 'nobody'"),
        ):
            error = everthread.refuses(f"usage {arguments}")
            assert words in error
            assert error.count("\n") == 1


@pytest.mark.usefixtures("stored_month")
class TestInsights:
    def test_insights_count_calls_tools_and_compactions(self, everthread: Command) -> None:
        report = everthread.json("insights --days 30")
        assert (
            report["total"]["calls"],
            report["total"]["cost"],
            report["total"]["known_cost"],
        ) == (5, None, 1.75)
        assert report["total"]["cache_hit_share"] == pytest.approx(3 / 4.5)
        assert {model: row["calls"] for model, row in report["by_model"].items()} == {
            "big": 4,
            "small [x]": 1,
        }
        assert {name: row["calls"] for name, row in report["by_platform"].items()} == {
            "cli": 4,
            "gateway": 1,
        }
        assert {task: row["calls"] for task, row in report["by_task"].items()} == {
            "main": 4,
            "auxiliary": 1,
        }
        assert report["by_tool"] == {
            "terminal": {"results": 1, "tokens": 90},
            "recall": {"results": 1, "tokens": 10},
        }
        assert (report["compactions"], report["tokens_saved"]) == (1, 4_000)
        assert report["lookups"] == 1
        assert sum(row["calls"] for row in report["by_day"].values()) == 5
        assert datetime.now(UTC).date().isoformat() in report["by_day"]

    def test_options_narrow_the_insights(self, everthread: Command) -> None:
        assert everthread.json("insights --days 60")["total"]["calls"] == 6
        assert everthread.json("insights --days 1")["total"]["calls"] == 3
        assert everthread.json("insights --tenant two")["total"]["calls"] == 1
        assert everthread.json("insights --platform cli")["total"]["calls"] == 4

    def test_insights_are_printed_with_a_chart(self, everthread: Command) -> None:
        output = everthread("insights").stdout
        again = "1 lookup of what had left the context"
        for words in (
            again,
            "tokens by day",
            "by model",
            "small [x]",
            "by tool",
            "terminal",
            "4,000 tokens saved",
        ):
            assert words in output
        bars = {
            line[4:14]: line.count("█")
            for line in output.splitlines()
            if line[8:9] == line[11:12] == "-"
        }
        assert len(bars) == 5
        today = datetime.now(UTC).date().isoformat()
        assert max(bars.values()) == bars[today] > 0
        assert sorted(bars) == list(bars)
        assert 0 in bars.values()

    def test_refuses_days_out_of_range(self, everthread: Command) -> None:
        assert everthread("insights --days 0").returncode == 2


def test_reports_an_empty_store(everthread: Command) -> None:
    assert everthread("usage").stdout == "no calls to a model are recorded\n"
    result = everthread("insights")
    assert result.returncode == 0
    assert "no calls to a model are recorded" in result.stdout
    assert everthread.json("insights")["total"]["cost"] == 0.0
    assert everthread.json("usage")["sums"]["all"]["cache_hit_share"] is None
