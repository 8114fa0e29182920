"""Threads: made, listed, read, branched."""

from __future__ import annotations

import asyncio

from everthread.core.redaction import redact
from everthread.errors import InputError
from everthread.gateway.access import Refused
from everthread.gateway.native.agents import NewThread
from everthread.gateway.native.asking import Ask
from everthread.gateway.native.desk import TurnDesk
from everthread.gateway.native.replies import Answer
from everthread.gateway.native.views import (
    Messages,
    ThreadDetail,
    Threads,
    message_view,
    paged,
    thread_item,
    thread_view,
    turn_view,
)
from everthread.store.models import NewSession, Session


class ThreadPages:
    """What is asked about threads as such."""

    def __init__(self, desk: TurnDesk) -> None:
        self._desk = desk
        self._store = desk.store

    async def create(self, ask: Ask) -> Answer:
        new = NewThread(title=ask.body.title, model=ask.body.model, metadata=ask.body.metadata)
        try:
            made = await self._desk.create(ask.tenant, new, tools=ask.tools)
        except InputError as error:
            if ask.body.model is not None:
                raise Refused(400, "invalid_model", redact(str(error))) from error
            raise Refused(503, "misconfigured", redact(str(error))) from error
        return Answer(await self._detail(made), 201, {"location": f"/api/threads/{made.id}"})

    async def list(self, ask: Ask) -> Answer:
        limit, offset = ask.query.limit, ask.query.offset
        found = await self._store.list_threads(tenant=ask.tenant, limit=limit + 1, offset=offset)
        rows, following = paged(found, limit, offset)
        settings = await asyncio.gather(*(self._desk.agents.settings(row.first.id) for row in rows))
        items = [thread_item(row, own) for row, own in zip(rows, settings, strict=True)]
        return Answer(Threads(items=items, next=following))

    async def get(self, ask: Ask) -> Answer:
        return Answer(await self._detail(await self._desk.thread(ask.tenant, ask.thread)))

    async def history(self, ask: Ask) -> Answer:
        first = await self._desk.thread(ask.tenant, ask.thread)
        tip = await self._store.get_compression_tip(first.id)
        limit, offset = ask.query.limit, ask.query.offset
        reading = self._store.history if ask.query.view == "whole" else self._store.messages
        rows, following = paged(await reading(tip, start=offset, limit=limit + 1), limit, offset)
        return Answer(Messages(items=[message_view(row) for row in rows], next=following))

    async def branch(self, ask: Ask) -> Answer:
        first = await self._desk.thread(ask.tenant, ask.thread)
        tip = await self._tip(first)
        at = ask.body.at_message
        if at is None:
            last = (await self._store.messages(tip.id, start=max(0, tip.messages - 1)))[-1:]
            if not last:
                raise Refused(409, "nothing_said", "There is nothing to branch from: the thread has no message yet.")
            at = last[0].id
        new = NewSession(
            kind="branch", title=ask.body.title or tip.title, model=tip.model, system=tip.system,
            platform=first.platform, user=first.user,
        )  # fmt: skip
        try:
            made = await self._store.branch(tip.id, at, new=new)
        except InputError:
            raise Refused(404, "not_found", "The thread has no such message to branch at.") from None
        await self._desk.agents.inherit(first.id, made.id)
        return Answer(await self._detail(made), 201, {"location": f"/api/threads/{made.id}"})

    async def _tip(self, first: Session) -> Session:
        return await self._store.session(await self._store.get_compression_tip(first.id))

    async def _detail(self, first: Session) -> ThreadDetail:
        tip, settings, records, turns = await asyncio.gather(
            self._tip(first),
            self._desk.agents.settings(first.id),
            self._store.compactions(first.id),
            self._store.turns(first.id, only_open=True, limit=100),
        )
        return ThreadDetail(
            **thread_view(first, tip, settings),
            compactions=sum(record.reverted is None for record in records),
            turns=[turn_view(turn) for turn in turns],
        )
