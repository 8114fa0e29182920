"""The last phase: head, summary, tail as one valid list."""

from __future__ import annotations

from everthread.compaction.plan import Plan
from everthread.compaction.texts import text as text_file
from everthread.core.messages import Message, calls_of, parts_of, with_content
from everthread.core.transcript import is_user_message, mark_summary, without_summary
from everthread.core.validation import repair


def system_note(plan: Plan) -> str:
    """What the system prompt gains on a thread's first compaction."""
    return "" if plan.earlier.text else text_file("system_note")


def assemble(plan: Plan, text: str, note: str) -> tuple[list[Message], tuple[int | None, ...]]:
    """The compacted messages, and for each the input message it is (None for one made here)."""
    cut, work = plan.cut, plan.fit.messages
    head, tail = _kept(work, range(cut.head_end)), _kept(work, range(cut.tail_start, len(work)))
    user = cut.user(work)
    if user is not None:
        place = cut.kept_user if cut.kept_user is not None and user is work[cut.kept_user] else None
        tail.insert(0, (user, place))
    if note:
        head = _with_note(head, note)
    joined = _join(head, tail, text)
    mended = repair([message for message, _ in joined], in_flight=True)
    return mended.messages, tuple(None if place is None else joined[place][1] for place in mended.places)


Kept = tuple[Message, int | None]
"""A message and its place in the input; None for one made here."""


def _kept(work: list[Message], places: range) -> list[Kept]:
    """The messages in these places, without an earlier summary that was merged into one."""
    found = ((without_summary(work[place]), place) for place in places)
    return [(rest, place if rest is work[place] else None) for rest, place in found if rest is not None]


def _with_note(head: list[Kept], note: str) -> list[Kept]:
    """The system message in the list, with the note as a block of its own: the text before it stays cached."""
    for index, (message, _) in enumerate(head):
        if message["role"] in ("system", "developer"):
            if any(part.get("text") == note for part in parts_of(message)):
                return head
            marked = with_content(message, [*parts_of(message), {"type": "text", "text": note}])
            return [*head[:index], (marked, None), *head[index + 1 :]]
    return head


def _join(head: list[Kept], after: list[Kept], text: str) -> list[Kept]:
    """Put the summary between: under a role neither neighbour has, else merged into one of them.

    The latest user message is the last choice for merging: it is best left exactly as it was.
    """
    before = head[-1][0] if head else None
    following = after[0][0] if after else None
    taken = {_speaker(message) for message in (before, following) if message is not None}
    if "user" not in taken:
        return [*head, _summary({"role": "user", "content": text}), *after]
    if "assistant" not in taken and any(message["role"] == "user" for message, _ in head) and after:
        return [*head, _summary({"role": "assistant", "content": text}), *after]
    if before is not None and before["role"] != "system" and not calls_of(before):
        is_latest = is_user_message(before) and not any(is_user_message(message) for message, _ in after)
        if not is_latest:
            return [*head[:-1], _summary(_appended(before, text)), *after]
    if following is not None and following["role"] == "user":
        return [*head, _summary(_prepended(following, text)), *after[1:]]
    if before is not None and before["role"] == "user":
        return [*head[:-1], _summary(_appended(before, text)), *after]
    return [*head, _summary({"role": "user", "content": text}), *after]


def _summary(message: Message) -> Kept:
    return mark_summary(message), None


def _speaker(message: Message) -> str:
    """Who speaks: results are the user's side of the conversation, a system message nobody's."""
    return {"tool": "user", "function": "user"}.get(message["role"], message["role"])


def _appended(message: Message, text: str) -> Message:
    content = message.get("content")
    if isinstance(content, list):
        return with_content(message, [*content, {"type": "text", "text": text}])
    return with_content(message, f"{content}\n\n{text}" if content else text)


def _prepended(message: Message, text: str) -> Message:
    content = message.get("content")
    if isinstance(content, list):
        return with_content(message, [{"type": "text", "text": text}, *content])
    return with_content(message, f"{text}\n\n{content}" if content else text)
