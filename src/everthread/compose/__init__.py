"""Where concrete classes are named: from a configuration or a URL to the parts that do the work."""

from __future__ import annotations

from everthread.compose.agents import open_agent
from everthread.compose.compaction import acompress, compress, run_sync
from everthread.compose.conversations import open_conversation, session_options
from everthread.compose.models import refit
from everthread.compose.stores import STORE_FILE, migrate_store, open_store, store_url

__all__ = [
    "STORE_FILE",
    "acompress",
    "compress",
    "migrate_store",
    "open_agent",
    "open_conversation",
    "open_store",
    "refit",
    "run_sync",
    "session_options",
    "store_url",
]
