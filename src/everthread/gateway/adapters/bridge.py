"""Between a service's chats and our threads: each chat its thread, each message once, each answer back, in order.

What must outlive the process is one record a chat, in the store: its thread, where answers go, the events seen last,
and which answers arrived. After a restart the rest is delivered. An answer may arrive twice where a process dies
between sending it and writing that down; it is never lost while the service takes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from everthread.core.redaction import redact
from everthread.errors import EverthreadError
from everthread.gateway.adapters.base import Carrier, Inbound, NotDeliveredError, Outbound
from everthread.gateway.api.agents import NewThread
from everthread.gateway.api.queue import TurnDesk, answer_text
from everthread.gateway.errors import Refused
from everthread.store.models import QueuedTurn

_LOG = logging.getLogger("everthread.gateway")

RECENT = 200
"""Events of a chat that are remembered."""
TRIES = 6
LONGEST_WAIT = 60.0


@dataclass(frozen=True, slots=True)
class Chat:
    """What is kept of a chat."""

    thread: str
    reply: str = ""
    recent: tuple[tuple[str, str], ...] = ()
    """Events and their turns, the latest last."""
    waiting: tuple[tuple[str, str], ...] = ()
    """Those whose answers did not arrive yet."""

    @classmethod
    def load(cls, state: Any) -> Chat:
        pairs = {name: tuple((str(a), str(b)) for a, b in state.get(name, ())) for name in ("recent", "waiting")}
        return cls(str(state["thread"]), str(state.get("reply", "")), **pairs)


@dataclass(slots=True)
class _Line:
    """A chat in this process."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    task: asyncio.Task[None] | None = None


class Bridge:
    """One adapter's chats. `tenant` None: each chat is a tenant of its own, so that none sees another's threads."""

    def __init__(
        self,
        desk: TurnDesk,
        carrier: Carrier,
        tenant: str | None,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._desk = desk
        self._store = desk.store
        self._carrier = carrier
        self._tenant = tenant
        self._pause = pause
        self._scope = f"adapter:{carrier.platform}:{carrier.name}"
        self._lines: dict[str, _Line] = {}
        self._listing = asyncio.Lock()
        self._closing = False

    # Life

    async def start(self) -> None:
        """Deliver what an earlier process left."""
        for chat in await self._chats():
            known = await self._load(chat)
            if known is not None and known.waiting:
                self._wake(chat)

    async def close(self) -> None:
        """Stop delivering; what is left is delivered after the next start."""
        self._closing = True
        tasks = [line.task for line in self._lines.values() if line.task is not None and not line.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # In

    async def take(self, inbound: Inbound) -> tuple[str, str]:
        """Queue a message; its thread and its turn. It is stored when this returns. `Refused` where it cannot be."""
        line = self._lines.setdefault(inbound.chat, _Line())
        async with line.lock:
            known = await self._load(inbound.chat) or await self._begun(inbound)
            turn = dict(known.recent).get(inbound.event)
            if turn is None:
                known, made = await self._submitted(known, inbound)
                turn, pair = made.id, (inbound.event, made.id)
                known = replace(
                    known,
                    reply=inbound.reply or known.reply,
                    recent=(*known.recent, pair)[-RECENT:],
                    waiting=(*known.waiting, pair),
                )
                await self._save(inbound.chat, known)
        self._wake(inbound.chat)
        return known.thread, turn

    async def _submitted(self, known: Chat, inbound: Inbound) -> tuple[Chat, QueuedTurn]:
        """A thread that was deleted meanwhile is followed by a new one."""
        key, tenant = f"{self._scope}:{inbound.event}", self.tenant_of(inbound.chat)
        try:
            return known, await self._desk.submit(tenant, known.thread, inbound.text, key=key)
        except Refused as refused:
            if refused.status != 404:
                raise
        fresh = replace(await self._begun(inbound), recent=known.recent)
        return fresh, await self._desk.submit(tenant, fresh.thread, inbound.text, key=key)

    def tenant_of(self, chat: str) -> str:
        return self._tenant or f"{self._carrier.platform}:{self._carrier.name}:{chat}"

    async def _begun(self, inbound: Inbound) -> Chat:
        new = NewThread(user=inbound.user, platform=self._carrier.platform)
        session = await self._desk.create(self.tenant_of(inbound.chat), new)
        async with self._listing:
            chats = dict.fromkeys([*await self._chats(), inbound.chat])
            await self._store.put_state(self._scope, "chats", list(chats))
        return Chat(session.thread, inbound.reply)

    # Out

    def _wake(self, chat: str) -> None:
        line = self._lines.setdefault(chat, _Line())
        if not self._closing and (line.task is None or line.task.done()):
            line.task = asyncio.get_running_loop().create_task(self._deliver_all(chat, line))

    async def _deliver_all(self, chat: str, line: _Line) -> None:
        try:
            while (known := await self._load(chat)) is not None and known.waiting:
                event, turn_id = known.waiting[0]
                turn = await self._over(chat, turn_id)
                if turn is not None:
                    async with line.lock:
                        await self._moved(chat, turn)
                    await self._deliver(chat, known, event, turn)
                async with line.lock:
                    await self._arrived(chat, turn_id)
        except (EverthreadError, Refused) as error:
            _LOG.warning("%s: an answer waits: %s", self._scope, redact(str(error)))

    async def _over(self, chat: str, turn_id: str) -> QueuedTurn | None:
        """The turn when it is over; None where it is gone with its thread."""
        tenant = self.tenant_of(chat)
        try:
            turn = await self._desk.turn(tenant, turn_id)
        except Refused:
            return None
        while turn.open:
            turn = await self._desk.wait(turn)
            if turn.open:  # the desk closes: whoever comes next delivers it
                raise asyncio.CancelledError
        return turn

    async def _deliver(self, chat: str, known: Chat, event: str, turn: QueuedTurn) -> None:
        """Until it arrived, or the service will never take it; then it is told and left."""
        text = answer_text(turn) or "There is no answer."
        answer = Outbound(chat, known.reply, event, turn.thread, turn.id, turn.state, text)
        for number in range(1, TRIES + 1):
            try:
                await self._carrier.deliver(answer)
            except NotDeliveredError as error:
                last = error.final or number == TRIES
                _LOG.warning(
                    "%s: answer %s did not arrive%s: %s",
                    self._scope,
                    turn.id,
                    " and is given up" if last else "",
                    error,
                )
                if last:
                    return
                await self._pause(min(error.after or 2.0 ** (number - 1), LONGEST_WAIT))
            else:
                return

    async def _moved(self, chat: str, turn: QueuedTurn) -> None:
        """A command may have moved the chat to another thread: what is said next goes there."""
        known = await self._load(chat)
        thread = str((turn.result or {}).get("thread") or "")
        if known is not None and thread and turn.thread == known.thread != thread:
            await self._save(chat, replace(known, thread=thread))

    async def _arrived(self, chat: str, turn_id: str) -> None:
        known = await self._load(chat)
        if known is not None:
            waiting = tuple(pair for pair in known.waiting if pair[1] != turn_id)
            await self._save(chat, replace(known, waiting=waiting))

    # Kept

    async def _chats(self) -> list[str]:
        return [str(chat) for chat in await self._store.get_state(self._scope, "chats") or ()]

    async def _load(self, chat: str) -> Chat | None:
        state = await self._store.get_state(self._scope, f"chat:{chat}")
        return None if state is None else Chat.load(state)

    async def _save(self, chat: str, known: Chat) -> None:
        await self._store.put_state(self._scope, f"chat:{chat}", asdict(known))
