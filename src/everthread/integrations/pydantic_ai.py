"""pydantic-ai: `Agent(model, capabilities=[Everthread()])`.

`RunContext.messages` stays unchanged; only the messages of each request are changed to fit. The thread is the run's
`conversation_id`, which pydantic-ai keeps with the messages.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from everthread.core.messages import Message, calls_of, kind_of, parts_of, text_of
from everthread.core.recent_dict import RecentDict
from everthread.integrations.chat_forms import (
    make_chat_call,
    make_chat_tool,
    make_chat_usage,
)
from everthread.integrations.framework_package import guard_framework_imports
from everthread.integrations.model_calls import FittedCall, ModelCall
from everthread.integrations.threads import (
    RECALL_TOOL,
    FrameworkThreads,
    ThreadOptions,
)

with guard_framework_imports("pydantic-ai-slim", "2.66", "pydantic-ai", "prepare_model_request"):
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.exceptions import RetryModelRequest
    from pydantic_ai.messages import (
        BinaryContent,
        ImageUrl,
        InstructionPart,
        ModelRequest,
        ModelResponse,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.tools import RunContext, Tool
    from pydantic_ai.toolsets import FunctionToolset

__all__ = ["Everthread"]
logger = logging.getLogger("pydantic_ai.everthread")
MAX_RUNS = 1_000
"""Maximum number of runs in progress."""
_TEXT_KINDS = (
    "user-prompt",
    "system-prompt",
    "speech",
    "retry-prompt",
    "retry-feedback",
)
"""Kinds of request parts that are messages; a part of another kind belongs to the previous part."""


class Everthread(AbstractCapability):
    """Keeps an agent inside its model's window. `recall_tool`: whether the agent gets the tool `recall`.

    Events are logged by `pydantic_ai.everthread`, and a compaction is a span of the run's trace.
    """

    def __init__(self, *, recall_tool: bool = True, **options: Unpack[ThreadOptions]) -> None:
        super().__init__()
        self.threads = FrameworkThreads("pydantic-ai", logger, **options)
        self._offers_recall = recall_tool
        self._calls: RecentDict[str, tuple[FittedCall | None, bool]] = RecentDict(MAX_RUNS)
        """By run, the prepared call, and whether it is a retry after a refusal."""

    def get_toolset(self) -> Any:
        """Return the toolset with the tool `recall`, or None if it is not offered."""
        return FunctionToolset([self._make_recall_tool()]) if self._offers_recall else None

    async def prepare_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        """Compact the request if it exceeds the window."""
        run_id = ctx.run_id or ""
        fitted_call, is_retry = self._calls.pop(run_id, (None, False))
        if not is_retry:
            fitted_call = await self.threads.run_in_own_loop(
                self.threads.prepare(_read_call(ctx, request_context))
            )
        self._calls[run_id] = fitted_call, False
        if fitted_call is None:
            return request_context
        return _apply_call(ctx, request_context, fitted_call)

    async def after_model_request(
        self,
        ctx: RunContext[Any],
        *,
        request_context: Any,  # noqa: ARG002
        response: Any,
    ) -> Any:
        """Record the answer."""
        fitted_call, _ = self._calls.pop(ctx.run_id or "", (None, False))
        await self.threads.run_in_own_loop(
            self.threads.record(fitted_call, to_core(response), _read_usage(response.usage))
        )
        return response

    async def on_model_request_error(
        self,
        ctx: RunContext[Any],
        *,
        request_context: Any,  # noqa: ARG002
        error: Exception,
    ) -> Any:
        """After a refusal for size send a smaller request; raise every other error."""
        run_id = ctx.run_id or ""
        fitted_call, _ = self._calls.pop(run_id, (None, False))
        self._calls[run_id] = (
            await self.threads.run_in_own_loop(self.threads.recover(fitted_call, error)),
            True,
        )
        raise RetryModelRequest from error

    def close(self) -> None:
        """Close the store; all messages are stored already."""
        self.threads.close()

    def _make_recall_tool(self) -> Tool[Any]:
        async def look_up(ctx: RunContext[Any], **arguments: Any) -> str:
            return await self.threads.run_in_own_loop(
                self.threads.recall(ctx.conversation_id or "", arguments)
            )

        return Tool.from_schema(
            look_up,
            RECALL_TOOL["name"],
            RECALL_TOOL["description"],
            RECALL_TOOL["parameters"],
            takes_ctx=True,
        )


@dataclass(slots=True)
class _NativePart:
    """The part of pydantic-ai's history that one core message represents: a response, or parts of a request."""

    native_message: Any
    parts: list[Any] = field(default_factory=list)


def _read_call(ctx: RunContext[Any], request: Any) -> ModelCall:
    parameters = request.model_request_parameters
    model = request.model
    system_parts, native_parts = split_history(request.messages)
    system = [part.content for part in (*system_parts, *(parameters.instruction_parts or ()))]
    tools = [
        make_chat_tool(tool.name, tool.description, tool.parameters_json_schema)
        for tool in (*parameters.function_tools, *parameters.output_tools)
    ]
    settings = request.model_settings or {}
    return ModelCall(
        [to_core(item) for item in native_parts],
        native_parts,
        model=model.model_name,
        conversation_key=ctx.conversation_id or "",
        system="\n\n".join(system) or None,
        tools=tools,
        base_url=getattr(model, "base_url", None) or "",
        max_tokens=settings.get("max_tokens"),
    )


