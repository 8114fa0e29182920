"""The pages over a store, read as a browser does: cookies kept, forms sent back with their hidden fields."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx2

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.factory import open_store
from everthread.gateway.contracts import Auth
from everthread.gateway.dashboard.context_window import WindowSize
from everthread.gateway.dashboard.login import SECRET_NAME, DashboardLogin
from everthread.gateway.dashboard.page_routes import Dashboard
from everthread.gateway.dashboard.thread_costs import ThreadCosts
from everthread.store.records import NewCompaction, NewMessage, NewSession
from everthread.store.store import Store
from everthread.store.usage_records import NewUsage
from tests.chat_messages import calls_message, function_call

MODEL = "claude-sonnet-4-5"
HOST = "http://127.0.0.1"
VOID = frozenset(
    {"meta", "link", "input", "br", "line", "path", "polyline", "polygon", "hr", "img"}
)
SUMMARY = """[EVERTHREAD SUMMARY of earlier turns]
## Active Task
Mend the rounding in the ledger.

## What the User Said
1. Please mend src/ledger.py number 1 and keep to two decimals.

## Completed Actions
1. RAN `pytest tests/test_part_2.py` — exit 1 [tool: terminal]

## Active State
- branch `main`, 3 files changed

[END OF EVERTHREAD SUMMARY]"""


@dataclass
class Page:
    """A parsed page. Every opened element must be closed: hostile text cannot break out."""

    status: int
    text: str
    headers: Any
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    visible_text: str = ""

    def elements(self, tag: str) -> list[dict[str, str | None]]:
        return [given for name, given in self.tags if name == tag]

    def links(self, pattern: str) -> list[str]:
        return [
            str(one["href"])
            for one in self.elements("a")
            if re.search(pattern, str(one.get("href")))
        ]

    def form(self, ending: str) -> dict[str, str]:
        """Return the hidden fields of the form whose action has this ending."""
        inside = False
        fields = {}
        for name, attributes in self.tags:
            if name == "form":
                inside = str(attributes.get("action")).endswith(ending)
            elif inside and name == "input" and attributes.get("name"):
                fields[str(attributes["name"])] = str(attributes.get("value") or "")
        assert fields, f"no form {ending}"
        return fields


class _Reader(HTMLParser):
    def __init__(self, page: Page) -> None:
        super().__init__()
        self.page = page
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.page.visible_text += data


def read_page(answer: httpx2.Response) -> Page:
    page = Page(answer.status_code, answer.text, answer.headers)
    if answer.headers.get("content-type", "").startswith("text/html"):
        reader = _Reader(page)
        reader.feed(answer.text)
        reader.close()
        assert reader.open == []
        ids = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
        assert len(ids) == len(set(ids)), "duplicate id"
        labelled = {attributes.get("for") for attributes in page.elements("label")}
        for attributes in page.elements("input") + page.elements("textarea"):
            assert attributes.get("type") == "hidden" or attributes["id"] in labelled, (
                f"nothing says what {attributes} is"
            )
    return page


@dataclass
class Browser:
    http: httpx2.AsyncClient
    pages: Dashboard

    async def get(self, path: str, **more: Any) -> Page:
        return read_page(await self.http.get(path, **more))

    async def post(self, path: str, form: dict[str, str], **more: Any) -> Page:
        return read_page(await self.http.post(path, data=form, **more))

    async def log_in(self) -> Browser:
        """Log in by a one-time link."""
        response = await self.get(self.pages.login.make_login_link())
        assert response.status == 200
        return self


@dataclass
class ServedDashboard:
    """A store, its pages, and any number of browsers."""

    store: Store
    pages: Dashboard
    _open: list[httpx2.AsyncClient] = field(default_factory=list)

    def browser(self) -> Browser:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(self.pages), base_url=HOST)
        self._open.append(http)
        return Browser(http, self.pages)

    async def close(self) -> None:
        for http in self._open:
            await http.aclose()
        await self.store.close()


@asynccontextmanager
async def open_dashboard(
    folder: Path, auth: Auth = "none", *, window: int = 20_000, **more: Any
) -> AsyncIterator[ServedDashboard]:
    store = open_store(folder / "pages.db")
    access = DashboardLogin(
        store,
        await store.keys.load_shared_secret(SECRET_NAME),
        auth=auth,
        operator_key=more.pop("operator_key", None),
    )

    def size(model: str, learnt: int | None) -> WindowSize:
        return WindowSize(learnt or window, (learnt or window) // 2, "as the test says")

    dashboard = ServedDashboard(store, Dashboard(ThreadCosts(store, size), access, **more))
    try:
        yield dashboard
    finally:
        await dashboard.close()


def make_turn(number: int, *, words: int = 40) -> list[Any]:
    """Return a question, a call, its result and an answer."""
    arguments = f'{{"command": "pytest tests/test_part_{number}.py"}}'
    return [
        {
            "role": "user",
            "content": f"Please mend src/ledger.py number {number} and keep to two decimals.",
        },
        calls_message(
            function_call(f"c{number}", "terminal", arguments),
            text=f"I run the tests of part {number}.",
        ),
        {
            "role": "tool",
            "tool_call_id": f"c{number}",
            "name": "terminal",
            "content": " ".join(f"line{number}x{n}" for n in range(words)),
        },
        {
            "role": "assistant",
            "content": f"Part {number} fails because of value {number * 7919 % 1000}.",
        },
    ]


async def make_thread(
    store: Store,
    *,
    turns: int = 8,
    tenant: str = "default",
    title: str = "",
    said: Sequence[Any] = (),
) -> str:
    """Store a thread of one session, with a call for each turn, and return its id."""
    new = NewSession(
        tenant=tenant,
        platform="cli",
        title=title,
        model=MODEL,
        system="You are careful.",
    )
    thread = (await store.create_session(new)).id
    bodies = [
        *said,
        *(message for number in range(turns) for message in make_turn(number)),
    ]
    await store.append(
        thread,
        [NewMessage(body, created=1_700_000_000.0 + at) for at, body in enumerate(bodies)],
    )
    for number in range(turns):
        used = CanonicalUsage(
            30,
            40,
            cache_read_tokens=1_500 * number,
            cache_write_tokens=1_500,
        )
        await store.usage.record_usage(
            NewUsage(
                thread,
                MODEL,
                used,
                cost=Decimal("0.01"),
                created=1_700_000_002.0 + 4 * number,
            )
        )
    return thread


async def compact_thread(store: Store, thread: str, *, keep: int = 6) -> str:
    """Compact as an engine does: keep the first two and the last messages, and summarise the others."""
    tip = await store.get_compression_tip(thread)
    messages = await store.list_messages(tip)
    middle = [message for message in messages[2:-keep] if message.kind == "message"]
    context: list[int | NewMessage] = [message.id for message in messages[:2]]
    context.append(NewMessage({"role": "user", "content": SUMMARY}, "summary", tokens=200))
    context += [message.id for message in messages[-keep:]]
    record = NewCompaction(
        covered=[message.id for message in middle],
        tokens_before=9_000,
        tokens_after=3_000,
        summary=SUMMARY,
        author="journal",
        figures={
            "facts": 9,
            "present": 7,
            "added": 2,
            "checked": 4,
            "unverified": 1,
            "phases": [
                {
                    "name": "prune",
                    "before": 9_000,
                    "after": 8_000,
                    "note": "old",
                }
            ],
        },
        reason="in-loop",
        duration=0.25,
        cost=Decimal(0),
    )
    continuation = await store.continue_session(
        tip,
        context,
        seen_count=len(messages),
        compaction=record,
    )
    return continuation.session.id
