"""Run an agent of smolagents, which answers by a tool and sends its calls and their results back as text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from smolagents import OpenAIServerModel, ToolCallingAgent, tool  # type: ignore[import-not-found] # its own environment


@tool  # type: ignore[untyped-decorator] # as above
def look_up(entry: str) -> str:
    """Return the ledger's line about an entry.

    Args:
        entry: its number
    """
    return f"Entry {entry} is settled; the receipt is in folder {len(entry) + 40}. " * 6


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    model: Any = OpenAIServerModel(job["model"], api_base=f"{job['url']}/v1", api_key="any")
    agent: Any = ToolCallingAgent([look_up], model, instructions=job["system"], verbosity_level=0)
    answers = [str(agent.run(text, reset=False)) for text in job["texts"]]
    print()
    print(json.dumps(answers))


main()
