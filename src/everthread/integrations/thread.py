"""The stored thread behind a framework's conversation: it takes the whole history and returns what fits the window.

The framework's history stays as it is. Each of its messages is stored once, under its index and its identity. A
prepared call refers to the framework's own messages by index and adds only summaries and shortened messages.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

from everthread.agent.tools.conversation import RECALL_SCHEMA, recall_text
from everthread.compaction.summary import Summarizer
from everthread.config import Config, load_config
from everthread.context.recovery import TOO_LARGE
from everthread.conversation.conversation import Conversation
from everthread.conversation.events import CompactionDone, CompactionFailed, Event, Listener, Notice, Recovery
from everthread.conversation.lookup import StoreLookup
from everthread.conversation.options import Route
from everthread.conversation.requests import PreparedRequest, note_in
from everthread.conversation.toolbox import name_of
from everthread.core.fingerprints import message_fingerprint
from everthread.core.messages import Message, calls_of, results_of, text_of
from everthread.core.provider_errors import classify_error
from everthread.core.redaction import redact
from everthread.core.types import Reply, System
from everthread.errors import EverthreadError, ModelError
from everthread.factory import open_conversation, open_store, store_url
from everthread.factory.conversation import LoopThread
from everthread.providers.catalog import resolve_window
from everthread.store.models import NewMessage, NewSession
from everthread.store.store import Store

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

RECALL = RECALL_SCHEMA["function"]
"""The tool `recall` for the agent: its name, description and parameters."""
MOST_OPEN = 64
"""Threads in memory, the last used ones."""
MOST_PER_KEY = 16
"""Threads under one key of a framework: a conversation, its branches and its subagents."""
MOST_EVENTS = 100
"""Most events that wait for the next call."""
_EVENT = "given"
_CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


# Packages


@contextlib.contextmanager
def framework(package: str, least: str, extra: str, hook: str) -> Iterator[None]:
    """For imports from a framework: where it is missing, too old or lacks the hook, the error says what to install."""
    install = f"pip install 'everthread[{extra}]'"
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        message = f"everthread.integrations needs the package {package}, which is not installed: {install}"
        raise ImportError(message, name=package) from None
    if _parse_version(version) < _parse_version(least):
        message = (
            f"{package} {version} is installed; everthread.integrations needs {least} or newer for {hook}: {install}"
        )
        raise ImportError(message, name=package)
    try:
        yield
    except ImportError as error:
        message = f"{package} {version} has no {hook} ({error}); install the version that was tested: {install}"
        raise ImportError(message, name=package) from error


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split(".")[:3])


# Identity of messages


def identify(message: Message) -> str:
    """The identity of a message when the history comes again.

    A framework may re-word an answer or edit its arguments: an answer is identified by its calls, a result by its call
    and its text, every other message by its content.
    """
    if message["role"] == "assistant":
        return _digest(["assistant", [call.id for call in calls_of(message)]])
    if message["role"] == "tool":
        return _digest(["tool", [[result.call_id, result.text] for result in results_of(message)]])
    return message_fingerprint(message)


def opening_key(messages: Sequence[Message]) -> str:
    """A name for a conversation without one: a digest of its messages up to the first answer; empty before it."""
    for end, message in enumerate(messages, 1):
        if message["role"] == "assistant":
            opening = [[item["role"], text_of(item), [call.id for call in calls_of(item)]] for item in messages[:end]]
            return f"opening:{_digest(opening)}"
    return ""


def _conversation_name(call: ModelCall, messages: Sequence[Message]) -> str:
    """The name under which a conversation is found; empty where it has none yet."""
    name = call.key or opening_key(messages)
    return f"{call.owner} {name}" if call.owner and name else name


def _digest(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=repr)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


# A model call


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A model call that a framework is about to send."""

    messages: Sequence[Message]
    """Its whole history in core form, without the system prompt."""
    own: Sequence[Any]
    """The same messages in the framework's form; unchanged ones are sent from here."""
    model: str
    key: str = ""
    """The framework's name for the conversation; empty: see `opening_key`."""
    system: System = None
    tools: Sequence[dict[str, Any]] = ()
    owner: str = ""
    """The owner of the conversation, where one framework serves several; threads of two owners never mix."""
    window: int | None = None
    """The model's window, where the framework knows it."""
    base_url: str = ""
    max_tokens: int | None = None


