"""Wrappers of engines and summarisers, so that a failure of third-party code does not end a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.engine import ContextEngine, Services, StartReason
from everthread.compaction.engine_input import CompactionInput, RefitInput
from everthread.compaction.planning_engine import PlanningEngine, as_planning_engine
from everthread.compaction.summarizers.summarizer import (
    Summarizer,
    SummaryDraft,
    SummaryRequest,
)
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import Messages
from everthread.core.tool_outputs import OutputToStore
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


async def run_engine(
    engine: ContextEngine, engine_input: CompactionInput | RefitInput
) -> Compaction:
    """Return the engine's compaction of the input. Raise `EngineError` if it fails or is unusable."""
    with wrap_failure(engine.name):
        compaction = await engine_input.run_on(engine)
    check_compaction(engine.name, compaction, engine_input.message_count)
    return compaction


class SafeEngine(ContextEngine):
    """Wrap an engine so that each failure is reported once. Only `compress` and `refit` raise, an `EverthreadError`."""

    def __init__(self, engine: ContextEngine, report_failure: Callable[[str], None]) -> None:
        self._engine = engine
        self._report_failure = report_failure
        self._reported: set[str] = set()

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def planning(self) -> PlanningEngine | None:
        """The engine if it has `plan` and `finish`; else None."""
        return as_planning_engine(self._engine)

    async def compress(self, messages: Messages, **options: Any) -> Compaction:
        return await run_engine(self._engine, CompactionInput(messages, **options))

    async def refit(
        self, prepared: Compaction, since: Messages, *, start: int, **options: Any
    ) -> Compaction:
        return await run_engine(self._engine, RefitInput(prepared, since, start, **options))

    async def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return await self._engine.handle_tool_call(name, arguments)

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        return self._call(bool, "should_compress", prompt_tokens)

    def has_work(self, engine_input: CompactionInput) -> bool:
        """Return whether there is anything to compact. A planning engine gets the whole input, others the messages."""
        if self.planning is None:
            return self.has_content_to_compress(engine_input.messages)
        return self._call(bool, "has_work", engine_input)

    def has_content_to_compress(self, messages: Messages) -> bool:
        return self._call(bool, "has_content_to_compress", messages)

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return self._call(list, "get_tool_schemas")

    def dump_state(self) -> dict[str, Any]:
        return self._call(dict, "dump_state")

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._notify("load_state", state)

    def update_from_response(self, usage: CanonicalUsage) -> None:
        self._notify("update_from_response", usage)

    def update_model(self, services: Services) -> None:
        self._notify("update_model", services)

    def pin(self, notes: Sequence[str]) -> None:
        self._notify("pin", notes)

    def on_session_start(
        self,
        session_id: str,
        *,
        reason: StartReason = "new",
        previous: str | None = None,
    ) -> None:
        self._notify("on_session_start", session_id, reason=reason, previous=previous)

    def on_session_end(self, session_id: str) -> None:
        self._notify("on_session_end", session_id)

    def on_compacted(self, compaction: Compaction) -> None:
        self._notify("on_compacted", compaction)

    def report_method_failure(self, method: str, error: object) -> None:
        """Report the failure of a method, only once per method."""
        if method not in self._reported:
            self._reported.add(method)
            self._report_failure(
                f"The context engine {self.name} failed in {method} ({error}); the conversation goes on without it."
            )

    def _notify(self, method: str, *args: Any, **kwargs: Any) -> None:
        self._call(bool, method, *args, **kwargs)

    def _call(self, result_type: Callable[..., T], method: str, *args: Any, **kwargs: Any) -> T:
        """Return the result of an engine's method, converted to this type; an empty value if it fails."""
        try:
            return result_type(getattr(self._engine, method)(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it is reported, and an engine must not end a conversation
            self.report_method_failure(method, f"{type(error).__name__}: {error}")
            return result_type()


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
    fault = find_fault(compaction, count)
    if fault:
        raise EngineError(
            f"the context engine {engine} gave no usable compaction: {fault}. Nothing was changed."
        )


def find_fault(compaction: Any, count: int) -> str:
    """Return why a compaction of `count` messages is unusable; empty if it is usable."""
    if not isinstance(compaction, Compaction):
        return f"it is a {type(compaction).__name__}"
    if not compaction.changed:
        return ""

    def is_index(index: Any) -> bool:
        return isinstance(index, int) and 0 <= index < count

    if not _is_list_of(
        compaction.messages,
        lambda item: isinstance(item, Mapping) and isinstance(item.get("role"), str),
    ):
        return "its messages are no list of messages"
    if not compaction.messages and count:
        return "it has no message left"
    if len(compaction.kept) != len(compaction.messages) or not _is_list_of(
        compaction.kept, lambda index: index is None or is_index(index)
    ):
        return "`kept` does not name, for each of its messages, the one it was"
    if not _is_list_of(compaction.covered, is_index):
        return "`covered` names messages that are not there"
    if not _is_list_of(compaction.to_store, lambda item: isinstance(item, OutputToStore)):
        return "`to_store` contains an item that is not an output"
    if not _is_list_of(compaction.nodes, lambda item: isinstance(item, Node)):
        return "`nodes` contains an item that is not a node"
    if not _is_list_of(compaction.usage, lambda item: isinstance(item, Mapping)):
        return "`usage` contains an item that is not a mapping"
    return ""


def _is_list_of(items: Any, is_valid: Callable[[Any], bool]) -> bool:
    return isinstance(items, Sequence) and all(map(is_valid, items))
