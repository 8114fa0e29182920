"""A cache of the links of threads (ends of requests and answers) that this process has seen."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.core.recent_dict import RecentDict
from everthread.store.rewrite_records import ThreadLink, ThreadLinkMatch
from everthread.thread.matching.history import History
from everthread.thread.matching.history_relations import (
    KnownLink,
)
from everthread.thread.matching.thread_match import ClientScope, LinkKey
from everthread.thread.matching.thread_names import is_thread_named

MAX_LINKS = 10_000
MAX_EARLIER_LINKS = 4_000
MIN_END_MESSAGES = 4
"""Minimum messages of a thread's end by which it is found in a history without its beginning."""
MAX_END_MESSAGES = 8
"""Maximum messages of a thread's end to compare."""


class LastMessagesCache:
    """The last messages of threads, used to recognise a part of a conversation."""

    def __init__(self) -> None:
        self._ends: RecentDict[LinkKey, tuple[str, tuple[str, ...]]] = RecentDict(MAX_LINKS)
        """By a thread's last message: the digest of its last link, and the loose fingerprints of its last messages."""

    def remember(self, link: ThreadLink, history: History) -> None:
        """Remember the last messages of a thread, if there are enough to recognise it."""
        fingerprints = _list_end_fingerprints(history)
        if len(fingerprints) < MIN_END_MESSAGES:
            return
        key = (link.tenant, link.scope, fingerprints[-1])
        self._ends[key] = link.digest, fingerprints

    def find(self, client_scope: ClientScope, history: History) -> tuple[str, int] | None:
        """Find a thread whose end is in a history; return the digest of its last link, and the end's position."""
        positions = [
            (position, identity.loose_fingerprint)
            for position, identity in enumerate(history.identities, 1)
            if identity.loose_fingerprint
        ]
        fingerprints = [fingerprint for _, fingerprint in positions]
        for end in range(len(positions) - 1, 0, -1):
            position, last_fingerprint = positions[end - 1]
            thread_end = self._ends.get((*client_scope, last_fingerprint))
            if thread_end is not None and _has_thread_end_before(fingerprints, end, thread_end[1]):
                return thread_end[0], position
        return None


