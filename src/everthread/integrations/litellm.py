"""LiteLLM: `callbacks: everthread_callback.handler` in the proxy's configuration, or `litellm.callbacks = [handler]`.

A client sends its whole history each time; the request to the model is changed to fit. The thread is the client's
`litellm_session_id`; without one, a conversation is identified by its API key and its first messages.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Unpack

from everthread.core.messages import SYSTEM_ROLES, Message, text_of
from everthread.core.recent_dict import RecentDict
from everthread.integrations.chat_forms import make_chat_usage
from everthread.integrations.framework_package import guard_framework_imports
from everthread.integrations.model_calls import FittedCall, ModelCall
from everthread.integrations.threads import FrameworkThreads, ThreadOptions

with guard_framework_imports(
    "litellm", "1.80", "litellm", "CustomLogger.async_pre_call_deployment_hook"
):
    import litellm
    from litellm.integrations.custom_logger import CustomLogger

    if not hasattr(CustomLogger, "async_pre_call_deployment_hook"):
        raise ImportError("no such method")

__all__ = ["EverthreadLogger"]
logger = logging.getLogger("LiteLLM.everthread")
MAX_OPEN_CALLS = 10_000
"""Maximum number of calls in progress."""
_CHAT_CALL_TYPES = ("completion", "acompletion")


class EverthreadLogger(CustomLogger):
    """Keeps the clients of LiteLLM inside their models' windows, for `/chat/completions` only.

    Events are logged by `LiteLLM.everthread`. After a refusal for size the router sends a smaller request, if
    `router_settings.retry_policy` allows retries (`BadRequestErrorRetries: 3`).
    """

    def __init__(self, **options: Unpack[ThreadOptions]) -> None:
        super().__init__()
        self.threads = FrameworkThreads("litellm", logger, **options)
        self._calls: RecentDict[str, FittedCall | None] = RecentDict(MAX_OPEN_CALLS)

    async def async_pre_call_hook(
        self,
        user_api_key_dict: Any,
        cache: Any,  # noqa: ARG002
        data: dict[str, Any],
        call_type: Any,
    ) -> dict[str, Any] | None:
        """Prepare a call in the proxy, which knows the owner of the key."""
        if _call_type_name(call_type) in _CHAT_CALL_TYPES and data.get("litellm_call_id"):
            await self._prepare(data, owner=str(getattr(user_api_key_dict, "api_key", None) or ""))
        return data

    async def async_pre_call_deployment_hook(
        self, kwargs: dict[str, Any], call_type: Any
    ) -> dict[str, Any] | None:
        """Compact the request before each attempt if it exceeds the window."""
        if _call_type_name(call_type) not in _CHAT_CALL_TYPES or not kwargs.get("litellm_call_id"):
            return None
        if kwargs["litellm_call_id"] not in self._calls:
            await self._prepare(kwargs)
        fitted_call = self._calls[kwargs["litellm_call_id"]]
        if fitted_call is None:
            return kwargs
        return {**kwargs, **_make_changed_fields(fitted_call, kwargs)}

    async def async_post_call_success_deployment_hook(
        self,
        request_data: dict[str, Any],
        response: Any,
        call_type: Any,  # noqa: ARG002 - as it is called
    ) -> None:
        """Record an answer that was not streamed."""
        await self._record(request_data.get("litellm_call_id"), response)

    async def async_post_call_streaming_iterator_hook(
        self,
        user_api_key_dict: Any,  # noqa: ARG002
        response: Any,
        request_data: dict[str, Any],
    ) -> AsyncIterator[Any]:
        """Pass a stream on in the proxy, and record it when it is complete."""
        call_id = request_data.get("litellm_call_id")
        chunks: list[Any] = []
        async for chunk in response:
            if call_id in self._calls:
                chunks.append(chunk)
            yield chunk
        if chunks:
            await self._record(call_id, litellm.stream_chunk_builder(chunks), chunks)

    async def async_log_success_event(
        self,
        kwargs: Any,
        response_obj: Any,
        start_time: Any,  # noqa: ARG002
        end_time: Any,  # noqa: ARG002
    ) -> None:
        """Record a complete stream outside of the proxy."""
        if kwargs.get("complete_streaming_response") is not None or not kwargs.get("stream"):
            await self._record(kwargs.get("litellm_call_id"), response_obj)

    async def async_log_failure_event(
        self,
        kwargs: Any,
        response_obj: Any,  # noqa: ARG002
        start_time: Any,  # noqa: ARG002
        end_time: Any,  # noqa: ARG002
    ) -> None:
        """After a refusal for size, prepare a smaller request for the next attempt."""
        call_id = kwargs.get("litellm_call_id")
        error = kwargs.get("exception")
        fitted_call = self._calls.get(call_id)
        if fitted_call is None or not isinstance(error, Exception):
            return
        try:
            self._calls[call_id] = await self.threads.run_in_own_loop(
                self.threads.recover(fitted_call, error)
            )
        except Exception as failure:
            if failure is not error:
                raise

    async def recall(self, session_id: str, **arguments: Any) -> str:
        """Return the answer of the tool `recall` in the conversation with this session id."""
        return await self.threads.run_in_own_loop(self.threads.recall(session_id, arguments))

    def close(self) -> None:
        """Close the store. No message is lost, because each is stored when it is recorded."""
        self.threads.close()

    async def _prepare(self, data: dict[str, Any], owner: str = "") -> None:
        if "messages" not in data:
            logger.warning(
                "Everthread sees no messages: give them to acompletion by name, `messages=…`"
            )
        fitted_call = await self.threads.run_in_own_loop(
            self.threads.prepare(_read_call(data, owner))
        )
        self._calls[data["litellm_call_id"]] = fitted_call

    async def _record(self, call_id: Any, response: Any, chunks: Sequence[Any] = ()) -> None:
        choices = getattr(response, "choices", None)
        if call_id not in self._calls or not choices or not hasattr(choices[0], "message"):
            return
        fitted_call = self._calls.pop(call_id)
        has_usage = not chunks or any(getattr(chunk, "usage", None) for chunk in chunks)
        usage = _read_usage(getattr(response, "usage", None)) if has_usage else None
        message = _to_core(choices[0].message.model_dump(exclude_none=True))
        await self.threads.run_in_own_loop(
            self.threads.record(fitted_call, message, usage, choices[0].finish_reason)
        )


def _read_call(data: Mapping[str, Any], owner: str) -> ModelCall:
    messages = list(data.get("messages") or ())
    start = next(
        (index for index, item in enumerate(messages) if item.get("role") not in SYSTEM_ROLES),
        len(messages),
    )
    native_messages = messages[start:]
    metadata = data.get("metadata") or data.get("litellm_metadata") or {}
    session = data.get("litellm_session_id") or metadata.get("session_id") or ""
    model = _model_name(str(data.get("model")))
    return ModelCall(
        [_to_core(item) for item in native_messages],
        native_messages,
        model=model,
        conversation_key=str(session),
        system="\n\n".join(map(text_of, messages[:start])) or None,
        tools=list(data.get("tools") or ()),
        owner=owner,
        window=_catalogue_window(model),
        base_url=str(data.get("api_base") or ""),
        max_tokens=data.get("max_completion_tokens") or data.get("max_tokens"),
    )


def _make_changed_fields(fitted_call: FittedCall, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the request that change."""
    changes: dict[str, Any] = {}
    if fitted_call.is_changed:
        changes["messages"] = [
            *_add_note(_read_system_messages(fitted_call, data), fitted_call.note),
            *fitted_call.messages_to_send(dict),
        ]
    if fitted_call.output_cap is not None:
        name = "max_completion_tokens" if "max_completion_tokens" in data else "max_tokens"
        changes[name] = fitted_call.output_cap
    return changes


