"""Compact a list of messages with `compress`, without a store or a conversation.

Without a configuration, neither `config` nor the store is imported, so that a script starts quickly.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.compaction.summary.sections import TemplateName
from everthread.core.messages import SYSTEM_ROLES, Message
from everthread.core.summary_marks import recognize_summaries, strip_summary_marks
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.core.types import System
from everthread.errors import InputError, NoStoreError
from everthread.thread.policy.context_options import ContextOptions

if TYPE_CHECKING:
    from everthread.config import Config

T = TypeVar("T")
P = ParamSpec("P")


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run async work from synchronous code; in a thread if an event loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def make_sync(async_function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return a synchronous version of an async function."""

    @functools.wraps(async_function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_sync(async_function(*args, **kwargs))

    return run


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
    force: bool = False,
) -> Compaction:
    """Make a history smaller by replacing its middle with a summary. `compress` is the same without `await`.

    Below the threshold nothing changes, so this can be called before every request. `force`: compact at any size.
    `summarizer`: `auto`, `journal`, or a summariser of your own. `template`: `handoff` or `classic`. `preview`: write
    no summary, and report which messages would be kept, shortened and summarised. `config`: settings instead of the
    defaults, with the engine, the auxiliary model that writes the summary, and the store whose key tags the summary.
    """
    _check_arguments(messages, template)
    check_window(window, min_tokens=1)
    counter = TokenCounter(model)
    fixed_tokens = counter.request((), system=system, tools=list(tools or ()))
    options, make_engine = _choose_settings(config, model, template)
    instructions = [message for message in messages if message.get("role") in SYSTEM_ROLES]
    budget = options.budget(window, fixed_tokens=fixed_tokens + counter.messages(instructions))
    if not (force or preview):
        total_tokens = fixed_tokens + counter.messages(messages)
        if total_tokens < budget.threshold:
            return _make_unchanged(messages, total_tokens, budget)
    from everthread.thread.engines.plugin_engines import LoopSummarizer

    summary_key = b"" if config is None else await _load_summary_key(config)
    notices: list[str] = []
    async with AsyncExitStack() as stack:
        if config is not None and summarizer == "auto" and not preview:
            chosen_summarizer = _make_configured_summarizer(
                config, model, window, counter=counter, notices=notices, stack=stack
            )
        else:
            chosen_summarizer = find_summarizer(summarizer, counter)
        services = Services(
            LoopSummarizer(chosen_summarizer, counter),
            counter,
            budget,
            time.monotonic,
            summary_key=summary_key,
        )
        compaction = await make_engine(services).compress(
            recognize_summaries(messages, summary_key),
            focus_topic=focus,
            system=system,
            tools=tools,
            manual=True,
            dry_run=preview,
        )
    warnings = (*notices, *compaction.warnings)
    return replace(compaction, messages=strip_summary_marks(compaction.messages), warnings=warnings)


compress = make_sync(acompress)


def _choose_settings(
    config: Config | None, model: str | None, template: TemplateName | None
) -> tuple[ContextOptions, Callable[[Services], ContextEngine]]:
    """Return the options of the budget, and the function that creates the engine."""
    if config is None:
        return ContextOptions(), functools.partial(
            ContextCompressor, template=template or "handoff"
        )
    from everthread.factory.conversations import make_session_options
    from everthread.factory.engine_choice import EngineChoice

    if template is not None:
        config = _with_template(config, template)
    options = make_session_options(config).for_model(model or "")
    return options, EngineChoice.from_config(config)


def _with_template(config: Config, template: TemplateName) -> Config:
    """Return the configuration with this template of summaries, also in the engine's own options."""
    compression = config.compression.model_copy(update={"template": template})
    compressor = config.engines.get("compressor", {}) | {"template": template}
    return config.model_copy(
        update={
            "compression": compression,
            "engines": {**config.engines, "compressor": compressor},
        }
    )


def _make_configured_summarizer(
    config: Config,
    model: str | None,
    window: int,
    *,
    counter: TokenCounter,
    notices: list[str],
    stack: AsyncExitStack,
) -> Summarizer:
    """Return the configured summariser. Add its notices to `notices`, and close its client with the stack."""
    from everthread.factory.summarizer_factory import SummarizerFactory
    from everthread.thread.route import Route
    from everthread.thread.thread_setup import SummarizerContext

    def report(kind: str, **details: Any) -> None:
        if kind == "notice":
            notices.append(str(details.get("text", "")))

    route = Route(model or config.model.default or "", "openai_chat", window)
    context = SummarizerContext(
        route,
        counter,
        get_last_request=lambda: None,
        report=report,
        report_abandoned=lambda _request: None,
    )
    return SummarizerFactory(config, stack)(context)


def _make_unchanged(messages: Sequence[Message], tokens: int, budget: Budget) -> Compaction:
    """Return a compaction without changes, because the history is small enough."""
    reason = f"{tokens:,} tokens are below the threshold of {budget.threshold:,}; force=True compacts anyway"
    return Compaction(
        messages=list(messages),
        summary="",
        tokens_before=tokens,
        tokens_after=tokens,
        kept=tuple(range(len(messages))),
        changed=False,
        reason=reason,
    )


def _check_arguments(messages: Any, template: Any) -> None:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InputError(
            "compress takes a list of messages, such as [{'role': 'user', 'content': '…'}], "
            f"not a {type(messages).__name__}"
        )
    for message in messages:
        if not isinstance(message, Mapping) or "role" not in message:
            raise InputError(
                f"every message must be an object with a role, not {str(message)[:60]!r}"
            )
    if template not in (None, "handoff", "classic"):
        raise InputError(f"template {template!r} is unknown; use handoff or classic")


MIN_WINDOW = 1_000


def check_window(window: Any, *, min_tokens: int = MIN_WINDOW) -> None:
    """Raise `InputError` if a window is not a number of at least `min_tokens`."""
    if not isinstance(window, int) or isinstance(window, bool) or window < min_tokens:
        raise InputError(
            f"window={window!r} is not allowed; give the model's window in tokens, at least {min_tokens:,}"
        )


_summary_keys: dict[str, bytes] = {}


async def _load_summary_key(config: Config) -> bytes:
    """Return the summary key of the configured store, or empty bytes if there is no store yet."""
    from everthread.factory.stores import SUMMARY_KEY, open_store, store_url

    url = store_url(config)
    if url not in _summary_keys:
        try:
            store = await asyncio.to_thread(open_store, url, create=False)
        except NoStoreError:
            return b""
        try:
            _summary_keys[url] = await store.keys.load_shared_secret(SUMMARY_KEY)
        finally:
            await store.close()
    return _summary_keys[url]


def find_summarizer(summarizer: str | Summarizer, counter: Any) -> Summarizer:
    """Return the named summariser, or the caller's own one. If it fails, its draft is empty."""
    if isinstance(summarizer, JournalWriter):
        return summarizer
    if isinstance(summarizer, str):
        if summarizer not in ("auto", "journal"):
            raise InputError(
                f"summarizer={summarizer!r} is unknown; use auto, journal, or a summariser of your own"
            )
        return JournalWriter(counter)
    from everthread.compaction.summarizers.chain import SummarizerChain

    if isinstance(summarizer, SummarizerChain):
        return summarizer
    return SummarizerChain([summarizer], clock=time.time)
