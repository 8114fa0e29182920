"""The links of threads that a process remembers."""

from __future__ import annotations

from dataclasses import replace

from everthread.thread.matching.history import History, build_history, identify_message
from everthread.thread.matching.link_cache import LinkCache
from everthread.thread.matching.thread_match import ClientScope, ThreadMatch

FAMILY = ClientScope("t", "")


def history_of(*texts: str) -> History:
    messages = [
        {
            "role": "user",
            "content": text,
        }
        for text in texts
    ]
    return build_history([identify_message("openai_chat", message) for message in messages])


def test_a_link_stored_after_its_successor_is_not_the_last_one() -> None:
    """An answer may be stored while the request that continues it is already expected."""
    history = history_of("one", "two", "three")
    start = history.first_messages(1)
    first = ThreadMatch(FAMILY, "thread")
    second = first.advance_to(start)
    cache = LinkCache()
    cache.remember(first.make_link(start), start)
    cache.remember(second.make_link(history), history)
    cache.remember(first.make_link(start), start)
    cache.remember(second.make_link(history), history)
    assert cache.find_link(FAMILY, start.extend(history.identities[2:])) is None


def test_updates_an_earlier_link_with_its_stored_form() -> None:
    history = history_of("one", "two")
    start = history.first_messages(1)
    first = ThreadMatch(FAMILY, "thread")
    second = first.advance_to(start)
    cache = LinkCache()
    cache.remember(first.make_link(start), start)
    assert not cache.update_earlier_link(first.make_link(start), history.digest(2)), "it is an end"
    cache.remember(second.make_link(history), history)
    stored = replace(first.make_link(start), last_message_id=7)
    assert cache.update_earlier_link(stored, history.digest(2))
    found_link = cache.find_link(FAMILY, start)
    assert found_link is not None
    assert found_link.link_match.link.last_message_id == 7
    assert found_link.link_match.next_digest == history.digest(2)
