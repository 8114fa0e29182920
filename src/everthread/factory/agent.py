"""Open an agent as configured."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from everthread.agent.approval import Approvals, read_rules
from everthread.agent.builder import AgentBuilder
from everthread.agent.cache_misses import CacheMissLog
from everthread.agent.child_environment import make_child_environment
from everthread.agent.loop import Agent, FindRoute
from everthread.agent.memory import MemoryFiles, get_tenant_memory_folder
from everthread.agent.processes import ProcessGroup
from everthread.agent.tool_interface import Approver, Tool, ToolContext
from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.config import Config, home_directory, load_config
from everthread.conversation.conversation import Conversation
from everthread.core.caching.cache_lifetimes import CACHE_SECONDS
from everthread.core.types import Api, StreamingModel
from everthread.errors import InputError
from everthread.factory.awaitable_context import opens_on_await
from everthread.factory.conversations import check_settings, ensure_store, make_setup
from everthread.factory.model_setup import ModelSpec, open_route
from everthread.providers.resilience import ModelEvent
from everthread.store.records import NewSession
from everthread.store.store import Store
from everthread.thread.events import Event, Listener
from everthread.thread.route import Route


@opens_on_await
async def open_agent(
    config: Config | None = None,
    *,
    model: str | StreamingModel | None = None,
    window: int | None = None,
    resume: str | None = None,
    workspace: str | Path | None = None,
    approve: Approver | None = None,
    yes: bool = False,
    store: Store | str | Path | None = None,
    listener: Listener | None = None,
    tools: Sequence[Tool] | None = None,
    builtin_tools: bool | None = None,
    chat_only: bool = False,
    session: NewSession | None = None,
    summarizer: str | Summarizer = "auto",
    api: Api | None = None,
    fallback: Sequence[StreamingModel] = (),
) -> Agent:
    """Open an agent in a workspace (default: the current folder): a new one, or one resumed by any id of its thread.

    `async with open_agent(…) as agent`, `agent = await open_agent(…)`, or in a script `with open_agent(…) as agent`.
    `approve` decides on permissions; without it, only the rules in `approvals.txt` in the home folder allow anything.
    `yes` allows everything. `tools`: your own tools instead of the built-in ones; with `builtin_tools=True` the agent
    has both. `chat_only`: use a prompt for conversation, without a workspace. `window`: the model's window, instead of
    the known one. Everything that is opened here is closed with the agent.
    """
    _check_tools(tools, builtin_tools)
    settings = config or load_config()
    check_settings(settings, window)
    link = _AgentLink()
    async with ensure_store(store, settings) as (opened_store, resources):
        builder = AgentBuilder(
            store=opened_store,
            workspace=_resolve_workspace(workspace),
            memory=await _open_memory_files(opened_store, resume, session),
            approve=_choose_approver(approve, yes=yes),
            max_instructions_chars=settings.agent.instructions_chars,
            extra_tools=tuple(tools or ()),
            has_builtin_tools=tools is None if builtin_tools is None else builtin_tools,
            is_chat_only=chat_only,
            listener=link.on_event,
            get_window=link.find_window,
        )
        conversation = await _open_conversation(
            builder,
            link,
            ModelSpec(model, window=window, api=api, fallback=fallback),
            config=settings,
            summarizer=summarizer,
            resources=resources,
            resume=resume,
            session=session,
        )
        link.agent = _make_agent(
            builder, conversation, link, config=settings, listener=listener, resources=resources
        )
    return link.agent


async def _open_conversation(
    builder: AgentBuilder,
    link: _AgentLink,
    model: ModelSpec,
    *,
    config: Config,
    summarizer: str | Summarizer,
    resources: AsyncExitStack,
    resume: str | None,
    session: NewSession | None,
) -> Conversation:
    """Open the conversation of the agent that is being built."""
    route = await open_route(model, config, on_event=link.on_model_event, resources=resources)
    link.window = route.window
    setup = await make_setup(
        builder.store, route, config=config, summarizer=summarizer, resources=resources
    )
    setup = replace(
        setup,
        system=builder.prompt,
        listener=link.on_event,
        before_compaction=builder.before_compaction,
    )
    tool_schemas = [tool.schema for tool in builder.tools]
    return await Conversation.open(setup, resume=resume, new=session, tools=tool_schemas)


class _AgentLink:
    """Connects the agent with its parts, which are made first. Until `agent` is set, events are dropped."""

    def __init__(self) -> None:
        self.agent: Agent | None = None
        self.window: int | None = None
        """The model's window, used until `agent` is set."""

    def on_event(self, event: Event) -> None:
        """Pass an event of the conversation on to the agent."""
        if self.agent is not None:
            self.agent.on_event(event)

    def on_model_event(self, event: ModelEvent) -> None:
        """Pass a retry or a fallback of the model on to the agent's current conversation."""
        if self.agent is not None:
            self.agent.conversation.on_model_event(event)

    def find_window(self) -> int | None:
        return self.agent.conversation.window if self.agent is not None else self.window


