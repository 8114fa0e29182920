"""`store.outputs`: tool outputs that are stored in full."""

from __future__ import annotations

import asyncio

from everthread.store.access import StoreTopic
from everthread.store.records import DEFAULT_TENANT, StoredOutput
from everthread.store.sql import stored_outputs


class OutputStore(StoreTopic):
    """Tool outputs that are stored in full."""

    async def put_output(
        self, thread_id: str, text: str, *, call_id: str = "", tool: str = ""
    ) -> StoredOutput:
        """Store a tool output, read it back to verify it, and then let the thread cite it."""
        content = await asyncio.to_thread(stored_outputs.compress_output, text)
        output = await self._access.change_thread(
            thread_id,
            stored_outputs.put_output,
            thread_id,
            text,
            content,
            call_id=call_id,
            tool=tool,
            now=self._access.clock(),
        )
        self._access.indexer.start()
        return output

    async def load_output(self, key: str, *, tenant: str | None = DEFAULT_TENANT) -> str:
        """Return a stored output of a tenant; with None, of any tenant, because equal ids mean equal texts."""
        return await self._access.read(stored_outputs.load_output, key, tenant=tenant)

    async def list_outputs(self, thread_id: str) -> list[StoredOutput]:
        return await self._access.read(stored_outputs.list_outputs, thread_id)
