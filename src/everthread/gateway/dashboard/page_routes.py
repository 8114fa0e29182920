"""The pages as an ASGI application, with their routes, login, forms and live updates."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
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

from everthread.errors import EverthreadError, InputError
from everthread.gateway.dashboard import page_text
from everthread.gateway.dashboard.compaction_page import load_compaction_page
from everthread.gateway.dashboard.live_updates import LiveUpdates
from everthread.gateway.dashboard.login import DashboardLogin, Viewer
from everthread.gateway.dashboard.message_page import make_message_page
from everthread.gateway.dashboard.overview_page import load_overview
from everthread.gateway.dashboard.page_templates import (
    load_static_files,
    make_page_environment,
)
from everthread.gateway.dashboard.thread_costs import ThreadCosts
from everthread.gateway.dashboard.thread_list import ThreadList
from everthread.gateway.dashboard.thread_page import ThreadPages
from everthread.gateway.dashboard.thread_reader import NotFoundError, ThreadReader
from everthread.gateway.dashboard.trial_page import RunTrial, TrialPage
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.request.body_limits import collect_body
from everthread.gateway.site_policy import SitePolicy
from everthread.store.records import ThreadRow, new_id
from everthread.thread.lookup.pins import add_pin

MAX_FORM_BYTES = 64 * 1024
UNDO_LEASE_SECONDS = 10.0
_LOG = logging.getLogger("everthread.gateway.dashboard")
_CONTENT_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_RESPONSE_HEADERS = {
    "content-security-policy": _CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # without a referrer a browser would send our own forms with a null origin
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_OUTCOME_TEXTS = {
    "undone": "The compaction was undone. Everything it removed is in view again.",
    "pinned": "Pinned. Every later compaction keeps it word for word.",
    "unpinned": "Unpinned.",
    "branched": "This is the new branch. It shares all messages up to that point.",
}


class Dashboard:
    """An ASGI application for `/` and `/dashboard/…`."""

    def __init__(  # noqa: PLR0913 - each by its name
        self,
        costs: ThreadCosts,
        login: DashboardLogin,
        *,
        sites: SitePolicy | None = None,
        trial: RunTrial | None = None,
        threshold: float = 0.50,
        ratio: float = 0.20,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        """Create the application.

        `trial` replays a thread with other settings than the configured `threshold` and `ratio`. `announce` is called
        with the path of a new login link when somebody opens the login page.
        """
        self.login = login
        self._store = costs.store
        self._costs = costs
        self._threads = ThreadReader(costs.store)
        self._thread_list = ThreadList(self._threads, costs)
        self._thread_pages = ThreadPages(self._thread_list)
        self._trial_page = TrialPage(self._threads, costs, trial, threshold=threshold, ratio=ratio)
        self._sites = sites or SitePolicy()
        self.base_url = ""
        """The gateway's address for clients, or an empty string without a gateway."""
        self._announce = announce
        self._announced_at = -math.inf
        self._live_updates = LiveUpdates(costs.store)
        self._static = load_static_files()
        self._pages = make_page_environment(self._static)
        self._app = Starlette(
            routes=self._make_routes(),
            exception_handlers={
                404: self._show_missing_page,
                405: self._show_missing_page,
            },
        )

    def _make_routes(self) -> list[Route]:
        thread_path = "/dashboard/threads/{thread}"
        pages = {
            "/": self._show_threads,
            "/dashboard/live": self._send_live_updates,
            "/dashboard/overview": self._show_overview,
            thread_path: self._show_thread,
            f"{thread_path}/compactions/{{number:int}}": self._show_compaction,
            f"{thread_path}/messages/{{number:int}}": self._show_message,
            f"{thread_path}/try": self._show_trial_form,
        }
        forms = {
            "/dashboard/logout": self._log_out,
            f"{thread_path}/messages/{{number:int}}/reveal": self._reveal,
            f"{thread_path}/undo": self._undo,
            f"{thread_path}/pin": self._pin,
            f"{thread_path}/unpin": self._unpin,
            f"{thread_path}/branch": self._branch,
            f"{thread_path}/try": self._run_trial,
        }
        return [
            Route("/dashboard", _redirect_to_root),
            Route("/dashboard/", _redirect_to_root),
            Route("/dashboard/login", self._log_in, methods=["GET", "POST"]),
            Route("/dashboard/static/{mark}/{name}", self._send_static_file),
            *(Route(path, self._for_viewer(page)) for path, page in pages.items()),
            *(Route(path, self._for_form(form), methods=["POST"]) for path, form in forms.items()),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _RESPONSE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._sites.check_page(
                scope["headers"], is_change=scope["method"] not in ("GET", "HEAD")
            )
        except RequestRefused as refused:
            await PlainTextResponse(f"{refused.message}\n", refused.status)(
                scope, receive, send_with_headers
            )
            return
        await self._app(scope, receive, send_with_headers)

    def close(self) -> None:
        """End the live updates of all open pages."""
        self._live_updates.close()

    def _for_viewer(
        self,
        page: Callable[[Request, Viewer], Awaitable[Response]],
        failure_text: str = "This page cannot be shown now.",
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that shows the page to a logged-in viewer, and the login page to anyone else."""

        async def answer(request: Request) -> Response:
            viewer = await self.login.find_viewer(request.cookies)
            if viewer is None:
                return self._show_login(request)
            try:
                return await page(request, viewer)
            except NotFoundError:
                return self._show_error(
                    404,
                    "There is no such page.",
                    "It does not exist, or you may not see it.",
                    viewer,
                )
            except EverthreadError as error:
                _LOG.warning("%s %s", failure_text, error)
                return self._show_error(503, failure_text, page_text.clean(str(error)), viewer)

        return answer

    def _for_form(
        self,
        change: Callable[[Request, Viewer, Mapping[str, str]], Awaitable[Response]],
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that makes a change if the form has the session's token."""

        async def answer_form(request: Request, viewer: Viewer) -> Response:
            form = await _read_form(request)
            if form is None:
                return self._show_error(
                    413, "The form is too large.", "A form here has at most 64 KB.", viewer
                )
            if not self.login.is_valid_token(viewer, form.get("csrf", "")):
                return self._show_error(
                    403,
                    "The form is outdated.",
                    "Reload the page and try again.",
                    viewer,
                )
            try:
                return await change(request, viewer, form)
            except InputError as error:
                return self._show_error(
                    409, "This cannot be done.", page_text.clean(str(error)), viewer
                )

        return self._for_viewer(answer_form, "This could not be done now.")

    def _show_login(self, request: Request, problem: str = "", status: int = 401) -> Response:
        """Return the login page. On a personal gateway, also print a new link in its terminal."""
        if request.url.path != "/" and request.headers.get("accept", "").startswith(
            "text/event-stream"
        ):
            return PlainTextResponse("sign in first\n", 401)
        if (
            self.login.auth == "none"
            and self._announce is not None
            and time.monotonic() - self._announced_at > 10
        ):
            self._announced_at = time.monotonic()
            self._announce(self.login.make_login_link())
        if request.method == "GET" and request.url.path == "/" and not problem:
            status = 200
        return self._show_page(
            "login.html",
            None,
            status=status,
            auth=self.login.auth,
            is_off=self.login.is_off,
            problem=problem,
        )

    async def _log_in(self, request: Request) -> Response:
        if request.method == "GET":
            code = request.query_params.get("code")
            if code is None:
                return RedirectResponse("/", 303)
            cookie = self.login.redeem_link(code)
            if cookie is None:
                return self._show_login(
                    request, "This link was used already, or is not from this gateway.", 403
                )
        else:
            form = await _read_form(request) or {}
            cookie = await self.login.make_cookie_for_key(form.get("key", ""))
            if cookie is None:
                _LOG.warning("a login to the dashboard failed: unknown key")
                return self._show_login(request, "This key is not known here, or was revoked.", 403)
        # A page that redirects, because a strict cookie is not sent on a navigation that began on another site.
        answer = self._show_page("entered.html", None)
        answer.headers["set-cookie"] = self.login.format_cookie(cookie)
        return answer

    async def _log_out(
        self, _request: Request, _viewer: Viewer, _form: Mapping[str, str]
    ) -> Response:
        answer = RedirectResponse("/", 303)
        answer.headers["set-cookie"] = self.login.format_cookie("", max_age=0)
        return answer

    async def _show_threads(self, request: Request, viewer: Viewer) -> Response:
        query = request.query_params.get("q", "").strip()[:500]
        if query:
            entries = await self._thread_list.search(viewer, query)
            return self._show_page(
                "threads.html",
                viewer,
                items=entries,
                query=page_text.clean(query),
                page=1,
                more=False,
            )
        page = _parse_number(request.query_params.get("page"), 1, 100_000)
        entries, has_more = await self._thread_list.load_page(viewer, page)
        live_url = "/dashboard/live" if page == 1 else ""
        return self._show_page(
            "threads.html",
            viewer,
            items=entries,
            query="",
            page=page,
            more=has_more,
            live_url=live_url,
        )

    async def _show_thread(self, request: Request, viewer: Viewer) -> Response:
        wanted_page = request.query_params.get("page")
        page = None if wanted_page is None else _parse_number(wanted_page, 1, 10_000_000)
        row = await self._load_thread(request, viewer)
        thread_id = row.first.id
        title = await self._threads.load_title(row)
        outcome = _OUTCOME_TEXTS.get(request.query_params.get("outcome", ""), "")
        live_url = f"/dashboard/live?thread={quote(thread_id, safe='')}"

        async def body() -> AsyncIterator[str]:
            """Yield the head of the page first, because the rest of a long thread takes a moment to compute."""
            yield _take_page_start(
                self._render("base.html", viewer, live_url=live_url, title=title)
            )
            try:
                model = await self._thread_pages.load(viewer, thread_id, page)
                html = self._render(
                    "thread.html",
                    viewer,
                    outcome=outcome,
                    live_url=live_url,
                    **model,
                )
            except EverthreadError as error:
                _LOG.warning("a page could not be shown: %s", error)
                problem = {
                    "title": "This page cannot be shown now.",
                    "message": page_text.clean(str(error)),
                }
                html = self._render("error.html", viewer, **problem)
            yield html[len(_take_page_start(html)) :]

        return StreamingResponse(_encode_chunks(body()), media_type="text/html; charset=utf-8")

    async def _show_compaction(self, request: Request, viewer: Viewer) -> Response:
        path = request.path_params
        model = await load_compaction_page(self._threads, viewer, path["thread"], path["number"])
        return self._show_page("compaction.html", viewer, **model)

    async def _show_message(self, request: Request, viewer: Viewer) -> Response:
        start = request.query_params.get("start")
        return await self._show_message_part(request, viewer, start, is_revealed=False)

    async def _show_message_part(
        self, request: Request, viewer: Viewer, start: str | None, *, is_revealed: bool
    ) -> Response:
        row = await self._load_thread(request, viewer)
        message_id = request.path_params["number"]
        message = await self._threads.load_message(viewer, row.first.id, message_id)
        model = make_message_page(
            message, start=_parse_number(start, 0, 10**12), is_revealed=is_revealed
        )
        return self._show_page(
            "message.html",
            viewer,
            thread=row.first,
            title=await self._threads.load_title(row),
            **model,
        )

    async def _show_overview(self, request: Request, viewer: Viewer) -> Response:
        days = _parse_number(request.query_params.get("days"), 30, 366) or 30
        model = await load_overview(self._costs, viewer, days)
        return self._show_page("overview.html", viewer, live_url="/dashboard/live", **model)

    async def _show_trial_form(self, request: Request, viewer: Viewer) -> Response:
        model = await self._trial_page.load_form(viewer, request.path_params["thread"])
        return self._show_page("try.html", viewer, **model)

    async def _run_trial(
        self, request: Request, viewer: Viewer, form: Mapping[str, str]
    ) -> Response:
        model = await self._trial_page.run(
            viewer,
            request.path_params["thread"],
            threshold=max(5, _parse_number(form.get("threshold"), 50, 95)),
            ratio=max(10, _parse_number(form.get("ratio"), 20, 80)),
        )
        return self._show_page("try.html", viewer, **model)

    async def _reveal(self, request: Request, viewer: Viewer, form: Mapping[str, str]) -> Response:
        page = await self._show_message_part(request, viewer, form.get("start"), is_revealed=True)
        _LOG.warning(
            "message %d of thread %s was revealed to %s",
            request.path_params["number"],
            request.path_params["thread"],
            viewer.name,
        )
        return page

    async def _undo(self, request: Request, viewer: Viewer, form: Mapping[str, str]) -> Response:
        row = await self._load_thread(request, viewer)
        thread_id = row.first.id
        tip = row.tip
        records = [
            record
            for record in await self._store.list_compactions(thread_id)
            if record.reverted_at is None
        ]
        if (
            not records
            or str(records[-1].id) != form.get("compaction")
            or records[-1].session != tip.id
        ):
            raise InputError(
                "only the last compaction of a thread can be undone, and this one no longer is"
            )
        lease = await self._store.leases.acquire_lease(
            thread_id, f"dashboard-{new_id()}", UNDO_LEASE_SECONDS
        )
        if lease is None:
            raise InputError("a turn of this thread is running; try again when it has ended")
        try:
            await self._store.undo(tip.id, lease=lease)
        finally:
            await self._store.leases.release_lease(lease)
        _LOG.warning(
            "compaction %s of thread %s was undone by %s",
            form.get("compaction"),
            thread_id,
            viewer.name,
        )
        return _redirect_to_thread(thread_id, "undone")

    async def _pin(self, request: Request, viewer: Viewer, form: Mapping[str, str]) -> Response:
        thread_id = (await self._load_thread(request, viewer)).first.id
        pin_text = form.get("text", "")
        if form.get("message"):
            message = await self._threads.load_message(
                viewer, thread_id, _parse_number(form["message"], 0, 2**62)
            )
            pin_text = page_text.message_text(message.body)
        await add_pin(self._store, thread_id, pin_text)
        return _redirect_to_thread(thread_id, "pinned", "state")

    async def _unpin(self, request: Request, viewer: Viewer, form: Mapping[str, str]) -> Response:
        thread_id = (await self._load_thread(request, viewer)).first.id
        await self._store.state.delete_pin(thread_id, form.get("pin", ""))
        return _redirect_to_thread(thread_id, "unpinned", "state")

    async def _branch(self, request: Request, viewer: Viewer, form: Mapping[str, str]) -> Response:
        row = await self._load_thread(request, viewer)
        thread_id = row.first.id
        message = await self._threads.load_message(
            viewer, thread_id, _parse_number(form.get("message"), 0, 2**62)
        )
        branch = await self._store.branch(row.tip.id, message.id)
        _LOG.info("thread %s was branched to %s by %s", thread_id, branch.id, viewer.name)
        return _redirect_to_thread(branch.id, "branched")

    async def _load_thread(self, request: Request, viewer: Viewer) -> ThreadRow:
        """Return the thread that the path names."""
        return await self._threads.load_thread(viewer, request.path_params["thread"])

    async def _send_live_updates(self, request: Request, viewer: Viewer) -> Response:
        thread_id = request.query_params.get("thread")
        if thread_id is not None:
            await self._threads.load_thread(viewer, thread_id)
        return self._live_updates.make_stream(viewer, thread_id)

    async def _send_static_file(self, request: Request) -> Response:
        static_file = self._static.get(request.path_params["name"])
        if static_file is None or static_file.version != request.path_params["mark"]:
            return PlainTextResponse("no such file\n", 404)
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(static_file.data, media_type=static_file.media_type, headers=headers)

    async def _show_missing_page(self, _request: Request, _error: Exception) -> Response:
        return self._show_error(404, "There is no such page.", "Check the address.", None)

    def _show_error(self, status: int, title: str, message: str, viewer: Viewer | None) -> Response:
        return self._show_page("error.html", viewer, status=status, title=title, message=message)

    def _show_page(
        self, name: str, viewer: Viewer | None, *, status: int = 200, **model: Any
    ) -> Response:
        return HTMLResponse(self._render(name, viewer, **model).encode("utf-8", "replace"), status)

    def _render(self, name: str, viewer: Viewer | None, **model: Any) -> str:
        current_page = {"threads.html": "threads", "overview.html": "overview"}.get(name, "")
        fields = {
            "query": "",
            "live_url": "",
            "current_page": current_page,
            "base_url": self.base_url,
        } | model
        return self._pages.get_template(name).render(viewer=viewer, **fields)


def is_page(method: str, path: str) -> bool:
    """Return whether a request is GET or HEAD of `/`, or for a path under `/dashboard`."""
    return (
        (path == "/" and method in ("GET", "HEAD"))
        or path == "/dashboard"
        or path.startswith("/dashboard/")
    )


_MAIN_TAG = '<main id="main">\n'


def _take_page_start(page: str) -> str:
    """Return the part of a page that comes before its content and is the same for every page."""
    return page[: page.index(_MAIN_TAG) + len(_MAIN_TAG)]


async def _encode_chunks(chunks: AsyncIterator[str]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        yield chunk.encode("utf-8", "replace")


async def _redirect_to_root(_request: Request) -> Response:
    return RedirectResponse("/", 303)


async def _read_form(request: Request) -> dict[str, str] | None:
    """Return the fields of a form, or None if it is too large."""
    try:
        body = await collect_body(request.receive, MAX_FORM_BYTES)
    except RequestRefused:
        return None
    return dict(
        parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=100)
    )


def _parse_number(value: str | None, default: int, maximum: int) -> int:
    """Parse a whole number from a query; return `default` for anything else."""
    if value is None or not value.isascii() or not value.isdecimal() or len(value) > 20:
        return default
    return min(int(value), maximum)


def _redirect_to_thread(thread_id: str, outcome: str, anchor: str = "") -> Response:
    url = f"/dashboard/threads/{quote(thread_id, safe='')}?outcome={outcome}"
    return RedirectResponse(f"{url}#{anchor}" if anchor else url, 303)
