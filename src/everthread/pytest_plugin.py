"""For your own pytest suite: does your agent keep the provider's cache warm, and do the user's rules survive?

    def test_the_cache_stays_warm(assert_prefix_stable):
        assert_prefix_stable(requests)                 # as you recorded them, or a `ScriptedModel`

    def test_rules_are_kept(assert_rules_survive):
        assert_rules_survive(messages, compacted)

pytest loads this plugin where Everthread is installed; the rest of Everthread is loaded when a test uses it. The
functions can also be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from everthread.core.caching.shared_prefix import PrefixDiff
    from everthread.core.messages import Message
    from everthread.core.types import ModelRequest
    from everthread.testing import PrefixWatch

MAX_LISTED_FAILURES = 5
"""Maximum failures to list."""


def assert_prefix_stable(sent: Any, *, rewrites: int = 0) -> None:
    """Check that each request begins with the whole previous request, so that the provider can read it from its cache.

    `sent`: the requests in order, each a `ModelRequest`, a JSON body of OpenAI's or Anthropic's protocol or a list of
    messages; or the `ScriptedModel` that received them; or the `PrefixWatch` that listened. `rewrites`: how often
    compactions may change the beginning. Cache marks are ignored, and so is a last message that holds only text
    injected for one call (`<system-reminder>`).
    """
    __tracebackhide__ = True
    breaks = _find_breaks(sent)
    if len(breaks) > rewrites:
        count_phrase = "once" if len(breaks) == 1 else f"{len(breaks)} times"
        allowed_phrase = f", {rewrites} allowed" if rewrites else ""
        raise AssertionError(
            _list_failures(
                f"the beginning of the prompt changed {count_phrase}{allowed_phrase}; the cache is lost there:",
                breaks,
            )
        )


_MAX_WHOLE_CHARS = 200
_START_CHARS = 40
"""Characters at the start of a message longer than `_MAX_WHOLE_CHARS` that must survive."""


def assert_rules_survive(before: Any, after: Any, *, rules: Iterable[str] = ()) -> None:
    """Check that every message of the user is in the compacted conversation, word for word.

    `before`: the original messages; `after`: the compacted conversation: messages, a request, the result of `compress`,
    or a text. `rules`: check these sentences instead of the messages.
    """
    __tracebackhide__ = True
    from everthread.core.secrets.redaction import redact
    from everthread.core.turns import user_text

    expected_rules = dict.fromkeys(rules, "given")
    if not expected_rules:
        texts = [
            (source, redact(user_text(message)))
            for source, message in enumerate(_as_messages(before))
        ]
        # A long message may be shortened; its beginning must be there.
        expected_rules = {
            text if len(text) <= _MAX_WHOLE_CHARS else text[:_START_CHARS]: f"message {source}"
            for source, text in texts
            if text
        }
    if not expected_rules:
        raise AssertionError(
            "these messages have no text of the user, so nothing is tested; give rules=[…]"
        )
    result = _normalize_text(_as_text(after))
    missing_rules = [
        f"{rule!r} ({source})"
        for rule, source in expected_rules.items()
        if _normalize_text(rule).rstrip(".!") not in result
    ]
    if missing_rules:
        raise AssertionError(
            _list_failures(
                f"{len(missing_rules)} of {len(expected_rules)} rules are gone:",
                missing_rules,
            )
        )


@pytest.fixture(name="assert_prefix_stable")
def _prefix_stable_fixture() -> Callable[..., None]:
    """Provide `assert_prefix_stable` as a fixture."""
    return assert_prefix_stable


@pytest.fixture(name="assert_rules_survive")
def _rules_survive_fixture() -> Callable[..., None]:
    """Provide `assert_rules_survive` as a fixture."""
    return assert_rules_survive


@pytest.fixture
def prefix_watch() -> Iterator[PrefixWatch]:
    """A listener (`open_conversation(…, listener=prefix_watch)`): the test fails if a request changes its prefix."""
    from everthread.testing import PrefixWatch

    watch = PrefixWatch()
    yield watch
    assert_prefix_stable(watch)


def _find_breaks(sent: Any) -> list[str]:
    from everthread.core.caching.shared_prefix import compare_prefixes
    from everthread.testing import PrefixWatch

    if isinstance(sent, PrefixWatch):
        return [str(diff) for diff in sent.broken]
    requests = [_as_request(request) for request in getattr(sent, "requests", sent)]
    if len(requests) < 2:
        raise AssertionError(f"two requests are needed to compare; got {len(requests)}")
    differences: list[tuple[int, PrefixDiff]] = [
        (number, compare_prefixes(_drop_injected(first_request), second_request))
        for number, (first_request, second_request) in enumerate(pairwise(requests), 2)
    ]
    return [
        f"request {number} does not extend the one before: {diff}"
        for number, diff in differences
        if not diff.is_extension
    ]


def _as_request(value: Any) -> ModelRequest:
    from everthread.core.types import ModelRequest
    from everthread.wire.codecs import decode_any

    return value if isinstance(value, ModelRequest) else decode_any(value)[1]


def _drop_injected(request: ModelRequest) -> ModelRequest:
    """Return the request without messages injected at its end for this call only."""
    from everthread.core.messages import text_of
    from everthread.core.types import ModelRequest
    from everthread.core.user_words import remove_volatile_elements

    messages = list(request.messages)
    while (
        messages
        and messages[-1]["role"] == "user"
        and (text := text_of(messages[-1]))
        and not remove_volatile_elements(text)
    ):
        messages.pop()
    return ModelRequest(request.model, messages, request.system, request.tools)


def _as_messages(value: Any) -> Sequence[Message]:
    if hasattr(value, "messages"):  # a request, or what a compaction gave
        messages: Sequence[Message] = value.messages
        return messages
    return _as_request(value).messages


def _as_text(value: Any) -> str:
    from everthread.core.messages import results_of, text_of

    if isinstance(value, str):
        return value
    system = getattr(value, "system", value.get("system") if isinstance(value, Mapping) else None)
    texts = [str(system or "")]
    for message in _as_messages(value):
        texts += [text_of(message), *(result.text for result in results_of(message))]
    return "\n".join(texts)


def _normalize_text(text: str) -> str:
    return " ".join(text.split()).lower()


def _list_failures(heading: str, lines: Sequence[str]) -> str:
    listed_lines = [heading, *lines[:MAX_LISTED_FAILURES]]
    if len(lines) > MAX_LISTED_FAILURES:
        listed_lines.append(f"… and {len(lines) - MAX_LISTED_FAILURES} more")
    return "\n  ".join(listed_lines)
