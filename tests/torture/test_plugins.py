"""The plug-ins of pi, opencode and Claude Code in the real programs.

pi's compaction is the gateway's. opencode's and Claude Code's are their own, and what the user said comes back behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread.core.types import Request
from everthread.lab.provider import Provider, ServedModel
from tests.gateway.clients import words
from tests.gateway.house import house
from tests.torture.clients.install import AbsentError, install_npm

PLUGINS = Path(__file__).parents[2] / "plugins"
PI_PLUGIN, CLAUDE_PLUGIN = str(PLUGINS / "pi" / "everthread.ts"), str(PLUGINS / "claude-code")
PI, CLAUDE = "@earendil-works/pi-coding-agent@0.74.2", "@anthropic-ai/claude-code@2.1.325"
OPENCODE = "opencode-ai@1.18.33"
CLAUDE_MODELS = ("claude-opus-5-5", "claude-haiku-4-5", "claude-haiku-4-5-20251001")
RULE = "Never push to main. Answer in one line."
WINDOW = 40_000
OPENCODE_SUMMARY = "The ledger was kept, and that is all."


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


def find_program(name: str, package: str) -> tuple[str, str]:
    try:
        folders = install_npm([package])
    except AbsentError as error:
        pytest.skip(f"{name} cannot be installed here: {error}")
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    return shutil.which(name, path=path) or name, path


async def test_pi_compacts_through_the_gateway(tmp_path: Path) -> None:
    program, path = find_program("pi", PI)
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
            program, "--mode", "rpc", "--provider", "lab", "--model", "lab-coder", "--extension", PI_PLUGIN,
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


def opencode_model(request: Request) -> str:
    """Its own summary says nothing of what the user said."""
    return bookkeeper(request) if request.tools else OPENCODE_SUMMARY


async def test_opencodes_summary_is_followed_by_the_users_words(tmp_path: Path) -> None:
    program, path = find_program("opencode", OPENCODE)
    settings = tmp_path / ".config" / "opencode"
    (settings / "plugins").mkdir(parents=True)
    shutil.copy(PLUGINS / "opencode" / "everthread.js", settings / "plugins")
    models = [ServedModel("lab-coder", 200_000)]
    async with house(tmp_path) as place, Provider(models, opencode_model) as provider:
        limit = {"context": 200_000, "output": 4_000}
        options = {"baseURL": f"{provider.url}/v1", "apiKey": "any"}
        lab = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"lab-coder": {"limit": limit}}}
        (settings / "opencode.json").write_text(json.dumps({"provider": {"lab": lab}}), "utf-8")
        environment = {
            "PATH": path, "HOME": str(tmp_path), "EVERTHREAD_URL": await place.gateway("none", key=None),
            "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            program, "serve", "--port", "0", cwd=tmp_path, env=environment, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            assert process.stdout
            while "listening on" not in (line := (await asyncio.wait_for(process.stdout.readline(), 120)).decode()):
                assert line, "opencode ended"
            async with httpx2.AsyncClient(base_url=line.split()[-1], timeout=300) as http:
                session = (await http.post("/session", json={})).json()["id"]

                async def say(text: str) -> None:
                    model = {"providerID": "lab", "modelID": "lab-coder"}
                    body = {"model": model, "parts": [{"type": "text", "text": text}]}
                    answer = await http.post(f"/session/{session}/message", json=body)
                    assert answer.status_code == 200, answer.text

                await say(RULE)
                for compaction in range(2):
                    for turn in range(12):
                        await say(f"Ledger {compaction}-{turn}: {words(1_200, f'ledger {turn}')}")
                    model = {"providerID": "lab", "modelID": "lab-coder"}
                    done = await http.post(f"/session/{session}/summarize", json=model)
                    assert done.status_code == 200, done.text
                    before = provider.log[-2].prompt_tokens
                    await say("And now?")
                    sent = provider.log[-1]
                    assert sent.status == 200
                    asked = json.dumps(sent.body)
                    assert asked.count(OPENCODE_SUMMARY) == 1, "its own summary"
                    assert asked.count("made by Everthread") == 1
                    assert RULE in asked
                    assert sent.prompt_tokens < before
        finally:
            process.kill()
            await process.wait()


def claude_model(request: Request) -> str:
    """Its own summary says nothing of what the user said."""
    if "<summary>" in json.dumps(request.messages[-1]):
        return "<summary>The ledger was kept.</summary>"
    return bookkeeper(request)


async def test_claude_code_gets_the_users_words_back_after_its_own_compaction(tmp_path: Path) -> None:
    program, path = find_program("claude", CLAUDE)
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    models = [ServedModel(name, 200_000) for name in CLAUDE_MODELS]
    async with house(tmp_path) as place, Provider(models, claude_model) as provider:
        environment = {
            "PATH": path, "HOME": str(home), "TMPDIR": str(tmp_path), "IS_SANDBOX": "1", "ANTHROPIC_API_KEY": "any",
            "ANTHROPIC_BASE_URL": provider.url, "EVERTHREAD_URL": await place.gateway("none", key=None),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }  # fmt: skip

        async def say(*arguments: str) -> None:
            process = await asyncio.create_subprocess_exec(
                program, "--plugin-dir", CLAUDE_PLUGIN, "--dangerously-skip-permissions", "-p", *arguments,
                cwd=work, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            heard, _ = await asyncio.wait_for(process.communicate(), 300)
            assert process.returncode == 0, heard.decode()

        await say(RULE)
        for turn in range(2):
            await say(f"Ledger {turn}: {words(1_200, f'ledger {turn}')}", "--continue")
        await say("/compact", "--continue")
        await say("And now?", "--continue")
        sent = provider.log[-1]
        assert sent.status == 200
        asked = json.dumps(sent.body)
        assert "The ledger was kept." in asked, "its own summary"
        assert "made by Everthread" in asked
        assert RULE in asked
