"""OpenAI chat completions <-> core: requests, messages, tools, replies.

A core message is a chat message, so reading changes nothing. What is added, in `_native`, is what writing needs: whose
reasoning a message holds (the value is then None: the message itself is what was on the wire), and the wire form of a
message that would be written otherwise. It is used as long as the message still says the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from everthread.core.messages import SYSTEM_ROLES, Message, Messages, Part, content_text, kind_of, with_content
from everthread.core.pricing.usage import normalize_usage
from everthread.core.types import Reply, Request, System
from everthread.errors import WireError
from everthread.wire.native import keep_reasoning, native_value, plain, with_native
from everthread.wire.openai_parts import chat_form, chat_parts, tool_calls_of
from everthread.wire.shape import a_list, a_text, an_object, error_text, own

API = "openai_chat"

REASONING_FIELDS = frozenset(
    {"reasoning", "reasoning_content", "reasoning_details", "reasoning_text", "reasoning_opaque", "thinking_blocks"}
)
"""Where the dialects of chat keep reasoning: DeepSeek, OpenRouter, Copilot, LiteLLM."""

_SYSTEM_ROLE = "_system_role"
_CORE_FIELDS = ("model", "messages", "tools")
_NOT_HERE = frozenset({"cache_control", "is_error"})
"""Fields of a message that chat has no word for."""
_MEDIA = frozenset({"image_url", "file", "input_audio", "video_url"})
_STOPS = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


def decode_request(body: Mapping[str, Any]) -> Request:
    """A request in core form. The first message is the system prompt if it holds nothing but the prompt."""
    body = own(an_object(body, "the request"))
    model = a_text(body.get("model"), "model")
    wire = a_list(body.get("messages"), "messages")
    params = {key: value for key, value in body.items() if key not in _CORE_FIELDS}
    system: System = None
    if wire and _is_system_prompt(wire[0]):
        system = wire[0]["content"]
        if wire[0]["role"] != "system":
            params[_SYSTEM_ROLE] = wire[0]["role"]
    messages = decode_messages(wire if system is None else wire[1:], model=model, start=0 if system is None else 1)
    tools = decode_tools(body.get("tools") or [])
    if "tools" in body and not tools:
        params["tools"] = body["tools"]
    return Request(model=model, messages=messages, system=system, tools=tools, params=params)


def encode_request(request: Request) -> dict[str, Any]:
    messages = encode_messages(request.messages, model=request.model)
    if request.system is not None:
        system = request.system if isinstance(request.system, str) else chat_parts(request.system)
        messages.insert(0, {"role": request.params.get(_SYSTEM_ROLE, "system"), "content": system})
    body = {"model": request.model, "messages": messages, **own(request.params)}
    tools = encode_tools(request.tools)
    return {**body, "tools": tools} if tools else body


def decode_messages(wire: Sequence[Mapping[str, Any]], *, model: str | None = None, start: int = 0) -> list[Message]:
    """Core messages; `model` is the one whose reasoning they hold, where that is known."""
    return [
        _decode(message, f"messages[{index}]", model)
        for index, message in enumerate(a_list(wire, "messages"), start=start)
    ]


def encode_messages(messages: Messages, *, model: str | None = None) -> list[dict[str, Any]]:
    """Chat messages for `model`, without reasoning that another model or API wrote.

    Chat takes media from the user only: those in tool results follow in a user message, after the last result.
    """
    wire: list[dict[str, Any]] = []
    media: list[Part] = []
    for body, apart in (written for message in messages for written in _encode(message, model)):
        if media and body["role"] != "tool":
            wire.append({"role": "user", "content": media})
            media = []
        wire.append(body)
        media = [*media, *apart]
    return [*wire, {"role": "user", "content": media}] if media else wire


def decode_tools(wire: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Chat tools are core tools."""
    return [own(an_object(tool, f"tools[{index}]")) for index, tool in enumerate(a_list(wire, "tools"))]


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools chat can call; what is built into another API is not among them."""
    return [own(tool) for tool in tools if "_native" not in tool or "function" in tool or "custom" in tool]


def decode_reply(body: Mapping[str, Any], *, model: str | None = None) -> Reply:
    """A reply in core form.

    `model` is the name under which it was asked for: the reply often gives another name for the same model, and
    reasoning is kept by name.
    """
    body = own(an_object(body, "the reply"))
    if body.get("error") and not body.get("choices"):
        raise WireError(f"the reply is an error, not a completion: {error_text(body['error']) or repr(body['error'])}")
    choices = a_list(body.get("choices"), "choices")
    if not choices:
        raise WireError("the reply holds no choice")
    first = an_object(choices[0], "choices[0]")
    told, rest = reply_fields(body)
    message = _decode(first.get("message"), "choices[0].message", model or told.get("model"))
    shell = {key: value for key, value in first.items() if key != "message"}
    raw = {**rest, "choices": [shell, *choices[1:]], "_api": API}
    return Reply(message=message, stop=stop_of(first.get("finish_reason"), message), raw=raw, **told)


def encode_reply(reply: Reply) -> dict[str, Any]:
    """A completion. What was decoded from one comes back verbatim."""
    native = reply.raw.get("_api") == API
    raw: dict[str, Any] = own(reply.raw) if native else {"object": "chat.completion", "created": 0}
    shell, *others = raw.get("choices") or [{"index": 0}]
    message = encode_messages([reply.message if native else _for_client(reply.message)])[0]
    choice = {**shell, "message": message}
    if not native or stop_of(shell.get("finish_reason"), reply.message) != reply.stop:
        choice["finish_reason"] = _finish_reason(reply)
    body = {**raw, "choices": [choice, *others]}
    if reply.id or not native:
        body["id"] = reply.id
    if reply.model or not native:
        body["model"] = reply.model
    if reply.usage is not None:
        body["usage"] = reply.usage if native else usage_in_chat(reply.usage)
    return body


def reply_fields(body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a `Reply` has fields for, and the rest."""
    kinds = {"id": str, "model": str, "usage": dict}
    told = {key: body[key] for key, kind in kinds.items() if body.get(key) and isinstance(body[key], kind)}
    return told, {key: value for key, value in body.items() if key not in told}


