"""Commands for a person's own sessions: replay --latest, compare, tune, continue, statusline."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from everthread.config.yaml_text import parse_yaml
from everthread.lab.importers.read_logs import parse_log, read_log
from tests.gateway.manager_setup import make_text

CLAUDE = "claude-sonnet-4-5"


def write_session(home: Path, *, turns: int = 24, compacted_at: int = 16) -> Path:
    """A session of Claude Code in a person's home, with usage, and with one compaction of its own."""
    lines: list[dict[str, Any]] = []
    prompt = 14_000

    def add(kind: str, minute: int, message: dict[str, Any], **more: Any) -> None:
        stamp = f"2026-05-01T{8 + minute // 60:02d}:{minute % 60:02d}:00.000Z"
        lines.append(
            {
                "type": kind,
                "sessionId": "s1",
                "timestamp": stamp,
                "message": {"role": kind, **message},
                **more,
            }
        )

    for turn in range(turns):
        if turn == compacted_at:
            metadata = {"trigger": "auto", "preTokens": prompt}
            lines.append(
                {
                    "type": "system",
                    "subtype": "compact_boundary",
                    "compactMetadata": metadata,
                }
            )
            add(
                "user",
                2 * turn,
                {"content": "So far, part_3.py was changed."},
                isCompactSummary=True,
            )
        add(
            "user",
            2 * turn,
            {
                "content": f"Wish {turn}: change src/part_{turn}.py, mind setting_number_{turn}."
            },
        )
        path = f"src/part_{turn % compacted_at}.py setting_number_{turn % compacted_at}"
        call = {
            "type": "tool_use",
            "id": f"t{turn}",
            "name": "Bash",
            "input": {"command": f"cat {path}"},
        }
        usage = {
            "input_tokens": 4,
            "output_tokens": 30,
            "cache_creation_input_tokens": 900,
        }
        first = (
            {"cache_read_input_tokens": 0, "cache_creation_input_tokens": prompt}
            if not turn
            else {}
        )
        figures = {**usage, "cache_read_input_tokens": prompt - 900, **first}
        add(
            "assistant",
            2 * turn,
            {"id": f"m{turn}", "model": CLAUDE, "content": [call], "usage": figures},
        )
        result = {
            "type": "tool_result",
            "tool_use_id": f"t{turn}",
            "content": make_text(1_600, f"part {turn}"),
        }
        add("user", 2 * turn + 1, {"content": [result]})
        prompt += 2_300
    add(
        "assistant",
        2 * turns,
        {
            "id": "end",
            "model": CLAUDE,
            "content": "Done.",
            "usage": {"input_tokens": prompt},
        },
    )
    file = home / ".claude" / "projects" / "p" / "s1.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    return file


