"""Processes and servers killed at any moment: confirmed messages are stored once; no thread is half changed."""

from __future__ import annotations

from pathlib import Path

from tests.store.killed_writers import crash_server, kill_talkers, share_threads
from tests.store.postgres_server import Server

KILLS = 20
SERVER_CRASHES = 5


def test_processes_are_killed_at_random_moments(url: str, tmp_path: Path) -> None:
    assert kill_talkers(url, tmp_path, KILLS) > KILLS // 2


def test_server_is_killed_at_random_moments(own_server: Server, tmp_path: Path) -> None:
    assert crash_server(own_server, tmp_path, SERVER_CRASHES) > SERVER_CRASHES


def test_eight_processes_share_threads(url: str, tmp_path: Path) -> None:
    assert share_threads(url, tmp_path, processes=8, amount=20) >= 8 * 2 * 20
