"""Tell a thread's own calls from calls that give the assistant another role, such as a title or a subagent.

The system prompt and the tools of a call show the role.
"""

from __future__ import annotations

from dataclasses import dataclass

from everthread.core.messages import content_text, tool_names
from everthread.core.recent_dict import RecentDict
from everthread.core.types import ModelRequest, System
from everthread.store.store import Store

MAX_ROLES = 2_000
_MAX_ROLE_CHARS = 200
"""The first characters of a system prompt, which name the assistant's role."""
_MIN_LINE_CHARS = 20
_MIN_ROLE_LINES = 8
_MAX_ROLE_LINES = 64
_MIN_SHARED_LINES_SHARE = 0.5
"""Minimum share of lines that two system prompts of the same role have in common.

A client's prompts in two modes share far more; Qwen Code's prompts for the conversation and for its memory share
0.23."""


class ThreadRoles:
    """The roles of the threads that this process has seen."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._roles: RecentDict[str, tuple[int, Role]] = RecentDict(MAX_ROLES)
        """For each thread the hash of its last system prompt, and the role."""

    def has_last_prompt(self, thread_id: str, request: ModelRequest) -> bool:
        """Return whether a request has the system prompt of the thread's last request, if that is still remembered."""
        entry = self._roles.get(thread_id)
        return entry is not None and entry[0] == hash(_system_text(request.system))

    async def may_belong(self, thread_id: str, request: ModelRequest) -> bool:
        """Return whether a request may belong to a thread by its role."""
        if self.has_last_prompt(thread_id, request):
            return True
        entry = self._roles.get(thread_id)
        if entry is None:
            session = await self._store.load_session(thread_id)
            role = describe_role(_system_text(session.system))
        else:
            role = entry[1]
        return is_same_role(role, _describe_request_role(request, _system_text(request.system)))

    def remember(self, thread_id: str, request: ModelRequest) -> None:
        """Remember the role of a thread's last request."""
        system = _system_text(request.system)
        key = hash(system)
        entry = self._roles.get(thread_id)
        if entry is None or entry[0] != key:
            entry = key, _describe_request_role(request, system)
        self._roles[thread_id] = entry


def _describe_request_role(request: ModelRequest, system: str) -> Role:
    names = {name for tool in request.tools or () for name in tool_names(tool)}
    return describe_role(system, frozenset(names))


def _system_text(system: System) -> str:
    return system if isinstance(system, str) else content_text(system)


@dataclass(frozen=True, slots=True)
class Role:
    """A sketch of a system prompt, with the names of the tools, to recognise the assistant's role."""

    start: str
    lines: tuple[int, ...]
    """The smallest hashes of its lines, to estimate the share of lines that two prompts have in common."""
    tools: frozenset[str] | None = None
    """The names of the tools, or None if they are not known."""


def describe_role(system: str, tools: frozenset[str] | None = None) -> Role:
    """Return the role that a system prompt and its tools give to the assistant."""
    lines = {line.strip() for line in system.splitlines()}
    hashes = {hash(line) for line in lines if len(line) >= _MIN_LINE_CHARS}
    smallest = tuple(sorted(hashes)[:_MAX_ROLE_LINES])
    return Role(system[:_MAX_ROLE_CHARS], smallest, tools)


def is_same_role(role: Role, other: Role) -> bool:
    """Return whether two requests give the assistant the same role, so that they may belong to one conversation.

    The roles differ if the prompts begin differently and share few lines, and the tools differ. Prompts of a few lines
    always count as equal.
    """
    if role.start == other.start or min(len(role.lines), len(other.lines)) < _MIN_ROLE_LINES:
        return True
    if role.tools is not None and role.tools == other.tools:
        return True
    all_lines = sorted({*role.lines, *other.lines})
    sample = all_lines[: min(len(role.lines), len(other.lines), _MAX_ROLE_LINES)]
    shared_sample = set(role.lines) & set(other.lines)
    shared_count = sum(line in shared_sample for line in sample)
    return shared_count >= _MIN_SHARED_LINES_SHARE * len(sample)
