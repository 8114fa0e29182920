"""Simulate the provider's caches for the calls of one strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.core.types import ModelRequest
from everthread.lab.provider.cache import CacheUse, ProviderCaches
from everthread.lab.provider.prompt_blocks import Block, Prompt, PromptReader
from everthread.lab.provider.served_models import find_cache_minimum
from everthread.lab.replay.cache_lifetime import caches_by_marks
from everthread.lab.replay.recording import Recording

FILL_TOLERANCE = 1.02
"""Filler texts may exceed their size by this factor."""


class PromptBlockReader:
    """Reads requests of any models into blocks; a message object is read once."""

    def __init__(self) -> None:
        self._readers: dict[str, PromptReader] = {}
        self._blocks: dict[tuple[str, int], tuple[Message, Sequence[Block]]] = {}
        """Blocks by model and `id(message)`, with the message itself, because the reference keeps the id unique."""
        self._head: ModelRequest | None = None
        self._head_blocks: Sequence[Block] = ()

    def get_counter(self, model: str) -> TokenCounter:
        return self._get_reader(model).counter

    def read(self, request: ModelRequest) -> Prompt:
        blocks = [*self._read_head(request)]
        for message in request.messages:
            key = (request.model, id(message))
            if key not in self._blocks:
                self._blocks[key] = message, self._read_message(request.model, message)
            blocks += self._blocks[key][1]
        return Prompt(
            blocks,
            sum(block.tokens for block in blocks) + self.get_counter(request.model).request(()),
        )

    def _read_head(self, request: ModelRequest) -> Sequence[Block]:
        """Return the blocks of system prompt and tools, which are the same objects until one of the two changes."""
        head = replace(request, messages=[], params={})
        if head != self._head:
            self._head = head
            self._head_blocks = self._get_reader(request.model).read("openai_chat", head, {}).blocks
        return self._head_blocks

    def _get_reader(self, model: str) -> PromptReader:
        if model not in self._readers:
            self._readers[model] = PromptReader(model)
        return self._readers[model]

    def _read_message(self, model: str, message: Message) -> Sequence[Block]:
        """Return the blocks of a message. A mark on the message itself moves to its last block, as on the wire.

        Reasoning is a block before the others, except encrypted reasoning, which is not in the log.
        """
        blocks = (
            self._get_reader(model).read("openai_chat", ModelRequest(model, [message]), {}).blocks
        )
        thoughts = message.get("reasoning_content")
        if thoughts:
            blocks = [
                Block(thoughts, self.get_counter(model).text(thoughts), "thinking"),
                *blocks,
            ]
        mark = message.get("cache_control")
        if not mark or blocks[-1].mark:
            return blocks
        return [
            *blocks[:-1],
            replace(blocks[-1], mark="1h" if mark.get("ttl") == "1h" else "5m", marks=1),
        ]


class ReplayCaches:
    """The provider's caches during one strategy.

    Without a recording, entries expire by the clock. With one, the calls that missed in the log miss here too, and no
    others do, except for changes that the strategy itself makes. An automatic cache is spread over several machines: a
    call that missed in part reads the prefix that the previous missed call left on another machine.
    """

    def __init__(self, clock: Callable[[], float], recording: Recording | None) -> None:
        self._recording = recording
        self._clock = clock if recording is None else lambda: 0.0
        self._caches = ProviderCaches(self._clock)
        self._other_machine = ProviderCaches(self._clock)

    def use(self, call_index: int, model: str, prompt: Prompt) -> CacheUse:
        """Read and write the cache for the call with this index."""
        recording = self._recording
        minimum = find_cache_minimum(model) if caches_by_marks(model) else None
        if recording is None:
            return self._caches.use(model, prompt, minimum=minimum)
        is_missed = call_index == 0 or call_index in recording.missed_call_indexes
        is_partly_missed = minimum is None and call_index in recording.partly_missed_call_indexes
        if is_missed:
            self._caches = ProviderCaches(self._clock)
            self._fill_caches(model, prompt, recording.count_cached_tokens(call_index))
        use = self._caches.use(model, prompt, minimum=minimum)
        if is_missed or is_partly_missed:
            other_use = self._other_machine.use(model, prompt, minimum=minimum)
            return other_use if is_partly_missed else use
        return use

    def _fill_caches(self, model: str, prompt: Prompt, tokens: int) -> None:
        """Put the first blocks, up to this many tokens, into the caches."""
        blocks: list[Block] = []
        size = 0
        for block in prompt.blocks:
            if size + block.tokens > tokens * FILL_TOLERANCE:
                break
            blocks.append(block)
            size += block.tokens
        if blocks:
            blocks[-1] = replace(blocks[-1], mark="1h")
            self._caches.use(
                model,
                Prompt(blocks, size),
                minimum=0 if caches_by_marks(model) else None,
            )
