"""`store.leases`: leases: the right of one process at a time to write to a thread."""

from __future__ import annotations

from everthread.store.access import StoreTopic
from everthread.store.records import Lease
from everthread.store.sql import leases


class LeaseStore(StoreTopic):
    """Leases: the right of one process at a time to write to a thread."""

    async def acquire_lease(self, thread_id: str, holder: str, seconds: float) -> Lease | None:
        """Acquire the right to write to a thread, or return None while another holder has it."""
        return await self._access.change_thread(
            thread_id, leases.acquire_lease, thread_id, holder, seconds
        )

    async def renew_lease(self, lease: Lease, seconds: float) -> Lease:
        """Extend a lease. An expired one may be renewed unless another holder took it."""
        return await self._access.change_thread(lease.thread, leases.renew_lease, lease, seconds)

    async def release_lease(self, lease: Lease) -> None:
        await self._access.change_thread(lease.thread, leases.release_lease, lease)