Item = int | Message
"""An index into the framework's history, or a message of ours."""


@dataclass(slots=True)
class PreparedCall:
    """A prepared model call: what to send, and the thread that records its answer."""

    thread: ManagedThread
    call: ModelCall
    items: list[Item] = field(default_factory=list)
    note: str = ""
    """A note about summaries, to be put behind the system prompt."""
    cap: int | None = None
    """The output cap, where the provider asked for a lower one."""
    events: list[Event] = field(default_factory=list)
    """Events since the previous call, for the framework's own log."""

    @property
    def is_changed(self) -> bool:
        """Whether what is sent differs from the framework's history."""
        return self.items != list(range(len(self.call.messages)))

    def send(self, write: Callable[[Message], Any]) -> list[Any]:
        """What to send: the framework's own messages, and ours converted by `write`."""
        return [self.call.own[item] if isinstance(item, int) else write(item) for item in self.items]


class ManagedThread:
    """One thread of the store that follows a framework's history."""

    def __init__(self, conversation: Conversation, messages: list[tuple[str, int, bool]]) -> None:
        self.conversation = conversation
        self._messages = messages
        """For each message of the framework: its identity, its id in the store, whether it is stored verbatim."""
        self._lock = asyncio.Lock()
        self.events: list[Event] = []
        """Events that no prepared call has passed on yet."""
        self._tools = [name_of(tool) for tool in conversation.toolbox.given]

    @classmethod
    async def open(cls, conversation: Conversation) -> ManagedThread:
        """Load the stored messages of a thread."""
        messages = []
        for stored in await conversation.store.history(conversation.id):
            kind, _, identity = stored.event.partition(":")
            if kind == _EVENT:
                identity = identity.rpartition(":")[2]
                messages.append((identity, stored.id, identify(stored.body) == identity))
        return cls(conversation, messages)

    def count_shared(self, identities: Sequence[str]) -> int:
        """How many messages a history shares with this thread, from its beginning on."""
        same = (message[0] == identity for message, identity in zip(self._messages, identities, strict=False))
        return sum(takewhile(bool, same))

    def is_continued_by(self, identities: Sequence[str]) -> bool:
        """Whether the history continues this thread."""
        return self.count_shared(identities) == len(self._messages)

    async def branch(self, length: int) -> ManagedThread:
        """A new thread with the first messages of this one."""
        conversation = await self.conversation.branch(self._messages[length - 1][1])
        branch = ManagedThread(conversation, self._messages[:length])
        branch.events = self.events  # it has its parent's listener
        return branch

    async def prepare(self, call: ModelCall) -> PreparedCall:
        """Store the new messages and prepare the call."""
        async with self._lock:
            if [name_of(tool) for tool in call.tools] != self._tools:
                self._tools = [name_of(tool) for tool in call.tools]
                self.conversation.use_tools(call.tools)
            for name in self._tools:  # a framework's tools are its own: none is left out
                self.conversation.toolbox.note_call(name)
            await self._store(call.messages)
            return self._make_turn(call, await self.conversation.prepare(max_tokens=call.max_tokens))

    async def _store(self, messages: Sequence[Message]) -> None:
        start = len(self._messages)
        identified = [(identify(message), message) for message in messages[start:]]
        new = [
            NewMessage(message, event=f"{_EVENT}:{index}:{identity}")
            for index, (identity, message) in enumerate(identified, start)
        ]
        stored = {item.event: item for item in await self.conversation.follow(new)}
        for (identity, _), item in zip(identified, new, strict=True):
            stored_message = stored[item.event]
            self._messages.append((identity, stored_message.id, identify(stored_message.body) == identity))

    async def recover(self, turn: PreparedCall, error: BaseException) -> PreparedCall:
        """Prepare a smaller call after a refusal. Raises the error itself where it is not about size."""
        if not isinstance(error, Exception) or classify_error(error).kind not in TOO_LARGE:
            raise error
        async with self._lock:
            return self._make_turn(turn.call, await self.conversation.recover(_model_error(error)))

    async def record(
        self, turn: PreparedCall, message: Message, usage: Mapping[str, Any] | None, stop: str | None
    ) -> None:
        """Store the answer and its usage."""
        async with self._lock:
            identity = identify(message)
            index = len(turn.call.messages)
            reply = Reply(message, stop, dict(usage or {}) or None)
            if len(self._messages) != index:  # the history went on meanwhile, and brought the answer
                await self.conversation.account(reply)
                return
            answer = await self.conversation.record(reply, event=f"{_EVENT}:{index}:{identity}")
            self._messages.append((identity, answer.id, True))

    def _make_turn(self, call: ModelCall, prepared: PreparedRequest) -> PreparedCall:
        indexes = {stored: index for index, (_, stored, verbatim) in enumerate(self._messages) if verbatim}
        stored = self.conversation.stored
        items: list[Item] = [indexes.get(item.id, _strip_private(item.body)) for item in stored]
        items += (_strip_private(message) for message in prepared.request.messages[len(stored) :])
        params = prepared.request.params
        cap = next((params[name] for name in _CAPS if name in params), None)
        events, self.events[:] = list(self.events), []
        note = note_in(self.conversation.session.system)
        return PreparedCall(self, call, items, note, cap if cap != call.max_tokens else None, events)


