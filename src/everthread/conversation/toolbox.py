"""The tools a model is offered: those given, or fewer where they press on the window.

A tool that is in use stays. The others are weighed by how well they match what the user wrote last: the words of a
tool's name count twice, a word that few tools have counts more. The best that fit are offered; the rest can be found
again by the same words.

What is left out changes where a session begins, at a compaction, and where a person allows it at once: in between the
schemas are the same bytes, here and in every process that goes on with the session.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from everthread.conversation.events import ToolsChanged
from everthread.core.messages import clip, json_text
from everthread.core.search.terms import forms, stop_words, terms
from everthread.core.transcript import user_text
from everthread.core.types import System
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.conversation.state import ConversationState


# --- which tools are left out -----------------------------------------------------------------------------------------


CARD_CHARS = 160
"""Characters of a tool's description where it is only named."""
TOOLS_SHARE = 0.25
"""Of the threshold that the schemas of all tools may take."""
LEAST_LEFT = 0.25
"""Of the threshold that system prompt and tools leave to the conversation, where tools can be left out for it."""
_IN_NAME = 2.0


@dataclass(frozen=True, slots=True)
class ToolCard:
    """The parts of a tool that the choice needs."""

    name: str
    about: str
    """Its description on one line."""
    named: frozenset[str]
    words: frozenset[str]
    """These, and those of its description and its parameters."""
    tokens: int = 0


def name_of(tool: Mapping[str, Any]) -> str:
    """The name of a tool in OpenAI's or Anthropic's form; empty where it has none."""
    name = _holder(tool).get("name")
    return name if isinstance(name, str) else ""


def card_of(tool: Mapping[str, Any], tokens: int = 0) -> ToolCard:
    holder = _holder(tool)
    name, raw_description = name_of(tool), holder.get("description")
    description = raw_description if isinstance(raw_description, str) else ""
    schema = holder.get("parameters") or holder.get("input_schema")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    parameters = [name for name in properties if isinstance(name, str)] if isinstance(properties, Mapping) else []
    about = clip(" ".join(description.split()), CARD_CHARS)
    named = frozenset(terms(name))
    return ToolCard(name, about, named, named | frozenset(terms(" ".join((description, *parameters)))), tokens)


def presses(tools: int, *, threshold: int, others: int, share: float = TOOLS_SHARE) -> bool:
    """Whether tools take more than their share, or leave nothing of the threshold beside `others`."""
    return tools > share * threshold or tools + others >= threshold


def room_for(threshold: int, system: int, share: float = TOOLS_SHARE) -> int:
    """Tokens for tools that press: their share of the threshold, less where the system prompt needs most of it."""
    return max(0, min(round(share * threshold), round((1 - LEAST_LEFT) * threshold) - system))


def left_out(
    cards: Sequence[ToolCard], *, room: int, used: Collection[str], wanted: str, before: Collection[str] = ()
) -> tuple[str, ...]:
    """The names of the tools to leave out, in the order they were given.

    `used` are never among them, nor a tool without a name; `before` are those left out until now: as long as the others
    fit, nothing changes. `wanted`: what the user wrote last.
    """
    if sum(card.tokens for card in cards) <= room:
        return ()
    fixed = {card.name for card in cards if card.name in used or not card.name}
    same = [card.name for card in cards if card.name in before and card.name not in fixed]
    if same and sum(card.tokens for card in cards if card.name not in same) <= room:
        return tuple(same)
    points = scores(cards, wanted)
    free = [index for index, card in enumerate(cards) if card.name not in fixed]
    spent = sum(card.tokens for card in cards if card.name in fixed)
    gone: set[str] = set()
    for index in sorted(free, key=lambda index: (-points[index], cards[index].name in before, index)):
        if spent + cards[index].tokens <= room:
            spent += cards[index].tokens
        else:
            gone.add(cards[index].name)
    return tuple(card.name for card in cards if card.name in gone)


def find_matching(cards: Sequence[ToolCard], query: str) -> list[ToolCard]:
    """The tools that have words of the query, the best first."""
    points = scores(cards, query)
    order = sorted(range(len(cards)), key=lambda index: (-points[index], index))
    return [cards[index] for index in order if points[index] > 0]


def scores(cards: Sequence[ToolCard], text: str) -> list[float]:
    """How well each tool matches a text: the words they share, in whatever form, weighed by how rare they are."""
    words = dict.fromkeys(terms(text))
    empty = stop_words(list(words))
    common = Counter(word for card in cards for word in card.words)
    points = [0.0] * len(cards)
    for word in words:
        if word in empty or len(word) < 2:
            continue
        alike = {form for form in forms(word) if form in common}
        count = max((common[form] for form in alike), default=0)
        weight = math.log(1 + len(cards) / count) if count else 0.0
        for index, card in enumerate(cards):
            if alike & card.words:
                points[index] += weight * (_IN_NAME if alike & card.named else 1.0)
    return points


