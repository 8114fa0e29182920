"""What usage costs in dollars, where every bucket that was used has a price; else nothing is claimed.

The price table is a package (`genai-prices`) that carries its data: it is loaded when the first price is asked for,
and never goes to the network here. Prices change, some by the hour, so a price is always asked for a moment.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from everthread.core.pricing.usage import CanonicalUsage

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice


_MILLION = Decimal(1_000_000)


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars per million tokens; None where there is no price."""

    input: Decimal | None = None
    output: Decimal | None = None
    cache_read: Decimal | None = None
    cache_write_5m: Decimal | None = None
    cache_write_1h: Decimal | None = None


def cost(usage: CanonicalUsage, prices: Prices) -> Decimal | None:
    """The dollars for this usage; None if a bucket was used that has no price."""
    written_5m = usage.cache_write_tokens - usage.cache_write_1h_tokens
    total = Decimal(0)
    for tokens, price in (
        (usage.input_tokens, prices.input),
        (usage.output_tokens, prices.output),
        (usage.cache_read_tokens, prices.cache_read),
        (written_5m, prices.cache_write_5m),
        (usage.cache_write_1h_tokens, prices.cache_write_1h),
    ):
        if tokens and price is None:
            return None
        total += tokens * (price or Decimal(0))
    return total / _MILLION


def cost_of(usage: CanonicalUsage, model: str, *, at: datetime, provider: str | None = None) -> Decimal | None:
    """The dollars for one call to a model at a moment; None if the model or the price of a used bucket is unknown."""
    prices = prices_for(model, at=at, provider=provider, prompt_tokens=usage.prompt_tokens)
    return None if prices is None else cost(usage, prices)


def prices_for(model: str, *, at: datetime, provider: str | None = None, prompt_tokens: int = 0) -> Prices | None:
    """A model's prices at a moment, for a call with a prompt of this size (some charge all of a long one more).

    `provider` is the name of who serves it; without one the model's own name decides, its prefixes
    (`openrouter/anthropic/…`) included.
    """
    found = _find_model(model, provider)
    if found is None:
        return None
    table = found.get_prices(at)
    return Prices(
        input=_price(table, prompt_tokens, "input_mtok"),
        output=_price(table, prompt_tokens, "output_mtok"),
        cache_read=_price(table, prompt_tokens, "cache_read_mtok"),
        cache_write_5m=_price(table, prompt_tokens, "cache_write_5m_mtok", "cache_write_mtok"),
        cache_write_1h=_price(table, prompt_tokens, "cache_write_1h_mtok"),
    )


def stated_window(model: str, *, provider: str | None = None) -> int | None:
    """The window that the price table states for a model, where it does."""
    found = _find_model(model, provider)
    return None if found is None else found.context_window


def _price(table: ModelPrice, prompt_tokens: int, *keys: str) -> Decimal | None:
    """The first of these prices that there is; of a tiered one, the tier that the whole prompt falls into."""
    value = next((price for price in (getattr(table, key) for key in keys) if price is not None), None)
    if value is None or isinstance(value, Decimal):
        return value
    reached = [tier.price for tier in value.tiers if prompt_tokens > tier.start]
    price: Decimal = reached[-1] if reached else value.base
    return price


@functools.lru_cache(maxsize=256)
def _find_model(model: str, provider: str | None) -> ModelInfo | None:
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - 1.5 MB of tables, loaded when asked for

    snapshot = get_snapshot()
    for name, host in _readings(model, provider):
        try:
            return snapshot.find_provider_model(name, None, host, None)[1]
        except LookupError:
            continue
    return None


def _readings(model: str, provider: str | None) -> Iterator[tuple[str, str | None]]:
    """What a model's name may mean: as it is, then each prefix as the provider of the rest."""
    yield model, provider
    while "/" in model:
        prefix, model = model.split("/", 1)
        yield model, provider or prefix
        if provider is None:
            yield model, None
