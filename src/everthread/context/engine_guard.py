"""Guards around an engine and a summariser: anybody's code, whose failures must not end a conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from everthread.compaction.engine import ContextEngine, Services, StartReason
from everthread.compaction.summary import Compaction, Summarizer, SummaryDraft, SummaryRequest
from everthread.core.messages import Messages
from everthread.core.outputs import ToStore
from everthread.core.pricing import CanonicalUsage
from everthread.core.types import Node
from everthread.errors import EngineError, EverthreadError, SummaryError

T = TypeVar("T")


class SafeEngine(ContextEngine):
    """The engine, with its failures told once each. Only `compress` raises: always an `EverthreadError`."""

    def __init__(self, engine: ContextEngine, tell: Callable[[str], None]) -> None:
        self._engine = engine
        self._tell = tell
        self._told: set[str] = set()

    @property
    def name(self) -> str:
        return self._engine.name

    async def compress(self, messages: Messages, **how: Any) -> Compaction:
        try:
            made = await self._engine.compress(messages, **how)
        except EverthreadError:
            raise
        except Exception as error:
            raise EngineError(f"the context engine {self.name} failed: {type(error).__name__}: {error}") from error
        check_compaction(self.name, made, len(messages))
        return made

    def update_from_response(self, usage: CanonicalUsage) -> None:
        self._asked("update_from_response", lambda: self._engine.update_from_response(usage), otherwise=None)

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        return self._asked(
            "should_compress", lambda: bool(self._engine.should_compress(prompt_tokens)), otherwise=False
        )

    def has_content_to_compress(self, messages: Messages) -> bool:
        return self._asked(
            "has_content_to_compress", lambda: bool(self._engine.has_content_to_compress(messages)), otherwise=False
        )

    def pin(self, notes: Sequence[str]) -> None:
        self._asked("pin", lambda: self._engine.pin(notes), otherwise=None)

    def on_session_start(self, session_id: str, *, reason: StartReason = "new", previous: str | None = None) -> None:
        self._asked(
            "on_session_start",
            lambda: self._engine.on_session_start(session_id, reason=reason, previous=previous),
            otherwise=None,
        )

    def on_session_end(self, session_id: str) -> None:
        self._asked("on_session_end", lambda: self._engine.on_session_end(session_id), otherwise=None)

    def on_compacted(self, compaction: Compaction) -> None:
        self._asked("on_compacted", lambda: self._engine.on_compacted(compaction), otherwise=None)

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return self._asked("get_tool_schemas", lambda: list(self._engine.get_tool_schemas()), otherwise=[])

    async def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return await self._engine.handle_tool_call(name, arguments)

    def update_model(self, services: Services) -> None:
        self._asked("update_model", lambda: self._engine.update_model(services), otherwise=None)

    def dump_state(self) -> dict[str, Any]:
        return self._asked("dump_state", lambda: dict(self._engine.dump_state()), otherwise={})

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._asked("load_state", lambda: self._engine.load_state(state), otherwise=None)

    def failed(self, what: str, why: object) -> None:
        """Tell of a failure; of the same one only once."""
        if what not in self._told:
            self._told.add(what)
            self._tell(f"The context engine {self.name} failed in {what} ({why}); the conversation goes on without it.")

    def _asked(self, what: str, ask: Callable[[], T], *, otherwise: T) -> T:
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - it is told, and an engine must not end a conversation
            self.failed(what, f"{type(error).__name__}: {error}")
            return otherwise


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


def check_compaction(engine: str, made: Any, given: int) -> None:
    """`EngineError` where a compaction of so many messages cannot be used."""
    wrong = find_fault(made, given)
    if wrong:
        raise EngineError(f"the context engine {engine} gave no usable compaction: {wrong}. Nothing was changed.")


def find_fault(made: Any, given: int) -> str:
    """What makes a compaction of so many messages unusable; empty where nothing does."""
    if not isinstance(made, Compaction):
        return f"it is a {type(made).__name__}"
    if not made.changed:
        return ""
    if not _list_of(made.messages, lambda item: isinstance(item, Mapping) and isinstance(item.get("role"), str)):
        return "its messages are no list of messages"
    if not made.messages and given:
        return "it has no message left"
    if len(made.kept) != len(made.messages) or not _list_of(made.kept, lambda at: at is None or _within(at, given)):
        return "`kept` does not name, for each of its messages, the one it was"
    if not _list_of(made.covered, lambda at: _within(at, given)):
        return "`covered` names messages that are not there"
    if not _list_of(made.to_store, lambda item: isinstance(item, ToStore)):
        return "`to_store` holds what is no output"
    if not _list_of(made.nodes, lambda item: isinstance(item, Node)):
        return "`nodes` holds what is no node"
    if not _list_of(made.usage, lambda item: isinstance(item, Mapping)):
        return "`usage` holds what is no usage"
    return ""


def _within(at: Any, given: int) -> bool:
    return isinstance(at, int) and 0 <= at < given


def _list_of(items: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(items, Sequence) and all(map(fits, items))
