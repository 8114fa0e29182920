"""The fields of Anthropic's requests that a gateway reads and sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.wire.request_fields import RequestFields, append_note


class AnthropicFields(RequestFields):
    """Fields of Anthropic's requests."""

    results_field = "content"
    no_tool_choice = {"tool_choice": {"type": "none"}}
    has_native_cache_marks = True

    def accepts_cache_marks(self, model: str, base_url: str) -> bool:
        """Return whether the model is a Claude, at any address."""
        return "claude" in model.lower()

    def accepts_system_blocks(self, model: str, base_url: str) -> bool:
        return True

    def add_note(self, fields: Mapping[str, Any], note: str) -> dict[str, Any]:
        system = fields.get("system")
        return {"system": append_note(system, note, as_blocks=True)} if system else {}


request_fields = AnthropicFields()
