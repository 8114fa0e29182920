"""The thread behind a framework's conversation: its whole history in, what fits the window out, the answer recorded.

The framework's history stays as it is. Each of its messages is stored once, under its place and what identifies it;
what is sent names the framework's own messages by their place, and brings only summaries and shortened ones anew.
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
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib import metadata
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
"""The tool that is offered to the agent: its name, description and parameters."""
MOST_OPEN = 64
"""Threads kept in memory, those last used."""
MOST_PER_KEY = 16
"""Threads under one key of a framework: a conversation, its branches and its subagents."""
MOST_EVENTS = 100
"""Events kept for a framework that makes no further call."""
_EVENT = "given"
_CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


# Packages


def require(package: str, least: str, extra: str, hook: str) -> None:
    """`ImportError` that says what to install, where a framework is missing or too old for the hook."""
    install = f"pip install 'everthread[{extra}]'"
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise ImportError(f"everthread.integrations needs the package {package}, which is not installed: {install}",
                          name=package) from None  # fmt: skip
    if _numbers(found) < _numbers(least):
        raise ImportError(
            f"{package} {found} is installed; everthread.integrations needs {least} or newer for {hook}: {install}",
            name=package,
        )


def lacks(package: str, hook: str, extra: str, error: ImportError) -> ImportError:
    """For a version that is new enough by its number and yet has no such hook."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        found = metadata.version(package)
        return ImportError(
            f"{package} {found} has no {hook} ({error}); install the version that was tested: "
            f"pip install 'everthread[{extra}]'", name=package,
        )  # fmt: skip
    return error


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split(".")[:3])


# What a message is known by


def identify(message: Message) -> str:
    """What makes it the same message when the history comes again.

    A framework may re-word an answer or have its arguments edited: an answer is known by its calls, a result by its
    call and its text, all else by what it says.
    """
    if message["role"] == "assistant":
        return _digest(["assistant", [call.id for call in calls_of(message)]])
    if message["role"] == "tool":
        return _digest(["tool", [[result.call_id, result.text] for result in results_of(message)]])
    return message_fingerprint(message)


def opening_key(messages: Sequence[Message]) -> str:
    """A conversation's name where the framework has none: what was said up to the first answer; empty before it."""
    for end, message in enumerate(messages, 1):
        if message["role"] == "assistant":
            said = [[item["role"], text_of(item), [call.id for call in calls_of(item)]] for item in messages[:end]]
            return f"opening:{_digest(said)}"
    return ""


def _name(call: ModelCall, messages: Sequence[Message]) -> str:
    """Under which a conversation is found; empty where it has no name yet."""
    name = call.key or opening_key(messages)
    return f"{call.owner} {name}" if call.owner and name else name


def _digest(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=repr)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


# A model call


@dataclass(frozen=True, slots=True)
class ModelCall:
    """What a framework is about to send."""

    messages: Sequence[Message]
    """Its whole history in core form, without the system prompt."""
    own: Sequence[Any]
    """The same as the framework has them: what goes back where nothing is changed."""
    model: str
    key: str = ""
    """What the framework calls the conversation; empty: it is known by how it opened."""
    system: System = None
    tools: Sequence[dict[str, Any]] = ()
    owner: str = ""
    """Whose conversation it is, where one framework serves several: those of two are never one."""
    window: int | None = None
    """As the framework knows it."""
    base_url: str = ""
    max_tokens: int | None = None


Item = int | Message
"""A place in the framework's history, to be sent as it is; or a message of ours."""


@dataclass(slots=True)
class PreparedCall:
    """A model call that was prepared: what to send, and where its answer goes."""

    thread: ManagedThread
    call: ModelCall
    items: list[Item] = field(default_factory=list)
    note: str = ""
    """To be put behind the system prompt: there are summaries."""
    cap: int | None = None
    """The output cap, where the provider asked for a lower one."""
    events: list[Event] = field(default_factory=list)
    """What happened since the turn before, for the framework's own log."""

    @property
    def changed(self) -> bool:
        """Whether anything is sent otherwise than the framework has it."""
        return self.items != list(range(len(self.call.messages)))

    def send(self, write: Callable[[Message], Any]) -> list[Any]:
        """What to send: the framework's own messages, and ours as `write` makes them."""
        return [self.call.own[item] if isinstance(item, int) else write(item) for item in self.items]


