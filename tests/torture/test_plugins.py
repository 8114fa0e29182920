"""The plug-ins of pi, opencode, Claude Code and Codex in the real programs, without a gateway.

pi's compaction is Everthread's. The others' are their own; the user's words come back after them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread.core.turns import user_text
from everthread.core.types import ModelReply, ModelRequest
from everthread.lab.provider import Provider, ServedModel
from tests.gateway.manager_setup import text_of_tokens
from tests.torture.clients.install import AbsentError, install_npm

PLUGINS = Path(__file__).parents[2] / "plugins"
PI_PLUGIN = str(PLUGINS / "pi" / "everthread.ts")
PI = "@earendil-works/pi-coding-agent@0.87.1"
CLAUDE = "@anthropic-ai/claude-code@2.1.326"
OPENCODE = "opencode-ai@1.18.33"
CODEX = "@openai/codex@0.169.0"
CLAUDE_MODELS = ("claude-opus-5-5", "claude-haiku-4-5", "claude-haiku-4-5-20251001")
RULE = "Never push to main. Answer in one line."
WINDOW = 40_000
OPENCODE_SUMMARY = "The ledger was kept, and that is all."


def hook_environment(folder: Path) -> dict[str, str]:
    """Return the variables that let a plug-in find Everthread."""
    return {
        "EVERTHREAD_HOME": str(folder / "everthread"),
        "EVERTHREAD_COMMAND": f"{sys.executable} -m everthread",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }


def bookkeeper(request: ModelRequest) -> str:
    return f"Noted: {text_of_tokens(1_500, f'entry {len(request.messages)}')}"


class Pi:
    """A running pi that reads and writes lines of JSON."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, command: dict[str, Any], until: str) -> dict[str, Any]:
        """Send a command; return the first event or answer of this type after it."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{json.dumps(command)}\n".encode())
        while line := await asyncio.wait_for(self._process.stdout.readline(), 300):
            event: dict[str, Any] = json.loads(line)
            if event.get("type") == until and event.get("command") in (
                None,
                command["type"],
            ):
                return event
        raise AssertionError("pi ended")


def find_program(name: str, package: str) -> tuple[str, str]:
    try:
        folders = install_npm([package])
    except AbsentError as error:
        pytest.skip(f"{name} cannot be installed here: {error}")
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    return shutil.which(name, path=path) or name, path


def pi_model(request: ModelRequest) -> str | ModelReply:
    """Run a command or recall on request."""
    last = request.messages[-1]
    if last["role"] == "tool":
        return "Noted."
    if "Build it." in user_text(last):
        return _call("bash", {"command": BUILD})
    if "Where is the vault?" in user_text(last):
        return _call("recall", {"query": "vault mirror"})
    return bookkeeper(request)


async def test_pi_compacts_shortens_and_recalls_with_the_plugin_alone(
    tmp_path: Path,
) -> None:
    program, path = find_program("pi", PI)
    agent = tmp_path / "agent"
    agent.mkdir()
    models = [ServedModel("lab-coder", WINDOW)]
    async with Provider(models, pi_model) as provider:
        row = {
            "id": "lab-coder",
            "name": "lab",
            "reasoning": False,
            "input": ["text"],
            "contextWindow": WINDOW,
            "maxTokens": 4_000,
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        }
        lab = {
            "baseUrl": f"{provider.url}/v1",
            "api": "openai-completions",
            "apiKey": "any",
            "models": [row],
        }
        (agent / "models.json").write_text(json.dumps({"providers": {"lab": lab}}), "utf-8")
        (agent / "settings.json").write_text(
            json.dumps({"compaction": {"enabled": False, "keepRecentTokens": 3_000}}),
            "utf-8",
        )
        environment = {
            **os.environ,
            "PATH": path,
            "HOME": str(tmp_path),
            "PI_CODING_AGENT_DIR": str(agent),
            "PI_OFFLINE": "1",
            **hook_environment(tmp_path),
        }
        process = await asyncio.create_subprocess_exec(
            program,
            "--mode",
            "rpc",
            "--provider",
            "lab",
            "--model",
            "lab-coder",
            "--extension",
            PI_PLUGIN,
            cwd=tmp_path,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=64 * 1024 * 1024,
        )
        try:
            pi = Pi(process)
            await pi.ask({"type": "prompt", "message": f"{RULE} {SECRET}"}, "agent_end")
            await pi.ask({"type": "prompt", "message": "Build it."}, "agent_end")
            assert_shortened(provider)
            for compaction in range(2):
                for turn in range(4):
                    text = f"Ledger {compaction}-{turn}: {text_of_tokens(1_200, f'ledger {turn}')}"
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
            vault = {"type": "prompt", "message": "Where is the vault?"}
            await pi.ask(vault, "agent_end")
            assert SECRET in json.dumps(provider.log[-1].body["messages"][-1])
        finally:
            process.kill()
            await process.wait()


def opencode_model(request: ModelRequest) -> str | ModelReply:
    """Write a summary that says nothing of the user's words; run a command on request."""
    if not request.tools:
        return OPENCODE_SUMMARY
    if request.messages[-1]["role"] == "tool":
        return "Noted."
    if "Build it." in user_text(request.messages[-1]):
        return _call("bash", {"command": BUILD, "description": "Build"})
    return bookkeeper(request)


