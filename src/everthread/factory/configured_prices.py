"""Apply configured prices."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from everthread.core.costs.prices import Prices, configure_prices

if TYPE_CHECKING:
    from everthread.config import Config


def apply_prices(config: Config) -> None:
    """Use the prices of the configuration in this process."""
    configure_prices(
        {
            name: Prices(
                input=Decimal(str(model_prices.input)),
                output=Decimal(str(model_prices.output)),
                cache_read=_to_decimal(model_prices.cache_read),
                cache_write_5m=_to_decimal(model_prices.cache_write),
                cache_write_1h=_to_decimal(model_prices.cache_write),
            )
            for name, model_prices in config.prices.items()
        }
    )


def _to_decimal(value: float | None) -> Decimal | None:
    return None if value is None else Decimal(str(value))
