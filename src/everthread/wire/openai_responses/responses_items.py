"""Items of OpenAI's Responses protocol: their kinds, and the ids by which results refer to calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.core.json_values import as_text
from everthread.core.messages import join_name, kind_of
from everthread.core.types import Api

API: Api = "openai_responses"
ResponseItem = dict[str, Any]
RESULT_KIND_BY_CALL_KIND = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "tool_search_call": "tool_search_output",
    "mcp_approval_request": "mcp_approval_response",
}
"""Kinds of calls that the client answers, each with the kind of its result item."""
CALL_KIND_BY_RESULT_KIND = {output: call for call, output in RESULT_KIND_BY_CALL_KIND.items()}
NAMESPACE_FIELD = "_namespace"
"""Private field with the namespace of a call's tool, to be written back."""


def get_call_id(item: Mapping[str, Any]) -> str:
    """Return the id that a result refers to, or an empty string if the provider answers the call itself."""
    name = "id" if kind_of(item) == "mcp_approval_request" else "call_id"
    return as_text(item.get(name))


def get_answered_call_id(item: Mapping[str, Any]) -> str:
    """Return the id of the call that a result answers."""
    name = "approval_request_id" if item["type"] == "mcp_approval_response" else "call_id"
    value = item.get(name)
    if value is None and item["type"] == "local_shell_call_output":
        value = item.get("id")
    return as_text(value)


def find_item_kind(item: ResponseItem) -> str:
    return kind_of(item) or ("message" if "role" in item else "item_reference")


def get_call_name(item: Mapping[str, Any]) -> Any:
    """Return the name of the called tool, with its namespace before it if the tool has one."""
    namespace = item.get("namespace")
    name = item.get("name")
    if isinstance(namespace, str) and namespace and isinstance(name, str):
        return join_name(namespace, name)
    return name


def make_comparable_message(item: ResponseItem) -> ResponseItem:
    """Return an item for comparison, with its text in the form of the other protocols.

    A message may leave out its type.
    """
    content = item.get("content")
    comparable_item = {
        key: part
        for key, part in item.items()
        if key != "status" and (key != "id" or "role" not in item)
    }
    if comparable_item.get("type") == "message":
        del comparable_item["type"]
    if isinstance(content, list) and "role" in comparable_item:
        comparable_item["content"] = [
            {**part, "type": "text"} if kind_of(part) in ("input_text", "output_text") else part
            for part in content
        ]
    return comparable_item
