"""LangChain and LangGraph: `create_agent(model, tools, middleware=[EverthreadMiddleware()])`.

The graph's state stays unchanged; only the model's request is changed to fit. The thread is the run's `thread_id`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Unpack

from everthread.compaction.history.compaction_history import MessageFacts
from everthread.compaction.journal.journal_builder import build_journal_and_state
from everthread.compaction.summary.sections import (
    CRITICAL,
    DONE,
    USER_WORDS,
    render_sections,
)
from everthread.compaction.summary.state_sections import render_state_sections
from everthread.compaction.summary.user_quotes import (
    make_user_quote,
    render_quotes,
)
from everthread.core.messages import Message, calls_of
from everthread.core.text import clip
from everthread.core.tokens import TokenCounter
from everthread.integrations.chat_forms import make_chat_call, make_chat_usage
from everthread.integrations.framework_package import guard_framework_imports
from everthread.integrations.model_calls import FittedCall, ModelCall
from everthread.integrations.threads import RECALL_TOOL, FrameworkThreads, ThreadOptions

with guard_framework_imports("langchain", "1.1", "langchain", "AgentMiddleware.wrap_model_call"):
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.messages import (
        AIMessage,
        BaseMessage,
        HumanMessage,
        SystemMessage,
        ToolMessage,
    )
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import StructuredTool
    from langchain_core.utils.function_calling import (
        convert_to_openai_tool,
    )
    from langgraph.config import get_config

__all__ = ["EverthreadMiddleware", "summarize"]
logger = logging.getLogger("langchain.everthread")

MAX_USER_WORDS_TOKENS = 4_000
JOURNAL_TOKENS = 2_000
STATE_TOKENS = 800
MAX_EARLIER_CHARS = 8_000
"""Limits for the parts of a summary for LangChain's own middleware, which has no limits."""


class EverthreadMiddleware(AgentMiddleware):
    """Keeps an agent inside its model's window. `recall_tool`: whether the agent gets the tool `recall`.

    Events are logged by `langchain.everthread`, and streamed under `everthread` with `stream_mode="custom"`.
    """

    def __init__(self, *, recall_tool: bool = True, **options: Unpack[ThreadOptions]) -> None:
        super().__init__()
        self.threads = FrameworkThreads("langchain", logger, **options)
        self.tools = [self._make_recall_tool()] if recall_tool else []

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Send a request that fits, and after a refusal for size a smaller one."""
        fitted_call = self.threads.run_in_own_loop_and_wait(
            self.threads.prepare(_read_call(request))
        )
        while True:
            try:
                response = handler(_apply_call(request, fitted_call))
            except Exception as error:  # noqa: BLE001 - `recover` raises every error that is not about size again
                fitted_call = self.threads.run_in_own_loop_and_wait(
                    self.threads.recover(fitted_call, error)
                )
            else:
                self.threads.run_in_own_loop_and_wait(
                    self.threads.record(fitted_call, *_read_answer(response))
                )
                return response

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do the same as `wrap_model_call`, in an event loop."""
        fitted_call = await self.threads.run_in_own_loop(self.threads.prepare(_read_call(request)))
        while True:
            try:
                response = await handler(_apply_call(request, fitted_call))
            except Exception as error:  # noqa: BLE001 - as above
                fitted_call = await self.threads.run_in_own_loop(
                    self.threads.recover(fitted_call, error)
                )
            else:
                await self.threads.run_in_own_loop(
                    self.threads.record(fitted_call, *_read_answer(response))
                )
                return response

    def close(self) -> None:
        """Close the store; all messages are stored already."""
        self.threads.close()

    def _make_recall_tool(self) -> Any:
        def recall(config: RunnableConfig, **arguments: Any) -> str:
            return self.threads.run_in_own_loop_and_wait(
                self.threads.recall(_thread_id(config), arguments)
            )

        async def arecall(config: RunnableConfig, **arguments: Any) -> str:
            return await self.threads.run_in_own_loop(
                self.threads.recall(_thread_id(config), arguments)
            )

        return StructuredTool.from_function(
            recall,
            arecall,
            name=RECALL_TOOL["name"],
            description=RECALL_TOOL["description"],
            args_schema=RECALL_TOOL["parameters"],
        )


def summarize(messages: list[Any]) -> str:
    """Summarise without a model, for `SummarizationMiddleware(model, summarizer=summarize)`.

    The summary has the user's words, a journal, and an earlier summary, which is shortened if it is long.
    """
    count = TokenCounter().text
    earlier_summaries = [
        message
        for message in messages
        if message.additional_kwargs.get("lc_source") == "summarization"
    ]
    core_messages = [to_core(message) for message in messages if message not in earlier_summaries]
    journal, state = build_journal_and_state(core_messages)
    user_facts = [facts for facts in map(MessageFacts, core_messages) if facts.is_user]
    user_messages = [
        make_user_quote(number, facts.redacted_words) for number, facts in enumerate(user_facts, 1)
    ]
    user_words = render_quotes(user_messages, MAX_USER_WORDS_TOKENS, count)
    earlier_text = "\n\n".join(str(message.text) for message in earlier_summaries)
    sections = {
        USER_WORDS: user_words,
        DONE: journal.shorten_to(JOURNAL_TOKENS, count).render(),
        **render_state_sections(state, STATE_TOKENS, count),
        CRITICAL: clip(earlier_text, MAX_EARLIER_CHARS),
    }
    return render_sections(sections, skip_empty=True)


