"""Processes that each compact a conversation and are killed at one of its steps.

python dying.py FOLDER     prints the calls to the store, and how the process of each ended that died before it

Every process is a fork of one that has imported everything. Its store is `FOLDER/s<STEP>/store.db`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, cast

from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.conversation.conversation import Conversation
from everthread.conversation.setup import Setup
from everthread.core.tokens import TokenCounter
from everthread.core.types import ModelReply
from everthread.factory import open_store
from everthread.store.access import StoreTopic
from everthread.store.records import NewSession
from everthread.store.store import Store
from everthread.testing import ScriptedModel
from everthread.thread.options import SessionOptions
from everthread.thread.route import Route

THREAD = "dying"
BIG = " ".join(f"row {index} of the report" for index in range(4_000))


class Writer:
    """A summariser that reports its usage."""

    name = "writer"

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        usage = {
            "model": "gpt-4o-mini",
            "prompt_tokens": len(request.messages),
            "completion_tokens": 9,
        }
        return SummaryDraft(
            {"Goal": "Settle the books."},
            self.name,
            usage=(usage,),
        )


class KilledAtStep:
    """A store that kills the process at the chosen call."""

    def __init__(self, store: Any, step: int) -> None:
        self._store = store
        self._step = step
        self.armed = False
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return CountedTopic(self, found) if isinstance(found, StoreTopic) else self.watch(found)

    def watch(self, method: Any) -> Any:
        """Return a method of the store or of a topic, with its calls counted."""
        if not asyncio.iscoroutinefunction(method):
            return method

        async def counted(*args: Any, **kwargs: Any) -> Any:
            if self.armed:
                self.calls.append(method.__name__)
                if len(self.calls) == self._step:
                    os.kill(os.getpid(), signal.SIGKILL)
            return await method(*args, **kwargs)

        return counted


class CountedTopic:
    """A topic of the store whose calls are counted with those of the store."""

    def __init__(self, store: KilledAtStep, topic: StoreTopic) -> None:
        self._store = store
        self._topic = topic

    def __getattr__(self, name: str) -> Any:
        return self._store.watch(getattr(self._topic, name))


def answers() -> list[ModelReply | str]:
    """Return a tool call with a large result, then plain answers."""
    calls: Any = [
        {
            "id": "c1",
            "type": "function",
            "function": {
                "name": "report",
                "arguments": "{}",
            },
        }
    ]
    return [
        ModelReply(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": calls,
            },
            "tool_calls",
        ),
        *["noted"] * 40,
    ]


async def main(folder: Path, step: int) -> None:
    store = KilledAtStep(open_store(folder / "store.db"), step)
    model = ScriptedModel(answers(), window=16_000)
    route = Route(model.name, model.api, model.window, base_url=model.base_url, model=model)
    options = SessionOptions(result_chars=500_000)
    setup = Setup(
        store=cast("Store", store),
        route=route,
        make_engine=ContextCompressor,
        make_summarizer=lambda _context: Writer(),
        options=options,
    )
    conversation = await Conversation.open(setup, new=NewSession(id=THREAD))
    for turn in range(6):
        await conversation.send(
            f"Turn {turn}. " + " ".join(f"item {turn}.{index} is paid" for index in range(60))
        )
        if turn == 0:
            await conversation.add_results(
                [
                    {
                        "role": "tool",
                        "tool_call_id": "c1",
                        "content": BIG[:12_000],
                    }
                ]
            )
            await conversation.send()
    store.armed = True
    await conversation.compress()
    (folder / "calls.json").write_text(json.dumps(store.calls))


def die_at(folder: Path, step: int) -> int:
    """Return how the process ended; step 0 kills nothing."""
    pid = os.fork()
    if pid == 0:
        step_folder = folder / f"s{step}"
        step_folder.mkdir()
        asyncio.run(main(step_folder, step))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    TokenCounter(ScriptedModel([], window=16_000).name).text("read the tables once")
    assert die_at(folder, 0) == 0
    calls = json.loads((folder / "s0" / "calls.json").read_text())
    print(json.dumps([calls, [die_at(folder, step) for step in range(1, len(calls) + 1)]]))
