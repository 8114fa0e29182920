"""OpenAI responses <-> core, both directions, whole and as a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

from everthread.core.caching.openai_cache_breakpoints import BREAKPOINT, has_breakpoint
from everthread.core.messages import (
    Message,
    Messages,
    Part,
    as_text,
    calls_of,
    content_text,
    join_name,
    kind_of,
    parts_of,
    results_of,
    simplify_parts,
    text_of,
)
from everthread.core.types import DeltaKind, Reply, Request, StreamDelta, System
from everthread.errors import WireError
from everthread.wire.common import (
    error_delta,
    error_text,
    event_object,
    keep_reasoning,
    native_value,
    reply_fields,
    require_list,
    require_object,
    require_text,
    with_native,
    without_private_fields,
    write_reply_fields,
)
from everthread.wire.openai_chat import chat_form, chat_parts, tool_calls_of
from everthread.wire.sse import SseEvent

API = "openai_responses"
Item = dict[str, Any]

CALLS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "tool_search_call": "tool_search_output",
    "mcp_approval_request": "mcp_approval_response",
}
"""Calls that the client answers, and the item it answers each with."""
_ANSWERS = {output: call for call, output in CALLS.items()}
_FREE_TEXT_CALLS = ("function_call", "custom_tool_call")
"""Calls that take any text as their result."""
_BUILT_IN = CALLS.keys() - _FREE_TEXT_CALLS
_MORE_TOOLS = "additional_tools"
"""The item by which a client offers tools in its input."""
_SEARCH_CALL = "tool_search_call"
"""Its answer defines tools; as text it would define none, so the call then leaves with it."""
_NAMESPACE = "_namespace"
"""The field in which a call keeps its tool's namespace, to be written again."""
_SPEECH_ITEMS = ("message", "reasoning")
_NO_ARGUMENTS = frozenset(
    {"id", "type", "status", "call_id", "caller", "created_by", "name", "server_label"}
)


def decode_messages(
    wire: str | Sequence[Mapping[str, Any]], *, model: str | None = None
) -> list[Message]:
    """Return core messages from items, or from a text, which is a single user message.

    `model` is the one whose reasoning the items hold, if known.
    """
    if isinstance(wire, str):
        return [with_native({"role": "user", "content": wire}, API, wire)]
    messages: list[Message] = []
    run: list[Item] = []
    for index, value in enumerate(require_list(wire, "input")):
        item = cast("Item", require_object(value, f"input[{index}]"))
        role = _role(item, f"input[{index}]")
        if role == "assistant":
            run.append(item)
            continue
        if run:
            messages.append(decode_run(run, model=model))
            run = []
        messages.append(
            with_native(
                _result(item) if role == "tool" else _plain_message(item, role),
                API,
                item,
            )
        )
    return [*messages, decode_run(run, model=model)] if run else messages


def decode_run(items: Sequence[Item], *, model: str | None = None) -> Message:
    """Return one assistant message. Calls that the run itself answers were the provider's own."""
    answered = {
        "",
        *(_answered_call_id(item) for item in items if kind_of(item) in _ANSWERS),
    }
    calls = [
        _call(item)
        for item in items
        if kind_of(item) in CALLS and call_id(item) not in answered
    ]
    parts = [part for item in items if "role" in item for part in _content(item)]
    refusals = [content_text([part]) for part in parts if kind_of(part) == "refusal"]
    texts = [part for part in parts if kind_of(part) != "refusal"]
    message: Message = {"role": "assistant", "content": simplify_parts(texts)}
    if calls:
        message["tool_calls"] = calls
    if refusals:
        message["refusal"] = "\n".join(refusals)
    if not (calls or parts):
        message["content"] = "\n".join(
            f"[{kind}]" for kind in map(_kind, items) if kind not in _SPEECH_ITEMS
        )
    return with_native(message, API, list(items), model=model)


