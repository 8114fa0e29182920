"""Handlers of the threads API."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable

from starlette.responses import Response

from everthread.agent.commands.dispatch import CommandResult
from everthread.conversation.given_messages import MessageInput
from everthread.core.secrets.redaction import redact
from everthread.core.utc_days import find_period_start
from everthread.errors import InputError, NothingToUndoError
from everthread.gateway.api import MAX_WAIT_SECONDS
from everthread.gateway.api.http import (
    ApiRequest,
    endpoint,
    make_event_response,
    make_json_response,
)
from everthread.gateway.api.queue import TurnQueue
from everthread.gateway.api.schemas import (
    Branch,
    Cancel,
    Cancelled,
    CommandView,
    Compactions,
    Compress,
    CreateThread,
    Days,
    ErrorDetail,
    ErrorView,
    Find,
    HistoryQuery,
    Hits,
    HitView,
    InsightsView,
    Messages,
    Page,
    SendMessage,
    StateView,
    ThreadDetail,
    Threads,
    Turns,
    TurnView,
    UsageView,
    Wait,
    make_compaction_view,
    make_message_view,
    make_thread_fields,
    make_thread_item,
    make_turn_view,
)
from everthread.gateway.api.turn_failures import STATUS_BY_CODE
from everthread.gateway.error_answers import RequestRefused
from everthread.store.records import NewSession, Session
from everthread.store.search_records import SearchQuery
from everthread.store.store import Store
from everthread.store.turn_records import QueuedTurn
from everthread.store.usage_records import make_insights_figures, make_usage_figures, sum_calls
from everthread.thread.lookup.thread_title import load_title
from everthread.thread.lookup.thread_usage import load_thread_usage
from everthread.thread.lookup.work_state import describe_state, load_thread_state

_THREAD_PATH = "/api/threads/{thread}"
_TURN_PATH = f"{_THREAD_PATH}/turns/{{turn}}"
_TURN_ERRORS = (404, 409, 502, 503)
"""Error statuses of a path that waits for a turn."""
_IDEMPOTENCY_KEY_PATTERN = re.compile(r"[\x20-\x7e]{1,255}")
MAX_TITLE_CHARS = 200


PreviewThread = Callable[[Store, str, str | None], Awaitable[CommandResult]]
"""Describe the next compaction of a thread whose client sends its whole history, given store, thread id and focus."""


class ThreadRoutes:
    """Threads, their turns, and queries about stored messages. Docstrings become the OpenAPI descriptions."""

    def __init__(self, queue: TurnQueue, heartbeat_seconds: float, preview: PreviewThread) -> None:
        self._queue = queue
        self._store = queue.store
        self._heartbeat_seconds = heartbeat_seconds
        self._preview = preview

    @endpoint(
        "POST",
        "/api/threads",
        ThreadDetail,
        body=CreateThread,
        status=201,
        errors=(503,),
    )
    async def create(self, request: ApiRequest) -> Response:
        """Begin a thread."""
        try:
            session = await self._queue.create(
                request.tenant, request.body, has_tools=request.may_use_tools
            )
        except InputError as error:
            if request.body.model is not None:
                raise RequestRefused(400, "invalid_model", redact(str(error))) from error
            raise RequestRefused(503, "misconfigured", redact(str(error))) from error
        return make_json_response(
            await self._load_detail(session),
            201,
            {"location": f"/api/threads/{session.id}"},
        )

    @endpoint("GET", "/api/threads", Threads, query=Page)
    async def list_threads(self, request: ApiRequest) -> Threads:
        """Return the threads, the last active first."""
        page = request.query
        threads, next_offset = page.split(
            await self._store.list_threads(
                tenant=request.tenant, limit=page.limit + 1, offset=page.offset
            )
        )
        settings_of_threads = await asyncio.gather(
            *(self._queue.agents.load_settings(thread.first.id) for thread in threads)
        )
        titles = await asyncio.gather(*(self._load_title(thread.first) for thread in threads))
        items = [
            make_thread_item(thread, thread_settings, title)
            for thread, thread_settings, title in zip(
                threads, settings_of_threads, titles, strict=True
            )
        ]
        return Threads(items=items, next=next_offset)

    @endpoint("GET", _THREAD_PATH, ThreadDetail, errors=(404,))
    async def get(self, request: ApiRequest) -> ThreadDetail:
        """Return one thread and its open turns."""
        return await self._load_detail(await self._load_first_session(request))

    @endpoint("GET", f"{_THREAD_PATH}/history", Messages, query=HistoryQuery, errors=(404,))
    async def history(self, request: ApiRequest) -> Messages:
        """Return the whole conversation, or the context the model sees."""
        last_session_id = await self._store.get_compression_tip(
            (await self._load_first_session(request)).id
        )
        page = request.query
        load_messages = (
            self._store.load_history if page.view == "whole" else self._store.list_messages
        )
        stored_messages, next_offset = page.split(
            await load_messages(last_session_id, start=page.offset, limit=page.limit + 1)
        )
        return Messages(
            items=[make_message_view(stored_message) for stored_message in stored_messages],
            next=next_offset,
        )

    @endpoint(
        "POST",
        f"{_THREAD_PATH}/messages",
        TurnView,
        body=SendMessage,
        query=Wait,
        errors=_TURN_ERRORS,
        streams=True,
    )
    async def send(self, request: ApiRequest) -> Response:
        """Send a message: it is queued and answered in its turn."""
        content = request.body.model_dump(mode="json")["content"]
        turn = await self._submit(request, {"role": "user", "content": content})
        if request.wants_events:
            return self._stream_events(turn, 0)
        return _make_turn_response(await self._wait_for_end(request, turn, request.query.wait))

    @endpoint("GET", f"{_THREAD_PATH}/turns", Turns, query=Page, errors=(404,))
    async def list_turns(self, request: ApiRequest) -> Turns:
        """Return the turns, the newest first."""
        first_session = await self._load_first_session(request)
        page = request.query
        turns, next_offset = page.split(
            await self._store.turns.list_turns(
                first_session.id, limit=page.limit + 1, offset=page.offset
            )
        )
        return Turns(items=[make_turn_view(turn) for turn in turns], next=next_offset)

    @endpoint("GET", _TURN_PATH, TurnView, errors=(404,))
    async def get_turn(self, request: ApiRequest) -> TurnView:
        """Return the state of a turn."""
        return make_turn_view(await self._load_turn(request))

    @endpoint("GET", f"{_TURN_PATH}/events", TurnView, errors=(404,), streams=True)
    async def stream_turn_events(self, request: ApiRequest) -> Response:
        """Stream the events of a turn; `Last-Event-ID` continues an earlier stream."""
        last_event_id = request.headers.get("last-event-id", "")
        after_number = int(last_event_id) if re.fullmatch(r"[0-9]{1,15}", last_event_id) else 0
        return self._stream_events(await self._load_turn(request), after_number)

    @endpoint("POST", f"{_THREAD_PATH}/cancel", Cancelled, body=Cancel, errors=(404,))
    async def cancel(self, request: ApiRequest) -> Cancelled:
        """Stop the turn that runs."""
        first_session = await self._load_first_session(request)
        if request.body.turn is not None:
            turn = await self._load_turn(request, request.body.turn)
            chosen_turns = [turn] if turn.is_open else []
        else:
            open_turns = await self._store.turns.list_turns(
                first_session.id, only_open=True, limit=1_000
            )
            chosen_turns = [
                turn for turn in open_turns if turn.state == "running" or request.body.queued
            ]
        stopped_turns = [
            await self._queue.cancel(request.tenant, turn.id) for turn in reversed(chosen_turns)
        ]
        return Cancelled(turns=[make_turn_view(turn) for turn in reversed(stopped_turns)])

    @endpoint(
        "POST",
        f"{_THREAD_PATH}/compress",
        CommandView,
        body=Compress,
        errors=_TURN_ERRORS,
    )
    async def compress(self, request: ApiRequest) -> CommandView | Response:
        """Compact the history now, or preview that."""
        first_session = await self._load_first_session(request)
        if await self._is_kept_by_client(first_session):
            return await self._preview_client_thread(request, first_session)
        command_parts = [
            "/compress",
            *(["--preview"] if request.body.preview else []),
            *(request.body.focus or "").split(),
        ]
        return await self._run_command(request, " ".join(command_parts))

    @endpoint("GET", f"{_THREAD_PATH}/compactions", Compactions, errors=(404,))
    async def compactions(self, request: ApiRequest) -> Compactions:
        """Return the compactions, the newest first."""
        first_session = await self._load_first_session(request)
        items = [
            make_compaction_view(compaction)
            for compaction in reversed(await self._store.list_compactions(first_session.id))
        ]
        return Compactions(items=items)

    @endpoint("POST", f"{_THREAD_PATH}/undo", CommandView, errors=_TURN_ERRORS)
    async def undo(self, request: ApiRequest) -> CommandView | Response:
        """Take the last compaction back."""
        first_session = await self._load_first_session(request)
        if not await self._is_kept_by_client(first_session):
            return await self._run_command(request, "/undo")
        try:
            await self._store.undo(first_session.id)
        except NothingToUndoError as error:
            raise RequestRefused(
                STATUS_BY_CODE["command_failed"], "command_failed", str(error)
            ) from error
        text = "The last compaction was undone. It no longer applies to the next request."
        return CommandView(text=text, data={"thread": first_session.id})

    @endpoint(
        "POST",
        f"{_THREAD_PATH}/branch",
        ThreadDetail,
        body=Branch,
        status=201,
        errors=(404, 409),
    )
    async def branch(self, request: ApiRequest) -> Response:
        """Continue in a copy of the thread."""
        first_session = await self._load_first_session(request)
        last_session = await self._load_last_session(first_session)
        message_id = request.body.at_message
        if message_id is None:
            last_messages = (
                await self._store.list_messages(
                    last_session.id, start=max(0, last_session.message_count - 1)
                )
            )[-1:]
            if not last_messages:
                raise RequestRefused(
                    409,
                    "nothing_said",
                    "There is nothing to branch from: the thread has no message yet.",
                )
            message_id = last_messages[0].id
        new_session = NewSession(
            kind="branch",
            title=request.body.title or last_session.title,
            model=last_session.model,
            system=last_session.system,
            platform=first_session.platform,
            user=first_session.user,
        )
        try:
            session = await self._store.branch(last_session.id, message_id, new=new_session)
        except InputError:
            raise RequestRefused(
                404, "not_found", "The thread has no such message to branch at."
            ) from None
        await self._queue.agents.inherit_model(first_session.id, session.id)
        return make_json_response(
            await self._load_detail(session),
            201,
            {"location": f"/api/threads/{session.id}"},
        )

    @endpoint("GET", f"{_THREAD_PATH}/state", StateView, errors=(404,))
    async def state(self, request: ApiRequest) -> StateView:
        """Return the current state of the work: files, commands, open errors, to-do list."""
        first_session = await self._load_first_session(request)
        figures = describe_state(await load_thread_state(self._store, first_session.id))
        return StateView(thread=first_session.id, **figures)

    @endpoint("GET", f"{_THREAD_PATH}/usage", UsageView, errors=(404,))
    async def usage(self, request: ApiRequest) -> UsageView:
        """Return the tokens and the cost of a thread."""
        first_session = await self._load_first_session(request)
        records_by_part = await load_thread_usage(self._store, first_session.id)
        sums = {
            key: make_usage_figures(sum_calls(key, records))
            for key, records in records_by_part.items()
        }
        return UsageView(thread=first_session.id, sums=sums)

    @endpoint("GET", f"{_THREAD_PATH}/search", Hits, query=Find, errors=(404,))
    async def search_thread(self, request: ApiRequest) -> Hits:
        """Search one thread."""
        return await self._search(request, (await self._load_first_session(request)).id)

    @endpoint("GET", "/api/search", Hits, query=Find)
    async def search(self, request: ApiRequest) -> Hits:
        """Search everything that was said."""
        return await self._search(request, None)

    @endpoint("GET", "/api/insights", InsightsView, query=Days)
    async def insights(self, request: ApiRequest) -> InsightsView:
        """Return the usage and the cost over all threads."""
        days = request.query.days
        end_time = time.time() + 1
        start_time = find_period_start(end_time, days)
        insights = await self._store.usage.load_insights(
            since=start_time, until=end_time, tenant=request.tenant
        )
        return InsightsView(days=days, **make_insights_figures(insights))

    async def _load_first_session(self, request: ApiRequest) -> Session:
        """Return the first session of the thread that the path names."""
        return await self._queue.load_thread(request.tenant, request.path_values["thread"])

    async def _is_kept_by_client(self, first_session: Session) -> bool:
        """Return whether a client or a framework keeps the thread's history and sends it with every call."""
        return await self._store.client_histories.load_last_link(first_session.id) is not None

    async def _preview_client_thread(
        self, request: ApiRequest, first_session: Session
    ) -> CommandView:
        """Preview the compaction of a thread whose client keeps the history. Refuse to compact the thread itself."""
        if not request.body.preview:
            raise RequestRefused(
                409,
                "kept_by_client",
                "The client keeps this thread's history: its requests are compacted when that is due. "
                "To compact a list of messages now, use POST /v1/compact.",
            )
        preview = await self._preview(self._store, first_session.id, request.body.focus)
        return CommandView(text=preview.text, data=dict(preview.data))

    async def _load_last_session(self, first_session: Session) -> Session:
        return await self._store.load_session(
            await self._store.get_compression_tip(first_session.id)
        )

    async def _load_title(self, first_session: Session) -> str:
        """Return the title or, without one, the user's first words."""
        return (
            first_session.title or (await load_title(self._store, first_session))[:MAX_TITLE_CHARS]
        )

    async def _load_detail(self, first_session: Session) -> ThreadDetail:
        last_session, title, settings, child_sessions, compactions, turns = await asyncio.gather(
            self._load_last_session(first_session),
            self._load_title(first_session),
            self._queue.agents.load_settings(first_session.id),
            self._store.list_child_threads(first_session.id),
            self._store.list_compactions(first_session.id),
            self._store.turns.list_turns(first_session.id, only_open=True, limit=100),
        )
        return ThreadDetail(
            **make_thread_fields(first_session, last_session, settings, title),
            side_calls=[child.id for child in child_sessions if child.kind == "side"],
            compactions=sum(compaction.reverted_at is None for compaction in compactions),
            turns=[make_turn_view(turn) for turn in turns],
        )

    async def _search(self, request: ApiRequest, thread_id: str | None) -> Hits:
        query = request.query
        search_query = SearchQuery(
            query.q,
            tenant=request.tenant,
            thread=thread_id,
            include_family=thread_id is not None,
            role=query.role,
            tool=query.tool,
            limit=query.limit,
            offset=query.offset,
        )
        page = await self._store.find(search_query)
        items = [HitView.model_validate(hit) for hit in page.hits]
        return Hits(
            items=items,
            next=query.offset + query.limit if page.has_more else None,
            near=page.is_approximate,
        )

    async def _run_command(self, request: ApiRequest, line: str) -> CommandView | Response:
        turn = await self._wait_for_end(
            request, await self._submit(request, line), MAX_WAIT_SECONDS
        )
        result = turn.result or {}
        if turn.state != "answered":
            return _make_turn_response(turn)
        if result.get("failed"):
            raise RequestRefused(
                STATUS_BY_CODE["command_failed"],
                "command_failed",
                str(result.get("text")),
            )
        return CommandView(text=str(result.get("text")), data=dict(result.get("data") or {}))

    async def _submit(self, request: ApiRequest, message: MessageInput) -> QueuedTurn:
        idempotency_key = request.headers.get("idempotency-key")
        if idempotency_key is not None and not _IDEMPOTENCY_KEY_PATTERN.fullmatch(idempotency_key):
            raise RequestRefused(
                400,
                "invalid_key",
                "An Idempotency-Key has 1 to 255 printable ASCII characters.",
            )
        try:
            return await self._queue.submit(
                request.tenant,
                request.path_values["thread"],
                message,
                idempotency_key=idempotency_key,
                may_use_tools=request.may_use_tools,
                payer_key_id=request.caller.key_id,
            )
        except InputError as error:
            raise RequestRefused(400, "invalid_message", str(error)) from error

    async def _wait_for_end(
        self, request: ApiRequest, turn: QueuedTurn, seconds: float
    ) -> QueuedTurn:
        """Wait until a turn is over. A client that disconnects does not stop the turn."""
        return await request.run_while_connected(self._queue.wait(turn, seconds=seconds))

    async def _load_turn(self, request: ApiRequest, turn_id: str | None = None) -> QueuedTurn:
        """Return a turn of the thread that the path names."""
        first_session = await self._load_first_session(request)
        turn = await self._queue.load_turn(request.tenant, turn_id or request.path_values["turn"])
        if turn.thread != first_session.id:
            raise RequestRefused(404, "not_found", "There is no such turn.")
        return turn

    def _stream_events(self, turn: QueuedTurn, after_number: int) -> Response:
        events = self._queue.stream_events(turn, after_number=after_number)
        return make_event_response(turn, events, self._heartbeat_seconds)


def _make_turn_response(turn: QueuedTurn) -> Response:
    """Return status 200 with the answer, 202 while the turn is open, or the turn's error."""
    headers = {"x-everthread-turn": turn.id}
    view = make_turn_view(turn)
    if turn.is_open:
        return make_json_response(
            view,
            202,
            headers | {"location": f"/api/threads/{turn.thread}/turns/{turn.id}"},
        )
    if turn.state == "answered":
        return make_json_response(view, 200, headers)
    problem = view.error or ErrorDetail(code=turn.state, message="The turn has no answer.")
    return make_json_response(
        ErrorView(error=problem, turn=view),
        STATUS_BY_CODE.get(problem.code, 502),
        headers,
    )
