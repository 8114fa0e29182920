"""A model call of a caller that sends its whole history: the history, and everything else of the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from everthread.compaction.summary.summary_message import find_reading_tools
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.types import Api, ModelReply, ModelRequest
from everthread.store.records import LimitKey, SessionKind
from everthread.thread.accounting import ChargeUsage
from everthread.thread.matching.history import History
from everthread.thread.matching.thread_match import ClientScope
from everthread.thread.thread_setup import CheckPermission

PLATFORM = "gateway"
"""The platform of threads whose clients send HTTP requests."""


@dataclass(frozen=True, slots=True)
class ClientSession:
    """The client and session of a request, as the client states them."""

    client: str = ""
    """The client's name; for an HTTP client the first product of its `User-Agent`, without the version."""
    session: str = ""
    parent: str = ""
    """The session that this one works for, if the client names it."""
    is_subagent: bool = False
    platform: str = PLATFORM
    """The platform under which usage and lists show its threads."""


@dataclass(frozen=True, slots=True)
class LeadingCompaction:
    """A compaction at the start of a request, which replaces earlier messages."""

    key: str
    """Identifies the compaction."""
    message_count: int
    """Number of messages up to the end of the compaction."""


class CallerMessage(Protocol):
    """One message as the caller sent it."""

    @property
    def value(self) -> Any: ...

    @property
    def text(self) -> str: ...


def _restore_nothing(covered_count: int) -> Mapping[int, Any]:  # noqa: ARG001
    """Return no replacement: the default of `CallerHistory.restore_messages`."""
    return {}


@dataclass(frozen=True, slots=True)
class CallerHistory:
    """The whole history that a caller sends."""

    client_scope: ClientScope
    history: History
    """The identities of its messages."""
    messages: Sequence[CallerMessage]
    wire_messages: Sequence[Any]
    """The decoded messages; each is decoded on demand."""
    sizes: Sequence[int]
    """Tokens of each message."""
    client: ClientSession = ClientSession()
    kind: SessionKind = "main"
    """Whether this is a conversation, a subagent's thread or a side call."""
    leading_compaction: LeadingCompaction | None = None
    """The compaction that replaces earlier messages, or None if the history is complete."""
    has_one_role: bool = True
    """Whether the system prompt stays the same, so that a call with another one is a side call.

    False for an agent framework, which hands one conversation from agent to agent.
    """
    is_single_text: bool = False
    """Whether the caller sent one text instead of a list of messages, which cannot be compacted."""
    restore_messages: Callable[[int], Mapping[int, Any]] = _restore_nothing
    """Return replacements, by index, of messages that refer to content among the first `covered_count` messages."""

    size: int = field(init=False)
    """Tokens of all messages, as estimated."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sum(self.sizes))

    def __len__(self) -> int:
        return len(self.history)

    @property
    def digest(self) -> str:
        """The digest of the whole history."""
        return self.history.digest(len(self.history))

    @property
    def is_conversation(self) -> bool:
        """Whether this may be a conversation, not a request for a title or a count, nor a subagent's."""
        return self.kind == "main"

    @property
    def is_mid_turn(self) -> bool:
        """Whether the newest message contains tool results, so that the call is in the middle of a turn."""
        return bool(self.history.identities) and bool(self.history.identities[-1].result_hashes)

    @property
    def has_answer(self) -> bool:
        """Whether an assistant's turn is among the messages."""
        return any(
            isinstance(value, dict) and value.get("role") == "assistant"
            for value in self.wire_messages
        )


@dataclass(frozen=True, slots=True)
class CallSettings:
    """Everything of a model call except its messages."""

    api: Api
    request: ModelRequest
    """Model, system prompt and tools, without messages."""
    tokens: int
    """Tokens of system prompt, tools and reminders."""
    upstream: str
    """The address of the provider."""
    limit_key: LimitKey
    """The key under which the model's learnt limits are stored."""
    window: int | None = None
    """The model's window, if the caller knows it."""
    output_cap: int | None = None
    """The output cap the caller set."""
    thinking_budget: int | None = None
    """The tokens the caller set aside for thinking: the output cap must exceed them."""
    recall_tool: Mapping[str, Any] | None = None
    """Our own tool, if this caller may get it; summaries then name it."""
    is_rewritable: bool = True
    """Whether the call may be changed."""
    charge: ChargeUsage | None = None
    """Charges the usage of a summary to the caller's account, or is None if no account is charged."""
    check_permission: CheckPermission | None = None
    """Called before a summary is paid for. It is None if there is only one user."""

    @property
    def model(self) -> str:
        return self.request.model

    @property
    def request_with_recall(self) -> ModelRequest:
        """Model, system prompt and tools, with our own tool if this caller gets it.

        Tools of our MCP server that are there as well were withdrawn by the client.
        """
        if self.recall_tool is None:
            return self.request
        client_tools = [tool for tool in self.request.tools or () if not find_reading_tools([tool])]
        return replace(self.request, tools=[*client_tools, dict(self.recall_tool)])


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a request, as far as its answer was read."""

    status: int
    reply: ModelReply | None = None
    usage: CanonicalUsage | None = None
    """The usage of the last round."""
    estimated: bool = False
    recall_usage: tuple[CanonicalUsage, ...] = ()
    """The usage of the earlier rounds, whose calls were answered here."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300
