"""What the tools answer. Nothing here knows of a transport."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from everthread.agent.tools import arguments as given
from everthread.compaction.lossless.schemas import GREP, NAMES
from everthread.compaction.lossless.tools import Tools
from everthread.conversation.lookup import LookupCache, StoreLookup, ThreadGraph, expand
from everthread.conversation.pins import PIN_CHARS, add_pin, remove_pin
from everthread.core.found import found_text, passage_text
from everthread.core.lookup import SearchMode, SearchScope
from everthread.core.redaction import redact
from everthread.errors import EverthreadError, InputError, UnknownIdError
from everthread.gateway.mcp.reach import Reach, lookup_in, thread_meant
from everthread.gateway.mcp.schemas import CHARS, MOST_CHARS, MOST_PLACES, PLACES, SCHEMAS
from everthread.gateway.mcp.standing import latest_text, status_text
from everthread.store.store import Store

_LOG = logging.getLogger("everthread.mcp")

_FINAL = "That is final: asking again gives the same answer."


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    failed: bool = False


class LookupTools:
    """Answers a call by its name. What is wrong with a call is told in words, finally where nothing can change it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._known = LookupCache()
        self._tools: dict[str, Callable[[Reach, Mapping[str, Any]], Awaitable[str]]] = {
            "search": self._search,
            "expand": self._expand,
            "pin": self._pin,
            "status": self._status,
            **{name: partial(self._lossless, name) for name in NAMES},
        }

    async def call(self, reach: Reach, name: str, arguments: Mapping[str, Any]) -> Answer:
        tool = self._tools.get(name)
        if tool is None:
            return Answer(f"There is no tool {name[:80]!r}; there are {', '.join(self._tools)}.", failed=True)
        try:
            given.check_names(arguments, SCHEMAS[name])
            return Answer(await tool(reach, arguments))
        except UnknownIdError as error:
            return Answer(redact(f"{_sentence(error)} {_FINAL}"), failed=True)
        except InputError as error:
            return Answer(redact(_sentence(error)), failed=True)
        except EverthreadError as error:
            _LOG.warning("%s failed: %s", name, redact(str(error)))
            return Answer("This could not be looked up now: the store does not answer as it should.", failed=True)

    async def _search(self, reach: Reach, arguments: Mapping[str, Any]) -> str:
        query = given.text(arguments, "query", longest=1_000).strip()
        mode = cast(SearchMode, _one_of(arguments, "mode", ("text", "regex"), "text"))
        thread = await self._thread(reach, arguments)
        default: Literal["thread", "all"] = "all" if thread is None else "thread"
        scope = cast(SearchScope, _one_of(arguments, "scope", ("thread", "all"), default))
        limit = given.number(arguments, "limit", default=PLACES, least=1, most=MOST_PLACES)
        offset = given.number(arguments, "offset", default=0)
        role, tool = (
            given.text(arguments, key, default="", empty=True, longest=200) or None for key in ("role", "tool")
        )
        if not query:
            raise InputError("the argument query is empty")
        found = await self._lookup(reach, thread).search(
            query, mode=mode, scope=scope, role=role, tool=tool, limit=limit, offset=offset
        )
        where = "this thread" if scope == "thread" else "all threads"
        return found_text(found, query, tool="search", where=where, offset=offset, threads=scope == "all")

    async def _expand(self, reach: Reach, arguments: Mapping[str, Any]) -> str:
        wanted = given.text(arguments, "id", longest=200)
        offset = given.number(arguments, "offset", default=0)
        limit = given.number(arguments, "limit", default=CHARS, least=1, most=MOST_CHARS)
        thread = await self._thread(reach, arguments)
        passage = await expand(self._lookup(reach, thread), wanted, offset=offset, limit=limit)
        return passage_text(passage, tool="expand")

    async def _pin(self, reach: Reach, arguments: Mapping[str, Any]) -> str:
        text, wanted, gone = (
            given.text(arguments, key, default="", empty=True, longest=100_000) for key in ("text", "id", "remove")
        )
        if sum(map(bool, (text, wanted, gone))) != 1:
            raise InputError("give one of text, id and remove")
        thread = await self._thread(reach, arguments)
        if thread is None:
            raise InputError("name the thread to pin it to; `status` lists the latest ones")
        if gone:
            await remove_pin(self.store, thread, gone.strip())
            return f"{gone.strip()} is no longer pinned; the next compaction leaves it out."
        if wanted:
            passage = await self._lookup(reach, thread).read(wanted, limit=PIN_CHARS + 1)
            text = passage.text
        kept = await add_pin(self.store, thread, text)
        return f"Pinned as {kept.id}: every later compaction of thread {thread} carries it word for word."

    async def _status(self, reach: Reach, arguments: Mapping[str, Any]) -> str:
        thread = await self._thread(reach, arguments)
        if thread is None:
            return await latest_text(self.store, reach.tenant)
        return await status_text(self.store, thread)

    async def _lossless(self, name: str, reach: Reach, arguments: Mapping[str, Any]) -> str:
        """A tool of the lossless engine, with the engine's own answers. Without a thread it searches them all."""
        thread = await self._thread(reach, arguments)
        rest = {key: value for key, value in arguments.items() if key != "thread"}
        if name == GREP and thread is None and rest.get("scope") is None:
            rest["scope"] = "all"
        lookup = self._lookup(reach, thread)
        return await Tools(lookup, ThreadGraph(lookup)).call(name, rest)

    def _lookup(self, reach: Reach, thread: str | None) -> StoreLookup:
        return lookup_in(self.store, reach, thread, self._known)

    async def _thread(self, reach: Reach, arguments: Mapping[str, Any]) -> str | None:
        named = given.text(arguments, "thread", default="", empty=True, longest=400).strip()
        return await thread_meant(self.store, reach, named)


def _one_of(arguments: Mapping[str, Any], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = given.text(arguments, name, default=default)
    if value not in allowed:
        raise InputError(f"the argument {name} is one of {', '.join(allowed)}, not {value[:80]!r}")
    return value


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?', '!')) else '.'}"
