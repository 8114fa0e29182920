"""Fields chosen from a value."""

from __future__ import annotations

from everthread.core.field_values import pick_fields
from everthread.core.messages import ToolCall


def test_picks_the_named_fields_in_their_order() -> None:
    call = ToolCall("c1", "terminal", "{}")

    fields = pick_fields(call, ("name", "id"))

    assert list(fields.items()) == [("name", "terminal"), ("id", "c1")]
