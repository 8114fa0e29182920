"""For your own pytest suite: does your agent keep the provider's cache warm, and do the user's rules survive?

    def test_the_cache_stays_warm(assert_prefix_stable):
        assert_prefix_stable(requests)                 # as you recorded them, or a `ScriptedModel`

    def test_rules_are_kept(assert_rules_survive):
        assert_rules_survive(messages, compacted)

pytest loads this by itself where Everthread is installed; nothing else of Everthread is loaded until a test asks. The
functions can also be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from everthread.core.cache_control import PrefixDiff
    from everthread.core.messages import Message
    from everthread.core.types import Request
    from everthread.testing import PrefixWatch

SHOWN = 5
"""So many failures are told one by one."""


def assert_prefix_stable(sent: Any, *, rewrites: int = 0) -> None:
    """Each request begins with the whole of the one before, so that the provider's cache holds it.

    `sent`: requests in order, each a `Request`, a JSON body of OpenAI's or Anthropic's protocol or a list of messages;
    or a `ScriptedModel` that was sent them; or a `PrefixWatch` that listened. `rewrites`: how often the beginning may
    change, for compactions. Marks for the cache are no difference; a last message that holds nothing but what was
    injected for one call (`<system-reminder>`) is left out.
    """
    __tracebackhide__ = True
    broken = _broken(sent)
    if len(broken) > rewrites:
        times = "once" if len(broken) == 1 else f"{len(broken)} times"
        allowed = f", {rewrites} allowed" if rewrites else ""
        raise AssertionError(
            _listed(f"the beginning of the prompt changed {times}{allowed}; the cache is lost there:", broken)
        )


_WHOLE, _BEGINNING = 200, 40
"""A message of so many characters stands whole; of a longer one so many are looked for."""


def assert_rules_survive(before: Any, after: Any, *, rules: Iterable[str] = ()) -> None:
    """Every message of the user stands in what came of the conversation, word for word.

    `before`: the messages as they were said; `after`: what the model is sent now: messages, a request, what `compress`
    gave, or a text. `rules`: sentences that must be there besides; with them the messages themselves need not be.
    """
    __tracebackhide__ = True
    from everthread.core.redaction import redact
    from everthread.core.transcript import user_text

    found = dict.fromkeys(rules, "given")
    if not found:
        said = [(where, redact(user_text(message))) for where, message in enumerate(_messages(before))]
        # A long message may be shortened where many share a small room: its beginning is there.
        found = {text if len(text) <= _WHOLE else text[:_BEGINNING]: f"message {where}" for where, text in said if text}
    if not found:
        raise AssertionError("the user says nothing in these messages, so that nothing is tested; name them: rules=[…]")
    there = _plain(_text(after))
    missing = [f"{rule!r} ({where})" for rule, where in found.items() if _plain(rule).rstrip(".!") not in there]
    if missing:
        raise AssertionError(_listed(f"{len(missing)} of {len(found)} rules are gone:", missing))


@pytest.fixture(name="assert_prefix_stable")
def _prefix_stable() -> Callable[..., None]:
    """The function of this name."""
    return assert_prefix_stable


@pytest.fixture(name="assert_rules_survive")
def _rules_survive() -> Callable[..., None]:
    """The function of this name."""
    return assert_rules_survive


@pytest.fixture
def prefix_watch() -> Iterator[PrefixWatch]:
    """A listener for conversations (`open_conversation(…, listener=prefix_watch)`); checked when the test is over."""
    from everthread.testing import PrefixWatch

    watch = PrefixWatch()
    yield watch
    assert_prefix_stable(watch)


def _broken(sent: Any) -> list[str]:
    from everthread.core.cache_control import shared_prefix
    from everthread.testing import PrefixWatch

    if isinstance(sent, PrefixWatch):
        return [str(diff) for diff in sent.broken]
    requests = [_request(one) for one in getattr(sent, "requests", sent)]
    if len(requests) < 2:
        raise AssertionError(f"it takes two requests to compare; given: {len(requests)}")
    found: list[tuple[int, PrefixDiff]] = [
        (number, shared_prefix(_kept(earlier), later)) for number, (earlier, later) in enumerate(pairwise(requests), 2)
    ]
    return [f"request {number} does not extend the one before: {diff}" for number, diff in found if not diff.extends]


def _request(one: Any) -> Request:
    from everthread.core.types import Request
    from everthread.wire.codecs import decode_any

    return one if isinstance(one, Request) else decode_any(one)[1]


def _kept(request: Request) -> Request:
    """The request without what was injected at its end for this call only."""
    from everthread.core.messages import strip_surroundings, text_of
    from everthread.core.types import Request

    kept = list(request.messages)
    while kept and kept[-1]["role"] == "user" and (said := text_of(kept[-1])) and not strip_surroundings(said):
        kept.pop()
    return Request(request.model, kept, request.system, request.tools)


def _messages(given: Any) -> Sequence[Message]:
    if hasattr(given, "messages"):  # a request, or what a compaction gave
        found: Sequence[Message] = given.messages
        return found
    return _request(given).messages


def _text(given: Any) -> str:
    from everthread.core.messages import results_of, text_of

    if isinstance(given, str):
        return given
    system = getattr(given, "system", given.get("system") if isinstance(given, Mapping) else None)
    texts = [str(system or "")]
    for message in _messages(given):
        texts += [text_of(message), *(result.text for result in results_of(message))]
    return "\n".join(texts)


def _plain(text: str) -> str:
    return " ".join(text.split()).lower()


def _listed(head: str, lines: Sequence[str]) -> str:
    more = [f"… and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return "\n  ".join([head, *lines[:SHOWN], *more])