def _holder(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, Mapping) else tool


# --- the tools of a conversation --------------------------------------------------------------------------------------


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
                "query": {"type": "string", "description": "What the tool shall do, in a few words, or its name."},
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
"""The most names listed when no tool matches."""
QUERY_CHARS = 1_000


@dataclass(frozen=True, slots=True)
class FoundTools:
    """What a search among the tools left out found."""

    query: str
    tools: tuple[ToolCard, ...]
    others: tuple[str, ...]
    """The names of the rest that is left out."""
    now: bool = False
    """They are offered again from the next request on."""
    refused: bool = False
    """That was asked for and not allowed."""

    @property
    def text(self) -> str:
        """As the model reads it."""
        if not self.tools:
            names = ", ".join(self.others[:MAX_LISTED_NAMES])
            more = f" and {len(self.others) - MAX_LISTED_NAMES:,} more" if len(self.others) > MAX_LISTED_NAMES else ""
            rest = f" These are left out: {names}{more}." if names else " No tool is left out: all are shown to you."
            return f"No tool that is left out matches {self.query!r}.{rest}"
        lines = [f"- {card.name}: {card.about}" if card.about else f"- {card.name}" for card in self.tools]
        when = f"They are shown to you again from {'now' if self.now else 'the next compaction'} on."
        if self.refused and not self.now:
            when = f"The user did not allow to show them at once. {when}"
        return "\n".join([f"Tools that match {self.query!r}:", *lines, when])


LATEST = 3
"""How many of the latest user messages describe the task."""
NAMED = 5
"""The most tools one search brings back."""


