"""The pages as an ASGI application: routes, access, changes, live updates."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import mimetypes
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, quote

from jinja2 import Environment
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from everthread._version import __version__
from everthread.core.prices import format_dollars
from everthread.errors import EverthreadError, InputError
from everthread.gateway.dashboard import text, views
from everthread.gateway.dashboard.access import Access, Viewer
from everthread.gateway.dashboard.charts import (
    Chart,
    Limit,
    Line,
    Mark,
    Segment,
    bar,
    draw,
    make_environment,
)
from everthread.gateway.dashboard.page_data import (
    NotFoundError,
    PageReader,
    Trial,
    TrialResult,
)
from everthread.gateway.dashboard.summary_lines import split_code
from everthread.gateway.error_answers import Refused
from everthread.gateway.middleware import SitePolicy
from everthread.gateway.request.body_limits import collect_body
from everthread.store.records import new_id
from everthread.thread.facts import add_pin

FORM_BYTES = 64 * 1024
POLL_SECONDS = 1.0
"""Seconds between two polls of the store while a page is open."""
HEARTBEAT_SECONDS = 15.0
MAX_WATCHERS = 100
"""The most pages that get live updates."""
LEASE_SECONDS = 10.0
TRIAL_SECONDS = 300.0
_LOG = logging.getLogger("everthread.gateway.dashboard")
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with none at all a browser sends our own forms from nowhere
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_OUTCOMES = {
    "undone": "The compaction was undone: everything it took out is in view again.",
    "pinned": "Pinned: every later compaction carries it word for word.",
    "unpinned": "The pin was taken back.",
    "branched": "A branch: it shares everything up to there and goes its own way from now on.",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that the pages show."""

    threshold: float = 0.50
    ratio: float = 0.20
    base: str = ""
    """Where clients reach the gateway; empty: there is none."""


