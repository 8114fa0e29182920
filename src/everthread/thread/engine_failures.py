"""Guards around engines and summarisers, including third-party ones: a failure must not end a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from everthread.compaction.engine import ContextEngine, Services, StartReason
from everthread.compaction.planning import CompactionInput, PlanningEngine, as_planning
from everthread.compaction.summary import (
    Compaction,
    Summarizer,
    SummaryDraft,
    SummaryRequest,
)
from everthread.core.canonical_usage import CanonicalUsage
from everthread.core.messages import Messages
from everthread.core.outputs import OutputToStore
from everthread.core.types import Node
from everthread.errors import EngineError, EverthreadError, SummaryError

T = TypeVar("T")


@contextmanager
def wrap_failure(engine: str) -> Iterator[None]:
    """Raise an engine's failure of any kind as an `EngineError`."""
    try:
        yield
    except EverthreadError:
        raise
    except Exception as error:
        raise EngineError(
            f"the context engine {engine} failed: {type(error).__name__}: {error}"
        ) from error


class SafeEngine(ContextEngine):
    """The engine, with each failure reported once. Only `compress` raises: always an `EverthreadError`."""

    def __init__(
        self, engine: ContextEngine, report_failure: Callable[[str], None]
    ) -> None:
        self._engine = engine
        self._report_failure = report_failure
        self._reported: set[str] = set()

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def planning(self) -> PlanningEngine | None:
        """The engine itself if it plans and finishes."""
        return as_planning(self._engine)

    async def compress(self, messages: Messages, **how: Any) -> Compaction:
        with wrap_failure(self.name):
            compaction = await self._engine.compress(messages, **how)
        check_compaction(self.name, compaction, len(messages))
        return compaction

    async def refit(
        self, prepared: Compaction, since: Messages, *, start: int, **how: Any
    ) -> Compaction:
        with wrap_failure(self.name):
            compaction = await self._engine.refit(prepared, since, start=start, **how)
        check_compaction(self.name, compaction, start + len(since))
        return compaction

    async def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return await self._engine.handle_tool_call(name, arguments)

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        return self._call(bool, "should_compress", prompt_tokens)

    def has_work(self, given: CompactionInput) -> bool:
        """Return whether there is anything to make smaller; of an engine that plans, for exactly this input."""
        if self.planning is None:
            return self.has_content_to_compress(given.messages)
        return self._call(bool, "has_work", given)

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

    def on_session_start(
        self,
        session_id: str,
        *,
        reason: StartReason = "new",
        previous: str | None = None,
    ) -> None:
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
        """Return the result of an engine's method as a value of this type; an empty one if it fails."""
        try:
            return make(getattr(self._engine, what)(*values, **named))
        except Exception as error:  # noqa: BLE001 - it is reported, and an engine must not end a conversation
            self.failed(what, f"{type(error).__name__}: {error}")
            return make()


class SafeSummarizer:
    """Wrap a summariser so that every failure is a `SummaryError` and the next one in its chain is tried."""

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
    """Raise `EngineError` if a compaction of `count` messages cannot be used."""
    wrong = find_fault(compaction, count)
    if wrong:
        raise EngineError(
            f"the context engine {engine} gave no usable compaction: {wrong}. Nothing was changed."
        )


def find_fault(compaction: Any, count: int) -> str:
    """Return why a compaction of `count` messages is unusable; empty if it is usable."""
    if not isinstance(compaction, Compaction):
        return f"it is a {type(compaction).__name__}"
    if not compaction.changed:
        return ""

    def is_place(at: Any) -> bool:
        return isinstance(at, int) and 0 <= at < count

    if not _list_of(
        compaction.messages,
        lambda item: isinstance(item, Mapping) and isinstance(item.get("role"), str),
    ):
        return "its messages are no list of messages"
    if not compaction.messages and count:
        return "it has no message left"
    if len(compaction.kept) != len(compaction.messages) or not _list_of(
        compaction.kept, lambda at: at is None or is_place(at)
    ):
        return "`kept` does not name, for each of its messages, the one it was"
    if not _list_of(compaction.covered, is_place):
        return "`covered` names messages that are not there"
    if not _list_of(compaction.to_store, lambda item: isinstance(item, OutputToStore)):
        return "`to_store` holds what is no output"
    if not _list_of(compaction.nodes, lambda item: isinstance(item, Node)):
        return "`nodes` holds what is no node"
    if not _list_of(compaction.usage, lambda item: isinstance(item, Mapping)):
        return "`usage` holds what is no usage"
    return ""


def _list_of(items: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(items, Sequence) and all(map(fits, items))
