"""Refuse malformed and oversized requests, as a provider does before it reads the prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

from everthread.core.messages import (
    IMAGE_BLOCK_KINDS,
    REASONING_BLOCK_KINDS,
    RESULT_BLOCK_KINDS,
    kind_of,
    parts_of,
    results_of,
)
from everthread.core.types import Api, ModelRequest
from everthread.core.validation import Problem, validate_messages
from everthread.lab.provider.cache import MAX_MARKS
from everthread.lab.provider.faults import Refusal, make_overflow_refusal, make_refusal
from everthread.lab.provider.gemini_checks import find_gemini_problems
from everthread.lab.provider.prompt_blocks import Block
from everthread.lab.provider.served_models import ServedModel
from everthread.lab.provider.signatures import (
    COMPACTION_TRIGGER,
    is_forged,
    is_own_compaction,
)


def refuse_unknown_model(api: Api, name: str) -> Refusal:
    if api == "anthropic":
        return make_refusal(api, 404, f"model: {name}")
    if api == "gemini":
        return make_refusal(api, 404, f"models/{name} is not found for API version v1beta.")
    error_text = f"The model `{name}` does not exist or you do not have access to it."
    return make_refusal(api, 404, error_text, kind="invalid_request_error", code="model_not_found")


def refuse_compaction_trigger(api: Api) -> Refusal:
    """Return the error of a provider that does not support compactions."""
    error_text = "Invalid value: 'compaction_trigger'. Supported values are: 'message', 'reasoning', 'function_call', "
    return make_refusal(
        api,
        400,
        error_text + "'function_call_output', and 'item_reference'.",
        code="invalid_value",
    )


def refuse_unknown_path(api: Api, path: str) -> Refusal:
    return make_refusal(api, 404, f"Invalid URL (POST {path})")


def check_request(
    api: Api,
    request: ModelRequest,
    body: Mapping[str, Any],
    reasoning_id_by_item_id: Mapping[str, str],
    blocks: Sequence[Block] | None,
) -> Refusal | None:
    """Return the first problem of the request's form as an error of the provider, or None if there is none.

    `reasoning_id_by_item_id` names the reasoning before each item of an earlier response. `blocks` are those of a
    request to Claude, whose cache marks are checked, or None for other requests.
    """
    marks = () if blocks is None else _find_mark_problems(blocks, body)
    problem = next(chain(_find_problems(api, request, body, reasoning_id_by_item_id), marks), None)
    return None if problem is None else make_refusal(api, 400, problem)


def find_overflow(
    api: Api, model: ServedModel, prompt_tokens: int, output_cap: int | None
) -> Refusal | None:
    """Return the error if the prompt and the requested output exceed what the model takes."""
    figures = {
        "model": model.name,
        "limit": model.window,
        "input": prompt_tokens,
        "output": output_cap or 0,
        "total": prompt_tokens + (output_cap or 0),
        "over": prompt_tokens - model.window,
        "cap": model.max_output,
        "above_cap": (model.max_output or 0) + 1,
    }
    dialect = model.choose_dialect(api)
    if prompt_tokens > model.window:
        return make_overflow_refusal(dialect, "prompt_too_long", figures)
    is_capped = (
        output_cap is not None and model.max_output is not None and output_cap > model.max_output
    )
    if is_capped and (cap_error := make_overflow_refusal(dialect, "cap_too_large", figures)):
        return cap_error
    if output_cap is not None and prompt_tokens + output_cap > model.window:
        return make_overflow_refusal(dialect, "output_too_large", figures)
    return None


def find_image_excess(api: Api, model: ServedModel, request: ModelRequest) -> Refusal | None:
    """Return a refusal if the request has more images and documents than the model accepts, or else None."""
    if model.max_images is None:
        return None
    attachment_count = 0
    for message in request.messages:
        attachment_count += _count_attachments(parts_of(message))
        for result in results_of(message):
            if isinstance(result.content, list):
                attachment_count += _count_attachments(result.content)
    if attachment_count <= model.max_images:
        return None
    return make_refusal(
        api,
        400,
        f"messages: too many images and documents: {attachment_count} > {model.max_images}",
    )


def _count_attachments(parts: Iterable[Any]) -> int:
    return sum(kind_of(part) in _ATTACHMENT_KINDS for part in parts)


_ATTACHMENT_KINDS = IMAGE_BLOCK_KINDS | {"document", "file", "input_file"}


def _find_problems(
    api: Api,
    request: ModelRequest,
    body: Mapping[str, Any],
    reasoning_id_by_item_id: Mapping[str, str],
) -> Iterator[str]:
    if api == "anthropic":
        if not isinstance(body.get("max_tokens"), int):
            yield "max_tokens: Field required"
        if not body.get("messages"):
            yield "messages: at least one message is required"
        yield from _find_thinking_problems(body)
        yield from (
            _format_problem(api, problem)
            for problem in validate_messages(body["messages"], api="anthropic")
            # Claude Code 2.1.325 sends a system message without content after `/compact`.
            if problem.rule != "empty-content"
            or body["messages"][problem.index].get("role") != "system"
        )
        yield from _find_forged_thoughts(body["messages"])
        yield from _find_missing_thoughts(body)
    elif api == "gemini":
        yield from find_gemini_problems(body)
    elif api == "openai_chat":
        if not body.get("messages"):
            yield "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array."
        yield from (
            _format_problem(api, problem) for problem in validate_messages(body["messages"])
        )
    else:
        if not body.get("input"):
            yield "Missing required parameter: 'input'."
        yield from _find_compaction_problems(body["input"])
        if body.get("previous_response_id"):
            yield f"Previous response with id '{body['previous_response_id']}' not found."
        yield from (
            _format_problem(api, problem) for problem in validate_messages(request.messages)
        )
        yield from _find_reasoning_problems(body["input"], reasoning_id_by_item_id)


def _find_thinking_problems(body: Mapping[str, Any]) -> Iterator[str]:
    """Check that a thinking budget has its minimum, and that the answer has room beside it."""
    thinking = body.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    if kind_of(thinking) != "enabled":
        return
    if not isinstance(budget, int):
        yield "thinking.enabled.budget_tokens: Field required"
    elif budget < MIN_THINKING_TOKENS:
        yield f"thinking.enabled.budget_tokens: Input should be greater than or equal to {MIN_THINKING_TOKENS}"
    elif body["max_tokens"] <= budget:
        yield (
            "`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our documentation at "
            "https://docs.claude.com/en/docs/build-with-claude/extended-thinking#max-tokens-and-context-window-size"
        )


MIN_THINKING_TOKENS = 1_024


def _find_forged_thoughts(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a problem for each thinking block that this provider issued and the client changed."""
    for index, message in enumerate(messages):
        for part_index, part in enumerate(parts_of(message)):
            if is_forged(part):
                yield f"messages.{index}.content.{part_index}: Invalid `signature` in `thinking` block"


