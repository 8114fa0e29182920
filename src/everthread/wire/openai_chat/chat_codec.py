"""OpenAI's chat requests, messages, tools and replies <-> core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from everthread.core.messages import (
    SYSTEM_ROLES,
    Message,
    Messages,
    Part,
    content_text,
    kind_of,
    with_content,
)
from everthread.core.types import Reply, Request, System
from everthread.errors import WireError
from everthread.wire.common import (
    can_use_reasoning,
    error_text,
    native_value,
    public_message,
    require_list,
    require_object,
    require_text,
    split_reply_fields,
    with_native,
    without_private_fields,
    write_reply_fields,
)
from everthread.wire.openai_chat.chat_messages import (
    list_tool_calls,
    to_chat_messages,
    to_chat_parts,
)

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

_SYSTEM_ROLE_PARAM = "_system_role"
_CORE_FIELDS = ("model", "messages", "tools")
_FIELDS_CHAT_LACKS = frozenset({"cache_control", "is_error"})
"""Fields of a core message that chat does not have."""
_MEDIA_KINDS = frozenset({"image_url", "file", "input_audio", "video_url"})
_STOP_BY_FINISH_REASON = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


def decode_request(body: Mapping[str, Any]) -> Request:
    """Return a request in core form. The first message becomes the system prompt if nothing of it would be lost."""
    body = without_private_fields(require_object(body, "the request"))
    model = require_text(body.get("model"), "model")
    wire = require_list(body.get("messages"), "messages")
    params = {key: value for key, value in body.items() if key not in _CORE_FIELDS}
    system: System = None
    if wire and _is_system_prompt(wire[0]):
        system = wire[0]["content"]
        if wire[0]["role"] != "system":
            params[_SYSTEM_ROLE_PARAM] = wire[0]["role"]
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
            else to_chat_parts(request.system)
        )
        messages.insert(
            0,
            {
                "role": request.params.get(_SYSTEM_ROLE_PARAM, "system"),
                "content": system,
            },
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
    """Return core messages. `model` is the author of their reasoning, if known."""
    return [
        _decode_message(message, f"messages[{index}]", model)
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
    for body, separate_media in (
        encoded for message in messages for encoded in _encode_message(message, model)
    ):
        if media and body["role"] != "tool":
            wire.append({"role": "user", "content": media})
            media = []
        wire.append(body)
        media = [*media, *separate_media]
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

    `model` is the requested name, by which reasoning is kept: the reply often has another name for the same model.
    """
    body = without_private_fields(require_object(body, "the reply"))
    if body.get("error") and not body.get("choices"):
        raise WireError(
            f"the reply is an error, not a completion: {error_text(body['error']) or repr(body['error'])}"
        )
    choices = require_list(body.get("choices"), "choices")
    if not choices:
        raise WireError("the reply holds no choice")
    choice = require_object(choices[0], "choices[0]")
    fields, other_fields = split_reply_fields(body)
    message = _decode_message(
        choice.get("message"), "choices[0].message", model or fields.get("model")
    )
    choice_fields = {key: value for key, value in choice.items() if key != "message"}
    raw = {**other_fields, "choices": [choice_fields, *choices[1:]], "_api": API}
    return Reply(
        message=message,
        stop=decode_finish_reason(choice.get("finish_reason"), message),
        raw=raw,
        **fields,
    )


def encode_reply(reply: Reply) -> dict[str, Any]:
    """Return a reply as a completion. A decoded reply is returned verbatim."""
    is_native = reply.raw.get("_api") == API
    raw: dict[str, Any] = (
        without_private_fields(reply.raw)
        if is_native
        else {"object": "chat.completion", "created": 0}
    )
    choice_fields, *other_choices = raw.get("choices") or [{"index": 0}]
    message = encode_messages(
        [reply.message if is_native else _to_client_message(reply.message)]
    )[0]
    choice = {**choice_fields, "message": message}
    if (
        not is_native
        or decode_finish_reason(choice_fields.get("finish_reason"), reply.message)
        != reply.stop
    ):
        choice["finish_reason"] = _choose_finish_reason(reply)
    body = {**raw, "choices": [choice, *other_choices]}
    return write_reply_fields(
        body, reply, "prompt_tokens", "completion_tokens", is_native=is_native
    )


def decode_finish_reason(finish_reason: Any, message: Message) -> str | None:
    """Return the core name of a finish reason. A `stop` with a refusal text is a `refusal`."""
    if finish_reason is None:
        return None
    stop = _STOP_BY_FINISH_REASON.get(str(finish_reason), "other")
    return "refusal" if stop == "stop" and message.get("refusal") else stop


