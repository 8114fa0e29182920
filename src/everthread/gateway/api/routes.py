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
from everthread.gateway.api.http import ApiRequest, JsonAnswer, stream
from everthread.gateway.api.queue import STATUS, TurnQueue
from everthread.gateway.api.schemas import (
    Cancelled,
    CommandView,
    Compactions,
    ErrorDetail,
    ErrorView,
    Hits,
    HitView,
    InsightsView,
    Messages,
    StateView,
    ThreadDetail,
    Threads,
    Turns,
    UsageView,
    compaction_view,
    message_view,
    split_page,
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
MAX_TITLE_CHARS = 200
_TABLES = ("by_day", "by_model", "by_platform", "by_task")


class AccountPages:
    """What is asked about everything that was said, and what it cost."""

    def __init__(self, queue: TurnQueue) -> None:
        self._queue = queue
        self._store = queue.store

    async def search_thread(self, request: ApiRequest) -> JsonAnswer:
        first = await self._queue.thread(request.tenant, request.thread)
        return await self._search(request, first.id)

    async def search(self, request: ApiRequest) -> JsonAnswer:
        return await self._search(request, None)

    async def state(self, request: ApiRequest) -> JsonAnswer:
        first = await self._queue.thread(request.tenant, request.thread)
        figures = state_figures(await load_thread_state(self._store, first.id))
        return JsonAnswer(StateView(thread=first.id, **figures))

    async def usage(self, request: ApiRequest) -> JsonAnswer:
        first = await self._queue.thread(request.tenant, request.thread)
        parts = await load_thread_usage(self._store, first.id)
        sums = {key: usage_figures(sum_usage(key, [*map(usage_row, part)])) for key, part in parts.items()}
        return JsonAnswer(UsageView(thread=first.id, sums=sums))

    async def insights(self, request: ApiRequest) -> JsonAnswer:
        until = time.time() + 1
        since = (until // _DAY - request.query.days + 1) * _DAY
        insights = await self._store.insights(since=since, until=until, tenant=request.tenant)
        figures: dict[str, Any] = {name: getattr(insights, name) for name in _COUNTS}
        for name in _TABLES:
            rows: list[UsageRow] = getattr(insights, name)
            figures[name] = {row.key: usage_figures(row) for row in rows}
        tools = {row.tool: {"results": row.results, "tokens": row.tokens} for row in insights.by_tool}
        return JsonAnswer(
            InsightsView(days=request.query.days, total=usage_figures(insights.total), by_tool=tools, **figures)
        )

    async def _search(self, request: ApiRequest, thread: str | None) -> JsonAnswer:
        query, limit, offset = request.query, request.query.limit, request.query.offset
        wanted = SearchQuery(
            query.q, tenant=request.tenant, thread=thread, role=query.role, tool=query.tool, limit=limit + 1,
            offset=offset,
        )  # fmt: skip
        hits = await self._store.search(wanted)
        near = [] if hits else await self._store.search_closest(replace(wanted, limit=limit))
        rows, following = split_page(hits or near, limit, offset)
        return JsonAnswer(Hits(items=[HitView.model_validate(hit) for hit in rows], next=following, near=bool(near)))


class ThreadPages:
    """What is asked about threads as such."""

    def __init__(self, queue: TurnQueue) -> None:
        self._queue = queue
        self._store = queue.store

    async def create(self, request: ApiRequest) -> JsonAnswer:
        new = NewThread(title=request.body.title, model=request.body.model, metadata=request.body.metadata)
        try:
            session = await self._queue.create(request.tenant, new, tools=request.tools)
        except InputError as error:
            if request.body.model is not None:
                raise Refused(400, "invalid_model", redact(str(error))) from error
            raise Refused(503, "misconfigured", redact(str(error))) from error
        return JsonAnswer(await self._detail(session), 201, {"location": f"/api/threads/{session.id}"})

    async def list(self, request: ApiRequest) -> JsonAnswer:
        limit, offset = request.query.limit, request.query.offset
        threads = await self._store.list_threads(tenant=request.tenant, limit=limit + 1, offset=offset)
        rows, following = split_page(threads, limit, offset)
        settings = await asyncio.gather(*(self._queue.agents.settings(row.first.id) for row in rows))
        titles = await asyncio.gather(*(self._title(row.first) for row in rows))
        items = [thread_item(row, own, title) for row, own, title in zip(rows, settings, titles, strict=True)]
        return JsonAnswer(Threads(items=items, next=following))

    async def get(self, request: ApiRequest) -> JsonAnswer:
        return JsonAnswer(await self._detail(await self._queue.thread(request.tenant, request.thread)))

    async def history(self, request: ApiRequest) -> JsonAnswer:
        first = await self._queue.thread(request.tenant, request.thread)
        tip = await self._store.get_compression_tip(first.id)
        limit, offset = request.query.limit, request.query.offset
        reading = self._store.history if request.query.view == "whole" else self._store.messages
        rows, following = split_page(await reading(tip, start=offset, limit=limit + 1), limit, offset)
        return JsonAnswer(Messages(items=[message_view(row) for row in rows], next=following))

    async def compactions(self, request: ApiRequest) -> JsonAnswer:
        """The receipts of a thread's compactions, the newest first."""
        first = await self._queue.thread(request.tenant, request.thread)
        records, rewrites = await asyncio.gather(
            self._store.compactions(first.id), self._store.thread_rewrites(first.id)
        )
        covered = {round(one.created, 3): one.rewrite.length for one in rewrites}
        items = [compaction_view(record, covered.get(round(record.created, 3), 0)) for record in reversed(records)]
        return JsonAnswer(Compactions(items=items))

    async def branch(self, request: ApiRequest) -> JsonAnswer:
        first = await self._queue.thread(request.tenant, request.thread)
        tip = await self._tip(first)
        at = request.body.at_message
        if at is None:
            last = (await self._store.messages(tip.id, start=max(0, tip.messages - 1)))[-1:]
            if not last:
                raise Refused(409, "nothing_said", "There is nothing to branch from: the thread has no message yet.")
            at = last[0].id
        new = NewSession(
            kind="branch", title=request.body.title or tip.title, model=tip.model, system=tip.system,
            platform=first.platform, user=first.user,
        )  # fmt: skip
        try:
            session = await self._store.branch(tip.id, at, new=new)
        except InputError:
            raise Refused(404, "not_found", "The thread has no such message to branch at.") from None
        await self._queue.agents.inherit(first.id, session.id)
        return JsonAnswer(await self._detail(session), 201, {"location": f"/api/threads/{session.id}"})

    async def _title(self, first: Session) -> str:
        """Of a proxied thread the user's first words: nobody gave it a title."""
        return (await load_title(self._store, first))[:MAX_TITLE_CHARS] if first.platform == PLATFORM else first.title

    async def _tip(self, first: Session) -> Session:
        return await self._store.session(await self._store.get_compression_tip(first.id))

    async def _detail(self, first: Session) -> ThreadDetail:
        tip, title, settings, started, records, turns = await asyncio.gather(
            self._tip(first),
            self._title(first),
            self._queue.agents.settings(first.id),
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


_IDEMPOTENCY_KEY = re.compile(r"[\x20-\x7e]{1,255}")


class TurnPages:
    """What is asked about turns."""

    def __init__(self, queue: TurnQueue, heartbeat: float) -> None:
        self._queue = queue
        self._heartbeat = heartbeat

    async def send(self, request: ApiRequest) -> JsonAnswer | None:
        content = request.body.model_dump(mode="json")["content"]
        turn = await self._submit(request, {"role": "user", "content": content}, _idempotency_key(request))
        if request.wants_events:
            await self._stream_events(request, turn, 0)
            return None
        return _answer(await self._wait_for_end(request, turn, request.query.wait))

    async def list(self, request: ApiRequest) -> JsonAnswer:
        first = await self._queue.thread(request.tenant, request.thread)
        limit, offset = request.query.limit, request.query.offset
        rows, following = split_page(
            await self._queue.store.turns(first.id, limit=limit + 1, offset=offset), limit, offset
        )
        return JsonAnswer(Turns(items=[turn_view(row) for row in rows], next=following))

    async def get(self, request: ApiRequest) -> JsonAnswer:
        return JsonAnswer(turn_view(await self._turn(request)))

    async def events(self, request: ApiRequest) -> None:
        turn = await self._turn(request)
        last = request.headers.get("last-event-id", "")
        await self._stream_events(request, turn, int(last) if re.fullmatch(r"[0-9]{1,15}", last) else 0)

    async def cancel(self, request: ApiRequest) -> JsonAnswer:
        first = await self._queue.thread(request.tenant, request.thread)
        open_turns = await self._queue.store.turns(first.id, only_open=True, limit=1_000)
        if request.body.turn is not None:
            named = await self._turn(request, request.body.turn)
            chosen = [named] if named.open else []
        else:
            chosen = [turn for turn in open_turns if turn.state == "running" or request.body.queued]
        stopped = [await self._queue.cancel(request.tenant, turn.id) for turn in reversed(chosen)]
        return JsonAnswer(Cancelled(turns=[turn_view(turn) for turn in reversed(stopped)]))

    async def compress(self, request: ApiRequest) -> JsonAnswer:
        words = ["/compress", *(["--preview"] if request.body.preview else []), *(request.body.focus or "").split()]
        return await self._command(request, " ".join(words))

    async def undo(self, request: ApiRequest) -> JsonAnswer:
        first = await self._queue.thread(request.tenant, request.thread)
        if first.platform != PLATFORM:
            return await self._command(request, "/undo")
        try:
            await self._queue.store.undo(first.id)
        except NothingToUndoError as error:
            raise Refused(STATUS["command_failed"], "command_failed", str(error)) from error
        words = "The last compaction was taken back: the next request goes on without it."
        return JsonAnswer(CommandView(text=words, data={"thread": first.id}))

    # Inside

    async def _command(self, request: ApiRequest, line: str) -> JsonAnswer:
        turn = await self._wait_for_end(
            request, await self._submit(request, line, _idempotency_key(request)), WAIT_SECONDS
        )
        result = turn.result or {}
        if turn.state != "answered":
            return _answer(turn)
        if result.get("failed"):
            raise Refused(STATUS["command_failed"], "command_failed", str(result.get("text")))
        return JsonAnswer(CommandView(text=str(result.get("text")), data=dict(result.get("data") or {})))

    async def _submit(self, request: ApiRequest, message: Given, key: str | None) -> QueuedTurn:
        try:
            return await self._queue.submit(
                request.tenant, request.thread, message, key=key, tools=request.tools, payer=request.caller.key_id
            )
        except InputError as error:
            raise Refused(400, "invalid_message", str(error)) from error

    async def _wait_for_end(self, request: ApiRequest, turn: QueuedTurn, seconds: float) -> QueuedTurn:
        """Until it is over; a client that leaves does not stop it."""
        waiting = asyncio.create_task(self._queue.wait(turn, seconds=seconds))
        gone = asyncio.create_task(until_gone(request.receive, None))
        try:
            await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ClientGone
            return waiting.result()
        finally:
            for task in (waiting, gone):
                task.cancel()
            await asyncio.gather(waiting, gone, return_exceptions=True)

    async def _turn(self, request: ApiRequest, turn_id: str | None = None) -> QueuedTurn:
        """A turn of the thread that is named."""
        first = await self._queue.thread(request.tenant, request.thread)
        turn = await self._queue.turn(request.tenant, turn_id or request.path_values["turn"])
        if turn.thread != first.id:
            raise Refused(404, "not_found", "There is no such turn.")
        return turn

    async def _stream_events(self, request: ApiRequest, turn: QueuedTurn, after: int) -> None:
        async with contextlib.aclosing(self._queue.events(turn, after=after)) as events:
            await stream(request.sender, request.receive, turn, events, self._heartbeat)


def _idempotency_key(request: ApiRequest) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not _IDEMPOTENCY_KEY.fullmatch(key):
        raise Refused(400, "invalid_key", "An Idempotency-Key has 1 to 255 printable ASCII characters.")
    return key


def _answer(turn: QueuedTurn) -> JsonAnswer:
    """200 with the answer, 202 while it is open, else what went wrong."""
    headers = {"x-everthread-turn": turn.id}
    view = turn_view(turn)
    if turn.open:
        return JsonAnswer(view, 202, headers | {"location": f"/api/threads/{turn.thread}/turns/{turn.id}"})
    if turn.state == "answered":
        return JsonAnswer(view, 200, headers)
    problem = view.error or ErrorDetail(code=turn.state, message="The turn has no answer.")
    return JsonAnswer(ErrorView(error=problem, turn=view), STATUS.get(problem.code, 502), headers)
