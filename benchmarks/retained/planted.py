"""Facts labelled by hand (`facts.toml`), and the turns that plant them into a conversation."""

from __future__ import annotations

import json
import random
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everthread.core.messages import Message

Words = tuple[str, ...]
"""Words that must stand on one line."""
LATER = 4
"""A decision is taken back so many planted turns later."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What must be found again: every group of words; of a decision that was taken back not the old one as current."""

    kind: str
    needles: tuple[Words, ...]
    old: Words = ()


@dataclass(frozen=True, slots=True)
class Plant:
    """A turn to add, and the fact that is true once it was said (None: only a later turn makes it one)."""

    messages: list[Message]
    fact: Fact | None


def plants(seed: int) -> list[Plant]:
    """Every planted turn in an order of its own, a decision before the one that replaces it."""
    rng = random.Random(seed)  # noqa: S311 - always the same
    found: list[dict[str, Any]] = tomllib.loads(
        Path(__file__).with_name("facts.toml").read_text("utf-8")
    )["fact"]
    rng.shuffle(found)
    turns: list[tuple[float, list[list[str]], Fact | None]] = []
    for place, entry in enumerate(found):
        fact = Fact(
            entry["kind"],
            tuple(map(tuple, entry["needles"])),
            tuple(entry.get("old", ())),
        )
        turns.append((place, entry["turn"], None if "later" in entry else fact))
        if "later" in entry:
            turns.append((place + LATER + 0.5, entry["later"], fact))
    turns.sort(key=lambda turn: turn[0])
    return [
        Plant(_messages(steps, number, rng), fact)
        for number, (_, steps, fact) in enumerate(turns)
    ]


def _messages(steps: list[list[str]], number: int, rng: random.Random) -> list[Message]:
    found: list[Any] = []
    for place, (what, text, *output) in enumerate(steps):
        if what == "run":
            call_id = f"planted_{number}_{place}"
            call = {
                "name": "terminal",
                "arguments": json.dumps({"command": text}, ensure_ascii=False),
            }
            made = {"id": call_id, "type": "function", "function": call}
            found.append({"role": "assistant", "content": None, "tool_calls": [made]})
            found.append(
                {
                    "role": "tool",
                    "tool_call_id": call_id,
                    "content": _with_noise(output[0], rng),
                }
            )
        else:
            found.append(
                {"role": "user" if what == "user" else "assistant", "content": text}
            )
    return found


def _with_noise(output: str, rng: random.Random) -> str:
    return re.sub(
        r"\{noise (\d+)\}",
        lambda match: "\n".join(_line(rng) for _ in range(int(match[1]))),
        output,
    )


def _line(rng: random.Random) -> str:
    """A line of a service's log that nobody needs."""
    moment = f"2026-02-{rng.randrange(1, 29):02d}T{rng.randrange(24):02d}:{rng.randrange(60):02d}:07Z"
    what = rng.choice(
        (
            "lease renewed",
            "heartbeat",
            "cache refreshed",
            "connection reused",
            "batch queued",
        )
    )
    return f"{moment} INFO worker-{rng.randrange(16)} {what} id={rng.getrandbits(32):08x} ms={rng.randrange(2, 900)}"