class ManagedThread:
    """One thread of the store that follows a framework's history."""

    def __init__(self, conversation: Conversation, known: list[tuple[str, int, bool]]) -> None:
        self.conversation = conversation
        self._known = known
        """Of each message of the framework: what identifies it, its id in the store, whether it is there verbatim."""
        self._lock = asyncio.Lock()
        self.events: list[Event] = []
        """What no turn has told yet."""
        self._tools = [name_of(tool) for tool in conversation.toolbox.given]

    @classmethod
    async def open(cls, conversation: Conversation) -> ManagedThread:
        """From what the store has of it."""
        known = []
        for stored in await conversation.store.history(conversation.id):
            kind, _, identity = stored.event.partition(":")
            if kind == _EVENT:
                identity = identity.rpartition(":")[2]
                known.append((identity, stored.id, identify(stored.body) == identity))
        return cls(conversation, known)

    def shared(self, identities: Sequence[str]) -> int:
        """How many messages of a history are known here, from its beginning on."""
        pairs = zip(self._known, identities, strict=False)
        return next((place for place, (known, given) in enumerate(pairs) if known[0] != given),
                    min(len(self._known), len(identities)))  # fmt: skip

    def follows(self, identities: Sequence[str]) -> bool:
        """Whether the history goes on from where this thread stands."""
        return self.shared(identities) == len(self._known)

    async def branch(self, length: int) -> ManagedThread:
        """Another thread with the first messages of this one."""
        conversation = await self.conversation.branch(self._known[length - 1][1])
        branch = ManagedThread(conversation, self._known[:length])
        branch.events = self.events  # it has its parent's listener
        return branch

    async def prepare(self, call: ModelCall) -> PreparedCall:
        """Store what is new and give what to send."""
        async with self._lock:
            if [name_of(tool) for tool in call.tools] != self._tools:
                self._tools = [name_of(tool) for tool in call.tools]
                self.conversation.use_tools(call.tools)
            for name in self._tools:  # a framework's tools are its own: none is left out
                self.conversation.toolbox.note_call(name)
            await self._store(call.messages)
            return self._turn(call, await self.conversation.prepare(max_tokens=call.max_tokens))

    async def _store(self, messages: Sequence[Message]) -> None:
        start = len(self._known)
        named = [(identify(message), message) for message in messages[start:]]
        new = [
            NewMessage(message, event=f"{_EVENT}:{place}:{identity}")
            for place, (identity, message) in enumerate(named, start)
        ]
        stored = {item.event: item for item in await self.conversation.follow(new)}
        for (identity, _), item in zip(named, new, strict=True):
            kept = stored[item.event]
            self._known.append((identity, kept.id, identify(kept.body) == identity))

    async def recover(self, turn: PreparedCall, error: BaseException) -> PreparedCall:
        """After a refusal: what to send instead. Raises the error itself where size is not at fault."""
        if not isinstance(error, Exception) or classify_error(error).kind not in TOO_LARGE:
            raise error
        async with self._lock:
            return self._turn(turn.call, await self.conversation.recover(_model_error(error)))

    async def record(
        self, turn: PreparedCall, message: Message, usage: Mapping[str, Any] | None, stop: str | None
    ) -> None:
        """Store and account for the answer."""
        async with self._lock:
            identity = identify(message)
            place = len(turn.call.messages)
            reply = Reply(message, stop, dict(usage or {}) or None)
            if len(self._known) != place:  # the history went on meanwhile, and brought the answer
                await self.conversation.account(reply)
                return
            answer = await self.conversation.record(reply, event=f"{_EVENT}:{place}:{identity}")
            self._known.append((identity, answer.id, True))

    async def recall(self, arguments: Mapping[str, Any]) -> str:
        """The answer of the tool `recall`; what cannot be looked up is told."""
        talk = self.conversation
        try:
            return await recall_text(StoreLookup(talk.store, talk.session.tenant, talk.id), arguments)
        except (EverthreadError, ValueError) as error:
            return redact(f"That could not be looked up: {error}")

    def _turn(self, call: ModelCall, prepared: PreparedRequest) -> PreparedCall:
        places = {stored: place for place, (_, stored, verbatim) in enumerate(self._known) if verbatim}
        stored = self.conversation.stored
        items: list[Item] = [places.get(item.id, _plain(item.body)) for item in stored]
        items += (_plain(message) for message in prepared.request.messages[len(stored) :])
        params = prepared.request.params
        cap = next((params[name] for name in _CAPS if name in params), None)
        events, self.events[:] = list(self.events), []
        note = note_in(self.conversation.session.system)
        return PreparedCall(self, call, items, note, cap if cap != call.max_tokens else None, events)


