"""OpenAI chat completions <-> core, both directions, whole and as a stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any, cast

from everthread.core.messages import (
    CALL_BLOCKS,
    REASONING_BLOCKS,
    RESULT_BLOCKS,
    SYSTEM_ROLES,
    Message,
    Messages,
    Part,
    as_text,
    calls_of,
    content_text,
    json_text,
    kind_of,
    with_content,
)
from everthread.core.types import DeltaKind, Reply, Request, StreamDelta, System
from everthread.errors import WireError
from everthread.wire.anthropic.message_codec import part_from, source_url
from everthread.wire.common import (
    error_delta,
    error_text,
    event_object,
    keep_reasoning,
    native_value,
    public_message,
    reply_fields,
    require_list,
    require_object,
    require_text,
    with_native,
    without_private_fields,
    write_reply_fields,
)
from everthread.wire.sse import SseEvent


def chat_form(message: Message) -> list[Message]:
    """Return a message in chat form: one or several. A message that has that form already is returned itself."""
    content = message.get("content")
    if content == []:
        return [with_content(message, None if tool_calls_of(message) else "")]
    if not isinstance(content, list) or not any(map(_is_foreign, content)):
        return [message]
    parts = chat_parts(content)
    if message.get("role") == "assistant":
        return [_assistant_message(message, parts)]
    results = [
        _tool_message(part) for part in content if kind_of(part) in RESULT_BLOCKS
    ]
    return (
        results
        if results and not parts
        else [*results, cast("Message", {**message, "content": parts or ""})]
    )


def chat_parts(content: list[Part]) -> list[Part]:
    """Return the parts as chat has them, without calls, results and reasoning."""
    return [
        new
        for part in content
        for new in (
            _PART_CONVERTERS[kind_of(part)](part) if _is_foreign(part) else [part]
        )
    ]


def tool_calls_of(message: Message) -> list[Any]:
    """Return the calls in chat's own field, whatever they are."""
    calls: Any = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def placeholder(part: Mapping[str, Any]) -> list[Part]:
    """Return a text in the place of a part that chat cannot carry."""
    name = part.get("title") or part.get("filename") or part.get("name")
    return [_text(f"[{part.get('type')}: {name}]" if name else f"[{part.get('type')}]")]


def _assistant_message(message: Message, parts: list[Part]) -> Message:
    calls: list[Any] = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments or "{}"},
        }
        for call in calls_of({"role": "assistant", "content": message.get("content")})
    ]
    calls += tool_calls_of(message)
    fields: dict[str, Any] = {"content": parts or (None if calls else "")}
    if calls:
        fields["tool_calls"] = calls
    return cast("Message", {**message, **fields})


def _tool_message(block: Part) -> Message:
    content = block.get("content")
    inner = (
        (chat_parts(content) or "")
        if isinstance(content, list)
        else content_text(content)
    )
    return {
        "role": "tool",
        "tool_call_id": str(block.get("tool_use_id")),
        "content": inner,
    }


def _is_foreign(part: Any) -> bool:
    kind = kind_of(part)
    return "citations" in part if kind == "text" else kind in _PART_CONVERTERS


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _image(part: Part) -> list[Part]:
    image = part_from(part)
    return [image] if image["type"] == "image_url" else placeholder(part)


def _document(part: Part) -> list[Part]:
    file = part_from(part)
    if file["type"] == "file":
        return [file]
    source: Any = part.get("source")
    kind = kind_of(source)
    if kind == "text":
        return [_text(content_text(source.get("data")))]
    inner = source.get("content") if kind == "content" else None
    if isinstance(inner, list):
        return chat_parts(inner)
    return (
        [_text(inner)]
        if isinstance(inner, str)
        else placeholder({"name": source_url(source), **part})
    )


def _input_image(part: Part) -> list[Part]:
    if not isinstance(part.get("image_url"), str):
        return placeholder(part)
    image = {"url": part["image_url"]}
    return [
        {
            "type": "image_url",
            "image_url": image
            | ({"detail": part["detail"]} if part.get("detail") else {}),
        }
    ]


def _input_file(part: Part) -> list[Part]:
    file = {
        key: part[key] for key in ("file_id", "filename", "file_data") if part.get(key)
    }
    if "file_id" in file or "file_data" in file:
        return [{"type": "file", "file": file}]
    return placeholder({"name": part.get("file_url"), **part})


