"""`everthread models` in a real process."""

from __future__ import annotations

from pathlib import Path

import pytest

from everthread.providers.local import SMOLLM2
from everthread.store.records import LimitKey
from everthread.store.store import Store
from tests.cli.conftest import Command, RunOnStore, configure
from tests.wire.recording import json_reply, recording_server


def test_the_catalogue_is_listed(everthread: Command) -> None:
    everything = everthread.json("models list")["models"]
    claudes = everthread.json("models list Claude")["models"]
    assert len(everything) > len(claudes) > 5
    assert all("claude" in entry["family"] for entry in claudes)
    result = everthread("models list gpt-4.1")
    assert "1,047,576" in result.stdout


def test_a_model_is_shown_without_network(everthread: Command) -> None:
    facts = everthread.json("models show claude-sonnet-4-5 --offline")
    assert (facts["provider"], facts["protocol"], facts["window"]) == (
        "anthropic",
        "anthropic",
        200_000,
    )
    assert (facts["max_output"], facts["cache"], facts["cache_min"]) == (
        64_000,
        "marks",
        1_024,
    )
    assert facts["prices"]["output"] > facts["prices"]["input"] > 0
    assert facts["key"].startswith("ANTHROPIC_API_KEY (")
    output = everthread("models show claude-sonnet-4-5 --offline").stdout
    assert "200,000 tokens, from the catalogue" in output


def test_the_configured_model_is_shown_as_its_server_reports_it(
    everthread: Command, home: Path
) -> None:
    with recording_server([json_reply({"id": "mine", "max_model_len": 12_345})]) as server:
        configure(home, f"model: {{default: mine, base_url: '{server.url}'}}\n")
        facts = everthread.json("models show")
    assert facts["window"] == 12_345
    assert "max_model_len" in facts["window_source"]
    assert facts["prices"] is None
    assert facts["key"] == "none needed"


def test_an_unreachable_server_is_noted_and_is_no_failure(everthread: Command, home: Path) -> None:
    with recording_server([]) as server:
        configure(home, f"model: {{default: mine, base_url: '{server.url}'}}\n")
    facts = everthread.json("models show")
    assert facts["window"] == 128_000
    assert "assumed" in facts["window_source"]
    assert "ConnectError" in facts["window_note"]


def test_learnt_limits_are_shown_and_forgotten(
    everthread: Command, home: Path, run_on_store: RunOnStore
) -> None:
    configure(
        home,
        "model: {default: mine, base_url: 'http://127.0.0.1:9/v1', context_length: 50000}\n",
    )

    async def learn(store: Store) -> None:
        await store.limits.learn_limit(
            LimitKey("http://127.0.0.1:9/v1", "mine"), 9_000, source="it said so"
        )
        await store.limits.learn_limit(
            LimitKey("http://127.0.0.1:9/v1", "other"), 8_000, source="it said so"
        )

    run_on_store(learn)
    facts = everthread.json("models show")
    assert (facts["window"], len(facts["learnt_limits"])) == (9_000, 1)
    assert "it said so" in facts["window_source"]
    assert everthread("models forget mine").stdout == "1 learnt limit forgotten\n"
    assert everthread.json("models show")["window"] == 50_000
    assert everthread("models forget").stdout == "1 learnt limit forgotten\n"
    assert everthread("models forget").stdout == "0 learnt limits forgotten\n"


def test_the_local_model_shows_whether_its_file_exists(everthread: Command, home: Path) -> None:
    assert "everthread models pull" in everthread.json("models show local/smollm2-135m")["address"]
    path = SMOLLM2.path(home)
    path.parent.mkdir(parents=True)
    path.touch()
    facts = everthread.json("models show local/smollm2-135m")
    assert facts["address"] == str(path)
    assert facts["window"] == 8_192


@pytest.mark.parametrize("arguments", ["show", "show who-is-this"])
def test_bad_model_arguments_are_bad_input(everthread: Command, arguments: str) -> None:
    assert everthread.refuses(f"models {arguments}").startswith("everthread: ")


def test_an_unreachable_package_index_is_a_failure(
    everthread: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    result = everthread("models pull")
    assert result.returncode == 1
    assert "Check the network" in result.stderr


def test_a_configured_price_is_shown_with_its_source(everthread: Command, home: Path) -> None:
    configure(
        home,
        "model: {default: nobody-knows, provider: custom, base_url: 'http://127.0.0.1:9'}\n"
        "prices: {nobody-knows: {input: 2, output: 8, cache_read: 0.5}}\n",
    )
    facts = everthread.json("models show --offline")
    assert facts["prices"] == {
        "input": 2.0,
        "output": 8.0,
        "cache_read": 0.5,
    }
    assert facts["price_source"] == "the configuration (prices)"
