"""Keys that an earlier version had. They are accepted for one release, with one warning that names the successor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RemovedKey:
    """`successor` ends the sentence "… is no longer used:"."""

    key: str
    successor: str

    def __str__(self) -> str:
        return f"{self.key} is no longer used: {self.successor}. `everthread config check --fix` takes it out."


REMOVED = (
    RemovedKey("compression.keep_important", "compression.user_words says how much of the user's words is kept"),
    RemovedKey(
        "gateway.adapters", "examples/telegram_bot.py and examples/webhook.py connect chats to threads over the API"
    ),
    RemovedKey("recall.embeddings", "recall ranks by full text alone, set with recall.closeness"),
)


def find_removed(values: Any) -> Iterator[RemovedKey]:
    """The removed keys that stand in a configuration as it was read."""
    for removed in REMOVED:
        *sections, last = removed.key.split(".")
        section = values
        for step in sections:
            section = section.get(step) if isinstance(section, Mapping) else None
        if isinstance(section, Mapping) and last in section:
            yield removed


def without_removed(values: dict[str, Any]) -> dict[str, Any]:
    """The same configuration without its removed keys."""
    for removed in find_removed(values):
        values = _without(values, removed.key.split("."))
    return values


def _without(values: dict[str, Any], steps: list[str]) -> dict[str, Any]:
    first, *rest = steps
    if not rest:
        return {key: value for key, value in values.items() if key != first}
    return {**values, first: _without(values[first], rest)}
