"""The tools of the MCP server: search, expand, pin, status, state, and those of the lossless engine."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from mcp.types import CallToolResult, TextContent

from everthread.agent.tools import arguments as argument
from everthread.compaction.lossless.graph_tools import GREP, TOOL_NAMES, GraphTools
from everthread.core.search.search_results import (
    SearchMode,
    SearchScope,
    format_page,
    format_passage,
    format_utc_time,
)
from everthread.core.secrets.redaction import redact
from everthread.core.text import excerpt
from everthread.errors import (
    AmbiguousIdError,
    EverthreadError,
    InputError,
    UnknownIdError,
)
from everthread.gateway.identify import derive_named_thread_id
from everthread.gateway.mcp_schemas import MAX_ANSWER_CHARS, MAX_SEARCH_LIMIT, SCHEMAS
from everthread.store.records import DEFAULT_TENANT
from everthread.store.store import Store
from everthread.store.usage_records import sum_calls
from everthread.thread.lookup.lookup_cache import LookupCache
from everthread.thread.lookup.pins import MAX_PIN_CHARS, add_pin
from everthread.thread.lookup.store_lookup import StoreLookup
from everthread.thread.lookup.work_state import describe_state, load_thread_state

DEFAULT_SEARCH_LIMIT = 8
DEFAULT_PASSAGE_CHARS = 8_000
MAX_LISTED_THREADS = 10
_FINAL_NOTE = "That is final: asking again gives the same answer."
_LOG = logging.getLogger("everthread.mcp")


@dataclass(frozen=True, slots=True)
class LookupReach:
    """The threads that a client may look up."""

    tenant: str | None
    """The owner of the threads; None for threads of every tenant."""
    thread: str | None = None
    """The default thread of a call: any of its ids, the beginning of one, or the client's own name for it."""
    is_confined: bool = False
    """Whether the client may look up only `thread`."""


async def find_thread(store: Store, reach: LookupReach, thread_name: str) -> str | None:
    """Return the thread of a call, or None if the call names none. Raise `UnknownIdError` if it is out of reach."""
    if reach.thread is None:
        return await _resolve_thread(store, reach.tenant, thread_name) if thread_name else None
    default_thread = await _resolve_thread(store, reach.tenant, reach.thread)
    if not thread_name:
        return default_thread
    named_thread = await _resolve_thread(store, reach.tenant, thread_name)
    if reach.is_confined and named_thread != default_thread:
        raise UnknownIdError(f"there is no thread {thread_name[:80]!r} here; leave the thread out")
    return named_thread


async def _resolve_thread(store: Store, tenant: str | None, name: str) -> str:
    for candidate in (name, derive_named_thread_id(tenant or DEFAULT_TENANT, name)):
        try:
            session = await store.resolve(candidate, tenant=tenant)
        except UnknownIdError:
            continue
        except AmbiguousIdError as error:
            raise InputError(
                f"several threads begin with {name[:80]!r}; give more of the id"
            ) from error
        return session.thread
    raise UnknownIdError(
        f"there is no thread {name[:80]!r}; `status` without a thread lists the latest ones"
    )


async def describe_thread(store: Store, thread: str) -> str:
    """Describe one thread."""
    tip = await store.load_session(await store.get_compression_tip(thread))
    history = await store.load_history(thread)
    context = await store.list_messages(tip.id)
    records = [
        record for record in await store.list_compactions(thread) if record.reverted_at is None
    ]
    total = sum_calls("all", await store.usage.list_usage(thread))
    lines = [f"Thread {thread}{f', {tip.title}' if tip.title else ''}"]
    lines.append(
        f"- {len(history):,} messages{_format_tokens(sum(item.tokens or 0 for item in history))}"
    )
    if records:
        lines.append(
            f"- in view now: {len(context):,} messages{_format_tokens(sum(item.tokens or 0 for item in context))}"
        )
    lines.append(f"- {len(records):,} compactions")
    for record in records[-MAX_LISTED_THREADS:]:
        compaction = record.record
        lines.append(
            f"  - compaction:{record.id}, {format_utc_time(record.created)}: "
            f"{len(compaction.covered):,} messages covered, "
            f"{compaction.tokens_before:,} → {compaction.tokens_after:,} tokens"
        )
    lines.append(
        f"- {total.calls:,} calls: {total.prompt:,} tokens in, {total.output:,} out, cost {total.cost_text}"
    )
    lines += (
        f"- pinned as {note.id}: {excerpt(note.text, 100)}"
        for note in await store.state.list_pins(thread)
    )
    return redact("\n".join(lines))


