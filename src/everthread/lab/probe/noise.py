"""A made-up agent's work without end: what surrounds the canaries."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import count

from everthread.core.messages import Message

_AREAS = ("gateway", "worker", "console", "reports", "uploads", "sessions", "search", "billing")
_DEEDS = ("load", "store", "merge", "split", "check", "format", "parse", "notify", "retry", "expire")
_THINGS = ("Account", "Cart", "Page", "Token", "Filter", "Upload", "Address", "Payment", "Label", "Stock")
_ASKS = (
    "Port src/{area} to the new client and get its tests green.",
    "Something in {area} is slow. Find out what, and measure it.",
    "Split {thing} in src/{area}: reading and writing apart.",
    "Users report that {thing} is shown twice in {area}. Find out why.",
)


def work(seed: int = 0) -> Iterator[list[Message]]:
    """Turn by turn: a request, a few rounds of tools, an answer."""
    rng = random.Random(seed)  # noqa: S311 - always the same
    numbers = count()
    while True:
        area, thing = rng.choice(_AREAS), rng.choice(_THINGS)
        turn: list[Message] = [{"role": "user", "content": rng.choice(_ASKS).format(area=area, thing=thing)}]
        for _ in range(rng.randrange(2, 5)):
            name = f"{rng.choice(_DEEDS)}{rng.choice(_THINGS)}"
            if rng.random() < 0.6:
                command, output = f"sed -n 1,12p src/{area}/{name}.py", _source(rng, name)
            else:
                command, output = f"pytest -q tests/{area}/test_{name}.py", _outcome(rng, name)
            turn += tool_round(f"work_{next(numbers)}", command, output)
        turn.append(
            {"role": "assistant", "content": f"{thing} in src/{area} is done; a {rng.choice(_DEEDS)} ran twice."}
        )
        yield turn


def tool_round(call_id: str, command: str, output: str) -> tuple[Message, Message]:
    """A command and what it printed."""
    arguments = json.dumps({"command": command})
    call: Message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": {"name": "bash", "arguments": arguments}}],
    }
    return call, {"role": "tool", "tool_call_id": call_id, "content": output}


def log_line(rng: random.Random) -> str:
    """A line of a service's log that nobody needs."""
    moment = f"2026-02-{rng.randrange(1, 29):02d}T{rng.randrange(24):02d}:{rng.randrange(60):02d}:07Z"
    what = rng.choice(("lease renewed", "heartbeat", "cache refreshed", "connection reused", "batch queued"))
    return f"{moment} INFO worker-{rng.randrange(16)} {what} id={rng.getrandbits(32):08x} ms={rng.randrange(2, 900)}"


def _source(rng: random.Random, name: str) -> str:
    lines = [f"async def {name}(key: str, limit: int = {rng.randrange(900)}) -> None:"]
    for _ in range(10):
        deed, thing = rng.choice(_DEEDS), rng.choice(_THINGS)
        lines.append(f"    {thing.lower()} = await {deed}{thing}(key, retries={rng.randrange(9)})")
    return "\n".join(lines)


def _outcome(rng: random.Random, name: str) -> str:
    passed = [f"tests/test_{rng.choice(_DEEDS)}.py {'.' * rng.randrange(4, 30)} [100%]" for _ in range(5)]
    if rng.random() < 0.8:
        return "\n".join([*passed, f"{rng.randrange(20, 90)} passed in {rng.randrange(2, 90)}.1s"])
    error = f"E   AssertionError: {name} gave {rng.randrange(400)}, not {rng.randrange(400)}"
    return "\n".join([*passed, error, f"1 failed, {rng.randrange(20, 90)} passed"])
