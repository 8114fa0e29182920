"""The shared recordings as chat messages, one for one, so that a label's message number holds in the recorded file.

They are divided beforehand: one half may be looked at while building ("seen"), the other is only measured ("kept
aside"). The one long coding session is in the first half, whole.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.retained.stories import story
from benchmarks.shared import shared
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
    (CODING, ASIDE): tuple(
        f"swe-claude37-{number}" for number in ("02", "06", "09", "04", "07")
    ),
    (SUPPORT, SEEN): tuple(
        f"support-{model}-{number}"
        for model in ("claude45", "gpt41")
        for number in (0, 2, 4)
    ),
    (SUPPORT, ASIDE): tuple(
        f"support-{model}-{number}"
        for model in ("claude45", "gpt41")
        for number in (1, 3, 5)
    ),
    (CHAT, SEEN): ("conv-26", "conv-41", "conv-43"),
    (CHAT, ASIDE): ("conv-30", "conv-42"),
}
"""By kind and half: the recordings that follow each other in one thread."""
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
"""By half: whole sessions of agents, each a thread of its own."""
_CALL_ID = re.compile(r"Call id: (\S+)\n")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A message, the recording it is of and its number there; generated ones are of none."""

    message: Message
    name: str = ""
    number: int = -1


def thread(kind: str, half: str) -> Iterator[Recorded]:
    """The recordings of a thread, then generated work without end."""
    for place, name in enumerate(THREADS[kind, half]):
        for number, message in enumerate(recording(name)):
            if message is not None:
                yield Recorded(_with_prefix(message, f"r{place}_"), name, number)
    for message in story(len(kind) + len(half)):
        yield Recorded(message)


def recording(name: str) -> list[Message | None]:
    """Its messages; None for one that is no part of a chat (a system prompt, a result without its call)."""
    if name.startswith("conv-"):
        return list(_dialogue(name))
    if name in LOGS[SEEN] + LOGS[ASIDE]:
        return list(_session(name))
    folder = "token-truth" if name.startswith("swe-") else "transcripts"
    path = shared(folder, f"{name}.json")
    if path is None:
        raise FileNotFoundError(name)
    messages: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["messages"]
    if folder == "transcripts":
        return [
            None if message["role"] == "system" else _plain(message)
            for message in messages
        ]
    return list(_agent_log(messages))


def _session(name: str) -> list[Message]:
    """The messages of an agent's log, its client's own compactions left out."""
    path = shared("logs", f"{name}.jsonl.gz")
    if path is None:
        raise FileNotFoundError(name)
    messages = without_reasoning(entry.message for entry in read_log(str(path)).entries)
    return [_with_functions(message) for message in messages]


def _with_functions(message: Message) -> Message:
    """The message with calls of custom tools as calls of functions, which every peer reads."""
    new: Any = dict(message)
    if new.get("tool_calls"):
        new["tool_calls"] = [
            _call(
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


def _plain(message: dict[str, Any]) -> Any:
    return {
        key: message[key]
        for key in ("role", "content", "tool_calls", "tool_call_id", "name")
        if key in message
    }


def _dialogue(name: str) -> Iterator[Message]:
    """The first speaker as the user, the second as the assistant."""
    path = shared("memory", "locomo-first5.json")
    if path is None:
        raise FileNotFoundError(name)
    talk = next(
        item
        for item in json.loads(path.read_text("utf-8"))
        if item["sample_id"] == name
    )["conversation"]
    number = 1
    while f"session_{number}_date_time" in talk:
        for turn in talk.get(f"session_{number}", ()):
            yield {
                "role": "user" if turn["speaker"] == talk["speaker_a"] else "assistant",
                "content": turn["text"],
            }
        number += 1


def _agent_log(messages: list[dict[str, Any]]) -> Iterator[Message | None]:
    """An agent's log in which calls and results are texts."""
    known: set[str] = set()
    for message in messages:
        role = message.get("role", "assistant")
        content = str(message["content"])
        if role == "tool-call":
            made = ast.literal_eval(content.split("\n", 1)[1])
            calls: Any = [_call(call) for call in made]
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


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    given = arguments if isinstance(arguments, dict) else {"code": arguments}
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": json.dumps(given)},
    }


def _with_prefix(message: Message, prefix: str) -> Message:
    """With call ids of its own, so that two recordings can follow each other."""
    new: Any = dict(message)
    if new.get("tool_calls"):
        new["tool_calls"] = [
            {**call, "id": prefix + call["id"]} for call in new["tool_calls"]
        ]
    if new.get("tool_call_id"):
        new["tool_call_id"] = prefix + new["tool_call_id"]
    return new  # type: ignore[no-any-return] # the same keys as before
