"""What a tool is, what it may need leave for, what it is given; the texts an agent puts in front of its model."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Protocol

from everthread.conversation.conversation import Conversation


@dataclass(frozen=True, slots=True)
class Permission:
    """What somebody must allow before a tool does it."""

    kind: Literal["command", "write", "cache"]
    """`cache`: to have the next prompt read anew, at full price."""
    what: str
    """The whole command, the path that is written, or what the cache is lost for: what a rule is matched against."""
    detail: str = ""
    """More for the person who decides: a diff, say, or a price."""


Approver = Callable[[Permission], Awaitable[bool]]
"""Who allows. False is a refusal, which the model is told."""


@dataclass(frozen=True, slots=True)
class ToolReply:
    """What a tool answers. `failed` tells the model that it did not work."""

    text: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Where a tool works."""

    workspace: Path
    home: Path
    """The Everthread home."""
    conversation: Conversation
    call_id: str = ""
    environment: Mapping[str, str] | None = None
    """For child processes, secrets taken out; None: tools start none."""
    allowed: Permission | None = None
    """What leave was given for: a call does this, or nothing."""


class Tool(Protocol):
    """Something the model can do."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in OpenAI's chat form: `{"type": "function", "function": {...}}`. The same bytes every time."""
        ...

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> Permission | None:
        """What must be allowed first; None where nothing must."""
        ...

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        """Do it. `InputError` for arguments that make no sense: the model is told and may try again."""
        ...


class FreeTool:
    """A tool that needs no leave."""

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> Permission | None:  # noqa: ARG002 - as every tool
        return None


@functools.cache
def text(name: str) -> str:
    """A text of `texts/`."""
    return resources.files("everthread.agent").joinpath("texts", f"{name}.txt").read_text("utf-8").strip()
