"""Start servers in processes of their own, and measure the CPU and memory of processes."""

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
def start_process(target: Any, *arguments: Any) -> Iterator[Server]:
    """Start a process and yield its address, which it sends when it is ready."""
    context = multiprocessing.get_context("spawn")
    own_end, child_end = context.Pipe()
    child = context.Process(target=target, args=(child_end, *arguments), daemon=True)
    child.start()
    child_end.close()  # so that a process that ends is heard
    try:
        yield Server(own_end.recv(), child.pid or 0)
    finally:
        child.terminate()
        child.join()


def serve_answer(address_pipe: Connection) -> None:
    """Serve an upstream that answers immediately, so that only the gateway's time is measured."""
    asyncio.run(_answer_at_once(address_pipe))


async def _answer_at_once(address_pipe: Connection) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(
        ANSWER
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
    address_pipe.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await server.serve_forever()


def serve_gateway(
    address_pipe: Connection,
    upstream: str,
    store: str,
    mode: str,
    extra_config: str = "",
) -> None:
    """Serve a gateway. `store`: a file or a URL; `extra_config`: more lines of the configuration."""
    asyncio.run(_gateway(address_pipe, upstream, store, mode, extra_config))


async def _gateway(
    address_pipe: Connection, upstream: str, store: str, mode: str, extra_config: str
) -> None:
    from everthread.config import parse_config  # noqa: PLC0415
    from everthread.factory.gateways import open_gateway  # noqa: PLC0415  in the process it runs in

    url = store if "://" in store else f"sqlite:///{store}"
    upstreams = f"[{{name: direct, url: '{upstream}', mode: {mode}}}]"
    text = f"gateway: {{port: 0, upstreams: {upstreams}}}\nstore: {{url: '{url}'}}\n{extra_config}"
    async with open_gateway(parse_config(text), is_gateway_process=True) as gateway:
        address_pipe.send(gateway.url)
        await asyncio.Event().wait()


async def ask(
    client: httpx2.AsyncClient, url: str, body: bytes, *, is_exact: bool = True
) -> httpx2.Response:
    headers = {
        "content-type": "application/json",
        "x-api-key": "any",
        "anthropic-version": "2023-06-01",
    }
    answer = await client.post(f"{url}/v1/messages", content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert not is_exact or answer.content == ANSWER
    return answer


def make_history_body(size: int, number: int, scope: str, model: str = MODEL) -> bytes:
    """Return a request whose history has about this size, plus `number` short exchanges."""
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
    return json.dumps({"model": model, "max_tokens": 100, "messages": messages}).encode()


def list_process_family(pid: int) -> list[int]:
    """Return the ids of a process and of all its descendants."""
    process_ids = [pid]
    for process_id in process_ids:
        try:
            process_ids += map(
                int,
                Path(f"/proc/{process_id}/task/{process_id}/children").read_text("ascii").split(),
            )
        except FileNotFoundError:
            continue
    return process_ids


def read_cpu_seconds(*pids: int) -> float | None:
    """Return the CPU seconds of processes so far; None if the system does not report them."""
    total = 0.0
    for pid in pids:
        file = Path(f"/proc/{pid}/stat")
        if not file.exists():
            return None
        fields = file.read_text("utf-8").rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def read_memory_bytes(pid: int) -> int | None:
    """Return the bytes of memory of a process; None if the system does not report them."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return None
    lines = status.read_text("utf-8").split("VmRSS:")
    return int(lines[1].split()[0]) * 1024 if len(lines) > 1 else None


@contextmanager
def start_serve_command(home: Path, config: str, *options: str) -> Iterator[Server]:
    """Start `everthread serve` as a user does; yield its address and process id."""
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
