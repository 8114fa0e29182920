"""`everthread wrap` starts a client through a gateway and prints a receipt."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from everthread.cli.commands.wrap.notices import uses_subscription
from everthread.cli.commands.wrap.receipt import ReceiptFigures, format_receipt
from everthread.cli.commands.wrap.wrapped_clients import CLIENTS, format_settings
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.gateway.dashboard.savings import CostComparison, PricedCall
from everthread.store.usage_records import Insights, UsageRecord, UsageRow
from tests.cli.conftest import Command, CommandResult, configure
from tests.cli.provider_thread import provider_in_thread
from tests.cli.server_process import start_server

AGENT = """#!{python}
import json, os, sys, urllib.request
url = os.environ["OPENAI_BASE_URL"]
body = {{"model": "gpt-4o", "messages": [{{"role": "user", "content": "Hello"}}]}}
headers = {{"content-type": "application/json", "authorization": "Bearer mine"}}
asked = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), headers)
print(json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"], sys.argv[1:])
sys.exit(3)
"""

RunWrap = Callable[..., CommandResult]


@pytest.fixture
def wrap(everthread: Command, tmp_path: Path) -> RunWrap:
    """Run `everthread wrap` with a home of its own."""

    def run(*words: str, **variables: str) -> CommandResult:
        return everthread("wrap", *words, env={"HOME": str(tmp_path), **variables})

    return run


def print_settings(wrap: RunWrap, client: str) -> Any:
    return json.loads(wrap(f"{client} --print --json --gateway http://127.0.0.1:7").stdout)


def install_fake_client(folder: Path) -> str:
    """Create a program that plays a client; return a PATH that has it."""
    program = folder / "bin" / "qwen"
    program.parent.mkdir()
    program.write_text(AGENT.format(python=sys.executable))
    program.chmod(0o755)
    return f"{program.parent}{os.pathsep}{os.environ['PATH']}"


def test_a_client_runs_through_its_own_gateway_and_a_receipt_is_printed(
    wrap: RunWrap, tmp_path: Path
) -> None:
    path = install_fake_client(tmp_path)
    with provider_in_thread() as provider:
        result = wrap(
            f"qwen --upstream lab={provider.url} -- --yolo 'do it'",
            PATH=path,
        )
    assert result.returncode == 3, result.stderr
    assert "You said: Hello ['--yolo', 'do it']" in result.stdout
    assert "made 1 call." in result.stderr


@pytest.mark.parametrize(
    ("auth", "words"),
    [
        ("none", "made 1 call."),
        ("passthrough", "no receipt, the figures of http"),
    ],
)
def test_a_running_gateway_is_asked_for_the_receipt(
    auth: str, words: str, wrap: RunWrap, tmp_path: Path
) -> None:
    path = install_fake_client(tmp_path)
    with (
        provider_in_thread() as provider,
        run_gateway(tmp_path, f"--auth {auth} --upstream lab={provider.url}") as url,
    ):
        result = wrap(f"qwen --gateway {url}/", PATH=path)
    assert result.returncode == 3, result.stderr
    assert "You said: Hello []" in result.stdout
    assert words in result.stderr


@contextmanager
def run_gateway(folder: Path, options: str) -> Iterator[str]:
    """Yield the address of a gateway that already runs."""
    with start_server(folder / "home", f"serve --port 0 --json {options}") as (_, line):
        yield json.loads(line)["url"]


TALKING_AGENT = """#!{python}
import json, os, pathlib, urllib.request
memory = pathlib.Path({memory!r})
messages = json.loads(memory.read_text()) if memory.exists() else []
messages.append({{"role": "user", "content": f"Question {{len(messages)}}"}})
body = {{"model": "gpt-4o", "messages": messages}}
headers = {{"content-type": "application/json", "authorization": f"Bearer {{os.environ['TOKEN']}}"}}
url = os.environ["EVERTHREAD_URL"] + "/v1/chat/completions"
asked = urllib.request.Request(url, json.dumps(body).encode(), headers)
messages.append(json.load(urllib.request.urlopen(asked))["choices"][0]["message"])
memory.write_text(json.dumps(messages))
"""


def test_one_person_has_one_thread_whatever_the_login_and_the_command(
    wrap: RunWrap, everthread: Command, tmp_path: Path
) -> None:
    program = tmp_path / "bin" / "codex"
    program.parent.mkdir()
    program.write_text(
        TALKING_AGENT.format(python=sys.executable, memory=str(tmp_path / "memory.json"))
    )
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    with provider_in_thread() as provider:
        upstream = f"--upstream lab={provider.url}"
        for words, token in (("", "first"), ("", "renewed"), ("--mcp", "renewed")):
            result = wrap(f"codex {words} {upstream}", PATH=path, TOKEN=token)
            assert result.returncode == 0, result.stderr
        with run_gateway(tmp_path, upstream) as url:
            result = wrap(f"codex --gateway {url}", PATH=path, TOKEN="another")
            assert result.returncode == 0, result.stderr
    report = everthread.json("sessions list")["sessions"]
    assert [(row["tenant"], row["messages"]) for row in report] == [("default", 8)]
    result = everthread("sessions search Question")
    assert "Question 6" in result.stdout


@pytest.mark.parametrize(
    "client", [row.name for row in CLIENTS.values() if row.variables or row.arguments]
)
def test_settings_of_a_client_name_the_gateway(client: str, wrap: RunWrap) -> None:
    settings = print_settings(wrap, client)
    assert "http://127.0.0.1:7" in json.dumps(settings)


@pytest.mark.parametrize("client", ["claude", "codex", "opencode"])
def test_the_mcp_server_is_attached_on_request(client: str, wrap: RunWrap) -> None:
    result = wrap(f"{client} --mcp --print --json --gateway http://127.0.0.1:7")
    assert "http://127.0.0.1:7/mcp" in result.stdout
    assert "/mcp" not in json.dumps(print_settings(wrap, client))
    refused = wrap("aider --mcp")
    assert "these do: claude, codex, opencode" in refused.stderr


def make_insights(total: UsageRow, **changes: Any) -> Insights:
    """Return the insights of a run whose calls are not split into groups."""
    insights = Insights(
        total=total,
        by_day=[],
        by_model=[],
        by_platform=[],
        by_task=[],
        by_tool=[],
        sessions=1,
        threads=1,
        messages=6,
        compactions=0,
        tokens_saved=0,
    )
    return replace(insights, **changes)


CALL = UsageRecord(
    id=1,
    session="thread",
    thread="thread",
    model="gpt-5",
    task="main",
    usage=CanonicalUsage(input_tokens=9_000, output_tokens=10),
    cost=Decimal(1),
    estimated=False,
    created=5.0,
    tenant="default",
    client="claude",
)


def compare_dollars(paid: float, uncompacted: float) -> CostComparison:
    """Compare what `CALL` cost with the cost of the whole history."""
    return CostComparison(rows=(PricedCall(CALL, paid, uncompacted, is_shorter=True),))


def test_the_receipt_leads_with_the_calls_beyond_the_window() -> None:
    row = UsageRow("total", calls=3, input=9_000, output=100, cost=Decimal("1.5"))
    insights = make_insights(row, compactions=2, tokens_saved=50_000)
    total = ReceiptFigures.from_insights(insights)
    saving = compare_dollars(paid=1.0, uncompacted=1.42)
    lines = format_receipt("claude", total, replace(saving, outgrown=(CALL,))).split("\n")
    base = "$1.42 for the same 1 call with the whole history"
    assert lines == [
        "Everthread: claude made 3 calls, 1 of them beyond the window.",
        "Kept: every message, searchable; 2 compactions took 50,000 tokens out of the prompts.",
        f"Cost: $1.50 for 9,000 tokens in, 100 out; $0.42 saved, 29.6% of {base}.",
        "Look: everthread dashboard, or everthread sessions list.",
    ]
    dearer = compare_dollars(paid=1.0, uncompacted=0.9)
    assert "; $0.10 more, with summaries, than $0.9000" in format_receipt("claude", total, dearer)


def test_the_receipt_claims_no_saving_that_is_not_known() -> None:
    row = UsageRow("total", calls=3, input=9_000, output=100, unpriced_calls=3)
    total = ReceiptFigures.from_insights(make_insights(row))
    lines = format_receipt("claude", total, CostComparison()).split("\n")
    assert lines[:3] == [
        "Everthread: claude made 3 calls.",
        "Kept: every message, searchable; nothing had to be compacted.",
        "Cost: unknown for 9,000 tokens in, 100 out.",
    ]


@pytest.mark.parametrize("client", CLIENTS)
def test_the_recipe_shows_the_settings(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    page = Path(__file__).parents[2] / "docs" / "recipes" / f"{client}.md"
    assert f"```\n{format_settings(CLIENTS[client], tmp_path)}\n```" in page.read_text("utf-8")


def test_pi_gets_an_extension_and_keeps_its_folder(wrap: RunWrap) -> None:
    settings = print_settings(wrap, "pi")
    assert settings["arguments"][0] == "-e"
    assert "PI_CODING_AGENT_DIR" not in settings["variables"]


def test_the_provider_settings_of_cline_are_copied(wrap: RunWrap, tmp_path: Path) -> None:
    own_settings = tmp_path / ".cline" / "data" / "settings" / "providers.json"
    own_settings.parent.mkdir(parents=True)
    own_settings.write_text(
        '{"version": 1, "providers": {"anthropic": {"settings": {"apiKey": "K"}}}}'
    )
    settings = print_settings(wrap, "cline")
    assert settings["variables"]["CLINE_PROVIDER_SETTINGS_PATH"] != str(own_settings)
    assert "baseUrl" not in own_settings.read_text()


def test_lists_each_client(wrap: RunWrap) -> None:
    report = json.loads(wrap("--list --json").stdout)
    assert [row["client"] for row in report] == list(CLIENTS)


LONG_AGENT = """#!{python}
import json, os, urllib.request
url = os.environ["OPENAI_BASE_URL"]
headers = {{"content-type": "application/json", "authorization": "Bearer mine"}}
said = []
for turn in range(14):
    said.append({{"role": "user", "content": f"Entry {{turn}}. " + "The ledger is long. " * 400}})
    body = json.dumps({{"model": "gpt-4o", "messages": said}}).encode()
    asked = urllib.request.Request(url + "/chat/completions", body, headers)
    said.append(json.load(urllib.request.urlopen(asked))["choices"][0]["message"])
"""


def test_a_passive_run_changes_no_request_and_reports_possible_compactions(
    wrap: RunWrap, tmp_path: Path
) -> None:
    path = install_fake_client(tmp_path)
    (tmp_path / "bin" / "qwen").write_text(LONG_AGENT.format(python=sys.executable))
    home = tmp_path / "home"
    configure(home, "compression: {threshold_tokens: 8000}\n")
    with provider_in_thread() as provider:
        result = wrap(
            *("qwen", "--passive", "--upstream", f"lab={provider.url}"),
            PATH=path,
            EVERTHREAD_HOME=str(home),
        )
        sent = [len(record.body["messages"]) for record in provider.log]
    assert result.returncode == 0, result.stderr
    assert sent == list(range(1, 28, 2)), "every request is whole"
    assert "watching only, no request is changed" in result.stderr
    assert re.search(r"would have had [1-9]\d* compaction", result.stderr), result.stderr


def test_idle_and_passive_are_settings_of_a_gateway_of_its_own(wrap: RunWrap) -> None:
    for option in ("--idle", "--passive"):
        result = wrap(f"qwen {option} --gateway http://127.0.0.1:7")
        assert result.returncode == 2
        assert "options of a new gateway" in result.stderr


def test_subscribers_are_warned_that_requests_are_changed(tmp_path: Path) -> None:
    login = {
        "tokens": {"access_token": "any"},
        "OPENAI_API_KEY": None,
    }
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "auth.json").write_text(json.dumps(login))
    assert uses_subscription("codex", {}, tmp_path)
    assert not uses_subscription("codex", {"CODEX_API_KEY": "any"}, tmp_path)
    assert not uses_subscription("claude", {}, tmp_path)
    token = {"CLAUDE_CODE_OAUTH_TOKEN": "any"}
    assert uses_subscription("claude", token, tmp_path)
    assert not uses_subscription("claude", {**token, "ANTHROPIC_API_KEY": "any"}, tmp_path)
    assert not uses_subscription("aider", token, tmp_path)
