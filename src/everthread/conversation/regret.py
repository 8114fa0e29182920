"""What compactions took out and is fetched again: noticed call by call, written down for the compaction that did it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from everthread.conversation.events import Notice, Regretted
from everthread.core.lookup import is_lookup
from everthread.core.messages import Call, Message, Result, results_of
from everthread.core.redaction import redact
from everthread.core.regret import Removed, calls_in, keys_in
from everthread.core.toolkinds import clip, one_line
from everthread.errors import StoreError

if TYPE_CHECKING:
    from everthread.conversation.compaction import Draft
    from everthread.conversation.state import ConversationState

REMOVED = "removed"
"""The state that tells what is out of view, kept with each session a compaction made."""
SHOWN = 120


class Regrets:
    """Of one conversation."""

    def __init__(self, live: ConversationState) -> None:
        self._live = live
        self._removed = Removed()
        self._covered: dict[int, str] | None = None
        """Message -> the session whose compaction covers it; read when a lookup is first made."""
        self._calls: set[str] = set()
        """Calls that fetched something again."""

    async def heard(self, answered: Iterable[tuple[Call, Result]]) -> None:
        """Calls were answered. A store that cannot write it down is told; the turn goes on."""
        live = self._live
        if not live.compactions:
            return
        try:
            for call, result in answered:
                await self._heard(call, result)
        except StoreError as error:
            live.emit(Notice(live.session.id, f"What was fetched again could not be written down: {error}"))

    def again(self) -> list[int]:
        """Ids of the messages in view that brought something back, as long as they are what they were."""
        if not self._calls:
            return []
        return [
            message.id
            for message in self._live.stored
            if message.kind == "message" and any(result.call_id in self._calls for result in results_of(message.body))
        ]

    async def took_out(self, made: Draft) -> None:
        """A compaction was committed, and the conversation is in the session it made."""
        live = self._live
        calls = calls_in(made.bodies)
        self._removed.take_out(live.session.id, _gone(made, calls), keys_in(_whole(made), calls))
        self._covered = None
        await live.setup.store.put_state(live.session.id, REMOVED, self._removed.dump())

    async def restore(self) -> None:
        """Go on from what the last compaction left, and from what was called since."""
        live, store = self._live, self._live.setup.store
        self._removed, self._covered, self._calls = Removed(), None, set()
        if not live.compactions:
            return
        session = live.session
        state = await store.get_state(session.id, REMOVED)
        if state is None and session.kind == "continuation" and session.parent is not None:
            state = await store.get_state(session.parent, REMOVED)
        self._removed = Removed.load(state)
        self._calls = {record.call_id for record in await store.regrets(session.thread) if record.call_id}
        made = max((message.id for message in live.stored if message.kind != "message"), default=0)
        calls = calls_in(live.bodies)
        for message in live.stored:
            for result in results_of(message.body) if message.id > made else ():
                if result.call_id in calls:
                    self._removed.heard(calls[result.call_id], result, {})

    async def _heard(self, call: Call, result: Result) -> None:
        live, store = self._live, self._live.setup.store
        covered = await self._covers() if is_lookup(call.name) else {}
        regret = self._removed.heard(call, result, covered)
        if regret is None:
            return
        if await store.note_regret(regret.session, regret.kind, regret.what, call_id=call.id):
            self._calls.add(call.id)
            shown = clip(one_line(redact(regret.shown)), SHOWN)
            live.emit(Regretted(live.session.id, regret.session, regret.kind, shown))

    async def _covers(self) -> dict[int, str]:
        if self._covered is None:
            self._covered = {
                number: record.session
                for record in await self._live.setup.store.compactions(self._live.session.thread)
                if record.reverted is None
                for number in record.record.covered
            }
        return self._covered


def _whole(made: Draft) -> list[Message]:
    """The messages that a compaction left as they were."""
    kept = zip(made.compaction.messages, made.compaction.kept, strict=True)
    return [message for message, index in kept if index is not None and message is made.bodies[index]]


def _gone(made: Draft, calls: dict[str, Call]) -> Iterator[str]:
    """Keys of what a compaction took out. What was out already, and stood there in a few words, is not among them."""
    whole = [index for index in made.compaction.covered if made.stored[index].kind == "message"]
    yield from keys_in([made.bodies[index] for index in whole], calls)
    yield from _cut(made, calls)
    yield from (item.id for item in made.compaction.to_store)


def _cut(made: Draft, calls: dict[str, Call]) -> Iterator[str]:
    """Results that stay in a few words: their calls, and the messages they can be read in."""
    for message, index in zip(made.compaction.messages, made.compaction.kept, strict=True):
        if index is None or message is made.bodies[index] or made.stored[index].kind != "message":
            continue
        old: Sequence[Result] = results_of(made.bodies[index])
        new = {result.call_id: result.text for result in results_of(message)}
        changed = [result for result in old if new.get(result.call_id) != result.text]
        bodies: list[Message] = [
            {"role": "tool", "tool_call_id": result.call_id, "content": result.text} for result in changed
        ]
        yield from keys_in(bodies, calls)
        if changed:
            yield f"message:{made.stored[index].id}"