def encode_messages(messages: Messages, *, model: str | None = None) -> list[Item]:
    """Return items for `model`, without reasoning that another model or API wrote."""
    rewritten = {
        result.call_id
        for message in messages
        if native_value(message, API) is None
        for result in results_of(message)
    }
    unsearched = _find_searches(messages) & rewritten
    items: list[Item] = []
    kinds: dict[str, Any] = {}
    for message in messages:
        value = native_value(message, API)
        if value is None and message.get("tool_call_id") in unsearched:
            continue
        if isinstance(value, list):
            written = _run(
                value, rewritten, reasoning=keep_reasoning(message, API, model)
            )
        elif isinstance(value, str):
            written = [{"role": "user", "content": value}]
        elif isinstance(value, dict) and _still_answers(value, kinds):
            written = [value]
        else:
            written = [
                item for form in chat_form(message) for item in _from_chat(form, kinds)
            ]
        kinds |= {
            call_id(item): item["type"] for item in written if kind_of(item) in CALLS
        }
        items += written
    return items


def _find_searches(messages: Messages) -> set[str]:
    """Return the ids of all searches for tools that the client answers."""
    runs = (
        value
        for message in messages
        if isinstance(value := native_value(message, API), list)
    )
    return {
        call_id(item) for run in runs for item in run if kind_of(item) == _SEARCH_CALL
    }


def call_id(item: Mapping[str, Any]) -> str:
    """Return the id that a result refers to; empty if the provider answers the call itself."""
    value = (
        item.get("id")
        if kind_of(item) == "mcp_approval_request"
        else item.get("call_id")
    )
    return as_text(value)


def _answered_call_id(item: Mapping[str, Any]) -> str:
    """Return the id of the call that a result answers."""
    value = item.get(
        "approval_request_id" if item["type"] == "mcp_approval_response" else "call_id"
    )
    if value is None and item["type"] == "local_shell_call_output":
        value = item.get("id")
    return as_text(value)


def _role(item: Item, where: str) -> str:
    kind = kind_of(item)
    if kind == "message" or (not kind and "role" in item):
        role = require_text(item.get("role"), f"{where}.role")
        if role == "tool":
            raise WireError(
                f"{where}.role must not be tool: a result is an item of its own here"
            )
        return role
    if kind == _MORE_TOOLS:
        return "developer"
    return "tool" if kind in _ANSWERS and _answered_call_id(item) else "assistant"


def _kind(item: Item) -> str:
    return kind_of(item) or ("message" if "role" in item else "item_reference")


def _plain_message(item: Item, role: str) -> Message:
    if kind_of(item) == _MORE_TOOLS:
        return {
            "role": role,
            "content": json.dumps(item.get("tools"), ensure_ascii=False),
        }
    content = item.get("content")
    return {
        "role": role,
        "content": content if isinstance(content, str) else _content(item),
    }


def _content(item: Item) -> list[Part]:
    content = item.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return chat_parts(
        [
            dict(require_object(part, "a part of the content"))
            for part in require_list(content or [], "content")
        ]
    )


def _call(item: Item) -> Any:
    """Return the call as chat has it."""
    kind = item["type"]
    name = _call_name(item)
    namespace = item.get("namespace")
    own_fields = {_NAMESPACE: namespace} if namespace else {}
    if kind == "custom_tool_call":
        custom = {"name": name, "input": item.get("input")}
        return {"id": call_id(item), "type": "custom", "custom": custom, **own_fields}
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        fields = {key: value for key, value in item.items() if key not in _NO_ARGUMENTS}
        arguments = json.dumps(
            fields if arguments is None else arguments, ensure_ascii=False
        )
    function = {"name": name or kind.removesuffix("_call"), "arguments": arguments}
    return {"id": call_id(item), "type": "function", "function": function, **own_fields}


def _call_name(item: Mapping[str, Any]) -> Any:
    """Return the name of the tool; that of a tool in a namespace begins with the namespace."""
    namespace = item.get("namespace")
    name = item.get("name")
    return (
        join_name(namespace, name)
        if isinstance(namespace, str) and namespace and isinstance(name, str)
        else name
    )


