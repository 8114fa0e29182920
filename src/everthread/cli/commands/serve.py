"""`everthread serve`: run the gateway until Ctrl-C."""

from __future__ import annotations

import asyncio
import importlib
import signal
import socket
import sys
import tempfile
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import typer

from everthread.cli.end_signals import leave_on_interrupt, watch_end_signals
from everthread.cli.output import encode_json, escape_controls
from everthread.cli.shared_options import number_option
from everthread.config import Config, load_config
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.gateway.contracts import Auth, Mode
    from everthread.gateway.router import Upstream
    from everthread.gateway.server import Gateway


HostOption = Annotated[
    str | None, typer.Option(help="Where to listen. Default: gateway.host.")
]
PortOption = Annotated[
    int | None,
    number_option(
        maximum=65535, help_text="0 finds a free one. Default: gateway.port."
    ),
]
UpstreamOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=URL",
        help="A provider behind the gateway, instead of the configured ones; `local`: the small model here.",
    ),
]
ModeOption = Annotated[
    Literal["managed", "observe", "off"] | None,
    typer.Option(
        metavar="MODE",
        help="`managed`: compact where needed; `observe`: only record; `off`: neither. Default: gateway.mode.",
    ),
]
AuthOption = Annotated[
    Literal["keys", "passthrough", "none"] | None,
    typer.Option(
        metavar="AUTH",
        help="`keys`: clients need a key of this gateway; `passthrough`: a credential for the upstream; `none`: "
        "nothing, on this machine only. Default: gateway.auth.",
    ),
]
WorkersOption = Annotated[
    int | None,
    number_option(
        minimum=1,
        maximum=64,
        help_text="Processes that answer behind the one port. Default: gateway.workers.",
    ),
]
LogOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write a JSON line there for each request and compaction.",
    ),
]
LogFormatOption = Annotated[
    Literal["text", "json"],
    typer.Option(
        metavar="FORMAT",
        help="How to log on standard error: `text`, or `json` with a line for each request, its id and thread.",
    ),
]
AsJsonOption = Annotated[
    bool, typer.Option("--json", help="Print where it listens as JSON.")
]
QuietOption = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No line for each request and compaction."),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say more on standard error.")
]


