"""Claude's documented cache rules, each by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread import apply_cache_control
from everthread.core.caching.claude_cache_marks import mark_system
from everthread.core.messages import Message
from everthread.core.types import Api, ModelRequest
from everthread.lab.provider.cache import CacheUse, ClaudeCache
from everthread.lab.provider.prompt_blocks import Block, PromptReader, Ttl
from everthread.lab.provider.served_models import find_cache_minimum
from everthread.testing import SteppedClock
from everthread.wire.codecs import CODECS
from tests.chat_messages import calls_message, function_call, result_message
from tests.lab.official_clients import CLAUDE

MINIMUM = 1024


def blocks(
    count: int, *marks: int, ttl: Ttl = "5m", tokens: int = 200, kind: str = "text"
) -> list[Block]:
    """Return this many blocks of 200 tokens, those at `marks` marked."""
    return [Block(f"block {at}", tokens, kind, ttl if at in marks else None) for at in range(count)]


class Bench:
    """A cache with its clock, asked about one model."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.cache = ClaudeCache(self.clock)

    def use(
        self,
        prompt_blocks: list[Block],
        *,
        rest: int = 7,
        model: str = "claude-sonnet-5",
    ) -> CacheUse:
        prompt = sum(block.tokens for block in prompt_blocks) + rest
        return self.cache.use(model, prompt_blocks, prompt_tokens=prompt, minimum=MINIMUM)


def test_writes_up_to_the_last_mark_and_reads_it_next_time() -> None:
    bench = Bench()
    first = bench.use(blocks(10, 5, 8))
    assert (first.read, first.write_5m, first.write_1h, first.input) == (
        0,
        1800,
        0,
        207,
    )
    second = bench.use(blocks(12, 5, 11))
    assert second == CacheUse(2407, read=1800, write_5m=600)


def test_ignores_the_cache_without_a_mark() -> None:
    bench = Bench()
    bench.use(blocks(10, 9))
    assert bench.use(blocks(10)) == CacheUse(2007)


def test_reads_only_prefixes_that_a_request_wrote() -> None:
    """The lookback looks for earlier writes, not for what stayed the same."""
    bench = Bench()
    bench.use(blocks(10, 9))
    changed = [*blocks(9), Block("another", 200, mark="5m")]
    assert bench.use(changed).read == 0
    assert bench.use([*changed[:9], Block("yet another", 200, mark="5m")]).read == 0


def test_looks_back_over_twenty_positions() -> None:
    near = Bench()
    far = Bench()
    for bench in (near, far):
        bench.use(blocks(15, 14))
    assert near.use(blocks(34, 33)).read == 3000
    assert far.use(blocks(35, 34)).read == 0


def test_each_mark_has_its_own_lookback() -> None:
    bench = Bench()
    bench.use(blocks(15, 14))
    assert bench.use(blocks(60, 14, 59)).read == 3000


@pytest.mark.parametrize("kind", ["tool_use", "tool_result"])
def test_counts_parallel_calls_as_one_position(kind: str) -> None:
    bench = Bench()
    bench.use(blocks(15, 14))
    many = [Block(f"parallel {at}", 10, kind) for at in range(40)]
    assert bench.use([*blocks(15), *many, Block("end", 10, mark="5m")]).read == 3000
    mixed = [Block(f"mixed {at}", 10, "tool_use" if at % 2 else "tool_result") for at in range(40)]
    assert bench.use([*blocks(15), *mixed, Block("end", 10, mark="5m")]).read == 0


def test_reads_the_longest_entry() -> None:
    bench = Bench()
    bench.use(blocks(10, 6, 9))
    assert bench.use(blocks(11, 10)).read == 2000


def test_a_change_misses_everything_after_it() -> None:
    bench = Bench()
    bench.use(blocks(20, 7, 12, 19))
    changed = [
        replace(block, text="changed") if at == 9 else block
        for at, block in enumerate(blocks(20, 7, 12, 19))
    ]
    assert bench.use(changed) == CacheUse(4007, read=1600, write_5m=2400)
    first = [
        replace(block, text="changed") if at == 0 else block
        for at, block in enumerate(blocks(20, 7, 12, 19))
    ]
    assert bench.use(first).read == 0


def test_does_not_cache_a_short_prefix() -> None:
    bench = Bench()
    for _ in range(2):
        assert bench.use(blocks(6, 2, 4)) == CacheUse(1207)
    assert bench.use(blocks(6, 2, 5)).write == 1200
    assert bench.use(blocks(6, 2)).read == 0


def test_models_do_not_share_a_cache() -> None:
    bench = Bench()
    bench.use(blocks(10, 9))
    assert bench.use(blocks(10, 9), model="claude-opus-5").read == 0


