"""Run one client behind `everthread wrap`, before the strict provider.

`python -m tests.torture.strict.run NAME FOLDER PATH` writes `FOLDER/result.json`. Start it
in a network namespace that has only loopback.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from tests.torture.clients.findings import read_gateway_log, summarize_threads
from tests.torture.clients.model import FACT, QUESTION, TASK, file_text
from tests.torture.clients.programs import PROGRAMS, Program
from tests.torture.clients.workspace import (
    CommandOutput,
    Workspace,
    fill_arguments,
    run_from_command_line,
    type_lines,
)
from tests.torture.strict.provider import CHARS_PER_TOKEN, StrictProvider
from tests.torture.strict.story import StoryModel

FILLED = 1.6
"""Size of a run's files, in windows."""


def count_steps(program: Program) -> int:
    """Return the number of rounds that fill the window more than once."""
    per_round = program.file_chars * program.files_per_round / CHARS_PER_TOKEN
    return min(program.rounds, int(FILLED * program.window / per_round))


async def run(program: Program, folder: Path, binaries: str) -> dict[str, Any]:
    """Run the client until its window is full; return the findings."""
    steps = count_steps(program)
    workspace = Workspace.create(folder, program, binaries, steps)
    story = StoryModel(
        steps,
        QUESTION,
        FACT,
        workspace.insert_folder(program.tools),
        page=lambda number: file_text(number, program.file_chars),
        width=program.files_per_round,
    )
    started_at = time.monotonic()
    provider = StrictProvider(
        story, program.model, program.window, states_window=program.states_window
    )
    with provider:
        outputs = await _run_commands(program, workspace, provider.url, steps)
    if os.environ.get("TORTURE_BODIES"):
        lines = [json.dumps(pair) for pair in provider.bodies]
        (folder / "bodies.jsonl").write_text("\n".join(lines), "utf-8")
    main = [seen for seen in provider.seen if seen.is_main and seen.status == 200]
    prompts = sum(seen.prompt for seen in main)
    return {
        "client": program.name,
        "seconds": round(time.monotonic() - started_at, 1),
        "codes": [output.code for output in outputs],
        "said": [output.text[-1_500:] for output in outputs],
        "errors": [output.errors[-1_500:] for output in outputs],
        "calls": len(main),
        "side_calls": len(provider.seen) - len(main),
        "violations": list_violations(provider, is_main=True),
        "side_violations": list_violations(provider, is_main=False),
        "unknown_paths": [seen.path for seen in provider.seen if seen.status == 404],
        "too_long": [
            seen.prompt for seen in provider.seen if seen.status == 400 and not seen.violations
        ],
        "largest_prompt": max((seen.prompt for seen in main), default=0),
        "cached": round(sum(s.cached for s in main) / prompts, 4) if prompts else 0.0,
        "recalls": story.recalls,
        "is_fact_known": story.is_fact_known,
        **read_gateway_log(workspace.gateway_log),
        **await summarize_threads(workspace.everthread_home),
    }


def list_violations(provider: StrictProvider, *, is_main: bool) -> list[str]:
    """Return the violations of the conversation, or of a client's requests beside it."""
    return [
        f"{seen.path}: {'; '.join(seen.violations)}"[:500]
        for seen in provider.seen
        if seen.violations and seen.is_main is is_main
    ]


async def _run_commands(
    program: Program, workspace: Workspace, provider_url: str, steps: int
) -> list[CommandOutput]:
    """Start the conversation, then resume it, unless one command does both."""
    upstream = f"strict={provider_url}{program.upstream_path}"
    options = ["--upstream", upstream, "--log", str(workspace.gateway_log)]
    typed = type_lines(steps) if program.typed_lines else ""
    return [
        await workspace.wrap(
            program.client,
            options,
            fill_arguments(arguments, TASK, QUESTION),
            typed=typed,
        )
        for arguments in (program.first_arguments, program.second_arguments)
        if arguments
    ]


if __name__ == "__main__":
    run_from_command_line(PROGRAMS, run)