def serve(
    host: HostOption = None,
    port: PortOption = None,
    upstream: UpstreamOption = None,
    mode: ModeOption = None,
    auth: AuthOption = None,
    workers: WorkersOption = None,
    log: LogOption = None,
    log_format: LogFormatOption = "text",
    as_json: AsJsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Serve an endpoint that gives any client an unlimited conversation.

    Ctrl-C ends it, after what is being answered.
    """
    leave_on_interrupt()
    from everthread.factory.upstreams import add_keys, list_upstreams

    config = load_config()
    _require_auxiliary_sdk(config)
    named_upstreams = [
        parse_upstream(text, mode or config.gateway.mode) for text in upstream or []
    ]
    auth = auth or config.gateway.auth
    upstreams = add_keys(named_upstreams or list_upstreams(config, mode), auth)
    task = ServeTask(
        config=config,
        upstreams=upstreams,
        host=host or config.gateway.host,
        auth=auth,
        log_format=log_format,
        log_file=log,
        verbose=verbose,
        quiet=quiet or as_json,
    )
    task.set_up_logs()
    port = config.gateway.port if port is None else port
    count = workers or config.gateway.workers
    if count == 1:  # import it now: later a signal waits until the gateway has started
        importlib.import_module("everthread.factory.gateways")
    start_message = StartMessage(task, as_json=as_json)
    asyncio.run(
        _serve_alone(task, port, start_message)
        if count == 1
        else _serve_with_workers(task, port, count, start_message)
    )


def _require_auxiliary_sdk(config: Config) -> None:
    """Raise `MissingPackageError` if the SDK of the auxiliary model is not installed."""
    from everthread.factory.model_setup import check_choice
    from everthread.providers.clients import require_sdk

    auxiliary = config.auxiliary.compression
    if auxiliary.provider == "main" or not (auxiliary.model or auxiliary.base_url):
        return
    choice, _ = check_choice(auxiliary, auxiliary.model or config.model.default)
    if choice is not None:
        require_sdk(choice.api)


@dataclass(frozen=True, slots=True)
class ServeTask:
    """The options of `serve` that every worker needs."""

    config: Config
    upstreams: list[Upstream]
    host: str
    auth: Auth
    log_format: Literal["text", "json"]
    log_file: Path | None
    verbose: bool
    quiet: bool

    def set_up_logs(self) -> None:
        from everthread.gateway.monitoring.log_lines import set_up_logs

        set_up_logs(
            self.log_format, verbose=self.verbose, quiet=self.quiet, file=self.log_file
        )

    def open_gateway(self, **options: Any) -> AbstractAsyncContextManager[Gateway]:
        from everthread.factory.gateways import open_gateway
        from everthread.lab.replay.trial import run_trial

        return open_gateway(
            self.config,
            host=self.host,
            upstreams=self.upstreams,
            auth=self.auth,
            trial=run_trial,
            is_gateway_process=True,
            **options,
        )


async def _serve_alone(task: ServeTask, port: int, start_message: StartMessage) -> None:
    stop_event = watch_end_signals()
    async with task.open_gateway(port=port, announce=start_message.announce) as gateway:
        start_message.print_start(gateway.url, gateway.find_dashboard_url())
        await stop_event.wait()


_WORKER_CODE = "from everthread.cli.commands.serve import serve_worker; serve_worker()"


async def _serve_with_workers(
    task: ServeTask, port: int, count: int, start_message: StartMessage
) -> None:
    """Run several processes until a signal; a second signal kills them."""
    from everthread.factory.upstreams import start_local_models
    from everthread.gateway.loop_server import http_url
    from everthread.gateway.supervisor import PortSockets, Supervisor

    stop_event = asyncio.Event()
    loop = asyncio.get_running_loop()
    pages: list[str | None] = []

    def on_report(report: dict[str, Any]) -> None:
        if "link" in report:
            start_message.announce(report["link"])
        elif report.get("ready"):
            pages.append(report["page"])

    async with AsyncExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="everthread-serve-"))
        )
        worker_task = replace(
            task, upstreams=await start_local_models(task.upstreams, task.config, stack)
        )
        sockets = PortSockets(task.host, port, count)
        supervisor = Supervisor(
            [sys.executable, "-c", _WORKER_CODE],
            lambda index: (worker_task, count, folder / "links", index == 0),
            sockets,
            folder,
            count=count,
            print_message=on_report,
        )

        def on_end_signal() -> None:
            if stop_event.is_set():
                supervisor.signal(signal.SIGKILL)
            stop_event.set()

        for signal_number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signal_number, on_end_signal)
        async with supervisor:
            start_message.print_start(
                http_url(task.host, sockets.port),
                next(filter(None, pages), None),
                count,
            )
            await stop_event.wait()


def serve_worker() -> None:
    """Run the process of one worker."""
    from everthread.gateway.worker_process import serve_as_worker

    serve_as_worker(_serve_in_worker)


async def _serve_in_worker(
    listener: socket.socket, arguments: tuple[ServeTask, int, Path, bool]
) -> None:
    from everthread.gateway.worker_process import WorkerSetup, report, wait_until_ended

    task, count, link_folder, is_first = arguments
    task.set_up_logs()
    worker_place = WorkerSetup(listener, count, link_folder)
    async with task.open_gateway(
        announce=lambda path: report(link=path), worker=worker_place
    ) as gateway:
        report(ready=True, page=gateway.find_dashboard_url() if is_first else None)
        await wait_until_ended()


class StartMessage:
    """Prints the gateway's address at the start, and later links that open its pages."""

    def __init__(self, task: ServeTask, *, as_json: bool) -> None:
        self._task = task
        self._as_json = as_json
        self._url = ""

    def print_start(self, url: str, page: str | None, workers: int = 1) -> None:
        listens_everywhere = replace_wildcard_host(url) != url
        upstreams = self._task.upstreams
        self._url = url = replace_wildcard_host(url)
        page = None if page is None else replace_wildcard_host(page)
        if self._as_json:
            self._print_start_as_json(page, workers)
            return
        auth = self._task.auth
        width = max(len(upstream.name) for upstream in upstreams)
        address = (
            f"port {urlsplit(url).port} of every address of this machine"
            if listens_everywhere
            else url
        )
        lines = [
            f"Everthread listens on {address}{f' with {workers} workers' if workers > 1 else ''} in front of"
        ]
        lines += [
            f"  {upstream.name:{width}}  {upstream.root} ({upstream.mode}); {_describe_key(upstream, auth)}"
            for upstream in upstreams
        ]
        variables = {
            "OPENAI_BASE_URL": f"{url}/v1",
            "ANTHROPIC_BASE_URL": url,
            "GOOGLE_GEMINI_BASE_URL": url,
        }
        lines += [
            "Set in a client:",
            *(f"  {name}={value}" for name, value in variables.items()),
        ]
        if listens_everywhere:
            lines.append(
                f"On another machine, put this one's name or address for {urlsplit(url).hostname}."
            )
        from everthread.cli.summary_writer import describe_client_writer

        writer = describe_client_writer(self._task.config)
        lines.append(f"Summaries: written by {writer}.")
        if page is None:
            lines.append(
                "The pages at / are off: set gateway.dashboard.key_env to see your context."
            )
        else:
            lines.append(
                f"See your context{' (the link works once)' if auth == 'none' else ''}: {page}"
            )
        lines.append("Ctrl-C ends it.")
        typer.echo(escape_controls("\n".join(lines)))

    def _print_start_as_json(self, page: str | None, workers: int) -> None:
        upstream_values = [
            {"name": upstream.name, "url": upstream.root, "mode": upstream.mode}
            for upstream in self._task.upstreams
        ]
        values = {
            "url": self._url,
            "upstreams": upstream_values,
            "page": page,
            "workers": workers,
        }
        typer.echo(encode_json(values))

    def announce(self, path: str) -> None:
        typer.echo(
            f"See your context, with a link that works once: {self._url}{path}",
            err=self._as_json,
        )


def replace_wildcard_host(url: str) -> str:
    """Replace 0.0.0.0 or [::], which mean every address, by a loopback address that a client can use."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:", 1).replace(
        "//[::]:", "//[::1]:", 1
    )


def parse_upstream(text: str, mode: Mode) -> Upstream:
    """Read `NAME=URL` of the command line. The upstream gets the clients' own keys."""
    from everthread.factory.upstreams import is_local
    from everthread.gateway.router import Upstream

    name, _, url = text.partition("=")
    if is_local(url or name):
        return Upstream(name.partition(":")[0], url or name, mode=mode)
    parts = urlsplit(url)
    if (
        not name
        or parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.password
    ):
        raise InputError(
            "--upstream is not NAME=URL, such as vllm=http://127.0.0.1:8000/v1, without a password in it"
        )
    if "anthropic" in name.lower():
        return Upstream(name, url, ("claude-*",), "anthropic", mode=mode)
    return Upstream(name, url, mode=mode)


def _describe_key(upstream: Upstream, auth: Auth) -> str:
    """Describe which key is sent to an upstream."""
    if upstream.api_key is not None:
        return "its own key goes there, for clients that show one of ours"
    if upstream.serves_logins:
        return "logins with ChatGPT go there"
    return "no key goes there" if auth == "keys" else "the client's own key goes there"
