"""Texts, exit codes and tables that a new user sees in the first hour."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from everthread.config import parse_config
from everthread.factory.model_setup import choose_from_section
from everthread.store.records import NewMessage, NewSession
from everthread.store.store import Store
from tests.cli.conftest import environment

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("settings", "model", "provider"),
    [
        ("provider: local, default: smollm2-135m", "gpt-5", "openai"),
        (
            "provider: local, default: smollm2-135m",
            "anthropic/claude-sonnet-4-5",
            "anthropic",
        ),
        ("provider: local, default: smollm2-135m", "claude-sonnet-4-5", "anthropic"),
        ("provider: openai, default: gpt-5", "claude-sonnet-4-5", "anthropic"),
        ("provider: openai, default: gpt-5", "local/smollm2-135m", "local"),
        ("provider: openai, default: gpt-5", "gpt-4o", "openai"),
        (
            "provider: openrouter, default: openai/gpt-5",
            "anthropic/claude-sonnet-4-5",
            "openrouter",
        ),
        (
            "provider: custom, base_url: 'http://localhost:8000/v1', default: mine",
            "gpt-5",
            "custom",
        ),
        (
            "provider: custom, base_url: 'http://localhost:8000/v1', default: mine",
            "smollm2-135m",
            "local",
        ),
        ("provider: local, default: smollm2-135m", None, "local"),
    ],
)
def test_the_name_of_a_model_wins_over_the_provider_of_another(
    settings: str, model: str | None, provider: str
) -> None:
    config = parse_config(f"model: {{{settings}}}")
    assert choose_from_section(config.model, model).provider == provider


def test_the_first_run_says_once_what_to_do(everthread: Any) -> None:
    error = everthread.refuses("run", "hello")
    lines = error.strip().splitlines()
    assert len(lines) == 2
    assert error.count("everthread init") == 1
    named = everthread("run", "--model", "gpt-5", "hello").stderr
    assert "gpt-5 needs a key, and OPENAI_API_KEY is not set" in named


def test_doctor_names_the_command_that_cures(everthread: Any) -> None:
    everthread("init", "--provider", "local", "--no-check")
    found = json.loads(everthread("doctor", "--json").stdout)["findings"]
    cures = {
        item["what"]: item["advice"] for item in found if item["state"] == "broken"
    }
    assert cures == {"local model": "everthread models pull"}


def test_one_value_of_the_configuration(everthread: Any) -> None:
    assert everthread("config", "get", "compression.threshold").stdout == "0.5\n"
    assert "threshold: 0.5" in everthread("config", "get", "compression").stdout
    assert everthread.json("config", "get", "gateway.upstreams") == []
    assert "known here: enabled, threshold" in everthread.refuses(
        "config", "get", "compression.nope"
    )


def test_a_setting_that_cannot_work_is_refused_or_named(
    everthread: Any, home: Path
) -> None:
    assert "there is no context engine 'nope'" in everthread.refuses(
        "config", "set", "context.engine", "nope"
    )
    assert not (home / "config.yaml").exists()
    everthread("config", "set", "gateway.auth", "none")
    named = everthread("config", "set", "gateway.host", "0.0.0.0")  # noqa: S104
    assert named.returncode == 0
    assert "Needs attention: gateway.host" in named.stderr


def test_plugins_list_is_plugins(everthread: Any) -> None:
    assert everthread("plugins", "list").stdout == everthread("plugins").stdout
    assert everthread.json("plugins", "list")["active"] == "compressor"


@pytest.mark.parametrize("words", [("serve", "--help"), ("keys", "create", "--help")])
def test_the_help_names_the_words_that_are_allowed(
    everthread: Any, words: tuple[str, ...]
) -> None:
    shown = everthread(*words).stdout
    for word in ("managed", "observe", "off"):
        assert f"`{word}`" in shown
    if words[0] == "serve":
        for word in ("keys", "passthrough", "none"):
            assert f"`{word}`" in shown


def test_an_unknown_engine_leaves_no_thread_behind(everthread: Any, home: Path) -> None:
    home.mkdir()
    (home / "config.yaml").write_text(
        "context: {engine: nope}\nmodel: {default: gpt-4o}\n", "utf-8"
    )
    answer = everthread(
        "run",
        "hello",
        env={"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"},
    )
    assert answer.returncode == everthread("plugins", "use", "nope").returncode == 2
    assert everthread.json("sessions", "list", "--all")["sessions"] == []


@pytest.mark.parametrize("command", ["compress", "tokens"])
def test_a_window_that_holds_no_conversation_is_refused(
    everthread: Any, tmp_path: Path, command: str
) -> None:
    file = tmp_path / "talk.json"
    file.write_text(
        '[{"role": "user", "content": "Hi"}, {"role": "narrator", "content": "x"}]',
        "utf-8",
    )
    assert "at least 1,000" in everthread.refuses(command, "--window", "5", str(file))


def test_unknown_roles_are_named_and_plurals_are_right(
    everthread: Any, tmp_path: Path
) -> None:
    file = tmp_path / "talk.json"
    file.write_text(
        '[{"role": "user", "content": "Hi"}, {"role": "narrator", "content": "x"}]',
        "utf-8",
    )
    assert (
        "warning: unknown role narrator; known: assistant"
        in everthread("compress", str(file)).stderr
    )
    assert (
        "2 messages (openai_chat), 1 turn, 0 tool groups, 0 summaries"
        in everthread("inspect", str(file)).stdout
    )


TITLE = "A long title of a thread that does not fit into a narrow terminal beside its figures"


def create_threads(*sessions: NewSession) -> Any:
    async def work(store: Store) -> None:
        for session in sessions:
            await store.create_session(session)
            await store.append(
                session.id, [NewMessage({"role": "user", "content": "Hi"})]
            )

    return work


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_a_thread_is_one_line_at_any_width(
    everthread: Any, fill: Any, columns: int
) -> None:
    fill(
        create_threads(*(NewSession(title=f"{number} {TITLE}") for number in range(3)))
    )
    printed = everthread(
        "sessions", "list", columns=columns, env={"FORCE_COLOR": "1"}
    ).stdout
    shown = re.sub(r"\x1b\[[0-9;]*m", "", printed).splitlines()
    assert [line.split()[0] for line in shown if TITLE[:8] in line] == ["2", "1", "0"]
    assert all(cell_len(line.rstrip()) <= columns for line in shown)


def test_the_columns_do_not_depend_on_the_threads(everthread: Any, fill: Any) -> None:
    fill(create_threads(NewSession(title="one")))
    before = everthread("sessions", "list", columns=120).stdout.splitlines()[2].split()
    fill(create_threads(NewSession(title="two", kind="subagent")))
    after = everthread("sessions", "list", columns=120).stdout.splitlines()[2].split()
    assert (
        before
        == after
        == [
            "title",
            "id",
            "last",
            "used",
            "messages",
            "tokens",
            "compactions",
            "kind",
            "model",
        ]
    )


def test_a_tree_on_a_pipe_is_not_cut(everthread: Any, fill: Any) -> None:
    fill(create_threads(NewSession(id="long", title=TITLE)))
    assert (
        f"thread long  {TITLE}"
        in everthread("sessions", "tree", "long", columns=40).stdout
    )


def test_paths_are_shortened_from_the_left(everthread: Any, home: Path) -> None:
    engine = home / "plugins" / "context_engine" / "mine"
    engine.mkdir(parents=True)
    (engine / "__init__.py").write_text("def create(services, options): ...\n", "utf-8")
    line = next(
        one
        for one in everthread("plugins", columns=60).stdout.splitlines()
        if one.startswith("  mine")
    )
    assert len(line) <= 60
    assert line.endswith("context_engine/mine")
    assert "…" in line


@pytest.mark.parametrize("moment", ["everthread.cli", ""])
def test_ctrl_c_ends_the_gateway_without_a_traceback(
    tmp_path: Path, moment: str
) -> None:
    """Press it when a module is loaded or when the gateway runs; the signal reaches every process of the group."""
    log = tmp_path / "errors"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [
                sys.executable,
                "-X",
                "importtime",
                "-m",
                "everthread",
                "serve",
                "--port",
                "0",
            ],
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    if moment:
        loaded = re.compile(rf"\| +{re.escape(moment)}$", re.MULTILINE)
        while not loaded.search(log.read_text()):
            assert process.poll() is None, "it ended before the module was loaded"
            time.sleep(0.01)
    else:
        assert process.stdout.readline().startswith("Everthread listens")
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode in (0, 130)
    assert "Traceback" not in log.read_text()


IN_EXEC = "exec('os.kill(os.getpid(), signal.SIGINT)\\nfor _ in range(10**6): pass')"
IN_DESTRUCTOR = "Dropped()"


@pytest.mark.parametrize("interrupt", [IN_EXEC, IN_DESTRUCTOR])
def test_ctrl_c_during_an_import_of_the_gateway_ends_it(
    tmp_path: Path, interrupt: str
) -> None:
    """In `exec` an interrupt ends Python by signal, in a destructor it is lost: neither may happen."""
    hook = f"""
import os, signal, sys

class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10**6):
            pass

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "everthread.factory.gateways":
            sys.meta_path.remove(self)
            {interrupt}
        return None

sys.meta_path.insert(0, Finder())
"""
    (tmp_path / "sitecustomize.py").write_text(hook, "utf-8")
    given = environment(tmp_path)
    given["PYTHONPATH"] = os.pathsep.join(
        [str(tmp_path), *filter(None, [given.get("PYTHONPATH", "")])]
    )
    done = subprocess.run(
        [sys.executable, "-m", "everthread", "serve", "--port", "0"],
        env=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
