"""The fields of Gemini's requests that a gateway reads and sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.wire.gemini.field_names import find_field_name, get_field, get_object_field
from everthread.wire.request_fields import RequestFields, as_int


class GeminiFields(RequestFields):
    """Fields of Gemini's requests."""

    messages_field = "contents"
    results_field = "parts"
    no_tool_choice = {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}}

    def add_note(self, fields: Mapping[str, Any], note: str) -> dict[str, Any]:
        name = find_field_name(fields, "systemInstruction")
        system = get_object_field(fields, name)
        if system is None or not isinstance(system.get("parts"), list):
            return {}
        return {name: {**system, "parts": [*system["parts"], {"text": note}]}}

    def add_tools(self, tools: Sequence[Any], new_tools: Sequence[Any]) -> list[Any]:
        """Return the tools with encoded functions added to the first group of function declarations."""
        if not tools:
            return list(new_tools)
        name = find_field_name(tools[0], "functionDeclarations")
        declarations = [*(tools[0].get(name) or ()), *new_tools[0]["functionDeclarations"]]
        return [{**tools[0], name: declarations}, *tools[1:]]

    def read_output_cap(self, fields: Mapping[str, Any]) -> int | None:
        config = get_object_field(fields, "generationConfig") or {}
        return as_int(get_field(config, "maxOutputTokens"))

    def set_output_cap(self, fields: Mapping[str, Any], cap: int, base_url: str) -> dict[str, Any]:
        name = find_field_name(fields, "generationConfig")
        config = dict(get_object_field(fields, name) or {})
        config[find_field_name(config, "maxOutputTokens")] = cap
        return {name: config}

    def read_thinking_budget(self, fields: Mapping[str, Any]) -> int | None:
        config = get_object_field(fields, "generationConfig") or {}
        thinking = get_object_field(config, "thinkingConfig") or {}
        return as_int(get_field(thinking, "thinkingBudget"))


request_fields = GeminiFields()
