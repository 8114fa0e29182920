"""Generate the session of an agent that works alone for a long time: few user messages, many rounds of tools.

Project, tools and outputs differ from the shipped session's: TypeScript, `execute_bash` and an editor with commands.
Everything comes from one seeded generator.

"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import count
from typing import Any

from everthread.core.messages import Message

AREAS = (
    "billing",
    "catalog",
    "checkout",
    "identity",
    "search",
    "shipping",
    "returns",
    "pricing",
)
THINGS = (
    "Invoice",
    "Cart",
    "Parcel",
    "Session",
    "Voucher",
    "Price",
    "Address",
    "Payment",
    "Refund",
    "Stock",
)
DEEDS = (
    "load",
    "store",
    "merge",
    "split",
    "check",
    "format",
    "parse",
    "notify",
    "retry",
    "expire",
)
ASKS = (
    "Port packages/{area} to the new HTTP client and get its tests green. Work on your own until it is done.",
    "Something in {area} leaks connections. Find it, fix it, prove it with a test.",
    "Split {thing}Service in packages/{area}: reading and writing apart. Nothing else may change for callers.",
    "Customers report that {thing} is shown twice in {area}. Take your time and find out why.",
)
ERRORS = (
    "packages/{area}/src/{name}.ts({line},{column}): error TS2345: Type '{a}' is not assignable to type '{b}'.",
    "packages/{area}/src/{name}.ts({line},{column}): error TS2551: Property '{deed}{a}' does not exist on type '{b}'.",
    "TypeError: Cannot read properties of undefined (reading '{deed}{a}')",
    "AssertionError: expected {line} to equal {column} in {deed}{a}",
)


def generate_session(seed: int) -> Iterator[Message]:
    """Yield the messages of a session, without end."""
    rng = random.Random(seed)  # noqa: S311 - always the same
    numbers = count()
    while True:
        area = rng.choice(AREAS)
        thing = rng.choice(THINGS)
        yield {
            "role": "user",
            "content": rng.choice(ASKS).format(area=area, thing=thing),
        }
        for _ in range(rng.randrange(12, 40)):
            yield from _make_round(rng, numbers, area)
        text = f"{thing} in packages/{area} is done: the cause was a {rng.choice(DEEDS)} that ran twice. Tests pass."
        yield {"role": "assistant", "content": text}


def _make_round(rng: random.Random, numbers: Iterator[int], area: str) -> Iterator[Message]:
    """Yield one call and its result. An area has only a few files, like a real one."""
    place = AREAS.index(area) + rng.randrange(5)
    name = f"{DEEDS[place % len(DEEDS)]}{THINGS[place * 3 % len(THINGS)]}"
    path = f"packages/{area}/src/{name}.ts"
    kind = rng.choices(("view", "edit", "build", "test", "search"), (3, 3, 2, 2, 2))[0]
    if kind == "view":
        arguments = {"command": "view", "path": path}
        yield from _make_call(numbers, "str_replace_editor", arguments, _make_source(rng, name))
    elif kind == "edit":
        arguments = {
            "command": "str_replace",
            "path": path,
            "old_str": _make_source(rng, name, 2),
            "new_str": "return next;",
        }
        said = f"{name} reads the value before it is written; I turn that around."
        yield from _make_call(
            numbers,
            "str_replace_editor",
            arguments,
            f"The file {path} has been edited.",
            said,
        )
    elif kind == "search":
        command = f"grep -rn '{name}' packages/{area}/src | head -{rng.randrange(5, 40)}"
        lines = [
            f"packages/{area}/src/{rng.choice(DEEDS)}.ts:{rng.randrange(400)}: await {name}(id)"
            for _ in range(6)
        ]
        yield from _make_call(numbers, "execute_bash", {"command": command}, "\n".join(lines))
    else:
        tool = "tsc -p" if kind == "build" else "vitest run"
        command = f"cd packages/{area} && npx {tool} {name}"
        yield from _make_call(
            numbers,
            "execute_bash",
            {"command": command},
            _make_test_output(rng, area, name),
        )


def _make_call(
    numbers: Iterator[int],
    name: str,
    arguments: dict[str, Any],
    result: str,
    said: str | None = None,
) -> Iterator[Message]:
    call_id = f"story_{next(numbers)}"
    function = {"name": name, "arguments": json.dumps(arguments)}
    made: Any = [{"id": call_id, "type": "function", "function": function}]
    yield {"role": "assistant", "content": said, "tool_calls": made}
    yield {"role": "tool", "tool_call_id": call_id, "content": result}


def _make_source(rng: random.Random, name: str, length: int = 14) -> str:
    lines = [f"export async function {name}(id: string, limit = {rng.randrange(900)}) {{"]
    for _ in range(length):
        deed = rng.choice(DEEDS)
        thing = rng.choice(THINGS)
        lines.append(
            f"  const {thing.lower()} = await {deed}{thing}(id, {{ retries: {rng.randrange(9)} }});"
        )
    return "\n".join([*lines, "}"])


def _make_test_output(rng: random.Random, area: str, name: str) -> str:
    passed = [
        f" ✓ packages/{area}/test/{rng.choice(DEEDS)}.test.ts ({rng.randrange(2, 30)})"
        for _ in range(8)
    ]
    if rng.random() < 0.85:
        return "\n".join([*passed, f"Tests  {rng.randrange(40, 90)} passed", "[exit code 0]"])
    error = rng.choice(ERRORS).format(
        area=area,
        name=name,
        line=rng.randrange(1, 400),
        column=rng.randrange(1, 99),
        deed=rng.choice(DEEDS),
        a=rng.choice(THINGS),
        b=rng.choice(THINGS),
    )
    return "\n".join(
        [
            *passed,
            error,
            f"Tests  1 failed | {rng.randrange(40, 90)} passed",
            "[exit code 1]",
        ]
    )
