"""The tools offered to the model of a conversation, and a tool to find those left out.

The selection changes only at the start of a session, at a compaction, or if a person allows it at once. In between the
schemas are the same bytes, in every process that continues the session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from everthread.conversation.tool_selection import (
    ToolCard,
    choose_left_out,
    compute_max_tool_tokens,
    exceeds_share,
    find_matching,
    make_card,
    tool_name,
)
from everthread.core.json_values import json_text
from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.core.turns import user_text
from everthread.core.types import System
from everthread.errors import InputError

FIND_TOOLS = "find_tools"
FIND_TOOLS_SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": FIND_TOOLS,
        "description": "More tools exist than are shown to you. Say what you need one for, and those that match are "
        "named; they are shown again from the next compaction on.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {
                    "type": "string",
                    "description": "What the tool shall do, in a few words, or its name.",
                },
                "now": {
                    "type": "boolean",
                    "description": "Show them at once. The prompt is then read anew at full price, so the user is "
                    "asked. Default false.",
                },
            },
            "required": ["query"],
        },
    },
}
MAX_LISTED_NAMES = 40
"""Maximum names to list if no tool matches."""
MAX_QUERY_CHARS = 1_000
TASK_MESSAGES = 3
"""The number of latest user messages that describe the task."""


@dataclass(frozen=True, slots=True)
class FoundTools:
    """The result of a search among the tools left out."""

    query: str
    tools: tuple[ToolCard, ...]
    others: tuple[str, ...]
    """The names of the other tools left out."""
    is_offered_now: bool = False
    """Whether they are offered again from the next request on."""
    was_refused: bool = False
    """Whether the model asked for them at once and the user did not allow it."""

    @property
    def text(self) -> str:
        """The text for the model."""
        if not self.tools:
            names = ", ".join(self.others[:MAX_LISTED_NAMES])
            unlisted_count = len(self.others) - MAX_LISTED_NAMES
            more = f" and {unlisted_count:,} more" if unlisted_count > 0 else ""
            hint = " No tool is left out: all are shown to you."
            if names:
                hint = f" These are left out: {names}{more}."
            return f"No tool that is left out matches {self.query!r}.{hint}"
        lines = [
            f"- {card.name}: {card.description}" if card.description else f"- {card.name}"
            for card in self.tools
        ]
        availability = f"They are shown to you again from {'now' if self.is_offered_now else 'the next compaction'} on."
        if self.was_refused and not self.is_offered_now:
            availability = f"The user did not allow to show them at once. {availability}"
        return "\n".join([f"Tools that match {self.query!r}:", *lines, availability])


MAX_FOUND_TOOLS = 5
"""Maximum tools that one search brings back."""


@dataclass(frozen=True, slots=True)
class ToolRoom:
    """The room for tools in the next prompts of a model."""

    counter: TokenCounter
    threshold: float
    """The threshold in tokens of the counter, not rounded."""
    max_share: float
    """Share of the threshold that tools may take."""
    system: System
    messages: Sequence[Message]
    """The messages of the prompt, the latest of which say what tools the task needs."""
    is_limited: bool = True
    """Whether tools may be left out."""

    @property
    def task_text(self) -> str:
        """The user's last messages, which describe the task."""
        user_texts = (text for message in reversed(self.messages) if (text := user_text(message)))
        return "\n".join(islice(user_texts, TASK_MESSAGES))


@dataclass(frozen=True, slots=True)
class ToolChange:
    """The names of tools that are no longer offered, and of those that are offered again."""

    removed_names: tuple[str, ...]
    returned_names: tuple[str, ...]


