"""A process that compacts a conversation and is killed at one of its steps.

python dying.py FILE STEP     dies before the STEP-th call to the store; 0: lives and prints how many there were
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any, cast

from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.summary import SummaryDraft, SummaryRequest
from everthread.conversation.conversation import Conversation
from everthread.conversation.options import Route, SessionOptions, Setup
from everthread.core.types import Reply
from everthread.factory import open_store
from everthread.store.models import NewSession
from everthread.store.store import Store
from everthread.testing import ScriptedModel

THREAD = "dying"
BIG = " ".join(f"row {index} of the report" for index in range(4_000))


class Writer:
    """A summariser that tells what it spent."""

    name = "writer"

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        spent = {"model": "gpt-4o-mini", "prompt_tokens": len(request.messages), "completion_tokens": 9}
        return SummaryDraft({"Goal": "Settle the books."}, self.name, usage=(spent,))


class Dying:
    """The store, until its time has come."""

    def __init__(self, store: Any, step: int) -> None:
        self._store, self._step = store, step
        self.armed = False
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(method):
            return method

        async def counted(*args: Any, **kwargs: Any) -> Any:
            if self.armed:
                self.calls.append(name)
                if len(self.calls) == self._step:
                    os.kill(os.getpid(), signal.SIGKILL)
            return await method(*args, **kwargs)

        return counted


def answers() -> list[Reply | str]:
    """A tool call whose result is large, then plain answers."""
    wanted: Any = [{"id": "c1", "type": "function", "function": {"name": "report", "arguments": "{}"}}]
    return [Reply({"role": "assistant", "content": None, "tool_calls": wanted}, "tool_calls"), *["noted"] * 40]


async def main(path: Path, step: int) -> None:
    store = Dying(open_store(path), step)
    model = ScriptedModel(answers(), window=16_000)
    route = Route(model.name, model.api, model.window, base_url=model.base_url, model=model)
    options = SessionOptions(result_chars=500_000)
    setup = Setup(cast("Store", store), route, ContextCompressor, lambda _desk: Writer(), options)
    conversation = await Conversation.open(setup, new=NewSession(id=THREAD))
    for turn in range(6):
        await conversation.send(f"Turn {turn}. " + " ".join(f"item {turn}.{index} is paid" for index in range(60)))
        if turn == 0:
            await conversation.add_results([{"role": "tool", "tool_call_id": "c1", "content": BIG[:12_000]}])
            await conversation.send()
    store.armed = True
    await conversation.compress()
    print(len(store.calls), *store.calls)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
