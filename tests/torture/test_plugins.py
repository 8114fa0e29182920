"""The plug-in of pi in the real pi: its compaction is the gateway's, and the conversation goes on."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from everthread.core.types import Request
from everthread.lab.provider import Provider, ServedModel
from tests.gateway.clients import words
from tests.gateway.house import house
from tests.torture.clients.install import AbsentError, install_npm

PLUGIN = Path(__file__).parents[2] / "plugins" / "pi" / "everthread.ts"
PACKAGE = "@earendil-works/pi-coding-agent@0.74.2"
RULE = "Never push to main. Answer in one line."
WINDOW = 40_000


def bookkeeper(request: Request) -> str:
    return f"Noted: {words(1_500, f'entry {len(request.messages)}')}"


class Pi:
    """A running pi, spoken to by lines of JSON."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, command: dict[str, Any], until: str) -> dict[str, Any]:
        """Its event or answer of this type, after the command."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{json.dumps(command)}\n".encode())
        while line := await asyncio.wait_for(self._process.stdout.readline(), 300):
            event: dict[str, Any] = json.loads(line)
            if event.get("type") == until and event.get("command") in (None, command["type"]):
                return event
        raise AssertionError("pi ended")


def find_pi() -> tuple[str, str]:
    try:
        folders = install_npm([PACKAGE])
    except AbsentError as error:
        pytest.skip(str(error))
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    return shutil.which("pi", path=path) or "pi", path


async def test_pi_compacts_through_the_gateway(tmp_path: Path) -> None:
    program, path = find_pi()
    agent = tmp_path / "agent"
    agent.mkdir()
    models = [ServedModel("lab-coder", WINDOW)]
    async with house(tmp_path) as place, Provider(models, bookkeeper) as provider:
        gateway = await place.gateway("none", key=None)
        row = {"id": "lab-coder", "name": "lab", "reasoning": False, "input": ["text"], "contextWindow": WINDOW,
               "maxTokens": 4_000, "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}}  # fmt: skip
        lab = {"baseUrl": f"{provider.url}/v1", "api": "openai-completions", "apiKey": "any", "models": [row]}
        (agent / "models.json").write_text(json.dumps({"providers": {"lab": lab}}), "utf-8")
        (agent / "settings.json").write_text(
            json.dumps({"compaction": {"enabled": False, "keepRecentTokens": 3_000}}), "utf-8"
        )
        environment = {
            **os.environ, "PATH": path, "HOME": str(tmp_path), "PI_CODING_AGENT_DIR": str(agent), "PI_OFFLINE": "1",
            "EVERTHREAD_URL": gateway,
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            program, "--mode", "rpc", "--provider", "lab", "--model", "lab-coder", "--extension", str(PLUGIN),
            cwd=tmp_path, env=environment, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            limit=64 * 1024 * 1024,
        )  # fmt: skip
        try:
            pi = Pi(process)
            await pi.ask({"type": "prompt", "message": RULE}, "agent_end")
            for compaction in range(2):
                for turn in range(4):
                    text = f"Ledger {compaction}-{turn}: {words(1_200, f'ledger {turn}')}"
                    await pi.ask({"type": "prompt", "message": text}, "agent_end")
                calls = len(provider.log)
                made = await pi.ask({"type": "compact"}, "response")
                assert made["success"], made
                assert len(provider.log) == calls, "no model was asked for the summary"
                assert RULE in made["data"]["summary"]
                await pi.ask({"type": "prompt", "message": "And now?"}, "agent_end")
                sent = provider.log[-1]
                assert sent.status == 200
                assert RULE in json.dumps(sent.body)
                assert sent.prompt_tokens < provider.log[calls - 1].prompt_tokens
        finally:
            process.kill()
            await process.wait()