def _read_system_messages(fitted_call: FittedCall, data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the system messages of a request, which precede the messages of its history."""
    messages = list(data.get("messages") or ())
    system_count = len(messages) - len(fitted_call.call.native_messages)
    return messages[:system_count]


def _add_note(system_messages: list[dict[str, Any]], note: str) -> list[dict[str, Any]]:
    """Return the system messages with the note in a block of its own at the end of the last one."""
    if not note or not system_messages:
        return system_messages
    *first_messages, last_message = system_messages
    content = last_message.get("content")
    blocks = (
        [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    )
    note_block = {"type": "text", "text": note}
    return [*first_messages, {**last_message, "content": [*blocks, note_block]}]


def _to_core(item: Mapping[str, Any]) -> Message:
    """Return a chat message without LiteLLM's own fields."""
    fields = ("role", "content", "tool_calls", "tool_call_id", "name", "refusal")
    message_fields: Any = {key: item[key] for key in fields if item.get(key) is not None}
    if message_fields.get("role") in SYSTEM_ROLES:
        message_fields["role"] = "user"
    message_fields.setdefault("content", None)
    message: Message = message_fields
    return message


def _read_usage(usage: Any) -> dict[str, Any] | None:
    if usage is None:
        return None
    input_details = getattr(usage, "prompt_tokens_details", None)
    output_details = getattr(usage, "completion_tokens_details", None)
    return make_chat_usage(
        usage.prompt_tokens,
        usage.completion_tokens,
        cached_tokens=getattr(input_details, "cached_tokens", 0),
        cache_write_tokens=getattr(input_details, "cache_creation_tokens", 0),
        reasoning_tokens=getattr(output_details, "reasoning_tokens", 0),
    )


def _model_name(alias: str) -> str:
    """Return the model that the proxy's alias refers to, without its provider."""
    router = getattr(sys.modules.get("litellm.proxy.proxy_server"), "llm_router", None)
    entries = router.get_model_list(model_name=alias) if router is not None else None
    name = str(entries[0]["litellm_params"]["model"]) if entries else alias
    return name.rpartition("/")[2]


def _catalogue_window(model: str) -> int | None:
    """Return the model's window from LiteLLM's own list."""
    tokens = (litellm.model_cost.get(model) or {}).get("max_input_tokens")
    return tokens if isinstance(tokens, int) else None


def _call_type_name(call_type: Any) -> str:
    return str(getattr(call_type, "value", call_type))
