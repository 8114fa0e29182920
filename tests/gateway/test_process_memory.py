"""A thread that sleeps costs a process nothing, and a process that answers for long does not grow.

What is remembered of threads is bounded; the long runs (`make torture PART=scale`) fill those bounds first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from benchmarks.peers.proxies import Server
from benchmarks.servers import (
    ask,
    make_history_body,
    read_memory_bytes,
    serve_answer,
    serve_gateway,
    start_process,
)

MB = 2**20
SAMPLES = 5
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not Path("/proc/self/status").exists(),
        reason="there is no /proc to read memory from",
    ),
]


def start_gateway(stack: ExitStack, folder: Path) -> Server:
    """A managed gateway in a process of its own, before an upstream that answers at once."""
    upstream = stack.enter_context(start_process(serve_answer))
    return stack.enter_context(
        start_process(
            serve_gateway,
            upstream.url,
            str(folder / "store.db"),
            "managed",
        )
    )


async def idle_threads(server: Server, count: int) -> list[int]:
    """Return the process's bytes after each part of this many threads, each of two requests of 10 KB."""
    return await _sample(
        server,
        count,
        lambda number: [make_history_body(10_000, turn, f"t{number}") for turn in (1, 2)],
    )


async def many_requests(
    server: Server, count: int, conversations: int = 64, turns: int = 40
) -> list[int]:
    """The same for this many requests of conversations that grow, end, and begin anew."""

    def bodies(number: int) -> list[bytes]:
        name = number // (conversations * turns)
        turn = number // conversations % turns
        return [make_history_body(4_000, turn, f"c{number % conversations} {name}")]

    return await _sample(server, count, bodies)


async def _sample(server: Server, count: int, bodies: Callable[[int], list[bytes]]) -> list[int]:
    sizes: list[int] = []
    async with httpx2.AsyncClient(timeout=120) as client:
        for part in range(SAMPLES):
            numbers = iter(range(part * count // SAMPLES, (part + 1) * count // SAMPLES))
            await asyncio.gather(
                *(
                    _ask_some(
                        client,
                        server,
                        numbers=numbers,
                        bodies=bodies,
                    )
                    for _ in range(8)
                )
            )
            sizes.append(read_memory_bytes(server.pid) or 0)
    return sizes


async def _ask_some(
    client: httpx2.AsyncClient,
    server: Server,
    numbers: Iterator[int],
    bodies: Callable[[int], list[bytes]],
) -> None:
    for number in numbers:
        for body in bodies(number):
            await ask(client, server.url, body)


async def test_idle_threads_use_little_memory(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = await asyncio.to_thread(start_gateway, stack, tmp_path)
        sizes = await idle_threads(server, 300)
    assert sizes[-1] - sizes[0] < 40 * MB, [size // MB for size in sizes]


async def test_memory_does_not_grow_with_requests(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = await asyncio.to_thread(start_gateway, stack, tmp_path)
        sizes = await many_requests(
            server,
            800,
            conversations=8,
            turns=20,
        )
    assert sizes[-1] - sizes[0] < 40 * MB, [size // MB for size in sizes]
