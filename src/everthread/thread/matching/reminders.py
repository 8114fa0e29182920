"""Reminders that clients add to the newest user message and remove later."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from everthread.core.messages import text_of
from everthread.core.recent_dict import RecentDict
from everthread.store.rewrite_records import ThreadLinkMatch
from everthread.store.store import Store
from everthread.thread.matching.history import History, MessageIdentity, identify_message
from everthread.thread.matching.history_relations import KnownLink, ends_at_link
from everthread.thread.matching.link_cache import MAX_LINKS, LinkCache
from everthread.thread.matching.thread_query import ThreadQuery

_MAX_REMINDERS = 64
_MAX_REMINDER_READ_CHARS = 2_000_000
"""Maximum characters read to try reminders; fewer reminders are tried on long messages."""
_MAX_KEPT_REMINDERS = 8
_MAX_REMINDER_CHARS = 20_000
_BLANK_LINE_PATTERN = re.compile(r"\n\n+")


class Reminder(NamedTuple):
    """An addition to the newest user message."""

    appended_text: str
    blocks: Sequence[dict[str, Any]] = ()
    """Extra blocks after the message's own."""


class ReminderMatcher:
    """Find threads whose messages had reminders that the client has removed since."""

    def __init__(self, store: Store, cache: LinkCache) -> None:
        self._store = store
        self._cache = cache
        self._reminders: RecentDict[str, Sequence[Reminder]] = RecentDict(MAX_LINKS)
        """By tenant, the reminders that its clients used, the latest first."""

    async def find(self, query: ThreadQuery, matched_length: int) -> KnownLink | None:
        """Find a longer known beginning by putting a removed reminder back into the previous user message.

        Some clients add a reminder to the newest user message and remove it later. So the previous user message had
        such a reminder when it was the newest: probably the one that the newest message has now, or one found this way
        before. The known beginning ends before the newest user message, or with the previous one if its answer is not
        stored yet.
        """
        wire_messages = query.caller_history.wire_messages
        identities = query.history.identities
        newest_index = find_last_user_message(identities, matched_length + 1, len(identities))
        previous_index = find_last_user_message(identities, 0, newest_index)
        if previous_index < 0:
            return None
        chars = len(text_of(wire_messages[previous_index])) + len(
            text_of(wire_messages[newest_index])
        )
        max_reminders = min(_MAX_REMINDERS, _MAX_REMINDER_READ_CHARS // chars)
        reminders = [
            *self._reminders.get(query.client_scope.tenant, ()),
            *itertools.islice(list_reminders(wire_messages[newest_index]), max_reminders),
        ][:max_reminders]
        earlier_history = query.history.first_messages(previous_index)
        reminded_identities = [
            identify_message(
                query.settings.api,
                with_reminder(wire_messages[previous_index], reminder),
            )
            for reminder in reminders
        ]
        for length in (newest_index, previous_index + 1):
            if length <= matched_length:
                break
            identities_after = identities[previous_index + 1 : length]
            reminded_histories = [
                earlier_history.extend((reminded_identity, *identities_after))
                for reminded_identity in reminded_identities
            ]
            for link_match in await self._list_end_links(query, reminded_histories):
                for reminder, reminded_history in zip(reminders, reminded_histories, strict=True):
                    if ends_at_link(reminded_history, length, link_match):
                        self._keep_reminder(query.client_scope.tenant, reminder)
                        return KnownLink(link_match, length)
        return None

    async def _list_end_links(
        self, query: ThreadQuery, histories: Sequence[History]
    ) -> Sequence[ThreadLinkMatch]:
        """List the links at which one of these histories ends."""
        client_scope = query.client_scope
        digests = [history.digest(len(history)) for history in histories]
        loose_digests = [history.loose_digest(len(history)) for history in histories]
        if query.uses_memory:
            link_matches = self._cache.list_last_links(client_scope, [*digests, *loose_digests])
            if link_matches:
                return link_matches
        stored_link = await self._store.client_histories.find_link(*client_scope, digests)
        if stored_link:
            return [stored_link]
        return await self._store.client_histories.find_links_by_loose_digest(
            *client_scope, loose_digests
        )

    def _keep_reminder(self, tenant: str, reminder: Reminder) -> None:
        """Keep a reminder of a tenant's clients, to try it first next time."""
        if len(reminder[0]) + len(str(reminder[1])) > _MAX_REMINDER_CHARS:
            return
        other_reminders = (
            other_reminder
            for other_reminder in self._reminders.pop(tenant, ())
            if other_reminder != reminder
        )
        self._reminders[tenant] = [reminder, *other_reminders][:_MAX_KEPT_REMINDERS]


def find_last_user_message(messages: Sequence[MessageIdentity], first: int, end: int) -> int:
    """Return the last index in `[first, end)` with words of the user, or -1."""
    for index in range(end - 1, first - 1, -1):
        if messages[index].has_user_words:
            return index
    return -1


def list_reminders(value: dict[str, Any]) -> Iterator[Reminder]:
    """Yield possible reminders: each end of a message after a blank line or a block, the shortest first."""
    parts = _list_content_parts(value)
    text = str(parts[-1].get("text") or "")
    for match in reversed(list(_BLANK_LINE_PATTERN.finditer(text))):
        yield Reminder(text[match.start() :])
    for index in range(len(parts) - 1, 0, -1):
        yield Reminder("", parts[index:])


def with_reminder(value: dict[str, Any], reminder: Reminder) -> dict[str, Any]:
    """Return a user message with the reminder that it had as the newest message."""
    appended_text, blocks = reminder
    parts = _list_content_parts(value)
    if appended_text:
        last_text = parts[-1].get("text") or ""
        parts[-1] = {**parts[-1], "text": f"{last_text}{appended_text}"}
    return {**value, "content": [*parts, *blocks]}


def _list_content_parts(value: dict[str, Any]) -> list[dict[str, Any]]:
    content = value["content"]
    parts = content if isinstance(content, list) else [content]
    return [
        part if isinstance(part, dict) else {"type": "text", "text": str(part)} for part in parts
    ]
