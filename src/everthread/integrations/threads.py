"""Make the model calls of a framework fit the window, and record their answers.

A framework sends its whole history with every call, like a client of the gateway, so `thread/caller` does the work.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

from everthread.agent.tools.recall import RECALL_SCHEMA, answer_recall
from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.config import Config, load_config
from everthread.core.costs.canonical_usage import normalize_usage
from everthread.core.messages import Message
from everthread.core.provider_errors.classification import classify_error
from everthread.core.recent_dict import RecentDict
from everthread.core.secrets.redaction import redact
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, ModelReply, ModelRequest
from everthread.errors import EverthreadError
from everthread.factory import open_store, store_url
from everthread.factory.awaitable_context import LoopThread
from everthread.factory.caller_setup_factory import make_caller_setup
from everthread.factory.conversations import make_summarizers
from everthread.integrations.model_calls import (
    FittedCall,
    HistoryMessage,
    ModelCall,
    cite_large_outputs,
    make_items,
)
from everthread.providers.catalog import resolve_window
from everthread.store.records import DEFAULT_TENANT, LimitKey
from everthread.store.store import Store
from everthread.thread.caller.caller_request import (
    CallerHistory,
    CallSettings,
    ClientSession,
    Outcome,
)
from everthread.thread.caller.caller_threads import CallerThreads
from everthread.thread.caller.message_caches import IdentityCache, SizeCache
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.events import (
    CompactionDone,
    CompactionFailed,
    Event,
    Listener,
    Notice,
    RecordFailed,
    Recovery,
)
from everthread.thread.large_results import LargeOutput, store_outputs
from everthread.thread.lookup.store_lookup import StoreLookup
from everthread.thread.matching.history import build_history
from everthread.thread.matching.thread_match import ClientScope
from everthread.thread.matching.thread_names import shorten_session_name
from everthread.thread.recovery import SIZE_REFUSALS, ProviderRefusal

T = TypeVar("T")
API: Api = "openai_chat"
"""The protocol whose messages have the core form. Every integration converts its messages to this form."""
RECALL_TOOL = RECALL_SCHEMA["function"]
"""The tool `recall` for the agent: its name, description and parameters."""
MAX_THREADS_WITH_EVENTS = 1_000
"""Maximum threads whose events wait for the thread's next call."""
MAX_WAITING_EVENTS = 100
"""Maximum events of a thread that wait for the next call."""


class ThreadOptions(TypedDict, total=False):
    """Options that every integration takes."""

    store: Store | str | Path | None
    """The store of the conversations; None for the configured one."""
    config: Config | None
    window: int | None
    """The model's window in tokens, instead of the known one."""
    summarizer: str | Summarizer
    """`auto`, `journal`, or a summariser of your own."""
    listener: Listener | None
    """Called with every event of every conversation."""


