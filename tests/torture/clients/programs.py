"""The programs that are run: how each is installed, told what to do, and continued. One row a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everthread.core.types import Api


@dataclass(frozen=True)
class Program:
    """One client as its users start it, behind `everthread wrap`."""

    name: str
    client: str
    """Its row in `everthread wrap`."""
    packages: Sequence[str]
    """From npm, or from PyPI where `is_python`."""
    api: Api
    model: str
    """As the provider knows it."""
    begin: Sequence[str]
    """Arguments of the first run; `{task}` and `{folder}` are filled in."""
    go_on: Sequence[str]
    """Arguments of the second, in the same conversation; `{question}`."""
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Its tools that read a file, with their arguments."""
    variables: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Path], None] | None = None
    """Writes what its user would have in the home folder."""
    window: int = 64_000
    stated: bool = True
    """The provider's list of models states the window; else the gateway must know or learn it."""
    steps: int = 40
    width: int = 1
    characters: int = 16_000
    """Of one file."""
    thinks: bool = False
    is_python: bool = False
    max_output: int | None = None


def _bash(argument: str = "command") -> dict[str, Any]:
    return {argument: "cat {name}"}


_CODEX = ["--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check", "-m", "gpt-5.2-codex"]
_CODEX_PROVIDER = [
    "-c", 'model_provider="lab"', "-c",
    'model_providers.lab={name="Lab", base_url="{url}/v1", env_key="LAB_API_KEY", wire_api="responses"}',
]  # fmt: skip
_CODEX_TOOLS: Mapping[str, Mapping[str, Any]] = {
    "shell": {"command": ["cat", "{name}"]},
    "shell_command": {"command": "cat {name}"},
    "exec_command": {"cmd": "cat {name}"},
}


PROGRAMS = {
    program.name: program
    for program in (
        Program(
            "claude", "claude", ["@anthropic-ai/claude-code@2.1.325"], "anthropic", "claude-sonnet-4-6",
            ["-p", "{task}", "--dangerously-skip-permissions", "--model", "claude-sonnet-4-6"],
            ["-p", "{question}", "--continue", "--dangerously-skip-permissions", "--model", "claude-sonnet-4-6"],
            {"Bash": {**_bash(), "description": "Read a part"}, "Read": {"file_path": "{folder}/{name}"}},
            {"ANTHROPIC_API_KEY": "any", "IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
            window=200_000, stated=False, width=2, steps=84, characters=9_000, thinks=True,
        ),
        Program(
            "codex", "codex", ["@openai/codex@0.166.0"], "openai_responses", "gpt-5.2-codex",
            ["exec", *_CODEX, "{task}"], ["exec", *_CODEX, "resume", "--last", "{question}"], _CODEX_TOOLS,
            {"CODEX_API_KEY": "any"}, window=64_000, steps=100, characters=5_000, thinks=True,
        ),
        Program(
            "codex-custom", "codex", ["@openai/codex@0.166.0"], "openai_responses", "gpt-5.2-codex",
            ["exec", *_CODEX, *_CODEX_PROVIDER, "{task}"],
            ["exec", *_CODEX, *_CODEX_PROVIDER, "resume", "--last", "{question}"], _CODEX_TOOLS,
            {"LAB_API_KEY": "any"}, window=64_000, steps=100, characters=5_000, thinks=True,
        ),
    )
}  # fmt: skip
