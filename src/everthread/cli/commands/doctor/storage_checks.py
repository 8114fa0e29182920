"""Checks of the Everthread home and the store."""

from __future__ import annotations

import os
from pathlib import Path

from everthread.cli.commands.doctor.check_result import CheckResult
from everthread.cli.commands.doctor.model_checks import check_prices, check_window
from everthread.config import Config, home_directory
from everthread.core.text import count_noun
from everthread.errors import EverthreadError, NoStoreError
from everthread.factory import open_store, store_file, store_url
from everthread.providers.model_choice import ModelChoice
from everthread.store.records import StoreHealth
from everthread.store.store import Store


def check_home() -> CheckResult:
    folder = home_directory()
    if unwritable_folder := _find_unwritable(folder):
        advice = "make it writable, or set EVERTHREAD_HOME to a directory of yours"
        return CheckResult(
            "home", "broken", f"{folder}: {unwritable_folder} cannot be written", advice
        )
    creation_note = " (created on first use)" if not folder.exists() else ""
    return CheckResult("home", "good", f"{folder}{creation_note}")


def _find_unwritable(folder: Path) -> Path | None:
    """Return the folder, or its nearest parent that exists, if nothing can be created in it."""
    existing_folder = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if existing_folder.is_dir() and os.access(existing_folder, os.W_OK | os.X_OK):
        return None
    return existing_folder


async def check_store(config: Config, choice: ModelChoice | None) -> list[CheckResult]:
    """Check the store, and the model's window, which may have been learnt and stored there."""
    url = store_url(config)
    store: Store | None = None
    try:
        store = open_store(url, create=False)
        result = _describe_health(await store.check())
    except NoStoreError:
        result = _describe_missing_store(url)
    except EverthreadError as error:
        advice = "free or repair it, or name another place with store.url; `everthread db check` looks again"
        result = CheckResult("store", "broken", str(error), advice)
    try:
        usable_store = None if result.state == "broken" else store
        results = [] if choice is None else [await check_window(config, choice, usable_store)]
        if choice is not None and choice.provider != "local":
            results.append(check_prices(config, choice))
    finally:
        if store is not None:
            await store.close()
    return [*results, result]


def _describe_missing_store(url: str) -> CheckResult:
    """Check whether the first use can create the store."""
    file = store_file(url)
    unwritable_folder = None if file is None else _find_unwritable(file.parent)
    if unwritable_folder is not None:
        text = f"cannot be created at {file}: {unwritable_folder} cannot be written"
        advice = f"make {unwritable_folder} writable, or name another place with EVERTHREAD_HOME or store.url"
        return CheckResult("store", "broken", text, advice)
    text = f"none yet at {_hide_password(url)}; created on first use"
    return CheckResult("store", "good", text)


def _describe_health(health: StoreHealth) -> CheckResult:
    if health.problems:
        text = f"{health.location}: {'; '.join(health.problems)}"
        advice = "restore a backup, or save what can be read with `everthread sessions export`"
        return CheckResult("store", "broken", text, advice)
    size = f"{count_noun(health.sessions, 'session')}, {count_noun(health.messages, 'message')}"
    return CheckResult(
        "store",
        "good",
        f"{health.backend}, {health.location}, schema {health.schema}, {size}",
    )


def _hide_password(url: str) -> str:
    """Return the URL without its user and password."""
    credentials, separator, address = url.rpartition("@")
    return f"{credentials.split('://')[0]}://…@{address}" if separator else url
