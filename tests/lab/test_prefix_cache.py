"""OpenAI's automatic cache, rule by rule."""

from __future__ import annotations

from everthread.lab.provider.cache import PrefixCache
from everthread.lab.provider.prompt_blocks import Block
from everthread.testing import SteppedClock


def prompt(*sizes: int, end: str = "") -> list[Block]:
    """Return blocks of these tokens, four characters each; the last one may end differently."""
    blocks = [Block(f"{at}".ljust(4 * tokens, "."), tokens) for at, tokens in enumerate(sizes)]
    return [*blocks, Block(end, 10)] if end else blocks


def use(cache: PrefixCache, prompt_blocks: list[Block], model: str = "gpt-5") -> int:
    return cache.use(
        model, prompt_blocks, prompt_tokens=sum(block.tokens for block in prompt_blocks)
    )


def test_reads_the_previous_prompt_in_steps_of_128_tokens() -> None:
    cache = PrefixCache(SteppedClock())
    assert use(cache, prompt(1000, 500)) == 0
    assert use(cache, prompt(1000, 500, 300)) == 1408
    assert use(cache, prompt(1000, 500, 300)) == 1792


def test_does_not_cache_less_than_1024_tokens() -> None:
    cache = PrefixCache(SteppedClock())
    for _ in range(2):
        assert use(cache, prompt(1000)) == 0
    use(cache, prompt(1000, 500))
    assert use(cache, prompt(1000, end="something else, and long enough" * 30)) == 0


def test_reads_up_to_a_change_inside_a_message() -> None:
    cache = PrefixCache(SteppedClock())
    text = "word " * 4000
    cache.use("gpt-5", [Block(text, 4000)], prompt_tokens=4000)
    changed = f"{text[:10_000]}CHANGED{text[10_000:]}"
    cached = cache.use("gpt-5", [Block(changed, 4000)], prompt_tokens=4000)
    assert 1800 <= cached <= 2000
    assert cached % 128 == 0


def test_reads_nothing_after_a_change_at_the_start() -> None:
    cache = PrefixCache(SteppedClock())
    use(cache, prompt(2000))
    assert use(cache, [Block("other", 2), *prompt(2000)]) == 0


def test_forgets_an_entry_after_ten_idle_minutes() -> None:
    clock = SteppedClock()
    cache = PrefixCache(clock)
    use(cache, prompt(2000))
    for _ in range(3):
        clock.advance(599)
        assert use(cache, prompt(2000)) == 1920
    clock.advance(600)
    assert use(cache, prompt(2000)) == 0


def test_models_do_not_share() -> None:
    cache = PrefixCache(SteppedClock())
    use(cache, prompt(2000))
    assert use(cache, prompt(2000), "gpt-5-mini") == 0
