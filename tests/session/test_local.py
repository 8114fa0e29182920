"""A conversation with a real model: a small one on this machine, with a real window and a real cache.

A window of 512 tokens here, since every token of a prompt costs time; `make torture` has the same with 2,048.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.session.small import overflow_for_real, pass_the_window


def test_it_passes_its_window_and_resumes(tmp_path: Path, local_file: Path) -> None:
    asyncio.run(pass_the_window(tmp_path, local_file, window=512, api="openai_chat", times=1.2))


def test_a_real_overflow_error_is_understood_and_repaired(tmp_path: Path, local_file: Path) -> None:
    asyncio.run(overflow_for_real(tmp_path, local_file, window=512))
