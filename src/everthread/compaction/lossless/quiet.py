"""Answers of lookups, as a leaf is given them: their first line, which names what was looked at.

What such an answer quotes is covered where it was first said; told again it would crowd out what is new.
"""

from __future__ import annotations

from typing import Any

from everthread.core.lookup import gist, is_lookup
from everthread.core.messages import Message, Messages, Result, calls_of
from everthread.core.outputs import edit_results, with_text


def quieted(messages: Messages) -> list[Message]:
    """The messages, those with a lookup's answer smaller; all others are the same objects."""
    looked = {call.id for message in messages for call in calls_of(message) if is_lookup(call.name)}

    def edit(result: Result, _: object) -> Any:
        line = gist(result.text)
        if result.call_id not in looked or line == result.text:
            return result.content
        return with_text(result.content, line)

    return [edit_results(message, edit) for message in messages] if looked else list(messages)
