"""`everthread replay` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everthread.core.costs.prices import format_dollars
from tests.cli.conftest import Command, RunAtTerminal, configure
from tests.lab.recorded_histories import make_history


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "talk.json"
    path.write_text(
        json.dumps({"model": "claude-sonnet-4-5", "messages": make_history(12)}),
        "utf-8",
    )
    return path


def test_writes_a_table_and_a_page(everthread: Command, file: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.jsonl"
    spoilt.write_text(
        "\n".join([*(json.dumps(message) for message in make_history(2)), "{half"]),
        "utf-8",
    )
    target = tmp_path / "report.html"
    chosen = f"--window 12000 --no-recall --uncached --html {target}"
    result = everthread(f"replay {file} {spoilt}", chosen)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    for words in (
        "24 calls, claude-sonnet-4-5, window 12,000",
        "no management, no caching",
        "caching, no compaction",
        "oldest messages dropped",
        "Caching alone (system_and_3, no compaction) saves",
        "Compactions",
        "Cache misses",
        "first call",
        "Facts at the end",
        "did not fit into the window; the conversation ended there",
        "Note: line 9: no JSON object; skipped",
        "assumed are 60 s before each message of a person",
        "All 2 conversations",
    ):
        assert words in result.stdout
    written = target.read_text("utf-8")
    assert written.startswith("<!doctype html>")
    assert written.count("<section") == 2
    assert f"--uncached --html {target}</code>" in written, "the page says how it was made"


def test_prints_json_with_every_setting(everthread: Command, file: Path) -> None:
    result = everthread(
        f"replay {file} --window 40000 --model claude-opus-4-1 --engine compressor",
        "--threshold 0.2 --ttl 1h --pause 4000 --step 1 --no-recall --json",
    )
    [found] = json.loads(result.stdout)["replays"]
    assert (found["model"], found["window"], found["threshold"]) == (
        "claude-opus-4-1",
        40_000,
        8_000,
    )
    ours = found["ways"][0]
    assert [call["at"] for call in ours["calls"]][:4] == [0, 1, 4_001, 4_002]
    assert ours["misses"]["cache expired"] > 5
    assert found["compactions"]
    assert sum(call["cost"] for call in ours["calls"]) == pytest.approx(ours["cost"])
    assert {way["name"] for way in found["ways"]} == {
        "everthread",
        "uncached",
        "cached",
        "truncated",
    }


def test_the_window_of_the_configured_model_is_its_own(
    everthread: Command, file: Path, home: Path
) -> None:
    configure(home, "model: {default: mine, context_length: 9000}\n")
    others = everthread.json(f"replay {file} --model gpt-4o")
    own = everthread.json(f"replay {file} --model mine")
    assert others["replays"][0]["window"] == 128_000
    assert own["replays"][0]["window"] == 9_000


def test_compares_thresholds(everthread: Command, file: Path) -> None:
    command = f"replay {file} --window 24000 --no-recall --no-economics --thresholds 15,50"
    low, high = everthread.json(command)["thresholds"]
    assert (low["threshold"], high["threshold"]) == (0.15, 0.5)
    assert low["compactions"] > high["compactions"]
    assert low["mean_context"] < high["mean_context"]
    assert low["peak"] < high["peak"]
    for row in (low, high):
        assert row["dollars"] > 0
        assert row["in_context"] + row["by_recall"] + row["lost"] == pytest.approx(1, abs=0.001)
    output = everthread(command).stdout
    assert format_dollars(low["dollars"]) in output
    assert "1 conversation, claude-sonnet-4-5, window 24,000" in output
    assert "15%, fixed" in output
    assert "15%, weighed" not in output


def test_each_threshold_is_shown_fixed_and_weighed(everthread: Command, file: Path) -> None:
    command = f"replay {file} --window 24000 --no-recall --thresholds 25,40 --pause 400"
    report = everthread.json(command)
    rows = report["thresholds"]
    assert report["windows"] == [24_000]
    named = [(row["threshold"], row["economics"], row["tokens"]) for row in rows]
    assert named == [
        (0.25, False, [6_000]),
        (0.25, True, [6_000]),
        (0.4, False, [9_600]),
        (0.4, True, [9_600]),
    ]
    for fixed, weighed in (rows[:2], rows[2:]):
        assert fixed["peak"] <= fixed["tokens"][0] < 1.25 * fixed["peak"]
        assert weighed["dollars"] < fixed["dollars"], "the cache is cold after each pause"
    assert {
        row["economics"] for row in everthread.json(f"{command} --economics")["thresholds"]
    } == {True}


def test_thresholds_without_prices_are_not_weighed(everthread: Command, file: Path) -> None:
    command = "--model nobodys-model --window 24000 --no-recall --thresholds 25 --json"
    [row] = json.loads(everthread(f"replay {file} {file}", command).stdout)["thresholds"]
    assert (row["economics"], row["dollars"]) == (False, None)
    assert row["compactions"] % 2 == 0, "both conversations"


def test_bad_replay_options_are_one_line(everthread: Command, file: Path, tmp_path: Path) -> None:
    for arguments, problem in (
        (
            f"{tmp_path / 'absent.json'}",
            "absent.json: cannot be read: No such file or directory",
        ),
        (f"{file} --ttl 2h", "--ttl '2h' is not allowed; it must be 5m or 1h"),
        (f"{file} --engine nobodys", "nobodys"),
        (f"{file} --thresholds 15,x", "give per cent from 5 to 95"),
        (f"{file} --thresholds 0.3", "give per cent from 5 to 95"),
        (
            f"{file} --no-recall --html {tmp_path / 'no' / 'page.html'}",
            "page.html: cannot be written",
        ),
    ):
        result = everthread(f"replay {arguments}")
        assert result.returncode in (1, 2)
        assert problem in result.stderr
        assert "Traceback" not in result.stderr


def test_a_terminal_shows_a_progress_bar(at_terminal: RunAtTerminal, tmp_path: Path) -> None:
    long = tmp_path / "long.json"
    long.write_text(json.dumps(make_history(40, words=400)), "utf-8")
    code, screen = at_terminal(f"replay {long} --window 16000 --no-recall")
    assert code == 0
    assert "%" in screen.split("long.json: ")[0]
    assert "calls, claude-sonnet-4-5" in screen
