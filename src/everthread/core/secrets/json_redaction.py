"""Redact the strings in a JSON-like value."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from everthread.core.secrets.redaction import MARK, redact
from everthread.core.secrets.secret_rules import (
    find_name_hint,
    is_passphrase,
    is_secret_value,
)


def redact_value(value: Any) -> Any:
    """Return a JSON-like value of any depth with every string redacted; the same object if it has no secret.

    A field's name counts as in text: `{"password": "…"}`. Names themselves are kept.
    """
    results: dict[int, Any] = {}
    entered_ids: set[int] = set()
    stack = [value]
    while stack:
        node = stack[-1]
        children = []
        if id(node) not in entered_ids:
            children = [child for child in _inner_containers(node) if id(child) not in results]
        entered_ids.add(id(node))
        stack += children
        if not children:
            results[id(node)] = _rebuild(stack.pop(), results)
    return results[id(value)]


def _inner_containers(node: Any) -> list[Any]:
    """Return the containers directly inside a container."""
    children: Iterable[Any] = ()
    if isinstance(node, dict):
        children = node.values()
    elif isinstance(node, list | tuple):
        children = node
    return [item for item in children if isinstance(item, dict | list | tuple)]


def _rebuild(node: Any, results: dict[int, Any]) -> Any:
    if isinstance(node, dict):
        fields = {
            name: _redact_field(name, results.get(id(item), item)) for name, item in node.items()
        }
        return fields if any(fields[name] is not item for name, item in node.items()) else node
    if isinstance(node, list | tuple):
        items = [_redact_field("", results.get(id(item), item)) for item in node]
        is_unchanged = all(
            new_item is old_item for new_item, old_item in zip(items, node, strict=True)
        )
        if is_unchanged:
            return node
        return tuple(items) if isinstance(node, tuple) else items
    return _redact_field("", node)


def _redact_field(name: Any, value: Any) -> Any:
    redacted_value = redact(value) if isinstance(value, str) else value
    if redacted_value is not value or not isinstance(value, str) or not isinstance(name, str):
        return redacted_value
    hint = find_name_hint(name[-100:])
    if _SPACE_PATTERN.search(value):
        return MARK if is_passphrase(value, hint) else value
    return MARK if is_secret_value(value, hint, is_quoted=True) else value


_SPACE_PATTERN = re.compile(r"\s")
