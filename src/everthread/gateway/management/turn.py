"""One managed request, from its arrival to its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from everthread.agent.tools.conversation_tools import RECALL_SCHEMA
from everthread.core.tokens.budget import Budget
from everthread.core.types import Reply, Request
from everthread.gateway.contracts import Outcome, Outgoing
from everthread.gateway.management.client_request import ClientRequest
from everthread.gateway.management.recall_offer import RecallTurn
from everthread.gateway.management.recorder import RequestStorage
from everthread.gateway.management.replacement import replacement_messages
from everthread.gateway.management.thread_match import ThreadMatch
from everthread.gateway.management.thread_memory import ThreadMemory
from everthread.gateway.management.unchanged_reads import restore_readings
from everthread.store.records import Rewrite
from everthread.thread.policy import ContextOptions, PolicyDecision
from everthread.thread.recovery import RecoveryAttempts

if TYPE_CHECKING:
    from everthread.gateway.management.manager import ProxyManager


@dataclass(slots=True)
class RequestLimit:
    """The model's limits, as known for one request."""

    window: int = 0
    learnt_window: int | None = None
    """The window that a refusal taught; prompt and output share it."""
    cap: int | None = None
    """The largest output the provider stated for the model."""
    room: int | None = None
    """The output that fits beside the prompt in the learnt window."""


@dataclass(slots=True)
class ManagedTurn:
    """One managed request and the decisions about it."""

    manager: ProxyManager
    request: ClientRequest
    match: ThreadMatch
    memory: ThreadMemory
    storage: RequestStorage = field(default_factory=RequestStorage)
    limit: RequestLimit = field(default_factory=RequestLimit)
    used: Rewrite | None = None
    """The rewrite that replaces the beginning of the history; None if there is none."""
    estimate: int = 0
    """Estimated tokens of the request that was sent."""
    attempts: RecoveryAttempts = field(default_factory=RecoveryAttempts)
    """Attempts after refusals."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers for the client."""
    sent: Outgoing = field(init=False)
    """The request to send."""
    decision: PolicyDecision | None = None
    """Whether to compact before this call, and why; None if the policy was not asked."""
    is_undone: bool = False
    """The user undid the thread's last compaction, and no other is due yet."""
    is_expanded: bool = False
    """Messages were put in or taken out on arrival: the client's own bytes never go upstream."""
    recall: RecallTurn = field(default_factory=RecallTurn)
    _has_recall: bool | None = None
    _restored: dict[int, dict[int, Any]] = field(default_factory=dict)

    @property
    def thread(self) -> str:
        return self.match.thread

    @property
    def has_recall(self) -> bool:
        """Whether this client gets our recall tool, so that summaries name it."""
        if self._has_recall is None:
            self._has_recall = self.manager.offers_recall(self)
        return self._has_recall

    async def recover(self, status: int, body: bytes) -> Outgoing | None:
        """Return the request to send after an error of the provider; None if the client gets the error."""
        if not self.request.is_rewritable:
            return None
        outgoing = await self.manager.recover(self, status, body)
        if outgoing is not None:
            self.sent = outgoing
        return outgoing

    async def resume(self, reply: Reply) -> Outgoing | None:
        """Return the request to send after a round that called our own tool."""
        return await self.manager.resume(self, reply)

    async def retry_without_recall(self, reply: Reply) -> Outgoing | None:
        """Return a smaller request after the one of `resume` was refused."""
        return self.manager.retry_without_recall(self, reply)

    async def response_headers(self) -> Mapping[str, str]:
        """Return the headers for the client; the thread id is among them once the thread is stored."""
        return await self.manager.response_headers(self)

    async def record(self, outcome: Outcome) -> None:
        await self.manager.record(self, outcome)

    @property
    def equipped_frame(self) -> Request:
        """Model, system prompt and tools, with our own tool if this client gets it."""
        frame = self.request.frame
        return (
            replace(frame, tools=[*(frame.tools or ()), RECALL_SCHEMA])
            if self.has_recall
            else frame
        )

    @property
    def plan(self) -> str:
        """Whether compacting pays now, in one line; empty if that was not weighed."""
        return (
            str(self.decision.weighed)
            if self.decision is not None and self.decision.weighed is not None
            else ""
        )

    @property
    def is_continued(self) -> bool:
        """Whether a further call, which would read this one's cache entry, is likely; not after a one-shot prompt."""
        return (
            bool(self.request.frame.tools)
            or bool(self.match.matched)
            or self.request.has_answer
        )

    @property
    def output_cap(self) -> int | None:
        """An output cap below the client's; None if the client's own is fine."""
        client_cap = self.request.requested_cap
        limits = [cap for cap in (self.limit.cap, self.limit.room) if cap]
        cap = self.attempts.cap or min(limits, default=None)
        if cap is None or (
            self.attempts.cap is None and (client_cap is None or client_cap <= cap)
        ):
            return None
        return cap if cap > (self.request.thinking_budget or 0) else None

    def budget(self, options: ContextOptions) -> Budget:
        """Leave room for the answer that the client asks for, up to a quarter of the window."""
        request = self.request
        client_cap = request.requested_cap
        cap = client_cap if client_cap and client_cap > 0 else options.max_tokens
        fixed = round(
            request.fixed * self.memory.context.calibration.factor(request.model)
        )
        key = (request.model, self.limit.window, cap, fixed)
        last = self.memory.budget
        if last is None or last[0] != key:
            own = replace(options.for_model(request.model), max_tokens=cap)
            last = (key, own.budget(self.limit.window, fixed=fixed))
            self.memory.budget = last
        return last[1]

    def replacement_values(self, used: Rewrite) -> list[Any]:
        """The messages of a rewrite."""
        return [value for value, _ in replacement_messages(used)]

    def compacted_values(self) -> list[Any]:
        """Return the messages to send: the rewrite, if there is one, then the client's."""
        covered = self.used.length if self.used else 0
        remaining = [element.value for element in self.request.elements[covered:]]
        return [*(self.replacement_values(self.used) if self.used else ()), *remaining]

    def restored(self, length: int) -> dict[int, Any]:
        """Messages after a rewrite of this length that refer to a file it covers, with the file's text."""
        if length not in self._restored:
            self._restored[length] = restore_readings(
                self.request.sliced.body, self.request.elements, length
            )
        return self._restored[length]