def _strip_private(message: Message) -> Message:
    """A copy without Everthread's own fields."""
    plain: Any = {key: value for key, value in message.items() if not key.startswith("_") and key != "cache_control"}
    message_copy: Message = plain
    return message_copy


def _model_error(error: Exception) -> ModelError:
    """A framework's exception as a `ModelError`, with the provider's status and body from its chain of causes."""
    current: BaseException | None = error
    while current is not None:
        status = getattr(current, "status_code", None) or getattr(current, "code", None)
        body = getattr(current, "body", None) or getattr(current, "details", None)
        if isinstance(status, int) and body is not None:
            return ModelError(str(error), status=status, body=body)
        current = current.__cause__ or current.__context__
    return ModelError(str(error), status=getattr(error, "status_code", None), body=str(error))


def chat_usage(
    prompt: Any, output: Any, *, cached: Any = 0, written: Any = 0, reasoning: Any = 0
) -> dict[str, Any] | None:
    """Usage in the form of OpenAI's chat, whose prompt contains the cached part; None without a prompt."""
    if not prompt:
        return None
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output or 0,
        "prompt_tokens_details": {"cached_tokens": cached or 0, "cache_write_tokens": written or 0},
        "completion_tokens_details": {"reasoning_tokens": reasoning or 0},
    }


def chat_call(call_id: str, name: str | None, arguments: Any) -> Any:
    """A framework's call as a chat message has it."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name or "", "arguments": text}}


def chat_tool(name: str, description: str | None, parameters: Any) -> dict[str, Any]:
    """A framework's tool as a chat request has it."""
    return {
        "type": "function",
        "function": {"name": name, "description": description or "", "parameters": parameters or {"type": "object"}},
    }


# All of a framework's


class OpenCalls(OrderedDict[K, V]):
    """Calls in progress, at most so many: the oldest ones that were never ended are dropped."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        while len(self) > self._most:
            self.popitem(last=False)


class ThreadOptions(TypedDict, total=False):
    """Options that every integration takes."""

    store: Store | str | Path | None
    """Where conversations are stored; None: as configured."""
    config: Config | None
    window: int | None
    """The model's window in tokens, when you know better."""
    summarizer: str | Summarizer
    """`auto`, `journal`, or one of your own."""
    listener: Listener | None
    """Gets every event of every conversation."""


