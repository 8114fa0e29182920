"""The last phase: head, summary, tail as one valid list."""

from __future__ import annotations

from everthread.compaction.plan import Plan
from everthread.compaction.texts import text as text_file
from everthread.core.messages import Message, calls_of, parts_of, with_content
from everthread.core.transcript import latest_user_index, mark_summary
from everthread.core.validation import repair


def system_note(plan: Plan) -> str:
    """What the system prompt gains on a thread's first compaction."""
    return "" if plan.earlier.text else text_file("system_note")


def assemble(plan: Plan, text: str, note: str) -> tuple[list[Message], tuple[int | None, ...]]:
    """The compacted messages, and for each the input message it is (None for one made here)."""
    cut, work = plan.cut, plan.fit.messages
    head = cut.head(work)
    user = cut.user(work)
    after = [*([user] if user is not None else []), *cut.tail(work)]
    places = {id(message): index for index, message in enumerate(work)}
    origin = {id(message): places[id(message)] for message in (*head, *after) if id(message) in places}
    if note:
        head = _with_note(head, note)
    latest = latest_user_index([*head, *after])
    protected = None if latest is None else id([*head, *after][latest])
    joined = _join(head, after, text, protected)
    mended = repair(joined, in_flight=True).messages
    return mended, tuple(origin.get(id(message)) for message in mended)


def _with_note(head: list[Message], note: str) -> list[Message]:
    """The system message in the list, with the note as a block of its own: the text before it stays cached."""
    for index, message in enumerate(head):
        if message["role"] in ("system", "developer"):
            if any(part.get("text") == note for part in parts_of(message)):
                return head
            marked = with_content(message, [*parts_of(message), {"type": "text", "text": note}])
            return [*head[:index], marked, *head[index + 1 :]]
    return head


def _join(head: list[Message], after: list[Message], text: str, latest: int | None) -> list[Message]:
    """Put the summary between: under a role neither neighbour has, else merged into one of them.

    The latest user message is the last choice for merging: it is best left exactly as it was.
    """
    before = head[-1] if head else None
    following = after[0] if after else None
    taken = {_speaker(message) for message in (before, following) if message is not None}
    if "user" not in taken:
        return [*head, mark_summary({"role": "user", "content": text}), *after]
    if "assistant" not in taken and any(message["role"] == "user" for message in head) and after:
        return [*head, mark_summary({"role": "assistant", "content": text}), *after]
    if before is not None and before["role"] != "system" and id(before) != latest and not calls_of(before):
        return [*head[:-1], mark_summary(_appended(before, text)), *after]
    if following is not None and following["role"] == "user":
        return [*head, mark_summary(_prepended(following, text)), *after[1:]]
    if before is not None and before["role"] == "user":
        return [*head[:-1], mark_summary(_appended(before, text)), *after]
    return [*head, mark_summary({"role": "user", "content": text}), *after]


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
