"""A query for the thread to which a history belongs."""

from __future__ import annotations

from dataclasses import dataclass

from everthread.thread.caller.caller_request import CallerHistory, CallSettings
from everthread.thread.matching.history import History
from everthread.thread.matching.thread_match import ClientScope


@dataclass(frozen=True, slots=True)
class ThreadQuery:
    """A history whose thread is looked for."""

    caller_history: CallerHistory
    settings: CallSettings
    uses_memory: bool
    """Whether to search this process's memory too, or only the store."""

    @property
    def client_scope(self) -> ClientScope:
        return self.caller_history.client_scope

    @property
    def history(self) -> History:
        return self.caller_history.history
