"""OpenAI Agents: `Runner.run(agent, text, session=session, run_config=session.run_config())`.

The session stores every item unchanged. Each model call is changed to fit, and after a refusal for size a smaller
request is sent.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from everthread.core.messages import SYSTEM_ROLES, Message
from everthread.integrations.chat_forms import make_chat_tool, make_chat_usage
from everthread.integrations.framework_package import guard_framework_imports
from everthread.integrations.model_calls import FittedCall, ModelCall
from everthread.integrations.threads import RECALL_TOOL, FrameworkThreads, ThreadOptions
from everthread.thread.wire_messages import dump_model
from everthread.wire.openai_responses import (
    decode_assistant_items,
    decode_messages,
    encode_messages,
)

with guard_framework_imports("openai-agents", "0.3", "openai-agents", "call_model_input_filter"):
    from agents import (
        FunctionTool,
        Model,
        ModelProvider,
        MultiProvider,
        RunConfig,
        custom_span,
        get_current_trace,
    )
    from agents.models import get_default_model
    from agents.run import CallModelData, ModelInputData

__all__ = ["EverthreadSession"]
logger = logging.getLogger("openai.agents.everthread")
ITEMS_PER_WRITE = 50
"""Number of items that are stored together."""

SessionItem = dict[str, Any]


class EverthreadSession:
    """A `Session` that also keeps the model calls inside the window.

    Events are logged by `openai.agents.everthread`, and a compaction is a span of the trace.
    """

    session_settings: Any = None

    def __init__(
        self,
        session_id: str,
        *,
        model: str | None = None,
        **options: Unpack[ThreadOptions],
    ) -> None:
        """Set up a session. `model`: the name of the model, if the agent does not name it."""
        self.session_id = session_id
        self.threads = FrameworkThreads("openai-agents", logger, **options)
        self._model = model
        self._prepared: FittedCall | None = None
        """The prepared call for the next model call."""

    async def get_items(self, limit: int | None = None) -> list[SessionItem]:
        """Return every item, or the latest ones."""
        items = await self.threads.run_in_own_loop(self._read_items())
        return items if limit is None else items[max(0, len(items) - limit) :]

    async def add_items(self, items: list[SessionItem]) -> None:
        """Store items unchanged."""
        await self.threads.run_in_own_loop(self._append_items(items))

    async def pop_item(self) -> SessionItem | None:
        """Remove and return the latest item. It stays in the thread, and the next message starts a branch."""
        items = await self.get_items()
        if not items:
            return None
        await self.threads.run_in_own_loop(
            self._write_items(items[:-1], (len(items) - 1) // ITEMS_PER_WRITE * ITEMS_PER_WRITE)
        )
        return items[-1]

    async def clear_session(self) -> None:
        """Remove all items. They stay in the store, as another thread."""
        await self.threads.run_in_own_loop(self._write_items([], 0))
        await self.threads.run_in_own_loop(self._count_clearing())

    def run_config(self, **settings: Any) -> RunConfig:
        """Return a `RunConfig` that makes requests fit, recovers from refusals and records usage."""
        provider = settings.pop("model_provider", None) or MultiProvider()
        if isinstance(settings.get("model"), Model):
            settings["model"] = self.wrap(settings["model"])
        return RunConfig(
            model_provider=_ManagedProvider(self, provider),
            call_model_input_filter=self.filter,
            **settings,
        )

    async def filter(self, data: CallModelData[Any]) -> ModelInputData:
        """Make the input of any model fit, as the `call_model_input_filter` of a run."""
        call = self._make_call(data, await self.threads.run_in_own_loop(self._read_key()))
        self._prepared = fitted_call = await self.threads.run_in_own_loop(
            self.threads.prepare(call)
        )
        if fitted_call is None:
            return data.model_data
        _add_spans(fitted_call)
        return ModelInputData(
            input=_items_to_send(fitted_call),
            instructions=_with_note(call.system, fitted_call),
        )

    def wrap(self, model: Model) -> Model:
        """Add recovery and recording to a model object, for an agent with a model of its own."""
        return model if isinstance(model, _ManagedModel) else _ManagedModel(self, model)

    @property
    def recall_tool(self) -> FunctionTool:
        """The tool `recall`, for `Agent(tools=[…])`."""

        async def look_up(_context: Any, arguments: str) -> str:
            parsed_arguments = json.loads(arguments or "{}")
            key = await self.threads.run_in_own_loop(self._read_key())
            return await self.threads.run_in_own_loop(self.threads.recall(key, parsed_arguments))

        return FunctionTool(
            name=RECALL_TOOL["name"],
            description=RECALL_TOOL["description"],
            params_json_schema=RECALL_TOOL["parameters"],
            on_invoke_tool=look_up,
            strict_json_schema=False,
        )

    def close(self) -> None:
        """Close the store; all messages are stored already."""
        self.threads.close()

    def take_prepared(self) -> FittedCall | None:
        """Take the call that the filter prepared."""
        fitted_call = self._prepared
        self._prepared = None
        return fitted_call

    def _make_call(self, data: CallModelData[Any], key: str) -> ModelCall:
        items = data.model_data.input
        messages, groups = to_core(
            [{"role": "user", "content": items}] if isinstance(items, str) else list(items)
        )
        agent = data.agent
        name = agent.model if isinstance(agent.model, str) else getattr(agent.model, "model", None)
        return ModelCall(
            messages,
            groups,
            model=self._model or name or get_default_model(),
            conversation_key=key,
            system=data.model_data.instructions,
            tools=[_read_tool(tool) for tool in agent.tools],
            max_tokens=agent.model_settings.max_tokens,
        )

    @property
    def _state_scope(self) -> str:
        return f"integration:openai-agents:items:{self.session_id}"

    async def _read_key(self) -> str:
        """Return the name of the conversation: the session's id, and the number of times it was cleared."""
        store = await self.threads.get_store()
        clear_count = await store.state.get_state(self._state_scope, "cleared") or 0
        return f"{self.session_id}#{clear_count}" if clear_count else self.session_id

    async def _count_clearing(self) -> None:
        store = await self.threads.get_store()
        clear_count = await store.state.get_state(self._state_scope, "cleared") or 0
        await store.state.put_state(self._state_scope, "cleared", clear_count + 1)

    async def _read_items(self) -> list[SessionItem]:
        store = await self.threads.get_store()
        count = await store.state.get_state(self._state_scope, "count") or 0
        chunks = [
            await store.state.get_state(self._state_scope, f"{start:08d}")
            for start in range(0, count, ITEMS_PER_WRITE)
        ]
        return [item for chunk in chunks for item in chunk or ()][:count]

    async def _append_items(self, items: Sequence[Any]) -> None:
        stored_items = await self._read_items() if items else []
        await self._write_items(
            [*stored_items, *(_as_dict(item) for item in items)],
            len(stored_items) // ITEMS_PER_WRITE * ITEMS_PER_WRITE,
        )

    async def _write_items(self, items: list[SessionItem], start: int) -> None:
        """Write the chunks from `start` on, then the count, so that a reader sees either the old or the new items."""
        store = await self.threads.get_store()
        for offset in range(start, len(items), ITEMS_PER_WRITE):
            await store.state.put_state(
                self._state_scope,
                f"{offset:08d}",
                items[offset : offset + ITEMS_PER_WRITE],
            )
        await store.state.put_state(self._state_scope, "count", len(items))


