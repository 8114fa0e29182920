"""A conversation with a real model: a small one on this machine, with a real window and real errors.

Every token of a prompt costs it time; `make torture` passes a window of 2,048 tokens with it, several times.
"""

from __future__ import annotations

from pathlib import Path

from tests.conversation.small import overflow_for_real


async def test_a_real_overflow_error_is_understood_and_repaired(tmp_path: Path, local_file: Path) -> None:
    assert await overflow_for_real(tmp_path, local_file, window=1_536) == 1_536
