"""Every way to ask, in one table: the routes and the OpenAPI document are both made from it."""

from __future__ import annotations

from everthread.gateway.native.accounts import AccountPages
from everthread.gateway.native.asking import Endpoint
from everthread.gateway.native.desk import TurnDesk
from everthread.gateway.native.schemas import (
    Branch,
    Cancel,
    Compress,
    CreateThread,
    Days,
    Find,
    HistoryQuery,
    Page,
    SendMessage,
    Wait,
)
from everthread.gateway.native.threads import ThreadPages
from everthread.gateway.native.turns import TurnPages
from everthread.gateway.native.views import (
    Cancelled,
    CommandView,
    Hits,
    InsightsView,
    Messages,
    ThreadDetail,
    Threads,
    Turns,
    TurnView,
    UsageView,
)

_ONE = "/api/threads/{thread}"
_TURN = f"{_ONE}/turns/{{turn}}"


def endpoints(desk: TurnDesk, heartbeat: float) -> tuple[Endpoint, ...]:
    threads, turns, accounts = ThreadPages(desk), TurnPages(desk, heartbeat), AccountPages(desk)
    return (
        Endpoint(
            "POST", "/api/threads", "Begin a thread", threads.create, ThreadDetail, CreateThread, status=201,
            errors=(503,),
        ),
        Endpoint("GET", "/api/threads", "The threads, the last active first", threads.list, Threads, query=Page),
        Endpoint("GET", _ONE, "One thread, and its open turns", threads.get, ThreadDetail, errors=(404,)),
        Endpoint(
            "GET", f"{_ONE}/history", "What was said, or what the model sees", threads.history, Messages,
            query=HistoryQuery, errors=(404,),
        ),
        Endpoint(
            "POST", f"{_ONE}/messages", "Send a message: it is queued and answered in its turn", turns.send, TurnView,
            SendMessage, Wait, errors=(404, 409, 502, 503), streams=True,
        ),
        Endpoint("GET", f"{_ONE}/turns", "The turns, the newest first", turns.list, Turns, query=Page, errors=(404,)),
        Endpoint("GET", _TURN, "How a turn stands", turns.get, TurnView, errors=(404,)),
        Endpoint(
            "GET", f"{_TURN}/events", "What happens in a turn; `Last-Event-ID` reads on", turns.events, TurnView,
            errors=(404,), streams=True,
        ),
        Endpoint("POST", f"{_ONE}/cancel", "Stop the turn that runs", turns.cancel, Cancelled, Cancel, errors=(404,)),
        Endpoint(
            "POST", f"{_ONE}/compress", "Compact the history now", turns.compress, CommandView, Compress,
            errors=(404, 409, 502, 503),
        ),
        Endpoint(
            "POST", f"{_ONE}/undo", "Take the last compaction back", turns.undo, CommandView,
            errors=(404, 409, 502, 503),
        ),
        Endpoint(
            "POST", f"{_ONE}/branch", "Go on in a copy", threads.branch, ThreadDetail, Branch, status=201,
            errors=(404, 409),
        ),
        Endpoint("GET", f"{_ONE}/usage", "Tokens and cost of a thread", accounts.usage, UsageView, errors=(404,)),
        Endpoint(
            "GET", f"{_ONE}/search", "Search one thread", accounts.search_thread, Hits, query=Find, errors=(404,)
        ),
        Endpoint("GET", "/api/search", "Search everything that was said", accounts.search, Hits, query=Find),
        Endpoint("GET", "/api/insights", "Where tokens and money went", accounts.insights, InsightsView, query=Days),
    )  # fmt: skip
