"""Limits learnt from providers: accepted if certain, for the tenant that met them, never below a size that worked."""

from __future__ import annotations

import pytest

from everthread.core.provider_errors.classification import ErrorVerdict
from everthread.store.records import LimitKey
from everthread.store.store import Store
from everthread.testing import SteppedClock
from everthread.thread.model_limits import CallLimits, ModelLimits, is_overflow_error
from everthread.thread.recovery import ProviderRefusal

TOO_LONG = ErrorVerdict("prompt_too_long", "it says so", 8_000, 9_000)


def key(tenant: str, credential: str = "") -> LimitKey:
    return LimitKey("http://one.test", "m", tenant, credential=credential)


async def load_window(limits: ModelLimits, limit_key: LimitKey) -> int:
    loaded = await limits.load(limit_key, 128_000)
    return loaded.window


@pytest.mark.parametrize(
    ("limit", "sent", "believed"),
    [
        (300, 5_000, True),
        (8_000, 7_000, True),
        (8_000, 9_000, False),
        (200_000, 300_000, True),
    ],
)
async def test_ignores_an_implausible_limit(
    store: Store, limit: int, sent: int, believed: bool
) -> None:
    """A limit is implausible if it is tiny, or not exceeded by the request, or not stated as an overflow."""
    limits = ModelLimits(store, SteppedClock())
    verdict = ErrorVerdict("prompt_too_long", "it says so", limit)
    assert await limits.learn_window(key("a"), verdict, 128_000, sent, is_credible=believed) is None
    assert await load_window(limits, key("a")) == 128_000


async def test_never_learns_a_limit_below_a_successful_prompt(store: Store) -> None:
    """A proxy between may refuse for reasons of its own."""
    limits = ModelLimits(store, SteppedClock())
    await limits.record_success(key("a"), 20_000)
    assert await limits.learn_window(key("a"), TOO_LONG, 128_000, 9_000) is None
    unstated = ErrorVerdict("prompt_too_long", "it says so")
    learnt = await limits.learn_window(key("a"), unstated, 128_000, 50_000)
    assert learnt is not None
    assert learnt.tokens == 32_000
    assert not learnt.is_stored, "the next usual window below what was refused"
    assert await limits.record_success(key("a"), 40_000) is False
    assert await load_window(limits, key("a")) == 128_000, "a guess dies at a success above it"


@pytest.mark.parametrize(
    ("status", "body", "is_overflow"),
    [
        (400, '{"error": {"code": "context_length_exceeded", "message": "…"}}', True),
        (
            400,
            '{"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}}',
            True,
        ),
        (413, b"", True),
        (
            400,
            '{"code": "Client specified an invalid argument", "error": "maximum prompt length is 8000"}',
            True,
        ),
        (
            400,
            '{"error": {"status": "INVALID_ARGUMENT", "code": 400, "message": "…"}}',
            True,
        ),
        (None, None, True),
        (
            404,
            '{"error": {"code": "model_not_found", "message": "maximum context length is 300 tokens"}}',
            False,
        ),
        (
            400,
            '{"error": {"code": "invalid_value", "param": "messages[0].role", "message": "…"}}',
            False,
        ),
        (
            400,
            '{"error": {"param": "temperature", "message": "maximum context length is 300 tokens"}}',
            False,
        ),
        (401, "{}", False),
    ],
)
def test_recognises_the_errors_that_can_mean_an_overflow(
    status: int | None, body: object, is_overflow: bool
) -> None:
    assert is_overflow_error(status, body) is is_overflow


async def learn(
    limits: ModelLimits, verdict: ErrorVerdict, *, tokens: int, window: int = 128_000
) -> int | None:
    learnt = await limits.learn_refusal(
        key("a"),
        verdict,
        ProviderRefusal(400, "{}"),
        assumed_window=window,
        tokens=tokens,
        output_cap=60_000,
    )
    return None if learnt is None else learnt.tokens


async def test_learns_only_the_window_if_prompt_and_output_cap_exceed_it(
    store: Store,
) -> None:
    limits = ModelLimits(store, SteppedClock())
    filled = ErrorVerdict("max_tokens_too_large", "both", context_limit=64_000, input_tokens=63_620)
    assert await learn(limits, filled, tokens=3_000) == 64_000, (
        "stated input and cap together exceed it"
    )
    loaded = await limits.load(key("a"), 128_000)
    assert loaded.output_cap is None
    assert loaded.learnt_window == 64_000


async def test_remembers_a_stated_window_that_equals_the_known_one(
    store: Store,
) -> None:
    limits = ModelLimits(store, SteppedClock())
    both = ErrorVerdict("max_tokens_too_large", "both", context_limit=64_000, input_tokens=10_000)
    assert await learn(limits, both, tokens=10_000, window=64_000) is None
    loaded = await limits.load(key("a"), 64_000)
    assert loaded.learnt_window == 64_000


async def test_learns_the_stated_output_maximum(store: Store) -> None:
    limits = ModelLimits(store, SteppedClock())
    own = ErrorVerdict(
        "max_tokens_too_large", "its own", available_output=4_096, output_limit=4_096
    )
    assert await learn(limits, own, tokens=10_000) is None
    loaded = await limits.load(key("a"), 128_000)
    assert loaded.output_cap == 4_096
    assert loaded.learnt_window is None


@pytest.mark.parametrize(
    ("prompt", "is_kept"),
    [
        (3_000, False),
        (9_000, True),
        (31_000, True),
        (33_000, False),
    ],
)
async def test_stores_a_guessed_window_after_a_success_of_its_size(
    store: Store, prompt: int, is_kept: bool
) -> None:
    limits = ModelLimits(store, SteppedClock())
    silent = ErrorVerdict("prompt_too_long", "it says so")
    assert await limits.learn_window(key("a"), silent, 128_000, 50_000) is not None
    await limits.record_success(key("a"), prompt)
    elsewhere = ModelLimits(store, SteppedClock())
    loaded = await elsewhere.load(key("a"), 128_000)
    assert loaded.learnt_window == (32_000 if is_kept else None)


@pytest.mark.parametrize(
    ("prompt", "unreported", "cap"),
    [
        (40_000, 0, 23_200),
        (40_000, 3_000, 22_200),
        (40_000, 40_000, 12_000),
    ],
)
def test_keeps_at_most_half_of_the_free_tokens_as_margin(
    prompt: int, unreported: int, cap: int
) -> None:
    """Tokens that the provider has not counted need a larger margin than those it has."""
    limits = CallLimits(64_000, learnt_window=64_000)
    assert limits.compute_max_output(prompt, unreported_tokens=unreported) == cap
