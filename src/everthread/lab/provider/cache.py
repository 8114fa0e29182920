"""Simulate the prompt caches of Claude and OpenAI as documented: reads, writes, expiry."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate, pairwise, takewhile
from typing import Any, Literal

from everthread.core.caching.cache_lifetimes import (
    AUTOMATIC_CACHE_SECONDS,
    CACHE_OPTIONS_FIELD,
    bills_cache_writes,
    find_automatic_lifetime,
)
from everthread.core.caching.openai_cache_breakpoints import BREAKPOINT
from everthread.core.fingerprints import byte_form, byte_form_text
from everthread.core.messages import (
    CALL_BLOCKS,
    REASONING_BLOCKS,
    RESULT_BLOCKS,
    Message,
    Part,
    iterate_images,
    kind_of,
    parts_of,
)
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, Request
from everthread.wire.common import native_record
from everthread.wire.openai_chat import list_tool_calls

Ttl = Literal["5m", "1h"]

_PROMPT_FIELDS = ("tool_choice", "thinking", "output_config", "effort")
"""Fields that precede the messages in Claude's prompt: a change in them is another prompt."""


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the prompt at whose end a cached prefix may end: a tool, a part of the system prompt or a message."""

    text: str
    tokens: int
    kind: str = "text"
    """Its type. Claude's cache counts neighbouring calls as one position, and so neighbouring results."""
    mark: Ttl | None = None
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
    """Tokens of the whole request, with those that open the reply."""
    has_explicit_cache: bool = False
    """Whether the request sets all breakpoints itself."""
    lifetime: float = AUTOMATIC_CACHE_SECONDS
    """How long OpenAI keeps its prefixes, in seconds."""


class PromptReader:
    """Read requests for one model. Counts are cached by bytes, so that a longer history costs only its new part."""

    def __init__(self, model: str) -> None:
        self.counter = TokenCounter(model)
        self._is_claude = "claude" in model.lower()
        self._token_counts: dict[bytes, tuple[int, ...]] = {}

    def read(self, api: Api, request: Request, body: Mapping[str, Any]) -> Prompt:
        blocks = [*self._read_tools(api, request, body), *self._read_system(request)]
        blocks += self._read_messages(api, request)
        total = sum(block.tokens for block in blocks) + self.counter.request(())
        options = body.get(CACHE_OPTIONS_FIELD)
        is_explicit = isinstance(options, Mapping) and options.get("mode") == "explicit"
        return Prompt(
            _add_automatic_mark(blocks, body),
            total,
            has_explicit_cache=is_explicit,
            lifetime=find_automatic_lifetime(body),
        )

    def _read_tools(
        self, api: Api, request: Request, body: Mapping[str, Any]
    ) -> Iterator[Block]:
        wire_tools = body.get("tools") if api == "anthropic" else None
        tools = (
            wire_tools
            if isinstance(wire_tools, list) and len(wire_tools) == len(request.tools)
            else request.tools
        )
        sizes = self._count_blocks(
            f"tools:{byte_form_text(byte_form(tools))}",
            lambda: _count_prefixes(self.counter.tools, request.tools),
        )
        for index, (tool, tokens) in enumerate(zip(tools, sizes, strict=True)):
            yield _make_block(
                tool, tokens, f"tools.{index}", prefix="tool:", kind="tool"
            )

    def _read_system(self, request: Request) -> Iterator[Block]:
        parts = parts_of({"content": request.system})
        sizes = self._count_blocks(
            f"system:{byte_form_text(byte_form(parts))}",
            lambda: _count_prefixes(self.counter.system, parts),
        )
        for index, (part, tokens) in enumerate(zip(parts, sizes, strict=True)):
            yield _make_block(part, tokens, f"system.{index}", prefix="system:")

    def _read_messages(self, api: Api, request: Request) -> Iterator[Block]:
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
            sizes = self._count_blocks(
                content, functools.partial(self._count_message, message, parts)
            )
            for part, tokens in zip(parts, sizes, strict=True):
                block_prefix = (
                    f"{prefix}{message.get('role')}:" if content_index == 0 else ""
                )
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
        """Return the parts of a message at whose ends the cache may end: Claude's blocks, else the whole message."""
        record = native_record(message, api)
        value: Any = record["value"] if record else None
        if api == "anthropic" and isinstance(value, Mapping):
            return parts_of(value) or [{"type": "text", "text": ""}]
        if api == "openai_chat" and self._is_claude and message.get("role") != "tool":
            calls = [
                {"type": "tool_use", "call": call} for call in list_tool_calls(message)
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
        self, content: str, count: Callable[[], list[int]]
    ) -> tuple[int, ...]:
        """Return the tokens of each block; `count` returns those of everything up to each block."""
        key = _digest(content)
        if key not in self._token_counts:
            sums = accumulate([0, *count()], max)
            self._token_counts[key] = tuple(
                sum_after - sum_before for sum_before, sum_after in pairwise(sums)
            )
        return self._token_counts[key]


