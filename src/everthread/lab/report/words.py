"""Figures as a person reads them."""

from __future__ import annotations

from decimal import Decimal


def dollars(amount: Decimal | None) -> str:
    """What has no price is unknown, never nothing."""
    if amount is None:
        return "unknown"
    return f"${amount:,.4f}" if 0 < amount < 1 else f"${amount:,.2f}"


def part(share: float | None) -> str:
    """A percentage with one digit."""
    return "unknown" if share is None else f"{share:.1%}"