class _ManagedProvider(ModelProvider):
    """A provider whose models make their requests fit and record their answers."""

    def __init__(self, session: EverthreadSession, provider: ModelProvider) -> None:
        self._session = session
        self._wrapped = provider

    def get_model(self, model_name: str | None) -> Model:
        return self._session.wrap(self._wrapped.get_model(model_name))

    async def aclose(self) -> None:
        await self._wrapped.aclose()


class _ManagedModel(Model):
    """A model that sends a smaller request after a refusal for size, and records the answer."""

    def __init__(self, session: EverthreadSession, model: Model) -> None:
        self._session = session
        self._wrapped = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def get_retry_advice(self, request: Any) -> Any:
        return self._wrapped.get_retry_advice(request)

    async def close(self) -> None:
        await self._wrapped.close()

    async def get_response(
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002
        model_settings: Any,
        *arguments: Any,
        **keywords: Any,
    ) -> Any:
        threads = self._session.threads
        fitted_call = self._session.take_prepared()
        while True:
            try:
                response = await self._wrapped.get_response(
                    system_instructions, input, model_settings, *arguments, **keywords
                )
            except Exception as error:  # noqa: BLE001 - `recover` raises every error that is not about size again
                fitted_call = await threads.run_in_own_loop(threads.recover(fitted_call, error))
                system_instructions, input, model_settings = _make_retry(  # noqa: A001
                    fitted_call, model_settings
                )
            else:
                items = [_as_dict(item) for item in response.to_input_items()]
                await threads.run_in_own_loop(
                    threads.record(fitted_call, _read_answer(items), _read_usage(response.usage))
                )
                return response

    async def stream_response(
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002
        model_settings: Any,
        *arguments: Any,
        **keywords: Any,
    ) -> AsyncIterator[Any]:
        threads = self._session.threads
        fitted_call = self._session.take_prepared()
        has_started = False
        while True:
            try:
                async for event in self._wrapped.stream_response(
                    system_instructions, input, model_settings, *arguments, **keywords
                ):
                    has_started = True
                    if event.type in ("response.completed", "response.incomplete"):
                        items = [_as_dict(item) for item in event.response.output]
                        await threads.run_in_own_loop(
                            threads.record(
                                fitted_call,
                                _read_answer(items),
                                _read_usage(event.response.usage),
                            )
                        )
                    yield event
            except Exception as error:  # as above
                if has_started:
                    raise
                fitted_call = await threads.run_in_own_loop(threads.recover(fitted_call, error))
                system_instructions, input, model_settings = _make_retry(  # noqa: A001
                    fitted_call, model_settings
                )
            else:
                return