def _count_prefixes(count: Callable[[list[Any]], int], items: list[Any]) -> list[int]:
    return [count(items[:end]) for end in range(1, len(items) + 1)]


def digest_prefixes(blocks: Sequence[Block], start_digest: bytes = b"") -> list[bytes]:
    """Return, for each block, the digest of all text up to its end. `start_digest`: of the text before the first."""
    digests = []
    digest = start_digest
    for block in blocks:
        digest = _digest(block.text, digest)
        digests.append(digest)
    return digests


class PrefixDigests:
    """Compute `digest_prefixes` of one request after another, reusing the digests of the blocks that did not change."""

    def __init__(self) -> None:
        self._blocks: Sequence[Block] = ()
        self._digests: list[bytes] = []

    def __call__(self, blocks: Sequence[Block]) -> list[bytes]:
        same_count = sum(
            1
            for _ in takewhile(
                lambda pair: pair[0] is pair[1], zip(self._blocks, blocks, strict=False)
            )
        )
        shared_digests = self._digests[:same_count]
        self._blocks = blocks
        self._digests = [
            *shared_digests,
            *digest_prefixes(
                blocks[same_count:], shared_digests[-1] if shared_digests else b""
            ),
        ]
        return self._digests


def _digest(text: str, previous_digest: bytes = b"") -> bytes:
    return blake2b(
        previous_digest + text.encode("utf-8", "surrogatepass"), digest_size=20
    ).digest()


def _make_block(
    part: Part, tokens: int, path: str, *, prefix: str = "", kind: str = ""
) -> Block:
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
    inner = part.get("content") if kind_of(part) in RESULT_BLOCKS else None
    blocks = inner if isinstance(inner, list) else []
    inner_marks = [
        mark
        for block in blocks
        if isinstance(block, dict)
        for mark in _list_marks(block)
    ]
    mark = part.get("cache_control")
    return [*inner_marks, mark] if isinstance(mark, Mapping) else inner_marks


def _copy_mark(api: Api, message: Message) -> Part:
    """Return the mark of a message that is one block. Chat completions take it on a part of the content only."""
    if api == "openai_chat":
        marks = [mark for part in parts_of(message) for mark in _list_marks(part)]
        return {"cache_control": marks[-1]} if marks else {}
    return (
        {"cache_control": message["cache_control"]}
        if "cache_control" in message
        else {}
    )


def _format_settings(request: Request) -> str:
    settings = {
        name: request.params[name]
        for name in _PROMPT_FIELDS
        if request.params.get(name) is not None
    }
    settings["images"] = any(
        True
        for message in request.messages
        for _ in iterate_images(message.get("content"))
    )
    return byte_form_text(settings)


def _add_automatic_mark(blocks: list[Block], body: Mapping[str, Any]) -> list[Block]:
    """Move a mark on the request itself to the last block that can carry one."""
    mark = body.get("cache_control")
    if not isinstance(mark, Mapping):
        return blocks
    for index in range(len(blocks) - 1, -1, -1):
        block = blocks[index]
        if block.kind not in REASONING_BLOCKS and not block.is_blank:
            if block.mark is None:
                blocks[index] = replace(
                    block,
                    mark="1h" if mark.get("ttl") == "1h" else "5m",
                    marks=block.marks + 1,
                )
            break
    return blocks


MAX_LOOKBACK_POSITIONS = 20
"""Positions checked for each mark, its own included."""
MAX_MARKS = 4
MAX_PREFIX_ENDS = 80
"""Positions at which OpenAI looks for a cached prefix."""
CLAUDE_TTL_SECONDS: dict[Ttl, float] = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How a prompt's tokens used the cache; the parts add up to the prompt."""

    prompt: int
    read: int = 0
    write_5m: int = 0
    write_1h: int = 0

    @property
    def write(self) -> int:
        return self.write_5m + self.write_1h

    @property
    def input(self) -> int:
        return self.prompt - self.read - self.write


