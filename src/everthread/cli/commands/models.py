"""`everthread models list|show|pull|forget`: windows and prices of models, and the model on this machine."""

from __future__ import annotations

import dataclasses
import os
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.output import escape_controls, indent_further_lines, print_json, print_text
from everthread.cli.shared_options import JsonOption, StoreOption
from everthread.cli.store_access import with_store
from everthread.cli.tables import print_table
from everthread.config import home_directory, load_config
from everthread.core.text import count_noun

if TYPE_CHECKING:
    from everthread.providers.catalog import Window
    from everthread.providers.model_choice import ModelChoice
    from everthread.store.records import ModelLimit
    from everthread.store.store import Store


app = typer.Typer(
    help="Models: their windows and prices, the one in use, and the one on this machine.",
    no_args_is_help=True,
)

ModelNameArgument = Annotated[
    str | None,
    typer.Argument(help="A model's name at its provider. Default: the configured one."),
]


@app.command("list")
def list_models(
    text: Annotated[str, typer.Argument(help="Only names that contain this.")] = "",
    as_json: JsonOption = False,
) -> None:
    """List the families of the catalogue: window, longest answer, how their providers cache."""
    from everthread.providers.catalog import list_families, normalize_model_name

    entries = [entry for entry in list_families() if normalize_model_name(text) in entry.family]
    if as_json:
        rows = [dataclasses.asdict(entry) for entry in entries]
        for row in rows:
            del row["is_exact"]
        print_json({"models": rows})
        return
    table = [
        (
            entry.family,
            entry.window or "-",
            entry.max_output or "-",
            entry.cache or "-",
            entry.cache_min or "-",
        )
        for entry in entries
    ]
    print_table("Catalogue", ["family", "window>", "output>", "cache", "from>"], table)


@app.command()
def show(
    name: ModelNameArgument = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not ask the server about its window.")
    ] = False,
    store_url: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a model's provider, its window with its source, and its prices."""
    from everthread.factory.configured_prices import apply_prices
    from everthread.factory.model_setup import choose_from_section, load_window

    config = load_config()
    apply_prices(config)
    choice = choose_from_section(config.model, name)
    is_configured = name is None or config.model.default in (None, name)
    setting = config.model.context_length if is_configured else None

    async def load_limits(store: Store) -> tuple[Window, list[ModelLimit]]:
        window = await load_window(choice, setting, store, offline=offline)
        return window, [
            limit for limit in await store.limits.list_limits() if limit.model == choice.model
        ]

    facts = _describe_model(choice, *with_store(store_url, load_limits, empty_if_missing=True))
    if as_json:
        print_json(facts)
        return
    facts["window"] = facts.pop("window_source")
    for key, value in facts.items():
        if text := _format_fact(value):
            print_text(f"{key.replace('_', ' '):<14} {indent_further_lines(text, indent=15)}")


@app.command()
def pull() -> None:
    """Fetch the small model that runs on this machine, about 98 MB, into the home."""
    from everthread.providers.local import download_model as fetch

    fetch(
        home_directory(),
        report=lambda words: print(escape_controls(words), file=sys.stderr, flush=True),
    )


@app.command()
def forget(
    name: Annotated[
        str | None,
        typer.Argument(help="Only limits of this model. Default: every one."),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option("--base-url", help="Only limits of this address.")
    ] = None,
    store_url: StoreOption = None,
) -> None:
    """Forget limits that were learnt from providers' errors; the window is then what it was before."""
    count = with_store(
        store_url,
        lambda store: store.limits.forget_limits(base_url=base_url, model=name),
        empty_if_missing=True,
    )
    typer.echo(f"{count_noun(count, 'learnt limit')} forgotten")


def _describe_model(
    choice: ModelChoice, window: Window, limits: list[ModelLimit]
) -> dict[str, Any]:
    from everthread.providers.catalog import find_known_model
    from everthread.providers.local import SMOLLM2

    entry = find_known_model(choice.model)
    address = choice.base_url
    if not address:
        file = SMOLLM2.path(home_directory())
        address = str(file)
        if not file.is_file():
            address += " (not there yet: everthread models pull)"
    key_text = "none needed"
    if choice.key_env:
        has_key = os.environ.get(choice.key_env, "").strip()
        key_text = f"{choice.key_env} ({'set' if has_key else 'not set'})"
    return {
        "model": choice.model,
        "provider": choice.provider,
        "protocol": choice.api,
        "address": address,
        "key": key_text,
        "window": window.tokens,
        "window_source": window.sentence,
        "window_note": window.fallback_reason,
        "max_output": entry.max_output if entry else None,
        "cache": entry.cache if entry else None,
        "cache_min": entry.cache_min if entry else None,
        "prices": _list_prices(choice),
        "price_source": _name_price_source(choice),
        "learnt_limits": [dataclasses.asdict(limit) for limit in limits],
    }


def _list_prices(choice: ModelChoice) -> dict[str, float] | None:
    """Return the prices of a model in dollars per million tokens."""
    from everthread.core.costs.prices import prices_for

    if choice.provider == "local":
        return None
    prices = prices_for(
        choice.model, time=datetime.now(UTC), provider=find_price_table_provider(choice)
    )
    if prices is None:
        return None
    fields: dict[str, Decimal | None] = dataclasses.asdict(prices)
    return {key: float(value) for key, value in fields.items() if value is not None}


def find_price_table_provider(choice: ModelChoice) -> str | None:
    """Return the provider's name in the price table; None if the model's name alone should decide."""
    return choice.provider if choice.provider in ("openai", "anthropic", "openrouter") else None


def _name_price_source(choice: ModelChoice) -> str:
    """Return which table the prices are from; empty if they are unknown."""
    from everthread.core.costs.prices import describe_price_source

    if choice.provider == "local":
        return ""
    return describe_price_source(
        choice.model, time=datetime.now(UTC), provider=find_price_table_provider(choice)
    )


def _format_fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} ${amount:g}" for key, amount in value.items())
    if isinstance(value, list):
        return "; ".join(f"{limit['limit']:,} at {limit['base_url']}" for limit in value) or "none"
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)
