"""`everthread keys` against a real store."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from everthread.gateway.access.key_creation import digest_of
from everthread.store.key_records import KeyLimits, KeyUse
from everthread.store.store import Store
from tests.cli.conftest import Command, RunOnStore


def test_a_key_is_shown_once_listed_and_revoked(
    everthread: Command, run_on_store: RunOnStore, home: Path
) -> None:
    result = everthread(
        "keys create --tenant acme --scope proxy --scope threads --mode observe",
        "--requests-per-day 100 --tokens-per-day 2000 --dollars-per-day 2.50",
        '--name "Ann\'s" --json',
    )
    assert result.returncode == 0, result.stderr
    new_key = json.loads(result.stdout)
    token = new_key["key"]
    key_id = new_key["id"].removeprefix("et_")
    assert token.startswith(f"{new_key['id']}_")
    second = everthread("keys create")
    assert second.stdout.startswith("et_")
    assert second.stdout.count("\n") == 1, "standard output has the key alone"

    async def use(store: Store) -> Any:
        stored_key = await store.keys.find_key(digest_of(token), "2026-01-31")
        await store.keys.add_use("2026-01-31", {key_id: KeyUse(3, 50, Decimal("0.5"))})
        return stored_key

    stored = run_on_store(use).key
    assert (stored.tenant, stored.scopes, stored.mode) == (
        "acme",
        {"proxy", "threads"},
        "observe",
    )
    assert stored.limits == KeyLimits(100, 2000, Decimal("2.50"))
    for file in home.iterdir():
        assert token.split("_", 2)[2].encode() not in file.read_bytes()

    (listed,) = everthread.json("keys list --tenant acme")["keys"]
    assert listed["limits_per_day"] == {
        "requests": 100,
        "tokens": 2000,
        "dollars": "2.5",
    }
    assert listed["id"] == new_key["id"], "list and create print the same id"
    assert listed["last_used"]
    table = everthread("keys list").stdout
    assert key_id in table
    assert "0 / 100" in table
    assert everthread(f"keys revoke et_{key_id}").returncode == 0
    assert key_id not in everthread("keys list").stdout
    assert key_id in everthread("keys list --revoked").stdout


def test_an_empty_column_is_left_out(everthread: Command) -> None:
    everthread("keys create --name laptop")
    for columns in (60, 200):
        table = everthread("keys list", columns=columns).stdout
        assert "laptop" in table
        assert "mode" not in table
    everthread("keys create --mode observe")
    assert "mode" in everthread("keys list", columns=200).stdout


def test_bad_key_options_are_refused(everthread: Command) -> None:
    everthread("keys create")
    for arguments, problem in (
        ("create --scope root", "there are proxy, threads, tools"),
        ("create --tenant 'a b'", "cannot be a tenant"),
        ("create --dollars-per-day many", "is not an amount"),
        ("create --dollars-per-day -1", "cannot be a limit"),
        ("revoke et_nobody", "there is no key nobody"),
    ):
        assert problem in everthread.refuses(f"keys {arguments}")


def test_keys_list_without_a_store_is_empty(everthread: Command, home: Path) -> None:
    assert "There is no key" in everthread("keys list").stdout
    assert not home.exists()