class ClaudeCache:
    """Claude's cache for all models; `clock` returns the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[tuple[str, bytes], tuple[Ttl, float]] = {}
        """The lifetime of each entry, and when it expires."""
        self._digest_prefixes = PrefixDigests()

    def use(
        self, model: str, blocks: Sequence[Block], *, prompt_tokens: int, minimum: int
    ) -> CacheUse:
        """Read the longest cached prefix and write the marked ones."""
        now = self._clock()
        keys = [(model, digest) for digest in self._digest_prefixes(blocks)]
        token_sums = list(accumulate(block.tokens for block in blocks))
        marked_indexes = [index for index, block in enumerate(blocks) if block.mark]
        # The longest prefix with a live entry among the positions that the marks make Claude check.
        candidates = (
            index
            for mark_index in reversed(marked_indexes)
            for index in _list_lookback_positions(blocks, mark_index)
        )
        hit_index = next(
            (index for index in candidates if self._is_alive(keys[index], now)), -1
        )
        for index in {
            hit_index,
            *(index for index in marked_indexes if index < hit_index),
        } - {-1}:
            if self._is_alive(keys[index], now):
                ttl, _ = self._entries[keys[index]]
                self._entries[keys[index]] = ttl, now + CLAUDE_TTL_SECONDS[ttl]
        read_tokens = 0 if hit_index < 0 else token_sums[hit_index]
        written_indexes = [
            index
            for index in marked_indexes
            if index > hit_index and token_sums[index] >= minimum
        ]
        for index in written_indexes:
            ttl = blocks[index].mark or "5m"
            self._entries[keys[index]] = ttl, now + CLAUDE_TTL_SECONDS[ttl]
        hour_sum = max(
            (
                token_sums[index]
                for index in written_indexes
                if blocks[index].mark == "1h"
            ),
            default=read_tokens,
        )
        last_sum = max(
            (token_sums[index] for index in written_indexes), default=read_tokens
        )
        return CacheUse(
            prompt_tokens,
            read_tokens,
            write_5m=last_sum - hour_sum,
            write_1h=hour_sum - read_tokens,
        )

    def _is_alive(self, key: tuple[str, bytes], now: float) -> bool:
        return key in self._entries and now < self._entries[key][1]


def _list_lookback_positions(blocks: Sequence[Block], mark_index: int) -> list[int]:
    """Return the indexes of the twenty positions that Claude checks backwards from a mark.

    Neighbouring calls count as one position, and so do neighbouring results.
    """
    count = 0
    positions = []
    for index in range(mark_index, -1, -1):
        is_same_run = index < mark_index and any(
            blocks[index].kind in kinds and blocks[index + 1].kind in kinds
            for kinds in _RUN_KINDS
        )
        count += not is_same_run
        if count > MAX_LOOKBACK_POSITIONS:
            break
        positions.append(index)
    return positions


_RUN_KINDS = (CALL_BLOCKS, RESULT_BLOCKS)


MIN_CACHED_TOKENS = 1024
CACHE_STEP_TOKENS = 128
PREFIX_SECONDS = 600.0
_PIECE_CHARS = 256
"""Characters compared at once inside a block: two prompts may start to differ in the middle of a message."""


def find_prefix_seconds(model: str) -> float:
    """Return how long an unused prefix is kept without a mark, in seconds."""
    return AUTOMATIC_CACHE_SECONDS if bills_cache_writes(model) else PREFIX_SECONDS


class PrefixCache:
    """The automatic cache of every model; `clock` returns the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_uses: dict[tuple[str, bytes], float] = {}
        self._digest_prefixes = PrefixDigests()

    def use(self, model: str, blocks: Sequence[Block], *, prompt_tokens: int) -> int:
        """Return how many tokens of the prompt are read from the cache; remember the prompt."""
        now = self._clock()
        pieces = [piece for block in blocks for piece in _split_block(block)]
        shared_tokens = 0
        for piece, digest in zip(pieces, self._digest_prefixes(pieces), strict=True):
            key = (model, digest)
            # A digest covers the whole prefix, so none is known after the first unknown one.
            if now < self._last_uses.get(key, float("-inf")) + PREFIX_SECONDS:
                shared_tokens += piece.tokens
            if prompt_tokens >= MIN_CACHED_TOKENS:
                self._last_uses[key] = now
        cached_tokens = shared_tokens // CACHE_STEP_TOKENS * CACHE_STEP_TOKENS
        return cached_tokens if cached_tokens >= MIN_CACHED_TOKENS else 0


