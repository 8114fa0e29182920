"""Servers in processes of their own, and what a process used: for the measurements that need them."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.peers.proxies import Server

MODEL = "claude-sonnet-5"
ANSWER = json.dumps(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": "Fine."}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 10, "output_tokens": 2},
    }
).encode()


@contextmanager
def process(target: Any, *given: Any) -> Iterator[Server]:
    """A process that sends its address when it is up."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    started = context.Process(target=target, args=(there, *given), daemon=True)
    started.start()
    there.close()  # so that a process that ends is heard
    try:
        yield Server(here.recv(), started.pid or 0)
    finally:
        started.terminate()
        started.join()


def serve_answer(told: Connection) -> None:
    """An upstream that answers at once, so that what is measured is the way and nothing else."""
    asyncio.run(_answer_at_once(told))


async def _answer_at_once(told: Connection) -> None:
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        % len(ANSWER)
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = lines.partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or b"0"))
                writer.write(head + ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 22)
    told.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await server.serve_forever()


def serve_gateway(
    told: Connection, upstream: str, store: str, mode: str, extra: str = ""
) -> None:
    """`store`: a file or a URL; `extra`: more lines of the configuration."""
    asyncio.run(_gateway(told, upstream, store, mode, extra))


async def _gateway(
    told: Connection, upstream: str, store: str, mode: str, extra: str
) -> None:
    from everthread.config import parse_config  # noqa: PLC0415
    from everthread.factory.gateways import open_gateway  # noqa: PLC0415  in the process it runs in

    url = store if "://" in store else f"sqlite:///{store}"
    upstreams = f"[{{name: direct, url: '{upstream}', mode: {mode}}}]"
    text = f"gateway: {{port: 0, upstreams: {upstreams}}}\nstore: {{url: '{url}'}}\n{extra}"
    async with open_gateway(parse_config(text), is_gateway_process=True) as gateway:
        told.send(gateway.url)
        await asyncio.Event().wait()


async def ask(
    client: httpx2.AsyncClient, url: str, body: bytes, *, exact: bool = True
) -> httpx2.Response:
    headers = {
        "content-type": "application/json",
        "x-api-key": "any",
        "anthropic-version": "2023-06-01",
    }
    answer = await client.post(f"{url}/v1/messages", content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert not exact or answer.content == ANSWER
    return answer


def history_body(size: int, number: int, scope: str, model: str = MODEL) -> bytes:
    """A history of about this size to which a short exchange is added each time."""
    text = f"Entry of {scope}: the books are settled and compared. " * 20
    count = max(1, size // (2 * len(text)))
    messages: list[Any] = []
    for index in range(count):
        messages.append({"role": "user", "content": f"{index} {text}"})
        messages.append({"role": "assistant", "content": f"{text} {index}"})
    for index in range(number):
        messages.append({"role": "user", "content": f"Next {index}?"})
        messages.append({"role": "assistant", "content": "Fine."})
    messages.append({"role": "user", "content": f"Next {number}?"})
    return json.dumps(
        {"model": model, "max_tokens": 100, "messages": messages}
    ).encode()


def family(pid: int) -> list[int]:
    """The process and all that it started."""
    found = [pid]
    for one in found:
        try:
            found += map(
                int, Path(f"/proc/{one}/task/{one}/children").read_text("ascii").split()
            )
        except FileNotFoundError:
            continue
    return found


def cpu_seconds(*pids: int) -> float | None:
    """What processes have used so far; None where the system does not tell."""
    total = 0.0
    for pid in pids:
        file = Path(f"/proc/{pid}/stat")
        if not file.exists():
            return None
        fields = file.read_text("utf-8").rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def resident(pid: int) -> int | None:
    """Bytes of memory; None where the system does not tell."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return None
    lines = status.read_text("utf-8").split("VmRSS:")
    return int(lines[1].split()[0]) * 1024 if len(lines) > 1 else None


@contextmanager
def serve_command(home: Path, config: str, *options: str) -> Iterator[Server]:
    """`everthread serve` as a person starts it."""
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(config, "utf-8")
    started = subprocess.Popen(  # noqa: S603 - our own command
        [
            sys.executable,
            "-m",
            "everthread",
            "serve",
            "--port",
            "0",
            "--json",
            *options,
        ],
        env={**os.environ, "EVERTHREAD_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stdout is not None
        yield Server(json.loads(started.stdout.readline())["url"], started.pid)
    finally:
        started.terminate()
        started.wait()
