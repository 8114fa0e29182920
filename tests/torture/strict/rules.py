"""The rules of the four protocols, as their public references state them.

Each `check_…` function returns the violations of one request body. Nothing here imports
Everthread: a rule that both sides misread would otherwise never show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.torture.strict.signatures import call_text, is_signed

Body = Mapping[str, Any]

MAX_CACHE_MARKS = 4


def check_anthropic(body: Body) -> list[str]:
    """Return the violations of a request to `/v1/messages`."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return ["messages: at least one message is required"]
    found = [*_unknown(body, ANTHROPIC_FIELDS, "body")]
    found += _anthropic_messages(messages)
    found += _anthropic_pairing(messages)
    found += _cache_marks(body)
    found += _first_thinking(body, messages)
    return found


def _anthropic_messages(messages: Sequence[Any]) -> Iterator[str]:
    if messages[0].get("role") != "user":
        yield "messages.0: the first message must have the role user"
    for at, message in enumerate(messages):
        known = {"role", "content"}
        if message.get("role") == "system":
            known.add("output_config")  # Claude Code 2.1.326
        yield from _unknown(message, known, f"messages.{at}")
        if message.get("role") not in ("user", "assistant", "system"):
            yield f"messages.{at}: unknown role {message.get('role')!r}"
        content = message.get("content")
        if isinstance(content, str):
            if not content.strip():
                yield f"messages.{at}: text must be non-empty"
            continue
        if not content:
            yield f"messages.{at}: content must be non-empty"
        for index, block in enumerate(content or ()):
            yield from _anthropic_block(block, f"messages.{at}.content.{index}")


def _anthropic_block(block: Body, where: str) -> Iterator[str]:
    kind = block.get("type")
    known = ANTHROPIC_BLOCKS.get(str(kind))
    if known is None:
        yield f"{where}: unknown block type {kind!r}"
        return
    yield from _unknown(block, known, where)
    if kind == "text" and not str(block.get("text") or "").strip():
        yield f"{where}: text must be non-empty"
    if kind == "thinking" and not is_signed(block["thinking"], block["signature"]):
        yield f"{where}: invalid signature in thinking block"
    if kind == "tool_use" and not isinstance(block.get("input"), dict):
        yield f"{where}: input must be an object"
    inner = block.get("content")
    if kind == "tool_result" and isinstance(inner, list):
        for index, part in enumerate(inner):
            yield from _anthropic_block(part, f"{where}.content.{index}")


def _anthropic_pairing(messages: Sequence[Any]) -> Iterator[str]:
    """Check that the next message begins with a result for each call, and no other."""
    seen: set[str] = set()
    waiting: list[str] = []
    for at, message in enumerate(messages):
        blocks = message["content"] if isinstance(message["content"], list) else []
        results = [b["tool_use_id"] for b in blocks if b.get("type") == "tool_result"]
        if message["role"] == "user" or waiting:
            if sorted(results) != sorted(waiting):
                yield f"messages.{at}: tool_result {results} for tool_use {waiting}"
            leading = [b.get("type") for b in blocks[: len(results)]]
            if any(kind != "tool_result" for kind in leading):
                yield f"messages.{at}: tool_result blocks must come first"
            waiting = []
        if message["role"] == "assistant":
            waiting = [b["id"] for b in blocks if b.get("type") == "tool_use"]
            for call in waiting:
                if call in seen:
                    yield f"messages.{at}: tool_use id {call} is not unique"
                seen.add(call)
    if waiting:
        yield f"the last message has tool_use {waiting} without tool_result"


def _first_thinking(body: Body, messages: Sequence[Any]) -> Iterator[str]:
    """Check that a turn with calls begins with thinking if the first one in it does."""
    thinking = body.get("thinking")
    if not isinstance(thinking, dict) or thinking.get("type") == "disabled":
        return
    turn: list[Any] = []
    for message in messages:
        blocks = message["content"] if isinstance(message["content"], list) else []
        is_result = any(b.get("type") == "tool_result" for b in blocks)
        if message["role"] == "user" and not is_result:
            turn = []
        elif message["role"] == "assistant":
            turn.append(blocks)
    kinds = [blocks[0].get("type") for blocks in turn if blocks]
    if any(kind == "tool_use" for kind in kinds) and thinking["type"] == "enabled":
        yield f"the last turn must begin with thinking blocks, but has {kinds}"


