"""One session of a client, resumed under other circumstances each time, before the simulated provider.

`python -m tests.torture.clients.resumed NAME FOLDER PATH`, in a network namespace that has only loopback. Each step is
a process on the same home folders; their findings are written to `FOLDER/result.json`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everthread.cli.commands.wrap.wrapped_clients import CLIENTS
from everthread.core.caching.shared_prefix import compare_prefixes
from everthread.core.messages import tool_names
from everthread.core.types import ModelReply, ModelRequest
from everthread.lab.provider import Provider, ServedModel
from everthread.lab.provider.answers import RequestRecord
from tests.torture.clients.findings import keep_bodies, load_threads, read_gateway_log
from tests.torture.clients.model import QUESTION, RECALL, TASK, TaskModel
from tests.torture.clients.programs import PROGRAMS, Program
from tests.torture.clients.workspace import (
    CommandOutput,
    Workspace,
    fill_arguments,
    run_from_command_line,
)
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
    """Options of `everthread wrap`."""
    is_served: bool = False
    """Whether the gateway is a process of `everthread serve`."""
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
    name: replace(PROGRAMS[name], states_window=False)
    for name in ("codex", "opencode", "opencode-anthropic", "pi", "qwen")
}
"""Clients whose model has a smaller window than the gateway's catalogue says: it is learnt from a refusal."""
RESUMED["qwen"] = replace(RESUMED["qwen"], names_session=False)
RESUMED["claude-defaults"] = replace(PROGRAMS["claude-defaults"], window=90_000, rounds=32)


def list_steps(program: Program) -> list[Step]:
    """Return the steps that a client can take."""
    left_out = set() if program.client == "claude" else {"compact"}
    if not program.names_session:
        left_out.add("other")
    if not CLIENTS[program.client].takes_mcp:
        left_out.add("mcp")
    return [step for step in STEPS if step.name not in left_out]


class SummarisingModel(TaskModel):
    """Write a summary if the client asks for one."""

    def __call__(self, request: ModelRequest) -> ModelReply | str:
        if request.messages and SUMMARY_REQUEST in json.dumps(request.messages[-1]):
            self.asked += 1
            self.side.append("summary")
            return SUMMARY
        return super().__call__(request)


async def run(program: Program, folder: Path, binaries: str) -> dict[str, Any]:
    """Run every step; return the findings."""
    workspace = Workspace.create(folder, program, binaries, program.rounds)
    model = SummarisingModel(
        program.rounds,
        workspace.insert_folder(program.tools),
        width=program.files_per_round,
        thinks=program.thinks,
    )
    names = (program.model, *program.side_models)
    served = [ServedModel(name, program.window) for name in names]
    findings: dict[str, Any] = {}
    async with Provider(served, model) as provider:
        for step in list_steps(program):
            first_record = len(provider.log)
            first_main = len(model.main)
            log = folder / f"{step.name}.log"
            options = ["--upstream", f"lab={provider.url}", "--log", str(log)]
            output = await run_step(step, program, workspace, options)
            answered = [record for record in provider.log if record.reply is not None]
            main = [answered[index] for index in model.main]
            findings[step.name] = {
                "code": output.code,
                "said": output.text[-2_000:],
                "errors": output.errors[-2_000:],
                "refused_upstream": [
                    f"{record.status} {record.error}"[:300]
                    for record in provider.log[first_record:]
                    if record.status != 200
                ],
                "repeated": count_repeated(main, first_main),
                "prompts": [record.prompt_tokens for record in main[first_main:]],
                "offers_recall": [offers_recall(record) for record in main[first_main:]],
                **read_gateway_log(log),
                "threads": await load_threads(workspace.everthread_home),
            }
    findings["answered_by_recall"] = model.recalled
    findings["has_both"] = model.has_both
    keep_bodies(folder, provider.log)
    return findings


async def run_step(
    step: Step, program: Program, workspace: Workspace, options: Sequence[str]
) -> CommandOutput:
    """Run the client for one step, behind a gateway of its own or behind `everthread serve`."""
    arguments = program.first_arguments if step.is_new else program.second_arguments
    words = fill_arguments(arguments, step.words, step.words)
    variables: dict[str, str] = {}
    if step.is_renewed:
        keys = (name for name in program.variables if name.endswith("_API_KEY"))
        variables = dict.fromkeys(keys, "renewed")
    wrap_options = [*step.options, *options]
    if not step.is_served:
        return await workspace.wrap(program.client, wrap_options, words, variables=variables)
    serve_options = (*wrap_options, "--auth", "none")
    async with open_fleet(workspace.everthread_home, *serve_options) as url:
        return await workspace.wrap(program.client, ["--gateway", url], words, variables=variables)


@asynccontextmanager
async def open_fleet(home: Path, *options: str) -> AsyncIterator[str]:
    fleet = Fleet(home, *options)
    try:
        yield await fleet.start()
    finally:
        await fleet.close()


def count_repeated(main: Sequence[RequestRecord], first: int) -> tuple[int, int] | None:
    """Count the messages before a step, and those of them that its first request repeats byte for byte.

    `first`: the index of that request. Tools and the system prompt may change, so they are not compared.
    """
    if not first or first >= len(main):
        return None
    before = main[first - 1].request
    after = main[first].request
    assert before is not None
    assert after is not None
    shared = compare_prefixes(
        ModelRequest(before.model, before.messages),
        ModelRequest(after.model, after.messages),
    ).shared_messages
    return len(before.messages), shared


def offers_recall(record: RequestRecord) -> bool:
    tools = record.request.tools if record.request is not None else ()
    return any(RECALL in tool_names(tool) for tool in tools)


if __name__ == "__main__":
    run_from_command_line(RESUMED, run)
