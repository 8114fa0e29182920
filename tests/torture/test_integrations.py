"""Agents of real frameworks continue far past their model's window.

Each runs in its own environment under `.venv-peers/`, with the versions that `frameworks/NAME.txt` pins. Without the
integration the same agent is refused; with it nothing is refused, and `recall` finds the first messages.

"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import PeerAbsentError, create_environment
from everthread import open_store
from everthread.core.messages import results_of, text_of
from everthread.core.types import ModelReply, ModelRequest
from everthread.lab.provider import Provider, ServedModel

pytestmark = pytest.mark.timeout(1_800)
HERE = Path(__file__).parent / "frameworks"
ROOT = HERE.parents[2]
FRAMEWORKS = sorted(file.stem for file in HERE.glob("*.txt"))
MODEL = "gpt-4o"
WINDOW = 12_000
TURNS = 40
FACT = "7731-KESTREL"
FILLER = "the ledger of the northern branch was settled and every entry was compared twice with its receipt. "
SYSTEM = "You keep the books of the northern branch. Answer briefly, and never guess a number."
PAGE = "Entry {entry} is settled; " + FILLER * 12
USER_TEXTS = [
    f"Hello. The code of the vault is {FACT}; remember it.",
    *(f"Entry {number}: {FILLER * 8}" for number in range(TURNS)),
    "What is the code of the vault?",
]


def bookkeeper(request: ModelRequest) -> ModelReply | str:
    """Look up every entry. Asked for the code, search the conversation and report the result."""
    last = request.messages[-1]
    said = next(
        text_of(message) for message in reversed(request.messages) if message["role"] == "user"
    )
    said = text_of(last) if last["role"] == "user" else said
    if last["role"] == "tool":
        found = results_of(last)[0].text
        if is_recalled(found):
            return f"The code is {FACT}." if FACT in found else "It is nowhere."
        return f"It is noted. {FILLER}"
    everything = "\n".join(text_of(message) for message in request.messages)
    asked = "What is the code" in everything
    entry = everything.rpartition("Entry ")[2].partition(":")[0]
    offered = {tool["function"]["name"] for tool in request.tools}
    if asked and "recall" not in offered:
        return f"The code is {FACT}." if FACT in everything else "Nobody told me."
    if not asked and "Entry" not in said:
        return "Hello."
    name, arguments = (
        ("recall", {"query": "code of the vault"}) if asked else ("look_up", {"entry": entry})
    )
    call: Any = {
        "id": f"call_{len(everything)}_{entry if not asked else 'code'}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }
    return ModelReply({"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls")


def is_recalled(text: str) -> bool:
    """Return whether a text is an answer of `recall`, plain or as JSON."""
    return "recall 'code of the vault'" in text[:60]


async def python_of(framework: str) -> Path:
    """Return the Python of a framework's environment; skip if it cannot be installed."""
    try:
        return await asyncio.to_thread(
            create_environment,
            f"{framework}_agent",
            HERE / f"{framework}.txt",
            "-e",
            str(ROOT),
        )
    except PeerAbsentError as error:
        pytest.skip(f"{framework} cannot be installed here: {error}")


async def run(framework: str, folder: Path, script: Path, *arguments: str, **variables: str) -> str:
    own = {
        "HOME": str(folder),
        "EVERTHREAD_HOME": str(folder / "home"),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    process = await asyncio.create_subprocess_exec(
        str(await python_of(framework)),
        str(script),
        *arguments,
        cwd=folder,
        env={**os.environ, **own, "OPENAI_API_KEY": "any", **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-4_000:]
    return out.decode()


async def run_framework(
    framework: str, folder: Path, provider: Provider, **how: Any
) -> dict[str, Any]:
    job = {
        "url": provider.url,
        "model": MODEL,
        "system": SYSTEM,
        "page": PAGE,
        "texts": USER_TEXTS,
        "managed": True,
        "store": str(folder / "books.db"),
        "window": WINDOW,
    }
    said = await run(framework, folder, HERE / f"{framework}_agent.py", json.dumps({**job, **how}))
    found: dict[str, Any] = json.loads(said.strip().rpartition("\n")[2])
    return found


def open_provider() -> Provider:
    return Provider([ServedModel(MODEL, WINDOW)], bookkeeper)


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_agent_without_integration_is_refused(framework: str, tmp_path: Path) -> None:
    async with open_provider() as provider:
        found = await run_framework(framework, tmp_path, provider, managed=False)
    assert found["error_text"]
    assert len(found["answers"]) < len(USER_TEXTS)
    assert provider.log[-1].status == 400


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_agent_with_integration_is_never_refused(framework: str, tmp_path: Path) -> None:
    async with open_provider() as provider:
        found = await run_framework(framework, tmp_path, provider)
    assert [(record.status, record.error) for record in provider.log if record.status != 200] == []
    assert found["error_text"] == ""
    assert len(found["answers"]) == len(USER_TEXTS)
    assert FACT in found["answers"][-1]
    calls = [
        text
        for record in provider.log
        if record.request
        for text in map(text_of, record.request.messages[-1:])
    ]
    # Else what the question is about is shown again before the call.
    if found.get("recall", True):
        assert sum(map(is_recalled, calls)) == 1
    assert found["kept_count"] >= 4 * TURNS, "the framework's own history is whole"
    assert found["piece_count"] > len(USER_TEXTS) // 3, "what is streamed comes in pieces"
    assert "compaction_done" in found["events"], "the framework reports compactions"
    store = open_store(tmp_path / "books.db")
    try:
        (thread,) = await store.list_threads()
        assert thread.compaction_count >= 3
        assert thread.message_count >= 4 * TURNS
        used = [row for row in await store.usage.list_usage(thread.first.id) if row.task == "main"]
        assert len(used) == len(provider.log)
        assert [row.usage.prompt_tokens for row in used] == [
            record.prompt_tokens for record in provider.log
        ]
        assert all(row.cost for row in used)
    finally:
        await store.close()
    print(
        f"{framework}: {len(provider.log)} calls, {thread.compaction_count} compactions, largest prompt "
        f"{max(record.prompt_tokens for record in provider.log):,} of {WINDOW:,}"
    )


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_recovery_from_a_refusal(framework: str, tmp_path: Path) -> None:
    """The configured window is ten times too large: it is learnt from the first refusal."""
    async with open_provider() as provider:
        found = await run_framework(framework, tmp_path, provider, window=10 * WINDOW)
    assert found["error_text"] == ""
    assert FACT in found["answers"][-1]
    assert [record.status for record in provider.log if record.status != 200] == [400]


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_example_of_the_integration(framework: str, tmp_path: Path) -> None:
    async with Provider([ServedModel(MODEL, 128_000)], ["Done."] * 20) as provider:
        said = await run(
            framework,
            tmp_path,
            ROOT / "examples" / f"{framework}_agent.py",
            OPENAI_BASE_URL=f"{provider.url}/v1",
        )
    assert said.count("Done.") >= 3
    store = open_store(tmp_path / "home" / "everthread.db")
    try:
        (thread,) = await store.list_threads()
        assert thread.message_count == 2 * len(provider.log)
    finally:
        await store.close()
