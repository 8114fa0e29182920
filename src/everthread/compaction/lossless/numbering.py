"""Which turn and which id a message has, in a list of which the beginning may be covered by nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from everthread.compaction.lossless.parts import Part, View, read_view
from everthread.core.boundaries import without_earlier_summary
from everthread.core.messages import Message, Messages, text_of
from everthread.core.summary import SUMMARY_START, summaries_in
from everthread.core.transcript import is_user_message


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the list says of itself: earlier nodes, the rules pinned there, a turn and an id for each message."""

    parts: tuple[Part, ...]
    rules: tuple[str, ...]
    turns: tuple[int, ...]
    ids: tuple[int, ...]


def numbered(messages: Messages, ids: Sequence[int] | None, *, hidden: int = 0) -> Numbers:
    """Turns count the user's messages from 1 and go on after an earlier summary where it left off.

    `hidden`: how many turns a summary stands for that does not say so. Without `ids` messages are numbered in order,
    those that nodes cover included.
    """
    parts: list[Part] = []
    rules: dict[str, None] = {}
    turns: list[int] = []
    places: list[int] = []
    turn, place = 0, 0
    for message in messages:
        view = _view(message)
        for part in view.parts:
            first = part.node.first_turn or turn + 1
            node = replace(
                part.node, first_turn=first, last_turn=part.node.last_turn or max(first, turn + hidden),
                first_message=place, last_message=place + max(part.messages - 1, 0),
            )  # fmt: skip
            parts.append(replace(part, node=node))
            place += part.messages
        after = (view.next_turn or (parts[-1].node.last_turn + 1)) - 1 if view.parts else 0
        leading = bool(view.parts) and text_of(message).lstrip().startswith(SUMMARY_START)
        turn = max(turn, after) if leading else turn
        turn += is_user_message(message)
        turn = turn if leading else max(turn, after)
        rules.update(dict.fromkeys(view.rules))
        turns.append(max(turn, 1))
        places.append(place)
        place += without_earlier_summary(message) is not None
    return Numbers(tuple(parts), tuple(rules), tuple(turns), tuple(places if ids is None else ids))


def _view(message: Message) -> View:
    """All that the summaries in one message tell; most messages hold none."""
    views = [read_view(text) for text in summaries_in(message)]
    if not views:
        return View()
    parts = tuple(part for view in views for part in view.parts)
    return View(parts, views[-1].next_turn, tuple(rule for view in views for rule in view.rules))