def _search_result(part: Part) -> list[Part]:
    texts = (content_text(part.get(key)) for key in ("title", "source", "content"))
    return [_text("\n".join(filter(None, texts)))]


_SERVER_BLOCKS = (
    "server_tool_use",
    "mcp_tool_use",
    "mcp_tool_result",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "container_upload",
)
_PART_CONVERTERS: dict[str, Callable[[Part], list[Part]]] = {
    "text": lambda part: [
        {key: value for key, value in part.items() if key != "citations"}
    ],
    "input_text": lambda part: [_text(content_text(part.get("text")))],
    "output_text": lambda part: [_text(content_text(part.get("text")))],
    "image": _image,
    "document": _document,
    "input_image": _input_image,
    "input_file": _input_file,
    "search_result": _search_result,
    **dict.fromkeys(CALL_BLOCKS | RESULT_BLOCKS | REASONING_BLOCKS, lambda _part: []),
    **dict.fromkeys(_SERVER_BLOCKS, placeholder),
}


API = "openai_chat"

REASONING_FIELDS = frozenset(
    {
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "reasoning_text",
        "reasoning_opaque",
        "thinking_blocks",
    }
)
"""Fields for reasoning in the dialects of chat: DeepSeek, OpenRouter, Copilot, LiteLLM."""

_SYSTEM_ROLE = "_system_role"
_CORE_FIELDS = ("model", "messages", "tools")
_FIELDS_CHAT_LACKS = frozenset({"cache_control", "is_error"})
"""Fields of a message that chat does not have."""
_MEDIA = frozenset({"image_url", "file", "input_audio", "video_url"})
_STOP_BY_FINISH_REASON = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


def decode_request(body: Mapping[str, Any]) -> Request:
    """Return a request in core form. The first message is the system prompt if it holds nothing but the prompt."""
    body = without_private_fields(require_object(body, "the request"))
    model = require_text(body.get("model"), "model")
    wire = require_list(body.get("messages"), "messages")
    params = {key: value for key, value in body.items() if key not in _CORE_FIELDS}
    system: System = None
    if wire and _is_system_prompt(wire[0]):
        system = wire[0]["content"]
        if wire[0]["role"] != "system":
            params[_SYSTEM_ROLE] = wire[0]["role"]
    messages = decode_messages(
        wire if system is None else wire[1:],
        model=model,
        start=0 if system is None else 1,
    )
    tools = decode_tools(body.get("tools") or [])
    if "tools" in body and not tools:
        params["tools"] = body["tools"]
    return Request(
        model=model, messages=messages, system=system, tools=tools, params=params
    )


def encode_request(request: Request) -> dict[str, Any]:
    messages = encode_messages(request.messages, model=request.model)
    if request.system is not None:
        system = (
            request.system
            if isinstance(request.system, str)
            else chat_parts(request.system)
        )
        messages.insert(
            0, {"role": request.params.get(_SYSTEM_ROLE, "system"), "content": system}
        )
    body = {
        "model": request.model,
        "messages": messages,
        **without_private_fields(request.params),
    }
    tools = encode_tools(request.tools)
    return {**body, "tools": tools} if tools else body


def decode_messages(
    wire: Sequence[Mapping[str, Any]], *, model: str | None = None, start: int = 0
) -> list[Message]:
    """Return core messages; `model` wrote their reasoning, if that is known."""
    return [
        _decode(message, f"messages[{index}]", model)
        for index, message in enumerate(require_list(wire, "messages"), start=start)
    ]


def encode_messages(
    messages: Messages, *, model: str | None = None
) -> list[dict[str, Any]]:
    """Return chat messages for `model`, without reasoning that another model or API wrote.

    Chat takes media from the user only: those in tool results follow in a user message, after the last result.
    """
    wire: list[dict[str, Any]] = []
    media: list[Part] = []
    for body, apart in (
        written for message in messages for written in _encode(message, model)
    ):
        if media and body["role"] != "tool":
            wire.append({"role": "user", "content": media})
            media = []
        wire.append(body)
        media = [*media, *apart]
    return [*wire, {"role": "user", "content": media}] if media else wire


