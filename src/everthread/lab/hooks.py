"""Answer the hooks of Claude Code and Codex: keep the context when they compact, and shorten large results.

Both programs call a command with a JSON object on standard input. Before a compaction (`PreCompact`) the session is
stored, so that it can be recalled, and a text about it is kept. After the compaction (`SessionStart` with the source
`compact`) the text is given back. After a tool ran (`PostToolUse`), a large result becomes a preview with the id of the
stored output. Only Claude Code accepts a changed result. No gateway and no model is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everthread.core.messages import kind_of
from everthread.core.tool_outputs import make_persisted_block, replace_reader_name
from everthread.errors import TranscriptError
from everthread.lab.context_text import compose_context_text
from everthread.lab.importers.log import Log
from everthread.lab.importers.log_fields import text_in
from everthread.lab.importers.read_logs import read_log
from everthread.lab.importers.thread_import import import_log, make_thread_id
from everthread.store.records import NewSession
from everthread.store.store import Store

MAX_HOOK_CHARS = 9_900
"""Limit for a hook's answer. If it has more than 10,000 characters, Claude Code shows only 2,000 of them."""
MAX_RESULT_CHARS = 16_000
"""A longer result of a tool becomes a preview."""
PREVIEW_CHARS = 3_000
CLIENTS = ("claude-code", "codex")
RECALL_TOOL = "expand of the MCP server everthread"

_TEXT_FIELDS = {
    "Bash": ("stdout", "stderr"),
    "PowerShell": ("stdout", "stderr"),
    "Grep": ("content",),
    "WebFetch": ("result",),
}
"""Fields of Claude Code's results that the model reads, by tool. Reads of files are left whole."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Answers the hooks of one client. The `folder` keeps texts between two hooks."""

    client: str
    store: Store
    folder: Path

    async def answer(self, hook_input: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the answer to a hook, or None if it needs none."""
        event = text_in(hook_input, "hook_event_name")
        if event == "PreCompact":
            await self._keep_context(hook_input)
        elif event == "SessionStart" and hook_input.get("source") == "compact":
            return await self._return_kept_text(hook_input)
        elif event == "PostToolUse" and self.client == "claude-code":
            return await self._shorten_result(hook_input)
        return None

    async def _keep_context(self, hook_input: Mapping[str, Any]) -> str:
        """Store the session, keep a text about it, and return the text."""
        log = self._read_session(hook_input)
        thread_id, _ = await import_log(self.store, log)
        recall_hint = f"Recall the rest with the MCP server everthread: search (thread {thread_id[:12]}), expand."
        message_count = (
            log.compactions[-1].next_entry_index if _ends_with_compaction(log) else len(log.entries)
        )
        messages = [entry.message for entry in log.entries[:message_count]]
        text = compose_context_text(
            messages,
            max_chars=MAX_HOOK_CHARS,
            model=log.model or None,
            recall_hint=recall_hint,
        )
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept_file = self._find_kept_file(hook_input)
        kept_file.touch(mode=0o600)
        kept_file.write_text(text, "utf-8")
        return text

    async def _return_kept_text(self, hook_input: Mapping[str, Any]) -> dict[str, Any] | None:
        kept_file = self._find_kept_file(hook_input)
        text = (
            kept_file.read_text("utf-8")
            if kept_file.exists()
            else await self._keep_context(hook_input)
        )
        kept_file.unlink(missing_ok=True)
        if not text:
            return None
        return {
            "hookSpecificOutput": {
                "hookEventName": "SessionStart",
                "additionalContext": text,
            }
        }

    async def _shorten_result(self, hook_input: Mapping[str, Any]) -> dict[str, Any] | None:
        tool_name = text_in(hook_input, "tool_name")
        response = hook_input.get("tool_response")
        long_texts = [
            text for text in _list_result_texts(tool_name, response) if len(text) > MAX_RESULT_CHARS
        ]
        if not long_texts:
            return None
        replacement_by_text = {}
        for text in long_texts:
            await store_output(
                self.store,
                self._make_empty_log(hook_input),
                text,
                tool=tool_name,
                call_id=text_in(hook_input, "tool_use_id"),
            )
            replacement_by_text[text] = replace_reader_name(
                make_persisted_block(text, preview_chars=PREVIEW_CHARS), RECALL_TOOL
            )
        output = {
            "hookEventName": "PostToolUse",
            "updatedToolOutput": _replace_texts(response, replacement_by_text),
        }
        return {"hookSpecificOutput": output}

    def _read_session(self, hook_input: Mapping[str, Any]) -> Log:
        path = text_in(hook_input, "transcript_path")
        if not path:
            raise TranscriptError("the hook names no transcript")
        return replace(read_log(path), session_id=_read_session_id(hook_input))

    def _make_empty_log(self, hook_input: Mapping[str, Any]) -> Log:
        return Log("", self.client, [], session_id=_read_session_id(hook_input))

    def _find_kept_file(self, hook_input: Mapping[str, Any]) -> Path:
        return self.folder / f"{re.sub(r'[^A-Za-z0-9-]', '_', _read_session_id(hook_input))}.txt"


async def store_output(store: Store, log: Log, text: str, *, tool: str, call_id: str) -> None:
    """Store the result of a tool in the thread of a session."""
    thread_id = make_thread_id(log)
    await store.create_session(
        NewSession(id=thread_id, platform=log.kind, client=log.kind, client_session=log.session_id)
    )
    await store.outputs.put_output(thread_id, text, call_id=call_id, tool=tool)


def _read_session_id(hook_input: Mapping[str, Any]) -> str:
    return text_in(hook_input, "session_id")


def _ends_with_compaction(log: Log) -> bool:
    """Return whether no answer of the model comes after the client's last compaction."""
    if not log.compactions:
        return False
    return not any(
        entry.message["role"] == "assistant"
        for entry in log.entries[log.compactions[-1].next_entry_index :]
    )


def _list_result_texts(tool_name: str, response: Any) -> Iterator[str]:
    """Yield the texts of a result that the model reads and that may be shortened."""
    if tool_name.startswith("mcp__"):
        if "everthread" in tool_name:
            return
        yield from _list_block_texts(response)
    elif isinstance(response, Mapping):
        for name in _TEXT_FIELDS.get(tool_name, ()):
            yield text_in(response, name)


def _list_block_texts(value: Any) -> Iterator[str]:
    """Yield the texts of an MCP result, which is a string or has blocks of text at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _list_block_texts(item)
    elif isinstance(value, Mapping):
        if kind_of(value) == "text":
            yield text_in(value, "text")
        else:
            yield from _list_block_texts(value.get("content"))


def _replace_texts(value: Any, replacement_by_text: Mapping[str, str]) -> Any:
    """Return the value with each of these texts replaced, at any depth."""
    if isinstance(value, str):
        return replacement_by_text.get(value, value)
    if isinstance(value, Mapping):
        return {key: _replace_texts(item, replacement_by_text) for key, item in value.items()}
    return (
        [_replace_texts(item, replacement_by_text) for item in value]
        if isinstance(value, list)
        else value
    )
