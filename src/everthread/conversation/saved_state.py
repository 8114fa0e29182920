"""The state of a conversation that is saved with each session, so that an undo finds that of the parent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.compaction.engine import ContextEngine
from everthread.conversation.offered_tools import Toolbox
from everthread.errors import InputError
from everthread.store.records import Session
from everthread.store.store import Store
from everthread.thread.engines.engine_failures import SafeEngine
from everthread.thread.policy.learnt_usage import LearntUsage
from everthread.thread.used_window import CONVERSATION_STATE, UsedWindow

ENGINE_KEY = "engine"
TOOLS_KEY = "tools"
LEFT_OUT_TOOLS_KEY = "tools_left_out"
"""A key of a compaction's figures: the tools left out are committed in one transaction with the new session."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """The learnt usage and the choice of tools that a session resumes from."""

    learnt_usage: LearntUsage
    tools: Any = None
    """The result of `Toolbox.dump`; None if no tools were saved."""
    left_out_tools: Sequence[str] | None = None
    """The tools left out by the compaction that made the session, if nothing was saved since."""
    is_chosen: bool = False
    """Whether another process, or the compaction that made the session, chose its tools."""

    def restore_tools(self, toolbox: Toolbox, model: str) -> bool:
        """Load the saved choice of tools, and return whether it was loaded.

        Keep a choice made in this process for the model if no other was made.
        """
        if not toolbox.all_tools or (toolbox.is_settled(model) and not self.is_chosen):
            return False
        toolbox.load(self.tools, left_out=self.left_out_tools)
        return True


async def load_saved_state(store: Store, session: Session) -> SavedState:
    """Load the state saved with a session.

    Without one, a continuation takes its parent's state, and a branch only its parent's choice of tools.
    """
    own_state = await store.state.get_state(session.id, CONVERSATION_STATE)
    if own_state is not None:
        return SavedState(LearntUsage.load(own_state), _get_tools(own_state), is_chosen=True)
    parent_id = _get_inherited_id(session)
    if parent_id is None:
        return SavedState(LearntUsage())
    parent_state = await store.state.get_state(parent_id, CONVERSATION_STATE)
    if session.kind == "branch":
        return SavedState(LearntUsage(), _get_tools(parent_state))
    learnt_usage = LearntUsage.load(parent_state)
    learnt_usage.calibration.reset()
    left_out_tools = [
        name
        for record in await store.list_compactions(session.thread)
        if record.session == session.id
        for name in record.record.figures.get(LEFT_OUT_TOOLS_KEY, ())
    ]
    return SavedState(learnt_usage, _get_tools(parent_state), left_out_tools, is_chosen=True)


async def restore_engine(store: Store, session: Session, engine: SafeEngine) -> None:
    """Load an engine's state, saved with the session or else with the one that it continues or branches from."""
    saved = await store.state.get_state(session.id, ENGINE_KEY)
    parent_id = _get_inherited_id(session)
    if saved is None and parent_id is not None:
        saved = await store.state.get_state(parent_id, ENGINE_KEY)
    if isinstance(saved, dict) and saved.get("name") == engine.name:
        engine.call(ContextEngine.load_state, saved.get("state") or {})


async def save_state(
    store: Store,
    session_id: str,
    *,
    learnt_usage: LearntUsage,
    used_window: UsedWindow,
    toolbox: Toolbox,
    engine: SafeEngine,
) -> None:
    """Save the state of a conversation and of its engine with a session."""
    state = {**learnt_usage.dump(), **used_window.dump()}
    if toolbox.all_tools:
        state[TOOLS_KEY] = toolbox.dump()
    await asyncio.gather(
        _save_engine(store, session_id, engine),
        store.state.put_state(session_id, CONVERSATION_STATE, state),
    )


async def _save_engine(store: Store, session_id: str, engine: SafeEngine) -> None:
    engine_state = engine.call(ContextEngine.dump_state)
    state = {"name": engine.name, "state": engine_state or {}}
    try:
        await store.state.put_state(session_id, ENGINE_KEY, state)
    except InputError as error:  # not JSON
        engine.report_failed_method("dump_state", error)


def _get_inherited_id(session: Session) -> str | None:
    """Return the id of the session whose context this one begins with; None for any other parent."""
    return session.parent if session.kind in ("continuation", "branch") else None


def _get_tools(saved_state: Any) -> Any:
    return saved_state.get(TOOLS_KEY) if isinstance(saved_state, Mapping) else None