def _cache_marks(body: Body) -> Iterator[str]:
    system = body.get("system")
    places = [
        *((f"tools.{at}", tool) for at, tool in enumerate(body.get("tools") or ())),
        *_blocks_of(system, "system"),
    ]
    for at, message in enumerate(body["messages"]):
        places += _blocks_of(message["content"], f"messages.{at}")
    marks = [
        (where, block["cache_control"])
        for where, block in places
        if block.get("cache_control") is not None
    ]
    marks += [("body", body["cache_control"])] if body.get("cache_control") else []
    if len(marks) > MAX_CACHE_MARKS:
        yield f"{len(marks)} blocks with cache_control, at most {MAX_CACHE_MARKS}"
    short = ""
    for where, mark in marks:
        yield from _unknown(mark, {"type", "ttl", "scope"}, f"{where}.cache_control")
        if mark.get("type") != "ephemeral":
            yield f"{where}: cache_control type {mark.get('type')!r}"
        if mark.get("ttl", "5m") not in ("5m", "1h"):
            yield f"{where}: cache_control ttl {mark['ttl']!r}"
        if mark.get("ttl", "5m") == "5m":
            short = short or where
        elif short:
            yield f"{where}: a ttl of 1h must not come after a ttl of 5m ({short})"
    for where, block in places:
        is_text = block.get("type") == "text"
        is_empty = is_text and not str(block.get("text") or "").strip()
        is_thinking = str(block.get("type")).endswith("thinking")
        if block.get("cache_control") and (is_empty or is_thinking):
            yield f"{where}: cache_control cannot be set here"


def _blocks_of(content: Any, where: str) -> list[tuple[str, Body]]:
    found: list[tuple[str, Body]] = []
    for at, block in enumerate(content if isinstance(content, list) else ()):
        place = f"{where}.{at}"
        found.append((place, block))
        if block.get("type") == "tool_result":
            found += _blocks_of(block.get("content"), place)
    return found


