"""Build the setup of threads whose callers send their whole history: clients of a gateway, agents of a framework."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable

from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.config import Config
from everthread.core.types import Api
from everthread.factory.conversations import make_session_options
from everthread.factory.engine_choice import EngineChoice
from everthread.factory.stores import SUMMARY_KEY
from everthread.store.store import Store
from everthread.thread.caller.caller_setup import CallerSetup
from everthread.thread.events import Listener
from everthread.thread.thread_setup import SummarizerContext


async def make_caller_setup(
    config: Config,
    store: Store,
    *,
    summarizer: Callable[[SummarizerContext], Summarizer],
    window: Callable[[Api, str, str, str], Awaitable[int]],
    listener: Listener,
) -> CallerSetup:
    """Return the setup of callers' threads as configured. The engine runs in this process."""
    engine = EngineChoice.from_config(config)
    engine.check()
    return CallerSetup(
        store=store,
        make_engine=engine,
        engine_key=f"{engine.name} {_settings_digest(config, engine)}",
        make_summarizer=summarizer,
        find_window=window,
        options=make_session_options(config),
        listener=listener,
        summary_key=await store.keys.load_shared_secret(SUMMARY_KEY),
    )


def _settings_digest(config: Config, engine: EngineChoice) -> str:
    """Return a digest of the settings that compactions depend on."""
    settings = {
        "engine": engine.options,
        "compression": config.compression.model_dump(),
    }
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
