"""Read the client, its session and the kind of call from an HTTP request.

The owner is the request's tenant (`gateway/access/authentication.py`). `thread/matching/` decides by the messages which
thread of the owner or the session a history belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from everthread.core.json_values import json_value
from everthread.store.records import SessionKind
from everthread.thread.caller.caller_request import ClientSession
from everthread.thread.matching.thread_match import ClientScope
from everthread.thread.matching.thread_names import (
    MAX_NAME_CHARS,
    derive_thread_id,
    shorten_session_name,
)

SESSION_HEADER = "x-everthread-session"
SCOPE_HEADERS = (
    "x-claude-code-session-id",
    "x-session-id",
    "x-session-affinity",
    "session_id",
    "session-id",
    "agent-session-id",
    "x-conversation-id",
    "conversation_id",
)
"""Headers in which clients name their session. A session may have several conversations, such as subagents."""
_SESSION_HEADERS = dict.fromkeys((SESSION_HEADER, *SCOPE_HEADERS))
_PARENT_HEADERS = dict.fromkeys(("x-parent-session-id", "x-codex-parent-thread-id"))
"""Headers in which a subagent names the session it works for."""
_SUBAGENT_HEADERS = dict.fromkeys(("x-openai-subagent", *_PARENT_HEADERS))
_METADATA_FIELDS = ("session_id", "sessionId", "conversation_id", "thread_id")
_CACHE_KEY = "prompt_cache_key"
_COPILOT_HEADER = "x-initiator"
"""A header of Copilot CLI, whose cache key is a digest that changes when a session is resumed."""
_CLAUDE_SESSION = "_session_"
_PRODUCT_PATTERN = re.compile(r"[A-Za-z][\w.+-]{0,39}")
BODY_SCOPE = "body:"
"""Prefix of the scope if a field of the body names the session."""


def read_client(headers: Mapping[str, str], fields: Mapping[str, Any]) -> ClientSession:
    """Read the client's name and session from the headers, or else from the fields of the body."""
    product = _PRODUCT_PATTERN.match(headers.get("user-agent", ""))
    session_header = _find_header_name(headers, _SESSION_HEADERS)
    parent_header = _find_header_name(headers, _PARENT_HEADERS)
    session = headers.get(session_header) or _read_body_session(headers, fields)
    return ClientSession(
        client=product[0] if product else "",
        session=session[:MAX_NAME_CHARS],
        parent=headers.get(parent_header, "")[:MAX_NAME_CHARS],
        is_subagent=bool(_find_header_name(headers, _SUBAGENT_HEADERS)),
    )


def _find_header_name(headers: Mapping[str, str], names: Mapping[str, None]) -> str:
    """Return the first of these names that is a header with a value, or an empty string if there is none."""
    if names.keys().isdisjoint(headers):
        return ""  # most clients send none of them
    return next((name for name in names if headers.get(name)), "")


def find_body_session(fields: Mapping[str, Any]) -> str:
    """Return the session named in the fields of a body, or an empty string if they name none."""
    candidates = [fields.get("session_id"), fields.get(_CACHE_KEY)]
    metadata = fields.get("metadata")
    if isinstance(metadata, dict):
        claude_session = _read_claude_session(metadata.get("user_id"))
        metadata_sessions = [metadata.get(name) for name in _METADATA_FIELDS]
        candidates = [claude_session, *metadata_sessions, *candidates]
    return next((value for value in candidates if isinstance(value, str) and value), "")


def _read_body_session(headers: Mapping[str, str], fields: Mapping[str, Any]) -> str:
    """Return the session named in the fields. Ignore the cache key of Copilot CLI, which is not a session's name."""
    if headers.get(_COPILOT_HEADER):
        fields = {name: fields[name] for name in fields if name != _CACHE_KEY}
    return find_body_session(fields)


def _read_claude_session(user: Any) -> str:
    """Return Claude Code's session from `user_…_account_…_session_…` or a JSON object."""
    if not isinstance(user, str):
        return ""
    if user.startswith("{"):
        parsed = json_value(user)
        session = parsed.get("session_id") if isinstance(parsed, dict) else None
        return session if isinstance(session, str) else ""
    account, _, session = user.rpartition(_CLAUDE_SESSION)
    return session if account else ""


def find_scope(headers: Mapping[str, str], fields: Mapping[str, Any] | None = None) -> str:
    """Return the scope in which a client's threads are searched: its session, or an empty string if it names none.

    A session named by our own header is preferred.
    """
    name = _find_header_name(headers, _SESSION_HEADERS)
    if name:
        return f"{name}:{shorten_session_name(headers[name])}"
    body_session = "" if fields is None else _read_body_session(headers, fields)
    return f"{BODY_SCOPE}{shorten_session_name(body_session)}" if body_session else ""


def find_client_scope(
    tenant: str, headers: Mapping[str, str], fields: Mapping[str, Any]
) -> ClientScope:
    """Return the owner and the session of a request, within which its thread is searched."""
    return ClientScope(tenant, find_scope(headers, fields))


def derive_named_thread_id(tenant: str, name: str) -> str:
    """Return the id of a thread that the client has named itself."""
    scope = find_scope({SESSION_HEADER: name})
    return derive_thread_id(tenant, scope, previous_digest="", digest="")


def choose_thread_kind(client: ClientSession, *, has_tools: bool) -> SessionKind:
    """Return the kind of a new thread: a conversation, a subagent's thread, or a side call.

    Within a client's session, a call without tools is a side call, such as one for a title.
    """
    if client.is_subagent:
        return "subagent"
    return "side" if client.session and not has_tools else "main"
