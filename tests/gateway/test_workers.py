"""Several workers on one port, as processes over real HTTP: one gateway for its clients, even if a worker dies."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread.core.types import ModelRequest
from everthread.errors import InputError
from everthread.factory import open_store
from everthread.gateway.access.authentication import KEY_CACHE_SECONDS
from everthread.gateway.access.key_creation import issue_key
from everthread.gateway.dashboard.login import MAX_LINKS, LoginLinks
from everthread.gateway.loop_server import listen
from everthread.gateway.supervisor import PortSockets
from everthread.lab.provider import Provider
from everthread.lab.provider.faults import Fault
from tests.gateway.load_checks import count_compactions, find_problems, list_fail_open_metrics
from tests.gateway.load_clients import LoadClient, NumberedAnswers, Sdk, served_models

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        sys.platform != "linux", reason="the children of a process are read from /proc"
    ),
]
COMMAND = [
    sys.executable,
    "-m",
    "everthread",
    "serve",
    "--port",
    "0",
    "--workers",
    "2",
    "--json",
]
MANY = 16
"""Connections, of which each worker gets some."""


async def until(true: Callable[[], bool]) -> None:
    """Poll: another process sets no event."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@asynccontextmanager
async def run_workers(
    home: Path, config: str, *options: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Any]]:
    """Run `everthread serve` with two workers; yield it with its first output."""
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(config, "utf-8")
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *options,
        env={**os.environ, "EVERTHREAD_HOME": str(home)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        yield process, json.loads(line)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        _, errors = await process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    assert b"Traceback" not in errors


def child_pids(pid: int) -> list[int]:
    return [
        int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    ]


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text("utf-8")
    except FileNotFoundError:
        return False


async def ask_anew(url: str, **headers: str) -> httpx2.Response:
    """Over a connection of its own."""
    async with httpx2.AsyncClient(timeout=60) as client:
        return await client.get(url, headers=headers)


class SlowUpstream:
    """Streams slowly, so that a kill meets an answer in the middle."""

    def __init__(self) -> None:
        self._numbered = NumberedAnswers()

    def __call__(self, request: ModelRequest) -> Fault:
        return Fault("slow", reply=self._numbered(request), seconds=0.02)


async def test_a_killed_worker_loses_only_its_open_answers(
    tmp_path: Path,
) -> None:
    assert await kill_worker(f"sqlite:///{tmp_path}/store.db", tmp_path)


async def kill_worker(database: str, folder: Path) -> int:
    """Kill one of two workers while both answer; whatever was answered before is stored. How often it compacted."""
    async with Provider(served_models(6_000), SlowUpstream()) as provider:
        config = (
            f"store: {{url: '{database}'}}\ncompression: {{background: false, economics: false}}\n"
            f"gateway: {{native: {{enabled: false}}, upstreams: [{{name: lab, url: '{provider.url}'}}]}}\n"
        )
        async with run_workers(folder / "home", config) as (process, output):
            assert output["workers"] == 2
            before = child_pids(process.pid)
            assert len(before) == 2
            sdk = Sdk()
            clients = [
                LoadClient(
                    number,
                    lambda: output["url"],
                    sdk,
                    stream=True,
                    words=60,
                )
                for number in range(MANY)
            ]
            await asyncio.gather(*(client.send_turn() for client in clients))
            answered = sum(record.status == 200 for record in provider.log)
            metrics = (await ask_anew(f"{output['url']}/metrics")).text
            assert _requests(metrics) == answered, "each worker tells the sum of all"
            assert list_fail_open_metrics(metrics) == []
            # Repeat until a kill meets an answer in the middle.
            for _ in range(3):
                talks = [asyncio.create_task(client.send_turn()) for client in clients]
                expected = answered + MANY // 2
                await until(lambda: len(provider.log) >= expected)  # noqa: B023
                os.kill(child_pids(process.pid)[0], signal.SIGKILL)
                await asyncio.gather(*talks)
                if any(client.failures for client in clients):
                    break
                answered = len(provider.log)
            assert any(client.failures for client in clients)
            await until(lambda: len(child_pids(process.pid)) == 2)
            assert set(child_pids(process.pid)) != set(before), "another takes its place"
            await asyncio.gather(*(client.send_turn() for client in clients))
            await sdk.close()
            metrics = (await ask_anew(f"{output['url']}/metrics")).text
            assert _requests(metrics) >= 3 * MANY, (
                "what a worker counted that is gone stays in the sum"
            )
            assert "everthread_in_flight 0" in metrics
        store = open_store(database)
        try:
            problems = await find_problems(
                store,
                provider.log,
                clients,
                allows_unread_answers=True,
                max_lost_usages=2 * MANY,
            )
            assert problems == {}
            return await count_compactions(store)
        finally:
            await store.close()


def _requests(metrics: str) -> int:
    found = re.findall(r'everthread_requests_total\{api="[a-z_]+",status="200"\} (\S+)', metrics)
    return sum(int(float(number)) for number in found)


async def test_a_login_link_works_once_for_all_workers(
    tmp_path: Path,
) -> None:
    async with run_workers(
        tmp_path, "gateway: {upstreams: [{name: nobody, url: 'http://127.0.0.1:9'}]}"
    ) as (process, output):
        texts = [(await ask_anew(output["page"])).text for _ in range(MANY)]
        assert "You are in." in texts[0]
        assert all("was used already" in text for text in texts[1:])
        workers = child_pids(process.pid)
        process.send_signal(signal.SIGKILL)
        # None outlives who started it.
        await until(lambda: not any(map(is_alive, workers)))


async def test_every_worker_refuses_a_revoked_key(tmp_path: Path) -> None:
    store = open_store(tmp_path / "everthread.db")
    token, key = issue_key(scopes=("proxy",))
    await store.keys.create_key(key)
    config = "gateway: {auth: keys, upstreams: [{name: nobody, url: 'http://127.0.0.1:9'}]}"
    try:
        async with run_workers(tmp_path, config) as (_, output):
            address = f"{output['url']}/metrics"
            headers = {"authorization": f"Bearer {token}"}
            assert {(await ask_anew(address, **headers)).status_code for _ in range(MANY)} == {200}
            await store.keys.revoke_key(key.id)
            await asyncio.sleep(KEY_CACHE_SECONDS + 0.1)
            assert {(await ask_anew(address, **headers)).status_code for _ in range(MANY)} == {401}
    finally:
        await store.close()


def test_reports_once_why_workers_cannot_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--host", "0.0.0.0"],  # noqa: S104
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "EVERTHREAD_HOME": str(tmp_path)},
        timeout=300,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "everthread: without API keys the gateway listens on this machine only" in done.stderr


def test_does_not_share_a_port_with_other_programs() -> None:
    with listen(0) as taken, pytest.raises(InputError, match="cannot be used"):
        PortSockets("127.0.0.1", taken.getsockname()[1], 2)
    ours = PortSockets("127.0.0.1", 0, 2)
    try:
        ours[0].listen()
        with pytest.raises(InputError, match="cannot be used"):
            PortSockets("127.0.0.1", ours.port, 2)
        before = ours[1].fileno(), ours[1].getsockname()
        ours.renew(1)
        assert ours[1].getsockname() == before[1]
    finally:
        ours.close()


@pytest.mark.parametrize("shared", [False, True])
def test_keeps_the_newest_login_links_and_accepts_each_once(shared: bool, tmp_path: Path) -> None:
    links = LoginLinks(tmp_path / "links" if shared else None)
    others = LoginLinks(tmp_path / "links") if shared else links
    for number in range(MAX_LINKS + 5):
        links.add(f"{number:04}")
        if shared:
            os.utime(tmp_path / "links" / f"{number:04}", (number, number))
    assert not others.remove("0000")
    assert others.remove(f"{MAX_LINKS:04}")
    assert not links.remove(f"{MAX_LINKS:04}")
