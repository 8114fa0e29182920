"""The interface between a managed thread and the place of its messages: the store, or a caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from everthread.compaction.compaction_result import Compaction, CompactionLevel
from everthread.core.provider_errors.classification import ErrorVerdict
from everthread.thread import events
from everthread.thread.engines.summary_wait import SummaryWait
from everthread.thread.model_limits import LearntWindow
from everthread.thread.policy.call_prices import CallPrices
from everthread.thread.policy.compaction_reason import AUTOMATIC_REASONS, CompactionReason
from everthread.thread.policy.learnt_usage import LearntUsage
from everthread.thread.policy.prompt_size import PromptSize
from everthread.thread.recovery import ProviderRefusal, RecoveryAttempts, RecoveryStep


@dataclass(frozen=True, slots=True)
class CompactionOrder:
    """The reason and options of a compaction."""

    reason: CompactionReason
    level: CompactionLevel = CompactionLevel.NORMAL
    tokens: int | None = None
    """Prompt tokens as counted by the provider; None to use the estimate."""
    focus: str | None = None
    is_background: bool = False
    """Whether the thread continues while the compaction is made."""
    decision: str = ""
    """The reason in dollars to compact now; empty if costs were not weighed."""

    @property
    def is_manual(self) -> bool:
        """Whether a person asked for the compaction or for its preview."""
        return self.reason in (CompactionReason.MANUAL, CompactionReason.PREVIEW)

    @property
    def is_automatic(self) -> bool:
        """Whether the policy chose the time. Only then is the compaction judged by its effect."""
        return self.reason in AUTOMATIC_REASONS

    def compute_target_tokens(self, tokens: int, threshold: int) -> int:
        """Return the prompt size to compact for.

        A summary that is prepared ahead is used when the prompt has reached the threshold.
        """
        is_ahead = self.is_background and self.reason is not CompactionReason.COLD_CACHE
        return max(tokens, threshold) if is_ahead else tokens


class CompactionDraft(Protocol):
    """A compaction that is not committed yet."""

    @property
    def compaction(self) -> Compaction: ...


DraftT = TypeVar("DraftT", bound=CompactionDraft)


class ManagedPrompt(Protocol[DraftT]):
    """The next prompt of a thread, with methods to make and commit a compaction of it."""

    @property
    def session_id(self) -> str:
        """The session that events are about."""
        ...

    @property
    def model(self) -> str:
        """The name of the model that is called."""
        ...

    @property
    def learnt_usage(self) -> LearntUsage: ...

    def measure_size(self) -> PromptSize:
        """Count the tokens of the prompt."""
        ...

    def make_prices(self) -> CallPrices:
        """Return the prices of the next call and of a summary, which depend on the summariser that would write it."""
        ...

    def emit(self, event: events.Event) -> None: ...

    async def can_compact(self, order: CompactionOrder) -> bool:
        """Return whether the engine compacts at this size and finds something to shrink."""
        ...

    async def draft(self, order: CompactionOrder, wait: SummaryWait) -> DraftT:
        """Make a compaction with the engine, and a model through `wait`. Record only the usage of calls."""
        ...

    def is_usable(self, draft: DraftT) -> bool:
        """Return whether a draft still fits the messages."""
        ...

    async def commit(self, draft: DraftT, order: CompactionOrder) -> str:
        """Continue with the compacted messages. Return the reason if that is not possible, else an empty text."""
        ...

    async def discard(self, draft: DraftT, reason: str) -> None:
        """Account for a compaction that is not used, and report the reason."""
        ...

    async def account_cancelled(self) -> None:
        """Account for a summariser's calls that were cancelled."""
        ...

    async def learn_limit(
        self, verdict: ErrorVerdict, refusal: ProviderRefusal
    ) -> LearntWindow | None:
        """Learn the model's window from a refusal, and apply it to later calls. Return it if it is a new one."""
        ...

    async def shrink_payload(self) -> bool:
        """Remove old images and store big results without losing text; return whether there were any."""
        ...

    def choose_step(self, attempts: RecoveryAttempts, verdict: ErrorVerdict) -> RecoveryStep:
        """Choose the next attempt after a refusal, given the output cap of the request."""
        ...
