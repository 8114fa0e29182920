"""Build agents from a configuration: in a workspace, and for the threads API."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.config import Config, home_directory, load_config
from everthread.core.caching.cache_lifetimes import CACHE_SECONDS
from everthread.core.types import Api, StreamingModel
from everthread.errors import InputError
from everthread.factory.conversations import (
    ensure_store,
    open_conversation,
    returns_opener,
)
from everthread.factory.model_setup import (
    CloseCallback,
    find_route,
    make_close_callback,
)
from everthread.store.records import NewSession
from everthread.store.store import Store

if TYPE_CHECKING:
    from everthread.agent.builder import AgentBuilder
    from everthread.agent.commands.dispatch import CommandResult
    from everthread.agent.loop import Agent, FindRoute
    from everthread.agent.memory import MemoryFiles
    from everthread.agent.tool_interface import Approver, Tool
    from everthread.conversation.conversation import Conversation
    from everthread.gateway.api.agent_pool import OpenAgent, PreviewThread
    from everthread.gateway.api.threads_api import ThreadsApi
    from everthread.gateway.contracts import Limits
    from everthread.thread.events import Listener
    from everthread.thread.options import Route


@returns_opener
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
    from everthread.agent.builder import AgentBuilder

    _check_tools(tools, builtin_tools)
    settings = config or load_config()
    async with ensure_store(store, settings) as (opened_store, close_callbacks):
        builder = AgentBuilder(
            store=opened_store,
            workspace=_resolve_workspace(workspace),
            memory=await _open_memory(opened_store, resume, session),
            approve=_choose_approver(approve, yes=yes),
            max_instructions_chars=settings.agent.instructions_chars,
            extra_tools=tuple(tools or ()),
            has_builtin_tools=tools is None if builtin_tools is None else builtin_tools,
            is_chat_only=chat_only,
        )
        conversation = await open_conversation(
            model,
            config=settings,
            window=window,
            store=opened_store,
            resume=resume,
            system=builder.prompt,
            tools=[tool.schema for tool in builder.tools],
            summarizer=summarizer,
            listener=builder.on_event,
            hooks=builder,
            session=session,
            api=api,
            fallback=fallback,
            model_events=builder.on_model_event,
            on_route=builder.use_route,
        )
    return _make_agent(builder, conversation, settings, listener, close_callbacks)


def _make_agent(
    builder: AgentBuilder,
    conversation: Conversation,
    config: Config,
    listener: Listener | None,
    close_callbacks: list[CloseCallback],
) -> Agent:
    """Build the agent of an open conversation. Add the callback that ends its processes to `close_callbacks`."""
    from everthread.agent.cache_misses import CacheMissLog
    from everthread.agent.child_environment import make_child_environment
    from everthread.agent.loop import Agent
    from everthread.agent.processes import ProcessGroup
    from everthread.agent.tool_interface import ToolContext

    children = ProcessGroup(make_child_environment(os.environ, _list_key_variables(config)))
    close_callbacks.insert(0, children.end)
    builder.agent = Agent(
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
        find_route=_make_route_finder(config, builder, close_callbacks),
        close_callbacks=close_callbacks,
    )
    return builder.agent


def _make_route_finder(
    config: Config, builder: AgentBuilder, close_callbacks: list[CloseCallback]
) -> FindRoute:
    """Return a function that finds the route to a model, and adds the callback that closes it to `close_callbacks`."""

    async def find_named_route(name: str) -> Route:
        route = await find_route(name, config, on_event=builder.on_model_event)
        if route.model is not None:
            close_callbacks.insert(0, make_close_callback(route.model))
        return route

    return find_named_route


def _check_tools(tools: Any, builtin_tools: Any) -> None:
    """Raise `InputError` with an explanation if the arguments for tools are invalid."""
    if builtin_tools not in (None, True, False):
        raise InputError(
            f"builtin_tools={builtin_tools!r} is not allowed; give True or False, and your own in `tools`"
        )
    attributes = ("name", "schema", "needs", "call")
    invalid_tool = next(
        (
            tool
            for tool in tools or ()
            if not all(hasattr(tool, attribute) for attribute in attributes)
        ),
        None,
    )
    if invalid_tool is not None:
        raise InputError(
            f"a tool is an object with {', '.join(attributes)} (everthread.agent.tool_interface.Tool), "
            f"not {invalid_tool!r:.80}"
        )


def _resolve_workspace(path: str | Path | None) -> Path:
    directory = Path(path or ".").expanduser().resolve()
    if not directory.is_dir():
        raise InputError(f"the workspace {directory} is not a folder")
    return directory


def _choose_approver(approve: Approver | None, *, yes: bool) -> Approver:
    """Return the caller's approver, or by default one that uses the rules in the home folder."""
    from everthread.agent.approval import Approvals, read_rules

    if yes:
        return Approvals(allow_everything=True)
    return approve or Approvals(read_rules(home_directory()))