async def list_latest_threads(store: Store, tenant: str | None) -> str:
    """List the latest threads of a tenant, or of all tenants."""
    rows = await store.list_threads(tenant=tenant, limit=MAX_LISTED_THREADS)
    if not rows:
        return "Nothing was said yet: there is no thread."
    lines = ["The latest threads:"]
    for row in rows:
        title = f", {excerpt(row.tip.title, 100)}" if row.tip.title else ""
        lines.append(
            f"- {row.first.id}{title}: {row.message_count:,} messages{_format_tokens(row.token_count)}, "
            f"{row.compaction_count:,} compactions, last used {format_utc_time(row.last_active)}"
        )
    return redact("\n".join(lines))


def _format_tokens(count: int) -> str:
    return f", {count:,} tokens" if count else ""


class LookupTools:
    """The tools of the MCP server, called by name. The answer to an error says whether repeating the call helps."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._cache = LookupCache()
        self._tools: dict[str, Callable[[LookupReach, Mapping[str, Any]], Awaitable[str]]] = {
            "search": self._search,
            "expand": self._expand,
            "pin": self._pin,
            "status": self._status,
            "state": self._state,
            **{name: partial(self._call_lossless_tool, name) for name in TOOL_NAMES},
        }

    async def call(
        self, reach: LookupReach, name: str, arguments: Mapping[str, Any]
    ) -> CallToolResult:
        tool = self._tools.get(name)
        if tool is None:
            return _make_tool_result(
                f"There is no tool {name[:80]!r}; there are {', '.join(self._tools)}.",
                failed=True,
            )
        try:
            argument.check_names(arguments, SCHEMAS[name])
            return _make_tool_result(await tool(reach, arguments))
        except UnknownIdError as error:
            text = redact(f"{_format_sentence(error)} {_FINAL_NOTE}")
        except InputError as error:
            text = redact(_format_sentence(error))
        except EverthreadError as error:
            _LOG.warning("%s failed: %s", name, redact(str(error)))
            text = "This could not be looked up now: the store does not answer as it should."
        return _make_tool_result(text, failed=True)

    async def _search(self, reach: LookupReach, arguments: Mapping[str, Any]) -> str:
        query = argument.read_text(arguments, "query", max_chars=1_000).strip()
        mode = cast(SearchMode, _read_choice(arguments, "mode", ("text", "regex"), "text"))
        thread = await self._find_thread(reach, arguments)
        default: Literal["thread", "all"] = "all" if thread is None else "thread"
        scope = cast(SearchScope, _read_choice(arguments, "scope", ("thread", "all"), default))
        limit = argument.read_int(
            arguments,
            "limit",
            default=DEFAULT_SEARCH_LIMIT,
            minimum=1,
            maximum=MAX_SEARCH_LIMIT,
        )
        offset = argument.read_int(arguments, "offset", default=0)
        role, tool = (
            argument.read_text(arguments, key, default="", allow_empty=True, max_chars=200) or None
            for key in ("role", "tool")
        )
        if not query:
            raise InputError("the argument query is empty")
        hits = await self._make_lookup(reach, thread).search(
            query,
            mode=mode,
            scope=scope,
            role=role,
            tool=tool,
            limit=limit,
            offset=offset,
        )
        searched_place = "all threads"
        unsearched_places = ""
        if scope == "thread":
            searched_place = "this thread"
            unsearched_places = "other threads" + ("" if reach.is_confined else " (scope `all`)")
        elif reach.tenant is not None:
            searched_place = "all threads of this tenant"
        return format_page(
            hits,
            query,
            tool="search",
            searched_place=searched_place,
            offset=offset,
            show_threads=scope == "all",
            unsearched_texts=unsearched_places,
        )

    async def _expand(self, reach: LookupReach, arguments: Mapping[str, Any]) -> str:
        passage_id = argument.read_text(arguments, "id", max_chars=200)
        offset = argument.read_int(arguments, "offset", default=0)
        limit = argument.read_int(
            arguments,
            "limit",
            default=DEFAULT_PASSAGE_CHARS,
            minimum=1,
            maximum=MAX_ANSWER_CHARS,
        )
        thread = await self._find_thread(reach, arguments)
        passage = await self._make_lookup(reach, thread).expand(
            passage_id, offset=offset, limit=limit
        )
        return format_passage(passage, tool="expand")

    async def _pin(self, reach: LookupReach, arguments: Mapping[str, Any]) -> str:
        text, message_id, pin_id = (
            argument.read_text(arguments, key, default="", allow_empty=True, max_chars=100_000)
            for key in ("text", "id", "remove")
        )
        if sum(map(bool, (text, message_id, pin_id))) != 1:
            raise InputError("give one of text, id and remove")
        thread = await self._find_thread(reach, arguments)
        if thread is None:
            raise InputError("name the thread to pin it to; `status` lists the latest ones")
        if pin_id:
            await self.store.state.delete_pin(thread, pin_id.strip())
            return f"{pin_id.strip()} is no longer pinned; the next compaction leaves it out."
        if message_id:
            passage = await self._make_lookup(reach, thread).read(
                message_id, limit=MAX_PIN_CHARS + 1
            )
            text = passage.text
        pin = await add_pin(self.store, thread, text)
        return f"Pinned as {pin.id}: every later compaction of thread {thread} carries it word for word."

    async def _status(self, reach: LookupReach, arguments: Mapping[str, Any]) -> str:
        thread = await self._find_thread(reach, arguments)
        if thread is None:
            return await list_latest_threads(self.store, reach.tenant)
        return await describe_thread(self.store, thread)

    async def _state(self, reach: LookupReach, arguments: Mapping[str, Any]) -> str:
        thread = await self._find_thread(reach, arguments)
        if thread is None:
            raise InputError("name the thread: `status` lists the latest ones")
        figures = describe_state(await load_thread_state(self.store, thread))
        text = json.dumps(figures, ensure_ascii=False, indent=1)
        if len(text) <= MAX_ANSWER_CHARS:
            return text
        return f"{text[:MAX_ANSWER_CHARS]}\n[cut: {len(text):,} characters in all]"

    async def _call_lossless_tool(
        self, name: str, reach: LookupReach, arguments: Mapping[str, Any]
    ) -> str:
        """Call a tool of the lossless engine. Without a thread, search all threads."""
        thread = await self._find_thread(reach, arguments)
        tool_arguments = {key: value for key, value in arguments.items() if key != "thread"}
        if name == GREP and thread is None and tool_arguments.get("scope") is None:
            tool_arguments["scope"] = "all"
        lookup = self._make_lookup(reach, thread)
        return await GraphTools(lookup, lookup).call(name, tool_arguments)

    def _make_lookup(self, reach: LookupReach, thread: str | None) -> StoreLookup:
        scope: SearchScope = "thread" if reach.is_confined else "all"
        return StoreLookup(
            self.store,
            reach.tenant,
            thread,
            reach=scope,
            include_related=not reach.is_confined,
            cache=self._cache,
        )

    async def _find_thread(self, reach: LookupReach, arguments: Mapping[str, Any]) -> str | None:
        thread_name = argument.read_text(
            arguments, "thread", default="", allow_empty=True, max_chars=400
        ).strip()
        return await find_thread(self.store, reach, thread_name)


def _make_tool_result(text: str, *, failed: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=failed)


def _read_choice(
    arguments: Mapping[str, Any],
    name: str,
    allowed_values: tuple[str, ...],
    default: str,
) -> str:
    value = argument.read_text(arguments, name, default=default)
    if value not in allowed_values:
        raise InputError(
            f"the argument {name} is one of {', '.join(allowed_values)}, not {value[:80]!r}"
        )
    return value


def _format_sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?', '!')) else '.'}"
