"""Run one client behind `everthread wrap`, before the strict provider.

`python -m tests.torture.strict.run NAME FOLDER PATH` writes `FOLDER/result.json`. Start it
in a network namespace that has only loopback.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.torture.clients.model import FACT, QUESTION, TASK, file_text
from tests.torture.clients.programs import PROGRAMS, Program
from tests.torture.clients.run import client_side, fill_folder, run_command, stored
from tests.torture.strict.provider import CHARS_PER_TOKEN, StrictProvider
from tests.torture.strict.story import StoryModel

FILLED = 1.6
"""How many windows the files of a run fill."""


def count_steps(program: Program) -> int:
    """Return the number of rounds that fill the window more than once."""
    per_round = program.characters * program.width / CHARS_PER_TOKEN
    return min(program.steps, int(FILLED * program.window / per_round))


async def run(program: Program, folder: Path, binaries: str) -> dict[str, Any]:
    """Run the client until its window is full; return the findings."""
    home = folder / "home"
    work = folder / "work"
    store_home = folder / "everthread"
    for place in (home, work, store_home):
        place.mkdir(parents=True)
    steps = count_steps(program)
    for number in range(1, steps * program.width + 2):
        text = file_text(number, program.characters)
        (work / f"part-{number:03d}.txt").write_text(text, "utf-8")
    if program.prepare is not None:
        program.prepare(home)
    story = StoryModel(
        steps,
        QUESTION,
        FACT,
        fill_folder(program.tools, work),
        page=lambda number: file_text(number, program.characters),
        width=program.width,
    )
    variables = {
        "HOME": str(home),
        "EVERTHREAD_HOME": str(store_home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_STATE_HOME": str(home / ".local/state"),
        "PATH": f"{binaries}:{os.environ['PATH']}",
        **program.variables,
    }
    log = folder / "gateway.log"
    began = time.monotonic()
    provider = StrictProvider(
        story, program.model, program.window, states_window=program.stated
    )
    with provider:
        command = [
            sys.executable,
            *("-m", "everthread", "wrap", program.client, "--log", str(log)),
            *("--upstream", f"strict={provider.url}{program.upstream_path}", "--"),
        ]
        spoken = []
        for arguments in filter(None, (program.begin, program.continue_round)):
            words = [
                text.replace("{task}", TASK).replace("{question}", QUESTION)
                for text in arguments
            ]
            typed = typed_lines(program, steps)
            spoken.append(await run_command([*command, *words], work, variables, typed))
    if os.environ.get("TORTURE_BODIES"):
        lines = [json.dumps(pair) for pair in provider.bodies]
        (folder / "bodies.jsonl").write_text("\n".join(lines), "utf-8")
    main = [seen for seen in provider.seen if seen.is_main and seen.status == 200]
    prompts = sum(seen.prompt for seen in main)
    return {
        "client": program.name,
        "seconds": round(time.monotonic() - began, 1),
        "codes": [code for code, _, _ in spoken],
        "said": [out[-1_500:] for _, out, _ in spoken],
        "errors": [errors[-1_500:] for _, _, errors in spoken],
        "calls": len(main),
        "side_calls": len(provider.seen) - len(main),
        "violations": list_violations(provider, is_main=True),
        "side_violations": list_violations(provider, is_main=False),
        "unknown_paths": [seen.path for seen in provider.seen if seen.status == 404],
        "too_long": [
            seen.prompt
            for seen in provider.seen
            if seen.status == 400 and not seen.violations
        ],
        "largest_prompt": max((seen.prompt for seen in main), default=0),
        "cached": round(sum(s.cached for s in main) / prompts, 4) if prompts else 0.0,
        "recalls": story.recalls,
        "is_fact_known": story.is_fact_known,
        **client_side(log),
        **await stored(store_home),
    }


def list_violations(provider: StrictProvider, *, is_main: bool) -> list[str]:
    """Return the violations of the conversation, or of a client's requests beside it."""
    return [
        f"{seen.path}: {'; '.join(seen.violations)}"[:500]
        for seen in provider.seen
        if seen.violations and seen.is_main is is_main
    ]


def typed_lines(program: Program, steps: int) -> str:
    """Return the lines that a person types into a program without tools."""
    if not program.says:
        return ""
    lines = [f"Compare part {number} of the ledger." for number in range(1, steps + 1)]
    return "\n".join([*lines, QUESTION]) + "\n"


def main() -> None:
    folder = Path(sys.argv[2])
    found = asyncio.run(run(PROGRAMS[sys.argv[1]], folder, sys.argv[3]))
    text = json.dumps(found, indent=1, ensure_ascii=False)
    (folder / "result.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
