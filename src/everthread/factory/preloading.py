"""Load the modules that a gateway's first request needs."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

_LOG = logging.getLogger("everthread.gateway")


async def preload() -> None:
    """Load, in a thread, the modules that the first request needs, then freeze the process's memory."""
    from everthread.gateway.server import tune_process

    def load() -> None:
        import anyio
        import httpx2

        from everthread.compaction.summarizers import (  # noqa: F401 - for the first compaction
            chain,
            llm_summarizer,
            warm_prefix,
        )
        from everthread.core.costs.canonical_usage import CanonicalUsage
        from everthread.core.costs.prices import compute_call_cost
        from everthread.core.tokens.tokenizers import load_tokenizer
        from everthread.providers import model_choice  # noqa: F401 - for the first summary

        httpx2.Client().close()
        # Load anyio's backend, which the question for a model's window needs.
        anyio.run(anyio.sleep, 0)
        compute_call_cost(CanonicalUsage(1, 1), "gpt-4o", time=datetime.now(UTC))
        load_tokenizer("gpt-4o")

    try:
        await asyncio.to_thread(load)
    except Exception as error:  # noqa: BLE001 - requests load it themselves then, and wait for it
        _LOG.warning("the gateway is not warmed up: %s: %s", type(error).__name__, error)
    tune_process()
