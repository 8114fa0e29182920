"""Processes whose writes fail: without the right to write, or on a full disk."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

from everthread.errors import EverthreadError
from everthread.factory import open_store
from everthread.store.records import NewSession
from tests.store.talking_process import event_message


def write_as_nobody(*, url: str, log: str, session: str | None) -> None:
    """Try to open and write a store without root's rights, and print the outcome."""
    # The interpreter may be in a folder that only root reads.
    importlib.import_module("importlib.readers")
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)

    async def write() -> None:
        store = open_store(url)
        try:
            await store.append(
                session or (await store.create_session(NewSession())).id,
                [event_message("x")],
            )
        finally:
            await store.close()

    outcome = {"error": None, "text": ""}
    try:
        asyncio.run(write())
    except EverthreadError as error:
        outcome = {"error": type(error).__name__, "text": str(error)}
    Path(log).write_text(json.dumps(outcome))


def fill(*, url: str, log: str, grow: str | None = None, limit: int | None = None) -> None:
    """Write until the disk is full: on a small disk that can `grow`, or with a limit on the size of files."""
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def make_room() -> None:
        if grow is not None:
            subprocess.run(["mount", "-o", "remount,size=64m", grow], check=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    async def write() -> dict[str, Any]:
        store = open_store(url)
        session = await store.create_session(NewSession())
        confirmed: list[str] = []
        errors: list[str] = []
        for number in range(2_000):
            texts = [f"{number}.{part} " + "x" * 2_000 for part in range(8)]
            results = await asyncio.gather(
                *(store.append(session.id, [event_message(text)]) for text in texts),
                return_exceptions=True,
            )
            for text, result in zip(texts, results, strict=True):
                if isinstance(result, BaseException):
                    errors.append(type(result).__name__)
                else:
                    confirmed.append(text)
            if errors:
                break
        make_room()
        await store.append(session.id, [event_message("there is room again")])
        stored = [str(message.body["content"]) for message in await store.load_history(session.id)]
        problems = (await store.check()).problems
        await store.close()
        return {
            "confirmed": confirmed,
            "errors": errors,
            "stored": stored,
            "problems": problems,
        }

    Path(log).write_text(json.dumps(asyncio.run(write())))
