"""The role that each thread's system prompt and tools give to the assistant."""

from __future__ import annotations

from everthread.core.messages import content_text, tool_names
from everthread.core.recent_dict import RecentDict
from everthread.core.types import Request, System
from everthread.store.store import Store
from everthread.thread.identity import Role, describe_role, is_same_role

MAX_ROLES = 2_000


class ThreadRoles:
    """Distinguish calls that give the assistant another role from a thread's own calls. Remember roles in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._roles: RecentDict[str, tuple[int, Role]] = RecentDict(MAX_ROLES)
        """For each thread the hash of its last system prompt, and the role."""

    def has_last_prompt(self, thread: str, frame: Request) -> bool:
        """Return whether a request has the same system prompt as the thread's last one; False if that was forgotten."""
        entry = self._roles.get(thread)
        return entry is not None and entry[0] == hash(_system_text(frame.system))

    async def may_belong(self, thread: str, frame: Request) -> bool:
        """Return whether a request may belong to a thread by its role."""
        if self.has_last_prompt(thread, frame):
            return True
        entry = self._roles.get(thread)
        if entry is None:
            session = await self._store.session(thread)
            role = describe_role(_system_text(session.system))
        else:
            role = entry[1]
        return is_same_role(
            role, _describe_frame_role(frame, _system_text(frame.system))
        )

    def remember(self, thread: str, frame: Request) -> None:
        """Remember the role of a thread's last request."""
        system = _system_text(frame.system)
        key = hash(system)
        entry = self._roles.get(thread)
        if entry is None or entry[0] != key:
            entry = key, _describe_frame_role(frame, system)
        self._roles[thread] = entry


def _describe_frame_role(frame: Request, system: str) -> Role:
    names = {name for tool in frame.tools or () for name in tool_names(tool)}
    return describe_role(system, frozenset(names))


def _system_text(system: System) -> str:
    return system if isinstance(system, str) else content_text(system)