def _find_missing_thoughts(body: Mapping[str, Any]) -> Iterator[str]:
    """Check that, with thinking enabled, calls that are being answered come with their thinking."""
    messages = body["messages"]
    if (
        kind_of(body.get("thinking")) != "enabled"
        or kind_of(next(iter(parts_of(messages[-1])), None)) not in RESULT_BLOCK_KINDS
    ):
        return
    first_kinds = [
        (index, kind_of(parts_of(message)[0]))
        for index, message in enumerate(messages)
        if message["role"] == "assistant"
    ]
    if first_kinds and first_kinds[-1][1] not in REASONING_BLOCK_KINDS:
        index, kind = first_kinds[-1]
        yield (
            f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{kind}`. When "
            "`thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
            "lastmost set of `tool_use` and `tool_result` blocks)."
        )


def _find_compaction_problems(items: Any) -> Iterator[str]:
    """Check that a compaction item is unchanged, and that one is requested only at the end."""
    item_list: list[Any] = items if isinstance(items, list) else []
    for index, item in enumerate(item_list):
        if kind_of(item) == COMPACTION_TRIGGER and index < len(item_list) - 1:
            yield f"Invalid 'input[{index}]': 'compaction_trigger' must be the last item."
        if kind_of(item) == "compaction" and not is_own_compaction(item):
            yield f"The encrypted content of item '{item.get('id')}' could not be verified."


