"""From a configuration to an agent in its workspace, and to the agents behind the threads API."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from everthread.compaction.summary import Summarizer
from everthread.config import Config, home_directory, load_config
from everthread.core.cache_control import CACHE_SECONDS
from everthread.core.types import Api, StreamingModel
from everthread.errors import InputError
from everthread.factory.conversation import open_conversation, opener, own_store
from everthread.factory.models import closing_of, route_to
from everthread.store.models import NewSession
from everthread.store.store import Store

if TYPE_CHECKING:
    from everthread.agent.base import Approver, Tool
    from everthread.agent.loop import Agent
    from everthread.conversation.events import Listener
    from everthread.conversation.options import Route
    from everthread.gateway.api.agents import OpenAgent
    from everthread.gateway.api.app import NativeApp
    from everthread.gateway.limits import Limits


@opener
async def open_agent(
    config: Config | None = None,
    *,
    model: str | StreamingModel | None = None,
    resume: str | None = None,
    workspace: str | Path | None = None,
    approve: Approver | None = None,
    yes: bool = False,
    store: Store | str | Path | None = None,
    listener: Listener | None = None,
    tools: Sequence[Tool] | None = None,
    builtin_tools: bool | None = None,
    talks: bool = False,
    session: NewSession | None = None,
    summarizer: str | Summarizer = "auto",
    api: Api | None = None,
    fallback: Sequence[StreamingModel] = (),
) -> Agent:
    """An agent in a workspace (default: the current folder): new, or resumed by any id of its thread.

    `async with open_agent(…) as agent`, `agent = await open_agent(…)`, or in a script `with open_agent(…) as agent`.
    `approve` decides what needs leave; without it only what `approvals.txt` in the home allows is done, and with `yes`
    everything. `tools`: your own, instead of the built-in ones; with `builtin_tools=True` it has both. `talks`: its
    prompt is one for conversation, without a workspace. What is opened here is closed with the agent.
    """
    from everthread.agent.approval import Approvals, read_rules
    from everthread.agent.base import ToolContext
    from everthread.agent.equipment import Equipment
    from everthread.agent.events import CauseLog
    from everthread.agent.loop import Agent
    from everthread.agent.memory import MemoryFiles, memory_folder
    from everthread.agent.processes import Family, child_environment

    settings, home = config or load_config(), home_directory()
    options, place = settings.agent, _workspace(workspace)
    allowed = Approvals(everything=True) if yes else approve or Approvals(read_rules(home))
    held, opened = await own_store(store, settings)
    try:
        memory = MemoryFiles(memory_folder(home, await _tenant(held, resume, session)))
        builtin = tools is None if builtin_tools is None else builtin_tools
        equipment = Equipment(
            held, place, memory, allowed, options.instructions_chars, tuple(tools or ()), builtin, talks
        )
        conversation = await open_conversation(
            model, config=settings, store=held, resume=resume, system=equipment.prompt,
            tools=[tool.schema for tool in equipment.tools], summarizer=summarizer, listener=equipment.on_event,
            hooks=equipment, session=session, api=api, fallback=fallback,
            model_events=equipment.on_model_event, found=equipment.use_route,
        )  # fmt: skip
    except BaseException:
        for close in opened:
            await close()
        raise

    async def routes(name: str) -> Route:
        route = await route_to(name, settings, api=None, own_client=False, fallback=(), events=equipment.on_model_event)
        if route.model is not None:
            opened.insert(0, closing_of(route.model))
        return route

    children = Family(child_environment(os.environ, _key_names(settings)))
    opened.insert(0, children.end)
    equipment.agent = Agent(
        conversation, equipment.tools, context=ToolContext(place, home, conversation, environment=children.environment),
        approve=allowed, max_rounds=options.max_rounds, parallel=options.parallel, listener=listener,
        journal=CauseLog(ttl=CACHE_SECONDS[settings.prompt_caching.cache_ttl]), memory=memory, routes=routes,
        closing=opened,
    )  # fmt: skip
    return equipment.agent


def _workspace(given: str | Path | None) -> Path:
    place = Path(given or ".").expanduser().resolve()
    if not place.is_dir():
        raise InputError(f"the workspace {place} is no folder")
    return place


async def _tenant(store: Store, resume: str | None, session: NewSession | None) -> str:
    """Whose memory it is."""
    if session is not None or resume is None:
        return (session or NewSession()).tenant
    return (await store.resolve(resume)).tenant


def _key_names(config: Config) -> list[str]:
    """The environment variables the configuration names for keys and secrets, in whichever section."""
    found, values = [], [config.model_dump()]
    for value in values:  # it grows while it is read
        if isinstance(value, dict):
            found += [name for key, name in value.items() if str(key).endswith("_env") and isinstance(name, str)]
            values += value.values()
        elif isinstance(value, list | tuple):
            values += value
    return found


# The threads API


def native_app(config: Config, store: Store, limits: Limits, *, keyless: bool) -> NativeApp:
    """`keyless`: nobody shows a key, so the configuration alone says who has tools."""
    from everthread.gateway.api import DeskOptions
    from everthread.gateway.api.app import NativeApp, NativeOptions
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
    from everthread.agent.memory import MemoryFiles, memory_folder
    from everthread.agent.tools.conversation import MemoryTool, Recall, Todo

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
        talking: list[Tool] | None = None if tools else [Recall(), Todo(), MemoryTool(MemoryFiles(folder))]
        return await open_agent(
            config, model=given or model, resume=resume, session=session, store=store, listener=listener,
            workspace=_tenant_workspace(config, folder), tools=talking, talks=not tools,
        )  # fmt: skip

    return opened


def _tenant_workspace(config: Config, folder: Path) -> Path:
    """Where tools work: each tenant in a folder of its own, unless one is configured."""
    chosen = config.gateway.native.workspace
    if chosen is not None:
        return Path(chosen).expanduser()
    place = folder / "workspace"
    place.mkdir(parents=True, exist_ok=True)
    return place
