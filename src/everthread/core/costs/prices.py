"""Prices of models, and the cost of calls.

The first table is the package `genai-prices`, which carries its data. It is loaded when
the first price is asked for and never uses the network. Models it lacks are looked up in
`data/models.json`, the fallback table. Prices change, so each one is asked for at a point in time.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from importlib import resources
from typing import TYPE_CHECKING, Any

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.types import MAX_MODEL_NAME_CHARS

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

_MILLION = Decimal(1_000_000)
LOCAL_MODELS = frozenset({"smollm2-135m"})
"""Models that Everthread itself runs on this machine, by the names that a gateway sees."""
MAX_MODEL_PREFIXES = 8
"""Prefixes of a model's name to try as its provider. Real names have at most four
(`vertex_ai/publishers/google/models/…`), but a client may write any number."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars per million tokens, or None if there is no price."""

    input: Decimal | None = None
    output: Decimal | None = None
    cache_read: Decimal | None = None
    cache_write_5m: Decimal | None = None
    cache_write_1h: Decimal | None = None


def compute_cost(usage: CanonicalUsage, prices: Prices) -> Decimal | None:
    """Return the dollars for this usage, or None if a used bucket has no price."""
    write_5m_tokens = usage.cache_write_tokens - usage.cache_write_1h_tokens
    total = Decimal(0)
    for tokens, price in (
        (usage.input_tokens, prices.input),
        (usage.output_tokens, prices.output),
        (usage.cache_read_tokens, prices.cache_read),
        (write_5m_tokens, prices.cache_write_5m),
        (usage.cache_write_1h_tokens, prices.cache_write_1h),
    ):
        if tokens and price is None:
            return None
        total += tokens * (price or Decimal(0))
    return total / _MILLION


def compute_call_cost(
    usage: CanonicalUsage, model: str, *, time: datetime, provider: str | None = None
) -> Decimal | None:
    """Return the dollars for one call, or None if a price that it needs is unknown.

    A model on this machine costs nothing, unless the configuration gives it a price.
    """
    is_local = provider == "local" or model in LOCAL_MODELS
    if is_local and find_configured_prices(model) is None:
        return Decimal(0)
    prices = prices_for(model, time=time, provider=provider, prompt_tokens=usage.prompt_tokens)
    return None if prices is None else compute_cost(usage, prices)


def prices_for(
    model: str, *, time: datetime, provider: str | None = None, prompt_tokens: int = 0
) -> Prices | None:
    """Return a model's prices for a call with a prompt of this size.

    Some models charge more for every token of a long prompt. Without a `provider` the
    model's name and its prefixes (`openrouter/anthropic/…`) decide. A model that the first
    table lacks is looked up in the fallback table.
    """
    configured_prices = find_configured_prices(model)
    if configured_prices is not None:
        return configured_prices
    listed_prices = find_listed_prices(
        model, time=time, provider=provider, prompt_tokens=prompt_tokens
    )
    if listed_prices is not None:
        return listed_prices
    entry = find_in_fallback_table(model)
    return None if entry is None else entry.prices


def find_listed_prices(
    model: str, *, time: datetime, provider: str | None = None, prompt_tokens: int = 0
) -> Prices | None:
    """Return the prices of `genai-prices`, or None if it does not have the model."""
    entry = _find_model(model, provider)
    if entry is None:
        return None
    table = entry.get_prices(time)
    return Prices(
        input=_read_price(table, prompt_tokens, "input_mtok"),
        output=_read_price(table, prompt_tokens, "output_mtok"),
        cache_read=_read_price(table, prompt_tokens, "cache_read_mtok"),
        cache_write_5m=_read_price(table, prompt_tokens, "cache_write_5m_mtok", "cache_write_mtok"),
        cache_write_1h=_read_price(table, prompt_tokens, "cache_write_1h_mtok"),
    )


_configured_prices: dict[str, Prices] = {}


def configure_prices(prices: Mapping[str, Prices]) -> None:
    """Use these prices before those of the tables, in this process, by name or glob."""
    _configured_prices.clear()
    _configured_prices.update(prices)


def find_configured_prices(model: str) -> Prices | None:
    """Return the configured prices of a model: under its name, else its longest glob."""
    matching_patterns = [pattern for pattern in _configured_prices if fnmatchcase(model, pattern)]
    best_pattern = (
        model if model in _configured_prices else max(matching_patterns, key=len, default="")
    )
    return _configured_prices.get(best_pattern)


