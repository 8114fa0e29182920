"""Secrets in JSON-like values are redacted, by their text and by the names of their fields."""

from __future__ import annotations

import json

import pytest

from everthread.core.secrets.json_redaction import redact_value
from everthread.core.secrets.redaction import MARK

KEY = "q7Zt2LxPw9" + "Vb4KcR8mYd3HsA"
"""A made-up key that looks random."""


def test_redacts_nested_values_and_named_values() -> None:
    value = {
        "env": [
            {"DB_PASSWORD": "hunter2x", "note": "my password is hunter2"},
            ("a", f"token={KEY}"),
        ],
        "api_key": KEY,
        "count": 3,
        "plain": ["kept"],
        7: "hunter2x",
    }
    copy = json.dumps(value["env"])
    result = redact_value(value)
    assert result == {
        "env": [
            {"DB_PASSWORD": MARK, "note": f"my password is {MARK}"},
            ("a", f"token={MARK}"),
        ],
        "api_key": MARK,
        "count": 3,
        "plain": ["kept"],
        7: "hunter2x",
    }
    assert result["plain"] is value["plain"]
    assert json.dumps(value["env"]) == copy


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        "text",
        {"a": [1, {"b": "c"}]},
        ["x", ("y", {})],
        {"password": "two words, so a label 1"},
        {"secret": True},
    ],
)
def test_returns_value_without_secrets_unchanged(value: object) -> None:
    assert redact_value(value) is value


def test_redacts_a_plain_text_value() -> None:
    assert redact_value("password=hunter2x") == f"password={MARK}"


def test_shared_and_circular_values() -> None:
    inner = {"password": "hunter2x"}
    assert redact_value([inner, {"again": inner}]) == [
        {"password": MARK},
        {"again": {"password": MARK}},
    ]
    loop: list[object] = ["password=hunter2x"]
    loop.append(loop)
    assert redact_value(loop)[0] == f"password={MARK}"


def test_redacts_deeply_nested_values() -> None:
    value: object = "password=hunter2x"
    for _ in range(5000):
        value = [value]
    result = redact_value(value)
    for _ in range(5000):
        result = result[0]
    assert result == f"password={MARK}"


def test_redacts_passphrases_in_password_fields() -> None:
    value = {
        "password": "blue R1ver stone",
        "password_hint": "a R1ver",
        "pwd": "Enter it here",
    }
    assert redact_value(value) == value | {"password": MARK}