async def _open_memory(store: Store, resume: str | None, session: NewSession | None) -> MemoryFiles:
    """Return the memory of the tenant whose thread the agent opens."""
    from everthread.agent.memory import MemoryFiles, find_tenant_memory_folder

    if session is not None or resume is None:
        tenant = (session or NewSession()).tenant
    else:
        tenant = (await store.resolve(resume)).tenant
    return MemoryFiles(find_tenant_memory_folder(home_directory(), tenant))


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


def make_threads_api(
    config: Config, store: Store, limits: Limits, *, has_no_keys: bool
) -> ThreadsApi:
    """Build the threads API. `has_no_keys`: whether clients have no key, so that the configuration decides on tools."""
    from everthread.gateway.api import QueueOptions
    from everthread.gateway.api.queue import TurnQueue
    from everthread.gateway.api.threads_api import ThreadsApi

    native = config.gateway.native
    options = native.model_dump(exclude={"enabled", "tools", "workspace", "heartbeat_seconds"})
    queue = TurnQueue(store, make_agent_opener(config), QueueOptions(**options))
    return ThreadsApi(
        queue,
        preview=make_preview_function(config),
        limits=limits,
        tools=has_no_keys and native.tools,
        heartbeat_seconds=native.heartbeat_seconds,
    )


def make_agent_opener(config: Config, fixed_model: StreamingModel | None = None) -> OpenAgent:
    """Return a function that opens agents as configured. `fixed_model`: use this model for every thread."""
    from everthread.agent.memory import MemoryFiles, find_tenant_memory_folder
    from everthread.agent.tools.memory_tool import MemoryTool
    from everthread.agent.tools.recall import Recall
    from everthread.agent.tools.todo import Todo

    async def open_thread_agent(
        *,
        store: Store,
        tenant: str,
        tools: bool,
        model: str | None,
        listener: Listener,
        resume: str | None = None,
        session: NewSession | None = None,
    ) -> Agent:
        folder = find_tenant_memory_folder(home_directory(), tenant)
        chat_tools: list[Tool] | None = (
            None if tools else [Recall(), Todo(), MemoryTool(MemoryFiles(folder))]
        )
        return await open_agent(
            config,
            model=fixed_model or model,
            resume=resume,
            session=session,
            store=store,
            listener=listener,
            workspace=_make_tenant_workspace(config, folder),
            tools=chat_tools,
            chat_only=not tools,
        )

    return open_thread_agent


def make_preview_function(config: Config) -> PreviewThread:
    """Return a function that previews the compaction of a stored thread, even if its model is not configured."""
    from everthread.agent.commands.context_commands import describe_preview
    from everthread.thread.used_window import load_caller_window

    async def preview(store: Store, thread: str, focus: str | None) -> CommandResult:
        used_window = await load_caller_window(store, thread)
        conversation_opener = open_conversation(
            used_window.model if used_window else (await store.session(thread)).model,
            config=config,
            window=used_window.tokens if used_window else None,
            store=store,
            resume=thread,
            own_client=True,
            summarizer="journal",
        )
        async with conversation_opener as conversation:
            compaction = await conversation.preview(focus)
            advice = "The client's requests are compacted when that is due."
            return describe_preview(compaction, conversation.messages, advice=advice)

    return preview


def _make_tenant_workspace(config: Config, folder: Path) -> Path:
    """Return the workspace for a tenant's tools: the configured folder, or one of the tenant's own."""
    configured_path = config.gateway.native.workspace
    if configured_path is not None:
        return Path(configured_path).expanduser()
    default_path = folder / "workspace"
    default_path.mkdir(parents=True, exist_ok=True)
    return default_path
