"""`store.limits`: windows and output caps learnt from providers."""

from __future__ import annotations

from everthread.core.recent_dict import RecentDict
from everthread.core.utc_days import DAY_SECONDS
from everthread.store.access import StoreAccess, StoreTopic
from everthread.store.records import LearntLimits, LimitKey, LimitKind, ModelLimit
from everthread.store.sql import learnt_limits

MAX_REMEMBERED_PROMPTS = 10_000
"""Maximum number of keys and days whose largest prompt is remembered, so that only a larger one is written."""


class LimitStore(StoreTopic):
    """Windows and output caps learnt from providers."""

    def __init__(self, access: StoreAccess) -> None:
        super().__init__(access)
        self._largest_prompts: RecentDict[tuple[LimitKey, int], int] = RecentDict(
            MAX_REMEMBERED_PROMPTS
        )
        """The largest prompt accepted for each key and day."""

    async def learn_limit(
        self, key: LimitKey, limit: int, *, source: str, kind: LimitKind = "window"
    ) -> ModelLimit:
        """Store a limit that a provider stated, replacing the last one that the key's credential met."""
        return await self._access.write(
            learnt_limits.learn_limit, self._access.clock(), key, limit, source=source, kind=kind
        )

    async def load_limits(self, key: LimitKey) -> LearntLimits:
        """Return a tenant's limits: its own if it has any, or those that two credentials met."""
        return await self._access.read(learnt_limits.load_limits, key, self._access.clock())

    async def list_limits(self) -> list[ModelLimit]:
        return await self._access.read(learnt_limits.list_limits, self._access.clock())

    async def forget_limits(self, *, base_url: str | None = None, model: str | None = None) -> int:
        """Delete the learnt limits of an address or a model, or all limits; return the number of deleted limits."""
        return await self._access.write(learnt_limits.forget_limits, base_url=base_url, model=model)

    async def record_success(self, key: LimitKey, prompt_tokens: int) -> None:
        """Record that a provider accepted a prompt of this size. Written only if it is the day's largest so far."""
        now = self._access.clock()
        key_and_day = (key, int(now // DAY_SECONDS))
        if prompt_tokens > self._largest_prompts.get(key_and_day, 0):
            self._largest_prompts[key_and_day] = prompt_tokens
            await self._access.writer.write(
                lambda tx: learnt_limits.record_success(tx, key, prompt_tokens, now),
                can_sync_later=True,
            )
