"""Engines and summarisers at work: beside the event loop, and guarded, for they are anybody's code.

In the gateway an engine works in a process of its own, of lower priority, which is ended where it takes too long. A
conversation's engine, and one that exists only in this process, works in a thread. What belongs to the loop stays
there: a summary is asked for, and the loop's summariser answers; events are reported in the loop. A failure must not
end a conversation.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import os
import pickle  # nosec B403  between a process and the child it started, over their own pipes
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, TypeVar

from everthread.compaction.engine import ContextEngine, Events, Services, StartReason
from everthread.compaction.journal import JournalWriter
from everthread.compaction.summary import Compaction, Summarizer, SummaryDraft, SummaryRequest
from everthread.core.messages import Messages
from everthread.core.outputs import ToStore
from everthread.core.pricing import CanonicalUsage
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.core.tokens.tokenizers import load_tokenizer
from everthread.core.types import Node
from everthread.errors import EngineError, EverthreadError, SummaryError

T = TypeVar("T")
PROCESSES = 2
THREADS = 16
"""Engines of this process only; most of them wait for a model."""
DEFAULT_COMPACTION_SECONDS = 120.0
"""For one compaction, its summary included, where nothing is set; `serve` gives a share of `manage_seconds`."""
_NICENESS = 5
"""Below the requests, but not starved by other programs: someone may be waiting for the compaction."""
_HEAD = struct.Struct(">Q")
_COMMAND = "from everthread.context.worker import main; main()"


# Summaries


class DeferredSummary(SummaryDraft):
    """No model wrote it: whoever asked writes the journal, where that costs the loop nothing."""


class DeferringFloor:
    """The last of a chain of summarisers in the gateway's loop: it leaves the journal to the worker."""

    name = "journal"

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:  # noqa: ARG002
        return DeferredSummary({}, self.name)


async def _complete(draft: SummaryDraft, request: SummaryRequest, counter: TokenCounter) -> SummaryDraft:
    """The draft; the journal where it was deferred, with what was tried before."""
    if not isinstance(draft, DeferredSummary):
        return draft
    journal = await JournalWriter(counter).summarize(request)
    return replace(journal, warnings=(*draft.warnings, *journal.warnings), usage=(*draft.usage, *journal.usage))


def _writes_here(summarizer: Summarizer) -> bool:
    """Whether the summary is written without a call to the gateway's loop."""
    return isinstance(summarizer, JournalWriter | DeferringFloor)


# Work


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """What makes an engine, wherever it works."""

    engine: Callable[[Services], ContextEngine]
    model: str
    budget: Budget
    summary_key: bytes = b""

    def create(self, summarizer: Summarizer, clock: Callable[[], float], events: Events) -> ContextEngine:
        return self.engine(
            Services(
                summarizer, TokenCounter(self.model), self.budget, clock, events, is_stored=True,
                summary_key=self.summary_key,
            )
        )  # fmt: skip


Work = Callable[[ContextEngine, Any], Awaitable[Any]]
"""Does something with an engine. A function of a module, so that another process finds it."""


@dataclass(frozen=True, slots=True)
class WorkItem:
    """Something to be done with an engine: all of it can be handed to another process if the engine can."""

    setup: EngineSetup
    work: Work
    argument: Any


async def _make_ready(_engine: ContextEngine, model: str) -> None:
    """The engine's code is there already; so are the tables of the tokenizer then."""
    load_tokenizer(model)


def _ignore_event(kind: str, **details: Any) -> None:
    """Drop an event: warming up reports nothing."""


