"""A compaction by itself, without a conversation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from everthread.compaction.summary import Compaction, Summarizer, TemplateName
from everthread.config import Config
from everthread.core.messages import Message
from everthread.core.tokens.budget import Budget
from everthread.core.transcript import recognize, strip_marks
from everthread.core.types import System
from everthread.errors import InputError, NoStoreError

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
    template: TemplateName | None = None,
    preview: bool = False,
    config: Config | None = None,
) -> Compaction:
    """Make a history smaller: head, summary, tail. Works in scripts and inside a running event loop.

    `summarizer`: `auto`, `journal`, or a summariser of your own. `template`: `handoff` or `classic`. `preview`
    writes no summary: it tells what would be kept, cut and summarised. `config`: settings other than the defaults;
    the tag of the summary is then made with the key of that configuration's store, where there is one.
    """
    return run_sync(
        acompress(
            messages, window=window, system=system, tools=tools, model=model, focus=focus, summarizer=summarizer,
            template=template, preview=preview, config=config,
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
    template: TemplateName | None = None,
    preview: bool = False,
    config: Config | None = None,
) -> Compaction:
    """The async form of `compress`."""
    from everthread.compaction.compressor import ContextCompressor
    from everthread.compaction.engine import Services
    from everthread.core.tokens import TokenCounter

    _check(messages, template)
    counter = TokenCounter(model)
    writer = named_summarizer(summarizer, counter)
    budget = Budget.for_window(window) if config is None else _budget(config, model, window)
    layout = template or (config.compression.template if config is not None else "handoff")
    key = b"" if config is None else await _home_key(config)
    services = Services(writer, counter, budget, time.monotonic, summary_key=key)
    engine = ContextCompressor(services, template=layout)
    given = recognize(messages, key)
    made = await engine.compress(given, focus_topic=focus, system=system, tools=tools, manual=True, dry_run=preview)
    return replace(made, messages=strip_marks(made.messages))


def _check(messages: Any, template: Any) -> None:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InputError(
            "compress takes a list of messages, such as [{'role': 'user', 'content': '…'}], "
            f"not a {type(messages).__name__}"
        )
    strange = next((one for one in messages if not isinstance(one, Mapping) or "role" not in one), None)
    if strange is not None:
        raise InputError(f"every message is an object with a role; {str(strange)[:60]!r} is none")
    if template not in (None, "handoff", "classic"):
        raise InputError(f"template {template!r} is unknown; use handoff or classic")


_keys: dict[str, bytes] = {}


async def _home_key(config: Config) -> bytes:
    """The key of the home that a configuration is of; none where nothing is stored there yet."""
    from everthread.factory.store import SUMMARY_KEY, open_store, store_url

    url = store_url(config)
    if url not in _keys:
        try:
            store = await asyncio.to_thread(open_store, url, create=False)
        except NoStoreError:
            return b""
        try:
            _keys[url] = await store.shared_secret(SUMMARY_KEY)
        finally:
            await store.close()
    return _keys[url]


def _budget(config: Config, model: str | None, window: int) -> Budget:
    from everthread.factory.conversation import session_options

    return session_options(config).for_model(model or "").budget(window)


def named_summarizer(asked: str | Summarizer, counter: Any) -> Summarizer:
    """The summariser of a name, or the one that was given: where that fails, the journal takes its place."""
    from everthread.compaction.journal import JournalWriter
    from everthread.compaction.summarizers.chain import SummarizerChain
    from everthread.context.worker import SafeSummarizer

    if isinstance(asked, JournalWriter | SummarizerChain):
        return asked
    if not isinstance(asked, str):
        return SummarizerChain([SafeSummarizer(asked)], floor=JournalWriter(counter), clock=time.time)
    if asked in ("auto", "journal", "extractive"):
        return JournalWriter(counter)
    raise InputError(f"summarizer={asked!r} is unknown; use auto, journal, or a summariser of your own")