def assert_shortened(provider: Provider) -> None:
    """Check that the build's result is a preview with its end."""
    shortened = json.dumps(provider.log[-1].body)
    assert "kept outside the conversation" in shortened
    assert "step 1199 of" in shortened, "its end is shown"
    assert "step 600 of" not in shortened


async def test_opencode_with_the_plugin_alone(tmp_path: Path) -> None:
    program, path = find_program("opencode", OPENCODE)
    settings = tmp_path / ".config" / "opencode"
    (settings / "plugins").mkdir(parents=True)
    shutil.copy(PLUGINS / "opencode" / "everthread.js", settings / "plugins")
    models = [ServedModel("lab-coder", 200_000)]
    async with Provider(models, opencode_model) as provider:
        limit = {"context": 200_000, "output": 4_000}
        options = {"baseURL": f"{provider.url}/v1", "apiKey": "any"}
        lab = {
            "npm": "@ai-sdk/openai-compatible",
            "options": options,
            "models": {"lab-coder": {"limit": limit}},
        }
        (settings / "opencode.json").write_text(json.dumps({"provider": {"lab": lab}}), "utf-8")
        environment = {
            "PATH": path,
            "HOME": str(tmp_path),
            **hook_environment(tmp_path),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        }
        process = await asyncio.create_subprocess_exec(
            program,
            "serve",
            "--port",
            "0",
            cwd=tmp_path,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout
            while "listening on" not in (
                line := (await asyncio.wait_for(process.stdout.readline(), 120)).decode()
            ):
                assert line, "opencode ended"
            async with httpx2.AsyncClient(base_url=line.split()[-1], timeout=300) as http:
                session = (await http.post("/session", json={})).json()["id"]

                async def say(text: str) -> None:
                    model = {"providerID": "lab", "modelID": "lab-coder"}
                    body = {"model": model, "parts": [{"type": "text", "text": text}]}
                    answer = await http.post(f"/session/{session}/message", json=body)
                    assert answer.status_code == 200, answer.text

                await say(RULE)
                await say("Build it.")
                assert_shortened(provider)
                for compaction in range(2):
                    for turn in range(12):
                        await say(
                            f"Ledger {compaction}-{turn}: {text_of_tokens(1_200, f'ledger {turn}')}"
                        )
                    model = {"providerID": "lab", "modelID": "lab-coder"}
                    done = await http.post(f"/session/{session}/summarize", json=model)
                    assert done.status_code == 200, done.text
                    before = provider.log[-2].prompt_tokens
                    await say("And now?")
                    sent = provider.log[-1]
                    assert sent.status == 200
                    asked = json.dumps(sent.body)
                    assert asked.count(OPENCODE_SUMMARY) == 1, "its own summary"
                    assert asked.count("Kept by Everthread") == 1
                    assert RULE in asked
                    assert sent.prompt_tokens < before
        finally:
            process.kill()
            await process.wait()


CLAUDE_SUMMARY = "The ledger was kept."
SECRET = "The vault is behind the mirror."
BUILD = "seq -f 'step %g of the build' 1 1200; echo built"


def claude_model(request: ModelRequest) -> str | ModelReply:
    """Write a summary that says nothing of the user's words; run a command or recall on request."""
    said = json.dumps(request.messages[-1])
    if "<summary>" in said:
        return f"<summary>{CLAUDE_SUMMARY}</summary>"
    asked = next(text for message in reversed(request.messages) if (text := user_text(message)))
    if "Where is the vault?" in asked:
        return _recall(request)
    if request.messages[-1]["role"] == "tool":
        return "Noted."
    if "Build it." in said:
        return _call("Bash", {"command": BUILD, "description": "Build"})
    return bookkeeper(request)


def _recall(request: ModelRequest) -> str | ModelReply:
    """Search with the MCP server, once it is connected: until then, wait."""
    last = json.dumps(request.messages[-1])
    names = [str(tool["function"]["name"]) for tool in request.tools]
    search = [name for name in names if name.startswith("mcp__") and name.endswith("__search")]
    if SECRET in last:
        return "Behind the mirror."
    if search:
        return _call(search[0], {"query": "vault mirror"})
    return _call("Bash", {"command": "sleep 3", "description": "Wait"})


_numbers = itertools.count()


def _call(name: str, arguments: dict[str, Any]) -> ModelReply:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call: Any = {
        "id": f"toolu_{next(_numbers)}",
        "type": "function",
        "function": function,
    }
    return ModelReply({"role": "assistant", "content": None, "tool_calls": [call]})


async def test_claude_code_with_the_plugin_alone(tmp_path: Path) -> None:
    """No gateway runs: the marketplace's plug-in shortens a result, keeps the words, and recalls what was lost."""
    program, path = find_program("claude", CLAUDE)
    work = tmp_path / "work"
    home = tmp_path / "home"
    work.mkdir()
    home.mkdir()
    models = [ServedModel(name, 200_000) for name in CLAUDE_MODELS]
    async with Provider(models, claude_model) as provider:
        environment = {
            "PATH": path,
            "HOME": str(home),
            "TMPDIR": str(tmp_path),
            "IS_SANDBOX": "1",
            "ANTHROPIC_API_KEY": "any",
            "ANTHROPIC_BASE_URL": provider.url,
            **hook_environment(tmp_path),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "ENABLE_TOOL_SEARCH": "false",
            "MCP_TIMEOUT": "60000",
        }

        async def run(*arguments: str) -> str:
            process = await asyncio.create_subprocess_exec(
                program,
                *arguments,
                cwd=work,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            heard, _ = await asyncio.wait_for(process.communicate(), 300)
            assert process.returncode == 0, heard.decode()
            return heard.decode()

        async def say(*arguments: str) -> None:
            await run("--dangerously-skip-permissions", "-p", *arguments)

        await run("plugin", "marketplace", "add", str(PLUGINS.parent))
        await run("plugin", "install", "everthread@everthread")
        await say(f"{RULE} {SECRET}")
        await say("Build it.", "--continue")
        assert_shortened(provider)
        for turn in range(2):
            await say(f"Ledger {turn}: {text_of_tokens(1_200, f'ledger {turn}')}", "--continue")
        await say("/compact", "--continue")
        await say("And now?", "--continue")
        sent = provider.log[-1]
        assert sent.status == 200
        asked = json.dumps(sent.body)
        assert CLAUDE_SUMMARY in asked, "its own summary"
        assert "Kept by Everthread" in asked
        assert RULE in asked
        await say("Where is the vault?", "--continue")
        results = json.dumps(provider.log[-1].body["messages"][-1])
        assert SECRET in results, "recalled by the MCP server"


CODEX_SUMMARY = "The ledger was kept, and nothing else."
CODEX_LIMIT = 30_000
"""Tokens at which Codex compacts by itself in the test."""


def codex_model(request: ModelRequest) -> str:
    """Write a summary that says nothing of the user's words, else a page of the ledger."""
    if "CONTEXT CHECKPOINT COMPACTION" in json.dumps(request.messages[-1]):
        return CODEX_SUMMARY
    return bookkeeper(request)


async def test_codex_with_the_hooks_alone(tmp_path: Path) -> None:
    """No gateway runs: after a compaction by Codex itself the user's words come back."""
    program, path = find_program("codex", CODEX)
    home = tmp_path / "home"
    work = tmp_path / "work"
    (home / ".codex").mkdir(parents=True)
    work.mkdir()
    shutil.copy(PLUGINS / "codex" / "hooks.json", home / ".codex")
    command = tmp_path / "bin" / "everthread"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m everthread "$@"\n', "utf-8")
    command.chmod(0o755)
    async with Provider([ServedModel("lab-coder", 200_000)], codex_model) as provider:
        lab = (
            f'model_providers.lab={{name="Lab", base_url="{provider.url}/v1", '
            'env_key="LAB_API_KEY", wire_api="responses"}'
        )
        options = [
            *("--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"),
            *("--dangerously-bypass-hook-trust", "-m", "lab-coder"),
            *("-c", 'model_provider="lab"', "-c", lab),
            *("-c", f"model_auto_compact_token_limit={CODEX_LIMIT}"),
        ]
        environment = {
            "PATH": f"{command.parent}{os.pathsep}{path}",
            "HOME": str(home),
            "LAB_API_KEY": "any",
            **hook_environment(tmp_path),
        }

        async def say(*words_said: str) -> None:
            process = await asyncio.create_subprocess_exec(
                program,
                *("exec", *options, *words_said),
                cwd=work,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            heard, _ = await asyncio.wait_for(process.communicate(), 300)
            assert process.returncode == 0, heard.decode()

        await say(RULE)
        asked = ""
        for turn in range(12):
            page = f"Ledger {turn}: {text_of_tokens(1_200, f'ledger {turn}')}"
            await say("resume", "--last", page)
            asked = json.dumps(provider.log[-1].body)
            if CODEX_SUMMARY in asked:
                break
        assert CODEX_SUMMARY in asked, "its own summary"
        await say("resume", "--last", "And now?")
        asked = json.dumps(provider.log[-1].body)
        assert "Kept by Everthread" in asked
        assert RULE in asked
