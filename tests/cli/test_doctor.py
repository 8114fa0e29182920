"""`everthread doctor` with real files and a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from everthread.lab.provider import ServedModel
from everthread.providers.local import SMOLLM2
from everthread.store.store import Store
from tests.cli.conftest import Command, RunOnStore, configure, environment
from tests.cli.provider_thread import provider_in_thread
from tests.wire.recording import json_reply, recording_server

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


def run_doctor(everthread: Command, code: int) -> dict[str, dict[str, str]]:
    result = everthread("doctor --json")
    assert result.returncode == code, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["healthy"] is (code == 0)
    return {finding["what"]: finding for finding in report["findings"]}


def test_a_working_setup_is_healthy(
    everthread: Command, home: Path, run_on_store: RunOnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-lab-0123456789abcdef")

    async def nothing(_store: Store) -> None:
        return None

    run_on_store(nothing)
    with provider_in_thread(
        models=[ServedModel("mine", 12_345, shows="max_model_len")]
    ) as provider:
        configure(
            home,
            f"model: {{default: mine, base_url: '{provider.url}/v1', api_key_env: MY_KEY}}\n",
        )
        report = run_doctor(everthread, 0)
        result = everthread("doctor")
    assert {name: item["state"] for name, item in report.items()} == {
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
    assert "written by the built-in journal" in report["gateway"]["text"]
    assert "paid like its answers" in report["summaries"]["text"]
    assert "12,345 tokens, as the server says" in report["window"]["text"]
    assert report["keys"]["text"] == "MY_KEY"
    assert "✓ endpoint" in result.stdout
    assert "Everything needed is in order." in result.stdout
    assert "sk-lab" not in result.stdout + json.dumps(report), "keys are named, never shown"


def test_without_configuration_doctor_gives_advice(everthread: Command, home: Path) -> None:
    report = run_doctor(everthread, 1)
    assert report["model"]["state"] == "broken"
    assert report["model"]["advice"] == "everthread init"
    assert report["store"]["state"] == "good", "a missing store is not an error"
    assert not home.exists(), "doctor creates no files"
    result = everthread("doctor")
    assert result.returncode == 1
    assert "✗ model" in result.stdout
    assert "Needs attention: model." in result.stdout


def test_a_missing_key_is_named(everthread: Command, home: Path) -> None:
    with recording_server([]) as server:
        configure(
            home,
            f"model: {{default: mine, base_url: '{server.url}', api_key_env: MISSING_KEY}}\n",
        )
    report = run_doctor(everthread, 1)
    assert "MISSING_KEY is not set" in report["model"]["text"]
    assert report["endpoint"]["state"] == "broken"
    assert "ConnectError" in report["endpoint"]["text"]
    assert "base_url" in report["endpoint"]["advice"]


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "refuses the key (401)"), (503, "answers with an error (503)")],
)
def test_a_server_that_refuses_is_reported(
    everthread: Command, home: Path, status: int, words: str
) -> None:
    with recording_server([json_reply({}, status=status)] * 6) as server:
        configure(home, f"model: {{default: mine, base_url: '{server.url}'}}\n")
        report = run_doctor(everthread, 1)
    assert words in report["endpoint"]["text"]


def test_a_bad_setting_is_reported_with_its_path(everthread: Command, home: Path) -> None:
    configure(home, "compression: {threshold: 7}\n")
    report = run_doctor(everthread, 1)
    assert "compression.threshold" in report["configuration"]["text"]
    assert "config check" in report["configuration"]["advice"]


def test_a_damaged_store_an_unknown_engine_and_a_missing_model_are_reported(
    everthread: Command, home: Path
) -> None:
    configure(home, "model: {provider: local}\ncontext: {engine: nobody}\n")
    (home / "everthread.db").write_bytes(b"this is no database, however long it may be" * 100)
    report = run_doctor(everthread, 1)
    assert (
        report["store"]["state"]
        == report["engine"]["state"]
        == report["local model"]["state"]
        == "broken"
    )
    assert "there is no context engine 'nobody'" in report["engine"]["text"]
    assert report["local model"]["advice"] == "everthread models pull"
    assert "endpoint" not in report, "a local model has none"


def test_a_store_that_cannot_be_created_is_reported_with_its_cure(
    everthread: Command, home: Path, tmp_path: Path
) -> None:
    blocked = tmp_path / "a-file"
    blocked.touch()
    configure(home, f"store: {{url: 'sqlite:///{blocked}/folder/store.db'}}\n")
    store = run_doctor(everthread, 1)["store"]
    assert store["state"] == "broken"
    assert f"{blocked} cannot be written" in store["text"]
    assert f"make {blocked} writable" in store["advice"]
    assert "✗ store" in everthread("doctor").stdout


def test_a_present_local_model_is_reported(everthread: Command, home: Path) -> None:
    configure(home, "model: {provider: local}\n")
    path = SMOLLM2.path(home)
    path.parent.mkdir(parents=True)
    path.touch()
    report = run_doctor(everthread, 0)
    assert report["local model"]["text"] == str(path)
    assert "8,192" in report["window"]["text"]


@pytest.mark.parametrize(
    ("settings", "state", "words"),
    [
        ("model: small, base_url: 'http://127.0.0.1:9/v1'", "good", "small, custom"),
        ("model: claude-haiku-4-5", "note", "ANTHROPIC_API_KEY is not set"),
        ("model: who-is-this", "note", "not clear who serves"),
    ],
)
def test_a_named_model_for_summaries_is_checked(
    everthread: Command, home: Path, settings: str, state: str, words: str
) -> None:
    main = "model: {default: mine, base_url: 'http://127.0.0.1:9/v1', context_length: 9000}\n"
    configure(home, f"{main}auxiliary: {{compression: {{{settings}}}}}\n")
    report = run_doctor(everthread, 1)["summaries"]
    assert report["state"] == state
    assert words in report["text"]


def test_a_terminal_without_unicode_gets_question_marks(home: Path) -> None:
    variables = environment(home) | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "everthread", "doctor"]
    result = subprocess.run(
        command,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1, "no model is configured"
    assert "? configuration" in result.stdout
    assert not result.stderr


def test_doctor_names_the_command_that_cures(everthread: Command) -> None:
    everthread("init --provider local --no-check")
    report = json.loads(everthread("doctor --json").stdout)["findings"]
    cures = {item["what"]: item["advice"] for item in report if item["state"] == "broken"}
    assert cures == {"local model": "everthread models pull"}
