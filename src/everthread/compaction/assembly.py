"""Assemble head, summary and tail into one valid list of messages."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.compaction.cut_plan import CutPlan
from everthread.compaction.summary_message import text_file
from everthread.core.message_repair import repair
from everthread.core.messages import (
    SYSTEM_ROLES,
    Message,
    calls_of,
    parts_of,
    with_content,
)
from everthread.core.transcript import (
    is_summary,
    is_user_message,
    mark_summary,
    without_summary,
)
from everthread.wire.definitions import has_fixed_position, join_instructions


def system_note(plan: CutPlan) -> str:
    """Return the note that a thread's first compaction adds to the system prompt."""
    return "" if plan.earlier.text else text_file("system_note")


def assemble(
    plan: CutPlan, text: str, note: str
) -> tuple[list[Message], tuple[int | None, ...]]:
    """Return the compacted messages, and for each its index in the input (None for a new message)."""
    cut = plan.cut
    work = plan.fit.messages
    head = _keep_messages(work, range(cut.head_end))
    tail = _keep_messages(work, range(cut.tail_start, len(work)))
    user = cut.user(work)
    if user is not None:
        index = (
            cut.kept_user
            if cut.kept_user is not None and user is work[cut.kept_user]
            else None
        )
        tail.insert(0, (user, index))
    if note:
        head = _add_note(head, note)
    places = plan.permanent.between(cut.head_end, cut.tail_start)
    permanent = [(plan.permanent.messages[index], index) for index in places]
    instructions = [kept for kept in permanent if kept[0]["role"] in SYSTEM_ROLES]
    others = [kept for kept in permanent if kept[0]["role"] not in SYSTEM_ROLES]
    joined = _put_instructions(_join([*head, *others], tail, text), instructions)
    mended = repair([message for message, _ in joined], in_flight=True)
    return mended.messages, tuple(
        None if index is None else joined[index][1] for index in mended.original_indexes
    )


KeptMessage = tuple[Message, int | None]
"""A message and its index in the input; None for a new message."""


def _keep_messages(work: list[Message], indices: range) -> list[KeptMessage]:
    """Return the messages at these indices, without an earlier summary that was merged into one."""
    rests = ((without_summary(work[index]), index) for index in indices)
    return [
        (rest, index if rest is work[index] else None)
        for rest, index in rests
        if rest is not None
    ]


def _add_note(head: list[KeptMessage], note: str) -> list[KeptMessage]:
    """Return the head with the note as an extra block of its system message: the text before it stays cached."""
    for index, (message, _) in enumerate(head):
        if message["role"] in ("system", "developer"):
            if any(part.get("text") == note for part in parts_of(message)):
                return head
            marked = with_content(
                message, [*parts_of(message), {"type": "text", "text": note}]
            )
            return [*head[:index], (marked, None), *head[index + 1 :]]
    return head


def _join(
    head: list[KeptMessage], after: list[KeptMessage], text: str
) -> list[KeptMessage]:
    """Insert the summary under a role that neither neighbour has, or merge it into one of them.

    Merge into the latest user message only as a last choice, so that it stays unchanged.
    """
    before = head[-1][0] if head else None
    following = after[0][0] if after else None
    taken = {
        _speaker(message) for message in (before, following) if message is not None
    }
    if (
        before is not None
        and before["role"] == "tool"
        and (following is None or following["role"] == "assistant")
    ):
        return [*head, _summary({"role": "user", "content": text}), *after]
    if "user" not in taken:
        return [*head, _summary({"role": "user", "content": text}), *after]
    if (
        "assistant" not in taken
        and any(message["role"] == "user" for message, _ in head)
        and after
    ):
        return [*head, _summary({"role": "assistant", "content": text}), *after]
    if before is not None and before["role"] != "system" and not calls_of(before):
        is_latest = is_user_message(before) and not any(
            is_user_message(message) for message, _ in after
        )
        if not is_latest:
            return [*head[:-1], _summary(_add_text(before, text)), *after]
    if following is not None and following["role"] == "user":
        return [*head, _summary(_add_text(following, text, first=True)), *after[1:]]
    if before is not None and before["role"] == "user":
        return [*head[:-1], _summary(_add_text(before, text)), *after]
    return [*head, _summary({"role": "user", "content": text}), *after]


def _put_instructions(
    joined: list[KeptMessage], instructions: Sequence[KeptMessage]
) -> list[KeptMessage]:
    """Put system messages from the middle before the summary, or else directly after it, in their order."""
    result = list(joined)
    lowest = 0
    for message, index in instructions:
        earlier = [
            at
            for at, (_, place) in enumerate(result)
            if place is not None and place < (index or 0)
        ]
        lowest = max([lowest, *(at + 1 for at in earlier)])
        at = _find_place(result, message, lowest)
        result.insert(at, (message, index))
        lowest = at + 1
    return _join_instructions(result)


def _find_place(
    messages: Sequence[KeptMessage], instruction: Message, lowest: int
) -> int:
    """Return the place for a system message. Anthropic takes one between the user's side and an answer only."""
    summary = next(
        at for at, (message, _) in enumerate(messages) if is_summary(message)
    )
    is_merged = without_summary(messages[summary][0]) is not None
    beside = max(summary + is_merged, lowest)
    if not has_fixed_position(instruction):
        return beside
    places = [
        at
        for at in range(lowest, len(messages) + 1)
        if _takes_instructions(messages, at)
    ]
    before = [at for at in places if at <= summary]
    return before[0] if before else places[0] if places else beside


def _takes_instructions(messages: Sequence[KeptMessage], at: int) -> bool:
    """Return whether a system message may be put at this place."""
    before = messages[at - 1][0] if at else None
    after = messages[at][0] if at < len(messages) else None
    follows = before is not None and _speaker(before) in ("user", *SYSTEM_ROLES)
    return follows and (after is None or after["role"] == "assistant")


def _join_instructions(messages: Sequence[KeptMessage]) -> list[KeptMessage]:
    """Join system messages that the wire takes one at a time; a joined one is new."""
    joined: list[KeptMessage] = []
    for message, index in messages:
        is_next = (
            bool(joined)
            and message["role"] in SYSTEM_ROLES
            and joined[-1][0]["role"] in SYSTEM_ROLES
        )
        run = join_instructions([joined[-1][0], message]) if is_next else [message]
        if is_next and len(run) == 1:
            joined[-1] = (run[0], None)
        else:
            joined.append((message, index))
    return joined


def _summary(message: Message) -> KeptMessage:
    return mark_summary(message), None


def _speaker(message: Message) -> str:
    """Return the role that speaks: results count as the user's, and a system message keeps its own role."""
    return {"tool": "user", "function": "user"}.get(message["role"], message["role"])


def _add_text(message: Message, text: str, *, first: bool = False) -> Message:
    """Return the message with a text added after its content, or before it."""
    content = message.get("content")
    if isinstance(content, list):
        part = {"type": "text", "text": text}
        return with_content(message, [part, *content] if first else [*content, part])
    pair = (text, content) if first else (content, text)
    return with_content(message, "\n\n".join(part for part in pair if part))
