"""What the paths of the threads API do."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from dataclasses import replace
from typing import Any

from everthread.conversation.requests import Given
from everthread.conversation.thread_state import load_thread_state, load_thread_usage, load_title, state_figures
from everthread.core.redaction import redact
from everthread.errors import InputError, NothingToUndoError
from everthread.gateway.api import WAIT_SECONDS
from everthread.gateway.api.agents import NewThread
from everthread.gateway.api.http import Ask, JsonAnswer, stream
from everthread.gateway.api.queue import STATUS, TurnDesk
from everthread.gateway.api.schemas import (
    Cancelled,
    CommandView,
    Compactions,
    ErrorDetail,
    ErrorView,
    Hits,
    InsightsView,
    Messages,
    StateView,
    ThreadDetail,
    Threads,
    Turns,
    UsageView,
    compaction_view,
    hit_view,
    message_view,
    paged,
    thread_item,
    thread_view,
    turn_view,
)
from everthread.gateway.errors import Refused
from everthread.gateway.requests import ClientGone, until_gone
from everthread.store.models import NewSession, QueuedTurn, SearchQuery, Session, UsageRow
from everthread.store.sql.usage import sum_usage, usage_figures, usage_row

_DAY = 86_400
_COUNTS = ("threads", "sessions", "messages", "compactions", "tokens_saved")
PLATFORM = "gateway"
TITLE = 200
_TABLES = ("by_day", "by_model", "by_platform", "by_task")


class AccountPages:
    """What is asked about everything that was said, and what it cost."""

    def __init__(self, desk: TurnDesk) -> None:
        self._desk = desk
        self._store = desk.store

    async def search_thread(self, ask: Ask) -> JsonAnswer:
        first = await self._desk.thread(ask.tenant, ask.thread)
        return await self._search(ask, first.id)

    async def search(self, ask: Ask) -> JsonAnswer:
        return await self._search(ask, None)

    async def state(self, ask: Ask) -> JsonAnswer:
        first = await self._desk.thread(ask.tenant, ask.thread)
        figures = state_figures(await load_thread_state(self._store, first.id))
        return JsonAnswer(StateView(thread=first.id, **figures))

    async def usage(self, ask: Ask) -> JsonAnswer:
        first = await self._desk.thread(ask.tenant, ask.thread)
        parts = await load_thread_usage(self._store, first.id)
        sums = {key: usage_figures(sum_usage(key, [*map(usage_row, part)])) for key, part in parts.items()}
        return JsonAnswer(UsageView(thread=first.id, sums=sums))

    async def insights(self, ask: Ask) -> JsonAnswer:
        until = time.time() + 1
        since = (until // _DAY - ask.query.days + 1) * _DAY
        found = await self._store.insights(since=since, until=until, tenant=ask.tenant)
        shown: dict[str, Any] = {name: getattr(found, name) for name in _COUNTS}
        for name in _TABLES:
            rows: list[UsageRow] = getattr(found, name)
            shown[name] = {row.key: usage_figures(row) for row in rows}
        tools = {row.tool: {"results": row.results, "tokens": row.tokens} for row in found.by_tool}
        return JsonAnswer(InsightsView(days=ask.query.days, total=usage_figures(found.total), by_tool=tools, **shown))

    async def _search(self, ask: Ask, thread: str | None) -> JsonAnswer:
        query, limit, offset = ask.query, ask.query.limit, ask.query.offset
        asked = SearchQuery(
            query.q, tenant=ask.tenant, thread=thread, role=query.role, tool=query.tool, limit=limit + 1, offset=offset
        )
        found = await self._store.search(asked)
        near = [] if found else await self._store.search_closest(replace(asked, limit=limit))
        rows, following = paged(found or near, limit, offset)
        return JsonAnswer(Hits(items=[hit_view(hit) for hit in rows], next=following, near=bool(near)))


class ThreadPages:
    """What is asked about threads as such."""

    def __init__(self, desk: TurnDesk) -> None:
        self._desk = desk
        self._store = desk.store

    async def create(self, ask: Ask) -> JsonAnswer:
        new = NewThread(title=ask.body.title, model=ask.body.model, metadata=ask.body.metadata)
        try:
            made = await self._desk.create(ask.tenant, new, tools=ask.tools)
        except InputError as error:
            if ask.body.model is not None:
                raise Refused(400, "invalid_model", redact(str(error))) from error
            raise Refused(503, "misconfigured", redact(str(error))) from error
        return JsonAnswer(await self._detail(made), 201, {"location": f"/api/threads/{made.id}"})

    async def list(self, ask: Ask) -> JsonAnswer:
        limit, offset = ask.query.limit, ask.query.offset
        found = await self._store.list_threads(tenant=ask.tenant, limit=limit + 1, offset=offset)
        rows, following = paged(found, limit, offset)
        settings = await asyncio.gather(*(self._desk.agents.settings(row.first.id) for row in rows))
        titles = await asyncio.gather(*(self._title(row.first) for row in rows))
        items = [thread_item(row, own, title) for row, own, title in zip(rows, settings, titles, strict=True)]
        return JsonAnswer(Threads(items=items, next=following))

    async def get(self, ask: Ask) -> JsonAnswer:
        return JsonAnswer(await self._detail(await self._desk.thread(ask.tenant, ask.thread)))

    async def history(self, ask: Ask) -> JsonAnswer:
        first = await self._desk.thread(ask.tenant, ask.thread)
        tip = await self._store.get_compression_tip(first.id)
        limit, offset = ask.query.limit, ask.query.offset
        reading = self._store.history if ask.query.view == "whole" else self._store.messages
        rows, following = paged(await reading(tip, start=offset, limit=limit + 1), limit, offset)
        return JsonAnswer(Messages(items=[message_view(row) for row in rows], next=following))

    async def compactions(self, ask: Ask) -> JsonAnswer:
        """The receipts of a thread's compactions, the newest first."""
        first = await self._desk.thread(ask.tenant, ask.thread)
        records, rewrites = await asyncio.gather(
            self._store.compactions(first.id), self._store.thread_rewrites(first.id)
        )
        covered = {round(one.created, 3): one.rewrite.length for one in rewrites}
        items = [compaction_view(made, covered.get(round(made.created, 3), 0)) for made in reversed(records)]
        return JsonAnswer(Compactions(items=items))

    async def branch(self, ask: Ask) -> JsonAnswer:
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
        return JsonAnswer(await self._detail(made), 201, {"location": f"/api/threads/{made.id}"})

    async def _title(self, first: Session) -> str:
        """Of a proxied thread the user's first words: nobody gave it a title."""
        return (await load_title(self._store, first))[:TITLE] if first.platform == PLATFORM else first.title

    async def _tip(self, first: Session) -> Session:
        return await self._store.session(await self._store.get_compression_tip(first.id))

    async def _detail(self, first: Session) -> ThreadDetail:
        tip, title, settings, started, records, turns = await asyncio.gather(
            self._tip(first),
            self._title(first),
            self._desk.agents.settings(first.id),
            self._store.started_by(first.id),
            self._store.compactions(first.id),
            self._store.turns(first.id, only_open=True, limit=100),
        )
        return ThreadDetail(
            **thread_view(first, tip, settings, title),
            side_calls=[child.id for child in started if child.kind == "side"],
            compactions=sum(record.reverted is None for record in records),
            turns=[turn_view(turn) for turn in turns],
        )


