"""`everthread continue` with the real programs: the second agent knows what the first one did.

Codex also gets the context back after its own compaction, by hooks alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from everthread.core.types import ModelRequest
from everthread.lab.handover import hand_over
from everthread.lab.importers.log import Log
from everthread.lab.importers.read_logs import read_log
from everthread.lab.provider import Provider, ServedModel
from tests.cli.test_hook import RULE, claude_code_log, codex_log
from tests.torture.test_plugins import CLAUDE, CLAUDE_MODELS, PLUGINS, find_program

CODEX = "@openai/codex@0.169.0"
CODEX_MODEL = "gpt-5.2-codex"
FACT = "make part37"
QUESTION = "Which part did you make near the end?"
FOUND = "It was part37."


def remember(request: ModelRequest) -> str:
    """Answer the question only if the request holds what the first agent did."""
    return FOUND if FACT in json.dumps(request.messages) else "I do not know."


async def run(*command: str, folder: Path, environment: Mapping[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=dict(environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    heard, _ = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode == 0, heard.decode()
    return heard.decode()


def prepare(tmp_path: Path, path: str) -> tuple[Path, dict[str, str]]:
    work = tmp_path / "work"
    home = tmp_path / "home"
    work.mkdir()
    home.mkdir()
    environment = {
        "PATH": path,
        "HOME": str(home),
        "TMPDIR": str(tmp_path),
        "IS_SANDBOX": "1",
        "EVERTHREAD_HOME": str(tmp_path / "everthread"),
    }
    return work, environment


def codex_arguments(url: str) -> list[str]:
    provider = f'{{name="Lab", base_url="{url}/v1", env_key="LAB_API_KEY", wire_api="responses"}}'
    settings = ["-c", 'model_provider="lab"', "-c", f"model_providers.lab={provider}"]
    return [
        "--dangerously-bypass-approvals-and-sandbox",
        "--skip-git-repo-check",
        "-m",
        CODEX_MODEL,
        *settings,
    ]


def find_written_session(log: Log, client: str, work: Path, environment: Mapping[str, str]) -> str:
    """Return the id of the session that was written for the other agent."""
    variables = {
        "CLAUDE_CONFIG_DIR": f"{environment['HOME']}/.claude",
        "CODEX_HOME": f"{environment['HOME']}/.codex",
    }
    return hand_over(log, client, folder=work, env=variables).command.split()[-1]


async def test_codex_session_continues_in_claude_code(tmp_path: Path) -> None:
    program, path = find_program("claude", CLAUDE)
    work, environment = prepare(tmp_path, path)
    session = find_written_session(read_log(str(codex_log(tmp_path))), "claude", work, environment)
    async with Provider(
        [ServedModel(name, 200_000) for name in CLAUDE_MODELS], remember
    ) as provider:
        environment |= {
            "ANTHROPIC_API_KEY": "any",
            "ANTHROPIC_BASE_URL": provider.url,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        said = await run(
            program,
            "--resume",
            session,
            "-p",
            QUESTION,
            folder=work,
            environment=environment,
        )
        assert FOUND in said
        assert provider.log[-1].status == 200


async def test_claude_code_session_continues_in_codex(tmp_path: Path) -> None:
    program, path = find_program("codex", CODEX)
    work, environment = prepare(tmp_path, path)
    session = find_written_session(
        read_log(str(claude_code_log(tmp_path))), "codex", work, environment
    )
    async with Provider([ServedModel(CODEX_MODEL, 200_000)], remember) as provider:
        environment["LAB_API_KEY"] = "any"
        arguments = codex_arguments(provider.url)
        said = await run(
            program,
            "exec",
            *arguments,
            "resume",
            session,
            QUESTION,
            folder=work,
            environment=environment,
        )
        assert FOUND in said
        assert provider.log[-1].status == 200


def install_codex_hooks(home: Path) -> None:
    """Install the plug-in's hooks, with the command of this checkout."""
    hooks = (PLUGINS / "codex" / "hooks.json").read_text("utf-8")
    command = f"{sys.executable} -m everthread hook"
    (home / ".codex" / "hooks.json").write_text(hooks.replace("everthread hook", command), "utf-8")


async def test_codex_gets_the_context_back_after_its_own_compaction(
    tmp_path: Path,
) -> None:
    program, path = find_program("codex", CODEX)
    work, environment = prepare(tmp_path, path)
    session = find_written_session(
        read_log(str(claude_code_log(tmp_path))), "codex", work, environment
    )
    install_codex_hooks(Path(environment["HOME"]))
    async with Provider([ServedModel(CODEX_MODEL, 200_000)], lambda _: "Noted.") as provider:
        environment["LAB_API_KEY"] = "any"
        limit = [
            "--dangerously-bypass-hook-trust",
            "-c",
            "model_auto_compact_token_limit=6000",
        ]
        arguments = [*codex_arguments(provider.url), *limit, "resume", session]
        await run(
            program,
            "exec",
            *arguments,
            "Say hello.",
            folder=work,
            environment=environment,
        )
        said = await run(
            program,
            "exec",
            *arguments,
            "And now?",
            folder=work,
            environment=environment,
        )
        assert "context compacted" in said
        asked = json.dumps(provider.log[-1].body)
        assert "Kept by Everthread" in asked
        assert RULE in asked
        assert provider.log[-1].prompt_tokens < provider.log[0].prompt_tokens
