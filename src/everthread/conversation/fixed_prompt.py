"""The system prompt and the tools, which no compaction makes smaller."""

from __future__ import annotations

from everthread.conversation.conversation_state import ConversationState
from everthread.thread.policy.notices import make_fixed_size_notice


class FixedPromptWatch:
    """Keep system prompt and tools together below the threshold; report once if that is impossible."""

    def __init__(self, conversation: ConversationState) -> None:
        self._conversation = conversation
        self._is_reported = False

    def reset(self) -> None:
        """Allow another report, after a change of model or a manual compaction."""
        self._is_reported = False

    async def choose_tools(self) -> None:
        """Leave out tools before a session's first request if they take too much of the window."""
        conversation = self._conversation
        if conversation.toolbox.is_settled:
            return
        fixed_tokens = conversation.fixed_tokens
        conversation.toolbox.choose_tools()
        if fixed_tokens >= conversation.nominal_budget.threshold > conversation.fixed_tokens:
            self._report(
                fixed_tokens,
                f"{len(conversation.toolbox.left_out)} tools that it does not use are left out.",
            )
        if conversation.toolbox.left_out:
            await conversation.save()

    def check(self) -> None:
        """Report system prompt and tools that reach the threshold alone."""
        conversation = self._conversation
        fixed_tokens = conversation.size.fixed_tokens
        if (
            fixed_tokens >= conversation.nominal_budget.threshold
            and not conversation.toolbox.can_free_enough()
        ):
            self._report(fixed_tokens, "Offer fewer tools, or use a model with a larger window.")

    def _report(self, fixed_tokens: int, advice: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._conversation.notify(
                make_fixed_size_notice(fixed_tokens, self._conversation.window, advice)
            )
