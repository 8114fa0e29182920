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
    automatic_lifetime,
    bills_cache_writes,
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

_SETTINGS = ("tool_choice", "thinking", "output_config", "effort")
"""Fields that precede the messages in Claude's prompt: a change in them is another prompt."""


@dataclass(frozen=True, slots=True)
class Block:
    text: str
    tokens: int
    kind: str = "text"
    """Its type; neighbouring calls are one position to Claude's cache, and so are neighbouring results."""
    mark: Ttl | None = None
    path: str = ""
    """Its path in the request: `messages.3.content.0`."""
    marks: int = 0
    """How many marks it carries, those on blocks inside it included."""
    blank: bool = False
    """It is text without a word."""
    is_breakpoint: bool = False
    """OpenAI's cache may end here, because the request says so."""
    can_end_prefix: bool = False
    """OpenAI's cache may end here by itself: after a user message or a result."""


@dataclass(frozen=True, slots=True)
class Prompt:
    blocks: Sequence[Block]
    tokens: int
    """Of the whole request, with what opens the reply."""
    has_explicit_cache: bool = False
    """The request sets all breakpoints itself."""
    lifetime: float = AUTOMATIC_CACHE_SECONDS
    """How long OpenAI keeps its prefixes, in seconds."""


class PromptReader:
    """Read requests for one model. Counts are cached by bytes, so that a longer history costs only its new part."""

    def __init__(self, model: str) -> None:
        self.counter = TokenCounter(model)
        self._claude = "claude" in model.lower()
        self._counted: dict[bytes, tuple[int, ...]] = {}

    def read(self, api: Api, request: Request, body: Mapping[str, Any]) -> Prompt:
        blocks = [*self._tools(api, request, body), *self._system(request)]
        blocks += self._messages(api, request)
        total = sum(block.tokens for block in blocks) + self.counter.request(())
        options = body.get(CACHE_OPTIONS_FIELD)
        is_explicit = isinstance(options, Mapping) and options.get("mode") == "explicit"
        return Prompt(
            _with_automatic_mark(blocks, body),
            total,
            has_explicit_cache=is_explicit,
            lifetime=automatic_lifetime(body),
        )

    def _tools(
        self, api: Api, request: Request, body: Mapping[str, Any]
    ) -> Iterator[Block]:
        wire = body.get("tools") if api == "anthropic" else None
        tools = (
            wire
            if isinstance(wire, list) and len(wire) == len(request.tools)
            else request.tools
        )
        sizes = self._count_blocks(
            f"tools:{byte_form_text(byte_form(tools))}",
            lambda: _count_prefixes(self.counter.tools, request.tools),
        )
        for at, (tool, tokens) in enumerate(zip(tools, sizes, strict=True)):
            yield _block(tool, tokens, f"tools.{at}", lead="tool:", kind="tool")

    def _system(self, request: Request) -> Iterator[Block]:
        parts = parts_of({"content": request.system})
        sizes = self._count_blocks(
            f"system:{byte_form_text(byte_form(parts))}",
            lambda: _count_prefixes(self.counter.system, parts),
        )
        for at, (part, tokens) in enumerate(zip(parts, sizes, strict=True)):
            yield _block(part, tokens, f"system.{at}", lead="system:")

    def _messages(self, api: Api, request: Request) -> Iterator[Block]:
        lead = _settings(request) if self._claude else ""
        wire_index = -1
        content_index = 0
        for message in request.messages:
            record = native_record(message, api)
            joined = bool(record and record.get("joined"))
            wire_index, content_index = (
                (wire_index, content_index) if joined else (wire_index + 1, 0)
            )
            parts = self._cache_parts(api, message)
            form = f"{message.get('role')}:{byte_form_text(byte_form(parts))}"
            sizes = self._count_blocks(
                form, functools.partial(self._count_message, message, parts)
            )
            for part, tokens in zip(parts, sizes, strict=True):
                opening = f"{lead}{message.get('role')}:" if content_index == 0 else ""
                block = _block(
                    part,
                    tokens,
                    f"messages.{wire_index}.content.{content_index}",
                    lead=opening,
                )
                ends = message.get("role") in ("user", "tool")
                yield replace(block, can_end_prefix=ends)
                content_index += 1
                lead = ""

    def _cache_parts(self, api: Api, message: Message) -> list[Part]:
        """Return the units of a message that the cache sees: Claude's blocks, elsewhere the whole message."""
        record = native_record(message, api)
        value: Any = record["value"] if record else None
        if api == "anthropic" and isinstance(value, Mapping):
            return parts_of(value) or [{"type": "text", "text": ""}]
        if api == "openai_chat" and self._claude and message.get("role") != "tool":
            calls = [
                {"type": "tool_use", "call": call} for call in list_tool_calls(message)
            ]
            return [*parts_of(message), *calls] or [{**message}]
        kind = "tool_result" if message.get("role") == "tool" else "message"
        return [
            {
                "type": kind,
                "message": message if value is None else value,
                **_mark_of(api, message),
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
        self, form: str, count: Callable[[], list[int]]
    ) -> tuple[int, ...]:
        """The tokens of each block, from counts of what ends with it."""
        key = _digest(form)
        if key not in self._counted:
            sums = accumulate([0, *count()], max)
            self._counted[key] = tuple(
                after - before for before, after in pairwise(sums)
            )
        return self._counted[key]


def _count_prefixes(count: Callable[[list[Any]], int], items: list[Any]) -> list[int]:
    return [count(items[:end]) for end in range(1, len(items) + 1)]


def chain(blocks: Sequence[Block], before: bytes = b"") -> list[bytes]:
    """Return the digest of everything up to and including each block; `before` is the digest to start from."""
    digests = []
    last = before
    for block in blocks:
        last = _digest(block.text, last)
        digests.append(last)
    return digests


class RequestChain:
    """Run `chain` over requests that repeat most of the previous one, without reading equal blocks again."""

    def __init__(self) -> None:
        self._blocks: Sequence[Block] = ()
        self._digests: list[bytes] = []

    def __call__(self, blocks: Sequence[Block]) -> list[bytes]:
        same = sum(
            1
            for _ in takewhile(
                lambda pair: pair[0] is pair[1], zip(self._blocks, blocks, strict=False)
            )
        )
        shared = self._digests[:same]
        self._blocks = blocks
        self._digests = [*shared, *chain(blocks[same:], shared[-1] if shared else b"")]
        return self._digests


def _digest(text: str, before: bytes = b"") -> bytes:
    return blake2b(
        before + text.encode("utf-8", "surrogatepass"), digest_size=20
    ).digest()


def _block(
    part: Part, tokens: int, path: str, *, lead: str = "", kind: str = ""
) -> Block:
    marks = _marks(part)
    mark: Ttl | None = None
    if marks:
        mark = "1h" if marks[-1].get("ttl") == "1h" else "5m"
    text = f"{lead}{byte_form_text(byte_form({'content': [part]}))}"
    blank = kind_of(part) == "text" and not str(part.get("text") or "").strip()
    return Block(
        text,
        tokens,
        kind=kind or kind_of(part),
        mark=mark,
        path=path,
        marks=len(marks),
        blank=blank,
        is_breakpoint=f'"{BREAKPOINT}":{{' in byte_form_text(part),
    )


def _marks(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The marks on a block and on blocks within a result."""
    inner = part.get("content") if kind_of(part) in RESULT_BLOCKS else None
    blocks = inner if isinstance(inner, list) else []
    inner_marks = [
        mark for block in blocks if isinstance(block, dict) for mark in _marks(block)
    ]
    mark = part.get("cache_control")
    return [*inner_marks, mark] if isinstance(mark, Mapping) else inner_marks


def _mark_of(api: Api, message: Message) -> Part:
    """The mark of a message that is one block. Chat completions take it on a part of the content only."""
    if api == "openai_chat":
        marks = [mark for part in parts_of(message) for mark in _marks(part)]
        return {"cache_control": marks[-1]} if marks else {}
    return (
        {"cache_control": message["cache_control"]}
        if "cache_control" in message
        else {}
    )


def _settings(request: Request) -> str:
    settings = {
        name: request.params[name]
        for name in _SETTINGS
        if request.params.get(name) is not None
    }
    settings["images"] = any(
        True
        for message in request.messages
        for _ in iterate_images(message.get("content"))
    )
    return byte_form_text(settings)


def _with_automatic_mark(blocks: list[Block], body: Mapping[str, Any]) -> list[Block]:
    """A mark on the request itself goes to the last block that can carry one."""
    mark = body.get("cache_control")
    if not isinstance(mark, Mapping):
        return blocks
    for at in range(len(blocks) - 1, -1, -1):
        block = blocks[at]
        if block.kind not in REASONING_BLOCKS and not block.blank:
            if block.mark is None:
                blocks[at] = replace(
                    block,
                    mark="1h" if mark.get("ttl") == "1h" else "5m",
                    marks=block.marks + 1,
                )
            break
    return blocks


LOOKBACK = 20
"""Positions looked at for each mark, its own included."""
MAX_MARKS = 4
MAX_LOOKED_AT = 80
"""Places at which OpenAI looks for a cached prefix."""
CLAUDE_SECONDS: dict[Ttl, float] = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What became of a prompt's tokens; the parts add up to the prompt."""

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
    """The entries of all models; `clock` says the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[tuple[str, bytes], tuple[Ttl, float]] = {}
        """The lifetime of each, and when it ends."""
        self._chain = RequestChain()

    def use(
        self, model: str, blocks: Sequence[Block], *, prompt: int, minimum: int
    ) -> CacheUse:
        """Read what there is, write what is marked; what that means for `prompt` tokens in all."""
        now = self._clock()
        keys = [(model, digest) for digest in self._chain(blocks)]
        sums = list(accumulate(block.tokens for block in blocks))
        marked = [at for at, block in enumerate(blocks) if block.mark]
        # The longest prefix with a living entry, as far as the marks let one look.
        looked_at = (at for mark in reversed(marked) for at in _positions(blocks, mark))
        hit = next((at for at in looked_at if self._lives(keys[at], now)), -1)
        for at in {hit, *(at for at in marked if at < hit)} - {-1}:
            if self._lives(keys[at], now):
                ttl, _ = self._entries[keys[at]]
                self._entries[keys[at]] = ttl, now + CLAUDE_SECONDS[ttl]
        read = 0 if hit < 0 else sums[hit]
        after = [at for at in marked if at > hit and sums[at] >= minimum]
        for at in after:
            ttl = blocks[at].mark or "5m"
            self._entries[keys[at]] = ttl, now + CLAUDE_SECONDS[ttl]
        hour = max((sums[at] for at in after if blocks[at].mark == "1h"), default=read)
        last = max((sums[at] for at in after), default=read)
        return CacheUse(prompt, read, write_5m=last - hour, write_1h=hour - read)

    def _lives(self, key: tuple[str, bytes], now: float) -> bool:
        return key in self._entries and now < self._entries[key][1]


def _positions(blocks: Sequence[Block], mark: int) -> list[int]:
    """Yield the blocks checked backwards from a mark: twenty, counting a run of calls or results once."""
    count = 0
    positions = []
    for at in range(mark, -1, -1):
        same_run = at < mark and any(
            blocks[at].kind in run and blocks[at + 1].kind in run for run in _RUNS
        )
        count += not same_run
        if count > LOOKBACK:
            break
        positions.append(at)
    return positions


_RUNS = (CALL_BLOCKS, RESULT_BLOCKS)


MIN_CACHED_TOKENS = 1024
CACHE_STEP_TOKENS = 128
PREFIX_SECONDS = 600.0
_PIECE_CHARS = 256
"""Characters compared at once inside a block: two prompts may part in the middle of a message."""


def prefix_seconds(model: str) -> float:
    """How long an unused prefix is kept without a mark."""
    return AUTOMATIC_CACHE_SECONDS if bills_cache_writes(model) else PREFIX_SECONDS


class PrefixCache:
    """The automatic cache of every model; `clock` returns the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._used: dict[tuple[str, bytes], float] = {}
        self._chain = RequestChain()

    def use(self, model: str, blocks: Sequence[Block], *, prompt: int) -> int:
        """How many tokens of the prompt are read from the cache; the prompt is remembered."""
        now = self._clock()
        pieces = [piece for block in blocks for piece in _pieces(block)]
        shared = 0
        for piece, digest in zip(pieces, self._chain(pieces), strict=True):
            key = (model, digest)
            # A digest is that of the whole beginning, so none is known after the first that is not.
            if now < self._used.get(key, float("-inf")) + PREFIX_SECONDS:
                shared += piece.tokens
            if prompt >= MIN_CACHED_TOKENS:
                self._used[key] = now
        cached = shared // CACHE_STEP_TOKENS * CACHE_STEP_TOKENS
        return cached if cached >= MIN_CACHED_TOKENS else 0


class BreakpointCache:
    """OpenAI's cache from GPT-5.6 on: prefixes are written and found at breakpoints.

    Each request writes up to four prefixes: one that ends with the latest user message or
    result, and the latest explicit ones. Matches are looked for at the latest 80 places
    where a prefix can end. A prefix that is read or marked again stays alive.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends: dict[tuple[str, bytes], float] = {}
        """When each prefix expires."""
        self._chain = RequestChain()

    def use(
        self,
        model: str,
        blocks: Sequence[Block],
        *,
        prompt: int,
        is_explicit: bool,
        lifetime: float = AUTOMATIC_CACHE_SECONDS,
    ) -> CacheUse:
        """Read the longest known prefix and write new ones; return what became of the prompt.

        `lifetime`: of what it writes or reads, in seconds, as the request asks.
        """
        now = self._clock()
        keys = [(model, digest) for digest in self._chain(blocks)]
        sums = list(accumulate(block.tokens for block in blocks))
        marked = [at for at, block in enumerate(blocks) if block.is_breakpoint]
        natural = [at for at, block in enumerate(blocks) if block.can_end_prefix]
        places = sorted({*marked, *natural})[-MAX_LOOKED_AT:]
        hit = next(
            (at for at in reversed(places) if now < self._ends.get(keys[at], -1.0)), -1
        )
        implicit = [] if is_explicit else natural[-1:]
        written = sorted({*implicit, *marked[-(MAX_MARKS - len(implicit)) :]})
        written = [at for at in written if sums[at] >= MIN_CACHED_TOKENS]
        for at in {*written, hit} - {-1}:
            self._ends[keys[at]] = now + lifetime
        read = 0 if hit < 0 else sums[hit]
        last = max((sums[at] for at in written), default=read)
        return CacheUse(prompt, read, write_5m=max(0, last - read))


class ProviderCaches:
    """The caches of all providers; `clock` returns the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._claude = ClaudeCache(clock)
        self._prefixes = PrefixCache(clock)
        self._breakpoints = BreakpointCache(clock)

    def use(self, model: str, prompt: Prompt, *, minimum: int | None) -> CacheUse:
        """What becomes of a prompt. `minimum`: the shortest prefix marks can cache; None: the cache is automatic."""
        if minimum is None and bills_cache_writes(model):
            return self._breakpoints.use(
                model,
                prompt.blocks,
                prompt=prompt.tokens,
                is_explicit=prompt.has_explicit_cache,
                lifetime=prompt.lifetime,
            )
        if minimum is None:
            read = self._prefixes.use(model, prompt.blocks, prompt=prompt.tokens)
            return CacheUse(prompt.tokens, read)
        return self._claude.use(
            model, prompt.blocks, prompt=prompt.tokens, minimum=minimum
        )


@functools.lru_cache(maxsize=4096)
def _pieces(block: Block) -> tuple[Block, ...]:
    """A block in short pieces, its tokens spread over them by length."""
    length = len(block.text)
    before = 0
    pieces = []
    for end in range(_PIECE_CHARS, length + _PIECE_CHARS, _PIECE_CHARS):
        tokens = block.tokens * min(end, length) // length
        pieces.append(
            replace(
                block, text=block.text[end - _PIECE_CHARS : end], tokens=tokens - before
            )
        )
        before = tokens
    return tuple(pieces)
