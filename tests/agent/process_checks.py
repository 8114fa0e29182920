"""Find out whether processes run."""

from __future__ import annotations

import asyncio
from pathlib import Path


def is_running(pid: int) -> bool:
    """Return whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def are_gone(*pids: int) -> bool:
    """Wait for processes to end; return whether they did."""
    for _ in range(1_000):
        if not any(map(is_running, pids)):
            return True
        await asyncio.sleep(0.02)
    return False


async def wait_for_pids(folder: Path, *, wanted: int) -> list[int]:
    """Wait for this number of process ids in the file `pids`."""
    file = folder / "pids"
    for _ in range(1_000):
        pids = file.read_text().split() if file.exists() else []
        if len(pids) == wanted:
            return [int(pid) for pid in pids]
        await asyncio.sleep(0.02)
    raise AssertionError(f"{wanted} processes did not start")
