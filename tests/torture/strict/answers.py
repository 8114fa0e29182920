"""Answers in the four protocols, whole and as a stream."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.torture.strict.signatures import call_text, sign
from tests.torture.strict.story import Answer

Event = tuple[str, Mapping[str, Any]]
"""The name of a server-sent event, empty if it has none, and its data."""


@dataclass(frozen=True)
class Sizes:
    """Tokens of one call, as this provider counts them."""

    prompt: int
    cached: int
    output: int


def anthropic_answer(body: Mapping[str, Any], answer: Answer, sizes: Sizes) -> dict[str, Any]:
    thinking = body.get("thinking") or {}
    content: list[dict[str, Any]] = []
    if answer.thinking and thinking.get("type") in ("enabled", "adaptive"):
        signature = sign(answer.thinking)
        content.append({"type": "thinking", "thinking": answer.thinking, "signature": signature})
    if answer.text:
        content.append({"type": "text", "text": answer.text})
    content += [
        {
            "type": "tool_use",
            "id": f"toolu_{call.id}",
            "name": call.name,
            "input": call.arguments,
        }
        for call in answer.calls
    ]
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": "tool_use" if answer.calls else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 3,
            "cache_read_input_tokens": sizes.cached,
            "cache_creation_input_tokens": max(0, sizes.prompt - sizes.cached - 3),
            "output_tokens": sizes.output,
        },
    }


def anthropic_events(whole: Mapping[str, Any]) -> Iterator[Event]:
    start = {**whole, "content": [], "stop_reason": None}
    yield "message_start", {"type": "message_start", "message": start}
    for index, block in enumerate(whole["content"]):
        yield from _anthropic_block(index, block)
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": whole["usage"]["output_tokens"]}
    yield "message_delta", {"type": "message_delta", "delta": delta, "usage": usage}
    yield "message_stop", {"type": "message_stop"}


def _anthropic_block(index: int, block: Mapping[str, Any]) -> Iterator[Event]:
    kind = block["type"]
    if kind == "text":
        empty: dict[str, Any] = {**block, "text": ""}
        deltas = [{"type": "text_delta", "text": block["text"]}]
    elif kind == "thinking":
        empty = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    else:
        empty = {**block, "input": {}}
        text = json.dumps(block["input"])
        deltas = [{"type": "input_json_delta", "partial_json": text}]
    start = {"type": "content_block_start", "index": index, "content_block": empty}
    yield "content_block_start", start
    for delta in deltas:
        data = {"type": "content_block_delta", "index": index, "delta": delta}
        yield "content_block_delta", data
    yield "content_block_stop", {"type": "content_block_stop", "index": index}


def chat_answer(body: Mapping[str, Any], answer: Answer, sizes: Sizes) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments),
                },
            }
            for call in answer.calls
        ]
    reason = "tool_calls" if answer.calls else "stop"
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {
            "prompt_tokens": sizes.prompt,
            "completion_tokens": sizes.output,
            "total_tokens": sizes.prompt + sizes.output,
            "prompt_tokens_details": {"cached_tokens": sizes.cached},
        },
    }


def chat_events(whole: Mapping[str, Any], *, with_usage: bool) -> Iterator[Event]:
    choice = whole["choices"][0]
    calls = [
        {**call, "index": at} for at, call in enumerate(choice["message"].get("tool_calls", ()))
    ]
    head = {key: whole[key] for key in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk"
    delta = {**choice["message"], **({"tool_calls": calls} if calls else {})}
    for part, reason in ((delta, None), ({}, choice["finish_reason"])):
        yield (
            "",
            {**head, "choices": [{"index": 0, "delta": part, "finish_reason": reason}]},
        )
    if with_usage:
        yield "", {**head, "choices": [], "usage": whole["usage"]}


def responses_answer(body: Mapping[str, Any], answer: Answer, sizes: Sizes) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if answer.thinking and "reasoning.encrypted_content" in (body.get("include") or ()):
        text = uuid.uuid4().hex
        sealed = f"{text}.{sign(text)}"
        output.append(
            {
                "type": "reasoning",
                "id": f"rs_{text}",
                "summary": [],
                "encrypted_content": sealed,
            }
        )
    if answer.text:
        part = {"type": "output_text", "text": answer.text, "annotations": []}
        output.append(
            {
                "type": "message",
                "id": f"msg_{uuid.uuid4().hex}",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    output += [
        {
            "type": "function_call",
            "id": f"fc_{uuid.uuid4().hex}",
            "call_id": call.id,
            "name": call.name,
            "arguments": json.dumps(call.arguments),
            "status": "completed",
        }
        for call in answer.calls
    ]
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": 1_790_000_000,
        "status": "completed",
        "model": body["model"],
        "output": output,
        "parallel_tool_calls": True,
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "usage": {
            "input_tokens": sizes.prompt,
            "input_tokens_details": {"cached_tokens": sizes.cached},
            "output_tokens": sizes.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sizes.prompt + sizes.output,
        },
    }


def responses_events(whole: Mapping[str, Any]) -> Iterator[Event]:
    number = iter(range(10_000))

    def event(kind: str, **fields: Any) -> Event:
        return kind, {"type": kind, "sequence_number": next(number), **fields}

    empty = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield event("response.created", response=empty)
    yield event("response.in_progress", response=empty)
    for at, item in enumerate(whole["output"]):
        place = {"output_index": at, "item_id": item["id"]}
        begun = {**item, "status": "in_progress"}
        if item["type"] == "message":
            part = item["content"][0]
            blank = {**part, "text": ""}
            begun["content"] = []
            yield event("response.output_item.added", output_index=at, item=begun)
            place["content_index"] = 0
            yield event("response.content_part.added", part=blank, **place)
            yield event("response.output_text.delta", delta=part["text"], logprobs=[], **place)
            yield event("response.output_text.done", text=part["text"], logprobs=[], **place)
            yield event("response.content_part.done", part=part, **place)
        elif item["type"] == "function_call":
            begun["arguments"] = ""
            yield event("response.output_item.added", output_index=at, item=begun)
            text = item["arguments"]
            yield event("response.function_call_arguments.delta", delta=text, **place)
            yield event("response.function_call_arguments.done", arguments=text, **place)
        else:
            yield event("response.output_item.added", output_index=at, item=begun)
        yield event("response.output_item.done", output_index=at, item=item)
    yield event("response.completed", response=whole)


def gemini_answer(model: str, answer: Answer, sizes: Sizes) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"text": answer.text}] if answer.text else []
    for call in answer.calls:
        made = {"name": call.name, "args": dict(call.arguments), "id": call.id}
        parts.append({"functionCall": made, "thoughtSignature": sign(call_text(made))})
    content = {"role": "model", "parts": parts}
    return {
        "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
        "modelVersion": model,
        "responseId": uuid.uuid4().hex,
        "usageMetadata": {
            "promptTokenCount": sizes.prompt,
            "cachedContentTokenCount": sizes.cached,
            "candidatesTokenCount": sizes.output,
            "totalTokenCount": sizes.prompt + sizes.output,
        },
    }
