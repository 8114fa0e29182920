"""The attempts after a refusal for size, and the output caps they ask for."""

from __future__ import annotations

from everthread import classify_error
from everthread.core.provider_errors.classification import ErrorVerdict
from everthread.thread.recovery import RecoveryAttempts, compute_lower_cap


def test_a_cap_never_falls_below_a_thinking_budget() -> None:
    """Providers refuse an output cap that the thinking budget reaches."""
    verdict = ErrorVerdict("max_tokens_too_large", "it says so", available_output=2_000)
    assert compute_lower_cap(verdict, 8_000, None) == 2_000
    assert compute_lower_cap(verdict, 8_000, 4_000) is None
    step = RecoveryAttempts().next_step(
        verdict, output_cap=8_000, enabled=True, thinking_budget=4_000
    )
    assert step.action == "compact", "then the prompt is what is too long"


def test_steps_after_a_refusal_grow_stronger_and_end() -> None:
    tried = RecoveryAttempts()
    verdict = classify_error(status=400, body="prompt is too long: 9000 tokens > 8000 maximum")
    steps = [tried.next_step(verdict, output_cap=None, enabled=True) for _ in range(4)]
    assert [step.action for step in steps] == ["compact"] * 3 + ["give_up"]
    assert tried.failure_text == "and nothing in it could be made smaller"
    assert RecoveryAttempts().next_step(verdict, output_cap=None, enabled=False).action == "give_up"