@pytest.fixture
def user_environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user whose home holds one session and no Everthread files."""
    folder = tmp_path / "person"
    write_session(folder)
    return {
        "HOME": str(folder),
        "XDG_DATA_HOME": "",
        "CLAUDE_CONFIG_DIR": "",
        "CODEX_HOME": "",
    }


def test_the_newest_session_in_five_sentences(
    everthread: Any, user_environment: dict[str, str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    shown = everthread.succeeds(
        "replay", "--latest", "--html", str(page), env=user_environment
    )
    length, cost, own, ours, agreement = shown.splitlines()[:5]
    assert length.startswith(
        f"Claude Code, {CLAUDE}: 25 calls in 48 minutes, begun 2026-05-01 08:00 UTC; the largest"
    )
    assert cost.startswith("It cost $")
    assert own.startswith("At its compaction Claude Code's summary kept ")
    assert own.endswith("% in the same room.")
    assert ours.startswith("Everthread would")
    assert "as recorded" in ours
    assert "16 calls before Claude Code's own compaction" in agreement
    assert "as it was, by the log's usage" in shown
    assert own.replace("'", "&#39;") in page.read_text("utf-8")
    found = everthread.json("replay", "--latest", env=user_environment)["replays"][0]
    assert len(found["verdict"]) == 5
    assert (found["window"], found["log"]["own_compactions"]) == (200_000, 1)


def test_the_newest_of_all_programs_is_taken(
    everthread: Any, user_environment: dict[str, str]
) -> None:
    newer = (
        Path(user_environment["HOME"]) / ".pi" / "agent" / "sessions" / "p" / "1.jsonl"
    )
    newer.parent.mkdir(parents=True)
    answer = {
        "role": "assistant",
        "content": [{"type": "text", "text": "Hello"}],
        "model": CLAUDE,
    }
    lines = [
        {"type": "session", "id": "s", "cwd": "/w"},
        {"type": "message", "message": {"role": "user", "content": "Hi"}},
        {"type": "message", "message": answer},
    ]
    newer.write_text("\n".join(json.dumps(line) for line in lines), "utf-8")
    os.utime(newer, (4_000_000_000, 4_000_000_000))
    assert everthread("replay", "--latest", env=user_environment).stdout.startswith(
        f"pi, {CLAUDE}: 1 call; "
    )


def test_a_missing_session_is_reported(
    everthread: Any, user_environment: dict[str, str], tmp_path: Path
) -> None:
    empty = {**user_environment, "HOME": str(tmp_path / "nobody")}
    assert (
        "no sessions were found in the usual folders of Claude Code, Codex, pi, opencode, Copilot CLI"
        in everthread.refuses("replay", "--latest", env=empty)
    )
    assert (
        "give a file, or --latest" in everthread("replay", env=user_environment).stderr
    )
    assert (
        "not both"
        in everthread("replay", "--latest", "x.json", env=user_environment).stderr
    )


def test_compare(
    everthread: Any, user_environment: dict[str, str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    shown = everthread.succeeds("compare", "--html", str(page), env=user_environment)
    sentence = shown.splitlines()[0]
    assert sentence.startswith("At its compaction Claude Code's summary kept ")
    assert "s1.jsonl" in shown
    assert "s1.jsonl" in page.read_text("utf-8")
    found = everthread.json("compare", env=user_environment)
    assert found["sentence"] == sentence
    (made,) = found["logs"][0]["compactions"]
    assert made["held"]["own"]["files"] < made["files"]


def test_tune_proposes_and_applies(
    everthread: Any, user_environment: dict[str, str], home: Path
) -> None:
    log = str(
        Path(user_environment["HOME"]) / ".claude" / "projects" / "p" / "s1.jsonl"
    )
    (found,) = everthread.json("tune", log, env=user_environment)["models"]
    assert (found["model"], found["sessions"], found["calls"]) == (CLAUDE, 1, 25)
    cheapest = min(
        one["dollars"]
        for one in found["tried"]
        if one["in_context"] >= 0.9 * _current_choice(found)["in_context"]
    )
    assert found["proposed"]["dollars"] == cheapest < _current_choice(found)["dollars"]
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(
        "compression:\n  models:\n    other: {threshold: 0.4}  # mine\n", "utf-8"
    )
    everthread.succeeds("tune", log, "--apply", env=user_environment)
    written = parse_yaml((home / "config.yaml").read_text("utf-8"))["compression"][
        "models"
    ]
    assert written["other"] == {"threshold": 0.4}
    assert written[CLAUDE]["threshold_tokens"] == found["proposed"]["tokens"]
    assert everthread("config", "check").returncode == 0
    assert (
        "--last '30' is not allowed"
        in everthread("tune", "--last", "30", env=user_environment).stderr
    )
    assert everthread("tune", "--last", "1h", env=user_environment).returncode == 0, (
        "the file is new"
    )


def test_tune_says_which_sessions_it_skips(everthread: Any, tmp_path: Path) -> None:
    log = tmp_path / "unnamed.json"
    said = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
    ]
    log.write_text(json.dumps(said), "utf-8")
    done = everthread("tune", str(log), "--apply")
    assert done.stdout == (
        "Skipped: 1 session without the name of a model.\nThe configuration is unchanged.\n"
    )


def _current_choice(found: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in found["tried"] if one["is_current"])


@pytest.mark.parametrize(
    ("client", "folder"), [("codex", ".codex"), ("claude", ".claude")]
)
def test_a_session_is_written_for_another_agent(
    client: str,
    folder: str,
    everthread: Any,
    user_environment: dict[str, str],
    workspace: Path,
) -> None:
    log = str(
        Path(user_environment["HOME"]) / ".claude" / "projects" / "p" / "s1.jsonl"
    )
    done = everthread(
        "continue",
        log,
        "--in",
        client,
        "--folder",
        str(workspace),
        "--json",
        env=user_environment,
    )
    made = json.loads(done.stdout)
    file = Path(made["file"])
    assert file.is_relative_to(Path(user_environment["HOME"]) / folder)
    assert made["command"].split()[:2] == (
        ["codex", "resume"] if client == "codex" else ["claude", "--resume"]
    )
    assert made["command"].split()[-1] in file.name
    continued = parse_log(file.read_text("utf-8")) if client == "codex" else None
    text = file.read_text("utf-8")
    assert "Wish 23" in text
    assert "setting_number_0" in text
    if continued is not None:
        assert [entry.message["role"] for entry in continued.entries][:2] == [
            "user",
            "assistant",
        ]
        assert continued.session in made["command"]
    assert read_log(log).messages, "the first agent's log is unchanged"
    assert (
        "use one of: claude, codex"
        in everthread("continue", log, "--in", "vim", env=user_environment).stderr
    )


def test_the_status_line(everthread: Any, user_environment: dict[str, str]) -> None:
    told = everthread("statusline", env=user_environment).stdout
    assert told.startswith("context 69,2")
    assert " of 200,000 (35%) · compaction from 100,000 · cache " in told
    assert told.endswith(" · compacted 1×\n")
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 8_990,
        "output_tokens": 1_000,
    }
    given = {
        "model": {"id": CLAUDE},
        "cost": {"total_cost_usd": 1.5},
        "context_window": {"context_window_size": 100_000, "current_usage": usage},
    }
    line = everthread(
        "statusline", given=json.dumps(given).encode(), env=user_environment
    ).stdout
    assert (
        line
        == "context 10,000 of 100,000 (10%) · compaction from 50,000 · cache 100% · $1.50\n"
    )


def test_the_status_line_is_set_after_asking(everthread: Any, tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(
        '{"model": "opus", "statusLine": {"type": "command", "command": "mine"}}',
        "utf-8",
    )
    env = {"CLAUDE_CONFIG_DIR": str(tmp_path)}
    refused = everthread("statusline", "--install", given=b"n\n", env=env)
    assert "instead of" in refused.stdout
    assert "Nothing was changed" in refused.stdout
    everthread("statusline", "--install", given=b"y\n", env=env)
    written = json.loads(settings.read_text("utf-8"))
    assert written == {
        "model": "opus",
        "statusLine": {"type": "command", "command": "everthread statusline"},
    }
    assert "already" in everthread("statusline", "--install", env=env).stdout