class Dashboard:
    """An ASGI application for `/` and `/dashboard/…`."""

    def __init__(  # noqa: PLR0913 - what the pages need, each by its name
        self,
        reader: PageReader,
        access: Access,
        *,
        settings: Settings | None = None,
        sites: SitePolicy | None = None,
        trial: Trial | None = None,
        announce: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._store = reader.store
        self.access = access
        self.settings = settings or Settings()
        self._sites = sites or SitePolicy()
        self._trial = trial
        self._announce = announce
        self._clock = clock
        self._announced = -1e9
        self._trying = asyncio.Lock()
        self._watchers = 0
        self._ended = asyncio.Event()
        self._compiling: asyncio.Future[None] | None = None
        self._static = _static_files()
        self._pages = _environment(self._static)
        self._app = Starlette(
            routes=self._make_routes(),
            exception_handlers={404: self._missing, 405: self._missing},
        )

    def _make_routes(self) -> list[Route]:
        thread = "/dashboard/threads/{thread}"
        pages = {
            "/": self._threads,
            "/dashboard/live": self._live,
            "/dashboard/overview": self._overview,
            thread: self._thread,
            f"{thread}/compactions/{{number:int}}": self._compaction,
            f"{thread}/messages/{{number:int}}": self._message,
            f"{thread}/try": self._settings_page,
        }
        forms = {
            "/dashboard/logout": self._logout,
            f"{thread}/messages/{{number:int}}/reveal": self._reveal,
            f"{thread}/undo": self._undo,
            f"{thread}/pin": self._pin,
            f"{thread}/unpin": self._unpin,
            f"{thread}/branch": self._branch,
            f"{thread}/try": self._try,
        }
        return [
            Route("/dashboard", _to_root),
            Route("/dashboard/", _to_root),
            Route("/dashboard/login", self._login, methods=["GET", "POST"]),
            Route("/dashboard/static/{mark}/{name}", self._file),
            *(Route(path, self._for_viewer(page)) for path, page in pages.items()),
            *(
                Route(path, self._for_form(form), methods=["POST"])
                for path, form in forms.items()
            ),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {
                    name.decode("latin-1").lower()
                    for name, _ in message.get("headers", ())
                }
                ours = [
                    (n.encode(), v.encode())
                    for n, v in _HEADERS.items()
                    if n not in names
                ]
                message = {**message, "headers": [*message.get("headers", ()), *ours]}
            await send(message)

        try:
            self._sites.check_page(
                scope["headers"], is_change=scope["method"] not in ("GET", "HEAD")
            )
        except Refused as refused:
            await PlainTextResponse(f"{refused.message}\n", refused.status)(
                scope, receive, sending
            )
            return
        await self._app(scope, receive, sending)

    def close(self) -> None:
        """End the live updates of all open pages."""
        self._ended.set()

    # Who, and whether

    def _for_viewer(
        self,
        page: Callable[[Request, Viewer], Awaitable[Response]],
        failed: str = "This page cannot be shown now.",
    ) -> Callable[[Request], Awaitable[Response]]:
        """A page for who was let in; others get the way in."""

        async def answer(request: Request) -> Response:
            viewer = await self.access.viewer(request.cookies)
            if viewer is None:
                return self._show_login(request)
            try:
                return await page(request, viewer)
            except NotFoundError:
                return self._error(
                    404,
                    "There is no such page.",
                    "It never was, or it is not yours to see.",
                    viewer,
                )
            except EverthreadError as error:
                _LOG.warning("%s %s", failed, error)
                return self._error(503, failed, text.clean(str(error)), viewer)

        return answer

    def _for_form(
        self,
        change: Callable[[Request, Viewer, Mapping[str, str]], Awaitable[Response]],
    ) -> Callable[[Request], Awaitable[Response]]:
        """A change: only with the token of the session, and from our own pages."""

        async def changed(request: Request, viewer: Viewer) -> Response:
            form = await _form(request)
            if form is None:
                return self._error(
                    413, "That is too much.", "A form here has at most 64 KB.", viewer
                )
            if not self.access.is_genuine(viewer, form.get("csrf", "")):
                return self._error(
                    403,
                    "Not from here.",
                    "Open the page again and use its own button.",
                    viewer,
                )
            try:
                return await change(request, viewer, form)
            except InputError as error:
                return self._error(
                    409, "That cannot be done.", text.clean(str(error)), viewer
                )

        return self._for_viewer(changed, "That could not be done now.")

    def _show_login(
        self, request: Request, problem: str = "", status: int = 401
    ) -> Response:
        """Return the login page. On a personal gateway, also print a new link in its terminal."""
        if request.url.path != "/" and request.headers.get("accept", "").startswith(
            "text/event-stream"
        ):
            return PlainTextResponse("sign in first\n", 401)
        if (
            self.access.login == "local"
            and self._announce is not None
            and self._clock() - self._announced > 10
        ):
            self._announced = self._clock()
            self._announce(self.access.new_link())
        status = (
            200
            if request.method == "GET" and request.url.path == "/" and not problem
            else status
        )
        return self._page(
            "login.html", None, status=status, login=self.access.login, problem=problem
        )

    async def _login(self, request: Request) -> Response:
        if request.method == "GET":
            code = request.query_params.get("code")
            if code is None:
                return RedirectResponse("/", 303)
            cookie = self.access.use_link(code)
            if cookie is None:
                return self._show_login(
                    request, "This link was used already, or is not from here.", 403
                )
        else:
            form = await _form(request) or {}
            cookie = await self.access.use_key(form.get("key", ""))
            if cookie is None:
                _LOG.warning("the dashboard was asked for with a key that is not known")
                return self._show_login(
                    request, "This key is not known here, or was revoked.", 403
                )
        # A page of our own that redirects: a strict cookie is not sent on a navigation that began on another site.
        self._compiling = asyncio.get_running_loop().run_in_executor(
            None, self._compile
        )
        answer = self._page("entered.html", None)
        answer.headers["set-cookie"] = self.access.set_cookie(cookie)
        return answer

    async def _logout(
        self, _request: Request, _viewer: Viewer, _form: Mapping[str, str]
    ) -> Response:
        answer = RedirectResponse("/", 303)
        answer.headers["set-cookie"] = self.access.set_cookie("", life=0)
        return answer

    # Pages

    async def _threads(self, request: Request, viewer: Viewer) -> Response:
        query = request.query_params.get("q", "").strip()[:500]
        if query:
            items = await self._reader.search_threads(viewer, query)
            return self._page(
                "threads.html",
                viewer,
                items=items,
                query=text.clean(query),
                page=1,
                more=False,
            )
        page = _number(request.query_params.get("page"), 1, 100_000)
        items, more = await self._reader.threads(viewer, page)
        live = "/dashboard/live" if page == 1 else ""
        return self._page(
            "threads.html",
            viewer,
            items=items,
            query="",
            page=page,
            more=more,
            live=live,
        )

    async def _thread(self, request: Request, viewer: Viewer) -> Response:
        wanted_page = request.query_params.get("page")
        page = None if wanted_page is None else _number(wanted_page, 1, 10_000_000)
        thread = request.path_params["thread"]
        title = await self._reader.title(await self._reader.thread(viewer, thread))
        outcome = _OUTCOMES.get(request.query_params.get("said", ""), "")
        live = f"/dashboard/live?thread={quote(thread, safe='')}"

        async def body() -> AsyncIterator[str]:
            """The page's head at once: a thread of ten thousand messages takes a moment to be reckoned."""
            yield _until_main(self._render("base.html", viewer, live=live, title=title))
            try:
                model = await self._reader.thread_page(viewer, thread, page)
                html = self._render(
                    "thread.html",
                    viewer,
                    said=outcome,
                    said_bad=False,
                    live=live,
                    **model,
                )
            except EverthreadError as error:
                _LOG.warning("a page could not be shown: %s", error)
                problem = {
                    "title": "This page cannot be shown now.",
                    "message": text.clean(str(error)),
                }
                html = self._render("error.html", viewer, **problem)
            yield html[len(_until_main(html)) :]

        return StreamingResponse(
            _encode_pieces(body()), media_type="text/html; charset=utf-8"
        )

    async def _compaction(self, request: Request, viewer: Viewer) -> Response:
        path = request.path_params
        model = await self._reader.compaction_page(
            viewer, path["thread"], path["number"]
        )
        return self._page("compaction.html", viewer, **model)

    async def _message(self, request: Request, viewer: Viewer) -> Response:
        path = request.path_params
        start = _number(request.query_params.get("start"), 0, 10**12)
        model = await self._reader.message_page(
            viewer, path["thread"], path["number"], start, revealed=False
        )
        return self._page("message.html", viewer, **model)

    async def _overview(self, request: Request, viewer: Viewer) -> Response:
        days = _number(request.query_params.get("days"), 30, 366) or 30
        model = await self._reader.overview(viewer, days)
        return self._page("overview.html", viewer, live="/dashboard/live", **model)

    async def _settings_page(self, request: Request, viewer: Viewer) -> Response:
        threshold = round(100 * self.settings.threshold)
        ratio = round(100 * self.settings.ratio)
        return await self._trial_page(request, viewer, threshold, ratio)

    # Changes

    async def _reveal(
        self, request: Request, viewer: Viewer, form: Mapping[str, str]
    ) -> Response:
        path = request.path_params
        start = _number(form.get("start"), 0, 10**12)
        model = await self._reader.message_page(
            viewer, path["thread"], path["number"], start, revealed=True
        )
        _LOG.warning(
            "message %d of thread %s was revealed to %s",
            path["number"],
            path["thread"],
            viewer.name,
        )
        return self._page("message.html", viewer, **model)

    async def _undo(
        self, request: Request, viewer: Viewer, form: Mapping[str, str]
    ) -> Response:
        row = await self._reader.thread(viewer, request.path_params["thread"])
        thread = row.first.id
        tip = row.tip
        records = [
            one for one in await self._store.compactions(thread) if one.reverted is None
        ]
        if (
            not records
            or str(records[-1].id) != form.get("compaction")
            or records[-1].session != tip.id
        ):
            raise InputError(
                "only the last compaction of a thread can be undone, and this one is not it any more"
            )
        lease = await self._store.acquire(
            thread, f"dashboard-{new_id()}", LEASE_SECONDS
        )
        if lease is None:
            raise InputError(
                "a turn of this thread is under way; try again when it has ended"
            )
        try:
            await self._store.undo(tip.id, lease=lease)
        finally:
            await self._store.release(lease)
        _LOG.warning(
            "compaction %s of thread %s was undone by %s",
            form.get("compaction"),
            thread,
            viewer.name,
        )
        return _back(thread, "undone")

    async def _pin(
        self, request: Request, viewer: Viewer, form: Mapping[str, str]
    ) -> Response:
        thread = request.path_params["thread"]
        await self._reader.thread(viewer, thread)
        words = form.get("text", "")
        if form.get("message"):
            message = await self._reader.message(
                viewer, thread, _number(form["message"], 0, 2**62)
            )
            words = text.body_text(message.body)
        await add_pin(self._store, thread, words)
        return _back(thread, "pinned", "state")

    async def _unpin(
        self, request: Request, viewer: Viewer, form: Mapping[str, str]
    ) -> Response:
        thread = request.path_params["thread"]
        await self._reader.thread(viewer, thread)
        await self._store.delete_pin(thread, form.get("pin", ""))
        return _back(thread, "unpinned", "state")

    async def _branch(
        self, request: Request, viewer: Viewer, form: Mapping[str, str]
    ) -> Response:
        thread = request.path_params["thread"]
        row = await self._reader.thread(viewer, thread)
        message = await self._reader.message(
            viewer, thread, _number(form.get("message"), 0, 2**62)
        )
        branch = await self._store.branch(row.tip.id, message.id)
        _LOG.info("thread %s was branched to %s by %s", thread, branch.id, viewer.name)
        return _back(branch.id, "branched")

    async def _try(
        self, request: Request, viewer: Viewer, form: Mapping[str, str]
    ) -> Response:
        threshold = max(5, _number(form.get("threshold"), 50, 95))
        ratio = max(10, _number(form.get("ratio"), 20, 80))
        return await self._trial_page(request, viewer, threshold, ratio, run=True)

    async def _trial_page(
        self,
        request: Request,
        viewer: Viewer,
        threshold: int,
        ratio: int,
        *,
        run: bool = False,
    ) -> Response:
        row = await self._reader.thread(viewer, request.path_params["thread"])
        _, size = await self._reader.window_of(row)
        result = None
        problem = ""
        if run and self._trial is not None:
            if self._trying.locked():
                problem = "Another replay is under way; try again in a moment."
            else:
                try:
                    async with self._trying, asyncio.timeout(TRIAL_SECONDS):
                        result = await self._trial(
                            await self._reader.trial_request(row, threshold, ratio)
                        )
                except InputError as error:
                    problem = text.clean(str(error))
                except TimeoutError:
                    problem = (
                        "The replay took longer than five minutes and was given up."
                    )
                except Exception as error:  # noqa: BLE001 - it runs elsewhere and may end in any way; it is told
                    _LOG.warning("a replay failed: %s: %s", type(error).__name__, error)
                    problem = "The replay failed; the log of this process says why."
        chart = (
            _trial_chart(result, size.tokens, round(size.tokens * threshold / 100))
            if result
            else ""
        )
        return self._page(
            "try.html",
            viewer,
            thread=row.first,
            title=await self._reader.title(row),
            threshold=threshold,
            ratio=ratio,
            window=size.tokens,
            is_possible=self._trial is not None,
            problem=problem,
            chart=chart,
            result=result,
        )

    # Live

    async def _live(self, request: Request, viewer: Viewer) -> Response:
        thread = request.query_params.get("thread")
        if thread is not None:
            await self._reader.thread(viewer, thread)
        if self._watchers >= MAX_WATCHERS:
            return PlainTextResponse("too many pages watch\n", 503)
        return StreamingResponse(
            self._changes(viewer, thread), media_type="text/event-stream"
        )

    async def _changes(self, viewer: Viewer, thread: str | None) -> AsyncIterator[str]:
        self._watchers += 1
        try:
            last_change = await self._store.last_change(
                tenant=viewer.tenant, thread=thread
            )
            yield "retry: 2000\n\n"
            beat = self._clock()
            while not await self._pause():
                now = await self._store.last_change(tenant=viewer.tenant, thread=thread)
                if now != last_change:
                    last_change = now
                    beat = self._clock()
                    yield "event: changed\ndata: yes\n\n"
                elif self._clock() - beat > HEARTBEAT_SECONDS:
                    beat = self._clock()
                    yield ": here\n\n"
        except EverthreadError as error:
            _LOG.info("a page is not told of changes any more: %s", error)
        finally:
            self._watchers -= 1

    async def _pause(self) -> bool:
        """Until the next look; whether it is over."""
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    # Answers

    async def _file(self, request: Request) -> Response:
        static_file = self._static.get(request.path_params["name"])
        if static_file is None or static_file.mark != request.path_params["mark"]:
            return PlainTextResponse("no such file\n", 404)
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(static_file.data, media_type=static_file.kind, headers=headers)

    async def _missing(self, _request: Request, _error: Exception) -> Response:
        return self._error(
            404, "There is no such page.", "Its address is not one of ours.", None
        )

    def _error(
        self, status: int, title: str, message: str, viewer: Viewer | None
    ) -> Response:
        return self._page(
            "error.html", viewer, status=status, title=title, message=message
        )

    def _page(
        self, name: str, viewer: Viewer | None, *, status: int = 200, **model: Any
    ) -> Response:
        return HTMLResponse(
            self._render(name, viewer, **model).encode("utf-8", "replace"), status
        )

    def _render(self, name: str, viewer: Viewer | None, **model: Any) -> str:
        here = {"threads.html": "threads", "overview.html": "overview"}.get(name, "")
        fields = {
            "query": "",
            "live": "",
            "here": here,
            "base": self.settings.base,
        } | model
        return self._pages.get_template(name).render(viewer=viewer, **fields)

    def _compile(self) -> None:
        """Compile every template before the first page needs it."""
        for name in self._pages.list_templates():
            self._pages.get_template(name)


def is_page(method: str, path: str) -> bool:
    """Whether a request is for the pages: reading the root, or anything below `/dashboard`."""
    return (
        (path == "/" and method in ("GET", "HEAD"))
        or path == "/dashboard"
        or path.startswith("/dashboard/")
    )


_MAIN = '<main id="main">\n'


def _until_main(page: str) -> str:
    """Return the part of a page before its own content; it is the same for every page."""
    return page[: page.index(_MAIN) + len(_MAIN)]


async def _encode_pieces(pieces: AsyncIterator[str]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        yield piece.encode("utf-8", "replace")


async def _to_root(_request: Request) -> Response:
    return RedirectResponse("/", 303)


async def _form(request: Request) -> dict[str, str] | None:
    """Return the fields of a form; None if it is too large."""
    try:
        body = await collect_body(request.receive, FORM_BYTES)
    except Refused:
        return None
    return dict(
        parse_qsl(
            body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=100
        )
    )


def _number(value: str | None, otherwise: int, most: int) -> int:
    """Parse a whole number from a query; return `otherwise` for anything else."""
    if value is None or not value.isascii() or not value.isdecimal() or len(value) > 20:
        return otherwise
    return min(int(value), most)


def _back(thread: str, outcome: str, anchor: str = "") -> Response:
    where = f"/dashboard/threads/{quote(thread, safe='')}?said={outcome}"
    return RedirectResponse(f"{where}#{anchor}" if anchor else where, 303)


@dataclass(frozen=True, slots=True)
class _StaticFile:
    data: bytes
    kind: str
    mark: str


def _static_files() -> dict[str, _StaticFile]:
    static = {}
    for entry in (
        files(__package__ or "everthread.gateway.dashboard") / "static"
    ).iterdir():
        data = entry.read_bytes()
        kind = mimetypes.guess_type(entry.name)[0] or "application/octet-stream"
        static[entry.name] = _StaticFile(
            data, kind, hashlib.sha256(data).hexdigest()[:12]
        )
    return static


def _environment(static: Mapping[str, _StaticFile]) -> Environment:
    pages = make_environment()
    pages.globals |= {
        "version": __version__,
        "fates": views.FATES,
        "static": lambda name: f"/dashboard/static/{static[name].mark}/{name}",
        "bar": lambda segments, total, description, mark=None: bar(
            [Segment(*segment) for segment in segments], total, description, mark=mark
        ),
    }
    pages.filters |= {
        "comma": lambda number: f"{number:,}",
        "short": text.short,
        "dollars": format_dollars,
        "money": text.money,
        "pieces": split_code,
        "part": text.part,
        "moment": text.moment,
        "iso": lambda seconds: text.moment(seconds, "%Y-%m-%dT%H:%M:%S+00:00"),
        "ago": lambda then: text.ago(then, time.time()),
        "span": text.span,
        "line": text.line_of,
        "clean": text.clean,
    }
    return pages


def _trial_chart(result: TrialResult, window: int, threshold: int) -> str:
    most = max((len(run.prompts) for run in result.runs), default=0)
    places = views.pick_points(range(most))
    lines = [
        Line(
            run.name, style, [run.prompts[at] for at in places if at < len(run.prompts)]
        )
        for run, style in zip(result.runs, "cab", strict=False)
    ]
    tried = result.runs[1] if len(result.runs) > 1 else result.runs[0]
    near = {at: number for number, at in enumerate(places)}
    marks = [
        Mark(near[at], "compaction with these settings")
        for at in tried.compactions
        if at in near
    ]
    limits = [Limit("window", window), Limit("compaction from here on", threshold)]
    description = " ".join(
        f"{run.name}: at most {max(run.prompts, default=0):,} tokens."
        for run in result.runs
    )
    names = [f"{at + 1:,}" for at in places]
    return draw(
        Chart(
            "trial-chart",
            "Context, call by call",
            description=description,
            unit="tokens",
            lines=lines,
            limits=limits,
            marks=marks,
            names=names,
        )
    )
