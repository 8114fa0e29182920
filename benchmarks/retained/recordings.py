"""Load the shared recordings as chat messages, one for one, so that labels can refer to messages by number.

They are divided beforehand: one half may be looked at while building ("seen"), the other is only measured ("kept
aside"). The only long coding session is in the first half.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.retained.generated_sessions import generate_session
from benchmarks.shared import find_shared
from everthread.core.messages import Message
from everthread.lab.importers.log import without_reasoning
from everthread.lab.importers.read_logs import read_log

SEEN = "seen"
ASIDE = "kept aside"
CODING = "coding"
SUPPORT = "support"
CHAT = "chat"
THREADS: dict[tuple[str, str], tuple[str, ...]] = {
    (CODING, SEEN): (
        "coding-long-claude",
        *(f"swe-claude37-{number}" for number in ("00", "05", "08", "01", "03")),
    ),
    (CODING, ASIDE): tuple(f"swe-claude37-{number}" for number in ("02", "06", "09", "04", "07")),
    (SUPPORT, SEEN): tuple(
        f"support-{model}-{number}" for model in ("claude45", "gpt41") for number in (0, 2, 4)
    ),
    (SUPPORT, ASIDE): tuple(
        f"support-{model}-{number}" for model in ("claude45", "gpt41") for number in (1, 3, 5)
    ),
    (CHAT, SEEN): ("conv-26", "conv-41", "conv-43"),
    (CHAT, ASIDE): ("conv-30", "conv-42"),
}
"""By kind and half: the recordings that form one thread."""
LOGS: dict[str, tuple[str, ...]] = {
    SEEN: (
        "claude-code-13_340918e71b_0",
        "claude-code-38_346dbfe2e0_0",
        "claude-code-83_a0bb2f3f73_0",
        "claude-code-db_3f4ae57df0_0",
    ),
    ASIDE: (
        "claude-code-18_4069756ffc_0",
        "claude-code-63_bd3f9b02f2_1",
        "claude-code-a5_d8ec9bae67_0",
        "codex-0b9f2ac6f3aa",
        "copilot-cli-d88be769afd1",
    ),
}
"""By half: whole sessions of agents, each a separate thread."""
_CALL_ID = re.compile(r"Call id: (\S+)\n")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A message with the name of its recording and its number there; generated messages have neither."""

    message: Message
    name: str = ""
    number: int = -1


def load_thread(kind: str, half: str) -> Iterator[Recorded]:
    """Yield the recordings of a thread, then generated work without end."""
    for place, name in enumerate(THREADS[kind, half]):
        for number, message in enumerate(load_recording(name)):
            if message is not None:
                yield Recorded(_prefix_call_ids(message, f"r{place}_"), name, number)
    for message in generate_session(len(kind) + len(half)):
        yield Recorded(message)


def load_recording(name: str) -> list[Message | None]:
    """Return the messages of a recording; None for a system prompt and for a result without its call."""
    if name.startswith("conv-"):
        return list(_load_dialogue(name))
    if name in LOGS[SEEN] + LOGS[ASIDE]:
        return list(_load_session(name))
    folder = "token-truth" if name.startswith("swe-") else "transcripts"
    path = find_shared(folder, f"{name}.json")
    if path is None:
        raise FileNotFoundError(name)
    messages: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["messages"]
    if folder == "transcripts":
        return [
            None if message["role"] == "system" else _drop_other_fields(message)
            for message in messages
        ]
    return list(_read_agent_log(messages))


def _load_session(name: str) -> list[Message]:
    """Return the messages of an agent's log, without its client's own compactions."""
    path = find_shared("logs", f"{name}.jsonl.gz")
    if path is None:
        raise FileNotFoundError(name)
    messages = without_reasoning(entry.message for entry in read_log(str(path)).entries)
    return [_make_function_calls(message) for message in messages]


def _make_function_calls(message: Message) -> Message:
    """Return the message with calls of custom tools as function calls, which every peer can read."""
    new: Any = dict(message)
    if new.get("tool_calls"):
        new["tool_calls"] = [
            _make_call(
                {
                    "id": call["id"],
                    "function": {
                        "name": call["custom"]["name"],
                        "arguments": {"input": call["custom"].get("input")},
                    },
                }
            )
            if "custom" in call
            else call
            for call in new["tool_calls"]
        ]
    return new  # type: ignore[no-any-return] # the same keys as before


def _drop_other_fields(message: dict[str, Any]) -> Any:
    return {
        key: message[key]
        for key in ("role", "content", "tool_calls", "tool_call_id", "name")
        if key in message
    }


def _load_dialogue(name: str) -> Iterator[Message]:
    """Yield a dialogue, with the first speaker as the user and the second as the assistant."""
    path = find_shared("memory", "locomo-first5.json")
    if path is None:
        raise FileNotFoundError(name)
    talk = next(item for item in json.loads(path.read_text("utf-8")) if item["sample_id"] == name)[
        "conversation"
    ]
    number = 1
    while f"session_{number}_date_time" in talk:
        for turn in talk.get(f"session_{number}", ()):
            yield {
                "role": "user" if turn["speaker"] == talk["speaker_a"] else "assistant",
                "content": turn["text"],
            }
        number += 1


def _read_agent_log(messages: list[dict[str, Any]]) -> Iterator[Message | None]:
    """Yield the messages of an agent's log in which calls and results are texts."""
    known: set[str] = set()
    for message in messages:
        role = message.get("role", "assistant")
        content = str(message["content"])
        if role == "tool-call":
            made = ast.literal_eval(content.split("\n", 1)[1])
            calls: Any = [_make_call(call) for call in made]
            known.update(call["id"] for call in calls)
            yield {"role": "assistant", "content": None, "tool_calls": calls}
        elif role == "tool-response":
            found = _CALL_ID.match(content)
            if found and found[1] in known:
                known.discard(found[1])
                yield {
                    "role": "tool",
                    "tool_call_id": found[1],
                    "content": content[found.end() :],
                }
            else:
                yield None
        else:
            yield None if role == "system" else {"role": role, "content": content}


def _make_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    given = arguments if isinstance(arguments, dict) else {"code": arguments}
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": json.dumps(given)},
    }


def _prefix_call_ids(message: Message, prefix: str) -> Message:
    """Return a message with prefixed call ids, so that two recordings can follow each other."""
    new: Any = dict(message)
    if new.get("tool_calls"):
        new["tool_calls"] = [{**call, "id": prefix + call["id"]} for call in new["tool_calls"]]
    if new.get("tool_call_id"):
        new["tool_call_id"] = prefix + new["tool_call_id"]
    return new  # type: ignore[no-any-return] # the same keys as before
