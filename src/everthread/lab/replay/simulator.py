"""A provider within this process: what a prompt is, what of it the cache holds, whether it fits.

The rules are those of the provider that speaks HTTP (`lab.provider`); what a request repeats of the one before is not
read again, so that a long conversation costs what is new in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, takewhile

from everthread.core.caching import apply_cache_control, mark_system, marks_begin
from everthread.core.exchange import Request, System
from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.lab.prefix_cache import SECONDS as PREFIX_SECONDS
from everthread.lab.prefix_cache import PrefixCache
from everthread.lab.prompt_blocks import Block, Prompt, PromptReader
from everthread.lab.prompt_cache import SECONDS as CLAUDE_SECONDS
from everthread.lab.prompt_cache import CacheUse, ClaudeCache
from everthread.lab.served import cache_minimum


def by_marks(model: str) -> bool:
    """Whether the model's cache is asked by marks, as Claude's is; any other works by itself."""
    return "claude" in model.lower()


def remembered(model: str, ttl: str) -> float:
    """For how many seconds the model's cache holds what is not used."""
    return CLAUDE_SECONDS["1h" if ttl == "1h" else "5m"] if by_marks(model) else PREFIX_SECONDS


class Prompts:
    """Reads requests of any models; a message that was read before is known by its identity."""

    def __init__(self) -> None:
        self._readers: dict[str, PromptReader] = {}
        self._known: dict[tuple[str, int], tuple[Message, Sequence[Block]]] = {}
        self._last: tuple[str, list[Message], list[Sequence[Block]]] = ("", [], [])

    def counter(self, model: str) -> TokenCounter:
        return self._reader(model).counter

    def read(self, request: Request) -> Prompt:
        head = self._reader(request.model).read("openai_chat", replace(request, messages=[], params={}), {})
        model, messages, read = self._last
        if model != request.model:
            messages, read = [], []
        same = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(messages, request.messages, strict=False)))
        read = [*read[:same], *(self._blocks(request.model, message) for message in request.messages[same:])]
        self._last = request.model, request.messages, read
        blocks = [*head.blocks, *chain.from_iterable(read)]
        tokens = sum(block.tokens for block in blocks) + self.counter(request.model).request(())
        return Prompt(blocks, tokens)

    def _reader(self, model: str) -> PromptReader:
        if model not in self._readers:
            self._readers[model] = PromptReader(model)
        return self._readers[model]

    def _blocks(self, model: str, message: Message) -> Sequence[Block]:
        key = (model, id(message))
        if key not in self._known:
            read = self._reader(model).read("openai_chat", Request(model, [message]), {}).blocks
            self._known[key] = message, _marked(message, read)  # held, so that its id stays its own
        return self._known[key][1]


def _marked(message: Message, blocks: Sequence[Block]) -> Sequence[Block]:
    """A mark on the message itself stands on its last block when it is sent."""
    mark = message.get("cache_control")
    if not mark or message["role"] == "tool" or blocks[-1].mark:
        return blocks
    return [*blocks[:-1], replace(blocks[-1], mark="1h" if mark.get("ttl") == "1h" else "5m", marks=1)]


class Cache:
    """What one conversation's provider remembers, for every model that is asked."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._claude, self._others = ClaudeCache(clock), PrefixCache(clock)

    def use(self, model: str, prompt: Prompt) -> CacheUse:
        if by_marks(model):
            return self._claude.use(model, prompt.blocks, prompt=prompt.tokens, minimum=cache_minimum(model))
        return CacheUse(prompt.tokens, self._others.use(model, prompt.blocks, prompt=prompt.tokens))


class Marking:
    """Puts the marks `system_and_3` on the requests of a conversation that nobody manages."""

    def __init__(self, ttl: str) -> None:
        self._ttl = ttl
        self._last: int | None = None

    def request(
        self, model: str, messages: Sequence[Message], system: System, tools: Sequence[dict[str, object]]
    ) -> Request:
        if not by_marks(model):
            return Request(model, list(messages), system, list(tools))
        last = None if self._last is not None and self._last >= len(messages) else self._last
        start = marks_begin(len(messages), last)
        near = apply_cache_control(
            messages[start:], ttl=self._ttl, native_anthropic=True, previous=None if last is None else last - start
        )
        self._last = len(messages) - 1
        marked = mark_system(system, ttl=self._ttl)
        return Request(model, [*messages[:start], *near], marked, list(tools))
