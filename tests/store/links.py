"""Links of threads whose clients send their whole history."""

from __future__ import annotations

from everthread.store.records import NewSession
from everthread.store.rewrite_records import NewThreadLink, ThreadLink
from everthread.store.store import Store
from tests.store.messages import new_user_message


def new_link(
    digest: str,
    previous: str = "",
    *,
    thread: str = "A",
    length: int = 1,
    tenant: str = "t",
) -> NewThreadLink:
    link = ThreadLink(
        tenant,
        scope="",
        digest=digest,
        previous=previous,
        loose_digest=f"s{digest}",
        thread=thread,
        message_count=length,
        last_message_id=None,
        results=f"r{digest}",
    )
    session = NewSession(
        id=thread,
        tenant=tenant,
        platform="gateway",
    )
    messages = [new_user_message(f"said {digest}", event=digest)]
    return NewThreadLink(
        link,
        previous,
        session,
        messages=messages,
    )


def new_chain(length: int) -> list[NewThreadLink]:
    """Return links with the digests `d1`, `d2` …, each of which follows the one before."""
    first = new_link("d1")
    return [
        first,
        *(new_link(f"d{n}", f"d{n - 1}", length=n) for n in range(2, length + 1)),
    ]


async def extend(store: Store, new: NewThreadLink) -> ThreadLink | None:
    """Store one link; return the stored one, or None if its thread does not end at the link that it follows."""
    [link] = await store.client_histories.extend_thread(new.link.thread, [new])
    return link