class TestTime:
    @pytest.mark.parametrize(("ttl", "seconds"), [("5m", 300), ("1h", 3600)])
    def test_expires_its_lifetime_after_the_last_use(self, ttl: Ttl, seconds: float) -> None:
        bench = Bench()
        bench.use(blocks(10, 9, ttl=ttl))
        for _ in range(3):
            bench.clock.advance(seconds - 1)
            assert bench.use(blocks(10, 9, ttl=ttl)).read == 2000
        bench.clock.advance(seconds)
        gone = bench.use(blocks(10, 9, ttl=ttl))
        assert (gone.read, gone.write) == (0, 2000)

    def test_renews_marked_prefixes_of_the_entry_it_reads(self) -> None:
        bench = Bench()
        bench.use(blocks(12, 6, 11))
        for turn in range(4):
            bench.clock.advance(200)
            bench.use(blocks(14 + turn, 6, 13 + turn))
        other = [*blocks(7, 6), Block("a new conversation", 100, mark="5m")]
        assert bench.use(other).read == 1400

    def test_forgets_prefixes_that_are_no_longer_marked(self) -> None:
        bench = Bench()
        bench.use(blocks(12, 6, 11))
        for turn in range(4):
            bench.clock.advance(200)
            bench.use(blocks(14 + turn, 13 + turn))
        assert bench.use([*blocks(7, 6), Block("a new conversation", 100, mark="5m")]).read == 0


def test_divides_writes_by_lifetime() -> None:
    """A is what is read, B the last one-hour mark after it, C the last mark: the hour pays B - A, the rest C - B."""
    bench = Bench()
    prompt_blocks = blocks(20)
    marks: dict[int, Ttl] = {6: "1h", 9: "1h", 15: "5m"}
    for index, ttl in marks.items():
        prompt_blocks[index] = replace(prompt_blocks[index], mark=ttl)
    assert bench.use(prompt_blocks) == CacheUse(4007, write_1h=2000, write_5m=1200)
    bench.clock.advance(400)
    assert bench.use(prompt_blocks) == CacheUse(4007, read=2000, write_5m=1200)


@given(
    st.lists(
        st.tuples(st.integers(1, 500), st.sampled_from([None, None, "5m", "1h"])),
        min_size=1,
        max_size=40,
    ),
    st.integers(0, 3),
)
def test_read_written_and_uncached_tokens_add_up(
    shape: list[tuple[int, Ttl | None]], extra: int
) -> None:
    bench = Bench()
    prompt_blocks = [
        Block(f"block {at}", tokens, mark=mark) for at, (tokens, mark) in enumerate(shape)
    ]
    for grown in (
        prompt_blocks,
        prompt_blocks,
        [*prompt_blocks, *blocks(extra, extra - 1)],
    ):
        use = bench.use(grown)
        assert min(use.read, use.write_5m, use.write_1h, use.input) >= 0
        assert use.read + use.write + use.input == use.prompt


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("claude-sonnet-5", 1024),
        ("claude-sonnet-4-6", 1024),
        ("claude-opus-4-1-20250805", 1024),
        ("anthropic/claude-opus-4.7", 2048),
        ("claude-3-5-haiku-latest", 2048),
        ("claude-haiku-4-5", 4096),
        ("claude-opus-4-5", 4096),
        ("claude-opus-5", 512),
    ],
)
def test_minimum_prefix_depends_on_the_model(model: str, tokens: int) -> None:
    assert find_cache_minimum(model) == tokens


def tool_loop(rounds: int, words: str) -> list[Message]:
    """Return one question and this many calls with results; the assistant says these words before each call."""
    messages: list[Message] = [{"role": "user", "content": "Make the tests of the ledger pass."}]
    for number in range(rounds):
        messages.append(
            calls_message(
                function_call(
                    f"call_{number}",
                    "terminal",
                    f'{{"command": "pytest -k ledger_{number}"}}',
                ),
                text=words,
            )
        )
        result = f"{number} failed: the entry of the northern branch differs. " * 20
        messages.append(result_message(f"call_{number}", result))
    return messages


def cached_share(api: Api, words: str, *, native: bool) -> float:
    """How much of a tool loop of 30 calls comes from the cache, as the marks are placed for this route."""
    cache = ClaudeCache(lambda: 0.0)
    reader = PromptReader(CLAUDE)
    used = 0
    read = 0
    system = mark_system("Keep to the rules of the house. " * 200)
    for rounds in range(31):
        marked = apply_cache_control(
            tool_loop(rounds, words), native_anthropic=native, mark_tool_results=True
        )
        body = CODECS[api].encode_request(
            ModelRequest(CLAUDE, marked, system, [], {"max_tokens": 100})
        )
        prompt = reader.read(api, CODECS[api].decode_request(body), body)
        use = cache.use(CLAUDE, prompt.blocks, prompt_tokens=prompt.tokens, minimum=1_024)
        used = used + prompt.tokens
        read = read + use.read
    return read / used


def test_caches_a_tool_loop_natively_and_over_openrouter() -> None:
    """Where the calls come without a word, a block of their result carries the mark."""
    words = "I look at the next test."
    native = cached_share("anthropic", words, native=True)
    routed = cached_share("openai_chat", words, native=False)
    wordless = cached_share("openai_chat", "", native=False)
    print(
        f"cached in a tool loop: natively {native:.0%}, through OpenRouter {routed:.0%}, without words {wordless:.0%}"
    )
    assert native > 0.85
    assert routed > 0.85
    assert wordless > 0.85