class CompactionWorker:
    """The processes and threads compactions run in."""

    def __init__(
        self, *, portable: bool = False, seconds: float = DEFAULT_COMPACTION_SECONDS, processes: int = PROCESSES
    ) -> None:
        self._portable = portable
        """The engine can be made in another process."""
        self._seconds = seconds
        self._free: list[_Process] = []
        self._process_slots = asyncio.Semaphore(processes)
        self._threads = asyncio.Semaphore(THREADS)
        self._running: set[asyncio.Future[Any]] = set()

    async def run(self, item: WorkItem, summarizer: Summarizer, events: Events) -> Any:
        """The result of the work. What takes too long is ended; so is what nobody waits for any more."""
        try:
            async with asyncio.timeout(self._seconds):
                if self._portable:
                    return await self._in_process(item, summarizer, events)
                return await self._in_thread(item, summarizer, events)
        except TimeoutError as error:
            raise EngineError(f"the compaction took longer than {self._seconds:,.0f} s and was ended") from error

    def warm_soon(self, setup: EngineSetup) -> None:
        """Start a process ahead that has read its code, so that the first compaction does not wait for it."""
        if self._portable and not self._free:
            item = WorkItem(setup, _make_ready, setup.model)
            self._run_aside(self._in_process(item, DeferringFloor(), _ignore_event))

    async def _in_process(self, item: WorkItem, summarizer: Summarizer, events: Events) -> Any:
        async with self._process_slots:
            process = self._free.pop() if self._free else await _Process.start()
            try:
                result = await process.run(item, summarizer, events)
            except BaseException as error:
                if isinstance(error, EverthreadError) and process.is_alive:
                    self._free.append(process)  # the engine failed, not the process
                else:
                    self._run_aside(process.end())
                raise
            self._free.append(process)
            return result

    async def _in_thread(self, item: WorkItem, summarizer: Summarizer, events: Events) -> Any:
        loop_summarizer = LoopSummarizer(summarizer, TokenCounter(item.setup.model))
        report = report_in_loop(events)

        async def work() -> Any:
            return await item.work(item.setup.create(loop_summarizer, time.monotonic, report), item.argument)

        async with self._threads:
            return await loop_summarizer.run(work)

    def _run_aside(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Future[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # seen: where warming up fails, the first compaction meets it again, and is told

    async def close(self, seconds: float = 1.0) -> None:
        """End the free processes; cancelled compactions have this long to end."""
        while self._free:
            self._run_aside(self._free.pop().end())
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)


async def run_in_thread(work: Callable[[], Awaitable[T]]) -> T:
    """The result of `work`, done in a thread with a loop of its own.

    Where its caller is cancelled it is cancelled too, and ends at its next step; nobody waits for that.
    """
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
    outcome.set_running_or_notify_cancel()  # from here on only the thread settles it
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []
    is_cancelled = False

    async def main() -> T:
        task = asyncio.ensure_future(_await_work(work))
        started.append((asyncio.get_running_loop(), task))
        if is_cancelled:
            task.cancel()
        return await task

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(main()))
        except asyncio.CancelledError:
            outcome.set_exception(EngineError("the compaction was cancelled"))
        except BaseException as failure:  # noqa: BLE001 - whoever waits for it is told
            outcome.set_exception(failure)

    threading.Thread(target=contextvars.copy_context().run, args=(run,), name="compaction", daemon=True).start()
    try:
        return await asyncio.wrap_future(outcome)
    except asyncio.CancelledError:
        is_cancelled = True
        for loop, task in started:
            with contextlib.suppress(RuntimeError):  # it ended at this very moment
                loop.call_soon_threadsafe(task.cancel)
        raise


async def _await_work(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


class LoopSummarizer:
    """A summariser of this loop, for an engine in a thread. The journal needs no loop and is written there."""

    def __init__(self, summarizer: Summarizer, counter: TokenCounter, *, patience: float | None = None) -> None:
        self.inner = summarizer
        self._counter = counter
        self._loop = asyncio.get_running_loop()
        self._patience = patience
        self._open: set[asyncio.Task[SummaryDraft]] = set()
        self.is_slow = asyncio.Event()
        """Set while a summary takes longer than `patience` seconds to be written."""

    @property
    def name(self) -> str:
        return self.inner.name

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do in a thread what asks this summariser; where that is cancelled, so is what was asked, to its end."""
        try:
            return await run_in_thread(work)
        except asyncio.CancelledError:
            if tasks := list(self._open):
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            raise

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        if asyncio.get_running_loop() is self._loop or _writes_here(self.inner):
            draft = await self.inner.summarize(request)
        else:
            draft = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._ask(request), self._loop))
        return await _complete(draft, request, self._counter)

    async def _ask(self, request: SummaryRequest) -> SummaryDraft:
        task = asyncio.ensure_future(self.inner.summarize(request))
        self._open.add(task)
        timer = None if self._patience is None else self._loop.call_later(self._patience, self.is_slow.set)
        try:
            return await task
        finally:
            self._open.discard(task)
            if timer is not None:
                timer.cancel()
            self.is_slow.clear()


def report_in_loop(events: Events) -> Events:
    """The same events, reported in the loop of whoever asks."""
    loop, home = asyncio.get_running_loop(), threading.get_ident()

    def report(kind: str, **details: Any) -> None:
        if loop.is_running() and threading.get_ident() == home:
            events(kind, **details)
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended; nobody listens
            loop.call_soon_threadsafe(functools.partial(events, kind, **details))

    return report


# The process, seen from the gateway


class _Process:
    """A child process that runs one work item at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None:
            raise EngineError("the process of the compaction cannot be reached")
        self._process, self._requests, self._responses = process, process.stdin, process.stdout

    @classmethod
    async def start(cls) -> _Process:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-c", _COMMAND)
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=environment))

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._requests.close()
        await self._process.wait()

    async def run(self, item: WorkItem, summarizer: Summarizer, events: Events) -> Any:
        tasks: set[asyncio.Task[None]] = set()
        try:
            await self._send("run", item, summarizer.name, _writes_here(summarizer))
            while True:
                kind, *values = await self._receive()
                if kind == "event":
                    events(values[0], **values[1])
                elif kind == "ask":
                    task = asyncio.create_task(self._answer(summarizer, *values))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                elif kind == "done":
                    return values[0]
                else:
                    raise EngineError(values[0])
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            await self._process.wait()
            raise EngineError(f"the process of the compaction ended ({type(error).__name__})") from error
        finally:
            for task in tasks:
                task.cancel()

    async def _answer(self, summarizer: Summarizer, number: int, request: SummaryRequest) -> None:
        """A summariser is anybody's code: whatever fails in it, the journal takes its place."""
        try:
            draft = await summarizer.summarize(request)
        except Exception as error:  # noqa: BLE001 - it is told in the draft
            words = str(error) if isinstance(error, SummaryError) else f"{type(error).__name__}: {error}"
            note = f"{summarizer.name} wrote no summary: {words}"
            draft = DeferredSummary({}, summarizer.name, (note,), getattr(error, "usage", ()))
        await self._send("answer", number, draft)

    async def _send(self, *values: Any) -> None:
        data = pickle.dumps(values)
        self._requests.write(_HEAD.pack(len(data)) + data)
        await self._requests.drain()

    async def _receive(self) -> Any:
        (size,) = _HEAD.unpack(await self._responses.readexactly(_HEAD.size))
        return pickle.loads(await self._responses.readexactly(size))  # noqa: S301  # nosec B301  our own child wrote it


