"""The base class of the readers: a log of JSON lines that a client wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from everthread.core.messages import Message
from everthread.core.text import count_noun
from everthread.lab.importers.log import (
    ClientCompaction,
    Log,
    LoggedMessage,
    find_first_model,
)

NumberedLines = Iterable[tuple[int, dict[str, Any]]]
"""The JSON objects of a file, each with its line number; can be iterated more than once."""


@dataclass
class ClientLogReader:
    """Collects the conversation in a log, line by line. A subclass reads the lines of one client."""

    kind: ClassVar[str]
    """The format's name, a key of `CLIENT_NAMES`."""
    bad_line_noun: ClassVar[str] = "message"
    """The noun for the thing that a bad line lacks, for the warning."""

    messages: list[LoggedMessage] = field(default_factory=list)
    compactions: list[ClientCompaction] = field(default_factory=list)
    system: str | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    model: str = ""
    """The model in use; if it stays empty, the log gets the model of the first answer."""
    session_id: str = ""
    title: str = ""
    window: int | None = None
    line_number: int = 0
    """Number of the line that is being read."""
    bad_line_numbers: list[int] = field(default_factory=list)
    """Numbers of the lines that should hold a message and do not."""
    skipped_line_counts: Counter[str] = field(default_factory=Counter)
    """How many lines were left out on purpose, by reason."""

    @staticmethod
    def is_own_line(line: Mapping[str, Any]) -> bool:
        """Return whether only this client writes such a line."""
        raise NotImplementedError

    def read_line(self, line: dict[str, Any]) -> None:
        """Add what one line of the log says to the conversation."""
        raise NotImplementedError

    def finish(self) -> None:
        """Complete the conversation after the last line."""

    def add_message(self, message: Message, timestamp: float | None) -> None:
        self.messages.append(LoggedMessage(message, timestamp))

    def read(self, lines: NumberedLines, source: str) -> Log:
        """Return the conversation in the lines."""
        for self.line_number, line in lines:
            self.read_line(line)
        self.finish()
        return Log(
            source,
            self.kind,
            self.messages,
            system=self.system,
            tools=self.tools,
            model=self.model or find_first_model(self.messages),
            warnings=self.describe_gaps(),
            session_id=self.session_id,
            title=self.title,
            window=self.window,
            compactions=self.compactions,
        )

    def describe_gaps(self) -> list[str]:
        """Describe which lines could not be read and how many were left out for each reason."""
        warnings = []
        if self.bad_line_numbers:
            numbers = format_line_numbers(self.bad_line_numbers)
            warnings.append(f"{numbers}: no {self.bad_line_noun} that can be read; skipped")
        return warnings + [
            f"{count_noun(count, 'line')} left out: {reason}"
            for reason, count in self.skipped_line_counts.items()
            if count
        ]


MAX_LISTED_LINES = 8
"""Maximum line numbers in a warning."""


def format_line_numbers(numbers: list[int]) -> str:
    """Format line numbers: `line 3`, `lines 3, 4 and 12`, `lines 1, 2, … (90 in all)`."""
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    if len(numbers) > MAX_LISTED_LINES:
        return (
            f"lines {', '.join(map(str, numbers[:MAX_LISTED_LINES]))}, … ({len(numbers):,} in all)"
        )
    return f"lines {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
