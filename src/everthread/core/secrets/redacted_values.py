"""Redact the strings in a JSON-like value."""

from __future__ import annotations

import re
from typing import Any

from everthread.core.secrets.redaction import MARK, redact
from everthread.core.secrets.secret_rules import hint_of_name, is_issued, is_passphrase


def redact_value(value: Any) -> Any:
    """Return a JSON-like value with every string in it redacted, of any depth; the same object if it has no secret.

    A field's name counts as it does in text: `{"password": "…"}`. Names themselves stay.
    """
    results: dict[int, Any] = {}
    entered_ids: set[int] = set()
    stack = [value]
    while stack:
        node = stack[-1]
        children = (
            [child for child in _items(node) if id(child) not in results]
            if id(node) not in entered_ids
            else []
        )
        entered_ids.add(id(node))
        stack += children
        if not children:
            results[id(node)] = _rebuild(stack.pop(), results)
    return results[id(value)]


def _items(node: Any) -> list[Any]:
    """Return the containers directly inside one."""
    inside = (
        node.values()
        if isinstance(node, dict)
        else node
        if isinstance(node, list | tuple)
        else ()
    )
    return [item for item in inside if isinstance(item, dict | list | tuple)]


def _rebuild(node: Any, results: dict[int, Any]) -> Any:
    if isinstance(node, dict):
        fields = {
            name: _field(name, results.get(id(item), item))
            for name, item in node.items()
        }
        return (
            fields
            if any(fields[name] is not item for name, item in node.items())
            else node
        )
    if isinstance(node, list | tuple):
        items = [_field("", results.get(id(item), item)) for item in node]
        is_unchanged = all(a is b for a, b in zip(items, node, strict=True))
        return (
            node if is_unchanged else tuple(items) if isinstance(node, tuple) else items
        )
    return _field("", node)


def _field(name: Any, value: Any) -> Any:
    text = redact(value) if isinstance(value, str) else value
    if text is not value or not isinstance(value, str) or not isinstance(name, str):
        return text
    level = hint_of_name(name[-100:])
    issued = (
        is_passphrase(value, level)
        if _SPACE.search(value)
        else is_issued(value, level, quoted=True)
    )
    return MARK if issued else value


_SPACE = re.compile(r"\s")