class Toolbox:
    """The tools of one conversation, and which of them are left out."""

    def __init__(
        self,
        tools: Sequence[dict[str, Any]],
        list_engine_tools: Callable[[], list[dict[str, Any]]],
    ) -> None:
        self.all_tools = list(tools)
        self._list_engine_tools = list_engine_tools
        self._names = frozenset(map(tool_name, self.all_tools))
        self.left_out: tuple[str, ...] = ()
        self.used_tools: dict[str, None] = {}
        """Every tool that the thread has ever called."""
        self._requested_names: dict[str, None] = {}
        """Tools requested since the last compaction."""
        self._last_choice_key = ""
        """The model and tools of the last choice."""
        self._tools_digest = ""
        self.schemas = self._list_schemas(())
        """The offered tools: the given tools that are not left out, the engine's own, and `find_tools`."""

    @property
    def own_schemas(self) -> list[dict[str, Any]]:
        """The offered tools that the conversation answers itself."""
        return [*self._list_engine_tools(), *([FIND_TOOLS_SCHEMA] if self.left_out else [])]

    def list_next_schemas(self, room: ToolRoom) -> list[dict[str, Any]]:
        """Return the tools that a compaction made now would offer."""
        return self._list_schemas(self.choose(room))

    def can_fit(self, room: ToolRoom) -> bool:
        """Return whether a new choice of tools brings system prompt and tools below the threshold."""
        tools = self.list_next_schemas(room)
        return room.counter.request((), system=room.system, tools=tools) < room.threshold

    def _list_schemas(self, left_out: Collection[str]) -> list[dict[str, Any]]:
        """Return the tools to offer if these are left out."""
        if not left_out:
            return [*self.all_tools, *self._list_engine_tools()]
        offered_tools = [tool for tool in self.all_tools if tool_name(tool) not in left_out]
        return [*offered_tools, *self._list_engine_tools(), FIND_TOOLS_SCHEMA]

    def count_saved_tokens(self, counter: TokenCounter) -> int:
        """Return the tokens that leaving out tools saves in every request."""
        all_tokens = counter.tools(self._list_schemas(()))
        return max(0, all_tokens - counter.tools(self.schemas)) if self.left_out else 0

    def record_tool_call(self, tool: str) -> None:
        """Record that a tool was called, so that it counts as used and is never left out."""
        if tool in self._names:
            self.used_tools.setdefault(tool)

    def replace_tools(self, tools: Sequence[dict[str, Any]]) -> None:
        """Replace the given tools. Those to leave out are chosen before the next request."""
        self.all_tools = list(tools)
        self._tools_digest = ""
        self._names = frozenset(map(tool_name, self.all_tools))
        self._offer_without(name for name in self.left_out if name in self._names)

    @property
    def has_chosen(self) -> bool:
        """Whether tools to leave out were ever chosen."""
        return bool(self._last_choice_key)

    def is_settled(self, model: str) -> bool:
        """Return whether the tools to leave out are chosen, for this model and these tools."""
        return self._last_choice_key == self._make_choice_key(model)

    def choose(self, room: ToolRoom) -> tuple[str, ...]:
        """Return the names of the tools to leave out in this room. Change nothing."""
        if not room.is_limited or FIND_TOOLS in self._names:
            return ()
        threshold = round(room.threshold)
        other_tokens = room.counter.system(room.system) + room.counter.tools(
            [*self._list_engine_tools(), FIND_TOOLS_SCHEMA]
        )
        cards = [
            # Without the tokens of the list around them.
            make_card(tool, room.counter.tools([tool, tool]) - room.counter.tools([tool]))
            for tool in self.all_tools
        ]
        if not exceeds_share(
            sum(card.tokens for card in cards),
            threshold=threshold,
            other_tokens=other_tokens,
            share=room.max_share,
        ):
            return ()
        return choose_left_out(
            cards,
            max_tokens=compute_max_tool_tokens(threshold, other_tokens, room.max_share),
            used_names=self.used_tools.keys() | self._requested_names.keys(),
            task_text=room.task_text,
            previously_left_out=self.left_out,
        )

    def leave_out(
        self, left_out: Sequence[str], model: str, *, forget_requests: bool = True
    ) -> ToolChange | None:
        """Leave these tools out; return the change, or None if there is none.

        `forget_requests`: forget the requested tools that are offered again.
        """
        previous = self.left_out
        self.left_out = tuple(left_out)
        self._last_choice_key = self._make_choice_key(model)
        if forget_requests:
            self._requested_names = {
                name: None for name in self._requested_names if name in self.left_out
            }
        if self.left_out == previous:
            return None
        self.schemas = self._list_schemas(self.left_out)
        return ToolChange(
            tuple(name for name in self.left_out if name not in previous),
            tuple(name for name in previous if name not in self.left_out),
        )

    def request(self, names: Iterable[str]) -> None:
        """Remember that these tools were requested, so that the next compaction offers them again."""
        self._requested_names |= dict.fromkeys(names)

    def search(self, query: str) -> FoundTools:
        """Search the tools left out. Change nothing."""
        query_text = " ".join(query.split())
        if not query_text or len(query_text) > MAX_QUERY_CHARS:
            raise InputError(
                f"say in up to {MAX_QUERY_CHARS:,} characters what the tool shall do, or its name"
            )
        cards = [make_card(tool) for tool in self.all_tools if tool_name(tool) in self.left_out]
        matches = [card for card in cards if card.name == query_text]
        if not matches:
            matches = find_matching(cards, query_text)[:MAX_FOUND_TOOLS]
        match_names = {card.name for card in matches}
        return FoundTools(
            query_text,
            tuple(matches),
            tuple(card.name for card in cards if card.name not in match_names),
        )

    def dump(self) -> dict[str, Any]:
        return {
            "for": self._last_choice_key,
            "out": list(self.left_out),
            "back": list(self._requested_names),
            "used": list(self.used_tools),
        }

    def load(self, state: Any, *, left_out: Sequence[str] | None = None) -> None:
        """Resume from a saved state. `left_out`: tools left out by the compaction that made this session."""
        fields = state if isinstance(state, Mapping) else {}
        self.used_tools = dict.fromkeys([*self.used_tools, *_read_names(fields, "used")])
        self._requested_names = (
            {} if left_out is not None else dict.fromkeys(_read_names(fields, "back"))
        )
        self._last_choice_key = str(fields.get("for", ""))
        names = _read_names(fields, "out") if left_out is None else left_out
        self._offer_without(name for name in names if name in self._names)

    def _offer_without(self, names: Iterable[str]) -> None:
        self.left_out = tuple(names)
        self.schemas = self._list_schemas(self.left_out)

    def _make_choice_key(self, model: str) -> str:
        if not self._tools_digest and self.all_tools:
            self._tools_digest = hashlib.blake2b(
                json_text(self.all_tools).encode("utf-8", "replace"), digest_size=8
            ).hexdigest()
        return f"{model} {self._tools_digest}" if self.all_tools else ""


def _read_names(state: Mapping[str, Any], key: str) -> list[str]:
    names = state.get(key)
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
