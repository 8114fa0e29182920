"""Let processes write to a store while they or its server are killed, and verify what is stored."""

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
from tests.store.fork_server import ForkServer
from tests.store.messages import texts_of
from tests.store.postgres_server import Server


def kill_talkers(url: str, folder: Path, kills: int) -> int:
    """Let two processes talk in the same threads, and kill the older one, over and over.

    One in four is killed at any moment from its birth on, the others after they have begun to talk. Return the number
    of confirmed messages.
    """
    confirmed_count = 0
    chance = random.Random(kills)  # noqa: S311 - chance, not secrecy
    with ForkServer() as fork_server:
        for number in range(0, kills, 10):
            threads = asyncio.run(new_threads(url, 2))
            logs: list[Path] = []
            talking: list[int] = []
            for seed in range(number, min(number + 10, kills)):
                logs.append(folder / f"{seed}.log")
                talking.append(
                    fork_server.start(
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
                    fork_server.kill(talking.pop(0))
            fork_server.kill(talking.pop())
            confirmed_count += asyncio.run(verify(url, threads, logs))
    return confirmed_count


async def new_threads(url: str, count: int) -> list[str]:
    store = open_store(url)
    sessions = [await store.create_session(NewSession()) for _ in range(count)]
    await store.close()
    return [session.id for session in sessions]


async def verify(url: str, threads: Sequence[str], logs: Sequence[Path]) -> int:
    """Check that each confirmed message is stored once, each stored one was requested, and speakers' orders are kept.

    Return the number of confirmed messages.
    """
    requested, confirmed = read_logs(logs)
    store = open_store(url)
    health = await store.check()
    assert health.problems == ()
    for thread in threads:
        history = texts_of(await store.load_history(thread))
        repeated_texts = [text for text, count in Counter(history).items() if count > 1]
        assert repeated_texts == []
        assert confirmed.get(thread, set()) - set(history) == set()
        assert set(history) - requested.get(thread, set()) == set()
        for speaker in {text.rpartition(".")[0] for text in history}:
            spoken_texts = [text for text in history if text.rpartition(".")[0] == speaker]
            numbers = [int(text.rpartition(".")[2]) for text in spoken_texts]
            assert numbers == sorted(numbers)
        await verify_context(store, thread)
    await store.close()
    return sum(len(texts) for texts in confirmed.values())


async def verify_context(store: Store, thread: str) -> None:
    """Check that each continuation holds every message of its parent that its summary does not cover."""
    records = {
        record.session: record
        for record in await store.list_compactions(thread)
        if record.reverted_at is None
    }
    for session in await store.list_thread_sessions(thread):
        if session.kind == "continuation" and session.parent is not None:
            parent_ids = {message.id for message in await store.list_messages(session.parent)}
            ids = [message.id for message in await store.list_messages(session.id)]
            covered_ids = set(records.pop(session.id).record.covered)
            assert parent_ids - covered_ids <= set(ids)
            assert len(ids) == len(set(ids))
    assert records == {}


def read_logs(logs: Sequence[Path]) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return requested and confirmed messages, by thread."""
    requested: dict[str, set[str]] = {}
    confirmed: dict[str, set[str]] = {}
    for log in logs:
        if not log.exists():
            continue
        for line in log.read_text().splitlines():
            word, thread, *texts = line.split()
            messages = requested if word == "ask" else confirmed
            messages.setdefault(thread, set()).update(texts)
    return requested, confirmed


def crash_server(server: Server, folder: Path, crashes: int) -> int:
    """Let two processes write while the server is killed and restarted repeatedly; return the number of messages."""
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE crashes")
    url = server.url("crashes")
    chance = random.Random(crashes)  # noqa: S311 - chance, not secrecy
    threads = asyncio.run(new_threads(url, 3))
    logs = [folder / f"{seed}.log" for seed in range(2)]
    with ForkServer() as fork_server:
        for seed, log in enumerate(logs):
            fork_server.start(
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
    """Wait until each log has another confirmation."""
    deadline = time.monotonic() + 60
    for log, old_count in [(log, count_confirmations(log)) for log in logs]:
        while count_confirmations(log) <= old_count:
            assert time.monotonic() < deadline, "nothing more is confirmed"
            time.sleep(0.005)


def count_confirmations(log: Path) -> int:
    return log.read_text().count("ack") if log.exists() else 0


def share_threads(url: str, folder: Path, *, processes: int, amount: int) -> int:
    """Let many processes append to the same threads, with compactions and undos; return the number of messages."""
    threads = asyncio.run(new_threads(url, 3))
    logs = [folder / f"{seed}.log" for seed in range(processes)]
    with ForkServer() as fork_server:
        children = [
            fork_server.start(
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
        assert [fork_server.wait(child) for child in children] == [0] * processes
    requested, confirmed = read_logs(logs)
    assert requested == confirmed
    return asyncio.run(verify(url, threads, logs))
