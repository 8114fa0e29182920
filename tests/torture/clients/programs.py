"""The client programs: how to install each, give it a task, and resume it."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from everthread.core.types import Api
from everthread.gateway.router import CHATGPT_LOGIN_PATH


@dataclass(frozen=True)
class Program:
    """A client, started as its users start it, behind `everthread wrap`."""

    name: str
    client: str
    """Its name in `everthread wrap`."""
    packages: Sequence[str]
    """Packages of npm, or of PyPI if `is_python`."""
    api: Api
    model: str
    """The provider's name of the model."""
    first_arguments: Sequence[str]
    """Arguments of the first run; `{task}` and `{folder}` are replaced."""
    second_arguments: Sequence[str]
    """Arguments of the second run, in the same conversation; `{question}` is replaced. May be empty."""
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Its tools that read a file, with their arguments."""
    variables: Mapping[str, str] = field(default_factory=dict)
    prepare_home: Callable[[Path], None] | None = None
    """Write the settings that its user would have in the home folder."""
    window: int = 64_000
    states_window: bool = True
    """Whether the provider's list of models states the window; else the gateway must know or learn it."""
    rounds: int = 40
    files_per_round: int = 1
    file_chars: int = 16_000
    """Characters of one file."""
    thinks: bool = False
    is_python: bool = False
    max_output: int | None = None
    typed_lines: int = 0
    """Number of lines that a person types into a program without tools, before the question."""
    rereading_tool: str = ""
    """The tool that reads a compacted file again at the end."""
    unchanged_text: str = ""
    """The client's text in place of a file that it takes for unchanged, as in its own transcript."""
    side_models: Sequence[str] = ()
    """Models of its side calls."""
    upstream_path: str = ""
    """Appended to the provider's address."""
    mcp_search_tool: str = ""
    """Its name for the search tool of the MCP server, which then replaces `recall`."""
    attaches_mcp_later: bool = False
    """Whether the MCP server is attached only in the second run."""
    changing_messages: int = 2
    """Number of newest messages that the next request may change, because reminders move."""
    drops_reasoning: bool = False
    """Whether a resumed session is sent without its reasoning, which misses the cache once."""
    names_session: bool = True
    """Whether side calls carry the session's id; otherwise they are threads of their own."""


def _bash(argument: str = "command") -> dict[str, Any]:
    return {argument: "cat {name}"}


_CLAUDE = ["--dangerously-skip-permissions"]
_SESSION = "0b5c9a52-7f0e-4d0e-9a3c-5f1f6f0e2d11"
_CODEX = [
    "--dangerously-bypass-approvals-and-sandbox",
    "--skip-git-repo-check",
    "-m",
    "gpt-5.2-codex",
]
_CODEX_PROVIDER = [
    "-c",
    'model_provider="lab"',
    "-c",
    'model_providers.lab={name="Lab", base_url="{url}/v1", env_key="LAB_API_KEY", wire_api="responses"}',
]
_NO_APPS = ["-c", "features.apps=false"]
"""Without this, Codex asks chatgpt.com for the account's connectors before every call, which is out of reach."""
_CODEX_TOOLS: Mapping[str, Mapping[str, Any]] = {
    "shell": {"command": ["cat", "{name}"]},
    "shell_command": {"command": "cat {name}"},
    "exec_command": {"cmd": "cat {name}"},
}


_OPENCODE_TOOLS: Mapping[str, Mapping[str, Any]] = {
    "bash": {"command": "cat {name}", "description": "Read a part"},
    "read": {"filePath": "{folder}/{name}"},
}


