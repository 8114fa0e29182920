"""The only package that names concrete classes. It creates objects from a configuration or a URL.

Each function is imported on first use, because `compress` needs no store, and a store needs no model.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everthread.factory.agent import open_agent
    from everthread.factory.compression import acompress, compress, run_sync
    from everthread.factory.conversations import make_session_options, open_conversation
    from everthread.factory.model_setup import fit_request
    from everthread.factory.stores import (
        STORE_FILE,
        migrate_store,
        open_store,
        store_file,
        store_url,
    )

__all__ = [
    "STORE_FILE",
    "acompress",
    "compress",
    "fit_request",
    "make_session_options",
    "migrate_store",
    "open_agent",
    "open_conversation",
    "open_store",
    "run_sync",
    "store_file",
    "store_url",
]

_MODULES = {
    "STORE_FILE": "stores",
    "acompress": "compression",
    "compress": "compression",
    "migrate_store": "stores",
    "open_agent": "agent",
    "open_conversation": "conversations",
    "open_store": "stores",
    "fit_request": "model_setup",
    "run_sync": "compression",
    "make_session_options": "conversations",
    "store_file": "stores",
    "store_url": "stores",
}


if not TYPE_CHECKING:  # a type checker must report unknown names

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'everthread.factory' has no attribute {name!r}")
        value = getattr(import_module(f"everthread.factory.{_MODULES[name]}"), name)
        globals()[name] = value
        return value
