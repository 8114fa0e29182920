"""Options and texts for the integrations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everthread.config import parse_config

FILLER = (
    "the ledger of the northern branch was settled and every entry was compared with its receipt. "
)


def options(folder: Path) -> Any:
    return {
        "store": folder / "books.db",
        "config": parse_config("compression: {background: false}"),
        "window": 6_000,
    }
