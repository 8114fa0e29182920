"""Turns and models for tests of the tool loop."""

from __future__ import annotations

import contextlib
from typing import Any

from everthread import Agent, validate_messages
from everthread.agent.tool_interface import Permission
from everthread.core.types import StreamDelta
from everthread.testing import ScriptedModel
from everthread.thread.route import Route


def has_valid_messages(agent: Agent) -> bool:
    return not any(
        validate_messages(agent.conversation.messages, api=api) for api in ("openai", "anthropic")
    )


async def read_turn(agent: Agent, message: str) -> None:
    async with contextlib.aclosing(agent.turn(message)) as items:
        async for _ in items:
            pass


async def stop_at_first_word(agent: Agent) -> None:
    async with contextlib.aclosing(agent.turn("Count.")) as items:
        async for item in items:
            if isinstance(item, StreamDelta):
                return


async def deny(permission: Permission) -> bool:
    return False


def make_route(model: ScriptedModel) -> Any:
    return Route(model.name, model.api, model.window, base_url=model.base_url, model=model)
