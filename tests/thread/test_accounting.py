"""The price in the record of a call."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path

import pytest

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.factory import open_store
from everthread.thread.accounting import Accounting


@pytest.mark.parametrize(
    ("provider", "price"),
    [
        ("local", Decimal(0)),
        ("auto", None),
    ],
)
def test_a_model_on_this_machine_costs_nothing(
    tmp_path: Path, provider: str, price: Decimal | None
) -> None:
    store = open_store(tmp_path / "store.db")
    accounting = Accounting(store, lambda: 0.0, lambda _event: None)
    usage = CanonicalUsage(1_000, 10)
    record = accounting.price_call("session", "my-file", usage, provider=provider)
    assert record.cost == price
    asyncio.run(store.close())
