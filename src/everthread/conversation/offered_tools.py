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

from everthread.core.messages import json_text
from everthread.core.transcript import user_text
from everthread.core.types import System
from everthread.errors import InputError
from everthread.thread.events import ToolsChanged

if TYPE_CHECKING:
    from everthread.conversation.state import ConversationState
from everthread.conversation.tool_selection import (
    ToolCard,
    card_of,
    find_matching,
    left_out,
    name_of,
    room_for,
    take_too_much_room,
)

FIND = "find_tools"
FIND_SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": FIND,
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
QUERY_CHARS = 1_000


@dataclass(frozen=True, slots=True)
class FoundTools:
    """The result of a search among the tools left out."""

    query: str
    tools: tuple[ToolCard, ...]
    others: tuple[str, ...]
    """The names of the other tools left out."""
    now: bool = False
    """Whether they are offered again from the next request on."""
    refused: bool = False
    """`now` was requested and not allowed."""

    @property
    def text(self) -> str:
        """As the model reads it."""
        if not self.tools:
            names = ", ".join(self.others[:MAX_LISTED_NAMES])
            more = (
                f" and {len(self.others) - MAX_LISTED_NAMES:,} more"
                if len(self.others) > MAX_LISTED_NAMES
                else ""
            )
            rest = (
                f" These are left out: {names}{more}."
                if names
                else " No tool is left out: all are shown to you."
            )
            return f"No tool that is left out matches {self.query!r}.{rest}"
        lines = [
            f"- {card.name}: {card.about}" if card.about else f"- {card.name}"
            for card in self.tools
        ]
        when = f"They are shown to you again from {'now' if self.now else 'the next compaction'} on."
        if self.refused and not self.now:
            when = f"The user did not allow to show them at once. {when}"
        return "\n".join([f"Tools that match {self.query!r}:", *lines, when])


TASK_MESSAGES = 3
"""The number of latest user messages that describe the task."""
MAX_FOUND_TOOLS = 5
"""Maximum tools that one search brings back."""


