"""Google ADK: `App(name=…, root_agent=agent, plugins=[EverthreadPlugin()])`.

The session's events stay unchanged; only the contents of each model request are changed to fit. A thread belongs to
one session, which is identified by app, user and id.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
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

with guard_framework_imports("google-adk", "2.0", "google-adk", "on_model_error_callback"):
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.tools.base_tool import BaseTool
    from google.genai import types

__all__ = ["EverthreadPlugin"]
logger = logging.getLogger("google_adk.everthread")
MAX_OPEN_CALLS = 1_000
"""Maximum number of calls in progress."""


class EverthreadPlugin(BasePlugin):
    """Keeps agents inside their models' windows. `recall_tool`: whether they get the tool `recall`.

    Events are logged by `google_adk.everthread`.
    """

    def __init__(
        self,
        name: str = "everthread",
        *,
        recall_tool: bool = True,
        **options: Unpack[ThreadOptions],
    ) -> None:
        super().__init__(name=name)
        self.threads = FrameworkThreads("google-adk", logger, **options)
        self._recall = _RecallTool(self.threads) if recall_tool else None
        self._calls: RecentDict[tuple[str, str], FittedCall | None] = RecentDict(MAX_OPEN_CALLS)

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        """Compact the request if it exceeds the window."""
        if self._recall is not None and self._recall.name not in llm_request.tools_dict:
            llm_request.append_tools([self._recall])
        fitted_call = await self.threads.run_in_own_loop(
            self.threads.prepare(_read_call(callback_context, llm_request))
        )
        self._calls[_call_key(callback_context)] = fitted_call
        if fitted_call is not None:
            _apply_call(llm_request, fitted_call)

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> None:
        """Record a complete answer."""
        if llm_response.partial or llm_response.content is None:
            return
        fitted_call = self._calls.pop(_call_key(callback_context), None)
        if fitted_call is not None:
            message, _ = _read_answer(
                llm_response.content.parts or (), len(fitted_call.call.messages)
            )
            await self.threads.run_in_own_loop(
                self.threads.record(fitted_call, message, _read_usage(llm_response.usage_metadata))
            )

    async def on_model_error_callback(
        self, *, callback_context: Any, llm_request: Any, error: Exception
    ) -> Any:
        """After a refusal for size, send a smaller request; return None to leave the error unchanged."""
        fitted_call = self._calls.pop(_call_key(callback_context), None)
        model = getattr(callback_context.get_invocation_context().agent, "canonical_model", None)
        refusal = error
        while model is not None:
            try:
                fitted_call = await self.threads.run_in_own_loop(
                    self.threads.recover(fitted_call, refusal)
                )
            except Exception as failure:
                if failure is not refusal:
                    raise
                return None
            _apply_call(llm_request, fitted_call)
            try:
                responses = [
                    response
                    async for response in model.generate_content_async(llm_request, stream=False)
                ]
            except Exception as next_error:  # noqa: BLE001 - whatever a provider's client raises
                refusal = next_error
                continue
            self._calls[_call_key(callback_context)] = fitted_call
            return responses[-1] if responses else None
        return None

    async def close(self) -> None:
        """Close the store; all messages are stored already."""
        self.threads.close()


class _RecallTool(BaseTool):
    """The tool `recall`."""

    def __init__(self, threads: FrameworkThreads) -> None:
        super().__init__(name=RECALL_TOOL["name"], description=RECALL_TOOL["description"])
        self._threads = threads

    def _get_declaration(self) -> Any:
        return types.FunctionDeclaration(
            name=self.name,
            description=self.description,
            parameters_json_schema=RECALL_TOOL["parameters"],
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> Any:
        """Answer a call."""
        return await self._threads.run_in_own_loop(
            self._threads.recall(_session_key(tool_context), args)
        )


@dataclass(slots=True)
class _NativeParts:
    """The parts of ADK's contents that one core message represents."""

    role: str
    parts: list[Any] = field(default_factory=list)
    content: Any = None
    """The content that contains these parts."""


def _read_call(context: Any, request: Any) -> ModelCall:
    messages, native_parts = to_core(request.contents)
    config = request.config
    declarations = [
        item
        for tool in config.tools or ()
        for item in getattr(tool, "function_declarations", None) or ()
    ]
    tools = [
        make_chat_tool(item.name, item.description, _read_parameters(item)) for item in declarations
    ]
    system = config.system_instruction
    model = str(request.model or "").rpartition("/")[2]
    return ModelCall(
        messages,
        native_parts,
        model=model,
        conversation_key=_session_key(context),
        system=system if isinstance(system, str) else None,
        tools=tools,
        max_tokens=config.max_output_tokens,
    )


def _apply_call(request: Any, fitted_call: FittedCall) -> None:
    """Apply a prepared call to the request, which ADK made only for this call."""
    names = {
        call.id: call.name for message in fitted_call.call.messages for call in calls_of(message)
    }
    if fitted_call.is_changed:
        request.contents = join_contents(
            fitted_call.messages_to_send(lambda message: from_core(message, names))
        )
    system = request.config.system_instruction
    if fitted_call.note and isinstance(system, str) and fitted_call.note not in system:
        request.config.system_instruction = f"{system}\n\n{fitted_call.note}"
    if fitted_call.output_cap is not None:
        request.config.max_output_tokens = fitted_call.output_cap


def _session_key(context: Any) -> str:
    session = context.session
    return f"{session.app_name}/{session.user_id}/{session.id}"


