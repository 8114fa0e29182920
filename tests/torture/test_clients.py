"""Clients that know nothing of the gateway, each as it is installed, talk far past the upstream's window through it.

Each runs in an environment of its own under `.venv-peers/`; only the base URL is another one than its user had before.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import PeerAbsentError, environment
from everthread import open_store
from everthread.core.messages import text_of
from everthread.core.types import Api, Reply, Request
from everthread.lab.provider import Provider, ServedModel
from everthread.lab.provider.log import Record
from everthread.providers.local import LocalModel
from tests.torture.fleet import Fleet

pytestmark = pytest.mark.timeout(1_800)
WINDOW, TURNS = 12_000, 44
MODELS: dict[Api, str] = {"openai_chat": "gpt-4o", "openai_responses": "gpt-5", "anthropic": "claude-sonnet-5"}
FACT = "7731-KESTREL"
FILLER = "the ledger of the northern branch was settled and every entry was compared twice with its receipt. "
SYSTEM = "You keep the books of the northern branch. Answer briefly, and never guess a number. " * 4
CLIENTS: list[tuple[str, Api]] = [
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
]


def says(turns: int, words: int = 20) -> list[str]:
    first = f"Hello. The code of the vault is {FACT}; remember it. {FILLER * 3}"
    middle = [f"Entry {number}: {FILLER * words}Look it up." for number in range(turns)]
    return [first, *middle, "What is the code of the vault?"]


def bookkeeper(request: Request) -> Reply | str:
    """Knows what the prompt says, and looks up every fifth entry where it has a tool."""
    last = request.messages[-1]
    everything = "\n".join(text_of(message) for message in request.messages)
    number = everything.rpartition("Entry ")[2].partition(":")[0]
    if "What is the code of the vault?" in everything:
        return f"The code is {FACT}." if FACT in everything else "Nobody told me."
    if last["role"] == "user" and request.tools and number.isdecimal() and not int(number) % 5:
        function = {"name": "look_up", "arguments": json.dumps({"entry": number})}
        call: Any = {"id": f"call_{len(everything)}_{number}", "type": "function", "function": function}
        return Reply({"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls")
    return f"Entry {number} is noted. {FILLER * 2}"


async def answers(client: str, folder: Path, job: dict[str, Any]) -> list[str]:
    """What the client heard; skips where it cannot be installed."""
    try:
        python = await asyncio.to_thread(environment, {"langchain": "langchain_client"}.get(client, client))
    except PeerAbsentError as error:
        pytest.skip(f"{client} cannot be installed here: {error}")
    script = Path(__file__).parent / "clients" / f"{client}_client.py"
    own = {"HOME": str(folder), "LLM_USER_PATH": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    process = await asyncio.create_subprocess_exec(
        str(python), str(script), json.dumps(job), cwd=folder, env={**os.environ, **own},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-3000:]
    heard: list[str] = json.loads(out.decode().strip().rpartition("\n")[2])
    return heard


@dataclass(frozen=True)
class Cache:
    """How a conversation was cached."""

    breaks: Sequence[int]
    """Which requests did not go on from the one before: compactions. A reminder that some clients put behind what was
    said last, and take away again, is none."""
    recovered: Sequence[float]
    """How much of the request after each, up to where that one ended, was read from the cache."""
    share: float
    """Of all prompts together."""

    @classmethod
    def of(cls, log: Sequence[Record]) -> Cache:
        breaks = [at for at in range(1, len(log)) if _breaks(log[at - 1], log[at])]
        recovered = [
            log[at + 1].cached_tokens / log[at].prompt_tokens
            for at in breaks
            if at + 1 < len(log) and at + 1 not in breaks
        ]
        total = sum(record.prompt_tokens for record in log)
        return cls(breaks, recovered, sum(record.cached_tokens for record in log) / total)


def _breaks(before: Record, after: Record) -> bool:
    if after.shared is None or after.shared.extends or before.request is None:
        return False
    return after.shared.shared_messages < len(before.request.messages) - 2


@pytest.mark.parametrize(("client", "api"), CLIENTS)
async def test_far_past_the_window(client: str, api: Api, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    async with Provider([ServedModel(MODELS[api], WINDOW, shows="max_model_len")], bookkeeper) as provider:
        fleet = Fleet(home, "--upstream", f"lab={provider.url}")
        url = await fleet.start()
        try:
            job = {"url": url, "api": api, "model": MODELS[api], "system": SYSTEM, "says": says(TURNS)}
            heard = await answers(client, tmp_path, job)
        finally:
            await fleet.close()
    log = [record for record in provider.log if record.path != "/v1/messages/count_tokens"]
    assert [(record.status, record.error) for record in log if record.status != 200] == []
    assert len(heard) == TURNS + 2
    assert FACT in heard[-1]
    cache = Cache.of(log)
    print(f"{client} {api}: {len(log)} requests, {len(cache.breaks)} compactions, largest prompt "
          f"{max(record.prompt_tokens for record in log):,}, cached {cache.share:.0%}, "
          f"recovered {', '.join(f'{share:.0%}' for share in cache.recovered)}")  # fmt: skip
    assert len(cache.breaks) >= 2
    assert cache.recovered
    assert min(cache.recovered) > 0.8


async def test_a_real_model(local_file: Path, tmp_path: Path) -> None:
    """LiteLLM's client before a small model on this machine, whose server refuses what does not fit."""
    home = tmp_path / "home"
    home.mkdir()
    model = LocalModel(local_file, name="smollm2", window=1_024)
    address, key = await model.serve()
    (home / "config.yaml").write_text(f"gateway: {{upstreams: [{{name: here, url: '{address}'}}]}}\n")
    fleet = Fleet(home)
    try:
        url = await fleet.start()
        said = says(10, 5)
        job = {
            "url": url,
            "api": "openai_chat",
            "model": "smollm2",
            "system": "Be brief.",
            "says": said,
            "most": 16,
            "key": key,
        }
        heard = await answers("litellm", tmp_path, job)
    finally:
        await fleet.close()
        await model.aclose()
    assert len(heard) == len(said)
    store = open_store(home / "everthread.db")
    try:
        (thread,) = await store.list_threads()
        assert thread.messages == 2 * len(said)
        assert thread.compactions >= 1
        prompts = [row.usage.prompt_tokens for row in await store.usage(thread.first.id) if row.task == "main"]
        assert len(prompts) == len(said)
        assert max(prompts) < model.window
    finally:
        await store.close()
