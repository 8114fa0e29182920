"""Read a request as the blocks that a prompt cache sees, with their tokens and marks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any, Literal

from everthread.core.caching.cache_lifetimes import (
    AUTOMATIC_CACHE_SECONDS,
    CACHE_OPTIONS_FIELD,
    compute_automatic_lifetime,
)
from everthread.core.caching.openai_cache_breakpoints import BREAKPOINT
from everthread.core.fingerprints import byte_form, byte_form_text
from everthread.core.json_values import as_list
from everthread.core.messages import (
    REASONING_BLOCK_KINDS,
    RESULT_BLOCK_KINDS,
    Message,
    Part,
    iterate_images,
    kind_of,
    parts_of,
)
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, ModelRequest
from everthread.wire.native_values import native_record

Ttl = Literal["5m", "1h"]


_PROMPT_FIELDS = ("tool_choice", "thinking", "output_config", "effort")
"""Fields that precede the messages in Claude's prompt, so that changing one makes another prompt."""


@dataclass(frozen=True, slots=True)
class Block:
    """A tool, a part of the system prompt or a part of a message, with which a cached prefix may end."""

    text: str
    tokens: int
    kind: str = "text"
    """Its type. Claude's cache counts neighbouring calls as one position, and so neighbouring results."""
    mark: Ttl | None = None
    """The lifetime that its cache mark asks for."""
    path: str = ""
    """Its path in the request: `messages.3.content.0`."""
    marks: int = 0
    """Number of marks on it and on blocks inside it."""
    is_blank: bool = False
    """Whether it is text without a word."""
    is_breakpoint: bool = False
    """Whether OpenAI's cache may end here, because the request says so."""
    can_end_prefix: bool = False
    """Whether OpenAI's cache may end here by itself: after a user message or a result."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt in blocks, with the cache options of its request."""

    blocks: Sequence[Block]
    tokens: int
    """Tokens of the whole request, including those that open the reply."""
    has_explicit_cache: bool = False
    """Whether the request sets all breakpoints itself."""
    lifetime: float = AUTOMATIC_CACHE_SECONDS
    """How long OpenAI keeps its prefixes, in seconds."""


class PromptReader:
    """Reads requests for one model. Counts are cached by bytes, so that a longer history costs only its new part."""

    def __init__(self, model: str) -> None:
        self.counter = TokenCounter(model)
        self._is_claude = "claude" in model.lower()
        self._token_counts: dict[bytes, tuple[int, ...]] = {}

    def read(self, api: Api, request: ModelRequest, body: Mapping[str, Any]) -> Prompt:
        blocks = [*self._read_tools(api, request, body), *self._read_system(request)]
        blocks += self._read_messages(api, request)
        token_count = sum(block.tokens for block in blocks) + self.counter.request(())
        options = body.get(CACHE_OPTIONS_FIELD)
        is_explicit = isinstance(options, Mapping) and options.get("mode") == "explicit"
        return Prompt(
            _add_automatic_mark(blocks, body),
            token_count,
            has_explicit_cache=is_explicit,
            lifetime=compute_automatic_lifetime(body),
        )

    def _read_tools(
        self, api: Api, request: ModelRequest, body: Mapping[str, Any]
    ) -> Iterator[Block]:
        wire_tools = body.get("tools") if api == "anthropic" else None
        tools = (
            wire_tools
            if isinstance(wire_tools, list) and len(wire_tools) == len(request.tools)
            else request.tools
        )
        token_counts = self._count_blocks(
            f"tools:{byte_form_text(byte_form(tools))}",
            lambda: _count_prefixes(self.counter.tools, request.tools),
        )
        for index, (tool, tokens) in enumerate(zip(tools, token_counts, strict=True)):
            yield _make_block(tool, tokens, f"tools.{index}", prefix="tool:", kind="tool")

    def _read_system(self, request: ModelRequest) -> Iterator[Block]:
        parts = parts_of({"content": request.system})
        token_counts = self._count_blocks(
            f"system:{byte_form_text(byte_form(parts))}",
            lambda: _count_prefixes(self.counter.system, parts),
        )
        for index, (part, tokens) in enumerate(zip(parts, token_counts, strict=True)):
            yield _make_block(part, tokens, f"system.{index}", prefix="system:")

    def _read_messages(self, api: Api, request: ModelRequest) -> Iterator[Block]:
        prefix = _format_settings(request) if self._is_claude else ""
        wire_index = -1
        content_index = 0
        for message in request.messages:
            record = native_record(message, api)
            is_joined = bool(record and record.get("joined"))
            wire_index, content_index = (
                (wire_index, content_index) if is_joined else (wire_index + 1, 0)
            )
            parts = self._list_cache_units(api, message)
            content = f"{message.get('role')}:{byte_form_text(byte_form(parts))}"
            token_counts = self._count_blocks(
                content, functools.partial(self._count_message, message, parts)
            )
            for part, tokens in zip(parts, token_counts, strict=True):
                block_prefix = f"{prefix}{message.get('role')}:" if content_index == 0 else ""
                block = _make_block(
                    part,
                    tokens,
                    f"messages.{wire_index}.content.{content_index}",
                    prefix=block_prefix,
                )
                can_end_prefix = message.get("role") in ("user", "tool")
                yield replace(block, can_end_prefix=can_end_prefix)
                content_index += 1
                prefix = ""

    def _list_cache_units(self, api: Api, message: Message) -> list[Part]:
        """Return the parts of a message with which a cached prefix may end: Claude's blocks, else the whole message."""
        record = native_record(message, api)
        value: Any = record["value"] if record else None
        if api == "anthropic" and isinstance(value, Mapping):
            return parts_of(value) or [{"type": "text", "text": ""}]
        if api == "openai_chat" and self._is_claude and message.get("role") != "tool":
            calls = [
                {"type": "tool_use", "call": call} for call in as_list(message.get("tool_calls"))
            ]
            return [*parts_of(message), *calls] or [{**message}]
        kind = "tool_result" if message.get("role") == "tool" else "message"
        return [
            {
                "type": kind,
                "message": message if value is None else value,
                **_copy_mark(api, message),
            }
        ]

    def _count_message(self, message: Message, parts: list[Part]) -> list[int]:
        sums = [
            self.counter.message({"role": "assistant", "content": parts[:end]})
            for end in range(1, len(parts))
        ]
        total = self.counter.message(message)
        return [*(min(tokens, total) for tokens in sums), total]

    def _count_blocks(
        self, content: str, count_prefixes: Callable[[], list[int]]
    ) -> tuple[int, ...]:
        """Return the tokens of each block. `count_prefixes` returns the tokens of all text up to each block's end."""
        key = digest_text(content)
        if key not in self._token_counts:
            sums = accumulate([0, *count_prefixes()], max)
            self._token_counts[key] = tuple(
                sum_after - sum_before for sum_before, sum_after in pairwise(sums)
            )
        return self._token_counts[key]