def _result(item: Item) -> Message:
    output: Any = item.get("output")
    content: str | list[Part]
    if item["type"] == "mcp_approval_response":
        content = f"{'approved' if item.get('approve') else 'denied'} {item.get('reason') or ''}".strip()
    elif kind_of(output) == "computer_screenshot":
        content = chat_parts([{**output, "type": "input_image"}])
    elif item["type"] == "shell_call_output" and isinstance(output, list):
        pieces = [
            piece.get(key)
            for piece in output
            if isinstance(piece, dict)
            for key in ("stdout", "stderr")
        ]
        content = "\n".join(str(piece) for piece in pieces if piece)
    elif isinstance(output, list):
        content = chat_parts(output)
    elif output is None:
        content = (
            json.dumps(item["tools"], ensure_ascii=False) if item.get("tools") else ""
        )
    else:
        content = content_text(output)
    return {"role": "tool", "tool_call_id": _answered_call_id(item), "content": content}


def _run(items: list[Item], rewritten: set[str], *, reasoning: bool) -> list[Item]:
    """Return a run unchanged, unless its reasoning must go or a result of a built-in tool was rewritten.

    Only functions and custom tools take any text as result, so the call of such a tool is then written as a function's;
    a search for tools is left out. Reasoning seals the items after it: if one is changed, the other is dropped, with
    the ids by which the provider would miss it.
    """
    rewritten_items = [
        _call_item(_call(item))
        if kind_of(item) in _BUILT_IN and call_id(item) in rewritten
        else item
        for item in items
        if kind_of(item) != _SEARCH_CALL or call_id(item) not in rewritten
    ]
    is_same = len(rewritten_items) == len(items)
    if (
        reasoning
        and is_same
        and all(new is old for new, old in zip(rewritten_items, items, strict=True))
    ):
        return items
    rest = [item for item in rewritten_items if kind_of(item) != "reasoning"]
    return (
        rest
        if len(rest) == len(rewritten_items)
        else [_without_id(item) for item in rest]
    )


def _without_id(item: Item) -> Item:
    return (
        {key: value for key, value in item.items() if key != "id"}
        if _kind(item) in ("message", *_FREE_TEXT_CALLS)
        else item
    )


def _still_answers(item: Item, kinds: Mapping[str, Any]) -> bool:
    """Return whether a native item still fits: a result must be of the kind of its call, if that is in the list."""
    call = _ANSWERS.get(kind_of(item))
    return call is None or bool(kinds.get(_answered_call_id(item), call) == call)


def _from_chat(message: Message, kinds: Mapping[str, Any]) -> list[Item]:
    role = message.get("role")
    if role != "assistant":
        parts = [_input_part(part) for part in parts_of(message)]
        content = (
            parts if isinstance(message.get("content"), list) else text_of(message)
        )
        if role not in ("tool", "function"):
            return [{"role": role, "content": content}]
        answered_id = content_text(message.get("tool_call_id") or message.get("name"))
        kind = CALLS[
            "custom_tool_call"
            if kinds.get(answered_id) == "custom_tool_call"
            else "function_call"
        ]
        return [{"type": kind, "call_id": answered_id, "output": content}]
    texts = (content_text([part]) for part in parts_of(message))
    parts = [{"type": "output_text", "text": text} for text in texts if text]
    if refusal := message.get("refusal"):
        parts.append({"type": "refusal", "refusal": refusal})
    spoken: list[Item] = (
        [{"type": "message", "role": "assistant", "content": parts}] if parts else []
    )
    calls = tool_calls_of(message)
    legacy = cast("Mapping[str, Any]", message).get("function_call")
    if isinstance(legacy, dict):
        calls = [*calls, {"id": legacy.get("name"), "function": legacy}]
    return spoken + [_call_item(call) for call in calls if isinstance(call, dict)]


def _call_item(call: Mapping[str, Any]) -> Item:
    [read] = calls_of({"role": "assistant", "tool_calls": [call]})
    fields = {"call_id": read.id, "name": read.name}
    if namespace := as_text(call.get(_NAMESPACE)):
        fields |= {
            "name": read.name.removeprefix(join_name(namespace, "")),
            "namespace": namespace,
        }
    if isinstance(call.get("custom"), dict):
        return {"type": "custom_tool_call", **fields, "input": read.arguments}
    return {"type": "function_call", **fields, "arguments": read.arguments or "{}"}


