"""The interface of a tool, the permission it may need, and its context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from everthread.conversation.conversation import Conversation


@dataclass(frozen=True, slots=True)
class Permission:
    """A permission that the user must give before a tool runs."""

    kind: Literal["command", "write", "cache"]
    """`cache`: lose the provider's cache, so that the next prompt is read at full price."""
    target: str
    """The whole command, the path to write, or the reason to lose the cache. Rules are matched against it."""
    detail: str = ""
    """More for the user who decides, such as a diff or a price."""


Approver = Callable[[Permission], Awaitable[bool]]
"""Decides on a permission. False refuses the call; the model sees that."""


@dataclass(frozen=True, slots=True)
class ToolReply:
    """The result of a tool. `failed` marks it as an error for the model."""

    text: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Workspace, conversation and permission of a tool call."""

    workspace: Path
    home: Path
    """The Everthread home."""
    conversation: Conversation
    call_id: str = ""
    environment: Mapping[str, str] | None = None
    """Variables for child processes, without secrets; None: tools start no processes."""
    allowed: Permission | None = None
    """The approved action: the call does exactly this, or nothing."""


class Tool(Protocol):
    """A tool for the model."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in OpenAI's chat form: `{"type": "function", "function": {...}}`. The same bytes every time."""
        ...

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> Permission | None:
        """Return the permission that the call needs, or None if it needs none."""
        ...

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        """Run the tool. Raise `InputError` for bad arguments; the model sees the message and may try again."""
        ...


class PreapprovedTool:
    """A tool that needs no permission."""

    def needs(
        self,
        arguments: Mapping[str, Any],  # noqa: ARG002
        context: ToolContext,  # noqa: ARG002
    ) -> Permission | None:
        return None