def _count_prefixes(count: Callable[[list[Any]], int], items: list[Any]) -> list[int]:
    return [count(items[:end]) for end in range(1, len(items) + 1)]


def digest_text(text: str, previous_digest: bytes = b"") -> bytes:
    return blake2b(previous_digest + text.encode("utf-8", "surrogatepass"), digest_size=20).digest()


def _make_block(part: Part, tokens: int, path: str, *, prefix: str = "", kind: str = "") -> Block:
    marks = _list_marks(part)
    mark: Ttl | None = None
    if marks:
        mark = "1h" if marks[-1].get("ttl") == "1h" else "5m"
    text = f"{prefix}{byte_form_text(byte_form({'content': [part]}))}"
    is_blank = kind_of(part) == "text" and not str(part.get("text") or "").strip()
    return Block(
        text,
        tokens,
        kind=kind or kind_of(part),
        mark=mark,
        path=path,
        marks=len(marks),
        is_blank=is_blank,
        is_breakpoint=f'"{BREAKPOINT}":{{' in byte_form_text(part),
    )


def _list_marks(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the marks on a block and on blocks within a result."""
    content = part.get("content") if kind_of(part) in RESULT_BLOCK_KINDS else None
    blocks = content if isinstance(content, list) else []
    inner_marks = [
        mark for block in blocks if isinstance(block, dict) for mark in _list_marks(block)
    ]
    mark = part.get("cache_control")
    return [*inner_marks, mark] if isinstance(mark, Mapping) else inner_marks


def _copy_mark(api: Api, message: Message) -> Part:
    """Return the cache mark of a message that counts as one block. In chat completions only its parts carry marks."""
    if api == "openai_chat":
        marks = [mark for part in parts_of(message) for mark in _list_marks(part)]
        return {"cache_control": marks[-1]} if marks else {}
    return {"cache_control": message["cache_control"]} if "cache_control" in message else {}


def _format_settings(request: ModelRequest) -> str:
    settings = {
        name: request.params[name]
        for name in _PROMPT_FIELDS
        if request.params.get(name) is not None
    }
    settings["images"] = any(
        True for message in request.messages for _ in iterate_images(message.get("content"))
    )
    return byte_form_text(settings)


def _add_automatic_mark(blocks: list[Block], body: Mapping[str, Any]) -> list[Block]:
    """Move a mark on the request itself to the last block that can carry one."""
    mark = body.get("cache_control")
    if not isinstance(mark, Mapping):
        return blocks
    for index in range(len(blocks) - 1, -1, -1):
        block = blocks[index]
        if block.kind not in REASONING_BLOCK_KINDS and not block.is_blank:
            if block.mark is None:
                blocks[index] = replace(
                    block,
                    mark="1h" if mark.get("ttl") == "1h" else "5m",
                    marks=block.marks + 1,
                )
            break
    return blocks
