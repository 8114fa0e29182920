"""OpenAI's cache from GPT-5.6 on, rule by rule."""

from __future__ import annotations

from dataclasses import replace

from everthread.core.caching.cache_lifetimes import (
    AUTOMATIC_CACHE_SECONDS,
    EXTENDED_CACHE_SECONDS,
)
from everthread.core.types import ModelRequest
from everthread.lab.provider.cache import BreakpointCache, CacheUse, ProviderCaches
from everthread.lab.provider.prompt_blocks import Block, PromptReader
from everthread.testing import SteppedClock

MODEL = "gpt-5.6"
SYSTEM = Block("system", 2_000, is_breakpoint=True)


def turn(number: int, *, tokens: int = 500) -> list[Block]:
    """A user message and its answer."""
    question = Block(f"user {number}", tokens, can_end_prefix=True)
    return [question, Block(f"assistant {number}", tokens)]


def use(cache: BreakpointCache, blocks: list[Block], *, is_explicit: bool = False) -> CacheUse:
    prompt = sum(block.tokens for block in blocks)
    return cache.use(MODEL, blocks, prompt_tokens=prompt, is_explicit=is_explicit)


def test_reads_up_to_the_last_user_message_of_the_previous_prompt() -> None:
    cache = BreakpointCache(SteppedClock())
    first = use(cache, [SYSTEM, turn(1)[0]])
    assert (first.read, first.write) == (0, 2_500)
    second = use(cache, [SYSTEM, *turn(1), turn(2)[0]])
    assert (second.read, second.write, second.input) == (2_500, 1_000, 0)


def test_a_changed_message_reads_up_to_the_breakpoint_before_it() -> None:
    cache = BreakpointCache(SteppedClock())
    use(cache, [SYSTEM, turn(1)[0]])
    assert use(cache, [SYSTEM, turn(2)[0]]).read == 2_000


def test_without_a_breakpoint_a_changed_message_reads_nothing() -> None:
    cache = BreakpointCache(SteppedClock())
    plain = replace(SYSTEM, is_breakpoint=False)
    use(cache, [plain, turn(1)[0]])
    assert use(cache, [plain, turn(2)[0]]).read == 0


def test_in_explicit_mode_only_marked_prefixes_are_written() -> None:
    cache = BreakpointCache(SteppedClock())
    first = use(cache, [SYSTEM, turn(1)[0]], is_explicit=True)
    assert (first.write, first.input) == (2_000, 500)
    plain = [replace(SYSTEM, is_breakpoint=False), turn(1)[0]]
    assert use(BreakpointCache(SteppedClock()), plain, is_explicit=True).write == 0


def test_forgets_a_prefix_after_half_an_hour() -> None:
    clock = SteppedClock()
    cache = BreakpointCache(clock)
    for _ in range(3):
        use(cache, [SYSTEM, turn(1)[0]])
        clock.advance(AUTOMATIC_CACHE_SECONDS - 1)
    assert use(cache, [SYSTEM, turn(1)[0]]).read == 2_500
    clock.advance(AUTOMATIC_CACHE_SECONDS)
    assert use(cache, [SYSTEM, turn(1)[0]]).read == 0


def test_keeps_a_prefix_for_half_a_day_on_request() -> None:
    clock = SteppedClock()
    caches = ProviderCaches(clock)
    request = ModelRequest(MODEL, [{"role": "user", "content": "word " * 2_000}])
    options = {"prompt_cache_options": {"ttl": "12h"}}
    prompt = PromptReader(MODEL).read("openai_chat", request, options)
    assert caches.use(MODEL, prompt, minimum=None).read == 0
    clock.advance(EXTENDED_CACHE_SECONDS - 1)
    assert caches.use(MODEL, prompt, minimum=None).read > 1_024
    clock.advance(EXTENDED_CACHE_SECONDS)
    assert caches.use(MODEL, prompt, minimum=None).read == 0


def test_does_not_write_less_than_1024_tokens() -> None:
    cache = BreakpointCache(SteppedClock())
    small = Block("system", 400, is_breakpoint=True)
    for _ in range(2):
        cache_use = use(cache, [small, turn(1)[0]])
        assert (cache_use.read, cache_use.write) == (0, 0)


def test_finds_the_breakpoints_of_a_request() -> None:
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    system = [{"type": "text", "text": "Be brief.", **mark}]
    quoted = 'It says "prompt_cache_breakpoint":{"mode":"explicit"}.'
    request = ModelRequest(MODEL, [{"role": "user", "content": quoted}], system)
    options = {"prompt_cache_options": {"mode": "explicit"}}
    prompt = PromptReader(MODEL).read("openai_chat", request, options)
    assert [block.is_breakpoint for block in prompt.blocks] == [True, False]
    assert [block.can_end_prefix for block in prompt.blocks] == [False, True]
    assert prompt.has_explicit_cache