def _input_part(part: Part) -> Part:
    """Return a part as the Responses protocol takes it from a client; kinds it may know and we do not pass."""
    kind = kind_of(part)
    if kind in ("text", "refusal"):
        return {"type": "input_text", "text": content_text([part])}
    inner = part.get(kind)
    if kind == "image_url":
        image = inner if isinstance(inner, dict) else {"url": inner}
        return {
            "type": "input_image",
            "image_url": image.get("url"),
            "detail": image.get("detail") or "auto",
        }
    if kind == "file" and isinstance(inner, dict):
        return {"type": "input_file", **inner}
    return {key: value for key, value in part.items() if key != "cache_control"}


_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "content_filter"}


def decode_request(body: Mapping[str, Any]) -> Request:
    """Return a request in core form. A field the core cannot express (`input: null`) stays in `params`."""
    body = without_private_fields(require_object(body, "the request"))
    model = require_text(body.get("model"), "model")
    messages = decode_messages(body.get("input") or [], model=model)
    tools = decode_tools(body.get("tools") or [])
    system: System = (
        body["instructions"] if isinstance(body.get("instructions"), str) else None
    )
    expressed = {
        "input": messages,
        "tools": tools,
        "instructions": system is not None,
        "model": True,
    }
    params = {key: value for key, value in body.items() if not expressed.get(key)}
    return Request(
        model=model, messages=messages, system=system, tools=tools, params=params
    )


def encode_request(request: Request) -> dict[str, Any]:
    body = {"model": request.model, **without_private_fields(request.params)}
    if request.messages:
        text = (
            native_value(request.messages[0], API)
            if len(request.messages) == 1
            else None
        )
        body["input"] = (
            text
            if isinstance(text, str)
            else encode_messages(request.messages, model=request.model)
        )
    if isinstance(request.system, str):
        body["instructions"] = request.system
    elif request.system and has_breakpoint(request.system):
        body["input"] = [_encode_system(request.system), *_as_items(body.get("input"))]
    elif request.system:
        body["instructions"] = "\n\n".join(
            content_text([part]) for part in request.system
        )
    tools = encode_tools(request.tools)
    return {**body, "tools": tools} if tools else body