def _to_client_message(message: Message) -> Message:
    """Return a message of another API in the form that chat clients expect of an answer: one text, not parts.

    Clients may show its reasoning. If a request returns the reasoning, it is removed there.
    """
    body = to_chat_messages(public_message(message))[0]
    content = body.get("content")
    return (
        with_content(body, content_text(content)) if isinstance(content, list) else body
    )


def _is_system_prompt(message: Any) -> bool:
    """Return whether a message has only role and content, so that these two restore it."""
    if not isinstance(message, Mapping) or message.keys() != {"role", "content"}:
        return False
    content = message["content"]
    if message["role"] not in SYSTEM_ROLES:
        return False
    return isinstance(content, str) or (
        isinstance(content, list) and to_chat_parts(content) == content
    )


def _decode_message(wire: Any, path: str, model: str | None) -> Message:
    body = cast("Message", without_private_fields(require_object(wire, path)))
    require_text(body.get("role"), f"{path}.role")
    content = body.get("content")
    calls = body.get("tool_calls")
    if content is not None and not isinstance(content, str | list):
        raise WireError(
            f"{path}.content must be a string, a list of parts or null, not {type(content).__name__}"
        )
    if calls is not None:
        require_list(calls, f"{path}.tool_calls")
    # Keep the original beside it, so that it is sent on unchanged.
    if encode_messages([body]) != [body]:
        return with_native(body, API, body, model=model)
    if _without_reasoning(body) is not body:
        return with_native(body, API, None, model=model)
    return body


def _encode_message(
    message: Message, model: str | None
) -> list[tuple[dict[str, Any], list[Part]]]:
    """Return the wire messages, each with the media that must move to a user message."""
    body = public_message(message)
    if "_native" in message and not can_use_reasoning(message, API, model):
        body = _without_reasoning(body)
    value = native_value(message, API)
    if value is not None and value == public_message(message):
        return [(cast("dict[str, Any]", body), [])]
    calls = list_tool_calls(body)
    public_calls = [
        without_private_fields(call) if isinstance(call, dict) else call
        for call in calls
    ]
    if any(new is not old for new, old in zip(public_calls, calls, strict=True)):
        body = cast("Message", {**body, "tool_calls": public_calls})
    if not _FIELDS_CHAT_LACKS.isdisjoint(body):
        body = cast(
            "Message",
            {key: part for key, part in body.items() if key not in _FIELDS_CHAT_LACKS},
        )
    return [_split_media(chat_message) for chat_message in to_chat_messages(body)]


def _split_media(message: Message) -> tuple[dict[str, Any], list[Part]]:
    """Split a tool result into its text and its media. The media begin with a text that names the call.

    Other messages are returned unchanged, without media.
    """
    content = message.get("content")
    if message.get("role") != "tool" or not isinstance(content, list):
        return cast("dict[str, Any]", message), []
    media = [part for part in content if kind_of(part) in _MEDIA_KINDS]
    if not media:
        return cast("dict[str, Any]", message), []
    text_parts = [part for part in content if kind_of(part) not in _MEDIA_KINDS]
    intro = {"type": "text", "text": f"[result of {message.get('tool_call_id')}]"}
    return {**message, "content": text_parts or "[in the next message]"}, [
        intro,
        *media,
    ]


def _without_reasoning(message: Message) -> Message:
    """Return the message without reasoning and Gemini's call signatures; the same object if it has none."""
    calls = list_tool_calls(message)
    has_signed_calls = any(
        "extra_content" in call for call in calls if isinstance(call, dict)
    )
    if not has_signed_calls and REASONING_FIELDS.isdisjoint(message):
        return message
    fields = {
        key: value for key, value in message.items() if key not in REASONING_FIELDS
    }
    if has_signed_calls:
        fields["tool_calls"] = [
            {key: value for key, value in call.items() if key != "extra_content"}
            if isinstance(call, dict)
            else call
            for call in calls
        ]
    return cast("Message", fields)


def _choose_finish_reason(reply: Reply) -> str | None:
    """Return chat's finish reason. For a refusal without a text, clients expect `content_filter`."""
    if reply.stop == "refusal" and not reply.message.get("refusal"):
        return "content_filter"
    if reply.stop is None:
        return None
    return reply.stop if reply.stop in _STOP_BY_FINISH_REASON else "stop"
