"""The tools offered to the model of a conversation, and a tool to find those left out.

The selection changes only at the start of a session, at a compaction, or if a person allows it at once. In between the
schemas are the same bytes, in every process that continues the session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

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
from everthread.core.turns import user_text
from everthread.core.types import System
from everthread.errors import InputError
from everthread.thread.events import ToolsChanged
from everthread.thread.policy.notices import make_fixed_size_notice

if TYPE_CHECKING:
    from everthread.conversation.conversation_state import ConversationState

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


TASK_MESSAGES = 3
"""The number of latest user messages that describe the task."""
MAX_FOUND_TOOLS = 5
"""Maximum tools that one search brings back."""


class Toolbox:
    """The tools of one conversation, and which of them are left out."""

    def __init__(self, state: ConversationState, tools: Sequence[dict[str, Any]]) -> None:
        self._state = state
        self.all_tools = list(tools)
        self._names = frozenset(map(tool_name, self.all_tools))
        self.left_out: tuple[str, ...] = ()
        self.used_tools: dict[str, None] = {}
        """Every tool that the thread has ever called."""
        self._requested_names: dict[str, None] = {}
        """Tools requested since the last compaction."""
        self._last_choice_key = ""
        """The model and tools of the last choice."""
        self._tools_digest = ""

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Return the offered tools: the given tools that are not left out, the engine's own, and `find_tools`."""
        return self._list_offered_tools(self.left_out)

    @property
    def own_schemas(self) -> list[dict[str, Any]]:
        """The offered tools that the conversation answers itself."""
        return [
            *self._state.engine.get_tool_schemas(),
            *([FIND_TOOLS_SCHEMA] if self.left_out else []),
        ]

    @property
    def next_schemas(self) -> list[dict[str, Any]]:
        """Return the tools that a compaction made now would offer."""
        return self._list_offered_tools(self.choose_left_out(self._state.system))

    def _list_offered_tools(self, left_out: Sequence[str]) -> list[dict[str, Any]]:
        engine_tools = self._state.engine.get_tool_schemas()
        if not left_out:
            return [*self.all_tools, *engine_tools]
        offered_tools = [tool for tool in self.all_tools if tool_name(tool) not in left_out]
        return [*offered_tools, *engine_tools, FIND_TOOLS_SCHEMA]

    @property
    def saved_tokens(self) -> int:
        """Tokens that leaving out tools saves in every request."""
        counter = self._state.counter
        all_tokens = counter.tools([*self.all_tools, *self._state.engine.get_tool_schemas()])
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
        self.left_out = tuple(name for name in self.left_out if name in self._names)

    @property
    def is_settled(self) -> bool:
        """Whether the tools to leave out are chosen, for this model and these tools."""
        return self._last_choice_key == self._make_selection_key()

    def choose_tools(self) -> None:
        """Choose the tools to leave out: at the start of a session, and after a change of model or tools."""
        reason = "another model or other tools" if self._last_choice_key else "the session begins"
        self.leave_out(self.choose_left_out(self._state.system), reason)

    def choose_left_out(self, system: System) -> tuple[str, ...]:
        """Return the tools that a compaction should leave out, with this system prompt."""
        state = self._state
        if not state.setup.options.enabled or any(
            tool_name(tool) == FIND_TOOLS for tool in self.all_tools
        ):
            return ()
        factor = state.learnt.calibration.factor(state.route.name)
        threshold = round(state.nominal_budget.threshold / factor)
        system_tokens = state.counter.system(system)
        other_tokens = system_tokens + state.counter.tools(
            [*state.engine.get_tool_schemas(), FIND_TOOLS_SCHEMA]
        )
        cards = self._make_cards()
        share = state.setup.options.tools_share
        if not exceeds_share(
            sum(card.tokens for card in cards),
            threshold=threshold,
            other_tokens=other_tokens,
            share=share,
        ):
            return ()
        used_names = self.used_tools.keys() | self._requested_names.keys()
        max_tokens = compute_max_tool_tokens(threshold, other_tokens, share)
        return choose_left_out(
            cards,
            max_tokens=max_tokens,
            used_names=used_names,
            task_text=self._get_task_text(),
            previously_left_out=self.left_out,
        )

    def can_free_enough(self) -> bool:
        """Return whether a new choice of tools brings system prompt and tools below the threshold."""
        state = self._state
        fixed_tokens = state.counter.request((), system=state.system, tools=self.next_schemas)
        return (
            fixed_tokens * state.learnt.calibration.factor(state.route.name)
            < state.nominal_budget.threshold
        )

    def leave_out(self, left_out: Sequence[str], reason: str, *, now: bool = False) -> None:
        """Leave these tools out, and emit an event if the choice changed."""
        previous = self.left_out
        self.left_out = tuple(left_out)
        self._last_choice_key = self._make_selection_key()
        if not now:
            self._requested_names = {
                name: None for name in self._requested_names if name in self.left_out
            }
        if self.left_out == previous:
            return
        state = self._state
        state.offer_tools(self.schemas)
        if state.last_request is not None:
            state.learnt.cache_change = "other tools are offered"
        removed_names = tuple(name for name in self.left_out if name not in previous)
        returned_names = tuple(name for name in previous if name not in self.left_out)
        state.emit(
            ToolsChanged(
                state.session.id,
                self.left_out,
                removed_names=removed_names,
                returned_names=returned_names,
                tool_count=len(self.all_tools),
                tokens_saved=self.saved_tokens,
                reason=reason,
                is_immediate=now,
            )
        )

    async def answer_call(self, arguments: Mapping[str, Any]) -> str:
        """Return the result of an unapproved `find_tools` call: matches are offered after the next compaction."""
        query = arguments.get("query")
        query_text = query if isinstance(query, str) else ""
        found_tools = await self.find(query_text, was_refused=arguments.get("now") is True)
        return found_tools.text

    async def find(self, query: str, *, now: bool = False, was_refused: bool = False) -> FoundTools:
        """Find the left-out tools that match; offer them after the next compaction, or with `now` at once.

        `was_refused`: `now` was requested and not allowed.
        """
        matches = self.search(query)
        names = [card.name for card in matches.tools]
        self._requested_names |= dict.fromkeys(names)
        if now and names:
            self.leave_out(
                [name for name in self.left_out if name not in names],
                "somebody asked for tools",
                now=True,
            )
        if names:
            await self._state.save()
        return replace(matches, is_offered_now=now and bool(names), was_refused=was_refused)

    def search(self, query: str) -> FoundTools:
        """Search without changing the offered tools."""
        query_text = " ".join(query.split())
        if not query_text or len(query_text) > MAX_QUERY_CHARS:
            raise InputError(
                f"say in up to {MAX_QUERY_CHARS:,} characters what the tool shall do, or its name"
            )
        cards = []
        if self.left_out:
            cards = [card for card in self._make_cards() if card.name in self.left_out]
        matches = [card for card in cards if card.name == query_text]
        if not matches:
            matches = find_matching(cards, query_text)[:MAX_FOUND_TOOLS]
        match_names = {card.name for card in matches}
        return FoundTools(
            query_text,
            tuple(matches),
            tuple(card.name for card in cards if card.name not in match_names),
        )

    def describe_price(self) -> str:
        """Describe the cost of offering other tools now: the next prompt is not read from the cache."""
        state = self._state
        cold_reason = state.cold_reason
        if cold_reason:
            return f"no cached prompt is lost by it: {cold_reason}"
        miss_cost = state.policy.find_miss_cost(state.size, state.learnt, state.prices)
        explanation = (
            f"the {state.tokens:,} tokens of the prompt have to be read anew "
            "instead of from the provider's cache"
        )
        if miss_cost is None:
            return f"{explanation}; what that costs is not known"
        return f"about ${miss_cost:.4f}: {explanation}"

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
        self.left_out = tuple(name for name in names if name in self._names)
        self._state.offer_tools(self.schemas)

    def _make_selection_key(self) -> str:
        if not self._tools_digest and self.all_tools:
            self._tools_digest = hashlib.blake2b(
                json_text(self.all_tools).encode("utf-8", "replace"), digest_size=8
            ).hexdigest()
        return f"{self._state.route.name} {self._tools_digest}" if self.all_tools else ""

    def _make_cards(self) -> list[ToolCard]:
        """Return the cards of all tools, with their tokens for the current model."""
        count_tokens = self._state.counter.tools
        # Without the tokens of the list around them.
        return [
            make_card(tool, count_tokens([tool, tool]) - count_tokens([tool]))
            for tool in self.all_tools
        ]

    def _get_task_text(self) -> str:
        user_texts = (text for body in reversed(self._state.bodies) if (text := user_text(body)))
        return "\n".join(islice(user_texts, TASK_MESSAGES))


