"""Keep a failing engine, which may be third-party code, from ending a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.engine import ContextEngine
from everthread.compaction.engine_input import CompactionInput
from everthread.compaction.planning_engine import PlanningEngine, as_planning_engine
from everthread.core.tool_outputs import OutputToStore
from everthread.core.types import Node
from everthread.errors import EngineError, EverthreadError

T = TypeVar("T")
P = ParamSpec("P")


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


class SafeEngine:
    """An engine whose failing methods are reported once each, and otherwise ignored.

    `engine` is the engine itself, for compactions and tool calls, whose failures reach the caller.
    """

    def __init__(self, engine: ContextEngine, report_failure: Callable[[str], None]) -> None:
        self.engine = engine
        self._report_failure = report_failure
        self._reported_methods: set[str] = set()

    @property
    def name(self) -> str:
        return self.engine.name

    def should_compress(self, prompt_tokens: int) -> bool:
        return bool(self.call(ContextEngine.should_compress, prompt_tokens))

    def has_work(self, engine_input: CompactionInput) -> bool:
        """Return whether there is anything to compact. A planning engine gets the whole input, others the messages."""
        if as_planning_engine(self.engine) is None:
            return bool(self.call(ContextEngine.has_content_to_compress, engine_input.messages))
        return bool(self.call(PlanningEngine.has_work, engine_input))

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return self.call(ContextEngine.get_tool_schemas) or []

    def call(
        self, method: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Call a method of the engine, as `call(ContextEngine.pin, notes)`. Return its result, or None if it fails."""
        try:
            result: T = getattr(self.engine, method.__name__)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - it is reported, and an engine must not end a conversation
            self.report_failed_method(method.__name__, f"{type(error).__name__}: {error}")
            return None
        return result

    def report_failed_method(self, method: str, error: object) -> None:
        """Report the failure of a method, only once per method."""
        if method not in self._reported_methods:
            self._reported_methods.add(method)
            self._report_failure(
                f"The context engine {self.name} failed in {method} ({error}); the conversation goes on without it."
            )


def check_compaction(engine: str, compaction: Any, message_count: int) -> None:
    """Raise `EngineError` if a compaction of `message_count` messages cannot be used."""
    fault = find_fault(compaction, message_count)
    if fault:
        raise EngineError(
            f"the context engine {engine} gave no usable compaction: {fault}. Nothing was changed."
        )


def find_fault(compaction: Any, message_count: int) -> str:
    """Return why a compaction of `message_count` messages is unusable, or an empty string if it is usable."""
    if not isinstance(compaction, Compaction):
        return f"it is a {type(compaction).__name__}"
    if not compaction.changed:
        return ""

    def is_index(index: Any) -> bool:
        return isinstance(index, int) and 0 <= index < message_count

    if not _is_list_of(
        compaction.messages,
        lambda item: isinstance(item, Mapping) and isinstance(item.get("role"), str),
    ):
        return "its messages are not a list of messages"
    if not compaction.messages and message_count:
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
