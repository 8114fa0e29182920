"""Open and close the agents of threads as needed. Each agent writes under the lease of its thread."""

from __future__ import annotations

import fnmatch
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from everthread.agent.loop import Agent
from everthread.core.secrets.redaction import redact
from everthread.errors import EverthreadError
from everthread.gateway.api import QueueOptions
from everthread.gateway.api.leased_store import LeasedStore
from everthread.gateway.api.schemas import CreateThread
from everthread.gateway.error_answers import RequestRefused
from everthread.store.records import (
    Lease,
    NewSession,
    Session,
    new_id,
)
from everthread.store.store import Store
from everthread.store.turn_records import QueuedTurn
from everthread.thread.events import Event

_LOG = logging.getLogger("everthread.gateway")
SETTINGS_STATE = "native"
"""Key of the stored state with a thread's model and its owner's metadata."""


OpenAgent = Callable[..., Awaitable[Agent]]
"""Open the agent of a thread, given `store`, `tenant`, `has_tools`, `model`, `listener`, and `resume` or `session`."""


@dataclass(slots=True)
class AgentSlot:
    """One thread's agent and its lease."""

    store: LeasedStore
    has_tools: bool
    model: str | None
    next_fence: int
    """The fence of the next lease if no other process takes the thread first."""
    agent: Agent | None = None
    on_event: Callable[[Event], None] | None = None
    """Receives the agent's events during a turn."""
    last_used: float = 0.0
    is_busy: bool = False

    def forward_event(self, event: Event) -> None:
        if self.on_event is not None:
            self.on_event(event)


class AgentPool:
    """The agents of this process, one per thread. The least recently used are closed first."""

    def __init__(
        self,
        store: Store,
        open_agent: OpenAgent,
        options: QueueOptions,
    ) -> None:
        self._store = store
        self._open_agent = open_agent
        self._options = options
        self._slots: OrderedDict[str, AgentSlot] = OrderedDict()

    def check_model(self, model: str | None) -> None:
        """Raise `RequestRefused` for a model that clients may not choose, such as a file on this machine."""
        if model is None:
            return
        if model.lower().endswith(".gguf") or not any(
            fnmatch.fnmatchcase(model, pattern) for pattern in self._options.models
        ):
            raise RequestRefused(
                403,
                "model_not_allowed",
                f"The model {model[:100]!r} cannot be chosen here.",
            )

    async def create_thread(
        self, tenant: str, new_thread: CreateThread, *, has_tools: bool
    ) -> Session:
        """Create a thread with its first session and its owner's settings."""
        self.check_model(new_thread.model)
        first_session = NewSession(
            id=new_id(),
            tenant=tenant,
            title=new_thread.title,
            platform="api",
        )
        slot = AgentSlot(
            LeasedStore(self._store, first_session.id),
            has_tools,
            new_thread.model,
            next_fence=1,
        )
        await self._open_slot(slot, tenant, session=first_session)
        await self._store.state.put_state(
            first_session.id,
            SETTINGS_STATE,
            {"model": new_thread.model, "metadata": new_thread.metadata},
        )
        self._slots[first_session.id] = slot
        await self.close_unused()
        return await self._store.load_session(first_session.id)

    async def load_settings(self, thread_id: str) -> dict[str, Any]:
        """Return the owner's settings of a thread, which are `model` and `metadata`."""
        state = await self._store.state.get_state(thread_id, SETTINGS_STATE)
        return state if isinstance(state, dict) else {}

    async def choose_model(self, thread_id: str, model: str) -> None:
        """Set the model of a thread, for every process that continues it."""
        await self._store.state.put_state(
            thread_id, SETTINGS_STATE, await self.load_settings(thread_id) | {"model": model}
        )

    async def inherit_model(self, parent_thread_id: str, thread_id: str) -> None:
        """Give a thread the model of the thread in which it began, unless it has settings of its own."""
        if thread_id != parent_thread_id and not await self.load_settings(thread_id):
            model = (await self.load_settings(parent_thread_id)).get("model")
            await self._store.state.put_state(
                thread_id, SETTINGS_STATE, {"model": model, "metadata": {}}
            )

    async def take_slot(self, turn: QueuedTurn, lease: Lease) -> AgentSlot:
        """Return the agent for a turn under this lease, or open a new one if the old one may have missed changes."""
        thread_id = turn.thread
        has_tools = turn.options.get("tools") is True
        slot = self._slots.get(thread_id)
        if slot is None or slot.has_tools != has_tools or lease.fence != slot.next_fence:
            await self.close_agent(thread_id)
            model = (await self.load_settings(thread_id)).get("model")
            slot = AgentSlot(
                LeasedStore(self._store, thread_id), has_tools, model, next_fence=lease.fence
            )
            await self._open_slot(slot, turn.tenant, resume=thread_id)
            self._slots[thread_id] = slot
        slot.store.lease = lease
        slot.next_fence = lease.fence
        slot.is_busy = True
        slot.last_used = time.monotonic()
        self._slots.move_to_end(thread_id)
        await self.close_unused()
        return slot

    def release(self, lease: Lease) -> None:
        """Record that the lease was released. Its fence rises by one on release, and by one when it is taken again."""
        slot = self._slots.get(lease.thread)
        if slot is not None:
            slot.store.lease = None
            slot.next_fence = lease.fence + 2
            slot.is_busy = False
            slot.on_event = None

    async def close_agent(self, thread_id: str) -> None:
        slot = self._slots.pop(thread_id, None)
        if slot is None or slot.agent is None:
            return
        try:
            await slot.agent.close()
        except EverthreadError as error:
            _LOG.warning("the agent of %s could not be closed: %s", thread_id, redact(str(error)))

    async def close(self) -> None:
        for thread_id in list(self._slots):
            await self.close_agent(thread_id)

    async def _open_slot(self, slot: AgentSlot, tenant: str, **thread_options: Any) -> None:
        slot.last_used = time.monotonic()
        slot.agent = await self._open_agent(
            store=cast("Store", slot.store),
            tenant=tenant,
            has_tools=slot.has_tools,
            model=slot.model,
            listener=slot.forward_event,
            **thread_options,
        )

    async def close_unused(self) -> None:
        """Close agents that were idle for too long, and those above the limit."""
        oldest_use = time.monotonic() - self._options.idle_seconds
        idle_thread_ids = [thread_id for thread_id, slot in self._slots.items() if not slot.is_busy]
        surplus_thread_ids = idle_thread_ids[: max(0, len(self._slots) - self._options.max_agents)]
        for thread_id in [
            *surplus_thread_ids,
            *(
                thread_id
                for thread_id in idle_thread_ids
                if self._slots[thread_id].last_used < oldest_use
                and thread_id not in surplus_thread_ids
            ),
        ]:
            # While another agent was closed, this one may have been taken for a turn.
            if thread_id in self._slots and not self._slots[thread_id].is_busy:
                await self.close_agent(thread_id)