def make_missing_price_notice(model: str) -> str:
    """Return the notice about a model without a known price."""
    return (
        f"No price is known for {model}: costs are not shown, and compactions are decided "
        f"by token counts alone. To set one: everthread config set prices.{model}.input "
        "DOLLARS_PER_MILLION (and .output, .cache_read, .cache_write)."
    )


def find_listed_window(model: str) -> int | None:
    """Return the window that a price table states for a model, or None if none does."""
    entry = _find_model(model, None)
    if entry is not None:
        return entry.context_window
    fallback_entry = find_in_fallback_table(model)
    return None if fallback_entry is None else fallback_entry.window


def describe_price_source(model: str, *, time: datetime, provider: str | None = None) -> str:
    """Return which table the prices of a model are from, or an empty string if they are unknown."""
    if find_configured_prices(model) is not None:
        return "the configuration (prices)"
    if find_listed_prices(model, time=time, provider=provider) is not None:
        return "genai-prices"
    entry = find_in_fallback_table(model)
    return "" if entry is None else f"{entry.source}, {_load_fallback_table()[0]}"


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model of the fallback table."""

    window: int
    prices: Prices
    source: str
    max_output: int | None = None


def find_in_fallback_table(model: str) -> ListedModel | None:
    """Return the entry of a model, or of its preview, in the fallback table."""
    if len(model) > MAX_MODEL_NAME_CHARS:
        return None
    name = model.lower().rpartition("/")[2]
    models = _load_fallback_table()[1]
    entry = models.get(name) or models.get(f"{name}-preview")
    if entry is None:
        return None
    prices = Prices(**{key: Decimal(str(value)) for key, value in entry["prices"].items()})
    return ListedModel(entry["window"], prices, entry["source"], entry.get("output"))


@functools.cache
def _load_fallback_table() -> tuple[str, dict[str, Any]]:
    """Return the date of the fallback table and its models.

    `docs/refresh_models.py` writes the table.
    """
    table = json.loads(
        resources.files("everthread.core").joinpath("data/models.json").read_text("utf-8")
    )
    return table["date"], table["models"]


def _read_price(table: ModelPrice, prompt_tokens: int, *keys: str) -> Decimal | None:
    """Return the first of these prices that is set. If it has tiers, use the tier of the prompt's size."""
    value = None
    for key in keys:
        value = getattr(table, key) if value is None else value
    if value is None or isinstance(value, Decimal):
        return value
    reached_prices = [tier.price for tier in value.tiers if prompt_tokens > tier.start]
    price: Decimal = reached_prices[-1] if reached_prices else value.base
    return price


def _find_model(model: str, provider: str | None) -> ModelInfo | None:
    """Return the entry of a model, or None if it is unknown or its name is too long."""
    return None if len(model) > MAX_MODEL_NAME_CHARS else _look_up_model(model, provider)


@functools.lru_cache(maxsize=256)
def _look_up_model(model: str, provider: str | None) -> ModelInfo | None:
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - 1.5 MB of tables, loaded when asked for

    snapshot = get_snapshot()
    for name, provider_name in (
        *_list_possible_names(model, provider),
        *_list_possible_names(f"{model}-preview", provider),
    ):
        try:
            return snapshot.find_provider_model(name, None, provider_name, None)[1]
        except LookupError:
            continue
    return None


def _list_possible_names(model: str, provider: str | None) -> Iterator[tuple[str, str | None]]:
    """Yield possible pairs of model and provider: the whole name, then the name after each prefix (its provider)."""
    yield model, provider
    for _ in range(MAX_MODEL_PREFIXES):
        prefix, slash, model = model.partition("/")
        if not slash:
            return
        yield model, provider or prefix
        if provider is None:
            yield model, None


def format_dollars(amount: Decimal | float | None) -> str:
    """Format dollars, sums under a dollar with four digits; `unknown` for None."""
    if amount is None:
        return "unknown"
    absolute = abs(float(amount))
    sign = "−" if amount < 0 else ""
    if 0 < absolute < 0.0001:
        return "< $0.0001"
    return f"{sign}${absolute:,.4f}" if 0 < absolute < 1 else f"{sign}${absolute:,.2f}"