def _call_key(context: Any) -> tuple[str, str]:
    return context.invocation_id, context.agent_name


def _read_parameters(declaration: Any) -> Any:
    if declaration.parameters_json_schema is not None:
        return declaration.parameters_json_schema
    schema = declaration.parameters
    return schema.model_dump(mode="json", exclude_none=True) if schema is not None else None


def _read_usage(usage: Any) -> dict[str, Any] | None:
    if usage is None:
        return None
    thought_tokens = usage.thoughts_token_count or 0
    output = (usage.candidates_token_count or 0) + thought_tokens
    return make_chat_usage(
        usage.prompt_token_count,
        output,
        cached_tokens=usage.cached_content_token_count,
        reasoning_tokens=thought_tokens,
    )


def to_core(contents: Sequence[Any]) -> tuple[list[Message], list[_NativeParts]]:
    """Return the contents as messages, and the native parts of each message. Generate ids for calls without one."""
    messages: list[Message] = []
    native_parts: list[_NativeParts] = []
    open_calls: list[tuple[str, str]] = []
    for content in contents:
        parts = list(content.parts or ())
        if content.role == "model":
            message, calls = _read_answer(parts, len(messages))
            open_calls = calls
            messages.append(message)
            native_parts.append(_NativeParts("model", parts))
            continue
        for part in parts:
            response = part.function_response
            if response is not None:
                messages.append(_read_result(response, open_calls))
                native_parts.append(_NativeParts("user", [part]))
            elif (
                native_parts
                and native_parts[-1].content is content
                and messages[-1]["role"] == "user"
            ):
                native_parts[-1].parts.append(part)
                messages[-1] = {
                    "role": "user",
                    "content": [*parts_of(messages[-1]), _read_content_part(part)],
                }
            else:
                native_parts.append(_NativeParts("user", [part], content))
                messages.append({"role": "user", "content": _read_content(part)})
    return messages, native_parts


def from_core(message: Message, names: dict[str, str] | None = None) -> _NativeParts:
    """Return a chat message as parts. `names`: function names by call id."""
    if message["role"] == "assistant":
        text = text_of(message)
        parts = [types.Part(text=text)] if text else []
        parts += (
            types.Part(
                function_call=types.FunctionCall(
                    id=_provider_call_id(call.id), name=call.name, args=call.parsed
                )
            )
            for call in calls_of(message)
        )
        return _NativeParts("model", parts)
    if message["role"] == "tool":
        call_id = message.get("tool_call_id", "")
        name = message.get("name") or (names or {}).get(call_id, "")
        response = {"result": text_of(message)}
        return _NativeParts(
            "user",
            [
                types.Part(
                    function_response=types.FunctionResponse(
                        id=_provider_call_id(call_id), name=name, response=response
                    )
                )
            ],
        )
    return _NativeParts(
        "user",
        [
            types.Part(text=str(part.get("text", f"[{kind_of(part)}]")))
            for part in parts_of(message)
        ],
    )


def join_contents(items: Sequence[_NativeParts]) -> list[Any]:
    """Join native parts into contents; the results of one answer's calls become one content."""
    contents: list[Any] = []
    for item in items:
        if (
            contents
            and item.role == contents[-1].role == "user"
            and _are_results((*contents[-1].parts, *item.parts))
        ):
            contents[-1].parts += item.parts
        else:
            contents.append(types.Content(role=item.role, parts=list(item.parts)))
    return contents


def _are_results(parts: Sequence[Any]) -> bool:
    return all(part.function_response is not None for part in parts)


_GENERATED_ID_PREFIX = "place:"


def _provider_call_id(call_id: str) -> str | None:
    """Return the provider's id of a call, or None for a generated id."""
    return None if not call_id or call_id.startswith(_GENERATED_ID_PREFIX) else call_id


def _read_answer(parts: Sequence[Any], index: int) -> tuple[Message, list[tuple[str, str]]]:
    text = "".join(part.text for part in parts if part.text and not part.thought)
    calls = [part.function_call for part in parts if part.function_call is not None]
    ids = [
        call.id or f"{_GENERATED_ID_PREFIX}{index}.{position}"
        for position, call in enumerate(calls)
    ]
    message: Message = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            make_chat_call(call_id, call.name, call.args)
            for call_id, call in zip(ids, calls, strict=True)
        ]
    return message, [(call_id, call.name or "") for call_id, call in zip(ids, calls, strict=True)]


def _read_result(response: Any, open_calls: list[tuple[str, str]]) -> Message:
    """Return a function's response as a message. If it has no id, match it with the first open call of its name."""
    open_call = next(
        (
            pair
            for pair in open_calls
            if response.id in (None, pair[0]) and pair[1] == (response.name or "")
        ),
        None,
    )
    if open_call is not None:
        open_calls.remove(open_call)
    call_id = response.id or (open_call[0] if open_call is not None else "")
    result = response.response or {}
    if set(result) == {"result"} and isinstance(result["result"], str):
        text = result["result"]
    else:
        text = json.dumps(result, default=str)
    return {
        "role": "tool",
        "tool_call_id": call_id,
        "name": response.name or "",
        "content": text,
    }


def _read_content(part: Any) -> Any:
    return part.text if part.text is not None else [_read_content_part(part)]


def _read_content_part(part: Any) -> dict[str, Any]:
    if part.text is not None:
        return {"type": "text", "text": part.text}
    data = part.inline_data or part.file_data
    return {
        "type": "text",
        "text": f"[{getattr(data, 'mime_type', None) or 'attachment'}]",
    }