def _encode_system(system: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a system prompt as a message: `instructions` cannot carry a breakpoint."""
    parts: list[Any] = []
    for part in system or ():
        mark = {key: part[key] for key in part if key == BREAKPOINT}
        parts.append({"type": "input_text", "text": content_text([part]), **mark})
    return {"type": "message", "role": "developer", "content": parts}


def _as_items(items: Any) -> list[Any]:
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    return list(items or ())


def decode_tools(wire: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return functions and custom tools in chat's nested form; built-in tools are unchanged."""
    return [
        _decode_tool(require_object(tool, f"tools[{index}]"))
        for index, tool in enumerate(require_list(wire, "tools"))
    ]


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools that this API can call, without those built into another API."""
    return [encoded for tool in tools if (encoded := _encode_tool(tool)) is not None]


def decode_reply(body: Mapping[str, Any], *, model: str | None = None) -> Reply:
    """Return a reply in core form; `model` is the name under which it was asked for."""
    body = without_private_fields(require_object(body, "the reply"))
    if body.get("error") and "output" not in body:
        raise WireError(
            f"the reply is an error, not a response: {error_text(body['error']) or repr(body['error'])}"
        )
    items = require_list(body.get("output"), "output")
    output = [
        dict(require_object(item, f"output[{at}]")) for at, item in enumerate(items)
    ]
    fields, rest = reply_fields(body)
    message = decode_run(output, model=model or fields.get("model"))
    raw = {key: value for key, value in rest.items() if key != "output"}
    return Reply(
        message=message, stop=_stop(raw, message), raw={**raw, "_api": API}, **fields
    )


def encode_reply(reply: Reply) -> dict[str, Any]:
    """Return a reply as a response. A decoded one is returned verbatim."""
    native = reply.raw.get("_api") == API
    raw = without_private_fields(reply.raw) if native else _DEFAULTS
    body = {**raw, "output": _output(reply)}
    if not native or _stop(raw, reply.message) != reply.stop:
        body |= _status(reply.stop)
    return write_reply_fields(
        body, reply, "input_tokens", "output_tokens", native=native
    )


def _decode_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    kind = tool.get("type")
    fields = {
        key: value
        for key, value in without_private_fields(tool).items()
        if key != "type"
    }
    if kind == "function":
        return {"type": kind, kind: fields}
    if kind == "custom":
        form = fields.get("format")
        if isinstance(form, dict) and form.get("type") == "grammar":
            grammar = {key: value for key, value in form.items() if key != "type"}
            fields = {**fields, "format": {"type": "grammar", "grammar": grammar}}
        return {"type": kind, kind: fields}
    return {
        **without_private_fields(tool),
        "_native": {"api": API, "value": without_private_fields(tool)},
    }


def _encode_tool(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    function = tool.get("function")
    custom = tool.get("custom")
    if isinstance(function, dict):
        return {"type": "function", **function}
    if isinstance(custom, dict):
        form = custom.get("format")
        if isinstance(form, dict) and isinstance(form.get("grammar"), dict):
            custom = {**custom, "format": {"type": "grammar", **form["grammar"]}}
        return {"type": "custom", **custom}
    return (
        without_private_fields(tool)
        if "_native" not in tool or native_value(tool, API) is not None
        else None
    )


def _stop(raw: Mapping[str, Any], message: Message) -> str | None:
    status = raw.get("status")
    if status == "completed":
        return (
            "tool_calls"
            if message.get("tool_calls")
            else "refusal"
            if message.get("refusal")
            else "stop"
        )
    if status == "incomplete":
        details = raw.get("incomplete_details")
        return _INCOMPLETE.get(
            str(details.get("reason")) if isinstance(details, dict) else "", "other"
        )
    return "other" if status in ("failed", "cancelled") else None


def _status(stop: str | None) -> dict[str, Any]:
    reason = next(
        (reason for reason, name in _INCOMPLETE.items() if name == stop), None
    )
    if reason:
        return {"status": "incomplete", "incomplete_details": {"reason": reason}}
    return {
        "status": "in_progress" if stop is None else "completed",
        "incomplete_details": None,
    }


def _output(reply: Reply) -> list[Item]:
    """Return the reply's items; those made from another API's message get the fields clients expect of an answer."""
    items = encode_messages([reply.message])
    if native_value(reply.message, API) is not None:
        return items
    return [
        _answer(item, f"{reply.id or 'reply'}_{index}")
        for index, item in enumerate(items)
    ]


def _answer(item: Item, name: str) -> Item:
    prefix = {"message": "msg", "function_call": "fc"}.get(item["type"], "ctc")
    answer = {"id": f"{prefix}_{name}", "status": "completed", **item}
    if item["type"] == "message":
        answer["content"] = [
            {"annotations": [], "logprobs": [], **part}
            if part["type"] == "output_text"
            else part
            for part in item["content"]
        ]
    return answer


_DEFAULTS: dict[str, Any] = {
    "object": "response",
    "created_at": 0,
    "error": None,
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


@dataclass(frozen=True, slots=True)
class _Slot:
    """The place of a text: a field of the item, or of a part in one of its lists."""

    kind: DeltaKind | None
    field: str
    list: str = ""
    index: str = ""
    part: str = ""


_SLOTS = {
    "output_text": _Slot("text", "text", "content", "content_index", "output_text"),
    "refusal": _Slot("refusal", "refusal", "content", "content_index", "refusal"),
    "reasoning_text": _Slot(
        "reasoning", "text", "content", "content_index", "reasoning_text"
    ),
    "reasoning_summary_text": _Slot(
        "reasoning", "text", "summary", "summary_index", "summary_text"
    ),
    "function_call_arguments": _Slot("call", "arguments"),
    "custom_tool_call_input": _Slot("call", "input"),
    "mcp_call_arguments": _Slot(None, "arguments"),
    "code_interpreter_call_code": _Slot(None, "code"),
}
_BY_PART = {slot.part: name for name, slot in _SLOTS.items() if slot.part}
_BY_ITEM = {
    "function_call": "function_call_arguments",
    "custom_tool_call": "custom_tool_call_input",
    "mcp_call": "mcp_call_arguments",
    "code_interpreter_call": "code_interpreter_call_code",
}
_PARTS = {
    "content_part": ("content", "content_index"),
    "reasoning_summary_part": ("summary", "summary_index"),
}
_END_EVENTS = ("completed", "incomplete", "failed")
_PROGRESS_EVENTS = ("created", "queued", "in_progress", *_END_EVENTS)


class ResponsesStreamDecoder:
    """Decode the events of one stream; `reply()` works at any time, also after the stream broke off.

    `model` is the name under which the reply was asked for.
    """

    def __init__(self, *, model: str | None = None) -> None:
        self._model = model
        self._response: dict[str, Any] = {}
        self._items: dict[int, _Growing] = {}
        self._calls = count()

    def feed(self, event: SseEvent | Mapping[str, Any]) -> list[StreamDelta]:
        data = event_object(event)
        if data is None:
            return []
        kind = str(
            data.get("type")
            or (event.event if isinstance(event, SseEvent) else None)
            or ""
        )
        if kind == "error" or (data.get("error") and not kind):
            return [error_delta(data.get("error") or data)]
        name, _, what = kind.removeprefix("response.").rpartition(".")
        if not name and what in _PROGRESS_EVENTS:
            return list(
                self._live(
                    what,
                    require_object(data.get("response"), f"the response of {kind}"),
                )
            )
        item = self._items.setdefault(_index_of(data, "output_index"), _Growing())
        if name == "output_item":
            return self._take_item(
                item,
                require_object(data.get("item"), f"the item of {kind}"),
                done=what == "done",
            )
        if name in _SLOTS:
            return self._take_words(item, _SLOTS[name], data, done=what == "done")
        if name in _PARTS:
            of, at = _PARTS[name]
            item.parts[of, _index_of(data, at)] = require_object(
                data.get("part"), f"the part of {kind}"
            )
        return []

    def reply(self) -> Reply:
        """Return the partial answer as a whole reply."""
        output = self._response.get("output")
        if not output or self._response.get("status") not in _END_EVENTS:
            items = [self._items[index].whole() for index in sorted(self._items)]
            output = [item for item in items if item is not None]
        return decode_reply({**self._response, "output": output}, model=self._model)

    def _live(self, what: str, response: Mapping[str, Any]) -> Iterator[StreamDelta]:
        self._response = dict(response)
        if what not in _END_EVENTS:
            return
        self._response.setdefault("status", what)
        if isinstance(response.get("usage"), dict):
            yield StreamDelta("usage", raw=response["usage"])
        if what == "failed":
            yield error_delta(response.get("error"))
        stop = {
            key: self._response.get(key) for key in ("status", "incomplete_details")
        }
        yield StreamDelta("stop", text=self.reply().stop or "", raw=stop)

    def _take_item(
        self, item: _Growing, value: Mapping[str, Any], *, done: bool
    ) -> list[StreamDelta]:
        item.start = dict(value)
        item.done = done
        if kind_of(value) not in CALLS or not call_id(value):
            return []
        final_arguments = (
            value.get("arguments", value.get("input"))
            if done and not item.words
            else ""
        )
        arguments = final_arguments if isinstance(final_arguments, str) else ""
        if item.call is not None:
            return (
                [StreamDelta("call", index=item.call, arguments=arguments)]
                if arguments
                else []
            )
        item.call = next(self._calls)
        name = str(_call_name(value) or value["type"])
        return [
            StreamDelta(
                "call",
                index=item.call,
                id=call_id(value),
                name=name,
                arguments=arguments,
            )
        ]

    def _take_words(
        self, item: _Growing, slot: _Slot, data: Mapping[str, Any], *, done: bool
    ) -> list[StreamDelta]:
        words = data.get(slot.field if done else "delta")
        if not isinstance(words, str):
            return []
        pieces = item.words.setdefault((slot, _index_of(data, slot.index)), [])
        is_repeat = done and bool(pieces)
        if done:
            pieces.clear()
        pieces.append(words)
        if is_repeat or not words or slot.kind is None:
            return []
        if slot.kind != "call":
            return [StreamDelta(slot.kind, text=words)]
        if item.call is None:
            item.call = next(self._calls)
        return [StreamDelta("call", index=item.call, arguments=words)]


@dataclass(slots=True)
class _Growing:
    """An item while it arrives. Words are collected and joined once, when they are asked for."""

    start: Item | None = None
    done: bool = False
    call: int | None = None
    """Which of the message's calls it is, if it is one."""
    parts: dict[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    words: dict[tuple[_Slot, int], list[str]] = field(default_factory=dict)

    def whole(self) -> Item | None:
        """Return the item; None if it cannot be sent back: cut-off reasoning, text of an unknown item."""
        if self.done:
            return self.start
        item: Item = self.start or {
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
        }
        speaks = any(slot.kind in ("text", "refusal") for slot, _ in self.words)
        if kind_of(item) == "reasoning" or (self.start is None and not speaks):
            return None
        item = {**item, "status": "incomplete"} if "status" in item else dict(item)
        lists: dict[str, dict[int, dict[str, Any]]] = {}
        for (of, at), part in self.parts.items():
            lists.setdefault(of, {})[at] = dict(part)
        for (slot, at), pieces in self.words.items():
            target = (
                lists.setdefault(slot.list, {}).setdefault(at, {"type": slot.part})
                if slot.list
                else item
            )
            target[slot.field] = "".join(pieces)
        return item | {
            of: [parts[at] for at in sorted(parts)] for of, parts in lists.items()
        }


stream_decoder = ResponsesStreamDecoder


def encode_stream(reply: Reply) -> Iterator[SseEvent]:
    """Yield the events of a stream that sends the reply."""
    body = encode_reply(reply)
    numbers = count()

    def event(kind: str, **fields: Any) -> SseEvent:
        data = {"type": f"response.{kind}", "sequence_number": next(numbers), **fields}
        return SseEvent(data["type"], json.dumps(data, ensure_ascii=False))

    unknown = dict.fromkeys({"usage", "error", "incomplete_details"} & body.keys())
    opening = {**body, **unknown, "status": "in_progress", "output": []}
    yield event("created", response=opening)
    yield event("in_progress", response=opening)
    for index, item in enumerate(body["output"]):
        for kind, fields in _item_events(item):
            yield event(kind, output_index=index, **fields)
    if body.get("status") in _END_EVENTS:
        yield event(body["status"], response=body)


def _item_events(item: Item) -> Iterator[tuple[str, dict[str, Any]]]:
    name = _BY_ITEM.get(kind_of(item), "")
    lists = {
        of: item[of] for of in ("summary", "content") if isinstance(item.get(of), list)
    }
    started: Item = {**item, **{of: [] for of in lists}}
    if "status" in item:
        started["status"] = "in_progress"
    if name:
        started[_SLOTS[name].field] = ""
    yield "output_item.added", {"item": started}
    about = {"item_id": item.get("id", "")}
    for event, (of, index) in _PARTS.items():
        for at, part in enumerate(lists.get(of, [])):
            for kind, fields in _part_events(event, part):
                yield kind, {**about, index: at, **fields}
    if name:
        yield from (
            (kind, {**about, **fields}) for kind, fields in _word_events(name, item)
        )
    yield "output_item.done", {"item": item}


def _part_events(
    event: str, part: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    name = _BY_PART.get(kind_of(part), "")
    yield f"{event}.added", {"part": {**part, _SLOTS[name].field: ""} if name else part}
    if name:
        yield from _word_events(name, part)
    yield f"{event}.done", {"part": part}


def _word_events(
    name: str, holder: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the words at once: a stream made from a whole reply has nothing to wait for."""
    slot = _SLOTS[name]
    words = holder.get(slot.field) or ""
    extra: dict[str, Any] = {"logprobs": []} if name == "output_text" else {}
    yield f"{name}.delta", {"delta": words, **extra}
    yield f"{name}.done", {slot.field: words, **extra}


def _index_of(data: Mapping[str, Any], key: str) -> int:
    """Return an index; 0 if there is none."""
    value = data.get(key)
    return value if isinstance(value, int) else 0
