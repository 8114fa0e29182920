"""Watch the size of system prompt and tools, the part of a prompt that a compaction does not change."""

from __future__ import annotations

from everthread.conversation.conversation_state import ConversationState
from everthread.thread.policy.notices import make_fixed_size_notice


class FixedPromptWatch:
    """Keeps system prompt and tools together below the threshold, and reports once if that is impossible."""

    def __init__(self, state: ConversationState) -> None:
        self._state = state
        self._is_reported = False

    def reset(self) -> None:
        """Allow another report, after a change of model or a manual compaction."""
        self._is_reported = False

    async def choose_tools(self) -> None:
        """Leave out tools before a session's first request if they take too much of the window."""
        state = self._state
        if state.toolbox.is_settled(state.model.name):
            return
        fixed_tokens = state.fixed_tokens
        is_new = not state.toolbox.has_chosen
        state.leave_out_tools(
            state.toolbox.choose(state.make_tool_room(state.system)),
            "the session begins" if is_new else "another model or other tools",
        )
        if fixed_tokens >= state.model.nominal_budget.threshold > state.fixed_tokens:
            self._report(
                fixed_tokens,
                f"{len(state.toolbox.left_out)} tools that it does not use are left out.",
            )
        if state.toolbox.left_out:
            await state.save()

    def check(self) -> None:
        """Report system prompt and tools that reach the threshold alone."""
        state = self._state
        fixed_tokens = state.size.fixed_tokens
        if fixed_tokens < state.model.nominal_budget.threshold:
            return
        if not state.toolbox.can_fit(state.make_tool_room(state.system)):
            self._report(fixed_tokens, "Offer fewer tools, or use a model with a larger window.")

    def _report(self, fixed_tokens: int, advice: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._state.notify(
                make_fixed_size_notice(fixed_tokens, self._state.model.window, advice)
            )