def decode_tools(wire: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return core tools, which have the form of chat tools."""
    return [
        without_private_fields(require_object(tool, f"tools[{index}]"))
        for index, tool in enumerate(require_list(wire, "tools"))
    ]


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools that chat can call, without those built into another API."""
    return [
        without_private_fields(tool)
        for tool in tools
        if "_native" not in tool or "function" in tool or "custom" in tool
    ]


def decode_reply(body: Mapping[str, Any], *, model: str | None = None) -> Reply:
    """Return a reply in core form.

    `model` is the name under which it was asked for: the reply often gives another name for the same model, and
    reasoning is kept by name.
    """
    body = without_private_fields(require_object(body, "the reply"))
    if body.get("error") and not body.get("choices"):
        raise WireError(
            f"the reply is an error, not a completion: {error_text(body['error']) or repr(body['error'])}"
        )
    choices = require_list(body.get("choices"), "choices")
    if not choices:
        raise WireError("the reply holds no choice")
    first = require_object(choices[0], "choices[0]")
    fields, rest = reply_fields(body)
    message = _decode(
        first.get("message"), "choices[0].message", model or fields.get("model")
    )
    shell = {key: value for key, value in first.items() if key != "message"}
    raw = {**rest, "choices": [shell, *choices[1:]], "_api": API}
    return Reply(
        message=message,
        stop=stop_of(first.get("finish_reason"), message),
        raw=raw,
        **fields,
    )


def encode_reply(reply: Reply) -> dict[str, Any]:
    """Return a reply as a completion. A decoded one is returned verbatim."""
    native = reply.raw.get("_api") == API
    raw: dict[str, Any] = (
        without_private_fields(reply.raw)
        if native
        else {"object": "chat.completion", "created": 0}
    )
    shell, *others = raw.get("choices") or [{"index": 0}]
    message = encode_messages(
        [reply.message if native else _for_client(reply.message)]
    )[0]
    choice = {**shell, "message": message}
    if not native or stop_of(shell.get("finish_reason"), reply.message) != reply.stop:
        choice["finish_reason"] = _finish_reason(reply)
    body = {**raw, "choices": [choice, *others]}
    return write_reply_fields(
        body, reply, "prompt_tokens", "completion_tokens", native=native
    )


def stop_of(finish_reason: Any, message: Message) -> str | None:
    """Return our name for a finish reason. A `stop` with a refusal text is a `refusal`."""
    if finish_reason is None:
        return None
    stop = _STOP_BY_FINISH_REASON.get(str(finish_reason), "other")
    return "refusal" if stop == "stop" and message.get("refusal") else stop


def _for_client(message: Message) -> Message:
    """Return another API's message as chat clients expect an answer: one text.

    They may show its reasoning; if it comes back in a request, it is stripped there.
    """
    body = chat_form(public_message(message))[0]
    content = body.get("content")
    return (
        with_content(body, content_text(content)) if isinstance(content, list) else body
    )


def _is_system_prompt(message: Any) -> bool:
    """Return whether role and content are all it has, so that both alone restore it."""
    if not isinstance(message, Mapping) or message.keys() != {"role", "content"}:
        return False
    content = message["content"]
    if message["role"] not in SYSTEM_ROLES:
        return False
    return isinstance(content, str) or (
        isinstance(content, list) and chat_parts(content) == content
    )


def _decode(wire: Any, where: str, model: str | None) -> Message:
    body = cast("Message", without_private_fields(require_object(wire, where)))
    require_text(body.get("role"), f"{where}.role")
    content = body.get("content")
    calls = body.get("tool_calls")
    if content is not None and not isinstance(content, str | list):
        raise WireError(
            f"{where}.content must be a string, a list of parts or null, not {type(content).__name__}"
        )
    if calls is not None:
        require_list(calls, f"{where}.tool_calls")
    # Keep the original beside it, so that it is sent on unchanged.
    if encode_messages([body]) != [body]:
        return with_native(body, API, body, model=model)
    if _without_reasoning(body) is not body:
        return with_native(body, API, None, model=model)
    return body


def _encode(
    message: Message, model: str | None
) -> list[tuple[dict[str, Any], list[Part]]]:
    """Return the message on the wire, each with the media that must go into a message of the user."""
    body = public_message(message)
    if "_native" in message and not keep_reasoning(message, API, model):
        body = _without_reasoning(body)
    value = native_value(message, API)
    if value is not None and value == public_message(message):
        return [(cast("dict[str, Any]", body), [])]
    calls = tool_calls_of(body)
    plain_calls = [
        without_private_fields(call) if isinstance(call, dict) else call
        for call in calls
    ]
    if any(new is not old for new, old in zip(plain_calls, calls, strict=True)):
        body = cast("Message", {**body, "tool_calls": plain_calls})
    if not _FIELDS_CHAT_LACKS.isdisjoint(body):
        body = cast(
            "Message",
            {key: part for key, part in body.items() if key not in _FIELDS_CHAT_LACKS},
        )
    return [_split_media(form) for form in chat_form(body)]


def _split_media(message: Message) -> tuple[dict[str, Any], list[Part]]:
    """Split a tool result into its text and its media, introduced by the call; other messages are unchanged."""
    content = message.get("content")
    if message.get("role") != "tool" or not isinstance(content, list):
        return cast("dict[str, Any]", message), []
    media = [part for part in content if kind_of(part) in _MEDIA]
    if not media:
        return cast("dict[str, Any]", message), []
    words = [part for part in content if kind_of(part) not in _MEDIA]
    intro = {"type": "text", "text": f"[result of {message.get('tool_call_id')}]"}
    return {**message, "content": words or "[in the next message]"}, [intro, *media]


def _without_reasoning(message: Message) -> Message:
    """Return the message without reasoning and Gemini's call signatures; the same object if it has none."""
    calls = tool_calls_of(message)
    signed = any("extra_content" in call for call in calls if isinstance(call, dict))
    if not signed and REASONING_FIELDS.isdisjoint(message):
        return message
    fields = {
        key: value for key, value in message.items() if key not in REASONING_FIELDS
    }
    if signed:
        fields["tool_calls"] = [
            {key: value for key, value in call.items() if key != "extra_content"}
            if isinstance(call, dict)
            else call
            for call in calls
        ]
    return cast("Message", fields)


def _finish_reason(reply: Reply) -> str | None:
    """Return chat's finish reason. For a refusal without a text, clients expect `content_filter`."""
    if reply.stop == "refusal" and not reply.message.get("refusal"):
        return "content_filter"
    if reply.stop is None:
        return None
    return reply.stop if reply.stop in _STOP_BY_FINISH_REASON else "stop"


_TEXT_FIELDS = frozenset(
    {"content", "refusal", "reasoning", "reasoning_content", "reasoning_text"}
)
_FIELDS_IN_PIECES = _TEXT_FIELDS | {
    "arguments",
    "input",
    "transcript",
    "data",
    "text",
    "summary",
}
"""Strings that come in pieces. Any other string comes whole, and the last one counts."""
_FIELDS_OF_A_CHUNK = frozenset({"choices", "usage", "error", "object", "obfuscation"})


class ChatStreamDecoder:
    """Decode the events of one stream; `reply()` works at any time, also after the stream broke off.

    `model` is the name under which the reply was asked for (see `openai_chat.decode_reply`).
    """

    def __init__(self, *, model: str | None = None) -> None:
        self._model = model
        self._head: dict[str, Any] = {}
        self._usage: Any = None
        self._choice: list[Mapping[str, Any]] = []
        self._deltas: list[dict[str, Any]] = []
        self._calls = _Calls()

    def feed(self, event: SseEvent | Mapping[str, Any]) -> list[StreamDelta]:
        chunk = event_object(event)
        if chunk is None:
            return []
        deltas: list[StreamDelta] = []
        self._head |= {
            k: v
            for k, v in chunk.items()
            if k not in _FIELDS_OF_A_CHUNK and (v is not None or k not in self._head)
        }
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, Mapping) and choice.get("index", 0) in (0, None):
                deltas += self._take(choice)
        if isinstance(chunk.get("usage"), dict):
            deltas.append(self._take_usage(chunk["usage"]))
        elif "usage" in chunk:
            self._head.setdefault("usage", None)
        if error := chunk.get("error"):
            deltas.append(error_delta(error))
        return deltas

    def reply(self) -> Reply:
        """Return the partial answer as a whole reply."""
        message = {"role": "assistant", **_fold_fields(self._deltas)}
        if calls := self._calls.fold():
            message["tool_calls"] = calls
        if message.keys() == {"role"}:
            message["content"] = ""
        shell = {"index": 0, "finish_reason": None, **_fold_fields(self._choice)}
        body = {
            **self._head,
            "object": "chat.completion",
            "choices": [{**shell, "message": message}],
        }
        return decode_reply(
            body | ({"usage": self._usage} if self._usage else {}), model=self._model
        )

    def _take(self, choice: Mapping[str, Any]) -> Iterator[StreamDelta]:
        delta = require_object(choice.get("delta") or {}, "choices[0].delta")
        calls = delta.get("tool_calls")
        self._choice.append(
            {
                key: value
                for key, value in choice.items()
                if key not in ("delta", "usage")
            }
        )
        self._deltas.append(
            {
                key: value
                for key, value in delta.items()
                if key != "tool_calls" or not calls
            }
        )
        yield from _words(delta)
        for fragment in calls if isinstance(calls, list) else []:
            yield self._calls.take(
                require_object(fragment, "choices[0].delta.tool_calls[]")
            )
        if isinstance(choice.get("usage"), dict):
            yield self._take_usage(choice["usage"])
        if choice.get("finish_reason") is not None:
            refusal = any(taken.get("refusal") for taken in self._deltas)
            stop = stop_of(
                choice["finish_reason"],
                {"role": "assistant", "refusal": "…" if refusal else None},
            )
            yield StreamDelta(
                "stop", text=stop or "", raw={"finish_reason": choice["finish_reason"]}
            )

    def _take_usage(self, usage: dict[str, Any]) -> StreamDelta:
        self._usage = usage
        return StreamDelta("usage", raw=usage)


