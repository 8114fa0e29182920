"""Databases of either kind, and a PostgreSQL of a test's own, to be stopped."""

from __future__ import annotations

from tests.store.conftest import kind, new_url, own_server, postgres, run_folder, url

__all__ = ["kind", "new_url", "own_server", "postgres", "run_folder", "url"]