def to_core(items: Sequence[Any]) -> tuple[list[Message], list[list[SessionItem]]]:
    """Return the messages and the items of each message. An answer's reasoning, text and calls are one message."""
    messages: list[Message] = []
    groups: list[list[SessionItem]] = []
    for message in decode_messages([_as_dict(item) for item in items]):
        value: Any = message.get("_native", {}).get("value")
        groups.append(value if isinstance(value, list) else [value])
        messages.append(_strip_native(message))
    return messages, groups


def from_core(message: Message) -> list[SessionItem]:
    """Return a message as items. An answer's text is a string, because Chat Completions refuse parts without an id."""
    items = []
    for item in encode_messages([message]):
        if item.get("role") != "assistant":
            items.append(dict(item))
            continue
        texts = [part.get("text") or part.get("refusal", "") for part in item["content"]]
        items.append({"role": "assistant", "content": "".join(texts)})
    return items


def _strip_native(message: Message) -> Message:
    message_fields: Any = {key: value for key, value in message.items() if key != "_native"}
    if message_fields["role"] in SYSTEM_ROLES:
        message_fields["role"] = "user"
    core_message: Message = message_fields
    return core_message


def _read_answer(items: Sequence[SessionItem]) -> Message:
    if not items:
        return {"role": "assistant", "content": ""}
    return _strip_native(decode_assistant_items(items))


def _as_dict(item: Any) -> SessionItem:
    """Return an item as JSON values."""
    return dict(dump_model(item))


def _items_to_send(fitted_call: FittedCall) -> list[SessionItem]:
    return [item for group in fitted_call.messages_to_send(from_core) for item in group]


def _with_note(system: Any, fitted_call: FittedCall) -> str | None:
    return f"{system}\n\n{fitted_call.note}" if system and fitted_call.note else system


def _make_retry(
    fitted_call: FittedCall, settings: Any
) -> tuple[str | None, list[SessionItem], Any]:
    """Return the arguments of the next attempt after a refusal."""
    _add_spans(fitted_call)
    if fitted_call.output_cap is not None:
        settings = replace(settings, max_tokens=fitted_call.output_cap)
    return (
        _with_note(fitted_call.call.system, fitted_call),
        _items_to_send(fitted_call),
        settings,
    )


def _read_usage(usage: Any) -> dict[str, Any] | None:
    if usage is None:
        return None
    input_details = usage.input_tokens_details
    output_details = usage.output_tokens_details
    return make_chat_usage(
        usage.input_tokens,
        usage.output_tokens,
        cached_tokens=getattr(input_details, "cached_tokens", 0),
        cache_write_tokens=getattr(input_details, "cache_write_tokens", 0),
        reasoning_tokens=getattr(output_details, "reasoning_tokens", 0),
    )


def _read_tool(tool: Any) -> dict[str, Any]:
    schema = getattr(tool, "params_json_schema", None)
    return make_chat_tool(
        tool.name,
        getattr(tool, "description", ""),
        schema if isinstance(schema, Mapping) else None,
    )


def _add_spans(fitted_call: FittedCall) -> None:
    """Add compactions as spans to the run's trace."""
    if get_current_trace() is None:
        return
    for event in fitted_call.events:
        if event.kind == "compaction_done":
            with custom_span("everthread.compaction", event.as_dict()):
                pass
