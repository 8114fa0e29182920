"""Builders for histories, and an engine over test doubles that compacts them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.engine import ReportProgress, Services, ignore_event
from everthread.compaction.journal.journal import Journal
from everthread.compaction.journal.journal_builder import build_journal_and_state
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.compaction.summary.sections import (
    USER_WORDS,
    Sections,
    parse_sections,
)
from everthread.compaction.summary.user_quotes import UserQuote, parse_quotes
from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.testing import ScriptedSummarizer
from tests.chat_messages import assistant_message, user_message

T = TypeVar("T")
COUNTER = TokenCounter("gpt-4o")
COUNT = COUNTER.text
JOURNAL = JournalWriter(COUNTER)


def flatten(groups: Iterable[Iterable[T]]) -> list[T]:
    return [item for group in groups for item in group]


def call_with_result(
    name: str,
    arguments: Mapping[str, Any] | str,
    result: str,
    *,
    text: str | None = None,
    call_id: str = "",
    is_error: bool = False,
) -> list[Message]:
    """Return an assistant message with one call, and its result. By default, equal calls have equal ids."""
    arguments_text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    content = f"{name} {arguments_text} {result}".encode("utf-8", "surrogatepass")
    call_id = call_id or f"call_{zlib.crc32(content):x}"
    function: Any = {"name": name, "arguments": arguments_text}
    call: Any = {"id": call_id, "type": "function", "function": function}
    answer: Any = {"role": "tool", "tool_call_id": call_id, "content": result}
    if is_error:
        answer["is_error"] = True
    return [{"role": "assistant", "content": text, "tool_calls": [call]}, answer]


def run_command(
    command: str, output: str, *, is_error: bool = False, **arguments: Any
) -> list[Message]:
    """Return a call that runs a shell command, and its output."""
    arguments = {"command": command, **arguments}
    return call_with_result("Bash", arguments, output, is_error=is_error)


def make_turn(request: str, *steps: Iterable[Message]) -> list[Message]:
    """Return a user's request, the steps of the work, and a short answer."""
    return [user_message(request), *flatten(steps), assistant_message("Done.")]


def tool_turns(start: int, count: int, *, size: int = 1500) -> list[Message]:
    """Return calls that read files with long outputs, numbered from `start` on."""

    def read_file(number: int) -> list[Message]:
        path = f"src/module_{number}.py"
        lines = (f"name_{number}_{i} = {i * number}" for i in range(size // 20))
        return call_with_result(
            "read_file",
            {"path": path},
            f"{path} {' '.join(lines)}",
            text=f"Reading {path}.",
            call_id=f"call_{number}",
        )

    return flatten(map(read_file, range(start, start + count)))


def long_history(*middle: Iterable[Message]) -> list[Message]:
    """Return a history whose middle a compaction covers: an opening, these messages, much reading, a request."""
    opening = [user_message("Begin."), assistant_message("Yes.")]
    return [*opening, *flatten(middle), *tool_turns(0, 60), user_message("Go on.")]


def make_services(
    window: int,
    summarizer: Summarizer | None = None,
    *,
    clock: Callable[[], float] = lambda: 0.0,
    events: ReportProgress = ignore_event,
    **settings: Any,
) -> Services:
    return Services(
        summarizer or ScriptedSummarizer(),
        COUNTER,
        Budget.for_window(window, **settings),
        clock,
        events,
    )


def make_engine(
    window: int, summarizer: Summarizer | None = None, **options: Any
) -> ContextCompressor:
    return ContextCompressor(make_services(window, summarizer, **options))


async def compact(
    messages: list[Message],
    *,
    window: int = 32_000,
    summarizer: Summarizer | None = None,
    **options: Any,
) -> Compaction:
    """Compact a history with a new engine."""
    return await make_engine(window, summarizer).compress(messages, **options)


def max_compacted_tokens(window: int) -> int:
    """Return the size that a compacted request should not exceed."""
    return Budget.for_window(window).max_compacted_tokens


def read_sections(compaction: Compaction) -> Sections:
    return parse_sections(compaction.summary)


def read_quotes(compaction: Compaction) -> list[UserQuote]:
    """Return the quotes of the user's words in a summary."""
    return parse_quotes(read_sections(compaction).get(USER_WORDS, ""))


def build_journal(messages: list[Message]) -> Journal:
    """Return the journal of a whole history."""
    return build_journal_and_state(messages)[0]


def count_tokens(messages: Iterable[Message]) -> int:
    return sum(map(COUNTER.message, messages))
