"""Which program calls, and what it names its session by: in a header, or in a field of its request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from everthread.core.messages import json_value

SESSION_HEADER = "x-everthread-session"
SCOPE_HEADERS = (
    "x-claude-code-session-id",
    "x-session-id",
    "x-session-affinity",
    "session_id",
    "session-id",
    "x-conversation-id",
    "conversation_id",
)
"""What clients name their own sessions with. One session may hold several conversations: subagents, titles."""
_PARENT_HEADERS = ("x-parent-session-id", "x-codex-parent-thread-id")
"""By which a subagent names the session it works for."""
_SUBAGENT_HEADERS = ("x-openai-subagent", *_PARENT_HEADERS)
_METADATA = ("session_id", "sessionId", "conversation_id", "thread_id")
_CLAUDE_SESSION = "_session_"
_PRODUCT = re.compile(r"[A-Za-z][\w.+-]{0,39}")
_LONGEST = 200
BODY = "body:"
"""Before a session that a request's fields name."""


@dataclass(frozen=True, slots=True)
class ClientSession:
    """Whose request it is, as the client says."""

    client: str = ""
    """The first product of its `User-Agent`, without the version."""
    session: str = ""
    parent: str = ""
    """The session it works for, where it names one."""
    is_subagent: bool = False


def read_client(headers: Mapping[str, str], fields: Mapping[str, Any]) -> ClientSession:
    """Read the client's name and session from the headers, else from the fields of the request."""
    product = _PRODUCT.match(headers.get("user-agent", ""))
    named = next((headers[name] for name in (SESSION_HEADER, *SCOPE_HEADERS) if headers.get(name)), "")
    parent = next((headers[name] for name in _PARENT_HEADERS if headers.get(name)), "")
    return ClientSession(
        product[0] if product else "",
        (named or body_session(fields))[:_LONGEST],
        parent[:_LONGEST],
        any(headers.get(name) for name in _SUBAGENT_HEADERS),
    )


def body_session(fields: Mapping[str, Any]) -> str:
    """The session that a request's own fields name; empty where they name none."""
    metadata = fields.get("metadata")
    values = metadata if isinstance(metadata, dict) else {}
    user = values.get("user_id")
    if isinstance(user, str):  # Claude Code: `user_…_account_…_session_…`, later an object as text
        parsed = json_value(user) if user.startswith("{") else None
        inner = parsed.get("session_id") if isinstance(parsed, dict) else user.rpartition(_CLAUDE_SESSION)[2]
        if isinstance(inner, str) and inner and inner != user:
            return inner
    stated = [*(values.get(name) for name in _METADATA), fields.get("session_id"), fields.get("prompt_cache_key")]
    return next((value for value in stated if isinstance(value, str) and value), "")


def scope_of(headers: Mapping[str, str], fields: Mapping[str, Any] | None = None) -> str:
    """The client's own session, where it names one; an explicit session of ours before any other."""
    if headers.get(SESSION_HEADER):
        return f"{SESSION_HEADER}:{_short(headers[SESSION_HEADER])}"
    named = next((f"{name}:{_short(headers[name])}" for name in SCOPE_HEADERS if headers.get(name)), "")
    inner = "" if named or fields is None else body_session(fields)
    return named or (f"{BODY}{_short(inner)}" if inner else "")


def _short(name: str) -> str:
    """The name, or its digest where it is long: it is stored with every point of a thread."""
    if len(name) <= _LONGEST:
        return name
    return f"sha256:{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"