class FrameworkThreads:
    """The conversations of one framework, in one store.

    The work runs in a separate event loop, so that a framework may call from any loop or thread, with or without
    `await`. A program may end without calling `close`.
    """

    def __init__(
        self, client: str, logger: logging.Logger, **options: Unpack[ThreadOptions]
    ) -> None:
        self._client = client
        self._logger = logger
        self._options = options
        self._identities = IdentityCache()
        self._sizes = SizeCache()
        self._events = FrameworkEvents(logger, options.get("listener"))
        self._start_lock = threading.Lock()
        self._loop: LoopThread | None = None
        self._forget_store()

    def _forget_store(self) -> None:
        """Forget the store and the threads, which belong to an earlier event loop and are closed."""
        self._open_lock = asyncio.Lock()
        self._exit_stack = AsyncExitStack()
        self._store: Store | None = None
        self._threads: CallerThreads | None = None

    def run_in_own_loop_and_wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the separate event loop, for a caller without `await`."""
        return self._ensure_loop().run(coroutine)

    async def run_in_own_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the separate event loop, for a caller in another loop."""
        return await asyncio.wrap_future(self._ensure_loop().submit(coroutine))

    async def prepare(self, call: ModelCall) -> FittedCall | None:
        """Make a call fit. If that fails, log it and return None, so that the framework sends its own messages."""
        if not call.messages:
            return None
        try:
            threads = await self._open_threads()
            settings = self._make_settings(call)
            history, large_outputs = await self._replace_large_outputs(threads, call, settings)
            caller_history = self._read_history(call, history)
            prepared = await threads.open(caller_history, settings)
            await self._store_outputs(threads, prepared, large_outputs)
            await threads.prepare(prepared)
            return await self._make_fitted_call(threads, call, prepared, history)
        except Exception:  # logged; the framework's own call continues
            self._logger.exception(
                "Everthread could not prepare a model call; it is sent as it was"
            )
            return None

    async def recover(self, fitted_call: FittedCall | None, error: BaseException) -> FittedCall:
        """Return a smaller call after a refusal for size. Raise the error if it is another one or nothing helps."""
        if (
            fitted_call is None
            or not isinstance(error, Exception)
            or classify_error(error).kind not in SIZE_REFUSALS
        ):
            raise error
        threads = await self._open_threads()
        prepared = fitted_call.prepared_call
        try:
            is_smaller = await threads.recover(prepared, _read_refusal(error))
        except EverthreadError as failure:
            self._logger.error("Everthread could not recover: %s", failure)  # noqa: TRY400 - the provider's error is raised
            raise error from failure
        if not is_smaller:
            self._logger.error(
                "Everthread: the request does not fit into %s (%d tokens), %s",
                prepared.model,
                prepared.limits.window,
                prepared.attempts.failure_text,
            )
            raise error
        history = [
            message
            for message in prepared.caller_history.messages
            if isinstance(message, HistoryMessage)
        ]
        return await self._make_fitted_call(threads, fitted_call.call, prepared, history)

    async def record(
        self,
        fitted_call: FittedCall | None,
        message: Message,
        usage: Mapping[str, Any] | None = None,
        stop: str | None = None,
    ) -> None:
        """Store an answer and its usage. A failure is logged: the framework already has the answer."""
        if fitted_call is None:
            return
        try:
            threads = await self._open_threads()
            reply = ModelReply(message, stop or "stop", dict(usage or {}) or None)
            canonical_usage = normalize_usage(usage, api=API) if usage else None
            outcome = Outcome(200, reply, canonical_usage)
            answer = threads.expect_answer(fitted_call.prepared_call, outcome)
            await threads.record(fitted_call.prepared_call, outcome, answer)
        except Exception:  # as above
            self._logger.exception(
                "Everthread could not record an answer; it is stored with the next call"
            )

    async def recall(self, key: str, arguments: Mapping[str, Any]) -> str:
        """Answer a call of the tool `recall` in the conversation of this name. An error is part of the answer."""
        store = await self.get_store()
        thread = await store.client_histories.find_conversation(
            DEFAULT_TENANT, shorten_session_name(key), self._client
        )
        if thread is None:
            return "Nothing was said in this conversation yet."
        lookup = StoreLookup(store, DEFAULT_TENANT, thread, include_related=True, skip_visible=True)
        try:
            return await answer_recall(lookup, arguments)
        except (EverthreadError, ValueError) as error:
            return redact(f"That could not be looked up: {error}")

    async def get_store(self) -> Store:
        """Return the store, opened on first use."""
        async with self._open_lock:
            return await self._open_store()

    def close(self) -> None:
        """Close the store. The next call opens it again."""
        with self._start_lock:
            loop = self._loop
            self._loop = None
        if loop is not None:
            loop.run(self.aclose())
            loop.stop()

    def _make_settings(self, call: ModelCall) -> CallSettings:
        tenant = _make_tenant(self._client, call.owner)
        tools = list(call.tools)
        counter = TokenCounter(call.model)
        return CallSettings(
            API,
            ModelRequest(call.model, [], system=call.system, tools=tools),
            tokens=counter.request((), system=call.system, tools=tools),
            upstream=call.base_url,
            limit_key=LimitKey(call.base_url, call.model, tenant),
            window=None if self._configured_window(call.model) else call.window,
            output_cap=call.max_tokens,
        )

    async def _replace_large_outputs(
        self, threads: CallerThreads, call: ModelCall, settings: CallSettings
    ) -> tuple[list[HistoryMessage], list[LargeOutput]]:
        """Replace results that are too large for the model's nominal window, regardless of limits learnt since."""
        options = threads.setup.options
        window = await threads.load_window(settings)
        limits = options.output_limits(options.for_model(call.model).budget(window))
        names = [tool.get("function", {}).get("name") for tool in call.tools]
        reader = RECALL_TOOL["name"] if RECALL_TOOL["name"] in names else None
        return cite_large_outputs(call.messages, limits, reader)

    def _read_history(self, call: ModelCall, messages: Sequence[HistoryMessage]) -> CallerHistory:
        """Return the history. Messages with citations are identified by their original content."""
        originals = [
            message if message.is_native else HistoryMessage(original)
            for message, original in zip(messages, call.messages, strict=True)
        ]
        identities = [self._identities.read_identity(API, original) for original in originals]
        shown_identities = [
            identity if message.is_native else self._identities.read_identity(API, message)
            for identity, message in zip(identities, messages, strict=True)
        ]
        session = shorten_session_name(call.conversation_key)
        scope = f"{self._client}:{session}" if session else ""
        return CallerHistory(
            ClientScope(_make_tenant(self._client, call.owner), scope),
            build_history(identities),
            messages=messages,
            wire_messages=[message.value for message in messages],
            sizes=self._sizes.count_messages(API, call.model, shown_identities, messages),
            client=ClientSession(self._client, session, platform=self._client),
            has_one_role=False,
        )

    async def _store_outputs(
        self,
        threads: CallerThreads,
        prepared: PreparedCall,
        large_outputs: Sequence[LargeOutput],
    ) -> None:
        """Store the outputs that the new messages cite."""
        thread = prepared.thread_id
        new_messages = prepared.caller_history.messages[prepared.match.matched_count :]
        cited_text = "".join(message.text for message in new_messages) if large_outputs else ""
        new_outputs = [item for item in large_outputs if item.output.id in cited_text]
        await store_outputs(threads.setup.store, thread, new_outputs, self._events.receive)

    async def _make_fitted_call(
        self,
        threads: CallerThreads,
        call: ModelCall,
        prepared: PreparedCall,
        history: Sequence[HistoryMessage],
    ) -> FittedCall:
        """Return the call with the messages, note and output cap to send now."""
        threads.remember_prompt(prepared)
        excerpts = await threads.find_excerpts(prepared)
        return FittedCall(
            call,
            prepared,
            items=[*make_items(prepared, history), *excerpts],
            note=prepared.note,
            output_cap=prepared.output_cap,
            events=self._events.take(prepared.thread_id),
        )

    def _ensure_loop(self) -> LoopThread:
        with self._start_lock:
            if self._loop is None:
                self._loop = LoopThread()
                self._forget_store()
                _close_at_exit(self)
            return self._loop

    async def aclose(self) -> None:
        """Close the store from the event loop that opened it."""
        await self._exit_stack.aclose()
        self._forget_store()

    @cached_property
    def _config(self) -> Config:
        return self._options.get("config") or load_config()

    async def _open_store(self) -> Store:
        if self._store is None:
            store = self._options.get("store")
            if isinstance(store, Store):
                self._store = store
            else:
                url = store_url(self._config) if store is None else store
                self._store = await asyncio.to_thread(open_store, url)
                self._exit_stack.push_async_callback(self._store.close)
        return self._store

    async def _open_threads(self) -> CallerThreads:
        async with self._open_lock:
            if self._threads is None:
                store = await self._open_store()
                # Models for summaries are closed after the threads that use them.
                models = await self._exit_stack.enter_async_context(AsyncExitStack())
                summarizers = make_summarizers(
                    self._options.get("summarizer", "auto"),
                    self._config,
                    models,
                )
                setup = await make_caller_setup(
                    self._config,
                    store,
                    summarizer=summarizers,
                    window=self._find_window,
                    listener=self._events.receive,
                )
                self._threads = CallerThreads(setup, self._sizes)
                self._exit_stack.push_async_callback(self._threads.close)
            return self._threads

    async def _find_window(self, _api: Api, model: str, _upstream: str, _betas: str) -> int:
        window = await resolve_window(model, setting=self._configured_window(model))
        return window.tokens

    def _configured_window(self, model: str) -> int | None:
        model_options = self._config.model
        context_length = (
            model_options.context_length if model_options.default in (None, model) else None
        )
        return self._options.get("window") or context_length