class FrameworkThreads:
    """The conversations of one framework, in one store, each under the framework's name for it.

    They run in an event loop of their own, so that a framework may call from any loop or thread, with or without
    `await`. A program may end without `close`.
    """

    def __init__(self, client: str, logger: logging.Logger, **options: Unpack[ThreadOptions]) -> None:
        self._client, self._logger, self._options = client, logger, options
        self._scope = f"integration:{client}"
        store = options.get("store")
        self._store = None if isinstance(store, str | Path) else store
        self._open: OrderedDict[str, list[ManagedThread]] = OrderedDict()
        self._lock = asyncio.Lock()
        self._starting = threading.Lock()
        self._loop: LoopThread | None = None

    # From a framework

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work in the own loop, for a caller without `await`."""
        return self._ensure_loop().run(work)

    async def arun(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work in the own loop, for a caller in another loop."""
        return await asyncio.wrap_future(self._ensure_loop().submit(work))

    async def prepare(self, call: ModelCall) -> PreparedCall | None:
        """Prepare a call; None where that failed: the framework then sends its own messages, and the log says why."""
        if not call.messages:
            return None
        try:
            async with self._lock:
                thread = await self._find(call)
            return await thread.prepare(call)
        except Exception:  # logged; the framework's own call goes on
            self._logger.exception("Everthread could not prepare a model call; it is sent as it was")
            return None

    async def recover(self, turn: PreparedCall | None, error: BaseException) -> PreparedCall:
        """Prepare a smaller call after a refusal; raises where none is possible."""
        if turn is None:
            raise error
        return await turn.thread.recover(turn, error)

    async def record(
        self,
        turn: PreparedCall | None,
        message: Message,
        usage: Mapping[str, Any] | None = None,
        stop: str | None = None,
    ) -> None:
        """Store an answer and its usage. A failure is logged: the framework already has the answer."""
        if turn is None:
            return
        call = turn.call
        try:
            await turn.thread.record(turn, message, usage, stop)
            if not _conversation_name(call, call.messages):
                async with self._lock:
                    await self._remember(_conversation_name(call, [*call.messages, message]), [turn.thread])
        except Exception:  # as above
            self._logger.exception("Everthread could not record an answer; it is stored with the next call")

    async def recall(self, key: str, arguments: Mapping[str, Any]) -> str:
        """The answer of the tool `recall` in the last used thread of this name; an error is part of it."""
        async with self._lock:
            threads = await self._load_threads(key)
        if not threads:
            return "Nothing was said in this conversation yet."
        conversation = threads[-1].conversation
        lookup = StoreLookup(conversation.store, conversation.session.tenant, conversation.id)
        try:
            return await recall_text(lookup, arguments)
        except (EverthreadError, ValueError) as error:
            return redact(f"That could not be looked up: {error}")

    async def forget(self, key: str) -> None:
        """Begin a new conversation under this name. The old one stays in the store."""
        async with self._lock:
            for thread in self._open.pop(key, []):
                await thread.conversation.close()
            await (await self.opened_store()).put_state(self._scope, key, [])

    def close(self) -> None:
        """Close the store. A further call opens it again."""
        with self._starting:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.run(self._close())
            loop.stop()

    # Inside

    def _ensure_loop(self) -> LoopThread:
        with self._starting:
            if self._loop is None:
                self._loop = LoopThread()
                self._lock = asyncio.Lock()  # the last one belonged to the last loop
                _close_at_exit(self)
            return self._loop

    async def _close(self) -> None:
        for threads in self._open.values():
            for thread in threads:
                await thread.conversation.close()
        self._open.clear()
        if self._store is not None and self._store is not self._options.get("store"):
            await self._store.close()
            self._store = None

    async def _find(self, call: ModelCall) -> ManagedThread:
        """The thread that the history continues; a branch where it differs; else a new thread."""
        key = _conversation_name(call, call.messages)
        identities = [identify(message) for message in call.messages]
        threads = await self._load_threads(key) if key else []
        fitting = [thread for thread in threads if thread.is_continued_by(identities)]
        best = max(fitting or threads, key=lambda thread: thread.count_shared(identities), default=None)
        shared = best.count_shared(identities) if best is not None else 0
        route = await self._make_route(call)
        if best is None or (not fitting and not (call.key and shared)):
            session = NewSession(client=self._client, client_session=call.key, platform=self._client, model=call.model)
            best = await self._open_thread(
                call.model, route.window, session=session, system=call.system, tools=call.tools
            )
        elif not fitting:
            best = await best.branch(shared)
        current = best.conversation.route
        if (current.name, current.window, current.base_url) != (route.name, route.window, route.base_url):
            await best.conversation.use_model(route)
        if key:
            await self._remember(key, [*(thread for thread in threads if thread is not best), best])
        return best

    async def _load_threads(self, key: str) -> list[ManagedThread]:
        """The threads under a key, the last used at the end."""
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        store = await self.opened_store()
        names = await store.get_state(self._scope, key)
        threads = [await self._resume(name) for name in names or ()]
        if threads:
            await self._cache_threads(key, threads)
        return threads

    async def _remember(self, key: str, threads: list[ManagedThread]) -> None:
        before = [thread.conversation.id for thread in self._open.get(key, [])]
        newest = threads[-MOST_PER_KEY:]
        await self._cache_threads(key, newest)
        names = [thread.conversation.id for thread in newest]
        if names != before:
            await (await self.opened_store()).put_state(self._scope, key, names)

    async def _cache_threads(self, key: str, threads: list[ManagedThread]) -> None:
        self._open[key] = threads
        self._open.move_to_end(key)
        while len(self._open) > MOST_OPEN:
            _, old = self._open.popitem(last=False)
            for thread in old:
                await thread.conversation.close()

    @cached_property
    def _config(self) -> Config:
        return self._options.get("config") or load_config()

    async def opened_store(self) -> Store:
        """The store, opened at first use."""
        if self._store is None:
            store = self._options.get("store")
            self._store = await asyncio.to_thread(
                open_store, store if isinstance(store, str | Path) else store_url(self._config)
            )
        return self._store

    async def _resume(self, name: str) -> ManagedThread:
        session = await (await self.opened_store()).session(name)
        window = await resolve_window(session.model, setting=self._options.get("window"))
        return await self._open_thread(session.model, window.tokens, resume=name)

    async def _open_thread(self, model: str, window: int, **arguments: Any) -> ManagedThread:
        opened: list[ManagedThread] = []

        def on_event(event: Event) -> None:
            self._log_event(event)
            for thread in opened:
                thread.events.append(event)
                del thread.events[:-MOST_EVENTS]

        conversation = await open_conversation(
            model, config=self._config, window=window, store=await self.opened_store(), own_client=True,
            api="openai_chat", summarizer=self._options.get("summarizer", "auto"), listener=on_event, **arguments,
        )  # fmt: skip
        opened.append(await ManagedThread.open(conversation))
        return opened[0]

    async def _make_route(self, call: ModelCall) -> Route:
        own = self._config.model
        configured = own.context_length if own.default in (None, call.model) else None
        window = await resolve_window(call.model, setting=self._options.get("window") or configured or call.window)
        return Route(call.model, "openai_chat", window.tokens, str(window), call.base_url)

    def _log_event(self, event: Event) -> None:
        """Log the events that matter to a reader of the framework's log; pass all to the listener."""
        if isinstance(event, CompactionDone):
            self._logger.info(
                "Everthread compacted the conversation (%s): %d -> %d messages, %d -> %d tokens, written by %s",
                event.reason, event.messages_before, event.messages_after, event.tokens_before, event.tokens_after,
                event.author, extra={"everthread": event.as_dict()},
            )  # fmt: skip
        elif isinstance(event, Recovery):
            self._logger.warning("Everthread: the provider refused the request (%s); %s", event.problem, event.action)
        elif isinstance(event, CompactionFailed):
            self._logger.warning("Everthread could not compact the conversation: %s", event.error)
        elif isinstance(event, Notice) and not event.passing:
            self._logger.info("Everthread: %s", event.text)
        listener = self._options.get("listener")
        if listener is not None:
            listener(event)


_RUNNING: weakref.WeakSet[FrameworkThreads] = weakref.WeakSet()


def _close_at_exit(threads: FrameworkThreads) -> None:
    """Close open threads before the interpreter shuts its thread pools down; `atexit` alone would be too late."""
    if not _RUNNING:
        register = getattr(threading, "_register_atexit", atexit.register)
        register(_close_all)
    _RUNNING.add(threads)


def _close_all() -> None:
    for threads in list(_RUNNING):
        threads.close()