def check_chat(body: Body) -> list[str]:
    """Return the violations of a request to `/v1/chat/completions`."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return ["messages: at least one message is required"]
    found = [*_unknown(body, CHAT_FIELDS, "body")]
    waiting: list[str] = []
    seen: set[str] = set()
    for at, message in enumerate(messages):
        found += _unknown(message, CHAT_MESSAGE_FIELDS, f"messages.{at}")
        found += _chat_message(message, f"messages.{at}")
        if message.get("role") == "tool":
            call = message.get("tool_call_id")
            if call not in waiting:
                found.append(f"messages.{at}: result {call} follows no such call")
            waiting = [other for other in waiting if other != call]
            continue
        if waiting:
            found.append(f"messages.{at}: calls {waiting} have no results before it")
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
        found += [f"messages.{at}: id {one} is not unique" for one in waiting if one in seen]
        seen.update(waiting)
    if waiting:
        found.append(f"calls {waiting} at the end have no results")
    return found


def _chat_message(message: Body, where: str) -> Iterator[str]:
    role = message.get("role")
    content = message.get("content")
    if role not in ("system", "developer", "user", "assistant", "tool"):
        yield f"{where}: unknown role {role!r}"
    if role == "assistant":
        if not content and not message.get("tool_calls"):
            yield f"{where}: an assistant message needs content or tool_calls"
    elif content is None or content == []:
        yield f"{where}: content is required"
    for index, part in enumerate(content if isinstance(content, list) else ()):
        known = CHAT_PARTS.get(str(part.get("type")))
        place = f"{where}.content.{index}"
        if known is None:
            yield f"{place}: unknown part type {part.get('type')!r}"
        else:
            yield from _unknown(part, known, place)
    for call in message.get("tool_calls") or ():
        yield from _unknown(call, {"id", "type", "function", "index", "extra_content"}, where)
        if not isinstance(call["function"].get("arguments"), str):
            yield f"{where}: arguments must be a string"


def check_responses(body: Body) -> list[str]:
    """Return the violations of a request to `/v1/responses`."""
    items = body.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        return ["input: at least one item is required"]
    found = [*_unknown(body, RESPONSES_FIELDS, "body")]
    calls: dict[str, int] = {}
    answered: set[str] = set()
    for at, item in enumerate(items):
        kind = str(item.get("type", "message"))
        where = f"input.{at}"
        known = RESPONSES_ITEMS.get(kind)
        if known is None:
            found.append(f"{where}: unknown item type {kind!r}")
            continue
        found += _unknown(item, known, where)
        if kind.endswith("_call") and "call_id" in item:
            if item["call_id"] in calls:
                found.append(f"{where}: call_id {item['call_id']} is not unique")
            calls[item["call_id"]] = at
        elif kind.endswith("_call_output"):
            if item["call_id"] not in calls:
                found.append(f"{where}: no tool call for output {item['call_id']}")
            answered.add(item["call_id"])
        elif kind == "reasoning":
            found += _reasoning(items, at)
        elif kind == "message":
            found += _response_message(item, where)
    open_calls = sorted(set(calls) - answered)
    found += [f"no tool output for call {call}" for call in open_calls]
    return found


def _reasoning(items: Sequence[Any], at: int) -> Iterator[str]:
    item = items[at]
    text, _, signature = str(item.get("encrypted_content") or "").partition(".")
    if text and not is_signed(text, signature):
        yield f"input.{at}: encrypted content could not be verified"
    following = [other.get("type", "message") for other in items[at + 1 :]]
    if not following or following[0].endswith("_output"):
        yield f"input.{at}: reasoning without its required following item"


def _response_message(item: Body, where: str) -> Iterator[str]:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        yield f"{where}: unknown role {role!r}"
    content = item.get("content")
    if not content:
        yield f"{where}: content is required"
    for index, part in enumerate(content if isinstance(content, list) else ()):
        kind = str(part.get("type"))
        known = RESPONSES_PARTS.get(kind)
        place = f"{where}.content.{index}"
        if known is None:
            yield f"{place}: unknown part type {kind!r}"
            continue
        yield from _unknown(part, known, place)
        is_output = kind in ("output_text", "refusal")
        if is_output != (role == "assistant"):
            yield f"{place}: {kind} in a message of the {role}"


def check_gemini(body: Body) -> list[str]:
    """Return the violations of a request to `:generateContent`."""
    contents = body.get("contents")
    if not isinstance(contents, list) or not contents:
        return ["contents: at least one content is required"]
    found = [*_unknown(body, GEMINI_FIELDS, "body")]
    calls: list[str] = []
    for at, content in enumerate(contents):
        where = f"contents.{at}"
        found += _unknown(content, {"role", "parts"}, where)
        if content.get("role") not in ("user", "model", "function", None):
            found.append(f"{where}: unknown role {content.get('role')!r}")
        parts = content.get("parts") or ()
        if not parts:
            found.append(f"{where}: parts must be non-empty")
        for part in parts:
            found += _gemini_part(part, where)
        names = [part["functionResponse"]["name"] for part in parts if "functionResponse" in part]
        if (names or calls) and sorted(names) != sorted(calls):
            found.append(f"{where}: responses {names} for function calls {calls}")
        calls = [part["functionCall"]["name"] for part in parts if "functionCall" in part]
    if calls:
        found.append(f"function calls {calls} at the end have no responses")
    return found


def _gemini_part(part: Body, where: str) -> Iterator[str]:
    yield from _unknown(part, GEMINI_PARTS, where)
    signature = part.get("thoughtSignature")
    call = part.get("functionCall")
    if signature and call and not is_signed(call_text(call), signature):
        yield f"{where}: thought signature is not valid"


def _unknown(value: Body, known: set[str] | frozenset[str], where: str) -> Iterator[str]:
    extra = sorted(set(value) - set(known) - CLIENT_FIELDS)
    if extra:
        yield f"{where}: extra inputs are not permitted: {', '.join(extra)}"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


CLIENT_FIELDS = _names("internal_chat_message_metadata_passthrough")
"""Fields that a client sends by itself and no public reference has: Codex 0.169."""
ANTHROPIC_FIELDS = _names(
    "model messages max_tokens system tools tool_choice stream metadata stop_sequences "
    "temperature top_p top_k thinking service_tier container context_management "
    "mcp_servers output_config output_format inference_geo speed diagnostics "
    "cache_control fallbacks safeguards"
)
ANTHROPIC_BLOCKS = {
    "text": _names("type text citations cache_control"),
    "image": _names("type source cache_control"),
    "document": _names("type source title context citations cache_control"),
    "tool_use": _names("type id name input cache_control caller"),
    "tool_result": _names("type tool_use_id content is_error cache_control"),
    "tool_reference": _names("type tool_name cache_control"),
    "thinking": _names("type thinking signature"),
    "redacted_thinking": _names("type data"),
}
CHAT_FIELDS = _names(
    "model messages tools tool_choice stream stream_options max_tokens "
    "max_completion_tokens temperature top_p n stop presence_penalty frequency_penalty "
    "logit_bias user response_format seed parallel_tool_calls reasoning_effort store "
    "metadata service_tier verbosity prompt_cache_key prompt_cache_retention "
    "prompt_cache_options safety_identifier logprobs top_logprobs modalities prediction"
)
CHAT_MESSAGE_FIELDS = _names(
    "role content name tool_calls tool_call_id refusal audio reasoning_content"
)
CHAT_PARTS = {
    "text": _names("type text cache_control prompt_cache_breakpoint"),
    "image_url": _names("type image_url prompt_cache_breakpoint"),
    "input_audio": _names("type input_audio prompt_cache_breakpoint"),
    "file": _names("type file prompt_cache_breakpoint"),
    "refusal": _names("type refusal"),
}
RESPONSES_FIELDS = _names(
    "model input instructions tools tool_choice parallel_tool_calls reasoning store "
    "stream stream_options include prompt_cache_key prompt_cache_retention "
    "prompt_cache_options text service_tier metadata client_metadata max_output_tokens "
    "temperature top_p top_logprobs truncation user safety_identifier "
    "previous_response_id conversation background max_tool_calls context_management "
    "prompt moderation"
)
_CALL = "type id call_id name status namespace caller"
RESPONSES_ITEMS = {
    "message": _names("type id role content status phase"),
    "function_call": _names(f"{_CALL} arguments"),
    "function_call_output": _names("type id call_id output status caller name"),
    "custom_tool_call": _names(f"{_CALL} input"),
    "custom_tool_call_output": _names("type id call_id output status caller name"),
    "reasoning": _names("type id summary content encrypted_content status"),
    "tool_search_call": _names(f"{_CALL} arguments execution"),
    "tool_search_output": _names("type id call_id tools status execution"),
    "additional_tools": _names("type id role tools"),
}
RESPONSES_PARTS = {
    "input_text": _names("type text prompt_cache_breakpoint"),
    "input_image": _names("type image_url file_id detail prompt_cache_breakpoint"),
    "input_file": _names("type file_id file_data filename file_url prompt_cache_breakpoint"),
    "output_text": _names("type text annotations logprobs"),
    "refusal": _names("type refusal"),
}
GEMINI_FIELDS = _names(
    "contents systemInstruction tools toolConfig safetySettings generationConfig "
    "cachedContent labels model store serviceTier"
)
GEMINI_PARTS = _names(
    "text thought thoughtSignature functionCall functionResponse inlineData fileData "
    "executableCode codeExecutionResult videoMetadata partMetadata"
)
CHECKS = {
    "anthropic": check_anthropic,
    "openai_chat": check_chat,
    "openai_responses": check_responses,
    "gemini": check_gemini,
}
