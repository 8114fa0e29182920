"""Apply the prices of the configuration."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from everthread.core.prices import Prices, configure_prices

if TYPE_CHECKING:
    from everthread.config import Config


def apply_prices(config: Config) -> None:
    """Use the prices of the configuration in this process."""
    configure_prices(
        {
            name: Prices(
                input=Decimal(str(one.input)),
                output=Decimal(str(one.output)),
                cache_read=_dollars(one.cache_read),
                cache_write_5m=_dollars(one.cache_write),
                cache_write_1h=_dollars(one.cache_write),
            )
            for name, one in config.prices.items()
        }
    )


def _dollars(value: float | None) -> Decimal | None:
    return None if value is None else Decimal(str(value))
