"""Real clients, installed as usual, talk far past the upstream's window through the gateway.

Programs are started by `everthread wrap`, libraries run in their own environments. The network has only loopback,
if the machine permits that. Findings are in `build/torture/clients/`.

"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import PeerAbsentError, create_environment
from everthread import estimate_request_tokens, open_store
from everthread.cli.commands.wrap.wrapped_clients import CLIENTS, format_settings
from everthread.core.provider_errors.classification import classify_error
from everthread.core.types import Api, ModelReply, ModelRequest
from everthread.lab.provider import Provider, ServedModel
from everthread.lab.provider.answers import RequestRecord
from everthread.providers.local import LocalModel
from everthread.thread.recovery import SIZE_REFUSALS
from tests.torture.clients.findings import keep_bodies, list_recovered_shares
from tests.torture.clients.install import AbsentError, install_npm, loopback_only
from tests.torture.clients.model import FACT, QUESTION, RECALL, TASK, WHERE, file_text
from tests.torture.clients.programs import PROGRAMS
from tests.torture.clients.start import NO_NETWORK, keep_result, run_program
from tests.torture.fleet import Fleet

pytestmark = pytest.mark.timeout(1_800)
WINDOW = 12_000
TURNS = 96
MODELS: dict[Api, str] = {
    "openai_chat": "gpt-4o",
    "openai_responses": "gpt-5",
    "anthropic": "claude-sonnet-5",
}
ROOT = Path(__file__).parents[2]
FILLER = "the ledger of the northern branch was settled and every entry was compared twice with its receipt. "
SYSTEM = "You keep the books of the northern branch. Answer briefly, and never guess a number. " * 4
LIBRARIES: list[tuple[str, Api]] = [
    ("langchain", "openai_chat"),
    ("langchain", "openai_responses"),
    ("langchain", "anthropic"),
    ("litellm", "openai_chat"),
    ("litellm", "anthropic"),
    ("pydantic_ai", "openai_chat"),
    ("pydantic_ai", "openai_responses"),
    ("pydantic_ai", "anthropic"),
    ("llm", "openai_chat"),
    ("aider", "openai_chat"),
    ("aider", "anthropic"),
    ("openai_agents", "openai_chat"),
    ("openai_agents", "openai_responses"),
    ("smolagents", "openai_chat"),
    ("ai_sdk", "openai_chat"),
    ("ai_sdk", "openai_responses"),
    ("ai_sdk", "anthropic"),
]
NAMES = {
    "langchain": "LangChain",
    "litellm": "LiteLLM",
    "pydantic_ai": "pydantic-ai",
    "llm": "llm",
    "aider": "[aider](aider.md)",
    "openai_agents": "OpenAI Agents",
    "smolagents": "smolagents",
    "ai_sdk": "AI SDK",
}
"""Names of the rows of `docs/recipes/libraries.md`."""
FORCED = ("smolagents",)
"""Clients that ask with `tool_choice: required`: the gateway offers them no tool of its own."""
INSIDE = "EVERTHREAD_TORTURE_NETWORK"
"""The variable that says how the network of this process was restricted."""
AI_SDK = ["ai@7.0.169", "@ai-sdk/openai@4.0.114", "@ai-sdk/anthropic@4.0.102"]


def user_texts(turns: int, words: int = 20) -> list[str]:
    middle = [f"Entry {number}: {FILLER * words}Look it up." for number in range(turns)]
    return [f"Hello. {FILLER * 3}", *middle, QUESTION]


@dataclass
class Bookkeeper:
    """A model that knows only the prompt.

    Its first answer is a page with the fact on it. It looks up every fifth entry if the client has a tool for it, and
    answers by a tool if it must. It recalls the fact if that is offered, even if a summary has it.
    """

    recalls: int = 0
    page: int = 900
    """Characters."""

    def __call__(self, request: ModelRequest) -> ModelReply | str:
        last = request.messages[-1]
        everything = "\n".join(json.dumps(message) for message in request.messages)
        number = everything.rpartition("Entry ")[2].partition(":")[0]
        names = [tool.get("function", tool).get("name") for tool in request.tools or ()]
        answer = (
            f"Entry {number} is noted. {FILLER * 2}" if number != "0" else file_text(1, self.page)
        )
        if QUESTION in everything:
            if RECALL in names and not self.recalls:
                self.recalls += 1
                return _call(RECALL, {"query": f"code of the {WHERE}"}, "call_recall")
            source = json.dumps(last) if self.recalls else everything
            answer = f"The code is {FACT}." if FACT in source else "Nobody told me."
        elif (
            last["role"] == "user"
            and "look_up" in names
            and number.isdecimal()
            and int(number) % 5 == 1
        ):
            return _call("look_up", {"entry": number}, f"call_{len(everything)}_{number}")
        if "final_answer" in names:
            return _call("final_answer", {"answer": answer}, f"call_{len(everything)}")
        return answer


def _call(name: str, arguments: dict[str, str], call_id: str) -> ModelReply:
    call: Any = {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }
    return ModelReply({"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls")


async def run_client(client: str, folder: Path, job: dict[str, Any]) -> list[str]:
    """Return the answers that the client got; skip if it cannot be installed."""
    command = await asyncio.to_thread(_client_command, client, folder)
    task = folder / "job.json"  # longer than a command line may be
    task.write_text(json.dumps(job), "utf-8")
    own = {
        "HOME": str(folder),
        "LLM_USER_PATH": str(folder),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    process = await asyncio.create_subprocess_exec(
        *command,
        str(task),
        cwd=folder,
        env={**os.environ, **own},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, f"{errors.decode()[:1_500]} … {errors.decode()[-1_500:]}"
    heard: list[str] = json.loads(out.decode().strip().rpartition("\n")[2])
    return heard


def _client_command(client: str, folder: Path) -> list[str]:
    scripts = Path(__file__).parent / "clients"
    try:
        if client != "ai_sdk":
            python = create_environment({"langchain": "langchain_client"}.get(client, client))
            return [str(python), str(scripts / f"{client}_client.py")]
        modules, node = install_npm(AI_SDK)
    except (PeerAbsentError, AbsentError) as error:
        pytest.skip(f"{client} cannot be installed here: {error}")
    if not (folder / "node_modules").exists():
        # A module looks for others beside itself.
        (folder / "node_modules").symlink_to(modules.parent)
    return [
        str(node / "node"),
        str(shutil.copy(scripts / "ai_sdk_client.mjs", folder / "client.mjs")),
    ]


@dataclass(frozen=True)
class Cache:
    """The cache hits of a conversation."""

    breaks: Sequence[int]
    """Numbers of the requests that do not extend the one before, because of a compaction. Reminders that a
    client appends and removes again do not count."""
    recovered: Sequence[float]
    """For each break, the share of the repeated tokens that the next request read from the cache."""
    share: float
    """The cached share of all prompts."""

    @classmethod
    def of(cls, log: Sequence[RequestRecord]) -> Cache:
        breaks = [at for at in range(1, len(log)) if _breaks_prefix(log[at - 1], log[at])]
        recovered = list_recovered_shares(log, breaks)
        total = sum(record.prompt_tokens for record in log)
        return cls(breaks, recovered, sum(record.cached_tokens for record in log) / total)


def _breaks_prefix(before: RequestRecord, after: RequestRecord) -> bool:
    if after.shared is None or after.shared.is_extension or before.request is None:
        return False
    return after.shared.shared_messages < len(before.request.messages) - 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_continues_past_its_window(name: str, tmp_path: Path) -> None:
    """Two runs of one conversation; the second asks about the first file that was read."""
    program = PROGRAMS[name]
    page = (ROOT / "docs" / "recipes" / f"{program.client}.md").read_text("utf-8")
    assert f"everthread wrap {program.client}" in page
    assert f"```\n{format_settings(CLIENTS[program.client], tmp_path)}\n```" in page, (
        "what the run sets is in the recipe"
    )
    found = run_program(program, tmp_path / "run", module="tests.torture.clients.run", name=name)
    assert not any(found["codes"]), found["errors"]
    assert found["refused"] == []
    assert all(kind in SIZE_REFUSALS for kind in found["upstream_refusals"]), found[
        "upstream_errors"
    ]
    assert len(found["upstream_refusals"]) <= 2, "limits are learnt from the first refusal"
    thread, *others = found["threads"]
    assert not others or not program.names_session, others
    assert [row for row in others if row["calls"] > 1 or not row["title"]] == [], (
        "side calls have names"
    )
    assert any(words in thread["title"] for words in (TASK[:40], "Compare part 1")), (
        "the user's first words"
    )
    fewest = min(1, len(found["side_calls"])) if program.names_session else 0
    assert fewest <= thread["side_calls"] <= len(found["side_calls"]), "under the conversation"
    assert not any("summar" in words.lower() for words in found["side_calls"]), (
        "its own compaction is off"
    )
    assert found["tokens_said"] >= 3 * program.window
    assert found["compactions"] >= 3
    counts = [count for name, count in found["compacted"] if name == thread["id"]]
    assert counts == sorted(set(counts)), "each continues the one before"
    most_breaks = found["compactions"] + program.drops_reasoning
    assert found["breaks"] <= most_breaks, found["break_places"]
    if program.window >= 40_000:
        assert found["cached"] >= (0.8 if program.changing_messages > 2 else 0.85)
    assert min(found["recovered"]) >= 0.9, found["recovered"]
    assert found["answered_by_recall"]
    assert found["has_recall"] or program.mcp_search_tool
    assert not found["has_both"], "our MCP server stands in the place of recall"
    assert found["reread"] or not program.rereading_tool, (
        "a file that was compacted is in the prompt when it is read again"
    )
    assert found["stubs"] or not program.unchanged_text, (
        "the client called it unchanged, and sent nothing of it"
    )
    assert FACT in found["said"][-1]
    receipts = re.findall(r"([\d,]+) compactions?\b", "".join(found["errors"]))
    made = found["events"]["compaction_done"]  # those of side calls included
    assert sum(int(number.replace(",", "")) for number in receipts) == made, "the receipts"


@pytest.mark.parametrize(("client", "api"), LIBRARIES)
def test_library_continues_past_the_window(client: str, api: Api, tmp_path: Path) -> None:
    """Run the check in a process whose network has only loopback."""
    _client_command(client, tmp_path)
    before, network = loopback_only()
    inside = f"tests/torture/test_clients.py::check_library[{client}-{api}]"
    command = [
        *before,
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-o",
        "python_functions=check_",
        inside,
    ]
    variables = {**os.environ, INSIDE: network, **({} if before else NO_NETWORK)}
    done = subprocess.run(
        [*command, f"--basetemp={tmp_path / 'inside'}"],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6_000:]


@pytest.mark.parametrize(("client", "api"), LIBRARIES)
async def check_library(client: str, api: Api, tmp_path: Path) -> None:
    assert f"\n| {NAMES[client]} | " in (ROOT / "docs" / "recipes" / "libraries.md").read_text(
        "utf-8"
    )
    home = tmp_path / "home"
    home.mkdir()
    keeper = Bookkeeper()
    async with Provider(
        [ServedModel(MODELS[api], WINDOW, shows="max_model_len")], keeper
    ) as provider:
        fleet = Fleet(home, "--upstream", f"lab={provider.url}")
        url = await fleet.start()
        try:
            job = {
                "url": url,
                "api": api,
                "model": MODELS[api],
                "system": SYSTEM,
                "texts": user_texts(TURNS),
            }
            heard = await run_client(client, tmp_path, job)
        finally:
            await fleet.close()
    keep_bodies(tmp_path, provider.log)
    store = open_store(home / "everthread.db")
    threads = await store.list_threads()
    told = await store.load_history(threads[0].first.id)
    made = await store.list_compactions(threads[0].first.id)
    await store.close()
    log = [record for record in provider.log if record.path != "/v1/messages/count_tokens"]
    cache = Cache.of([record for record in log if record.status == 200])
    found: dict[str, Any] = {
        "client": f"{client} {api}",
        "network": os.environ[INSIDE],
        "calls": len(log),
        "threads": [thread.message_count for thread in threads],
        "tokens_said": estimate_request_tokens([message.body for message in told]),
        "compactions": len(made),
        "breaks": len(cache.breaks),
        "largest_prompt": max(record.prompt_tokens for record in log),
        "cached": round(cache.share, 4),
        "recovered": [round(share, 3) for share in cache.recovered],
        "answered_by_recall": bool(keeper.recalls) and FACT in heard[-1],
    }
    keep_result(f"library-{client}-{api}", found)
    assert found["threads"] == [threads[0].message_count], "one thread"
    refused = [record for record in log if record.status != 200]
    kinds = [classify_error(status=record.status, message=record.error).kind for record in refused]
    assert all(kind in SIZE_REFUSALS for kind in kinds), [
        (record.status, record.error) for record in refused
    ]
    assert len(kinds) <= 2, "limits are learnt from the first refusal"
    assert len(heard) == TURNS + 2
    assert found["tokens_said"] >= 3 * WINDOW
    if client not in FORCED:
        assert found["answered_by_recall"], heard[-1]
    assert found["breaks"] <= found["compactions"]
    assert len(cache.breaks) >= 3
    assert min(cache.recovered) >= 0.9
    assert all(one.record.tokens_after < one.record.tokens_before for one in made), "the receipts"


async def test_library_with_a_real_model(local_file: Path, tmp_path: Path) -> None:
    """LiteLLM's client before a small model on this machine, whose server refuses what does not fit."""
    home = tmp_path / "home"
    home.mkdir()
    model = LocalModel(local_file, name="smollm2", window=1_024)
    address, key = await model.serve()
    (home / "config.yaml").write_text(
        f"gateway: {{upstreams: [{{name: here, url: '{address}'}}]}}\n"
    )
    fleet = Fleet(home)
    try:
        url = await fleet.start()
        said = user_texts(10, 5)
        job = {
            "url": url,
            "api": "openai_chat",
            "model": "smollm2",
            "system": "Be brief.",
            "texts": said,
            "most": 16,
            "key": key,
        }
        heard = await run_client("litellm", tmp_path, job)
    finally:
        await fleet.close()
        await model.aclose()
    assert len(heard) == len(said)
    store = open_store(home / "everthread.db")
    try:
        (thread,) = await store.list_threads()
        assert thread.message_count == 2 * len(said)
        assert thread.compaction_count >= 1
        prompts = [
            row.usage.prompt_tokens
            for row in await store.usage.list_usage(thread.first.id)
            if row.task == "main"
        ]
        assert len(prompts) == len(said)
        assert max(prompts) < model.window
    finally:
        await store.close()
