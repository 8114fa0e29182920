"""Format ids, states, costs and shares for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everthread.cli.output import escape_controls
from everthread.core.text import excerpt

if TYPE_CHECKING:
    from everthread.store.records import Session
    from everthread.store.usage_records import UsageRow


def shorten_path(text: str, max_chars: int) -> str:
    """Shorten a path from the left, so that its end, the most useful part, stays."""
    return text if len(text) <= max_chars or max_chars < 2 else f"…{text[1 - max_chars :]}"


def shorten_id(session_id: str) -> str:
    """Shorten an Everthread id to eight characters; ids of other programs stay whole."""
    is_ours = len(session_id) == 32 and set(session_id) <= set("0123456789abcdef")
    return session_id[:8] if is_ours else escape_controls(session_id)


def describe_state(session: Session) -> str:
    return "live" if session.is_live else f"ended ({excerpt(session.end_reason or 'unknown', 20)})"


def format_cost(row: UsageRow) -> str:
    """Format a cost, with a note if some calls have no price; a dash if there are no calls."""
    return row.cost_text if row.calls else "-"


def format_share(part: int, total: int) -> str:
    """Format a percentage with one digit; a dash if the total is zero."""
    return f"{part / total:.1%}" if total else "-"