def _apply_call(ctx: RunContext[Any], request: Any, fitted_call: FittedCall) -> Any:
    """Return the request, changed to fit."""
    for event in fitted_call.events:
        if event.kind == "compaction_done":
            with ctx.tracer.start_as_current_span(
                "everthread.compaction",
                attributes={"everthread.event": json.dumps(event.as_dict())},
            ):
                pass
    changes: dict[str, Any] = {}
    if fitted_call.is_changed:
        names = {
            call.id: call.name
            for message in fitted_call.call.messages
            for call in calls_of(message)
        }
        items = fitted_call.messages_to_send(lambda message: from_core(message, names))
        changes["messages"] = join_history(split_history(request.messages)[0], items)
    if fitted_call.note:
        parameters = request.model_request_parameters
        parts = [
            *(parameters.instruction_parts or ()),
            InstructionPart(fitted_call.note, dynamic=True),
        ]
        changes["model_request_parameters"] = replace(parameters, instruction_parts=parts)
    if fitted_call.output_cap is not None:
        changes["model_settings"] = {
            **(request.model_settings or {}),
            "max_tokens": fitted_call.output_cap,
        }
    return replace(request, **changes) if changes else request


def _read_usage(usage: Any) -> dict[str, Any] | None:
    return make_chat_usage(
        usage.input_tokens,
        usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.details.get("reasoning_tokens", 0),
    )


def split_history(messages: Sequence[Any]) -> tuple[list[Any], list[_NativePart]]:
    """Split a history into its leading system prompt and the native part of each core message."""
    system_parts: list[Any] = []
    native_parts: list[_NativePart] = []
    for message in messages:
        if message.kind == "response":
            native_parts.append(_NativePart(message))
            continue
        for part in message.parts:
            if part.part_kind == "system-prompt" and not native_parts:
                system_parts.append(part)
            elif (
                _is_result(part)
                or part.part_kind in _TEXT_KINDS
                or not native_parts
                or native_parts[-1].native_message is not message
            ):
                native_parts.append(_NativePart(message, [part]))
            else:
                native_parts[-1].parts.append(part)
    return system_parts, native_parts


def join_history(system_parts: Sequence[Any], items: Sequence[_NativePart]) -> list[Any]:
    """Join native parts into messages; adjacent request parts become one request."""
    messages: list[Any] = []
    parts: list[Any] = list(system_parts)
    native_message: Any = None

    def finish_request() -> None:
        if parts:
            request = native_message or ModelRequest(parts=[])
            messages.append(replace(request, parts=list(parts)))
            parts.clear()

    for item in items:
        if isinstance(item.native_message, ModelResponse):
            finish_request()
            messages.append(item.native_message)
            native_message = None
        else:
            parts += item.parts
            native_message = item.native_message or native_message
    finish_request()
    return messages


def to_core(item: Any) -> Message:
    """Convert a response, or parts of a request, to a chat message, without its reasoning."""
    response = item.native_message if isinstance(item, _NativePart) else item
    if isinstance(response, ModelResponse):
        text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
        calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
        message: Message = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = [
                make_chat_call(part.tool_call_id, part.tool_name, part.args_as_json_str())
                for part in calls
            ]
        return message
    part = item.parts[0]
    if _is_result(part):
        has_text = hasattr(part, "model_response_str")
        text = part.model_response_str() if has_text else part.model_response()
        return {
            "role": "tool",
            "tool_call_id": part.tool_call_id,
            "name": part.tool_name or "",
            "content": text,
        }
    return {"role": "user", "content": _read_content(part)}


def from_core(message: Message, names: dict[str, str] | None = None) -> _NativePart:
    """Return a chat message as a response or as a part of a request. `names`: tool names by call id."""
    if message["role"] == "assistant":
        text = text_of(message)
        parts: list[Any] = [TextPart(text)] if text else []
        parts += (
            ToolCallPart(call.name, call.arguments or "{}", call.id) for call in calls_of(message)
        )
        return _NativePart(ModelResponse(parts=parts))
    if message["role"] == "tool":
        call_id = message.get("tool_call_id", "")
        name = message.get("name") or (names or {}).get(call_id, "")
        return _NativePart(None, [ToolReturnPart(name, text_of(message), call_id)])
    content: list[Any] = []
    for part in parts_of(message):
        if kind_of(part) == "image_url":
            content.append(ImageUrl(part["image_url"]["url"]))
        else:
            content.append(str(part.get("text", "")))
    return _NativePart(None, [UserPromptPart(content[0] if len(content) == 1 else content)])


def _is_result(part: Any) -> bool:
    answers_call = (
        part.part_kind.startswith("retry") and getattr(part, "tool_name", None) is not None
    )
    return answers_call or (hasattr(part, "model_response_str") and hasattr(part, "tool_call_id"))


def _read_content(part: Any) -> Any:
    """Return the content of a request part."""
    content = getattr(part, "content", "")
    if isinstance(content, str):
        return content
    if not part.part_kind.startswith("user"):
        return part.model_response() if hasattr(part, "model_response") else f"[{part.part_kind}]"
    return [_read_content_part(item) for item in content]


def _read_content_part(item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    if isinstance(item, ImageUrl):
        return {"type": "image_url", "image_url": {"url": item.url}}
    if isinstance(item, BinaryContent) and item.is_image:
        return {"type": "image_url", "image_url": {"url": item.data_uri}}
    text = getattr(item, "content", None)
    return {
        "type": "text",
        "text": text if isinstance(text, str) else f"[{getattr(item, 'kind', 'attachment')}]",
    }
