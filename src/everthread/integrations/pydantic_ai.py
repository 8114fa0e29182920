"""pydantic-ai: `Agent(model, capabilities=[Everthread()])`.

`RunContext.messages` is not changed; only the messages of each request are changed to fit. The thread is the run's
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
from everthread.integrations.chat_forms import chat_call, chat_tool, chat_usage
from everthread.integrations.framework_package import framework
from everthread.integrations.model_calls import FittedCall, ModelCall
from everthread.integrations.threads import (
    RECALL,
    FrameworkThreads,
    ThreadOptions,
)

with framework("pydantic-ai-slim", "2.66", "pydantic-ai", "prepare_model_request"):
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
"""Most runs in progress."""
_TEXT_KINDS = (
    "user-prompt",
    "system-prompt",
    "speech",
    "retry-prompt",
    "retry-feedback",
)
"""Kinds of request parts that are messages; parts of other kinds stay with the part before them."""


class Everthread(AbstractCapability):
    """Keeps an agent inside its model's window. `recall_tool`: whether the agent gets the tool `recall`.

    Events are logged by `pydantic_ai.everthread`, and a compaction is a span of the run's trace.
    """

    def __init__(
        self, *, recall_tool: bool = True, **options: Unpack[ThreadOptions]
    ) -> None:
        super().__init__()
        self.threads = FrameworkThreads("pydantic-ai", logger, **options)
        self._offers_recall = recall_tool
        self._calls: RecentDict[str, tuple[FittedCall | None, bool]] = RecentDict(
            MAX_RUNS
        )
        """For each run: the prepared call, and whether it is a retry after a refusal."""

    def get_toolset(self) -> Any:
        """The tool `recall`."""
        return FunctionToolset([self._recall_tool()]) if self._offers_recall else None

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: Any
    ) -> Any:
        """Make the request fit."""
        run = ctx.run_id or ""
        fitted, is_retry = self._calls.pop(run, (None, False))
        if not is_retry:
            fitted = await self.threads.arun(
                self.threads.prepare(_model_call(ctx, request_context))
            )
        self._calls[run] = fitted, False
        return (
            request_context
            if fitted is None
            else _apply_call(ctx, request_context, fitted)
        )

    async def after_model_request(
        self,
        ctx: RunContext[Any],
        *,
        request_context: Any,  # noqa: ARG002
        response: Any,
    ) -> Any:
        """Record the answer."""
        fitted, _ = self._calls.pop(ctx.run_id or "", (None, False))
        await self.threads.arun(
            self.threads.record(fitted, to_core(response), _read_usage(response.usage))
        )
        return response

    async def on_model_request_error(
        self,
        ctx: RunContext[Any],
        *,
        request_context: Any,  # noqa: ARG002
        error: Exception,
    ) -> Any:
        """After a refusal for size ask again with less; every other error is raised."""
        run = ctx.run_id or ""
        fitted, _ = self._calls.pop(run, (None, False))
        self._calls[run] = (
            await self.threads.arun(self.threads.recover(fitted, error)),
            True,
        )
        raise RetryModelRequest from error

    def close(self) -> None:
        """Close the store. Everything is stored already."""
        self.threads.close()

    def _recall_tool(self) -> Tool[Any]:
        async def look_up(ctx: RunContext[Any], **arguments: Any) -> str:
            return await self.threads.arun(
                self.threads.recall(ctx.conversation_id or "", arguments)
            )

        return Tool.from_schema(
            look_up,
            RECALL["name"],
            RECALL["description"],
            RECALL["parameters"],
            takes_ctx=True,
        )


# A model request


@dataclass(slots=True)
class _NativePart:
    """The part of pydantic-ai's history that one core message represents: a response, or parts of a request."""

    holder: Any
    parts: list[Any] = field(default_factory=list)


def _model_call(ctx: RunContext[Any], request: Any) -> ModelCall:
    parameters = request.model_request_parameters
    model = request.model
    lead, own = split(request.messages)
    system = [part.content for part in (*lead, *(parameters.instruction_parts or ()))]
    tools = [
        chat_tool(tool.name, tool.description, tool.parameters_json_schema)
        for tool in (*parameters.function_tools, *parameters.output_tools)
    ]
    settings = request.model_settings or {}
    return ModelCall(
        [to_core(item) for item in own],
        own,
        model=model.model_name,
        key=ctx.conversation_id or "",
        system="\n\n".join(system) or None,
        tools=tools,
        base_url=getattr(model, "base_url", None) or "",
        max_tokens=settings.get("max_tokens"),
    )


