"""One session of a client, resumed under other circumstances each time, before the simulated provider.

`python -m tests.torture.clients.resumed NAME FOLDER PATH`, in a network namespace that has only loopback. Each step is
a process of its own on the same home folders; the findings of all are written to `FOLDER/result.json`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everthread import open_store
from everthread.cli.wrapped_clients import CLIENTS
from everthread.core.caching.shared_prefix import compare_prefixes
from everthread.core.messages import tool_names
from everthread.core.types import Reply, Request
from everthread.lab.provider import Provider, ServedModel
from everthread.lab.provider.answers import Record
from tests.torture.clients.model import (
    QUESTION,
    RECALL,
    TASK,
    ScriptedModel,
    file_text,
)
from tests.torture.clients.programs import PROGRAMS, Program
from tests.torture.clients.run import client_side, fill_folder, keep_bodies, run_command
from tests.torture.fleet import Fleet

SUMMARY_REQUEST = "detailed summary"
SUMMARY = """<analysis>The ledgers were read.</analysis>
<summary>
1. Primary Request: the user asked to read the ledgers of all branches in the order of their numbers and to compare the
entries with the receipts.
2. Files: every part was read with cat or with the reader, two in one round, and nothing was written.
3. Findings: the amounts agree with the receipts in all parts that were compared so far.
4. Pending: report to the auditors of the northern branch which part differs, if one does.
</summary>"""


@dataclass(frozen=True)
class Step:
    """One run of the client."""

    name: str
    words: str
    options: tuple[str, ...] = ()
    """Of `everthread wrap`."""
    is_served: bool = False
    """Whether the gateway is `everthread serve`, started for itself."""
    is_renewed: bool = False
    """Whether the client has another credential."""
    is_new: bool = False
    """Whether it opens another session."""


STEPS = (
    Step("task", TASK, is_new=True),
    Step("again", "Is that all of them?"),
    Step("renewed", "Are you sure?", is_renewed=True),
    Step("mcp", "Is there another folder?", options=("--mcp",)),
    Step("serve", "And a third one?", is_served=True),
    Step("compact", "/compact"),
    Step("question", QUESTION),
    Step("other", TASK, is_new=True),
)
RESUMED = {
    name: replace(PROGRAMS[name], stated=False)
    for name in ("codex", "opencode", "opencode-anthropic", "pi", "qwen")
}
"""The window is less than the gateway knows of the model: it is learnt from a refusal."""
RESUMED["qwen"] = replace(RESUMED["qwen"], names_session=False)
RESUMED["claude-defaults"] = replace(
    PROGRAMS["claude-defaults"], window=90_000, steps=32
)


def list_steps(program: Program) -> list[Step]:
    """Return the steps that a client can take."""
    left_out = set() if program.client == "claude" else {"compact"}
    if not program.names_session:
        left_out.add("other")
    if not CLIENTS[program.client].takes_mcp:
        left_out.add("mcp")
    return [step for step in STEPS if step.name not in left_out]


class SummarisingModel(ScriptedModel):
    """Writes a summary of its own if the client asks for one."""

    def __call__(self, request: Request) -> Reply | str:
        if request.messages and SUMMARY_REQUEST in json.dumps(request.messages[-1]):
            self.asked += 1
            self.side.append("summary")
            return SUMMARY
        return super().__call__(request)


async def run(program: Program, folder: Path, binaries: str) -> dict[str, Any]:
    """Run every step; return what was found."""
    home = folder / "home"
    work = folder / "work"
    store_home = folder / "everthread"
    for place in (home, work, store_home):
        place.mkdir(parents=True)
    if program.prepare is not None:
        program.prepare(home)
    for number in range(1, program.steps * program.width + 2):
        text = file_text(number, program.characters)
        (work / f"part-{number:03d}.txt").write_text(text, "utf-8")
    model = SummarisingModel(
        program.steps,
        fill_folder(program.tools, work),
        program.width,
        program.thinks,
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
    renewed = dict.fromkeys(
        (name for name in program.variables if name.endswith("_API_KEY")), "renewed"
    )
    names = (program.model, *program.others)
    served = [ServedModel(name, program.window) for name in names]
    found: dict[str, Any] = {}
    async with Provider(served, model) as provider:
        for step in list_steps(program):
            first_record = len(provider.log)
            first_main = len(model.main)
            log = folder / f"{step.name}.log"
            arguments = program.begin if step.is_new else program.continue_round
            words = [
                text.replace("{task}", step.words).replace("{question}", step.words)
                for text in arguments
            ]
            settings = {**variables, **(renewed if step.is_renewed else {})}
            options = ["--upstream", f"lab={provider.url}", "--log", str(log)]
            run_step = run_served if step.is_served else run_wrapped
            code, out, errors = await run_step(
                [*step.options, *options], program.client, words, work, settings
            )
            answered = [record for record in provider.log if record.reply is not None]
            found[step.name] = {
                "code": code,
                "said": out[-2_000:],
                "errors": errors[-2_000:],
                "refused_upstream": [
                    f"{record.status} {record.error}"[:300]
                    for record in provider.log[first_record:]
                    if record.status != 200
                ],
                "repeated": count_repeated(answered, model.main, first_main),
                "prompts": [
                    answered[at].prompt_tokens for at in model.main[first_main:]
                ],
                "offers_recall": [
                    offers_recall(answered[at]) for at in model.main[first_main:]
                ],
                **client_side(log),
                "threads": await load_threads(store_home),
            }
    found["answered_by_recall"] = model.recalled
    found["has_both"] = model.has_both
    keep_bodies(folder, provider.log)
    return found


async def run_wrapped(
    options: Sequence[str],
    client: str,
    words: Sequence[str],
    work: Path,
    variables: dict[str, str],
) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "everthread", "wrap", client, *options]
    return await run_command([*command, "--", *words], work, variables)


async def run_served(
    options: Sequence[str],
    client: str,
    words: Sequence[str],
    work: Path,
    variables: dict[str, str],
) -> tuple[int, str, str]:
    """Run the client before a gateway that was started for itself."""
    fleet_options = (*options, "--auth", "none")
    async with open_fleet(Path(variables["EVERTHREAD_HOME"]), *fleet_options) as url:
        return await run_wrapped(["--gateway", url], client, words, work, variables)


@asynccontextmanager
async def open_fleet(home: Path, *options: str) -> AsyncIterator[str]:
    fleet = Fleet(home, *options)
    try:
        yield await fleet.start()
    finally:
        await fleet.close()


def count_repeated(
    answered: Sequence[Record], main: Sequence[int], first: int
) -> tuple[int, int] | None:
    """Count the messages before a step, and those of them that its first request repeats byte for byte.

    Tools and the system prompt may change with the circumstances, so they are not compared.
    """
    if not first or first >= len(main):
        return None
    before = answered[main[first - 1]].request
    after = answered[main[first]].request
    assert before is not None
    assert after is not None
    shared = compare_prefixes(
        Request(before.model, before.messages),
        Request(after.model, after.messages),
    ).shared_messages
    return len(before.messages), shared


def offers_recall(record: Record) -> bool:
    tools = record.request.tools if record.request is not None else ()
    return any(RECALL in tool_names(tool) for tool in tools)


async def load_threads(home: Path) -> list[dict[str, Any]]:
    """Return the threads of the store, the busiest first."""
    store = open_store(home / "everthread.db")
    threads: list[dict[str, Any]] = []
    try:
        for row in await store.list_threads():
            calls = [
                use for use in await store.usage(row.first.id) if use.task == "main"
            ]
            threads.append(
                {
                    "id": row.first.id,
                    "kind": row.first.kind,
                    "parent": row.first.parent,
                    "family": list(await store.family(row.first.id)),
                    "calls": len(calls),
                    "messages": row.messages,
                    "compactions": len(await store.compactions(row.first.id)),
                }
            )
    finally:
        await store.close()
    return sorted(threads, key=lambda row: -int(row["calls"]))


def main() -> None:
    folder = Path(sys.argv[2])
    found = asyncio.run(run(RESUMED[sys.argv[1]], folder, sys.argv[3]))
    text = json.dumps(found, indent=1, ensure_ascii=False)
    (folder / "result.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
