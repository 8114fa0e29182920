"""Ctrl-C and signals while a turn runs."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
import typer

from everthread.cli.chat.interrupts import Interrupts, StoppedError


async def test_a_second_ctrl_c_does_not_interrupt_the_cleanup() -> None:
    notices: list[str] = []
    cleanups: list[str] = []
    interrupts = Interrupts(lambda: None, notices.append)

    async def work() -> None:
        try:
            interrupts.interrupt()
            await asyncio.sleep(60)
        finally:
            interrupts.interrupt()
            await asyncio.sleep(0)
            cleanups.append("in order")

    with pytest.raises(StoppedError):
        await interrupts.run(work())
    assert cleanups == ["in order"]
    assert "stopping" in notices[0]


@pytest.mark.parametrize(("before", "code"), [(signal.SIG_DFL, 129), (signal.SIG_IGN, 0)])
async def test_a_hangup_ends_the_chat_unless_it_is_ignored(before: Any, code: int) -> None:
    cleanups: list[str] = []

    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGHUP)
            await asyncio.sleep(0.05)
        finally:
            await asyncio.sleep(0)
            cleanups.append("in order")

    async def run() -> None:
        interrupts = Interrupts(lambda: None, print)
        with interrupts.handle_signals():
            await interrupts.run(work())

    former = signal.signal(signal.SIGHUP, before)
    try:
        left = 0
        try:
            await run()
        except typer.Exit as ended:
            left = ended.exit_code
        assert signal.getsignal(signal.SIGHUP) == before, "the former handler is restored"
    finally:
        signal.signal(signal.SIGHUP, former)
    assert (left, cleanups) == (code, ["in order"])