class FrameworkEvents:
    """The events of a framework's threads, which go to the framework's log and to the program's listener."""

    def __init__(self, logger: logging.Logger, listener: Listener | None) -> None:
        self._logger = logger
        self._listener = listener
        self._waiting: RecentDict[str, list[Event]] = RecentDict(MAX_THREADS_WITH_EVENTS)

    def receive(self, event: Event) -> None:
        """Log an event, keep it for the thread's next call, and pass it to the listener."""
        self._log(event)
        waiting_events = [*self._waiting.get(event.session, ()), event]
        self._waiting[event.session] = waiting_events[-MAX_WAITING_EVENTS:]
        if self._listener is not None:
            self._listener(event)

    def take(self, thread_id: str) -> list[Event]:
        """Return a thread's events since its previous call."""
        return self._waiting.pop(thread_id, [])

    def _log(self, event: Event) -> None:
        """Log important events to the framework's log."""
        if isinstance(event, CompactionDone):
            self._logger.info(
                "Everthread compacted the conversation (%s): %d -> %d messages, %d -> %d tokens, written by %s",
                event.reason,
                event.messages_before,
                event.messages_after,
                event.tokens_before,
                event.tokens_after,
                event.author,
                extra={"everthread": event.as_dict()},
            )
        elif isinstance(event, Recovery):
            self._logger.warning(
                "Everthread: the provider refused the request (%s); %s",
                event.problem,
                event.action,
            )
        elif isinstance(event, CompactionFailed):
            self._logger.warning("Everthread could not compact the conversation: %s", event.error)
        elif isinstance(event, RecordFailed):
            self._logger.warning(
                "Everthread could not store a part of the conversation: %s", event.error
            )
        elif isinstance(event, Notice) and not event.is_temporary:
            self._logger.info("Everthread: %s", event.text)