def _plain(message: Message) -> Message:
    """Without what is ours alone."""
    plain: Any = {key: value for key, value in message.items() if not key.startswith("_") and key != "cache_control"}
    found: Message = plain
    return found


def _model_error(error: Exception) -> ModelError:
    """A framework's exception with the provider's status and body, wherever it carries them."""
    seen: BaseException | None = error
    while seen is not None:
        status = getattr(seen, "status_code", None) or getattr(seen, "code", None)
        body = getattr(seen, "body", None) or getattr(seen, "details", None)
        if isinstance(status, int) and body is not None:
            return ModelError(str(error), status=status, body=body)
        seen = seen.__cause__ or seen.__context__
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
    """Calls under way; of those that nobody ended, the newest so many."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        while len(self) > self._most:
            self.popitem(last=False)


class ThreadOptions(TypedDict, total=False):
    """What every integration may be told."""

    store: Store | str | Path | None
    """Where conversations are kept; None: as configured."""
    config: Config | None
    window: int | None
    """The model's window in tokens, when you know better."""
    summarizer: str | Summarizer
    """`auto`, `journal`, or one of your own."""
    listener: Listener | None
    """Hears every event of every conversation."""


class FrameworkThreads:
    """The conversations of one framework, in one store, each under the name the framework has for it.

    They live in an event loop of their own: a framework may call from any loop or thread, with or without `await`.
    A program may end without `close`.
    """

    def __init__(self, client: str, logger: logging.Logger, **how: Unpack[ThreadOptions]) -> None:
        self._client, self._logger, self._how = client, logger, how
        self._settings = how.get("config")
        given = how.get("store")
        self._store = None if isinstance(given, str | Path) else given
        self._open: OrderedDict[str, list[ManagedThread]] = OrderedDict()
        self._lock: asyncio.Lock | None = None
        self._starting = threading.Lock()
        self._loop: LoopThread | None = None

    # From a framework

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work in the threads' own loop, for a caller without `await`."""
        return self._running().run(work)

    async def arun(self, work: Coroutine[Any, Any, T]) -> T:
        """The same for a caller in a loop of its own."""
        return await asyncio.wrap_future(self._running().submit(work))

    async def prepare(self, call: ModelCall) -> PreparedCall | None:
        """What to send; None where that failed: the framework then sends what it has, and the log says why."""
        if not call.messages:
            return None
        try:
            async with self._one_at_a_time():
                thread = await self._find(call)
            return await thread.prepare(call)
        except Exception:  # whatever fails here: the framework's own call goes on
            self._logger.exception("Everthread could not prepare a model call; it is sent as it was")
            return None

    async def recover(self, turn: PreparedCall | None, error: BaseException) -> PreparedCall:
        """What to send after a refusal; raises where nothing smaller would be taken."""
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
        """Store and account for an answer. A failure is logged: the answer is there already."""
        if turn is None:
            return
        call = turn.call
        try:
            await turn.thread.record(turn, message, usage, stop)
            if not _name(call, call.messages):
                async with self._one_at_a_time():
                    await self._remember(_name(call, [*call.messages, message]), [turn.thread])
        except Exception:  # as above
            self._logger.exception("Everthread could not record an answer; it is stored with the next call")

    async def recall(self, key: str, arguments: Mapping[str, Any]) -> str:
        """The answer of the tool `recall` in the conversation of this name, of its threads the one last used."""
        async with self._one_at_a_time():
            threads = await self._threads(key)
        if not threads:
            return "Nothing was said in this conversation yet."
        return await threads[-1].recall(arguments)

    async def forget(self, key: str) -> None:
        """What is said under this name from now on is another conversation. What was said stays in the store."""
        async with self._one_at_a_time():
            for thread in self._open.pop(key, []):
                await thread.conversation.close()
            await (await self.opened_store()).put_state(self._scope, key, [])

    def close(self) -> None:
        """Let go of the store. What was said is stored; a further call opens it again."""
        with self._starting:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.run(self._close())
            loop.stop()

    # Inside

    def _running(self) -> LoopThread:
        with self._starting:
            if self._loop is None:
                self._loop = LoopThread()
                self._lock = None
                _close_at_exit(self)
            return self._loop

    def _one_at_a_time(self) -> asyncio.Lock:
        self._lock = self._lock or asyncio.Lock()
        return self._lock

    async def _close(self) -> None:
        for threads in self._open.values():
            for thread in threads:
                await thread.conversation.close()
        self._open.clear()
        if self._store is not None and self._store is not self._how.get("store"):
            await self._store.close()
            self._store = None

    async def _find(self, call: ModelCall) -> ManagedThread:
        """The thread that the history goes on from; a branch where it goes another way; else a new one."""
        key = _name(call, call.messages)
        identities = [identify(message) for message in call.messages]
        threads = await self._threads(key) if key else []
        fitting = [thread for thread in threads if thread.follows(identities)]
        best = max(fitting or threads, key=lambda thread: thread.shared(identities), default=None)
        if best is None or (not fitting and (not call.key or not best.shared(identities))):
            best = await self._create(call)
        elif not fitting:
            best = await best.branch(best.shared(identities))
        await self._use(best, call)
        if key:
            await self._remember(key, [*(thread for thread in threads if thread is not best), best])
        return best

    async def _threads(self, key: str) -> list[ManagedThread]:
        """Those under a key, the one last used at the end."""
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        store = await self.opened_store()
        names = await store.get_state(self._scope, key)
        threads = [await self._resume(name) for name in names or ()]
        if threads:
            await self._keep(key, threads)
        return threads

    async def _remember(self, key: str, threads: list[ManagedThread]) -> None:
        before = [thread.conversation.id for thread in self._open.get(key, [])]
        kept = threads[-MOST_PER_KEY:]
        await self._keep(key, kept)
        names = [thread.conversation.id for thread in kept]
        if names != before:
            await (await self.opened_store()).put_state(self._scope, key, names)

    async def _keep(self, key: str, threads: list[ManagedThread]) -> None:
        self._open[key] = threads
        self._open.move_to_end(key)
        while len(self._open) > MOST_OPEN:
            _, old = self._open.popitem(last=False)
            for thread in old:
                await thread.conversation.close()

    @property
    def _scope(self) -> str:
        return f"integration:{self._client}"

    @property
    def _config(self) -> Config:
        self._settings = self._settings or load_config()
        return self._settings

    async def opened_store(self) -> Store:
        """Where conversations are kept."""
        if self._store is None:
            given = self._how.get("store")
            self._store = await asyncio.to_thread(
                open_store, given if isinstance(given, str | Path) else store_url(self._config)
            )
        return self._store

    async def _create(self, call: ModelCall) -> ManagedThread:
        route = await self._route(call)
        session = NewSession(client=self._client, client_session=call.key, platform=self._client, model=call.model)
        return await self._conversation(call.model, route.window, session=session, system=call.system, tools=call.tools)

    async def _resume(self, name: str) -> ManagedThread:
        session = await (await self.opened_store()).session(name)
        window = await resolve_window(session.model, setting=self._how.get("window"))
        return await self._conversation(session.model, window.tokens, resume=name)

    async def _conversation(self, model: str, window: int, **how: Any) -> ManagedThread:
        listening: list[ManagedThread] = []

        def heard(event: Event) -> None:
            self._tell(event)
            for thread in listening:
                thread.events.append(event)
                del thread.events[:-MOST_EVENTS]

        conversation = await open_conversation(
            model, config=self._config, window=window, store=await self.opened_store(), own_client=True,
            api="openai_chat", summarizer=self._how.get("summarizer", "auto"), listener=heard, **how,
        )  # fmt: skip
        listening.append(await ManagedThread.open(conversation))
        return listening[0]

    async def _use(self, thread: ManagedThread, call: ModelCall) -> None:
        """Another model than before: fit the thread to its window."""
        route = await self._route(call)
        known = thread.conversation.route
        if (known.name, known.window, known.base_url) != (route.name, route.window, route.base_url):
            await thread.conversation.use_model(route)

    async def _route(self, call: ModelCall) -> Route:
        window = await resolve_window(
            call.model, setting=self._how.get("window") or self._setting(call.model) or call.window
        )
        return Route(call.model, "openai_chat", window.tokens, str(window), call.base_url)

    def _setting(self, model: str) -> int | None:
        own = self._config.model
        return own.context_length if own.default in (None, model) else None

    def _tell(self, event: Event) -> None:
        """What a person who reads the framework's log wants to know."""
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
        listener = self._how.get("listener")
        if listener is not None:
            listener(event)


_RUNNING: weakref.WeakSet[FrameworkThreads] = weakref.WeakSet()


def _close_at_exit(threads: FrameworkThreads) -> None:
    """Close what is open before the interpreter takes its thread pools away, which `atexit` would be too late for."""
    if not _RUNNING:
        register = getattr(threading, "_register_atexit", atexit.register)
        register(_close_all)
    _RUNNING.add(threads)


def _close_all() -> None:
    for threads in list(_RUNNING):
        threads.close()