# The process itself


class _Child:
    """Runs work items that come over standard input, until that ends."""

    def __init__(self, requests: BinaryIO, responses: BinaryIO) -> None:
        self._requests = requests
        self._responses = responses
        self._drafts: dict[int, asyncio.Future[SummaryDraft]] = {}
        self._lock = threading.Lock()

    async def serve(self) -> None:
        working: asyncio.Task[None] | None = None
        while (message := await asyncio.to_thread(self._receive)) is not None:
            kind, *values = message
            if kind == "run":
                working = asyncio.create_task(self._work(*values))
            else:
                number, draft = values
                waiting = self._drafts.pop(number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(draft)
        if working is not None:
            working.cancel()

    def _receive(self) -> Any:
        """The next message; None at the end of the input."""
        head = self._requests.read(_HEAD.size)
        if not head:
            return None
        (size,) = _HEAD.unpack(head)
        return pickle.loads(self._requests.read(size))  # noqa: S301  # nosec B301  our own parent wrote it

    async def _work(self, item: WorkItem, name: str, writes_here: bool) -> None:  # noqa: FBT001
        counter = TokenCounter(item.setup.model)
        summarizer = _ParentSummarizer(self, name, counter, writes_here=writes_here)
        try:
            engine = item.setup.create(summarizer, time.monotonic, self._report)
            result = await item.work(engine, item.argument)
        except Exception as error:  # noqa: BLE001 - an engine is anybody's code; the parent is told
            words = str(error) if isinstance(error, EverthreadError) else f"{type(error).__name__}: {error}"
            self._send("error", words)
        else:
            self._send("done", result)

    def _report(self, kind: str, **details: Any) -> None:
        self._send("event", kind, details)

    async def ask(self, request: SummaryRequest) -> SummaryDraft:
        number = max(self._drafts, default=0) + 1
        waiting: asyncio.Future[SummaryDraft] = asyncio.get_running_loop().create_future()
        self._drafts[number] = waiting
        self._send("ask", number, request)
        return await waiting

    def _send(self, *values: Any) -> None:
        data = pickle.dumps(values)
        with self._lock:
            self._responses.write(_HEAD.pack(len(data)) + data)
            self._responses.flush()


class _ParentSummarizer:
    """Asks the gateway for a summary; writes the journal itself."""

    def __init__(self, child: _Child, name: str, counter: TokenCounter, *, writes_here: bool) -> None:
        self._child = child
        self._counter = counter
        self._writes_here = writes_here
        self.name = name

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        draft = DeferredSummary({}, self.name) if self._writes_here else await self._child.ask(request)
        return await _complete(draft, request, self._counter)


def main() -> None:
    """Serve the gateway that started this process. What an engine prints goes to the log, not between the messages."""
    responses = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with contextlib.suppress(OSError, AttributeError):
        os.nice(_NICENESS)
    asyncio.run(_Child(sys.stdin.buffer, responses).serve())


# --- guards -----------------------------------------------------------------------------------------------------------


class SafeEngine(ContextEngine):
    """The engine, with each failure reported once. Only `compress` raises: always an `EverthreadError`."""

    def __init__(self, engine: ContextEngine, report_failure: Callable[[str], None]) -> None:
        self._engine = engine
        self._report_failure = report_failure
        self._reported: set[str] = set()

    @property
    def name(self) -> str:
        return self._engine.name

    async def compress(self, messages: Messages, **how: Any) -> Compaction:
        try:
            compaction = await self._engine.compress(messages, **how)
        except EverthreadError:
            raise
        except Exception as error:
            raise EngineError(f"the context engine {self.name} failed: {type(error).__name__}: {error}") from error
        check_compaction(self.name, compaction, len(messages))
        return compaction

    async def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return await self._engine.handle_tool_call(name, arguments)

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        return self._call(bool, "should_compress", prompt_tokens)

    def has_content_to_compress(self, messages: Messages) -> bool:
        return self._call(bool, "has_content_to_compress", messages)

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return self._call(list, "get_tool_schemas")

    def dump_state(self) -> dict[str, Any]:
        return self._call(dict, "dump_state")

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._tell("load_state", state)

    def update_from_response(self, usage: CanonicalUsage) -> None:
        self._tell("update_from_response", usage)

    def update_model(self, services: Services) -> None:
        self._tell("update_model", services)

    def pin(self, notes: Sequence[str]) -> None:
        self._tell("pin", notes)

    def on_session_start(self, session_id: str, *, reason: StartReason = "new", previous: str | None = None) -> None:
        self._tell("on_session_start", session_id, reason=reason, previous=previous)

    def on_session_end(self, session_id: str) -> None:
        self._tell("on_session_end", session_id)

    def on_compacted(self, compaction: Compaction) -> None:
        self._tell("on_compacted", compaction)

    def failed(self, what: str, why: object) -> None:
        """Report a failure; the same one only once."""
        if what not in self._reported:
            self._reported.add(what)
            self._report_failure(
                f"The context engine {self.name} failed in {what} ({why}); the conversation goes on without it."
            )

    def _tell(self, what: str, *values: Any, **named: Any) -> None:
        self._call(bool, what, *values, **named)

    def _call(self, make: Callable[..., T], what: str, *values: Any, **named: Any) -> T:
        """What a method of the engine returns, as a value of this type; an empty one where it fails."""
        try:
            return make(getattr(self._engine, what)(*values, **named))
        except Exception as error:  # noqa: BLE001 - it is told, and an engine must not end a conversation
            self.failed(what, f"{type(error).__name__}: {error}")
            return make()


class SafeSummarizer:
    """A summariser of anybody's, whose failures are all `SummaryError`: the next in its chain is asked then."""

    def __init__(self, summarizer: Summarizer) -> None:
        self._summarizer = summarizer

    @property
    def name(self) -> str:
        return self._summarizer.name

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        try:
            return await self._summarizer.summarize(request)
        except SummaryError:
            raise
        except Exception as error:
            raise SummaryError(f"{type(error).__name__}: {error}") from error


def check_compaction(engine: str, compaction: Any, count: int) -> None:
    """`EngineError` where a compaction of so many messages cannot be used."""
    wrong = find_fault(compaction, count)
    if wrong:
        raise EngineError(f"the context engine {engine} gave no usable compaction: {wrong}. Nothing was changed.")


def find_fault(compaction: Any, count: int) -> str:
    """What makes a compaction of so many messages unusable; empty where nothing does."""
    if not isinstance(compaction, Compaction):
        return f"it is a {type(compaction).__name__}"
    if not compaction.changed:
        return ""

    def is_place(at: Any) -> bool:
        return isinstance(at, int) and 0 <= at < count

    if not _list_of(compaction.messages, lambda item: isinstance(item, Mapping) and isinstance(item.get("role"), str)):
        return "its messages are no list of messages"
    if not compaction.messages and count:
        return "it has no message left"
    if len(compaction.kept) != len(compaction.messages) or not _list_of(
        compaction.kept, lambda at: at is None or is_place(at)
    ):
        return "`kept` does not name, for each of its messages, the one it was"
    if not _list_of(compaction.covered, is_place):
        return "`covered` names messages that are not there"
    if not _list_of(compaction.to_store, lambda item: isinstance(item, ToStore)):
        return "`to_store` holds what is no output"
    if not _list_of(compaction.nodes, lambda item: isinstance(item, Node)):
        return "`nodes` holds what is no node"
    if not _list_of(compaction.usage, lambda item: isinstance(item, Mapping)):
        return "`usage` holds what is no usage"
    return ""


def _list_of(items: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(items, Sequence) and all(map(fits, items))
