"""Read the results of a client's run: from the provider's log, the gateway's log and the store."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everthread import estimate_request_tokens, open_store
from everthread.core.caching.shared_prefix import compare_prefixes
from everthread.core.messages import tool_names
from everthread.core.provider_errors.classification import classify_error
from everthread.core.types import ModelRequest
from everthread.lab.provider.answers import RequestRecord
from everthread.thread.lookup.thread_title import load_title
from tests.torture.clients.model import RECALL, TaskModel

WEBSOCKET_REFUSED = 426
"""A client that asks for a WebSocket continues over HTTP."""


def keep_bodies(folder: Path, log: Sequence[RequestRecord]) -> None:
    """Write the requests that the provider received, if TORTURE_BODIES is set."""
    if os.environ.get("TORTURE_BODIES"):
        lines = [json.dumps(_describe_request(record)) for record in log]
        (folder / "bodies.jsonl").write_text("\n".join(lines), "utf-8")


def _describe_request(record: RequestRecord) -> dict[str, Any]:
    return {
        "path": record.path,
        "headers": dict(record.headers),
        "status": record.status,
        "error": record.error,
        "prompt": record.prompt_tokens,
        "cached": record.cached_tokens,
        "body": record.body,
    }


def summarize_requests(
    log: Sequence[RequestRecord], model: TaskModel, *, unsteady: int
) -> dict[str, Any]:
    """Summarize the requests that the provider received. Only valid ones reached the model."""
    answered = [record for record in log if record.reply is not None]
    main = [answered[index] for index in model.main if index < len(answered)]
    breaks = [
        index
        for index in range(1, len(main))
        if _breaks_prefix(main[index - 1], main[index], unsteady=unsteady)
    ]
    prompt_tokens = sum(record.prompt_tokens for record in main)
    cached_tokens = sum(record.cached_tokens for record in main)
    refused = [record for record in log if record.status != 200]
    return {
        "calls": len(main),
        "side_calls": model.side,
        "upstream_refusals": [
            classify_error(status=record.status, message=record.error).kind for record in refused
        ],
        "upstream_errors": [
            f"{record.status} {record.path} {record.error}"[:300] for record in refused
        ],
        "largest_prompt": max((record.prompt_tokens for record in main), default=0),
        "cached": round(cached_tokens / prompt_tokens, 4) if prompt_tokens else 0.0,
        "recovered": [round(share, 3) for share in list_recovered_shares(main, breaks)],
        "breaks": len(breaks),
        "break_places": [_describe_break(index, main[index - 1], main[index]) for index in breaks],
        "has_recall": model.has_recall,
        "has_both": model.has_both,
        "recalls": model.recalls,
        "answered_by_recall": model.recalled,
        "fact_in_prompt": model.found,
        "reread": model.reread,
    }


def _describe_break(index: int, before: RequestRecord, after: RequestRecord) -> str:
    """Return where a request stops repeating the one before."""
    assert before.request is not None
    assert after.request is not None
    return f"{index}: {compare_prefixes(before.request, after.request)}"[:300]


def list_recovered_shares(log: Sequence[RequestRecord], breaks: Sequence[int]) -> list[float]:
    """Return, for each break, the share of that request's repeated tokens that the next one reads from the cache.

    aider ends its last message with words that it leaves out of the next request: such a message is not repeated.
    """
    shares = []
    for index in breaks:
        if index + 1 >= len(log) or index + 1 in breaks:
            continue
        before = log[index]
        after = log[index + 1]
        assert before.request is not None
        assert after.request is not None
        shared = compare_prefixes(before.request, after.request).shared_messages
        changed = before.request.messages[shared:]
        changed_tokens = estimate_request_tokens(changed) if changed else 0
        repeated_tokens = before.prompt_tokens - changed_tokens
        shares.append(min(1.0, after.cached_tokens / repeated_tokens))
    return shares


def _breaks_prefix(before: RequestRecord, after: RequestRecord, *, unsteady: int) -> bool:
    """Return whether a request does not extend the one before. Ignore the newest messages, whose reminders move.

    Also ignore tools of a server that started only now: on a busy machine Codex asks once without them.
    """
    if (
        before.request is None
        or after.request is None
        or _list_client_tools(before.request) < _list_client_tools(after.request)
    ):
        return False
    shared = compare_prefixes(before.request, after.request)
    steady_count = len(before.request.messages) - unsteady
    return not shared.is_extension and shared.shared_messages < steady_count


def _list_client_tools(request: ModelRequest) -> set[str]:
    """Return the names of the tools that the client offers itself."""
    names = {name for tool in request.tools for name in tool_names(tool)}
    return names - {RECALL}


def read_gateway_log(log: Path) -> dict[str, Any]:
    """Summarize the answers that the client got and the gateway's events."""
    lines = []
    if log.exists():
        lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    return {
        "statuses": dict(Counter(line["status"] for line in lines if "status" in line)),
        "refused": [
            f"{line['method']} {line['path']} {line['status']}"
            for line in lines
            if line.get("status", 200) >= 400 and line["status"] != WEBSOCKET_REFUSED
        ],
        "events": dict(Counter(line["event"] for line in lines if "event" in line)),
        "compacted": [
            (line["thread"], line["count"])
            for line in lines
            if line.get("event") == "compaction_done"
        ],
    }


async def load_threads(home: Path) -> list[dict[str, Any]]:
    """Return the threads of the store in this home, the busiest first."""
    store = open_store(home / "everthread.db")
    threads: list[dict[str, Any]] = []
    try:
        for row in await store.list_threads():
            thread = row.first.id
            usage = await store.usage.list_usage(thread)
            history = [message.body for message in await store.load_history(thread)]
            threads.append(
                {
                    "id": thread,
                    "kind": row.first.kind,
                    "parent": row.first.parent,
                    "family": list(await store.list_family(thread)),
                    "title": await load_title(store, row.first),
                    "messages": row.message_count,
                    "calls": sum(call.task == "main" for call in usage),
                    "compactions": row.compaction_count,
                    "tokens": estimate_request_tokens(history),
                    "side_calls": row.side_call_count,
                }
            )
    finally:
        await store.close()
    return sorted(threads, key=lambda thread: -int(thread["calls"]))


async def summarize_threads(home: Path) -> dict[str, Any]:
    """Return the threads of the store in this home, with the sums of their compactions and tokens."""
    threads = await load_threads(home)
    return {
        "threads": threads,
        "compactions": sum(thread["compactions"] for thread in threads),
        "tokens_said": sum(thread["tokens"] for thread in threads),
    }
