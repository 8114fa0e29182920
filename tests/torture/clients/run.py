"""Run one client behind `everthread wrap`, before the simulated provider.

`python -m tests.torture.clients.run NAME FOLDER PATH` writes its findings to `FOLDER/result.json`. Start it in a
network namespace that has only loopback.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from everthread.lab.provider import Provider, ServedModel
from everthread.lab.provider.served_models import WindowField
from tests.torture.clients.findings import (
    keep_bodies,
    read_gateway_log,
    summarize_requests,
    summarize_threads,
)
from tests.torture.clients.model import QUESTION, RECALL, TASK, TaskModel
from tests.torture.clients.programs import PROGRAMS, Program
from tests.torture.clients.workspace import (
    CommandOutput,
    Workspace,
    fill_arguments,
    run_from_command_line,
    type_lines,
)


async def run(program: Program, folder: Path, binaries: str) -> dict[str, Any]:
    """Run both parts of the program's conversation; return the findings."""
    workspace = Workspace.create(folder, program, binaries, program.rounds)
    model = TaskModel(
        program.rounds,
        workspace.insert_folder(program.tools),
        width=program.files_per_round,
        thinks=program.thinks,
        characters=program.file_chars,
        rereads=program.rereading_tool,
        lookup=program.mcp_search_tool or RECALL,
    )
    shown_field = _find_window_field(program)
    served = ServedModel(
        program.model,
        program.window,
        shows=shown_field,
        max_output=program.max_output,
    )
    side_models = [
        ServedModel(name, program.window, shows=shown_field) for name in program.side_models
    ]
    started_at = time.monotonic()
    async with Provider([served, *side_models], model) as provider:
        outputs = await _run_commands(program, workspace, provider.url)
    findings = {
        "client": program.name,
        "seconds": round(time.monotonic() - started_at, 1),
        "codes": [output.code for output in outputs],
        "said": [output.text[-2_000:] for output in outputs],
        "errors": [output.errors[-2_000:] for output in outputs],
        "stubs": _count_in_transcripts(workspace.home, program.unchanged_text),
        **summarize_requests(provider.log, model, unsteady=program.changing_messages),
        **read_gateway_log(workspace.gateway_log),
        **await summarize_threads(workspace.everthread_home),
    }
    keep_bodies(folder, provider.log)
    return findings


async def _run_commands(
    program: Program, workspace: Workspace, provider_url: str
) -> list[CommandOutput]:
    """Start the conversation, then resume it, unless one command does both."""
    upstream = f"lab={provider_url}{program.upstream_path}"
    options = ["--upstream", upstream, "--log", str(workspace.gateway_log)]
    typed = type_lines(program.typed_lines) if program.typed_lines else ""
    outputs = []
    for number, arguments in enumerate((program.first_arguments, program.second_arguments)):
        if not arguments:
            continue
        has_mcp = program.mcp_search_tool and (number or not program.attaches_mcp_later)
        outputs.append(
            await workspace.wrap(
                program.client,
                [*options, *(["--mcp"] if has_mcp else [])],
                fill_arguments(arguments, TASK, QUESTION),
                typed=typed,
            )
        )
    return outputs


def _find_window_field(program: Program) -> WindowField | None:
    """Return the field in which the provider's list of models states the window."""
    if not program.states_window:
        return None
    return "inputTokenLimit" if program.api == "gemini" else "max_model_len"


def _count_in_transcripts(home: Path, words: str) -> int:
    """Count how often the client's transcripts contain these words; 0 if there are none to look for."""
    if not words:
        return 0
    return sum(file.read_text("utf-8").count(words) for file in home.rglob("*.jsonl"))


if __name__ == "__main__":
    run_from_command_line(PROGRAMS, run)
