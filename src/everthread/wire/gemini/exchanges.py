"""Gemini's whole requests, replies and streams <-> core.

The model of a request is in its path, not in its body; here it is the field `model`, which the caller adds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from everthread.core.canonical_usage import normalize_usage
from everthread.core.messages import Part, as_text, calls_of, content_text, parts_of
from everthread.core.types import Reply, Request, StreamDelta, System
from everthread.errors import WireError
from everthread.wire.common import (
    error_text,
    make_error_delta,
    native_value,
    parse_event,
    require_list,
    require_object,
    require_text,
    without_private_fields,
)
from everthread.wire.gemini.contents import (
    API,
    Content,
    decode_content,
    decode_messages,
    encode_messages,
)
from everthread.wire.gemini.fields import find_field_name, get_field, get_object_field
from everthread.wire.gemini.tool_codec import decode_tools, encode_tools
from everthread.wire.sse import SseEvent


def decode_request(body: Mapping[str, Any]) -> Request:
    """Return a request in core form. A field that the core form cannot restore verbatim stays in `params` too."""
    params = dict(without_private_fields(require_object(body, "the request")))
    model = require_text(params.pop("model", None), "model")
    messages = decode_messages(params.pop("contents", None), model=model)
    system_name = find_field_name(params, "systemInstruction")
    system = _decode_system(params.get(system_name))
    if _encode_system(system) == params.get(system_name):
        params.pop(system_name, None)
    tools = decode_tools(params.get("tools") or [])
    if tools and encode_tools(tools) == params["tools"]:
        del params["tools"]
    return Request(model, messages, system, tools, params)


def encode_request(request: Request) -> dict[str, Any]:
    """Return the body to send, with the model in it. OpenAI's names of common settings are translated."""
    params = _translate_settings(without_private_fields(request.params))
    system_name = find_field_name(params, "systemInstruction")
    if _decode_system(params.get(system_name)) != request.system:
        params.pop(system_name, None)
    if system_name not in params and request.system is not None:
        params["systemInstruction"] = _encode_system(request.system)
    if decode_tools(params.get("tools") or []) != request.tools:
        params.pop("tools", None)
    if "tools" not in params and (tools := encode_tools(request.tools)):
        params["tools"] = tools
    return {
        "model": request.model,
        **params,
        "contents": encode_messages(request.messages, model=request.model),
    }


def _decode_system(value: Any) -> System:
    if value is None:
        return None
    if isinstance(value, str):
        return value
    parts = require_list(
        require_object(value, "systemInstruction").get("parts") or [],
        "systemInstruction.parts",
    )
    texts = [
        as_text(require_object(part, "systemInstruction.parts[]").get("text"))
        for part in parts
    ]
    return [{"type": "text", "text": text} for text in texts]


def _encode_system(system: System) -> dict[str, Any] | None:
    if system is None:
        return None
    return {
        "parts": [
            {"text": content_text([part])} for part in parts_of({"content": system})
        ]
    }


_GEMINI_SETTING_NAMES = {
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "max_output_tokens": "maxOutputTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "stop": "stopSequences",
}


def _translate_settings(params: Mapping[str, Any]) -> dict[str, Any]:
    """Move OpenAI's settings into `generationConfig`."""
    fields = {
        name: value
        for name, value in params.items()
        if name not in _GEMINI_SETTING_NAMES
    }
    settings = {
        gemini_name: params[openai_name]
        for openai_name, gemini_name in _GEMINI_SETTING_NAMES.items()
        if params.get(openai_name) is not None
    }
    if isinstance(settings.get("stopSequences"), str):
        settings["stopSequences"] = [settings["stopSequences"]]
    if not settings:
        return fields
    name = find_field_name(fields, "generationConfig")
    return {**fields, name: {**settings, **(get_object_field(fields, name) or {})}}


_STOP_BY_REASON = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"),
        "content_filter",
    ),
    **dict.fromkeys(
        ("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "LANGUAGE"), "content_filter"
    ),
}
_REASON_BY_STOP = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
    "refusal": "SAFETY",
}
_REPLY_FIELDS = {"responseId": str, "modelVersion": str, "usageMetadata": dict}


