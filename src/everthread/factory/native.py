"""From a configuration to the native API: threads whose agents are opened when a message needs them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from everthread.config import Config, home_directory
from everthread.core.types import StreamingModel
from everthread.factory.agents import open_agent
from everthread.store.models import NewSession
from everthread.store.store import Store

if TYPE_CHECKING:
    from everthread.agent.base import Tool
    from everthread.agent.loop import Agent
    from everthread.conversation.events import Listener
    from everthread.gateway.api.agents import OpenAgent
    from everthread.gateway.api.app import NativeApp
    from everthread.gateway.limits import Limits


def native_app(config: Config, store: Store, limits: Limits, *, keyless: bool) -> NativeApp:
    """`keyless`: nobody shows a key, so the configuration alone says who has tools."""
    from everthread.gateway.api.app import NativeApp, NativeOptions
    from everthread.gateway.api.options import DeskOptions
    from everthread.gateway.api.queue import TurnDesk

    chosen = config.gateway.native
    names = ("models", "queue", "running", "agents", "idle_seconds", "lease_seconds", "poll_seconds")
    options = DeskOptions(**{name: getattr(chosen, name) for name in names})
    desk = TurnDesk(store, agent_opener(config), options)
    return NativeApp(
        desk,
        limits=limits,
        options=NativeOptions(tools=keyless and chosen.tools, heartbeat_seconds=chosen.heartbeat_seconds),
    )


def agent_opener(config: Config, given: StreamingModel | None = None) -> OpenAgent:
    """Who opens agents as configured. `given`: this model for every thread."""
    from everthread.agent.memory import Memory, memory_folder
    from everthread.agent.tools.memory import MemoryTool
    from everthread.agent.tools.recall import Recall
    from everthread.agent.tools.todo import Todo

    async def opened(
        *,
        store: Store,
        tenant: str,
        tools: bool,
        model: str | None,
        listener: Listener,
        resume: str | None = None,
        session: NewSession | None = None,
    ) -> Agent:
        folder = memory_folder(home_directory(), tenant)
        talking: list[Tool] | None = None if tools else [Recall(), Todo(), MemoryTool(Memory(folder))]
        return await open_agent(
            config, model=given or model, resume=resume, session=session, store=store, listener=listener,
            workspace=_workspace(config, folder), tools=talking, talks=not tools,
        )  # fmt: skip

    return opened


def _workspace(config: Config, folder: Path) -> Path:
    """Where tools work: each tenant in a folder of its own, unless one is configured."""
    chosen = config.gateway.native.workspace
    if chosen is not None:
        return Path(chosen).expanduser()
    place = folder / "workspace"
    place.mkdir(parents=True, exist_ok=True)
    return place
