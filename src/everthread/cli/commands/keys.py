"""`everthread keys create|list|revoke`: who may use the gateway."""

from __future__ import annotations

import dataclasses
import time
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.output import escape_controls, print_json, print_text
from everthread.cli.shared_options import (
    JsonOption,
    ModeOption,
    StoreOption,
    TenantOption,
    number_option,
)
from everthread.cli.store_access import with_store
from everthread.cli.tables import print_table
from everthread.cli.times import format_age, format_iso
from everthread.core.costs.prices import format_dollars
from everthread.core.utc_days import format_utc_day
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.store.key_records import StoredKey


app = typer.Typer(
    help="Keys of the gateway: who may use it, for what, and how much a day.",
    no_args_is_help=True,
)

DailyLimitOption = Annotated[
    int | None,
    number_option(maximum=10**15, help_text="Limit for a UTC day. Default: no limit."),
]
NewTenantOption = Annotated[
    str,
    typer.Option(help="Its tenant. Keys of one tenant share their threads; others never see them."),
]
ScopeOption = Annotated[
    list[str] | None,
    typer.Option(
        help="What it may be used for: proxy, threads, tools; repeatable. Default: proxy."
    ),
]
DollarsPerDayOption = Annotated[
    str | None,
    typer.Option(
        metavar="DOLLARS",
        help="Limit for a UTC day, such as 2.50. Default: no limit.",
    ),
]
NameOption = Annotated[str, typer.Option(help="A name for the list.")]


@app.command()
def create(
    tenant: NewTenantOption = "default",
    scope: ScopeOption = None,
    requests_per_day: DailyLimitOption = None,
    tokens_per_day: DailyLimitOption = None,
    dollars_per_day: DollarsPerDayOption = None,
    mode: ModeOption = None,
    name: NameOption = "",
    store_url: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and show it, once: only a digest of it is stored."""
    from everthread.gateway.access.key_creation import issue_key
    from everthread.store.key_records import KeyLimits

    limits = KeyLimits(requests_per_day, tokens_per_day, _parse_dollars(dollars_per_day))
    token, new_key = issue_key(
        tenant=tenant, scopes=scope or ("proxy",), limits=limits, name=name, mode=mode
    )
    with_store(store_url, lambda store: store.keys.create_key(new_key), create=True)
    if as_json:
        print_json(
            {
                "id": f"et_{new_key.id}",
                "key": token,
                "tenant": new_key.tenant,
                "scopes": sorted(new_key.scopes),
            }
        )
        return
    typer.echo(token)
    typer.echo(
        escape_controls(
            f"Keep it now, it is not shown again. Tenant {new_key.tenant}; {_describe_scopes(new_key.scopes)}."
        ),
        err=True,
    )


@app.command("list")
def list_keys(
    tenant: TenantOption = None,
    revoked: Annotated[bool, typer.Option("--revoked", help="Revoked ones too.")] = False,
    store_url: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show keys, their limits and their use today (UTC)."""
    now = time.time()
    stored_keys = with_store(
        store_url,
        lambda store: store.keys.list_keys(format_utc_day(now), tenant=tenant),
        empty_if_missing=True,
    )
    keys = [key for key in stored_keys if revoked or key.revoked_at is None]
    if as_json:
        print_json({"keys": [_key_as_json(key) for key in keys]})
        return
    if not keys:
        print_text("There is no key. Make one with `everthread keys create`.")
        return
    columns = [
        "id",
        "name…",
        "tenant…",
        "scopes",
        "mode",
        "requests>",
        "tokens>",
        "dollars>",
        "last used",
    ]
    print_table(
        "Keys, and today's use of their limits",
        columns,
        [_make_row(key, now) for key in keys],
    )


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(metavar="ID", help="A key's id, as `list` shows it.")],
    store_url: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a key. Running gateways refuse it within five seconds."""
    from everthread.gateway.access.key_creation import key_id_in

    key_id = key_id_in(key)
    revoked_at = with_store(store_url, lambda store: store.keys.revoke_key(key_id))
    if as_json:
        print_json({"id": f"et_{key_id}", "revoked": format_iso(revoked_at)})
    else:
        print_text(f"et_{key_id} is revoked; running gateways refuse it within five seconds.")


def _parse_dollars(text: str | None) -> Decimal | None:
    if text is None:
        return None
    try:
        return Decimal(text.removeprefix("$"))
    except InvalidOperation:
        raise InputError(f"--dollars-per-day {text}: is not an amount such as 2.50") from None


def _describe_scopes(scopes: frozenset[str]) -> str:
    from everthread.gateway.access.key_creation import SCOPES

    return ", ".join(f"{name}: {SCOPES.get(name, 'unknown here')}" for name in sorted(scopes))


def _make_row(stored_key: StoredKey, now: float) -> list[object]:
    key = stored_key.key
    usage_today = stored_key.use_of_day
    limits = stored_key.key.limits
    last_used = (
        "never" if stored_key.last_used_at is None else format_age(stored_key.last_used_at, now)
    )
    return [
        f"et_{key.id}",
        key.name,
        key.tenant,
        " ".join(sorted(key.scopes)),
        key.mode or "",
        _format_use(usage_today.requests, limits.requests),
        _format_use(usage_today.tokens, limits.tokens),
        _format_use(usage_today.dollars, limits.dollars),
        last_used if stored_key.revoked_at is None else "revoked",
    ]


def _format_use(amount: int | Decimal, limit: int | Decimal | None) -> str:
    values = (amount,) if limit is None else (amount, limit)
    return " / ".join(
        format_dollars(value) if isinstance(value, Decimal) else f"{value:,}" for value in values
    )


def _key_as_json(stored_key: StoredKey) -> dict[str, Any]:
    key = stored_key.key
    use = dataclasses.asdict(stored_key.use_of_day)
    limits = dataclasses.asdict(key.limits)
    for figures in (use, limits):
        figures["dollars"] = None if figures["dollars"] is None else str(figures["dollars"])
    return {
        "id": f"et_{key.id}",
        "name": key.name,
        "tenant": key.tenant,
        "scopes": sorted(key.scopes),
        "mode": key.mode,
        "limits_per_day": limits,
        "used_today": use,
        "created": format_iso(stored_key.created),
        "last_used": format_iso(stored_key.last_used_at),
        "revoked": format_iso(stored_key.revoked_at),
    }