class Toolbox:
    """The tools of one conversation, and which of them are left out."""

    def __init__(
        self, live: ConversationState, given: Sequence[dict[str, Any]]
    ) -> None:
        self._live = live
        self.given = list(given)
        self._names = frozenset(map(name_of, self.given))
        self.out: tuple[str, ...] = ()
        self.used: dict[str, None] = {}
        """Every tool the thread has called, however long ago."""
        self._back: dict[str, None] = {}
        """Tools requested since the last compaction."""
        self._settled = ""
        """The model and tools of the last choice."""
        self._mark = ""

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Return the offered tools: those given and not left out, the engine's own, and `find_tools`."""
        return self._offer(self.out)

    @property
    def own(self) -> list[dict[str, Any]]:
        """The offered tools that the conversation answers itself."""
        return [
            *self._live.engine.get_tool_schemas(),
            *([FIND_SCHEMA] if self.out else []),
        ]

    @property
    def to_come(self) -> list[dict[str, Any]]:
        """Return the tools that a compaction made now would offer."""
        return self._offer(self.choice(self._live.system))

    def _offer(self, out: Sequence[str]) -> list[dict[str, Any]]:
        offered = (
            [tool for tool in self.given if name_of(tool) not in out]
            if out
            else self.given
        )
        return [
            *offered,
            *self._live.engine.get_tool_schemas(),
            *([FIND_SCHEMA] if out else []),
        ]

    @property
    def saved(self) -> int:
        """Tokens that every request is smaller by."""
        counter = self._live.counter
        all_tokens = counter.tools([*self.given, *self._live.engine.get_tool_schemas()])
        return max(0, all_tokens - counter.tools(self.schemas)) if self.out else 0

    def note_call(self, tool: str) -> None:
        """Record a call of a tool, which then counts as in use."""
        if tool in self._names:
            self.used.setdefault(tool)

    def take(self, given: Sequence[dict[str, Any]]) -> None:
        """Replace the given tools. Those to leave out are chosen before the next request."""
        self.given = list(given)
        self._mark = ""
        self._names = frozenset(map(name_of, self.given))
        self.out = tuple(name for name in self.out if name in self._names)

    # Tools left out

    @property
    def settled(self) -> bool:
        """Whether the tools to leave out are chosen, for this model and these tools."""
        return self._settled == self._key()

    def settle(self) -> None:
        """Choose the tools to leave out: at the start of a session, and after a change of model or tools."""
        why = "another model or other tools" if self._settled else "the session begins"
        self.use(self.choice(self._live.system), why)

    def choice(self, system: System) -> tuple[str, ...]:
        """Return the tools that a compaction should leave out, with this system prompt."""
        live = self._live
        if not live.setup.options.enabled or any(
            name_of(tool) == FIND for tool in self.given
        ):
            return ()
        factor = live.state.calibration.factor(live.route.name)
        threshold = round(live.nominal_budget.threshold / factor)
        spoken = live.counter.system(system)
        others = spoken + live.counter.tools(
            [*live.engine.get_tool_schemas(), FIND_SCHEMA]
        )
        cards = self._all()
        share = live.setup.options.tools_share
        if not take_too_much_room(
            sum(card.tokens for card in cards),
            threshold=threshold,
            others=others,
            share=share,
        ):
            return ()
        used = self.used.keys() | self._back.keys()
        room = room_for(threshold, others, share)
        return left_out(
            cards, room=room, used=used, wanted=self._task(), before=self.out
        )

    def frees_enough_room(self) -> bool:
        """Return whether a new choice of tools brings system prompt and tools below the threshold."""
        live = self._live
        bare = live.counter.request((), system=live.system, tools=self.to_come)
        return (
            bare * live.state.calibration.factor(live.route.name)
            < live.nominal_budget.threshold
        )

    def use(self, out: Sequence[str], why: str, *, now: bool = False) -> None:
        """Leave these tools out, and emit an event if the choice changed."""
        before = self.out
        self.out = tuple(out)
        self._settled = self._key()
        if not now:
            self._back = {name: None for name in self._back if name in self.out}
        if self.out == before:
            return
        live = self._live
        live.offer(self.schemas)
        if live.last_request is not None:
            live.state.changed = "other tools are offered"
        gone = tuple(name for name in self.out if name not in before)
        back = tuple(name for name in before if name not in self.out)
        live.emit(
            ToolsChanged(
                live.session.id,
                self.out,
                gone=gone,
                back=back,
                given=len(self.given),
                tokens_saved=self.saved,
                why=why,
                now=now,
            )
        )

    # Search

    async def answer(self, arguments: Mapping[str, Any]) -> str:
        """Return the result of an unapproved `find_tools` call: matches are offered after the next compaction."""
        query = arguments.get("query")
        return (
            await self.find(
                query if isinstance(query, str) else "",
                refused=arguments.get("now") is True,
            )
        ).text

    async def find(
        self, query: str, *, now: bool = False, refused: bool = False
    ) -> FoundTools:
        """Find the left-out tools that match; offer them after the next compaction, or with `now` at once.

        `refused`: `now` was requested and not allowed.
        """
        matches = self.search(query)
        names = [card.name for card in matches.tools]
        self._back |= dict.fromkeys(names)
        if now and names:
            self.use(
                [name for name in self.out if name not in names],
                "somebody asked for tools",
                now=True,
            )
        if names:
            await self._live.save()
        return replace(matches, now=now and bool(names), refused=refused)

    def search(self, query: str) -> FoundTools:
        """Search without changing the offered tools."""
        wanted = " ".join(query.split())
        if not wanted or len(wanted) > QUERY_CHARS:
            raise InputError(
                f"say in up to {QUERY_CHARS:,} characters what the tool shall do, or its name"
            )
        cards = (
            [card for card in self._all() if card.name in self.out] if self.out else []
        )
        named = [card for card in cards if card.name == wanted] or find_matching(
            cards, wanted
        )[:MAX_FOUND_TOOLS]
        chosen = {card.name for card in named}
        return FoundTools(
            wanted,
            tuple(named),
            tuple(card.name for card in cards if card.name not in chosen),
        )

    def price(self) -> str:
        """Describe the cost of offering other tools now: the next prompt is not read from the cache."""
        live = self._live
        cold = live.cold
        if cold:
            return f"no cached prompt is lost by it: {cold}"
        lost = live.policy.price_of_miss(live.size, live.state, live.prices)
        what = f"the {live.tokens:,} tokens of the prompt have to be read anew instead of from the provider's cache"
        return (
            f"{what}; what that costs is not known"
            if lost is None
            else f"about ${lost:.4f}: {what}"
        )

    # Saved state

    def dump(self) -> dict[str, Any]:
        return {
            "for": self._settled,
            "out": list(self.out),
            "back": list(self._back),
            "used": list(self.used),
        }

    def load(self, state: Any, *, out: Sequence[str] | None = None) -> None:
        """Resume from a saved state. `out`: tools left out by the compaction that made this session."""
        fields = state if isinstance(state, Mapping) else {}
        self.used = dict.fromkeys([*self.used, *_names(fields, "used")])
        self._back = {} if out is not None else dict.fromkeys(_names(fields, "back"))
        self._settled = str(fields.get("for", ""))
        names = _names(fields, "out") if out is None else out
        self.out = tuple(name for name in names if name in self._names)
        self._live.offer(self.schemas)

    # Helpers

    def _key(self) -> str:
        if not self._mark and self.given:
            self._mark = hashlib.blake2b(
                json_text(self.given).encode("utf-8", "replace"), digest_size=8
            ).hexdigest()
        return f"{self._live.route.name} {self._mark}" if self.given else ""

    def _all(self) -> list[ToolCard]:
        """Return the cards of all tools, counted for the current model; its counter caches the counts."""
        count = self._live.counter.tools
        # Without the tokens of the list around them.
        return [
            card_of(tool, count([tool, tool]) - count([tool])) for tool in self.given
        ]

    def _task(self) -> str:
        spoken = (
            text for body in reversed(self._live.bodies) if (text := user_text(body))
        )
        return "\n".join(islice(spoken, TASK_MESSAGES))


def _names(state: Mapping[str, Any], key: str) -> list[str]:
    names = state.get(key)
    return (
        [name for name in names if isinstance(name, str)]
        if isinstance(names, list)
        else []
    )
