"""`everthread doctor` with real files and a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everthread.lab.provider import ServedModel
from everthread.providers.local import SMOLLM2
from everthread.store.store import Store
from tests.cli.conftest import environment
from tests.cli.provider_thread import configure, provider_in_thread
from tests.wire.recording import json_reply, recording_server

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


def run_doctor(everthread: Any, code: int) -> dict[str, dict[str, str]]:
    answer = everthread("doctor", "--json")
    assert answer.returncode == code, answer.stdout + answer.stderr
    told = json.loads(answer.stdout)
    assert told["healthy"] is (code == 0)
    return {finding["what"]: finding for finding in told["findings"]}


def test_where_everything_is_in_order(
    everthread: Any, home: Path, fill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-lab-0123456789abcdef")

    async def nothing(_store: Store) -> None:
        return None

    fill(nothing)
    with provider_in_thread(
        models=[ServedModel("mine", 12_345, shows="max_model_len")]
    ) as served:
        configure(
            home,
            f"model: {{default: mine, base_url: '{served.url}/v1', api_key_env: MY_KEY}}\n",
        )
        found = run_doctor(everthread, 0)
        printed = everthread("doctor")
    assert {name: item["state"] for name, item in found.items()} == {
        "home": "good",
        "configuration": "good",
        "keys": "good",
        "model": "good",
        "summaries": "good",
        "endpoint": "good",
        "store": "good",
        "window": "good",
        "prices": "note",
        "engine": "good",
        "gateway": "good",
        "local model": "note",
    }
    assert "written by the built-in journal" in found["gateway"]["text"]
    assert "paid like its answers" in found["summaries"]["text"]
    assert "12,345 tokens, as the server says" in found["window"]["text"]
    assert found["keys"]["text"] == "MY_KEY"
    assert "✓ endpoint" in printed.stdout
    assert "Everything needed is in order." in printed.stdout
    assert "sk-lab" not in printed.stdout + json.dumps(found), (
        "keys are named, never shown"
    )


def test_without_configuration_doctor_gives_advice(everthread: Any, home: Path) -> None:
    found = run_doctor(everthread, 1)
    assert found["model"]["state"] == "broken"
    assert found["model"]["advice"] == "everthread init"
    assert found["store"]["state"] == "good", "no store yet is no fault"
    assert not home.exists(), "who only looks makes nothing"
    printed = everthread("doctor")
    assert printed.returncode == 1
    assert "✗ model" in printed.stdout
    assert "Needs attention: model." in printed.stdout


def test_a_missing_key_is_named(everthread: Any, home: Path) -> None:
    with recording_server([]) as server:
        configure(
            home,
            f"model: {{default: mine, base_url: '{server.url}', api_key_env: MISSING_KEY}}\n",
        )
    found = run_doctor(everthread, 1)
    assert "MISSING_KEY is not set" in found["model"]["text"]
    assert found["endpoint"]["state"] == "broken"
    assert "ConnectError" in found["endpoint"]["text"]
    assert "base_url" in found["endpoint"]["advice"]


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "refuses the key (401)"), (503, "answers with an error (503)")],
)
def test_a_server_that_refuses(
    everthread: Any, home: Path, status: int, words: str
) -> None:
    with recording_server([json_reply({}, status=status)] * 6) as server:
        configure(home, f"model: {{default: mine, base_url: '{server.url}'}}\n")
        found = run_doctor(everthread, 1)
    assert words in found["endpoint"]["text"]


def test_a_bad_setting_is_reported_with_its_path(everthread: Any, home: Path) -> None:
    configure(home, "compression: {threshold: 7}\n")
    found = run_doctor(everthread, 1)
    assert "compression.threshold" in found["configuration"]["text"]
    assert "config check" in found["configuration"]["advice"]


def test_a_damaged_store_an_unknown_engine_and_a_missing_model_are_reported(
    everthread: Any, home: Path
) -> None:
    configure(home, "model: {provider: local}\ncontext: {engine: nobody}\n")
    (home / "everthread.db").write_bytes(
        b"this is no database, however long it may be" * 100
    )
    found = run_doctor(everthread, 1)
    assert (
        found["store"]["state"]
        == found["engine"]["state"]
        == found["local model"]["state"]
        == "broken"
    )
    assert "there is no context engine 'nobody'" in found["engine"]["text"]
    assert found["local model"]["advice"] == "everthread models pull"
    assert "endpoint" not in found, "a local model has none"


def test_a_store_that_cannot_be_created_is_reported_with_its_cure(
    everthread: Any, home: Path, tmp_path: Path
) -> None:
    blocked = tmp_path / "a-file"
    blocked.touch()
    configure(home, f"store: {{url: 'sqlite:///{blocked}/folder/store.db'}}\n")
    store = run_doctor(everthread, 1)["store"]
    assert store["state"] == "broken"
    assert f"{blocked} cannot be written" in store["text"]
    assert f"make {blocked} writable" in store["advice"]
    assert "✗ store" in everthread("doctor").stdout


def test_a_present_local_model_is_reported(everthread: Any, home: Path) -> None:
    configure(home, "model: {provider: local}\n")
    path = SMOLLM2.path(home)
    path.parent.mkdir(parents=True)
    path.touch()
    found = run_doctor(everthread, 0)
    assert found["local model"]["text"] == str(path)
    assert "8,192" in found["window"]["text"]


@pytest.mark.parametrize(
    ("settings", "state", "words"),
    [
        ("model: small, base_url: 'http://127.0.0.1:9/v1'", "good", "small, custom"),
        ("model: claude-haiku-4-5", "note", "ANTHROPIC_API_KEY is not set"),
        ("model: who-is-this", "note", "not clear who serves"),
    ],
)
def test_the_model_for_summaries_where_one_is_named(
    everthread: Any, home: Path, settings: str, state: str, words: str
) -> None:
    main = "model: {default: mine, base_url: 'http://127.0.0.1:9/v1', context_length: 9000}\n"
    configure(home, f"{main}auxiliary: {{compression: {{{settings}}}}}\n")
    found = run_doctor(everthread, 1)["summaries"]
    assert found["state"] == state
    assert words in found["text"]


def test_a_terminal_that_lacks_the_marks(home: Path) -> None:
    given = environment(home) | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "everthread", "doctor"]
    done = subprocess.run(
        command, env=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, "no model is configured"
    assert "? configuration" in done.stdout
    assert not done.stderr
