"""Gemini's contents in the form in which histories are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.messages import (
    Part,
    as_text,
    kind_of,
)
from everthread.wire.gemini.fields import get_object_field
from everthread.wire.gemini.parts import decode_parts, read_response


def make_comparable_content(content: Any) -> dict[str, Any]:
    """Return a content for comparison, without thoughts, signatures and ids, which clients drop or make up.

    Calls and responses become blocks as in the other protocols. A response is identified by its function's name. A
    response that directly repeats the previous one is left out: Gemini CLI sends each twice after it resumed a session.
    """
    content = content if isinstance(content, Mapping) else {}
    part_list = content.get("parts")
    parts = (
        [part for part in part_list if isinstance(part, Mapping)]
        if isinstance(part_list, list)
        else []
    )
    blocks: list[Part] = []
    for part in parts:
        call = get_object_field(part, "functionCall")
        response = get_object_field(part, "functionResponse")
        if call is not None:
            blocks.append(
                {
                    "type": "tool_use",
                    "id": "",
                    "name": call.get("name"),
                    "input": call.get("args") or {},
                }
            )
        elif response is not None:
            text = read_response(response.get("response"))[0]
            block = {
                "type": "tool_result",
                "tool_use_id": as_text(response.get("name")),
                "content": text,
            }
            blocks += [block] if blocks[-1:] != [block] else []
        elif not part.get("thought"):
            blocks += decode_parts([part])
    role = "assistant" if content.get("role") == "model" else "user"
    return {"role": role, "content": _join_text_blocks(blocks)}


def _join_text_blocks(blocks: Sequence[Part]) -> list[Part]:
    joined_blocks: list[Part] = []
    for block in blocks:
        if joined_blocks and kind_of(block) == kind_of(joined_blocks[-1]) == "text":
            joined_blocks[-1] = {
                "type": "text",
                "text": joined_blocks[-1]["text"] + block["text"],
            }
        else:
            joined_blocks.append(block)
    return joined_blocks
