"""One client, behind `everthread wrap`, before the simulated provider.

`python -m tests.torture.clients.run NAME FOLDER PATH`. It is meant for a network namespace that has only
loopback, and writes what it found to `FOLDER/result.json`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everthread import estimate_request_tokens, open_store
from everthread.core.caching.shared_prefix import compare_prefixes
from everthread.core.messages import tool_names
from everthread.core.provider_errors.classification import classify_error
from everthread.core.types import Request
from everthread.lab.provider import Provider, ServedModel
from everthread.lab.provider.answers import Record
from everthread.lab.provider.served_models import WindowField
from everthread.thread.stored_facts import load_title
from tests.torture.clients.model import QUESTION, RECALL, TASK, ScriptedModel, file_text
from tests.torture.clients.programs import PROGRAMS, Program

SECONDS = 1_500


async def run(program: Program, folder: Path, binaries: str) -> dict[str, Any]:
    """Both runs of the program, and their results."""
    home = folder / "home"
    work = folder / "work"
    store_home = folder / "everthread"
    for place in (home, work, store_home):
        place.mkdir(parents=True)
    for number in range(1, program.steps * program.width + 2):
        (work / f"part-{number:03d}.txt").write_text(
            file_text(number, program.characters), "utf-8"
        )
    if program.prepare is not None:
        program.prepare(home)
    model = ScriptedModel(
        program.steps,
        fill_folder(program.tools, work),
        program.width,
        program.thinks,
        program.characters,
        rereads=program.rereads,
        lookup=program.mcp or RECALL,
    )
    served = ServedModel(
        program.model,
        program.window,
        shows=_stated_field(program),
        max_output=program.max_output,
    )
    log = folder / "gateway.log"
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
    lines = [
        *(
            f"Compare part {number} of the ledger."
            for number in range(1, program.says + 1)
        ),
        QUESTION,
    ]
    typed = "\n".join(lines) + "\n" if program.says else ""
    began = time.monotonic()
    spoken = []
    models = [
        served,
        *(
            ServedModel(name, program.window, shows=served.shows)
            for name in program.others
        ),
    ]
    async with Provider(models, model) as provider:
        for number, arguments in enumerate((program.begin, program.continue_round)):
            if not arguments:
                continue
            has_mcp = program.mcp and (number or not program.has_mcp_later)
            words = [
                text.replace("{task}", TASK).replace("{question}", QUESTION)
                for text in arguments
            ]
            upstream = f"lab={provider.url}{program.upstream_path}"
            command = [
                sys.executable,
                "-m",
                "everthread",
                "wrap",
                program.client,
                "--upstream",
                upstream,
                "--log",
                str(log),
                *(["--mcp"] if has_mcp else []),
                "--",
                *words,
            ]
            spoken.append(await run_command(command, work, variables, typed))
    report = {
        "client": program.name,
        "seconds": round(time.monotonic() - began, 1),
        "codes": [code for code, _, _ in spoken],
        "said": [out[-2_000:] for _, out, _ in spoken],
        "errors": [errors[-2_000:] for _, _, errors in spoken],
        "stubs": _count_in_transcripts(home, program.stub) if program.stub else 0,
        **_upstream(provider.log, model, unsteady=program.unsteady),
        **client_side(log),
        **await stored(store_home),
    }
    keep_bodies(folder, provider.log)
    return report


def keep_bodies(folder: Path, log: Sequence[Record]) -> None:
    """Write what the provider got, if TORTURE_BODIES is set."""
    if os.environ.get("TORTURE_BODIES"):
        (folder / "bodies.jsonl").write_text(
            "\n".join(json.dumps(_body(record)) for record in log), "utf-8"
        )


WEBSOCKET_REFUSED = 426
"""A client that asks for a WebSocket continues over HTTP."""


def _stated_field(program: Program) -> WindowField | None:
    if not program.stated:
        return None
    return "inputTokenLimit" if program.api == "gemini" else "max_model_len"


def _count_in_transcripts(home: Path, words: str) -> int:
    return sum(file.read_text("utf-8").count(words) for file in home.rglob("*.jsonl"))


def _body(record: Record) -> dict[str, Any]:
    return {
        "path": record.path,
        "headers": dict(record.headers),
        "status": record.status,
        "error": record.error,
        "prompt": record.prompt_tokens,
        "cached": record.cached_tokens,
        "body": record.body,
    }


def fill_folder(value: Any, work: Path) -> Any:
    if isinstance(value, dict):
        return {key: fill_folder(part, work) for key, part in value.items()}
    if isinstance(value, list):
        return [fill_folder(part, work) for part in value]
    return value.replace("{folder}", str(work)) if isinstance(value, str) else value


async def run_command(
    command: Sequence[str], folder: Path, variables: dict[str, str], typed: str = ""
) -> tuple[int, str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ("LANG", "TERM", "TMPDIR", "PYTHONPATH")
    }
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={**kept, **variables},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(SECONDS):
            out, errors = await process.communicate(typed.encode())
    except TimeoutError:
        os.killpg(process.pid, 9)
        out, errors = await process.communicate()
    return (
        process.returncode or 0,
        out.decode(errors="replace"),
        errors.decode(errors="replace"),
    )


def _upstream(
    log: Sequence[Record], model: ScriptedModel, *, unsteady: int
) -> dict[str, Any]:
    """Return the requests that the provider saw. Only valid ones reached the model."""
    answered = [record for record in log if record.reply is not None]
    main = [answered[at] for at in model.main if at < len(answered)]
    breaks = [
        at
        for at in range(1, len(main))
        if _breaks_prefix(main[at - 1], main[at], unsteady=unsteady)
    ]
    prompts = sum(record.prompt_tokens for record in main)
    recovered = list_recovered_shares(main, breaks)
    refused = [record for record in log if record.status != 200]
    return {
        "calls": len(main),
        "side_calls": model.side,
        "upstream_refusals": [
            classify_error(status=record.status, message=record.error).kind
            for record in refused
        ],
        "upstream_errors": [
            f"{record.status} {record.path} {record.error}"[:300] for record in refused
        ],
        "largest_prompt": max((record.prompt_tokens for record in main), default=0),
        "cached": round(sum(record.cached_tokens for record in main) / prompts, 4)
        if prompts
        else 0.0,
        "recovered": [round(share, 3) for share in recovered],
        "breaks": len(breaks),
        "break_places": [
            f"{at}: {compare_prefixes(main[at - 1].request, main[at].request)}"[:300]  # type: ignore[arg-type]
            for at in breaks
        ],
        "has_recall": model.has_recall,
        "has_both": model.has_both,
        "recalls": model.recalls,
        "answered_by_recall": model.recalled,
        "fact_in_prompt": model.found,
        "reread": model.reread,
    }


def list_recovered_shares(log: Sequence[Record], breaks: Sequence[int]) -> list[float]:
    """For each break, how much of that request the next one reads from the cache, of what it repeats.

    aider ends its last message with words that it takes out of the next request: such a message is not repeated.
    """
    shares = []
    for at in breaks:
        if at + 1 >= len(log) or at + 1 in breaks:
            continue
        before = log[at]
        after = log[at + 1]
        assert before.request is not None
        assert after.request is not None
        shared = compare_prefixes(before.request, after.request).shared_messages
        changed = before.request.messages[shared:]
        changed_tokens = estimate_request_tokens(changed) if changed else 0
        shares.append(
            min(1.0, after.cached_tokens / (before.prompt_tokens - changed_tokens))
        )
    return shares


def _breaks_prefix(before: Record, after: Record, *, unsteady: int) -> bool:
    """The second does not go on from the first. A reminder behind the last words, taken away again, is none.

    Nor are tools of a server that had not started yet: on a busy machine Codex asks once without them.
    """
    if (
        before.request is None
        or after.request is None
        or _names(before.request) < _names(after.request)
    ):
        return False
    shared = compare_prefixes(before.request, after.request)
    steady = len(before.request.messages) - unsteady
    return not shared.is_extension and shared.shared_messages < steady


def _names(request: Request) -> set[str]:
    """The names of the tools that the client offers itself."""
    return {
        name for tool in request.tools for name in tool_names(tool) if name != RECALL
    }


def client_side(log: Path) -> dict[str, Any]:
    """Return the client's answers, from the gateway's own log."""
    lines = (
        [json.loads(line) for line in log.read_text("utf-8").splitlines()]
        if log.exists()
        else []
    )
    statuses = Counter(line["status"] for line in lines if "status" in line)
    failed = [
        line
        for line in lines
        if line.get("status", 200) >= 400 and line["status"] != WEBSOCKET_REFUSED
    ]
    refused = [f"{line['method']} {line['path']} {line['status']}" for line in failed]
    events = Counter(line["event"] for line in lines if "event" in line)
    compacted = [
        (line["thread"], line["count"])
        for line in lines
        if line.get("event") == "compaction_done"
    ]
    return {
        "statuses": dict(statuses),
        "refused": refused,
        "events": dict(events),
        "compacted": compacted,
    }


async def stored(home: Path) -> dict[str, Any]:
    store = open_store(home / "everthread.db")
    try:
        threads: list[dict[str, Any]] = []
        for row in await store.list_threads():
            calls = [
                usage
                for usage in await store.usage(row.first.id)
                if usage.task == "main"
            ]
            said = [message.body for message in await store.history(row.first.id)]
            threads.append(
                {
                    "id": row.first.id,
                    "title": await load_title(store, row.first),
                    "messages": row.messages,
                    "calls": len(calls),
                    "compactions": row.compactions,
                    "tokens": estimate_request_tokens(said),
                    "side_calls": row.side_calls,
                }
            )
    finally:
        await store.close()
    threads.sort(key=lambda row: -row["calls"])
    return {
        "threads": threads,
        "compactions": sum(row["compactions"] for row in threads),
        "tokens_said": sum(row["tokens"] for row in threads),
    }


def main() -> None:
    name = sys.argv[1]
    folder = Path(sys.argv[2])
    binaries = sys.argv[3]
    found = asyncio.run(run(PROGRAMS[name], folder, binaries))
    (folder / "result.json").write_text(
        json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8"
    )


if __name__ == "__main__":
    main()
