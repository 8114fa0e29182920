"""Tools for the model: search all stored messages, describe a node, read the originals.

An answer is bounded. It begins with a line that names its content, which is kept when the answer is pruned. An answer
says if an id is unknown, a search has no results or a text has ended, so that the model does not try again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from everthread.compaction.engine import Graph, Services
from everthread.core.search.search_results import (
    Lookup,
    describe_passage,
    format_page,
    format_passage,
    format_utc_time,
)
from everthread.core.tool_schemas import build_schema
from everthread.core.types import Node
from everthread.errors import InputError, UnknownIdError

GREP = "lcm_grep"
DESCRIBE = "lcm_describe"
EXPAND = "lcm_expand"
TOOL_NAMES = (GREP, DESCRIBE, EXPAND)

_ID_PROPERTY = {
    "type": "string",
    "description": "n0123456789ab (a node), message:123 or output:0123456789abcdef, from the summary or an answer.",
}


SCHEMAS = (
    build_schema(
        GREP,
        "Search everything that was said in this conversation, also what the summary stands for, and every stored tool "
        "output. Gives exact excerpts with their ids, turns and times.",
        {
            "pattern": {
                "type": "string",
                "description": "Words that must occur, or a regular expression.",
            },
            "mode": {
                "type": "string",
                "enum": ["text", "regex"],
                "description": "Default text.",
            },
            "scope": {
                "type": "string",
                "enum": ["thread", "all"],
                "description": "This conversation, or all of the user's. Default thread.",
            },
            "role": {"type": "string", "enum": ["user", "assistant", "tool", "system"]},
            "tool": {"type": "string", "description": "Only results of this tool."},
            "limit": {
                "type": "integer",
                "description": "Places on a page, 1 to 20. Default 6.",
            },
            "offset": {"type": "integer", "description": "Places to skip. Default 0."},
        },
        ["pattern"],
    ),
    build_schema(
        DESCRIBE,
        "What a node of the summary covers (turns, times, sources, sizes, who wrote it), or how large a message or "
        "stored output is.",
        {"id": _ID_PROPERTY},
        ["id"],
    ),
    build_schema(
        EXPAND,
        "The originals word for word: all messages a node covers, or one message or stored output, in parts.",
        {
            "id": _ID_PROPERTY,
            "offset": {
                "type": "integer",
                "description": "Characters to skip. Default 0.",
            },
            "limit": {
                "type": "integer",
                "description": "Characters to read, at most about 5,000.",
            },
        },
        ["id"],
    ),
)
"""The definitions of the tools. They never change, because tools are part of the cached prefix."""

MAX_ANSWER_CHARS = 6_000
"""Maximum characters of an answer."""
MAX_FRAME_CHARS = 400
"""Characters of an answer for its first line and the hint to continue."""
MAX_EXCERPT_CHARS = 700
"""Characters of one excerpt, with its heading."""
NODE_ID_PATTERN = re.compile(r"n[0-9a-f]{12}")
NOTHING_MORE = "There is nothing more to find under it; do not try it again."
MAX_ARGUMENT_CHARS = 1_000
MAX_OFFSET = 10**9
_DEFAULTS: dict[str, Any] = {
    "mode": "text",
    "scope": "thread",
    "role": None,
    "tool": None,
    "limit": None,
    "offset": 0,
}
_LIMITS = {"lcm_grep": (6, 20), "lcm_expand": (6_000, 50_000)}
"""The default and the maximum of `limit`. A larger value is accepted, because an answer is bounded in any case."""
_PARAMETERS = {schema["function"]["name"]: schema["function"]["parameters"] for schema in SCHEMAS}
MAX_SHOWN_SOURCES = 24
"""Maximum ids listed in the description of a node."""


class GraphTools:
    """The tools `lcm_grep`, `lcm_describe` and `lcm_expand` over the stored messages."""

    def __init__(self, lookup: Lookup, graph: Graph, max_chars: int = MAX_ANSWER_CHARS) -> None:
        """Set up the tools. An answer has at most `max_chars` characters."""
        self._lookup = lookup
        self._graph = graph
        self._max_answer_chars = max(min(MAX_ANSWER_CHARS, max_chars), 2 * MAX_EXCERPT_CHARS)

    @classmethod
    def from_services(cls, services: Services) -> GraphTools | None:
        """Return the tools of an engine, or None if its messages are not stored."""
        if services.lookup is None or services.archive is None:
            return None
        return cls(services.lookup, services.archive, services.budget.result_chars)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the answer of a call. Raise `InputError` if its arguments are not valid."""
        if name not in TOOL_NAMES:
            raise InputError(f"there is no tool {name[:60]!r} here")
        checked = check_arguments(name, arguments)
        try:
            if name == GREP:
                return await self._grep(checked)
            return await (self._expand(checked) if name == EXPAND else self._describe(checked))
        except UnknownIdError as error:
            return f"{name} {checked.get('id', '')[:80]}: {error}. {NOTHING_MORE}"

    async def _grep(self, arguments: Mapping[str, Any]) -> str:
        """Return a page of search results."""
        everywhere = arguments["scope"] == "all"
        page = await self._lookup.search(
            arguments["pattern"],
            mode=arguments["mode"],
            scope=arguments["scope"],
            role=arguments["role"],
            tool=arguments["tool"],
            limit=min(
                arguments["limit"],
                max(1, (self._max_answer_chars - MAX_FRAME_CHARS) // MAX_EXCERPT_CHARS),
            ),
            offset=arguments["offset"],
        )
        searched_place = "all conversations" if everywhere else "this conversation"
        searched_place += (
            " with this role and tool" if arguments["role"] or arguments["tool"] else ""
        )
        return format_page(
            page,
            arguments["pattern"],
            tool=GREP,
            searched_place=searched_place,
            offset=arguments["offset"],
            show_threads=everywhere,
            unsearched_texts="" if everywhere else "other conversations",
        )

    async def _describe(self, arguments: Mapping[str, Any]) -> str:
        """Return a description of a node, a message or a stored output."""
        wanted_id = arguments["id"]
        if NODE_ID_PATTERN.fullmatch(wanted_id):
            return self._cut_answer(
                f"{DESCRIBE} {wanted_id}: {describe_node(await _find_node(self._graph, wanted_id))}"
            )
        return describe_passage(
            await self._lookup.read(wanted_id, limit=200), tool=DESCRIBE, reader=EXPAND
        )

    async def _expand(self, arguments: Mapping[str, Any]) -> str:
        """Return a part of the originals under an id."""
        limit = min(arguments["limit"], self._max_answer_chars - MAX_FRAME_CHARS)
        return format_passage(
            await self._graph.expand(arguments["id"], offset=arguments["offset"], limit=limit),
            tool=EXPAND,
        )

    def _cut_answer(self, text: str) -> str:
        """Cut an answer that is too long, and name the tool that reads the originals."""
        room = self._max_answer_chars - MAX_FRAME_CHARS
        if len(text) <= room:
            return text
        return f"{text[:room]}\n[{len(text) - room:,} more characters of its words; the originals: {EXPAND}]"


async def _find_node(graph: Graph, node_id: str) -> Node:
    """Return the node with this id, or raise `UnknownIdError`."""
    node = next((node for node in await graph.nodes() if node.id == node_id), None)
    if node is None:
        raise UnknownIdError(f"this conversation has no node {node_id}")
    return node


def check_arguments(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked arguments of a call, with defaults. A null counts as absent."""
    properties = _PARAMETERS[tool]["properties"]
    unknown_names = ", ".join(sorted(str(name)[:40] for name in set(arguments) - set(properties)))
    if unknown_names:
        raise InputError(f"{tool} has no argument {unknown_names}; it has {', '.join(properties)}")
    values = {name: default for name, default in _DEFAULTS.items() if name in properties}
    values |= {
        name: _check_value(tool, name, value, properties[name])
        for name, value in arguments.items()
        if value is not None
    }
    for name in _PARAMETERS[tool]["required"]:
        if not values.get(name, "").strip():
            raise InputError(f"{tool} needs `{name}`: {properties[name]['description']}")
    if "limit" in properties:
        default, maximum = _LIMITS[tool]
        values["limit"] = min(values["limit"] or default, maximum)
    return values


def _check_value(tool: str, name: str, value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a valid argument of a call, or raise `InputError`."""
    if schema["type"] == "integer":
        return _check_number(tool, name, value)
    if not isinstance(value, str):
        raise InputError(f"{tool}: `{name}` must be a text, not {type(value).__name__}")
    if len(value) > MAX_ARGUMENT_CHARS:
        raise InputError(
            f"{tool}: `{name}` has {len(value):,} characters; {MAX_ARGUMENT_CHARS:,} is the most"
        )
    choices = schema.get("enum")
    if choices and value not in choices:
        raise InputError(
            f"{tool}: {name}={value[:40]!r} is not allowed; use {' or '.join(choices)}"
        )
    return value if name == "pattern" else value.strip()


def _check_number(tool: str, name: str, value: Any) -> int:
    """Return a valid whole number of a call, or raise `InputError`."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    minimum = 1 if name == "limit" else 0
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= MAX_OFFSET:
        raise InputError(
            f"{tool}: {name}={str(value)[:40]!r} is not allowed; use a whole number from {minimum} on"
        )
    return value


def describe_node(node: Node) -> str:
    """Describe a node: its range, its sources, its author and its text."""
    kind = "messages" if node.level == 0 else "nodes"
    sources_text = ", ".join(node.sources[:MAX_SHOWN_SOURCES]) or "not known"
    omitted_text = ""
    if len(node.sources) > MAX_SHOWN_SOURCES:
        omitted_text = f" and {len(node.sources) - MAX_SHOWN_SOURCES:,} more"
    times = (
        f", {format_utc_time(node.since)} to {format_utc_time(node.until)}" if node.until else ""
    )
    makeshift = " (makeshift: to be written again when a model is there)" if node.degraded else ""
    return (
        f"turns {node.first_turn}-{node.last_turn}{times}\n"
        f"level {node.level}, over {len(node.sources):,} {kind}: {sources_text}{omitted_text}\n"
        f"{node.covered_tokens:,} tokens of messages in {node.tokens:,}, written by {node.author}{makeshift}\n\n"
        f"{node.body}"
    )
