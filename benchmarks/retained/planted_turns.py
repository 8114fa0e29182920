"""Turns that plant facts into a conversation; the facts are labelled by hand (`facts.toml`)."""

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
"""Words that must be on one line."""
TURNS_UNTIL_REVOKED = 4
"""Number of planted turns after which a decision is revoked."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact to find again: every group of words, and not a revoked decision as valid."""

    kind: str
    needles: tuple[Words, ...]
    old: Words = ()


@dataclass(frozen=True, slots=True)
class PlantedTurn:
    """A turn to add, and the fact that it establishes; None if only a later turn does."""

    messages: list[Message]
    fact: Fact | None


def make_planted_turns(seed: int) -> list[PlantedTurn]:
    """Return every planted turn in a random order, a decision before the one that replaces it."""
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
            turns.append((place + TURNS_UNTIL_REVOKED + 0.5, entry["later"], fact))
    turns.sort(key=lambda turn: turn[0])
    return [
        PlantedTurn(_make_messages(steps, number, rng), fact)
        for number, (_, steps, fact) in enumerate(turns)
    ]


def _make_messages(steps: list[list[str]], number: int, rng: random.Random) -> list[Message]:
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
                    "content": _add_noise(output[0], rng),
                }
            )
        else:
            found.append({"role": "user" if what == "user" else "assistant", "content": text})
    return found


def _add_noise(output: str, rng: random.Random) -> str:
    return re.sub(
        r"\{noise (\d+)\}",
        lambda match: "\n".join(_make_log_line(rng) for _ in range(int(match[1]))),
        output,
    )


def _make_log_line(rng: random.Random) -> str:
    """Return an unimportant line of a service's log."""
    moment = (
        f"2026-02-{rng.randrange(1, 29):02d}T{rng.randrange(24):02d}:{rng.randrange(60):02d}:07Z"
    )
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