def _make_agent(
    builder: AgentBuilder,
    conversation: Conversation,
    link: _AgentLink,
    *,
    config: Config,
    listener: Listener | None,
    resources: AsyncExitStack,
) -> Agent:
    """Build the agent of an open conversation. `resources`: ends its processes."""
    children = ProcessGroup(make_child_environment(os.environ, _list_key_variables(config)))
    resources.push_async_callback(children.end)
    return Agent(
        conversation,
        builder.tools,
        context=ToolContext(
            builder.workspace,
            home_directory(),
            conversation,
            environment=children.environment,
        ),
        approve=builder.approve,
        max_rounds=config.agent.max_rounds,
        max_parallel_tools=config.agent.parallel,
        listener=listener,
        cache_misses=CacheMissLog(ttl=CACHE_SECONDS[config.prompt_caching.cache_ttl]),
        memory=builder.memory,
        find_route=_make_route_finder(config, link, resources),
        resources=resources,
    )


def _make_route_finder(config: Config, link: _AgentLink, resources: AsyncExitStack) -> FindRoute:
    """Return a function that opens the route to a named model."""

    async def open_named_route(name: str) -> Route:
        return await open_route(
            ModelSpec(name),
            config,
            on_event=link.on_model_event,
            resources=resources,
        )

    return open_named_route


def _check_tools(tools: Any, builtin_tools: Any) -> None:
    """Raise `InputError` with an explanation if the arguments for tools are invalid."""
    if builtin_tools not in (None, True, False):
        raise InputError(
            f"builtin_tools={builtin_tools!r} is not allowed; give True or False, and your own in `tools`"
        )
    attributes = ("name", "schema", "needs", "call")
    for tool in tools or ():
        if not all(hasattr(tool, attribute) for attribute in attributes):
            raise InputError(
                f"a tool is an object with {', '.join(attributes)} (everthread.agent.tool_interface.Tool), "
                f"not {tool!r:.80}"
            )


def _resolve_workspace(path: str | Path | None) -> Path:
    directory = Path(path or ".").expanduser().resolve()
    if not directory.is_dir():
        raise InputError(f"the workspace {directory} is not a folder")
    return directory


def _choose_approver(approve: Approver | None, *, yes: bool) -> Approver:
    """Return the caller's approver, or by default one that uses the rules in the home folder."""
    if yes:
        return Approvals(allow_everything=True)
    return approve or Approvals(read_rules(home_directory()))


async def _open_memory_files(
    store: Store, resume: str | None, session: NewSession | None
) -> MemoryFiles:
    """Return the memory of the tenant whose thread the agent opens."""
    if session is not None or resume is None:
        tenant = (session or NewSession()).tenant
    else:
        tenant = (await store.resolve(resume)).tenant
    return MemoryFiles(get_tenant_memory_folder(home_directory(), tenant))


def _list_key_variables(config: Config) -> list[str]:
    """List the environment variables with keys and secrets that the configuration names."""
    names = []
    values = [config.model_dump()]
    for value in values:  # the list grows while it is read
        if isinstance(value, dict):
            names += [
                name
                for key, name in value.items()
                if str(key).endswith("_env") and isinstance(name, str)
            ]
            values += value.values()
        elif isinstance(value, list | tuple):
            values += value
    return names
