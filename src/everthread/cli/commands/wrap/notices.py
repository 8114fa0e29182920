"""Notices of `wrap` about the requests that it changes or, with `--passive`, would have changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everthread.core.text import count_noun

if TYPE_CHECKING:
    from everthread.config import Config
    from everthread.store.records import ThreadRow
    from everthread.store.store import Store

CHANGES_NOTICE = (
    "Everthread: this login looks like a subscription. Requests are changed: a history that "
    "grows too long is shortened before it is sent. With --passive nothing is changed."
)
PASSIVE_NOTICE = "Everthread: watching only, no request is changed."


def uses_subscription(client: str, variables: Mapping[str, str], home: Path) -> bool:
    """Return whether a client is logged in to a flat-rate account, as far as its files show."""
    if client == "claude":
        keys = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
        folder = Path(variables.get("CLAUDE_CONFIG_DIR") or home / ".claude")
        oauth_login = _read_json(folder / ".credentials.json").get("claudeAiOauth")
        token = variables.get("CLAUDE_CODE_OAUTH_TOKEN")
        return bool(oauth_login or token) and not any(map(variables.get, keys))
    if client == "codex":
        folder = Path(variables.get("CODEX_HOME") or home / ".codex")
        login = _read_json(folder / "auth.json")
        has_key = variables.get("CODEX_API_KEY") or login.get("OPENAI_API_KEY")
        return bool(login.get("tokens")) and not has_key
    return False


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


async def describe_managed_run(config: Config, store: Store, started_at: float) -> str:
    """Replay the largest thread of the run as if it had been managed, and describe the result."""
    rows = [row for row in await store.list_threads() if row.last_active >= started_at]
    largest_row = max(rows, key=lambda row: row.message_count, default=None)
    if largest_row is None or largest_row.message_count < 2:
        return "Nothing was long enough to be changed."
    return await _describe_thread(config, store, largest_row)


async def _describe_thread(config: Config, store: Store, row: ThreadRow) -> str:
    from everthread.factory.conversations import make_session_options
    from everthread.factory.dashboards import make_thread_costs
    from everthread.lab.importers.log import Log, LoggedMessage
    from everthread.lab.replay.run_replay import areplay

    model, size = await make_thread_costs(config, store).load_window(row)
    history = await store.load_history(row.tip.id)
    messages = [LoggedMessage(message.body, message.created, model=model) for message in history]
    name = f"thread {row.first.id[:12]}"
    log = Log(name, "core", entries=messages, system=row.first.system, tools=[], model=model)
    replay = await areplay(
        log,
        window=size.tokens,
        options=make_session_options(config),
        with_baselines=False,
    )
    compactions_text = count_noun(len(replay.compactions), "compaction")
    main_calls = [
        call for call in await store.usage.list_usage(row.first.id) if call.task == "main"
    ]
    sent_tokens = sum(call.usage.prompt_tokens for call in main_calls)
    managed_tokens = sum(call.use.prompt for call in replay.everthread.calls)
    return (
        f"Managed, its longest conversation would have had {compactions_text} and "
        f"{managed_tokens:,} prompt tokens in all instead of {sent_tokens:,}."
    )