class BreakpointCache:
    """OpenAI's cache from GPT-5.6 on: prefixes are written and found at breakpoints.

    Each request writes up to four prefixes: one that ends with the latest user message or
    result, and the latest explicit ones. Matches are looked for at the latest 80 positions
    where a prefix can end. A prefix that is read or marked again stays alive.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._expiry_times: dict[tuple[str, bytes], float] = {}
        """When each prefix expires."""
        self._digest_prefixes = PrefixDigests()

    def use(
        self,
        model: str,
        blocks: Sequence[Block],
        *,
        prompt_tokens: int,
        is_explicit: bool,
        lifetime: float = AUTOMATIC_CACHE_SECONDS,
    ) -> CacheUse:
        """Read the longest known prefix and write new ones.

        `lifetime`: seconds that the written and read prefixes live, as the request asks.
        """
        now = self._clock()
        keys = [(model, digest) for digest in self._digest_prefixes(blocks)]
        token_sums = list(accumulate(block.tokens for block in blocks))
        marked_indexes = [
            index for index, block in enumerate(blocks) if block.is_breakpoint
        ]
        natural_indexes = [
            index for index, block in enumerate(blocks) if block.can_end_prefix
        ]
        candidates = sorted({*marked_indexes, *natural_indexes})[-MAX_PREFIX_ENDS:]
        hit_index = next(
            (
                index
                for index in reversed(candidates)
                if now < self._expiry_times.get(keys[index], -1.0)
            ),
            -1,
        )
        implicit_indexes = [] if is_explicit else natural_indexes[-1:]
        written_indexes = sorted(
            {*implicit_indexes, *marked_indexes[-(MAX_MARKS - len(implicit_indexes)) :]}
        )
        written_indexes = [
            index for index in written_indexes if token_sums[index] >= MIN_CACHED_TOKENS
        ]
        for index in {*written_indexes, hit_index} - {-1}:
            self._expiry_times[keys[index]] = now + lifetime
        read_tokens = 0 if hit_index < 0 else token_sums[hit_index]
        last_sum = max(
            (token_sums[index] for index in written_indexes), default=read_tokens
        )
        return CacheUse(
            prompt_tokens, read_tokens, write_5m=max(0, last_sum - read_tokens)
        )


class ProviderCaches:
    """The caches of all providers; `clock` returns the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._is_claude = ClaudeCache(clock)
        self._prefixes = PrefixCache(clock)
        self._breakpoints = BreakpointCache(clock)

    def use(self, model: str, prompt: Prompt, *, minimum: int | None) -> CacheUse:
        """Use the cache. `minimum`: tokens of the shortest prefix that marks can cache; None for automatic caches."""
        if minimum is None and bills_cache_writes(model):
            return self._breakpoints.use(
                model,
                prompt.blocks,
                prompt_tokens=prompt.tokens,
                is_explicit=prompt.has_explicit_cache,
                lifetime=prompt.lifetime,
            )
        if minimum is None:
            read_tokens = self._prefixes.use(
                model, prompt.blocks, prompt_tokens=prompt.tokens
            )
            return CacheUse(prompt.tokens, read_tokens)
        return self._is_claude.use(
            model, prompt.blocks, prompt_tokens=prompt.tokens, minimum=minimum
        )


@functools.lru_cache(maxsize=4096)
def _split_block(block: Block) -> tuple[Block, ...]:
    """Split a block into short pieces, its tokens spread over them by length."""
    length = len(block.text)
    tokens_before = 0
    pieces = []
    for end in range(_PIECE_CHARS, length + _PIECE_CHARS, _PIECE_CHARS):
        tokens = block.tokens * min(end, length) // length
        pieces.append(
            replace(
                block,
                text=block.text[end - _PIECE_CHARS : end],
                tokens=tokens - tokens_before,
            )
        )
        tokens_before = tokens
    return tuple(pieces)