def _read_call(request: Any) -> ModelCall:
    model = request.model
    profile = getattr(model, "profile", None) or {}
    system = request.system_message
    return ModelCall(
        [to_core(message) for message in request.messages],
        request.messages,
        _find_attribute(model, "model_name", "model", "model_id") or type(model).__name__,
        conversation_key=_thread_id(get_config()),
        system=str(system.text) if system is not None else None,
        tools=[_read_tool(tool) for tool in request.tools],
        window=profile.get("max_input_tokens") if isinstance(profile, Mapping) else None,
        base_url=_find_attribute(model, "openai_api_base", "anthropic_api_url", "base_url"),
        max_tokens=request.model_settings.get("max_tokens") or getattr(model, "max_tokens", None),
    )


def _read_tool(tool: Any) -> dict[str, Any]:
    """Return a tool in OpenAI's form; a provider's own tool by its type."""
    chat_tool: dict[str, Any] = convert_to_openai_tool(tool)
    if "function" in chat_tool:
        return chat_tool
    return {"type": "function", "function": {"name": str(chat_tool.get("type"))}}


def _apply_call(request: Any, fitted_call: FittedCall | None) -> Any:
    """Return the request, changed to fit; the same object if nothing changes."""
    if fitted_call is None:
        return request
    for event in fitted_call.events:
        request.runtime.stream_writer({"everthread": event.as_dict()})
    changes: dict[str, Any] = {}
    if fitted_call.is_changed:
        changes["messages"] = fitted_call.messages_to_send(from_core)
    if fitted_call.note and request.system_message is not None:
        blocks = request.system_message.content_blocks
        changes["system_message"] = SystemMessage(
            [*blocks, {"type": "text", "text": fitted_call.note}]
        )
    if fitted_call.output_cap is not None:
        changes["model_settings"] = {
            **request.model_settings,
            "max_tokens": fitted_call.output_cap,
        }
    return request.override(**changes) if changes else request


def _read_answer(response: Any) -> tuple[Message, dict[str, Any] | None, str | None]:
    """Return the model's message, its usage and its stop reason."""
    response = getattr(response, "model_response", response)
    results = [response] if isinstance(response, BaseMessage) else response.result
    message = next((item for item in results if isinstance(item, AIMessage)), AIMessage(""))
    usage = message.usage_metadata
    stop = message.response_metadata.get("finish_reason") or message.response_metadata.get(
        "stop_reason"
    )
    return to_core(message), None if usage is None else read_usage(usage), stop


def read_usage(usage: Mapping[str, Any]) -> dict[str, Any] | None:
    """Convert LangChain's usage, whose input tokens include cached and cache-written ones."""
    input_details = usage.get("input_token_details") or {}
    output_details = usage.get("output_token_details") or {}
    cache_write_tokens = input_details.get("cache_creation") or sum(
        value for name, value in input_details.items() if name.startswith("ephemeral")
    )
    return make_chat_usage(
        usage.get("input_tokens"),
        usage.get("output_tokens"),
        cached_tokens=input_details.get("cache_read"),
        cache_write_tokens=cache_write_tokens,
        reasoning_tokens=output_details.get("reasoning"),
    )


def _thread_id(config: Mapping[str, Any]) -> str:
    return str(config.get("configurable", {}).get("thread_id") or "")


def _find_attribute(model: Any, *names: str) -> str:
    values = (getattr(model, name, None) for name in names)
    return next((value for value in values if isinstance(value, str)), "")


def to_core(message: Any) -> Message:
    """Convert LangChain's message to a chat message, without its reasoning."""
    if isinstance(message, AIMessage):
        calls = [*message.tool_calls, *message.invalid_tool_calls]
        core_message: Message = {
            "role": "assistant",
            "content": str(message.text) or None,
        }
        if calls:
            core_message["tool_calls"] = [
                make_chat_call(call["id"] or "", call["name"], call["args"]) for call in calls
            ]
        return core_message
    if isinstance(message, ToolMessage):
        core_message = {
            "role": "tool",
            "tool_call_id": message.tool_call_id,
            "content": _read_content(message.content),
        }
        if message.name:
            core_message["name"] = message.name
        return {**core_message, "is_error": True} if message.status == "error" else core_message
    return {"role": "user", "content": _read_content(message.content)}


def _read_content(content: Any) -> Any:
    return content if isinstance(content, str) else [_read_content_part(part) for part in content]


def _read_content_part(part: Any) -> dict[str, Any]:
    """Convert a part in any provider's form. Media other than images become a placeholder."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if "image_url" in part:
        return {"type": "image_url", "image_url": part["image_url"]}
    if part.get("type") == "image" and ("url" in part or "base64" in part):
        data = f"data:{part.get('mime_type', 'image/png')};base64,{part.get('base64')}"
        return {"type": "image_url", "image_url": {"url": part.get("url") or data}}
    return {"type": "text", "text": f"[{part.get('type', 'attachment')}]"}


def from_core(message: Message) -> Any:
    """Convert a chat message to LangChain's."""
    if message["role"] == "assistant":
        calls = [
            {"id": call.id, "name": call.name, "args": call.parsed, "type": "tool_call"}
            for call in calls_of(message)
        ]
        return AIMessage(message.get("content") or "", tool_calls=calls)
    content: Any = message.get("content") or ""
    if message["role"] == "tool":
        status = "error" if message.get("is_error") else "success"
        return ToolMessage(
            content,
            tool_call_id=message.get("tool_call_id", ""),
            name=message.get("name"),
            status=status,
        )
    return HumanMessage(content)