def _find_reasoning_problems(
    items: Any, reasoning_id_by_item_id: Mapping[str, str]
) -> Iterator[str]:
    """Check that reasoning and the item after it come together."""
    item_list: list[Mapping[str, Any]] = items if isinstance(items, list) else []
    ids = {str(item.get("id")) for item in item_list}
    for item, next_item in pairwise([*item_list, _NO_ITEM]):
        if kind_of(item) == "reasoning" and (next_item is _NO_ITEM or _is_input(next_item)):
            yield f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."
        reasoning_id = reasoning_id_by_item_id.get(str(item.get("id")))
        if reasoning_id and reasoning_id not in ids:
            yield (
                f"Item '{item['id']}' of type '{kind_of(item)}' was provided without its required 'reasoning' item: "
                f"'{reasoning_id}'."
            )


_NO_ITEM: Mapping[str, Any] = {}


def _is_input(item: Mapping[str, Any]) -> bool:
    return item.get("role", "assistant") != "assistant" or kind_of(item).endswith("_output")


_PROBLEM_TEXTS: dict[Api, dict[str, str]] = {
    "anthropic": {
        "missing-result": "messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        "{call}. Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
        "orphan-result": "messages.{index}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {call}. "
        "Each `tool_result` block must have a corresponding `tool_use` block in the previous message.",
        "empty-content": "messages.{index}: all messages must have non-empty content except for the optional final "
        "assistant message",
        "reused-call-id": "messages.{index}: `tool_use` ids must be unique",
        "duplicate-call": "messages.{index}: `tool_use` ids must be unique",
        "": "messages.{index}: {message}",
    },
    "openai_chat": {
        "missing-result": "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        "'tool_call_id'. The following tool_call_ids did not have response messages: {call}",
        "orphan-result": "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
        "'tool_calls'.",
        "empty-tool-calls": "Invalid 'messages[{index}].tool_calls': empty array. Expected at least one call.",
        "": "Invalid value for 'messages[{index}]': {message}.",
    },
    "openai_responses": {
        "missing-result": "No tool output found for function call {call}.",
        "orphan-result": "No tool call found for function call output with call_id {call}.",
        "": "Invalid 'input[{index}]': {message}.",
    },
}
"""The text of each protocol for a broken rule. Rules without a text of their own use the one with the empty name."""


def _format_problem(api: Api, problem: Problem) -> str:
    rule: str = problem.rule
    if rule in ("misplaced-result", "duplicate-result"):
        rule = "orphan-result"
    call_id = problem.message.partition("'")[2].rpartition("'")[0]
    template = _PROBLEM_TEXTS[api].get(rule) or _PROBLEM_TEXTS[api][""]
    return template.format(index=problem.index, call=call_id, message=problem.message)


def _find_mark_problems(blocks: Sequence[Block], body: Mapping[str, Any]) -> Iterator[str]:
    mark_count = sum(block.marks for block in blocks)
    if mark_count > MAX_MARKS:
        yield f"A maximum of {MAX_MARKS} blocks with cache_control may be provided. Found {mark_count}."
    has_short_mark = False
    for block in blocks:
        if block.mark and block.kind in REASONING_BLOCK_KINDS:
            yield f"{block.path}.{block.kind}.cache_control: Extra inputs are not permitted"
        if block.mark and block.is_blank:
            yield f"{block.path}.text: cache_control cannot be set for empty text blocks"
        if block.mark == "1h" and has_short_mark:
            yield (
                f"{block.path}.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' "
                "cache_control block. Note that blocks are processed in the following order: `tools`, `system`, "
                "`messages`."
            )
        has_short_mark = has_short_mark or block.mark == "5m"
    automatic_mark = body.get("cache_control")
    last_mark = blocks[-1].mark if blocks else None
    if (
        isinstance(automatic_mark, Mapping)
        and last_mark
        and last_mark != automatic_mark.get("ttl", "5m")
    ):
        yield f"cache_control.ttl: the last block is marked with ttl='{last_mark}' already"