def stop_of(finish_reason: Any, message: Message) -> str | None:
    """Our name of the reason; words of refusal tell more than the reason, which is then a plain `stop`."""
    if finish_reason is None:
        return None
    stop = _STOPS.get(str(finish_reason), "other")
    return "refusal" if stop == "stop" and message.get("refusal") else stop


def usage_in_chat(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Another API's usage in chat's words."""
    canonical = normalize_usage(usage)
    return {
        "prompt_tokens": canonical.prompt_tokens,
        "completion_tokens": canonical.output_tokens,
        "total_tokens": canonical.total_tokens,
        "prompt_tokens_details": {
            "cached_tokens": canonical.cache_read_tokens,
            "cache_write_tokens": canonical.cache_write_tokens,
        },
        "completion_tokens_details": {"reasoning_tokens": canonical.reasoning_tokens},
    }


def _for_client(message: Message) -> Message:
    """Another API's message as chat clients expect an answer: one text. They may show its reasoning; should it come
    back in a request, it is stripped there."""
    body = chat_form(plain(message))[0]
    content = body.get("content")
    return with_content(body, content_text(content)) if isinstance(content, list) else body


def _is_system_prompt(message: Any) -> bool:
    """Whether role and content are all it has, so that both alone restore it."""
    if not isinstance(message, Mapping) or message.keys() != {"role", "content"}:
        return False
    content = message["content"]
    if message["role"] not in SYSTEM_ROLES:
        return False
    return isinstance(content, str) or (isinstance(content, list) and chat_parts(content) == content)


def _decode(wire: Any, where: str, model: str | None) -> Message:
    body = cast("Message", own(an_object(wire, where)))
    a_text(body.get("role"), f"{where}.role")
    content, calls = body.get("content"), body.get("tool_calls")
    if content is not None and not isinstance(content, str | list):
        raise WireError(f"{where}.content must be a string, a list of parts or null, not {type(content).__name__}")
    if calls is not None:
        a_list(calls, f"{where}.tool_calls")
    if encode_messages([body]) != [body]:
        return with_native(body, API, body, model=model)
    if _without_reasoning(body) is not body:
        return with_native(body, API, None, model=model)
    return body


def _encode(message: Message, model: str | None) -> list[tuple[dict[str, Any], list[Part]]]:
    """The message on the wire, each with the media that must go into a message of the user."""
    body = plain(message)
    if "_native" in message and not keep_reasoning(message, API, model):
        body = _without_reasoning(body)
    value = native_value(message, API)
    if value is not None and value == plain(message):
        return [(cast("dict[str, Any]", body), [])]
    if not _NOT_HERE.isdisjoint(body):
        body = cast("Message", {key: part for key, part in body.items() if key not in _NOT_HERE})
    return [_sendable(form) for form in chat_form(body)]


def _sendable(message: Message) -> tuple[dict[str, Any], list[Part]]:
    """A tool result with its words only, and its media, introduced by the call they answer; the rest as it is."""
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
    """The message without reasoning, also what Gemini signs its calls with; itself where there is none."""
    calls = tool_calls_of(message)
    signed = any("extra_content" in call for call in calls if isinstance(call, dict))
    if not signed and REASONING_FIELDS.isdisjoint(message):
        return message
    fields = {key: value for key, value in message.items() if key not in REASONING_FIELDS}
    return cast("Message", {**fields, "tool_calls": [_unsigned(call) for call in calls]} if signed else fields)


def _unsigned(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    return {key: value for key, value in call.items() if key != "extra_content"}


def _finish_reason(reply: Reply) -> str | None:
    """A refusal without words of its own is to a chat client content that was filtered."""
    if reply.stop == "refusal" and not reply.message.get("refusal"):
        return "content_filter"
    return None if reply.stop is None else reply.stop if reply.stop in _STOPS else "stop"
