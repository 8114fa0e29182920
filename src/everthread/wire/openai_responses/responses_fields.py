"""The fields of OpenAI's Responses requests that a gateway reads and sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.core.json_values import without_keys
from everthread.wire.request_fields import RequestFields, append_note


class ResponsesFields(RequestFields):
    """Fields of OpenAI's Responses requests."""

    messages_field = "input"
    accepts_single_text = True

    def add_note(self, fields: Mapping[str, Any], note: str) -> dict[str, Any]:
        instructions = fields.get("instructions")
        if not instructions:
            return {}
        return {"instructions": append_note(instructions, note, as_blocks=False)}

    def add_note_to_message(
        self, message: dict[str, Any], note: str, *, as_blocks: bool
    ) -> list[dict[str, Any]]:
        """Return the message and one more for the note, without the id of the first."""
        return [message, {**without_keys(message, "id"), "content": note}]

    def choose_output_cap_field(self, base_url: str) -> str:
        return "max_output_tokens"


request_fields = ResponsesFields()
