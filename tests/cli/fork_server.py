"""A process that has the libraries loaded and forks for every command, so that starting one takes no second.

What runs is a real process of its own: own memory, own standard streams, own environment, killed by its own faults.
"""

from __future__ import annotations

import fcntl
import json
import os
import runpy
import signal
import socket
import sys
import termios
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

# Libraries that every command loads. The fork loads the command's own modules, with its own environment.
PRELOADED = (
    "anthropic.resources.messages",
    "apsw",
    "genai_prices",
    "httpx2",
    "openai.resources.chat.completions",
    "prompt_toolkit",
    "pydantic",
    "rich.console",
    "rich.live",
    "rich.markdown",
    "rich.table",
    "ruamel.yaml",
    "typer",
    "typer.rich_utils",
    "everthread.agent.commands",
    "everthread.agent.tools",
    "everthread.factory",
    "everthread.config",
    "everthread.core.tokens",
    "everthread.store.store",
    "everthread.store.sqlite",
    "everthread.wire.codecs",
    "everthread.lab.importers.read_logs",
    "everthread.compaction.compressor",
    "everthread.compaction.journal.journal",
    "everthread.core.secrets.redaction",
    "everthread.providers.model_choice",
    "everthread.conversation.conversation",
)

READY = b"ready"


def serve(connection: socket.socket) -> None:
    for name in PRELOADED:
        __import__(name)
    _build_tables()
    connection.sendall(READY)
    while True:
        head, streams, _, _ = socket.recv_fds(connection, 8, 3)
        if not head:
            return
        order = json.loads(_receive_exactly(connection, int.from_bytes(head, "big")))
        child = os.fork()
        if child == 0:
            connection.close()
            _run_as_child(order, streams)
        for stream in streams:
            os.close(stream)
        _, status = os.waitpid(child, 0)
        connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))


def _build_tables() -> None:
    """Tables that are built at their first use, in every process anew."""
    from everthread.core.costs.prices import prices_for  # noqa: PLC0415
    from everthread.core.secrets.redaction import redact  # noqa: PLC0415
    from everthread.core.tokens import TokenCounter  # noqa: PLC0415

    for model in (None, "gpt-4o"):
        TokenCounter(model).text("the vocabulary")
    redact("nothing secret")
    prices_for("gpt-4o", time=datetime.now(UTC))


def _run_as_child(order: dict[str, Any], streams: Sequence[int]) -> NoReturn:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    if order["terminal"]:
        os.setsid()
        # So that Ctrl-C there reaches this process.
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["directory"])
    sys.argv = ["everthread", *order["arguments"]]
    # The parent may ignore this signal, as nohup does.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    code = 1
    try:
        if order["script"]:
            exec(compile(order["script"], "script", "exec"), {"__name__": "__main__"})  # noqa: S102 - as `python -c` does
        else:
            runpy.run_module("everthread", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001 - shown as the interpreter would
        traceback.print_exc()
    for output in (sys.stdout, sys.stderr):
        try:
            output.flush()
        except (OSError, ValueError):
            code = code or 120
    os._exit(code)


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError("the process that forks for the commands has ended")
        data += piece
    return data


class ForkServer:
    """The test's side: run commands on given streams and return their exit codes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        # A test's own times begin when its commands can.
        _receive_exactly(connection, len(READY))

    def run(
        self,
        arguments: Sequence[str | bytes],
        environment: dict[str, str],
        streams: Sequence[int],
    ) -> int:
        self.start(arguments, environment, streams)
        return self.wait()

    def start(
        self,
        arguments: Sequence[str | bytes],
        environment: dict[str, str],
        streams: Sequence[int],
        *,
        terminal: bool = False,
        script: str = "",
    ) -> None:
        """Start a command, or a script instead of it. Call `wait` before the next start."""
        words = [os.fsdecode(word) for word in arguments]
        order: dict[str, Any] = {
            "arguments": words,
            "environment": environment,
            "directory": str(Path.cwd()),
        }
        order |= {"terminal": terminal, "script": script}
        data = json.dumps(order).encode()
        socket.send_fds(self._connection, [len(data).to_bytes(8, "big")], list(streams))
        self._connection.sendall(data)

    def wait(self) -> int:
        """Return the exit code of the started command."""
        return int.from_bytes(_receive_exactly(self._connection, 4), "big", signed=True)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
