"""A PostgreSQL of a test's own, to be stopped."""

from __future__ import annotations

from tests.store.conftest import own_server

__all__ = ["own_server"]