def _make_tenant(client: str, owner: str) -> str:
    """Return the tenant of an owner's threads; tenants share nothing."""
    if not owner:
        return DEFAULT_TENANT
    digest = blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{client}-{digest}"


def _read_refusal(error: Exception) -> ProviderRefusal:
    """Convert a framework's exception to a refusal, with the provider's status and body from its chain of causes."""
    current: BaseException | None = error
    while current is not None:
        status = getattr(current, "status_code", None) or getattr(current, "code", None)
        body = getattr(current, "body", None) or getattr(current, "details", None)
        if isinstance(status, int) and body is not None:
            return ProviderRefusal(status, body)
        current = current.__cause__ or current.__context__
    return ProviderRefusal(getattr(error, "status_code", None), str(error))


_OPEN_THREADS: weakref.WeakSet[FrameworkThreads] = weakref.WeakSet()


def _close_at_exit(framework_threads: FrameworkThreads) -> None:
    """Close the threads when the interpreter ends, before it shuts down thread pools; `atexit` would be too late."""
    if not _OPEN_THREADS:
        register = getattr(threading, "_register_atexit", atexit.register)
        register(_close_all)
    _OPEN_THREADS.add(framework_threads)


def _close_all() -> None:
    for framework_threads in list(_OPEN_THREADS):
        framework_threads.close()
