"""What the fields of an exported line may be. Checked before anything is stored: both databases refuse the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from everthread.errors import TranscriptError
from everthread.store.operations.sessions import LAST, plain

Check = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Field:
    """`optional`: it may be absent, not that it may be null."""

    check: Check
    optional: bool = False


def name(value: Any) -> bool:
    """Text that every database takes as it is."""
    return isinstance(value, str) and plain(value) == value


def text(value: Any) -> bool:
    return isinstance(value, str)


def count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LAST


def whole(value: Any) -> bool:
    return isinstance(value, int) and -LAST < value < LAST


def moment(value: Any) -> bool:
    """Seconds. Farther away than any calendar goes they cannot be."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def anything(value: Any) -> bool:  # noqa: ARG001 - that is what it says
    return True


def mapping(value: Any) -> bool:
    return isinstance(value, dict)


def or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


def many(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def shape(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> dict[str, Field]:
    fields = {key: Field(check) for key, check in required.items()}
    return fields | {key: Field(check, optional=True) for key, check in (optional or {}).items()}


SHAPES: dict[str, dict[str, Field]] = {
    "session": shape(
        {"id": name},
        {
            "parent": or_null(name), "kind": or_null(name), "tenant": name, "platform": name, "user": name,
            "title": text, "model": name, "system": anything, "started": or_null(moment), "ended": or_null(moment),
            "end_reason": or_null(name), "carried": count, "branched_at": or_null(count),
        },
    ),
    "message": shape(
        {"number": count, "body": mapping},
        {
            "kind": name, "event": or_null(name), "tokens": or_null(count), "origin": or_null(count),
            "created": or_null(moment),
        },
    ),
    "places": shape({"session": name, "messages": many(count)}, {"taken_over": many(count)}),
    "compaction": shape(
        {"parent": name, "session": name, "created": moment, "reverted": or_null(moment), "record": mapping}
    ),
    "usage": shape(
        {
            "session": name, "model": name, "task": name, "input": count, "output": count, "cache_read": count,
            "cache_write": count, "reasoning": count, "pico_dollars": or_null(whole), "estimated": whole,
            "event": name, "created": moment, "raw": mapping,
        }
    ),
    # Written by earlier versions; read past.
    "regret": shape({"session": name, "kind": name, "what": name, "call_id": name, "created": moment}),
    "output": shape({"text": text, "call_id": text, "tool": text, "created": moment}),
    "node": shape(
        {
            "id": name, "level": count, "body": text, "tokens": count, "covered_tokens": count, "author": text,
            "first_message": count, "last_message": count, "first_turn": count, "last_turn": count, "since": moment,
            "until": moment, "sources": many(name),
        }
    ),
    "state": shape({"scope": name, "key": name, "value": anything}),
}  # fmt: skip
RECORD = shape(
    {"covered": many(count), "tokens_before": count, "tokens_after": count},
    {
        "summary": text, "author": text, "figures": mapping, "warnings": many(text), "reason": text,
        "focus": or_null(text), "duration": moment, "cost": or_null(text),
    },
)  # fmt: skip
"""What a compaction's record holds."""
RAW_USAGE = shape({"raw": anything, "cache_write_1h": count})


def check(line: Mapping[str, Any], fields: Mapping[str, Field]) -> None:
    """Refuse a line that lacks a field or has a wrong one. What it has besides is left aside."""
    for key, field in fields.items():
        if key not in line:
            if not field.optional:
                raise TranscriptError(f"it has no {key!r}")
        elif not field.check(line[key]):
            shown = repr(line[key])
            raise TranscriptError(f"{key!r} cannot be {shown if len(shown) <= 60 else shown[:60] + '…'}")
