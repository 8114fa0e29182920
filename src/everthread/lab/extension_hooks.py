"""Answer the plug-ins of opencode and pi.

A plug-in calls a command with a JSON object on standard input: an `event`, the agent's `session`, and more. `compact`
stores the session and returns its context, `tool_result` turns a large result into a preview with the id of the stored
output, and `recall` searches the stored messages. No gateway and no model is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.agent.tools.recall import Recall, answer_recall
from everthread.core.messages import Message, calls_of, text_of
from everthread.core.tool_outputs import make_persisted_block, replace_reader_name
from everthread.errors import InputError, TranscriptError
from everthread.factory import acompress
from everthread.lab.context_text import compose_context_text
from everthread.lab.hooks import (
    MAX_HOOK_CHARS,
    MAX_RESULT_CHARS,
    PREVIEW_CHARS,
    RECALL_TOOL,
    store_output,
)
from everthread.lab.importers.log import Log
from everthread.lab.importers.log_fields import text_in
from everthread.lab.importers.read_logs import parse_log, read_log
from everthread.lab.importers.thread_import import import_log, make_thread_id
from everthread.store.store import Store
from everthread.thread.lookup.store_lookup import StoreLookup

OPENCODE = "opencode"
PI = "pi"
EXTENSIONS = (OPENCODE, PI)
DEFAULT_WINDOW = 200_000
READER_TOOLS = {OPENCODE: RECALL_TOOL, PI: Recall.name}
"""The tool with which the agent's model reads a stored output."""


@dataclass(frozen=True, slots=True)
class ExtensionHooks:
    """Answers the plug-in of one agent."""

    client: str
    store: Store

    async def answer(self, hook_input: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the answer to a plug-in, or None if there is nothing to change."""
        event = text_in(hook_input, "event")
        if event == "compact":
            return await self._compact(hook_input)
        if event == "tool_result":
            return await self._shorten_result(hook_input)
        if event == "recall":
            return await self._recall(hook_input)
        raise InputError(f"the event {event!r} is unknown; use compact, tool_result or recall")

    async def _compact(self, hook_input: Mapping[str, Any]) -> dict[str, Any] | None:
        log = self._read_session(hook_input)
        thread_id, _ = await import_log(self.store, log)
        messages = hook_input.get("messages")
        if isinstance(messages, list):
            return await _make_compaction_answer(messages, hook_input)
        recall_hint = f"Recall the rest with the MCP server everthread: search (thread {thread_id[:12]}), expand."
        text = compose_context_text(
            log.messages,
            max_chars=MAX_HOOK_CHARS,
            model=log.model or None,
            recall_hint=recall_hint,
        )
        return {"text": text} if text else None

    async def _shorten_result(self, hook_input: Mapping[str, Any]) -> dict[str, Any] | None:
        text = text_in(hook_input, "text")
        if len(text) <= MAX_RESULT_CHARS:
            return None
        await store_output(
            self.store,
            self._make_empty_log(hook_input),
            text,
            tool=text_in(hook_input, "tool"),
            call_id=text_in(hook_input, "call"),
        )
        block = make_persisted_block(text, preview_chars=PREVIEW_CHARS)
        return {"text": replace_reader_name(block, READER_TOOLS[self.client])}

    async def _recall(self, hook_input: Mapping[str, Any]) -> dict[str, Any]:
        thread_id = make_thread_id(self._make_empty_log(hook_input))
        arguments = hook_input.get("arguments")
        lookup = StoreLookup(self.store, None, thread_id)
        recalled_text = await answer_recall(
            lookup, arguments if isinstance(arguments, Mapping) else {}
        )
        return {"text": recalled_text}

    def _read_session(self, hook_input: Mapping[str, Any]) -> Log:
        """Read the session from the agent's own log file, or from the transcript that the plug-in sends."""
        path = text_in(hook_input, "transcript_path")
        if path:
            log = read_log(path)
        elif "transcript" in hook_input:
            log = parse_log(json.dumps(hook_input["transcript"]), f"{self.client}'s session")
        else:
            raise TranscriptError("the plug-in sends no transcript")
        return replace(log, kind=self.client, session_id=text_in(hook_input, "session"))

    def _make_empty_log(self, hook_input: Mapping[str, Any]) -> Log:
        return Log("", self.client, [], session_id=text_in(hook_input, "session"))


async def _make_compaction_answer(
    messages: Sequence[Message], hook_input: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the compaction of messages that the agent wants to replace by a summary."""
    window = hook_input.get("window")
    compaction = await acompress(
        messages,
        window=window if isinstance(window, int) else DEFAULT_WINDOW,
        model=text_in(hook_input, "model") or None,
        summarizer="journal",
        force=True,
    )
    if not compaction.changed:
        return None
    return {
        "summary": "\n\n".join(filter(None, map(_format_message, compaction.messages))),
        "messages": compaction.messages,
        "tokens_before": compaction.tokens_before,
        "tokens_after": compaction.tokens_after,
    }


def _format_message(message: Message) -> str:
    """Format a message as text that begins with the role, unless it is a message of the user."""
    calls = [f"{call.name}({call.arguments})" for call in calls_of(message)]
    text = "\n".join(filter(None, [text_of(message), *calls]))
    return text if message["role"] == "user" or not text else f"[{message['role']}] {text}"