class LinkCache:
    """The last links of recently used threads, and links that threads have passed."""

    def __init__(self) -> None:
        self._last_links: RecentDict[LinkKey, ThreadLinkMatch] = RecentDict(MAX_LINKS)
        """The last known link of threads, by digest and by loose digest."""
        self._earlier_links: RecentDict[LinkKey, ThreadLinkMatch] = RecentDict(MAX_EARLIER_LINKS)
        """Earlier links by digest, at which repeated requests end."""
        self._named_thread_ends: RecentDict[str, str] = RecentDict(MAX_LINKS)
        """The digest of the last known link of threads that clients name."""
        self._last_messages = LastMessagesCache()

    def find_link(self, client_scope: ClientScope, history: History) -> KnownLink | None:
        """Find the last link of a thread that a history continues.

        An earlier link is found only if the history ends there.
        """
        earlier_link = self._earlier_links.get((*client_scope, history.digest(len(history))))
        if earlier_link is not None:
            return KnownLink(earlier_link, len(history))
        tenant, scope = client_scope
        prefixes = zip(
            range(len(history), 0, -1),
            reversed(history.digests),
            reversed(history.loose_digests),
            strict=True,
        )
        for length, digest, loose_digest in prefixes:
            link_match = self._last_links.get((tenant, scope, digest))
            if link_match is None and loose_digest:
                link_match = self._last_links.get((tenant, scope, loose_digest))
                if link_match is not None and not history.equals_except_cleared(
                    link_match.results, length
                ):
                    link_match = None
            if link_match is not None:
                return KnownLink(link_match, length)
        return None

    def find_by_last_messages(
        self, client_scope: ClientScope, history: History
    ) -> KnownLink | None:
        """Find the thread whose last messages are in a history that lacks the thread's beginning."""
        thread_end = self._last_messages.find(client_scope, history)
        if thread_end is None:
            return None
        digest, length = thread_end
        link_match = self._last_links.get((*client_scope, digest))
        return None if link_match is None else KnownLink(link_match, length)

    def list_last_links(
        self, client_scope: ClientScope, keys: Sequence[str]
    ) -> list[ThreadLinkMatch]:
        """List the last links of threads that have one of these digests or loose digests."""
        link_matches = (self._last_links.get((*client_scope, key)) for key in keys)
        return [link_match for link_match in link_matches if link_match is not None]

    def ends_at(self, client_scope: ClientScope, thread_id: str, digest: str) -> bool:
        """Return whether the last known link of a thread has this digest."""
        link_match = self._last_links.get((*client_scope, digest))
        if (
            link_match is None
            or link_match.link.thread != thread_id
            or link_match.link.digest != digest
        ):
            return False
        return self._named_thread_ends.get(thread_id, digest) == digest

    def find_named_end(self, thread_id: str) -> str | None:
        """Return the digest of the last known link of a thread that a client names."""
        return self._named_thread_ends.get(thread_id)

    def remember(self, link: ThreadLink, history: History) -> None:
        """Remember a thread's new last link in place of the previous one."""
        if self._update_last_link(link):
            return
        for key in _list_previous_keys(link, history):
            earlier_link = self._last_links.get(key)
            if earlier_link is None or earlier_link.link.thread != link.thread:
                continue  # a branch or a side call: the thread still ends there
            del self._last_links[key]
            if earlier_link.link.digest == key[2] != link.digest:
                self._earlier_links[key] = ThreadLinkMatch(earlier_link.link, link.digest, "")
        link_match = ThreadLinkMatch(link, None, history.join_result_hashes(0, link.message_count))
        self._last_links[link.tenant, link.scope, link.digest] = link_match
        if link.loose_digest:
            self._last_links[link.tenant, link.scope, link.loose_digest] = link_match
        self._last_messages.remember(link, history)
        if is_thread_named(link.scope):
            self._named_thread_ends[link.thread] = link.digest

    def _update_last_link(self, link: ThreadLink) -> bool:
        """Replace a remembered last link by its stored form; return False if it is not remembered."""
        key = (link.tenant, link.scope, link.digest)
        known_link = self._last_links.get(key)
        if known_link is None or known_link.link.thread != link.thread:
            return False
        if (link.tenant, link.scope, link.previous) in self._last_links:
            return False  # the link before was stored late or is new: it is passed now
        link_match = ThreadLinkMatch(link, None, known_link.results)
        self._last_links[key] = link_match
        if link.loose_digest:
            self._last_links[link.tenant, link.scope, link.loose_digest] = link_match
        return True

    def update_earlier_link(self, link: ThreadLink, next_digest: str) -> bool:
        """Update a remembered link that is no longer its thread's last one with its stored form.

        `next_digest`: the digest of the next link. Return False if the link is not remembered as an earlier one.
        """
        key = (link.tenant, link.scope, link.digest)
        known_link = self._earlier_links.get(key)
        if known_link is None or known_link.link.thread != link.thread:
            return False
        self._earlier_links[key] = ThreadLinkMatch(link, next_digest, "")
        return True

    def forget_thread(self, thread_id: str) -> None:
        """Forget the last link of a thread that a client names."""
        self._named_thread_ends.pop(thread_id, None)

    def forget(self, digest: str) -> None:
        """Forget the links with this digest."""
        for links in (self._last_links, self._earlier_links):
            keys = [key for key, link_match in links.items() if link_match.link.digest == digest]
            for key in keys:
                del links[key]
        ended_thread_ids = [
            thread_id for thread_id, end in self._named_thread_ends.items() if end == digest
        ]
        for thread_id in ended_thread_ids:
            del self._named_thread_ends[thread_id]


def _list_previous_keys(link: ThreadLink, history: History) -> list[LinkKey]:
    """List the keys of the previous link: its digest and its loose digest."""
    if not link.previous:
        return []
    keys = [(link.tenant, link.scope, link.previous)]
    for index in range(link.message_count - 1, -1, -1):  # usually close to the end
        if history.digests[index] == link.previous:
            return [*keys, (link.tenant, link.scope, history.loose_digests[index])]
    return keys


def _list_end_fingerprints(history: History) -> tuple[str, ...]:
    """Return the loose fingerprints of the last messages of a history, the newest last."""
    last_fingerprints = [
        identity.loose_fingerprint for identity in history.identities[-2 * MAX_END_MESSAGES :]
    ]
    return tuple(fingerprint for fingerprint in last_fingerprints if fingerprint)[
        -MAX_END_MESSAGES:
    ]


def _has_thread_end_before(
    fingerprints: Sequence[str], position: int, thread_end: Sequence[str]
) -> bool:
    """Return whether a history has the end of a thread just before a position.

    The history may begin within that end, but at least `MIN_END_MESSAGES` messages must agree.
    """
    count = min(position, len(thread_end))
    if count < MIN_END_MESSAGES:
        return False
    return list(fingerprints[position - count : position]) == list(thread_end[-count:])
