"""Finish work even if its caller is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finish_despite_cancellation(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; let it finish even if the caller is cancelled, however often."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # mark as retrieved: the cancellation is raised instead
        raise
