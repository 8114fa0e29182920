"""Open the agent of `chat` and `run`, in a new thread or in the one to resume."""

from __future__ import annotations

from everthread.agent.approval import Approvals
from everthread.agent.loop import Agent
from everthread.cli.start_options import StartOptions
from everthread.cli.usable_model import choose_model, find_model_problem
from everthread.factory import open_agent
from everthread.store.records import NewSession
from everthread.store.store import Store
from everthread.thread.events import Listener

PLATFORM = "terminal"
"""The platform of these sessions in usage and insights."""


async def open_terminal_agent(
    start_options: StartOptions,
    store: Store,
    resume: str | None,
    approve: Approvals,
    *,
    listener: Listener | None = None,
) -> Agent:
    """Open an agent for `chat` or `run`, in a new thread or in the one to resume.

    A resumed thread uses the given model, or else its own model if that is usable, or else the default model. If
    neither of these is usable, the error is about the thread's own model.
    """
    config = start_options.config
    model = start_options.model
    if resume is not None:
        session = await store.resolve(resume)
        last_session = await store.load_session(await store.get_compression_tip(session.id))
        thread_model = last_session.model or session.model
        if (
            model is None
            and thread_model
            and (not find_model_problem(config, thread_model) or find_model_problem(config, None))
        ):
            model = thread_model
        model = choose_model(config, model, can_ask=start_options.can_ask)
    return await open_agent(
        config,
        model=model,
        resume=resume,
        workspace=start_options.workspace,
        approve=approve,
        store=store,
        listener=listener,
        session=None if resume else NewSession(platform=PLATFORM),
    )
