"""A compaction by itself, without a conversation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from everthread.core.budget import Budget
from everthread.core.exchange import System
from everthread.core.messages import Message
from everthread.core.summary import Compaction, Summarizer, TemplateName
from everthread.errors import InputError

T = TypeVar("T")


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """The result of async work, from a script or from inside a running event loop (then in a thread of its own)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def compress(
    messages: Sequence[Message],
    *,
    window: int,
    system: System = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    model: str | None = None,
    focus: str | None = None,
    summarizer: str | Summarizer = "auto",
    template: TemplateName = "handoff",
    preview: bool = False,
) -> Compaction:
    """Make a history smaller: head, summary, tail. Works in scripts and inside a running event loop.

    `summarizer`: `auto`, `extractive`, or a summariser of your own. `preview` writes no summary: it tells what would be
    kept, cut and summarised.
    """
    return run_sync(
        acompress(
            messages, window=window, system=system, tools=tools, model=model, focus=focus, summarizer=summarizer,
            template=template, preview=preview,
        )
    )  # fmt: skip


async def acompress(
    messages: Sequence[Message],
    *,
    window: int,
    system: System = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    model: str | None = None,
    focus: str | None = None,
    summarizer: str | Summarizer = "auto",
    template: TemplateName = "handoff",
    preview: bool = False,
) -> Compaction:
    """The async form of `compress`."""
    from everthread.compaction.compressor import ContextCompressor
    from everthread.compaction.engine import Services
    from everthread.core.tokens import TokenCounter

    counter = TokenCounter(model)
    writer = named_summarizer(summarizer, counter)
    services = Services(writer, counter, Budget.for_window(window), time.monotonic)
    engine = ContextCompressor(services, template=template)
    return await engine.compress(messages, focus_topic=focus, system=system, tools=tools, manual=True, dry_run=preview)


def named_summarizer(asked: str | Summarizer, counter: Any) -> Summarizer:
    """The summariser of a name, or the one that was given."""
    from everthread.compaction.summarizers.extractive import ExtractiveSummarizer

    if not isinstance(asked, str):
        return asked
    if asked in ("auto", "extractive"):
        return ExtractiveSummarizer(counter)
    raise InputError(f"summarizer={asked!r} is unknown; use auto, extractive, or a summariser of your own")