class FixedPromptWatch:
    """Keep system prompt and tools together below the threshold; report once if that is impossible."""

    def __init__(self, state: ConversationState) -> None:
        self._state = state
        self._is_reported = False

    def reset(self) -> None:
        """Allow another report, after a change of model or a manual compaction."""
        self._is_reported = False

    async def choose_tools(self) -> None:
        """Leave out tools before a session's first request if they take too much of the window."""
        state = self._state
        if state.toolbox.is_settled:
            return
        fixed_tokens = state.fixed_tokens
        state.toolbox.choose_tools()
        if fixed_tokens >= state.nominal_budget.threshold > state.fixed_tokens:
            self._report(
                fixed_tokens,
                f"{len(state.toolbox.left_out)} tools that it does not use are left out.",
            )
        if state.toolbox.left_out:
            await state.save()

    def check(self) -> None:
        """Report system prompt and tools that reach the threshold alone."""
        state = self._state
        fixed_tokens = state.size.fixed_tokens
        if fixed_tokens >= state.nominal_budget.threshold and not state.toolbox.can_free_enough():
            self._report(fixed_tokens, "Offer fewer tools, or use a model with a larger window.")

    def _report(self, fixed_tokens: int, advice: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._state.notify(make_fixed_size_notice(fixed_tokens, self._state.window, advice))


def _read_names(state: Mapping[str, Any], key: str) -> list[str]:
    names = state.get(key)
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
