"""Schemas of tools."""

from __future__ import annotations

from everthread.core.tool_schemas import build_schema


def test_builds_a_schema_that_allows_no_other_arguments() -> None:
    properties = {"path": {"type": "string"}}
    schema = build_schema("read", "Reads a file.", properties, ["path"])
    assert schema == {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Reads a file.",
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": ["path"],
                "additionalProperties": False,
            },
        },
    }
