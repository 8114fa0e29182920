"""Delegate a task to a subagent, which has a conversation of its own; only its answer comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from everthread.agent import MAX_SUBAGENT_ROUNDS
from everthread.agent.loop import Agent
from everthread.agent.tool_interface import Approver, PreapprovedTool, Tool, ToolContext, ToolReply
from everthread.agent.tools import arguments as args
from everthread.agent.turn_events import Delegated, TurnEnded
from everthread.core.tool_schemas import build_schema
from everthread.store.records import NewSession
from everthread.thread.events import Event, Listener

MAX_TITLE_CHARS = 80
DELEGATE_SCHEMA = build_schema(
    "delegate",
    "Give a task that stands by itself to a subagent with the same tools and a context of its own. It sees nothing of "
    "this conversation: say all it must know. Only its final answer comes back. Several can work at the same time.",
    {
        "task": {"type": "string", "description": "What to do, and what to report."},
        "context": {
            "type": "string",
            "description": "What it must know: paths, findings, the user's rules.",
        },
    },
    ["task"],
)


class Delegate(PreapprovedTool):
    """The tool `delegate`. The subagent's own calls need their own approval.

    `system` builds the subagent's system prompt; `listener` gets its events.
    """

    name = "delegate"
    schema = DELEGATE_SCHEMA

    def __init__(
        self,
        tools: Sequence[Tool],
        approve: Approver,
        *,
        system: Callable[[], str],
        listener: Listener,
    ) -> None:
        self._tools = [tool for tool in tools if tool.name != self.name]
        self._approve = approve
        self._system = system
        self._listener = listener

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        args.check_names(arguments, DELEGATE_SCHEMA)
        task = args.read_text(arguments, "task")
        background = args.read_text(arguments, "context", default="", allow_empty=True)
        parent = context.conversation.session
        turn_ends = []
        thread = ""

        def on_event(event: Event) -> None:
            if isinstance(event, TurnEnded):
                turn_ends.append(event)
            self._listener(Delegated(context.conversation.session.id, thread, event))

        new_session = NewSession(
            kind="subagent",
            parent=parent.id,
            tenant=parent.tenant,
            platform=parent.platform,
            user=parent.user,
            title=" ".join(task.split())[:MAX_TITLE_CHARS],
        )
        thread = new_session.id
        child = await context.conversation.open_another(
            new=new_session,
            tools=[tool.schema for tool in self._tools],
            system=self._system,
            listener=on_event,
        )
        agent = Agent(
            child,
            self._tools,
            context=replace(context, conversation=child),
            approve=self._approve,
            max_rounds=MAX_SUBAGENT_ROUNDS,
            listener=on_event,
        )
        try:
            answer = await agent.send(f"{task}\n\nContext:\n{background}" if background else task)
        finally:
            await agent.close(turn_ends[-1].reason if turn_ends else "failed")
        return _make_reply(answer.text, turn_ends[-1], child.id)


def _make_reply(text: str, turn_end: TurnEnded, thread: str) -> ToolReply:
    note = f"[Subagent {thread[:8]}: {turn_end.calls} tool calls in {turn_end.rounds} rounds]"
    if turn_end.reason == "max_rounds":
        note = f"[Subagent {thread[:8]} stopped at its limit of {turn_end.rounds} rounds; its work may be unfinished]"
    return ToolReply(
        f"{text.strip() or '(it answered nothing)'}\n\n{note}", failed=not text.strip()
    )
