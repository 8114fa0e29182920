"""Build the threads API as configured, and open the agents of its threads."""

from __future__ import annotations

from pathlib import Path

from everthread.agent.commands.context_commands import describe_preview
from everthread.agent.commands.dispatch import CommandResult
from everthread.agent.loop import Agent
from everthread.agent.memory import MemoryFiles, get_tenant_memory_folder
from everthread.agent.tool_interface import Tool
from everthread.agent.tools.memory_tool import MemoryTool
from everthread.agent.tools.recall import Recall
from everthread.agent.tools.todo import Todo
from everthread.config import Config, home_directory
from everthread.core.types import StreamingModel
from everthread.factory.agent import open_agent
from everthread.factory.conversations import open_conversation
from everthread.gateway.api import QueueOptions
from everthread.gateway.api.agent_pool import OpenAgent
from everthread.gateway.api.queue import TurnQueue
from everthread.gateway.api.routes import PreviewThread
from everthread.gateway.api.threads_api import ThreadsApi
from everthread.gateway.contracts import GatewayLimits
from everthread.store.records import NewSession
from everthread.store.store import Store
from everthread.thread.events import Listener
from everthread.thread.used_window import load_caller_window


def make_threads_api(
    config: Config, store: Store, limits: GatewayLimits, *, has_no_keys: bool
) -> ThreadsApi:
    """Build the threads API. `has_no_keys`: whether clients have no key, so that the configuration decides on tools."""
    native = config.gateway.native
    options = QueueOptions(
        max_queued=native.queue,
        max_running=native.running,
        max_agents=native.agents,
        models=native.models,
        idle_seconds=native.idle_seconds,
        lease_seconds=native.lease_seconds,
        poll_seconds=native.poll_seconds,
    )
    queue = TurnQueue(store, make_agent_opener(config), options)
    return ThreadsApi(
        queue,
        preview=make_preview_function(config),
        limits=limits,
        keyless_may_use_tools=has_no_keys and native.tools,
        heartbeat_seconds=native.heartbeat_seconds,
    )


def make_agent_opener(config: Config, fixed_model: StreamingModel | None = None) -> OpenAgent:
    """Return a function that opens agents as configured. `fixed_model`: use this model for every thread."""

    async def open_thread_agent(
        *,
        store: Store,
        tenant: str,
        has_tools: bool,
        model: str | None,
        listener: Listener,
        resume: str | None = None,
        session: NewSession | None = None,
    ) -> Agent:
        folder = get_tenant_memory_folder(home_directory(), tenant)
        chat_tools: list[Tool] | None = (
            None if has_tools else [Recall(), Todo(), MemoryTool(MemoryFiles(folder))]
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
            chat_only=not has_tools,
        )

    return open_thread_agent


def make_preview_function(config: Config) -> PreviewThread:
    """Return a function that previews the compaction of a stored thread, even if its model is not configured."""

    async def preview(store: Store, thread: str, focus: str | None) -> CommandResult:
        used_window = await load_caller_window(store, thread)
        conversation_opener = open_conversation(
            used_window.model if used_window else (await store.load_session(thread)).model,
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