class Toolbox:
    """The tools of one conversation, and which of them are left out."""

    def __init__(self, live: ConversationState, given: Sequence[dict[str, Any]]) -> None:
        self._live = live
        self.given = list(given)
        self._names = frozenset(map(name_of, self.given))
        self.out: tuple[str, ...] = ()
        self.used: dict[str, None] = {}
        """Every tool the thread has called, however long ago."""
        self._back: dict[str, None] = {}
        """Asked for since the last compaction."""
        self._settled = ""
        """For which model and tools the choice was made."""
        self._mark = ""

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """What the model is offered: of the tools given those not left out, the engine's own, and how to find more."""
        return self._offer(self.out)

    @property
    def own(self) -> list[dict[str, Any]]:
        """Those of them that the conversation answers itself."""
        return [*self._live.engine.get_tool_schemas(), *([FIND_SCHEMA] if self.out else [])]

    @property
    def to_come(self) -> list[dict[str, Any]]:
        """What a compaction made now would offer."""
        return self._offer(self.choice(self._live.system))

    def _offer(self, out: Sequence[str]) -> list[dict[str, Any]]:
        offered = [tool for tool in self.given if name_of(tool) not in out] if out else self.given
        return [*offered, *self._live.engine.get_tool_schemas(), *([FIND_SCHEMA] if out else [])]

    @property
    def saved(self) -> int:
        """Tokens that every request is smaller by."""
        counter = self._live.counter
        all_tokens = counter.tools([*self.given, *self._live.engine.get_tool_schemas()])
        return max(0, all_tokens - counter.tools(self.schemas)) if self.out else 0

    def note_call(self, tool: str) -> None:
        """Record a call of a tool: it counts as in use from now on."""
        if tool in self._names:
            self.used.setdefault(tool)

    def take(self, given: Sequence[dict[str, Any]]) -> None:
        """Other tools: what of them is left out is settled before the next request."""
        self.given, self._mark = list(given), ""
        self._names = frozenset(map(name_of, self.given))
        self.out = tuple(name for name in self.out if name in self._names)

    # What is left out

    @property
    def settled(self) -> bool:
        """Whether it is chosen what to leave out, for this model and these tools."""
        return self._settled == self._key()

    def settle(self) -> None:
        """Choose what to leave out: at the start of a session, and after a change of model or tools."""
        why = "another model or other tools" if self._settled else "the session begins"
        self.use(self.choice(self._live.system), why)

    def choice(self, system: System) -> tuple[str, ...]:
        """What a compaction leaves out from now on, with this system prompt."""
        live = self._live
        if not live.setup.options.enabled or any(name_of(tool) == FIND for tool in self.given):
            return ()
        factor = live.context.calibration.factor(live.route.name)
        threshold, spoken = round(live.nominal_budget.threshold / factor), live.counter.system(system)
        others = spoken + live.counter.tools([*live.engine.get_tool_schemas(), FIND_SCHEMA])
        cards, share = self._all(), live.setup.options.tools_share
        if not presses(sum(card.tokens for card in cards), threshold=threshold, others=others, share=share):
            return ()
        used, room = self.used.keys() | self._back.keys(), room_for(threshold, others, share)
        return left_out(cards, room=room, used=used, wanted=self._task(), before=self.out)

    def relieves(self) -> bool:
        """Whether system prompt and tools, which alone reach the threshold, would not after a choice made now."""
        live = self._live
        bare = live.counter.request((), system=live.system, tools=self.to_come)
        return bare * live.context.calibration.factor(live.route.name) < live.nominal_budget.threshold

    def use(self, out: Sequence[str], why: str, *, now: bool = False) -> None:
        """Leave these tools out, and emit an event if the choice changed."""
        before, self.out = self.out, tuple(out)
        self._settled = self._key()
        if not now:
            self._back = {name: None for name in self._back if name in self.out}
        if self.out == before:
            return
        live = self._live
        live.offer(self.schemas)
        if live.last_request is not None:
            live.context.changed = "other tools are offered"
        gone = tuple(name for name in self.out if name not in before)
        back = tuple(name for name in before if name not in self.out)
        live.emit(ToolsChanged(live.session.id, self.out, gone, back, len(self.given), self.saved, why, now))

    # Finding one again

    async def answer(self, arguments: Mapping[str, Any]) -> str:
        """The result of an unapproved `find_tools` call: matches are offered after the next compaction."""
        query = arguments.get("query")
        return (await self.find(query if isinstance(query, str) else "", refused=arguments.get("now") is True)).text

    async def find(self, query: str, *, now: bool = False, refused: bool = False) -> FoundTools:
        """Tools left out that match; they come back with the next compaction, with `now` at once.

        `refused`: that was asked for and not allowed.
        """
        matches = self.look(query)
        names = [card.name for card in matches.tools]
        self._back |= dict.fromkeys(names)
        if now and names:
            self.use([name for name in self.out if name not in names], "somebody asked for tools", now=True)
        if names:
            await self._live.save()
        return replace(matches, now=now and bool(names), refused=refused)

    def look(self, query: str) -> FoundTools:
        """The same search without changing what is offered."""
        wanted = " ".join(query.split())
        if not wanted or len(wanted) > QUERY_CHARS:
            raise InputError(f"say in up to {QUERY_CHARS:,} characters what the tool shall do, or its name")
        cards = [card for card in self._all() if card.name in self.out] if self.out else []
        named = [card for card in cards if card.name == wanted] or find_matching(cards, wanted)[:NAMED]
        chosen = {card.name for card in named}
        return FoundTools(wanted, tuple(named), tuple(card.name for card in cards if card.name not in chosen))

    def price(self) -> str:
        """What offering other tools now costs, in words: the next prompt is not read from the cache."""
        live = self._live
        cold = live.cold
        if cold:
            return f"no cached prompt is lost by it: {cold}"
        lost = live.policy.price_of_miss(live.size, live.context, live.prices)
        what = f"the {live.tokens:,} tokens of the prompt have to be read anew instead of from the provider's cache"
        return f"{what}; what that costs is not known" if lost is None else f"about ${lost:.4f}: {what}"

    # For another process

    def dump(self) -> dict[str, Any]:
        return {"for": self._settled, "out": list(self.out), "back": list(self._back), "used": list(self.used)}

    def load(self, state: Any, *, out: Sequence[str] | None = None) -> None:
        """Go on from what was saved. `out`: what the compaction that made this session left out."""
        fields = state if isinstance(state, Mapping) else {}
        self.used = dict.fromkeys([*self.used, *_names(fields, "used")])
        self._back = {} if out is not None else dict.fromkeys(_names(fields, "back"))
        self._settled = str(fields.get("for", ""))
        names = _names(fields, "out") if out is None else out
        self.out = tuple(name for name in names if name in self._names)
        self._live.offer(self.schemas)

    # Inside

    def _key(self) -> str:
        if not self._mark and self.given:
            self._mark = hashlib.blake2b(json_text(self.given).encode("utf-8", "replace"), digest_size=8).hexdigest()
        return f"{self._live.route.name} {self._mark}" if self.given else ""

    def _all(self) -> list[ToolCard]:
        """Counted anew: another model counts otherwise; its counter knows what it has counted."""
        count = self._live.counter.tools
        return [card_of(tool, count([tool, tool]) - count([tool])) for tool in self.given]  # without what frames them

    def _task(self) -> str:
        spoken = (text for body in reversed(self._live.bodies) if (text := user_text(body)))
        return "\n".join(islice(spoken, LATEST))


def _names(state: Mapping[str, Any], key: str) -> list[str]:
    names = state.get(key)
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