def decode_reply(
    body: Mapping[str, Any] | Sequence[Any], *, model: str | None = None
) -> Reply:
    """Return a reply in core form. A list is a whole stream that was sent as one JSON array.

    `model` is the requested name.
    """
    if isinstance(body, list):
        return _decode_chunks(body, model)
    body = without_private_fields(require_object(body, "the reply"))
    if body.get("error") and not body.get("candidates"):
        raise WireError(
            f"the reply is an error, not a response: {error_text(body['error']) or repr(body['error'])}"
        )
    candidate_list = body.get("candidates")
    candidates = (
        []
        if candidate_list is None
        else list(require_list(candidate_list, "candidates"))
    )
    candidate = require_object(candidates[0], "candidates[0]") if candidates else {}
    content = candidate.get("content")
    fields = {
        key: body[key]
        for key, kind in _REPLY_FIELDS.items()
        if isinstance(body.get(key), kind) and body[key]
    }
    model_content = {
        "role": "model",
        **require_object({} if content is None else content, "candidates[0].content"),
    }
    [message] = decode_content(
        model_content,
        "candidates[0].content",
        model=model or fields.get("modelVersion"),
    )
    candidate_fields = {
        key: value for key, value in candidate.items() if key != "content"
    }
    raw = {
        key: value
        for key, value in body.items()
        if key not in fields and key != "candidates"
    }
    private_fields = {
        "_api": API,
        "_content": content,
        "candidates": [candidate_fields, *candidates[1:]]
        if candidates
        else candidate_list,
    }
    return Reply(
        message=message,
        stop=_decode_stop(body, candidate, has_calls=bool(calls_of(message))),
        usage=fields.get("usageMetadata"),
        model=fields.get("modelVersion", ""),
        id=fields.get("responseId", ""),
        raw={**raw, **private_fields},
    )


def _decode_chunks(chunks: list[Any], model: str | None) -> Reply:
    decoder = GeminiStreamDecoder(model=model)
    for chunk in chunks:
        decoder.feed(require_object(chunk, "a chunk of the reply"))
    return decoder.reply()


def _decode_stop(
    body: Mapping[str, Any], candidate: Mapping[str, Any], *, has_calls: bool
) -> str | None:
    reason = get_field(candidate, "finishReason")
    if reason is None:
        return "content_filter" if get_object_field(body, "promptFeedback") else None
    stop = _STOP_BY_REASON.get(str(reason), "other")
    return "tool_calls" if stop == "stop" and has_calls else stop


def encode_reply(reply: Reply) -> dict[str, Any]:
    """Return a reply as a response. A decoded reply is returned verbatim."""
    is_native = reply.raw.get("_api") == API
    body = dict(without_private_fields(reply.raw)) if is_native else {}
    candidate_list = body.pop("candidates", [{"index": 0}])
    if candidate_list:
        body["candidates"] = [
            _encode_candidate(reply, candidate_list[0], is_native=is_native),
            *candidate_list[1:],
        ]
    elif candidate_list is not None:
        body["candidates"] = candidate_list
    usage = reply.usage if is_native else _encode_usage(reply.usage)
    fields = {
        "usageMetadata": usage,
        "modelVersion": reply.model,
        "responseId": reply.id,
    }
    return body | {name: value for name, value in fields.items() if value}


def _encode_candidate(
    reply: Reply, candidate_fields: Mapping[str, Any], *, is_native: bool
) -> dict[str, Any]:
    candidate = dict(candidate_fields)
    if is_native and native_value(reply.message, API) is not None:
        content = reply.raw.get("_content")
        if content is not None:
            candidate["content"] = content
    else:
        contents = [
            content
            for content in encode_messages([reply.message])
            if content["role"] == "model"
        ]
        candidate["content"] = (
            contents[0] if contents else {"role": "model", "parts": []}
        )
    has_calls = bool(calls_of(reply.message))
    if _decode_stop(reply.raw, candidate, has_calls=has_calls) != reply.stop:
        candidate.pop("finishReason", None)
        if reply.stop is not None:
            candidate["finishReason"] = _REASON_BY_STOP.get(reply.stop, "OTHER")
    return candidate


def _encode_usage(usage: Mapping[str, Any] | None) -> dict[str, int] | None:
    if usage is None:
        return None
    figures = normalize_usage(usage)
    return {
        "promptTokenCount": figures.prompt_tokens,
        "cachedContentTokenCount": figures.cache_read_tokens,
        "candidatesTokenCount": figures.output_tokens - figures.reasoning_tokens,
        "thoughtsTokenCount": figures.reasoning_tokens,
        "totalTokenCount": figures.total_tokens,
    }


