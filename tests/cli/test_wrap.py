"""`everthread wrap`: a program that stands for a client is started with what it needs, and a receipt is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from everthread.cli.commands.wrap import CLIENTS, ReceiptFigures, receipt, settings_text
from everthread.gateway.dashboard.views import CostComparison
from everthread.store.models import CallRow, Insights, UsageRow
from tests.cli.served import provider

AGENT = """#!{python}
import json, os, sys, urllib.request
url = os.environ["OPENAI_BASE_URL"]
body = {{"model": "gpt-4o", "messages": [{{"role": "user", "content": "Hello"}}]}}
headers = {{"content-type": "application/json", "authorization": "Bearer mine"}}
asked = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), headers)
print(json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"], sys.argv[1:])
sys.exit(3)
"""


@pytest.fixture
def wrap(everthread: Any, tmp_path: Path) -> Any:
    """Run `everthread wrap` with a person's own folder."""

    def run(*words: str, **variables: str) -> Any:
        return everthread("wrap", *words, env={"HOME": str(tmp_path), **variables})

    return run


def told(wrap: Any, client: str) -> Any:
    return json.loads(wrap(client, "--print", "--json", "--gateway", "http://127.0.0.1:7").stdout)


def stand_in(folder: Path) -> str:
    """A program that stands for a client; the PATH that has it."""
    program = folder / "bin" / "qwen"
    program.parent.mkdir()
    program.write_text(AGENT.format(python=sys.executable))
    program.chmod(0o755)
    return f"{program.parent}{os.pathsep}{os.environ['PATH']}"


def test_a_client_runs_through_a_gateway_of_its_own_and_the_receipt_is_told(wrap: Any, tmp_path: Path) -> None:
    path = stand_in(tmp_path)
    with provider() as served:
        done = wrap("qwen", "--upstream", f"lab={served.url}", "--", "--yolo", "do it", PATH=path)
    assert done.returncode == 3, done.stderr
    assert "You said: Hello ['--yolo', 'do it']" in done.stdout
    assert "Everthread: 1 calls" in done.stderr


@pytest.mark.parametrize(
    ("auth", "words"), [("none", "Everthread: 1 calls"), ("passthrough", "no receipt, the figures of http")]
)
def test_a_running_gateway_is_asked_for_the_receipt(auth: str, words: str, wrap: Any, tmp_path: Path) -> None:
    path = stand_in(tmp_path)
    with provider() as served, gateway(tmp_path, "--auth", auth, "--upstream", f"lab={served.url}") as url:
        done = wrap("qwen", "--gateway", f"{url}/", PATH=path)
    assert done.returncode == 3, done.stderr
    assert "You said: Hello []" in done.stdout
    assert words in done.stderr


@contextmanager
def gateway(folder: Path, *words: str) -> Iterator[str]:
    """A gateway that runs already; where."""
    command = [sys.executable, "-m", "everthread", "serve", "--port", "0", "--json", *words]
    environment = {**os.environ, "EVERTHREAD_HOME": str(folder / "home")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = ""
        while '"url"' not in text or not text.rstrip().endswith("}"):
            text += process.stdout.readline()
        try:
            yield json.loads(text)["url"]
        finally:
            process.terminate()


@pytest.mark.parametrize("client", [row.name for row in CLIENTS.values() if row.variables or row.arguments])
def test_what_is_set_names_the_gateway(client: str, wrap: Any) -> None:
    found = told(wrap, client)
    assert "http://127.0.0.1:7" in json.dumps(found)


@pytest.mark.parametrize("client", ["claude", "codex", "opencode"])
def test_our_mcp_server_is_attached_where_asked_for(client: str, wrap: Any) -> None:
    found = wrap(client, "--mcp", "--print", "--json", "--gateway", "http://127.0.0.1:7")
    assert "http://127.0.0.1:7/mcp" in found.stdout
    assert "/mcp" not in json.dumps(told(wrap, client))
    refused = wrap("aider", "--mcp")
    assert "these do: claude, codex, opencode" in refused.stderr


def test_the_receipt_says_what_was_saved() -> None:
    row = UsageRow("total", 3, 9_000, 100, 0, cost=Decimal("1.5"))
    found = ReceiptFigures.of(Insights(row, [], [], [], [], [], 1, 1, 6, 2, 50_000))
    saved = CostComparison(cost=1.0, without=1.42, calls=3)
    assert "2 compactions, 50,000 tokens taken out, $0.42 saved." in receipt("claude", found, saved)
    assert "$0.10 more than without" in receipt("claude", found, replace(saved, without=0.9))
    call = CallRow("thread", 5.0, "gpt-5", "main", "default", "claude", 9_000, 10, 0, 0, Decimal(1))
    refused = receipt("claude", found, CostComparison(0.0, 0.0, 0, (call,)))
    assert "50,000 tokens taken out, 1 calls would not have fitted the window without." in refused
    assert "50,000 tokens taken out." in receipt("claude", found, CostComparison(0.0, 0.0, 0))


@pytest.mark.parametrize("client", CLIENTS)
def test_the_recipe_shows_what_is_set(client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    page = Path(__file__).parents[2] / "docs" / "recipes" / f"{client}.md"
    assert f"```\n{settings_text(CLIENTS[client], tmp_path)}\n```" in page.read_text("utf-8")


def test_pi_gets_an_extension_and_keeps_its_folder(wrap: Any) -> None:
    found = told(wrap, "pi")
    assert found["arguments"][0] == "-e"
    assert "PI_CODING_AGENT_DIR" not in found["variables"]


def test_what_cline_knows_of_providers_is_copied(wrap: Any, tmp_path: Path) -> None:
    known = tmp_path / ".cline" / "data" / "settings" / "providers.json"
    known.parent.mkdir(parents=True)
    known.write_text('{"version": 1, "providers": {"anthropic": {"settings": {"apiKey": "K"}}}}')
    found = told(wrap, "cline")
    assert found["variables"]["CLINE_PROVIDER_SETTINGS_PATH"] != str(known)
    assert "baseUrl" not in known.read_text()


def test_every_client_is_listed(wrap: Any) -> None:
    listed = json.loads(wrap("--list", "--json").stdout)
    assert [row["client"] for row in listed] == list(CLIENTS)