@dataclass(slots=True)
class _Call:
    id: str = ""
    names: set[str] = field(default_factory=set)
    fragments: list[Mapping[str, Any]] = field(default_factory=list)


class _Calls:
    """Assigns fragments to calls, and assembles the calls.

    An id seen before decides, regardless of the index. A new id, or a name if no index decides, begins a call. Without
    either the index decides; a fragment with an unknown index belongs to the last call.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_id: dict[str, int] = {}
        self._by_index: dict[int, int] = {}

    def take(self, fragment: Mapping[str, Any]) -> StreamDelta:
        call_id = as_text(fragment.get("id"))
        index = fragment.get("index")
        function = fragment.get("function") or fragment.get("custom")
        function = function if isinstance(function, Mapping) else {}
        name = as_text(function.get("name"))
        at = self._find_call(call_id, index, has_name=bool(name))
        if at == len(self._calls):
            self._calls.append(_Call())
        if isinstance(index, int):
            self._by_index[index] = at
        call = self._calls[at]
        new_id = "" if call.id else call_id
        new_name = "" if name in call.names else name
        if new_id:
            call.id = new_id
            self._by_id[new_id] = at
        call.names.add(name)
        call.fragments.append(
            {key: value for key, value in fragment.items() if key != "index"}
        )
        arguments = json_text(function.get("arguments", function.get("input")))
        return StreamDelta(
            "call", index=at, id=new_id, name=new_name, arguments=arguments
        )

    def _find_call(self, call_id: str, index: Any, *, has_name: bool) -> int:
        if call_id in self._by_id:
            return self._by_id[call_id]
        new = len(self._calls)
        last = max(len(self._calls) - 1, 0)
        call_at_index = self._by_index.get(index) if isinstance(index, int) else None
        if call_at_index is not None:
            return new if call_id and self._calls[call_at_index].id else call_at_index
        return new if call_id or has_name else last

    def fold(self) -> list[dict[str, Any]]:
        return [_fold_fields(call.fragments) for call in self._calls]


stream_decoder = ChatStreamDecoder


def encode_stream(reply: Reply) -> Iterator[SseEvent]:
    """Yield the chunks of a stream that sends the reply."""
    body = encode_reply(reply)
    choice = body["choices"][0]
    message = choice["message"]
    head = {
        key: value for key, value in body.items() if key not in ("choices", "usage")
    }
    head["object"] = "chat.completion.chunk"
    if "usage" in body and body["usage"] is None:
        head["usage"] = None
    for delta in _deltas(message):
        yield _event(
            {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        )
    shell = {key: value for key, value in choice.items() if key != "message"}
    yield _event({**head, "choices": [{**shell, "delta": {}}]})
    if body.get("usage"):
        yield _event({**head, "choices": [], "usage": body["usage"]})
    yield SseEvent(None, "[DONE]")


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    words = {
        key: value
        for key, value in message.items()
        if key in _TEXT_FIELDS and isinstance(value, str)
    }
    calls = message.get("tool_calls") or []
    yield {
        key: value
        for key, value in message.items()
        if key not in words and (key != "tool_calls" or not calls)
    }
    for key, value in sorted(
        words.items(), key=lambda item: not item[0].startswith("reasoning")
    ):
        yield {key: value}
    for index, call in enumerate(calls):
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            yield {
                "tool_calls": [
                    {**call, "index": index, "function": {**function, "arguments": ""}}
                ]
            }
            yield {
                "tool_calls": [
                    {"index": index, "function": {"arguments": function["arguments"]}}
                ]
            }
        else:
            yield {"tool_calls": [{**call, "index": index}]}


def _event(chunk: Mapping[str, Any]) -> SseEvent:
    return SseEvent(None, json.dumps(chunk, ensure_ascii=False))


def _words(delta: Mapping[str, Any]) -> Iterator[StreamDelta]:
    """Yield the texts of a chunk. Reasoning that comes twice, as text and as details, is yielded once."""
    details = delta.get("reasoning_details")
    thoughts = [
        delta.get(key) for key in ("reasoning_content", "reasoning", "reasoning_text")
    ]
    thoughts += [
        detail.get(key)
        for detail in details or []
        if isinstance(detail, dict)
        for key in ("text", "summary")
    ]
    spoken: dict[DeltaKind, str] = {
        "reasoning": next(
            (text for text in thoughts if isinstance(text, str) and text), ""
        ),
        "text": content_text(delta.get("content")),
        "refusal": content_text(delta.get("refusal")),
    }
    for kind, text in spoken.items():
        if text:
            yield StreamDelta(kind, text=text)


def _fold_fields(fragments: list[Any]) -> dict[str, Any]:
    """Merge the pieces of one object."""
    keys = dict.fromkeys(chain.from_iterable(fragments))
    return {
        key: _fold(key, [fragment[key] for fragment in fragments if key in fragment])
        for key in keys
    }


def _fold(key: str, values: list[Any]) -> Any:
    present = [value for value in values if value is not None]
    if not present:
        return None
    if key == "arguments":
        return "".join(map(json_text, present))
    if key == "name":
        return "".join(dict.fromkeys(map(str, present)))
    if key == "reasoning_details" and all(isinstance(value, list) for value in present):
        return _fold_details(present)
    if all(isinstance(value, str) for value in present):
        return (
            "".join(present)
            if key in _FIELDS_IN_PIECES
            else next(filter(None, reversed(present)), "")
        )
    if all(isinstance(value, dict) for value in present):
        return _fold_fields(present)
    if all(isinstance(value, list) for value in present):
        return list(chain.from_iterable(present))
    return _fold_content(present) if key == "content" else present[-1]


def _fold_content(values: list[Any]) -> list[Any]:
    """Merge texts and lists of parts; neighbouring texts become one part."""
    parts: list[Any] = []
    for is_text, run in groupby(values, key=lambda value: isinstance(value, str)):
        pieces = list(run)
        if not is_text:
            parts += chain.from_iterable(
                piece for piece in pieces if isinstance(piece, list)
            )
        elif text := "".join(pieces):
            parts.append({"type": "text", "text": text})
    return parts


def _fold_details(chunks: list[list[Any]]) -> list[Any]:
    """Merge chunks into blocks of reasoning.

    A chunk continues the previous block if that has its kind and index and is not yet signed; entries of one chunk are
    separate blocks.
    """
    blocks: list[list[Any]] = []
    for details in chunks:
        for position, detail in enumerate(details):
            if position == 0 and blocks and _continues(blocks[-1], detail):
                blocks[-1].append(detail)
            else:
                blocks.append([detail])
    return [_fold_fields(block) if len(block) > 1 else block[0] for block in blocks]


def _continues(block: list[Any], detail: Any) -> bool:
    last = block[-1]
    if kind_of(detail) not in ("reasoning.text", "reasoning.summary") or kind_of(
        last
    ) != kind_of(detail):
        return False
    return not last.get("signature") and last.get("index") == detail.get("index")
