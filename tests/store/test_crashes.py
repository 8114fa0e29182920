"""Processes and servers killed at any moment: confirmed messages are stored once; no thread is half changed."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psycopg

from everthread.factory import open_store
from everthread.store.records import NewSession
from everthread.store.store import Store
from tests.store.killed_processes import ForkServer
from tests.store.messages import texts_of
from tests.store.postgres_server import Server

KILLS = 20
SERVER_CRASHES = 5


def kill_talkers(url: str, folder: Path, kills: int) -> int:
    """Two processes talk in the same threads; the older one is killed, over and over.

    One in four is killed at any moment from its birth on, the others after they have begun to talk. How many messages
    were there afterwards.
    """
    there = 0
    chance = random.Random(kills)  # noqa: S311 - chance, not secrecy
    with ForkServer() as nursery:
        for number in range(0, kills, 10):
            threads = asyncio.run(new_threads(url, 2))
            logs: list[Path] = []
            talking: list[int] = []
            for seed in range(number, min(number + 10, kills)):
                logs.append(folder / f"{seed}.log")
                talking.append(
                    nursery.start(
                        "talk",
                        url=url,
                        log=str(logs[-1]),
                        seed=seed,
                        threads=threads,
                    )
                )
                if seed % 4:
                    wait_for_new_messages(logs[-1:])
                time.sleep(chance.uniform(0, 0.06))
                if len(talking) == 2:
                    nursery.kill(talking.pop(0))
            nursery.kill(talking.pop())
            there += asyncio.run(verify(url, threads, logs))
    return there


async def new_threads(url: str, count: int) -> list[str]:
    store = open_store(url)
    made = [(await store.create_session(NewSession())).id for _ in range(count)]
    await store.close()
    return made


async def verify(url: str, threads: Sequence[str], logs: Sequence[Path]) -> int:
    """Nothing confirmed is missing, nothing is there twice or was never asked for, and each speaker's order is kept.

    How many messages were confirmed.
    """
    asked, confirmed = read_logs(logs)
    store = open_store(url)
    health = await store.check()
    assert health.problems == ()
    for thread in threads:
        history = texts_of(await store.history(thread))
        assert [text for text, count in Counter(history).items() if count > 1] == []
        assert confirmed.get(thread, set()) - set(history) == set()
        assert set(history) - asked.get(thread, set()) == set()
        for speaker in {text.rpartition(".")[0] for text in history}:
            spoken = [
                int(text.rpartition(".")[2])
                for text in history
                if text.rpartition(".")[0] == speaker
            ]
            assert spoken == sorted(spoken)
        await verify_context(store, thread)
    await store.close()
    return sum(len(each) for each in confirmed.values())


async def verify_context(store: Store, thread: str) -> None:
    """Check that each continuation holds every message of its parent that its summary does not cover."""
    records = {
        record.session: record
        for record in await store.compactions(thread)
        if record.reverted_at is None
    }
    for session in await store.thread_sessions(thread):
        if session.kind == "continuation" and session.parent is not None:
            parent = {message.id for message in await store.messages(session.parent)}
            here = [message.id for message in await store.messages(session.id)]
            assert parent - set(records.pop(session.id).record.covered) <= set(here)
            assert len(here) == len(set(here))
    assert records == {}


def read_logs(logs: Sequence[Path]) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return requested and confirmed messages, by thread."""
    found: dict[str, dict[str, set[str]]] = {"ask": {}, "ack": {}}
    for log in logs:
        for line in log.read_text().splitlines() if log.exists() else ():
            word, *rest = line.split()
            if word in found:
                found[word].setdefault(rest[0], set()).update(rest[1:])
    return found["ask"], found["ack"]


def test_processes_are_killed_at_random_moments(url: str, tmp_path: Path) -> None:
    assert kill_talkers(url, tmp_path, KILLS) > KILLS // 2


def crash_server(server: Server, folder: Path, crashes: int) -> int:
    """Let two processes write while the server is killed and restarted repeatedly; return the number of messages."""
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE crashes")
    url = server.url("crashes")
    chance = random.Random(crashes)  # noqa: S311 - chance, not secrecy
    threads = asyncio.run(new_threads(url, 3))
    logs = [folder / f"{seed}.log" for seed in range(2)]
    with ForkServer() as nursery:
        for seed, log in enumerate(logs):
            nursery.start(
                "talk",
                url=url,
                log=str(log),
                seed=seed,
                threads=threads,
            )
        for _ in range(crashes):
            wait_for_new_messages(logs)
            time.sleep(chance.uniform(0, 0.1))
            server.crash()
            server.start()
        wait_for_new_messages(logs)
    return asyncio.run(verify(url, threads, logs))


def wait_for_new_messages(logs: Sequence[Path]) -> None:
    def size() -> list[int]:
        return [log.read_text().count("ack") if log.exists() else 0 for log in logs]

    before = size()
    deadline = time.monotonic() + 60
    while any(now <= then for now, then in zip(size(), before, strict=True)):
        assert time.monotonic() < deadline, "nothing more is confirmed"
        time.sleep(0.005)


def test_server_is_killed_at_random_moments(own_server: Server, tmp_path: Path) -> None:
    assert crash_server(own_server, tmp_path, SERVER_CRASHES) > SERVER_CRASHES


def test_eight_processes_share_threads(url: str, tmp_path: Path) -> None:
    assert share_threads(url, tmp_path, processes=8, amount=20) >= 8 * 2 * 20


def share_threads(url: str, folder: Path, *, processes: int, amount: int) -> int:
    """Let many processes append to the same threads, with compactions and undos; return the number of messages."""
    threads = asyncio.run(new_threads(url, 3))
    logs = [folder / f"{seed}.log" for seed in range(processes)]
    with ForkServer() as nursery:
        children = [
            nursery.start(
                "talk",
                url=url,
                log=str(log),
                seed=seed,
                threads=threads,
                amount=amount,
                undo=0.05,
            )
            for seed, log in enumerate(logs)
        ]
        assert [nursery.wait(child) for child in children] == [0] * processes
    asked, confirmed = read_logs(logs)
    assert asked == confirmed
    return asyncio.run(verify(url, threads, logs))
