"""Run the gateway with several processes behind one port."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from everthread.cli.commands.serve.serve_task import ServeTask
from everthread.cli.commands.serve.start_message import StartMessage

_WORKER_CODE = "from everthread.cli.commands.serve.workers import run_worker; run_worker()"


async def serve_with_workers(
    task: ServeTask, port: int, worker_count: int, start_message: StartMessage
) -> None:
    """Run several processes until a signal asks them to end. A second signal kills them."""
    from everthread.factory.upstreams import start_local_models
    from everthread.gateway.loop_server import format_http_url
    from everthread.gateway.supervisor import PortSockets, Supervisor

    stop_event = asyncio.Event()
    loop = asyncio.get_running_loop()
    page_urls: list[str | None] = []

    def on_report(report: dict[str, Any]) -> None:
        if "link" in report:
            start_message.announce(report["link"])
        elif report.get("ready"):
            page_urls.append(report["page"])

    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="everthread-serve-")))
        worker_task = replace(
            task, upstreams=await start_local_models(task.upstreams, task.config, stack)
        )
        sockets = PortSockets(task.host, port, worker_count)
        supervisor = Supervisor(
            [sys.executable, "-c", _WORKER_CODE],
            lambda index: (worker_task, worker_count, folder / "links", index == 0),
            sockets,
            folder,
            count=worker_count,
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
                format_http_url(task.host, sockets.port),
                next(filter(None, page_urls), None),
                worker_count,
            )
            await stop_event.wait()


def run_worker() -> None:
    """Run the process of one worker."""
    from everthread.gateway.worker_process import serve_as_worker

    serve_as_worker(_serve_in_worker)


async def _serve_in_worker(
    listener: socket.socket, arguments: tuple[ServeTask, int, Path, bool]
) -> None:
    from everthread.gateway.worker_process import WorkerSetup, report, wait_until_ended

    task, worker_count, link_folder, is_first = arguments
    task.set_up_logs()
    worker_setup = WorkerSetup(listener, worker_count, link_folder)
    async with task.open_gateway(
        announce=lambda path: report(link=path), worker=worker_setup
    ) as gateway:
        report(ready=True, page=gateway.find_dashboard_url() if is_first else None)
        await wait_until_ended()
