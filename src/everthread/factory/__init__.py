"""The only package that names concrete classes: it builds them from a configuration or a URL."""

from __future__ import annotations

from everthread.factory.agent import open_agent
from everthread.factory.conversation import open_conversation, session_options
from everthread.factory.models import acompress, compress, refit, run_sync
from everthread.factory.store import STORE_FILE, migrate_store, open_store, store_url

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