_KEY = re.compile(r"[\x20-\x7e]{1,255}")


class TurnPages:
    """What is asked about turns."""

    def __init__(self, desk: TurnDesk, heartbeat: float) -> None:
        self._desk = desk
        self._heartbeat = heartbeat

    async def send(self, ask: Ask) -> JsonAnswer | None:
        content = ask.body.model_dump(mode="json")["content"]
        turn = await self._submitted(ask, {"role": "user", "content": content}, _key(ask))
        if ask.wants_events:
            await self._streamed(ask, turn, 0)
            return None
        return _answer(await self._waited(ask, turn, ask.query.wait))

    async def list(self, ask: Ask) -> JsonAnswer:
        first = await self._desk.thread(ask.tenant, ask.thread)
        limit, offset = ask.query.limit, ask.query.offset
        rows, following = paged(await self._desk.store.turns(first.id, limit=limit + 1, offset=offset), limit, offset)
        return JsonAnswer(Turns(items=[turn_view(row) for row in rows], next=following))

    async def get(self, ask: Ask) -> JsonAnswer:
        return JsonAnswer(turn_view(await self._turn(ask)))

    async def events(self, ask: Ask) -> None:
        turn = await self._turn(ask)
        last = ask.headers.get("last-event-id", "")
        await self._streamed(ask, turn, int(last) if re.fullmatch(r"[0-9]{1,15}", last) else 0)

    async def cancel(self, ask: Ask) -> JsonAnswer:
        first = await self._desk.thread(ask.tenant, ask.thread)
        found = await self._desk.store.turns(first.id, only_open=True, limit=1_000)
        if ask.body.turn is not None:
            named = await self._turn(ask, ask.body.turn)
            chosen = [named] if named.open else []
        else:
            chosen = [turn for turn in found if turn.state == "running" or ask.body.queued]
        stopped = [await self._desk.cancel(ask.tenant, turn.id) for turn in reversed(chosen)]
        return JsonAnswer(Cancelled(turns=[turn_view(turn) for turn in reversed(stopped)]))

    async def compress(self, ask: Ask) -> JsonAnswer:
        words = ["/compress", *(["--preview"] if ask.body.preview else []), *(ask.body.focus or "").split()]
        return await self._command(ask, " ".join(words))

    async def undo(self, ask: Ask) -> JsonAnswer:
        first = await self._desk.thread(ask.tenant, ask.thread)
        if first.platform != PLATFORM:
            return await self._command(ask, "/undo")
        try:
            await self._desk.store.undo(first.id)
        except NothingToUndoError as error:
            raise Refused(STATUS["command_failed"], "command_failed", str(error)) from error
        words = "The last compaction was taken back: the next request goes on without it."
        return JsonAnswer(CommandView(text=words, data={"thread": first.id}))

    # Inside

    async def _command(self, ask: Ask, line: str) -> JsonAnswer:
        turn = await self._waited(ask, await self._submitted(ask, line, _key(ask)), WAIT_SECONDS)
        result = turn.result or {}
        if turn.state != "answered":
            return _answer(turn)
        if result.get("failed"):
            raise Refused(STATUS["command_failed"], "command_failed", str(result.get("text")))
        return JsonAnswer(CommandView(text=str(result.get("text")), data=dict(result.get("data") or {})))

    async def _submitted(self, ask: Ask, message: Given, key: str | None) -> QueuedTurn:
        try:
            return await self._desk.submit(
                ask.tenant, ask.thread, message, key=key, tools=ask.tools, payer=ask.caller.key_id
            )
        except InputError as error:
            raise Refused(400, "invalid_message", str(error)) from error

    async def _waited(self, ask: Ask, turn: QueuedTurn, seconds: float) -> QueuedTurn:
        """Until it is over; a client that leaves does not stop it."""
        waiting = asyncio.create_task(self._desk.wait(turn, seconds=seconds))
        gone = asyncio.create_task(until_gone(ask.receive, None))
        try:
            await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ClientGone
            return waiting.result()
        finally:
            for task in (waiting, gone):
                task.cancel()
            await asyncio.gather(waiting, gone, return_exceptions=True)

    async def _turn(self, ask: Ask, turn_id: str | None = None) -> QueuedTurn:
        """A turn of the thread that is named."""
        first = await self._desk.thread(ask.tenant, ask.thread)
        turn = await self._desk.turn(ask.tenant, turn_id or ask.names["turn"])
        if turn.thread != first.id:
            raise Refused(404, "not_found", "There is no such turn.")
        return turn

    async def _streamed(self, ask: Ask, turn: QueuedTurn, after: int) -> None:
        async with contextlib.aclosing(self._desk.events(turn, after=after)) as events:
            await stream(ask.sender, ask.receive, turn, events, self._heartbeat)


def _key(ask: Ask) -> str | None:
    key = ask.headers.get("idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise Refused(400, "invalid_key", "An Idempotency-Key has 1 to 255 printable ASCII characters.")
    return key


def _answer(turn: QueuedTurn) -> JsonAnswer:
    """200 with the answer, 202 while it is open, else what went wrong."""
    told = {"x-everthread-turn": turn.id}
    shown = turn_view(turn)
    if turn.open:
        return JsonAnswer(shown, 202, told | {"location": f"/api/threads/{turn.thread}/turns/{turn.id}"})
    if turn.state == "answered":
        return JsonAnswer(shown, 200, told)
    problem = shown.error or ErrorDetail(code=turn.state, message="The turn has no answer.")
    return JsonAnswer(ErrorView(error=problem, turn=shown), STATUS.get(problem.code, 502), told)
