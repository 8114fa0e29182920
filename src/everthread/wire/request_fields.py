"""The fields of a provider's request that a gateway reads and sets. Each protocol's package has a subclass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

OUTPUT_CAP_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class RequestFields:
    """Read and set the fields of a request. A method that sets something returns only the changed fields."""

    messages_field: ClassVar[str] = "messages"
    accepts_single_text: ClassVar[bool] = False
    """Whether `messages_field` may be a text, which means one user message."""
    results_field: ClassVar[str | None] = None
    """The field of a message that holds all tool results, or None if each result is a message of its own."""
    no_tool_choice: ClassVar[Mapping[str, Any]] = {"tool_choice": "none"}
    """The field that forbids all tool calls."""
    has_native_cache_marks: ClassVar[bool] = False
    """Whether the protocol itself defines cache marks, also for a system prompt outside the messages."""

    def accepts_cache_marks(self, model: str, base_url: str) -> bool:
        """Return whether a model at this address accepts cache marks."""
        return False

    def accepts_system_blocks(self, model: str, base_url: str) -> bool:
        """Return whether the upstream accepts a system message as blocks instead of a text."""
        return False

    def add_note(self, fields: Mapping[str, Any], note: str) -> dict[str, Any]:
        """Add a note to the system prompt; return no fields if the system prompt is in the messages or absent."""
        return {}

    def add_note_to_message(
        self, message: dict[str, Any], note: str, *, as_blocks: bool
    ) -> list[dict[str, Any]]:
        """Add a note to a system message; return the message or messages that replace it."""
        content = append_note(message["content"], note, as_blocks=as_blocks)
        return [{**message, "content": content}]

    def add_tools(self, tools: Sequence[Any], new_tools: Sequence[Any]) -> list[Any]:
        """Return the tools of a request with encoded tools added."""
        return [*tools, *new_tools]

    def read_output_cap(self, fields: Mapping[str, Any]) -> int | None:
        """Return the client's limit of output tokens, or None if it sets none."""
        caps = (as_int(fields.get(name)) for name in OUTPUT_CAP_FIELDS)
        return next((cap for cap in caps if cap is not None), None)

    def set_output_cap(self, fields: Mapping[str, Any], cap: int, base_url: str) -> dict[str, Any]:
        """Set the limit of output tokens, in the client's field if there is one."""
        client_names = (name for name in OUTPUT_CAP_FIELDS if name in fields)
        return {next(client_names, self.choose_output_cap_field(base_url)): cap}

    def choose_output_cap_field(self, base_url: str) -> str:
        """Return the name under which the server at this address expects the output cap."""
        return "max_tokens"

    def read_thinking_budget(self, fields: Mapping[str, Any]) -> int | None:
        """Return the tokens that the client set aside for thinking."""
        option = fields.get("thinking")
        return as_int(option.get("budget_tokens")) if isinstance(option, Mapping) else None


def append_note(system: Any, note: str, *, as_blocks: bool) -> Any:
    """Return a system prompt with a note at its end. `as_blocks`: whether to replace a text with blocks."""
    block = {"type": "text", "text": note}
    if isinstance(system, list):
        return [*system, block]
    return [{"type": "text", "text": system}, block] if as_blocks else f"{system}\n\n{note}"


def as_int(value: Any) -> int | None:
    """Return a value if it is an integer, which a bool is not."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