def _apply_call(ctx: RunContext[Any], request: Any, fitted: FittedCall) -> Any:
    """The request changed to fit."""
    for event in fitted.events:
        if event.kind == "compaction_done":
            with ctx.tracer.start_as_current_span(
                "everthread.compaction",
                attributes={"everthread.event": json.dumps(event.as_dict())},
            ):
                pass
    changes: dict[str, Any] = {}
    if fitted.is_changed:
        names = {
            call.id: call.name
            for message in fitted.call.messages
            for call in calls_of(message)
        }
        view = fitted.send(lambda message: from_core(message, names))
        changes["messages"] = join(split(request.messages)[0], view)
    if fitted.note:
        parameters = request.model_request_parameters
        parts = [
            *(parameters.instruction_parts or ()),
            InstructionPart(fitted.note, dynamic=True),
        ]
        changes["model_request_parameters"] = replace(
            parameters, instruction_parts=parts
        )
    if fitted.cap is not None:
        changes["model_settings"] = {
            **(request.model_settings or {}),
            "max_tokens": fitted.cap,
        }
    return replace(request, **changes) if changes else request


def _read_usage(used: Any) -> dict[str, Any] | None:
    return chat_usage(
        used.input_tokens,
        used.output_tokens,
        cached=used.cache_read_tokens,
        written=used.cache_write_tokens,
        reasoning=used.details.get("reasoning_tokens", 0),
    )


# Messages


def split(messages: Sequence[Any]) -> tuple[list[Any], list[_NativePart]]:
    """Split a history into its leading system prompt and the native part of each core message."""
    lead: list[Any] = []
    own: list[_NativePart] = []
    for message in messages:
        if message.kind == "response":
            own.append(_NativePart(message))
            continue
        for part in message.parts:
            if part.part_kind == "system-prompt" and not own:
                lead.append(part)
            elif (
                _is_result(part)
                or part.part_kind in _TEXT_KINDS
                or not own
                or own[-1].holder is not message
            ):
                own.append(_NativePart(message, [part]))
            else:
                own[-1].parts.append(part)
    return lead, own


def join(lead: Sequence[Any], view: Sequence[_NativePart]) -> list[Any]:
    """Join native parts into messages: request parts that follow one another are one request."""
    messages: list[Any] = []
    parts: list[Any] = list(lead)
    holder: Any = None

    def finish() -> None:
        if parts:
            request = holder or ModelRequest(parts=[])
            messages.append(replace(request, parts=list(parts)))
            parts.clear()

    for item in view:
        if isinstance(item.holder, ModelResponse):
            finish()
            messages.append(item.holder)
            holder = None
        else:
            parts += item.parts
            holder = item.holder or holder
    finish()
    return messages


def to_core(item: Any) -> Message:
    """Convert a response, or parts of a request, to a chat message, without its reasoning."""
    response = item.holder if isinstance(item, _NativePart) else item
    if isinstance(response, ModelResponse):
        text = "".join(
            part.content for part in response.parts if isinstance(part, TextPart)
        )
        calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
        message: Message = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = [
                chat_call(part.tool_call_id, part.tool_name, part.args_as_json_str())
                for part in calls
            ]
        return message
    part = item.parts[0]
    if _is_result(part):
        text = (
            part.model_response_str()
            if hasattr(part, "model_response_str")
            else part.model_response()
        )
        return {
            "role": "tool",
            "tool_call_id": part.tool_call_id,
            "name": part.tool_name or "",
            "content": text,
        }
    return {"role": "user", "content": _content(part)}


def from_core(message: Message, names: dict[str, str] | None = None) -> _NativePart:
    """A chat message as a response, or as a part of a request. `names`: the tools of calls, by their ids."""
    if message["role"] == "assistant":
        text = text_of(message)
        parts: list[Any] = [TextPart(text)] if text else []
        parts += (
            ToolCallPart(call.name, call.arguments or "{}", call.id)
            for call in calls_of(message)
        )
        return _NativePart(ModelResponse(parts=parts))
    if message["role"] == "tool":
        call_id = message.get("tool_call_id", "")
        name = message.get("name") or (names or {}).get(call_id, "")
        return _NativePart(None, [ToolReturnPart(name, text_of(message), call_id)])
    content = [
        ImageUrl(part["image_url"]["url"])
        if kind_of(part) == "image_url"
        else str(part.get("text", ""))
        for part in parts_of(message)
    ]
    return _NativePart(
        None, [UserPromptPart(content[0] if len(content) == 1 else content)]
    )


def _is_result(part: Any) -> bool:
    answers = (
        part.part_kind.startswith("retry")
        and getattr(part, "tool_name", None) is not None
    )
    return answers or (
        hasattr(part, "model_response_str") and hasattr(part, "tool_call_id")
    )


def _content(part: Any) -> Any:
    """The content of a request part."""
    content = getattr(part, "content", "")
    if isinstance(content, str):
        return content
    if not part.part_kind.startswith("user"):
        return (
            part.model_response()
            if hasattr(part, "model_response")
            else f"[{part.part_kind}]"
        )
    return [_content_part(item) for item in content]


def _content_part(item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    if isinstance(item, ImageUrl):
        return {"type": "image_url", "image_url": {"url": item.url}}
    if isinstance(item, BinaryContent) and item.is_image:
        return {"type": "image_url", "image_url": {"url": item.data_uri}}
    text = getattr(item, "content", None)
    return {
        "type": "text",
        "text": text
        if isinstance(text, str)
        else f"[{getattr(item, 'kind', 'attachment')}]",
    }
