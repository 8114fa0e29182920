"""The links of threads that a process remembers."""

from __future__ import annotations

from dataclasses import replace

from everthread.thread.matching.history import History, build_history, identify_message
from everthread.thread.matching.link_cache import LinkCache
from everthread.thread.matching.thread_match import Family, ThreadMatch

FAMILY = Family("t", "")


def history_of(*texts: str) -> History:
    said = [{"role": "user", "content": text} for text in texts]
    return build_history([identify_message("openai_chat", one) for one in said])


def test_a_point_stored_after_its_successor_was_announced_is_no_end() -> None:
    """An answer may be stored while the request that continues it is already expected."""
    whole = history_of("one", "two", "three")
    start = whole.first_messages(1)
    first = ThreadMatch(FAMILY, "thread")
    second = first.match_after(start)
    cache = LinkCache()
    cache.remember(first.make_link(start), start)
    cache.remember(second.make_link(whole), whole)
    cache.remember(first.make_link(start), start)
    cache.remember(second.make_link(whole), whole)
    assert cache.find_link(FAMILY, start.extend(whole.identities[2:])) is None


def test_a_passed_point_is_replaced_by_its_stored_form_and_stays_passed() -> None:
    whole = history_of("one", "two")
    start = whole.first_messages(1)
    first = ThreadMatch(FAMILY, "thread")
    second = first.match_after(start)
    cache = LinkCache()
    cache.remember(first.make_link(start), start)
    assert not cache.update_earlier(first.make_link(start), whole.digest(2)), (
        "it is an end"
    )
    cache.remember(second.make_link(whole), whole)
    stored = replace(first.make_link(start), message=7)
    assert cache.update_earlier(stored, whole.digest(2))
    again = cache.find_link(FAMILY, start)
    assert again is not None
    assert again.link_match.link.message == 7
    assert again.link_match.next_digest == whole.digest(2)
