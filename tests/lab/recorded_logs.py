"""The sample logs of each client, and what tests ask of a log."""

from __future__ import annotations

from pathlib import Path

from everthread.core.messages import results_of, text_of
from everthread.core.turns import is_user_message, user_text
from everthread.lab.importers.log import Log
from everthread.lab.importers.read_logs import parse_log

CLAUDE = "claude-opus-4-5"


def sample_text(name: str) -> str:
    return (Path(__file__).parent / "client_logs" / name).read_text("utf-8").rstrip()


def parse_sample(name: str) -> Log:
    return parse_log(sample_text(name), name)


def list_texts(log: Log) -> list[tuple[str, str]]:
    """Return the role and the text of each message."""
    return [(message["role"], text_of(message)) for message in log.messages]


def list_user_words(log: Log) -> list[str]:
    return [user_text(message).strip() for message in log.messages if is_user_message(message)]


def list_results(log: Log) -> list[str]:
    return [result.text for message in log.messages for result in results_of(message)]


def list_compactions(log: Log) -> list[tuple[int, str | None]]:
    """Return the index of the next entry and the summary of each compaction."""
    return [(compaction.next_entry_index, compaction.summary) for compaction in log.compactions]
