"""Processes of `everthread serve`, each replaced when it is killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path


class Fleet:
    """Gateways with one home, and so one configuration. `options`: of the command `serve`."""

    def __init__(self, home: Path, *options: str) -> None:
        self._environment = {**os.environ, "EVERTHREAD_HOME": str(home)}
        self._options = options
        self.processes: list[tuple[asyncio.subprocess.Process, str]] = []

    async def start(self) -> str:
        """Start another process; return its address."""
        command = [
            sys.executable,
            "-m",
            "everthread",
            "serve",
            "--port",
            "0",
            "--json",
            *self._options,
        ]
        process = await asyncio.create_subprocess_exec(
            *command,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        assert process.stdout is not None
        text = ""
        while line := (await process.stdout.readline()).decode():
            text += line
            with suppress(ValueError):
                url = str(json.loads(text)["url"])
                self.processes.append((process, url))
                return url
        raise AssertionError(
            f"everthread serve ended with code {await process.wait()} before it listened: {text!r}"
        )

    async def kill(self, chance: random.Random) -> None:
        process, _ = self.processes.pop(chance.randrange(len(self.processes)))
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await self.start()

    async def close(self) -> None:
        for process, _ in self.processes:
            process.send_signal(signal.SIGTERM)
        await asyncio.gather(*(process.wait() for process, _ in self.processes))