class GeminiStreamDecoder:
    """Decode the chunks of one stream; `reply()` works at any time, also after the stream broke off."""

    def __init__(self, *, model: str | None = None) -> None:
        self._model = model
        self._body_fields: dict[str, Any] = {}
        self._candidate: dict[str, Any] = {}
        self._parts: list[Part] = []
        self._call_count = 0

    def feed(self, event: SseEvent | Mapping[str, Any]) -> list[StreamDelta]:
        chunk = parse_event(event)
        if chunk is None:
            return []
        if error := chunk.get("error"):
            return [make_error_delta(error)]
        self._body_fields |= {
            key: value for key, value in chunk.items() if key != "candidates"
        }
        deltas: list[StreamDelta] = []
        candidate_list = chunk.get("candidates")
        for candidate in candidate_list if isinstance(candidate_list, list) else []:
            if isinstance(candidate, Mapping) and candidate.get("index", 0) in (
                0,
                None,
            ):
                deltas += self._take_candidate(candidate)
        usage = get_object_field(chunk, "usageMetadata")
        if usage is not None:
            deltas.append(StreamDelta("usage", raw=dict(usage)))
        return deltas

    def reply(self) -> Reply:
        """Return the partial answer as a whole reply."""
        body = dict(self._body_fields)
        if self._candidate or self._parts:
            content = {"role": "model", "parts": merge_parts(self._parts)}
            body["candidates"] = [{**self._candidate, "content": content}]
        return decode_reply(body, model=self._model)

    def _take_candidate(self, candidate: Mapping[str, Any]) -> Iterator[StreamDelta]:
        self._candidate |= {
            key: value for key, value in candidate.items() if key != "content"
        }
        content = get_object_field(candidate, "content") or {}
        part_list = content.get("parts")
        for value in part_list if isinstance(part_list, list) else []:
            part = require_object(value, "candidates[0].content.parts[]")
            self._parts.append(dict(part))
            yield from self._make_part_deltas(part)
        reason = get_field(candidate, "finishReason")
        if reason is not None:
            stop = _decode_stop({}, candidate, has_calls=bool(self._call_count))
            yield StreamDelta("stop", text=stop or "", raw={"finishReason": reason})

    def _make_part_deltas(self, part: Mapping[str, Any]) -> Iterator[StreamDelta]:
        call = get_object_field(part, "functionCall")
        if call is not None:
            arguments = json.dumps(call.get("args") or {}, ensure_ascii=False)
            name = as_text(call.get("name"))
            yield StreamDelta(
                "call",
                index=self._call_count,
                id=as_text(call.get("id")),
                name=name,
                arguments=arguments,
            )
            self._call_count += 1
        elif as_text(part.get("text")):
            yield StreamDelta(
                "reasoning" if part.get("thought") else "text", text=part["text"]
            )


stream_decoder = GeminiStreamDecoder


def merge_parts(parts: Sequence[Part]) -> list[Part]:
    """Join neighbouring texts of one kind. A signed part is not joined, because its signature covers it alone."""
    merged: list[Part] = []
    for part in parts:
        previous = merged[-1] if merged else {}
        is_text = isinstance(part.get("text"), str) and part.keys() <= {
            "text",
            "thought",
        }
        if (
            is_text
            and previous.keys() == part.keys()
            and previous.get("thought") == part.get("thought")
        ):
            merged[-1] = {**previous, "text": previous["text"] + part["text"]}
        else:
            merged.append(part)
    return merged


def encode_stream(reply: Reply) -> Iterator[SseEvent]:
    """Yield the events in which Gemini would have streamed the reply: one for each part, then the finish reason."""
    body = encode_reply(reply)
    candidates = body.pop("candidates", None)
    if not candidates:
        yield _make_event(
            body if candidates is None else {**body, "candidates": candidates}
        )
        return
    candidate_fields = {
        key: value
        for key, value in candidates[0].items()
        if key not in ("content", "finishReason")
    }
    content: Content = candidates[0].get("content") or {}
    id_fields: dict[str, Any] = {
        key: body[key] for key in ("modelVersion", "responseId") if key in body
    }
    for part in parts_of({"content": content.get("parts")}):
        yield _make_event(
            {
                "candidates": [
                    {**candidate_fields, "content": {"role": "model", "parts": [part]}}
                ],
                **id_fields,
            }
        )
    yield _make_event(
        {
            **body,
            "candidates": [
                {key: value for key, value in candidates[0].items() if key != "content"}
            ],
        }
    )


def _make_event(data: Mapping[str, Any]) -> SseEvent:
    return SseEvent(None, json.dumps(data, ensure_ascii=False))