def _opencode_provider(home: Path) -> None:
    """Write a custom provider with the gateway's address."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Lab",
        "options": {
            "baseURL": "{env:EVERTHREAD_URL}/v1",
            "apiKey": "{env:LAB_API_KEY}",
        },
        "models": {"lab-coder": {"name": "Lab coder"}},
    }
    file = home / ".config" / "opencode" / "opencode.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"provider": {"lab": provider}}), "utf-8")


def _codex_login(home: Path) -> None:
    """Write the files that `codex login` writes for a ChatGPT account."""

    def token(claims: Mapping[str, Any]) -> str:
        parts = (
            base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
            for part in ({}, claims)
        )
        return ".".join([*parts, "c2lnbmF0dXJl"])

    account = {
        "chatgpt_account_id": "account-1",
        "chatgpt_plan_type": "plus",
        "chatgpt_user_id": "user-1",
    }
    signed = token(
        {
            "email": "ann@lab.test",
            "exp": 4_000_000_000,
            "https://api.openai.com/auth": account,
        }
    )
    tokens = {
        "id_token": signed,
        "access_token": signed,
        "refresh_token": "any",
        "account_id": "account-1",
    }
    # An older login would be renewed first.
    today = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    file = home / ".codex" / "auth.json"
    file.parent.mkdir(parents=True)
    file.write_text(
        json.dumps({"auth_mode": "chatgpt", "tokens": tokens, "last_refresh": today}),
        "utf-8",
    )


def _gemini_key(home: Path) -> None:
    """Write the settings of a user who chose an API key."""
    file = home / ".gemini" / "settings.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}}), "utf-8")


def _cline_provider(home: Path) -> None:
    """Write the file that `cline auth` writes."""
    settings = {
        "provider": "openai-compatible",
        "apiKey": "any",
        "model": "lab-coder",
        "baseUrl": "http://lab.test/v1",
    }
    provider = {
        "settings": settings,
        "updatedAt": "2026-01-01T00:00:00.000Z",
        "tokenSource": "manual",
    }
    known = {"version": 1, "lastUsedProvider": "openai-compatible", "modes": {}}
    file = home / ".cline" / "data" / "settings" / "providers.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({**known, "providers": {"openai-compatible": provider}}), "utf-8")


_AIDER = [
    "--chat-mode",
    "ask",
    "--no-git",
    "--yes-always",
    "--no-fancy-input",
    "--no-pretty",
    "--no-check-update",
    "--no-show-release-notes",
    "--no-show-model-warnings",
    "--map-tokens",
    "0",
    "--analytics-disable",
    "--no-suggest-shell-commands",
]
_AIDER_OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}


_COPILOT = ["--allow-all-tools", "--allow-all-paths", "--no-auto-update"]
_COPILOT_OFFLINE = {
    "COPILOT_PROVIDER_API_KEY": "any",
    "COPILOT_MODEL": "gpt-5",
    "COPILOT_OFFLINE": "true",
}
_COPILOT_TOOLS: Mapping[str, Mapping[str, Any]] = {
    "bash": {"command": "cat {name}", "description": "Read a part"},
    "view": {"path": "{folder}/{name}"},
}
_GOOSE = ["run", "--with-builtin", "developer", "--max-turns", "1000"]


PROGRAMS = {
    program.name: program
    for program in (
        Program(  # of the versions that answer a second reading with "File unchanged since last read."
            name="claude-2.1.100",
            client="claude",
            packages=["@anthropic-ai/claude-code@2.1.100"],
            api="anthropic",
            model="claude-sonnet-4-6",
            first_arguments=[
                *_CLAUDE,
                "--model",
                "claude-sonnet-4-6",
                "-p",
                "{task}",
                "--session-id",
                _SESSION,
            ],
            second_arguments=[
                *_CLAUDE,
                "--model",
                "claude-sonnet-4-6",
                "-p",
                "{question}",
                "--resume",
                _SESSION,
            ],
            tools={
                "Bash": {**_bash(), "description": "Read a part"},
                "Read": {"file_path": "{folder}/{name}"},
            },
            variables={
                "ANTHROPIC_API_KEY": "any",
                "IS_SANDBOX": "1",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            },
            window=200_000,
            states_window=False,
            files_per_round=2,
            rounds=96,
            file_chars=9_000,
            thinks=True,
            rereading_tool="Read",
            unchanged_text="File unchanged since last read",
        ),
        Program(  # with its defaults: its own choice of models and options
            name="claude-defaults",
            client="claude",
            packages=["@anthropic-ai/claude-code@2.1.326"],
            api="anthropic",
            model="claude-opus-5-5",
            first_arguments=[*_CLAUDE, "-p", "{task}"],
            second_arguments=[*_CLAUDE, "-p", "{question}", "--continue"],
            tools={
                "Bash": {**_bash(), "description": "Read a part"},
                "Read": {"file_path": "{folder}/{name}"},
            },
            variables={"ANTHROPIC_API_KEY": "any", "IS_SANDBOX": "1"},
            window=200_000,
            states_window=False,
            files_per_round=2,
            rounds=96,
            file_chars=9_000,
            thinks=True,
            rereading_tool="Read",
            side_models=["claude-haiku-4-5", "claude-haiku-4-5-20251001"],
        ),
        Program(
            name="codex",
            client="codex",
            packages=["@openai/codex@0.169.0"],
            api="openai_responses",
            model="gpt-5.2-codex",
            first_arguments=["exec", *_CODEX, "{task}"],
            second_arguments=["exec", *_CODEX, "resume", "--last", "{question}"],
            tools=_CODEX_TOOLS,
            variables={"CODEX_API_KEY": "any"},
            window=64_000,
            rounds=112,
            file_chars=5_000,
            thinks=True,
        ),
        Program(
            name="codex-custom",
            client="codex",
            packages=["@openai/codex@0.169.0"],
            api="openai_responses",
            model="gpt-5.2-codex",
            first_arguments=["exec", *_CODEX, *_CODEX_PROVIDER, "{task}"],
            second_arguments=[
                "exec",
                *_CODEX,
                *_CODEX_PROVIDER,
                "resume",
                "--last",
                "{question}",
            ],
            tools=_CODEX_TOOLS,
            variables={"LAB_API_KEY": "any"},
            window=64_000,
            rounds=112,
            file_chars=5_000,
            thinks=True,
        ),
        Program(
            name="codex-login",
            client="codex",
            packages=["@openai/codex@0.169.0"],
            api="openai_responses",
            model="gpt-5.2-codex",
            first_arguments=["exec", *_CODEX, *_NO_APPS, "{task}"],
            second_arguments=[
                "exec",
                *_CODEX,
                *_NO_APPS,
                "resume",
                "--last",
                "{question}",
            ],
            tools=_CODEX_TOOLS,
            variables={},
            prepare_home=_codex_login,
            window=64_000,
            rounds=112,
            file_chars=5_000,
            thinks=True,
            upstream_path=CHATGPT_LOGIN_PATH,
        ),
        Program(
            name="opencode",
            client="opencode",
            packages=["opencode-ai@1.18.33"],
            api="openai_responses",
            model="gpt-5",
            first_arguments=["run", "--auto", "-m", "openai/gpt-5", "{task}"],
            second_arguments=[
                "run",
                "--auto",
                "-m",
                "openai/gpt-5",
                "--continue",
                "{question}",
            ],
            tools=_OPENCODE_TOOLS,
            variables={"OPENAI_API_KEY": "any"},
            side_models=["gpt-5-nano", "gpt-5.4-nano"],
            rounds=108,
            file_chars=5_000,
            thinks=True,
        ),
        Program(
            name="opencode-anthropic",
            client="opencode",
            packages=["opencode-ai@1.18.33"],
            api="anthropic",
            model="claude-sonnet-4-5",
            first_arguments=[
                "run",
                "--auto",
                "-m",
                "anthropic/claude-sonnet-4-5",
                "{task}",
            ],
            second_arguments=[
                "run",
                "--auto",
                "-m",
                "anthropic/claude-sonnet-4-5",
                "--continue",
                "{question}",
            ],
            tools=_OPENCODE_TOOLS,
            variables={"ANTHROPIC_API_KEY": "any"},
            side_models=["claude-haiku-4-5", "claude-haiku-4-5-20251001"],
            rounds=108,
            file_chars=5_000,
        ),
        Program(
            name="opencode-chat",
            client="opencode",
            packages=["opencode-ai@1.18.33"],
            api="openai_chat",
            model="lab-coder",
            first_arguments=["run", "--auto", "-m", "lab/lab-coder", "{task}"],
            second_arguments=[
                "run",
                "--auto",
                "-m",
                "lab/lab-coder",
                "--continue",
                "{question}",
            ],
            tools=_OPENCODE_TOOLS,
            variables={"LAB_API_KEY": "any"},
            prepare_home=_opencode_provider,
            rounds=108,
            file_chars=5_000,
        ),
        Program(
            name="pi",
            client="pi",
            packages=["@earendil-works/pi-coding-agent@0.87.1"],
            api="openai_responses",
            model="gpt-5",
            first_arguments=[
                "-p",
                "--provider",
                "openai",
                "--model",
                "gpt-5",
                "{task}",
            ],
            second_arguments=[
                "-p",
                "--provider",
                "openai",
                "--model",
                "gpt-5",
                "--continue",
                "{question}",
            ],
            tools={"bash": {"command": "cat {name}"}, "read": {"path": "{name}"}},
            variables={"OPENAI_API_KEY": "any", "PI_OFFLINE": "1"},
            rounds=110,
            file_chars=5_500,
            thinks=True,
        ),
        Program(
            name="qwen",
            client="qwen",
            packages=["@qwen-code/qwen-code@0.24.4"],
            api="openai_chat",
            model="qwen3-coder-plus",
            first_arguments=[
                "--yolo",
                "--auth-type",
                "openai",
                "-m",
                "qwen3-coder-plus",
                "-p",
                "{task}",
            ],
            second_arguments=[
                "--yolo",
                "--auth-type",
                "openai",
                "-m",
                "qwen3-coder-plus",
                "--continue",
                "-p",
                "{question}",
            ],
            tools={
                "run_shell_command": {
                    # On a busy machine it loses the output of a program that ends at once.
                    "command": "cat {name}; sleep 0.1",
                    "is_background": False,
                    "description": "Read a part",
                },
                "read_file": {"file_path": "{folder}/{name}"},
            },
            variables={"OPENAI_API_KEY": "any"},
            window=128_000,
            rounds=150,
            file_chars=8_000,
        ),
        Program(  # in one run: 0.61.0 sends each function response twice after --resume
            name="gemini",
            client="gemini",
            packages=["@google/gemini-cli@0.61.0"],
            api="gemini",
            model="gemini-2.5-pro",
            first_arguments=[
                "--yolo",
                "--skip-trust",
                "-m",
                "gemini-2.5-pro",
                "-p",
                "{task} {question}",
            ],
            second_arguments=[],
            tools={
                "run_shell_command": {
                    "command": "cat {name}",
                    "description": "Read a part",
                },
                "read_file": {"file_path": "{folder}/{name}"},
            },
            variables={"GEMINI_API_KEY": "any", "GEMINI_TELEMETRY_ENABLED": "false"},
            prepare_home=_gemini_key,
            window=128_000,
            rounds=132,
            file_chars=8_000,
            thinks=True,
            names_session=False,
            side_models=[
                "gemini-2.5-flash",
                "gemini-2.5-flash-lite",
                "gemini-3-flash-preview",
                "gemini-3.1-flash-lite",
            ],
        ),
        Program(
            name="cline",
            client="cline",
            packages=["cline@3.0.65"],
            api="openai_chat",
            model="lab-coder",
            first_arguments=["{task} {question}"],
            second_arguments=[],
            tools={
                "run_commands": {"commands": ["cat {name}"]},
                "read_files": {"files": [{"path": "{folder}/{name}"}]},
            },
            variables={},
            prepare_home=_cline_provider,
            rounds=108,
            file_chars=5_000,
        ),
        Program(
            name="aider",
            client="aider",
            packages=["aider-chat==0.86.2"],
            api="openai_chat",
            model="gpt-4o",
            first_arguments=["--model", "openai/gpt-4o", *_AIDER],
            second_arguments=[],
            tools={},
            variables={"OPENAI_API_KEY": "any", **_AIDER_OFFLINE},
            rounds=112,
            file_chars=5_000,
            is_python=True,
            typed_lines=112,
        ),
        Program(
            name="aider-anthropic",
            client="aider",
            packages=["aider-chat==0.86.2"],
            api="anthropic",
            model="claude-sonnet-4-5",
            first_arguments=["--model", "anthropic/claude-sonnet-4-5", *_AIDER],
            second_arguments=[],
            tools={},
            variables={"ANTHROPIC_API_KEY": "any", **_AIDER_OFFLINE},
            rounds=112,
            file_chars=5_000,
            is_python=True,
            typed_lines=112,
        ),
        Program(
            name="copilot",
            client="copilot",
            packages=["@github/copilot@1.0.102"],
            api="openai_responses",
            model="gpt-5",
            first_arguments=[*_COPILOT, "-p", "{task}"],
            second_arguments=[*_COPILOT, "--continue", "-p", "{question}"],
            tools=_COPILOT_TOOLS,
            variables={**_COPILOT_OFFLINE, "COPILOT_PROVIDER_WIRE_API": "responses"},
            rounds=110,
            file_chars=5_500,
            thinks=True,
            drops_reasoning=True,
        ),
        Program(
            name="copilot-anthropic",
            client="copilot",
            packages=["@github/copilot@1.0.102"],
            api="anthropic",
            model="claude-sonnet-4-5",
            first_arguments=[*_COPILOT, "-p", "{task}"],
            second_arguments=[*_COPILOT, "--continue", "-p", "{question}"],
            tools=_COPILOT_TOOLS,
            variables={
                **_COPILOT_OFFLINE,
                "COPILOT_PROVIDER_TYPE": "anthropic",
                "COPILOT_MODEL": "claude-sonnet-4-5",
            },
            rounds=110,
            file_chars=5_500,
            thinks=True,
            drops_reasoning=True,
        ),
        Program(  # in one run: goose 1.34 loses calls of the history after --resume
            name="goose",
            client="goose",
            packages=["@aaif/goose@0.20.1"],
            api="openai_chat",
            model="gpt-4o",
            first_arguments=[*_GOOSE, "-t", "{task} {question}"],
            second_arguments=[],
            tools={"shell": _bash(), "developer__shell": _bash()},
            variables={
                "GOOSE_PROVIDER": "openai",
                "GOOSE_MODEL": "gpt-4o",
                "OPENAI_API_KEY": "any",
                "GOOSE_DISABLE_KEYRING": "1",
                "GOOSE_MODE": "auto",
            },
            rounds=110,
            file_chars=5_500,
            changing_messages=4,
        ),
    )
}
PROGRAMS |= {
    f"{name}-mcp": replace(PROGRAMS[name], name=f"{name}-mcp", mcp_search_tool=tool)
    for name, tool in (
        ("claude-defaults", "mcp__everthread__search"),
        ("codex", "mcp__everthread__search"),
        ("opencode", "everthread_search"),
    )
}
"""With our MCP server in place of `recall`."""
PROGRAMS["claude-defaults-mcp-later"] = replace(
    PROGRAMS["claude-defaults-mcp"],
    name="claude-defaults-mcp-later",
    attaches_mcp_later=True,
)
