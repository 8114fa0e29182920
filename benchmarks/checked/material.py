"""Load recordings as sources, with their sentences and the summaries that a model wrote of them.

The logs of Claude Code contain the summaries that its own model wrote at its compactions: correct paraphrases of the
messages before them, written without knowledge of our checker.

"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.shared import find_shared, half_of
from everthread.compaction.summary.sentences import split_sentences
from everthread.compaction.verification.checkable_names import (
    find_checkable_names,
)
from everthread.compaction.verification.unsupported_lines import (
    join_sources,
)
from everthread.core.messages import Message, results_of, text_of
from everthread.core.turns import is_user_message, user_text
from everthread.errors import EverthreadError
from everthread.lab.importers.read_logs import parse_log
from everthread.wire import anthropic

MIN_SENTENCE_CHARS = 25
MAX_SENTENCE_CHARS = 400
MIN_CHARS_PER_TOKEN = 2.0
"""Minimum recorded characters per token that a compaction covered. With fewer, the session began in another file."""
_CLIENT_WORDS = (
    "This session is being continued",
    "If you need specific details",
    "Please continue the conversation",
)
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording, with sentences from it and lines that a model wrote about it."""

    name: str
    half: str
    sources: str
    said: list[str] = field(default_factory=list)
    """Sentences of all speakers with a name or a figure, word for word."""
    asked: list[str] = field(default_factory=list)
    """Sentences of the user, word for word."""
    written: list[str] = field(default_factory=list)
    """Lines of a model's summary with a name or a figure."""


def recordings() -> Iterator[Recording]:
    for folder, pattern in (("transcripts", "*.json"), ("logs", "*.jsonl.gz")):
        root = find_shared(folder)
        for path in sorted(root.glob(pattern)) if root else ():
            yield from _read_recordings(path)


def _read_recordings(path: Path) -> Iterator[Recording]:
    name = path.name.partition(".")[0]
    half = half_of(name)
    if path.suffix != ".gz":
        messages = json.loads(path.read_text("utf-8"))["messages"]
        yield _make_recording(
            name, half, [message for message in messages if message["role"] != "system"]
        )
        return
    text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
    if name.startswith("claude-code"):
        yield from _read_summaries(name, half, text)
        return
    try:
        messages = parse_log(text, name).messages
    except EverthreadError:
        return
    yield _make_recording(name, half, messages)


def _make_recording(name: str, half: str, messages: Sequence[Message]) -> Recording:
    return Recording(
        name=name,
        half=half,
        sources=join_sources(messages, ""),
        said=list(dict.fromkeys(_list_checkable_sentences(messages))),
        asked=list(dict.fromkeys(_list_user_sentences(messages))),
    )


def _list_checkable_sentences(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        for text in (
            text_of(message),
            *(result.text for result in results_of(message)),
        ):
            yield from (sentence for sentence in _split_sentences(text) if is_checkable(sentence))


def _list_user_sentences(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        if is_user_message(message):
            yield from _split_sentences(user_text(message))


def _split_sentences(text: str) -> Iterator[str]:
    for piece in split_sentences(text):
        sentence = text[piece.start : piece.end].strip()
        if MIN_SENTENCE_CHARS <= len(sentence) <= MAX_SENTENCE_CHARS and sentence.count(" ") > 3:
            yield sentence


def is_checkable(line: str) -> bool:
    return _DIGIT.search(line) is not None or bool(find_checkable_names(line))


def _read_summaries(name: str, half: str, text: str) -> Iterator[Recording]:
    """Yield a recording for each compaction whose messages are in the log; the earlier summary is a source too."""
    messages_before: list[dict[str, Any]] = []
    earlier_summary = ""
    covered_tokens = 0
    number = 0
    for event in _parse_events(text):
        if event.get("subtype") == "compact_boundary":
            covered_tokens = int(event.get("compactMetadata", {}).get("preTokens") or 0)
        elif event.get("isCompactSummary"):
            messages = anthropic.decode_messages(_merge_messages(messages_before))
            summary = _read_text(event["message"])
            number += 1
            recording = _make_recording(f"{name} {number}", half, messages)
            if len(recording.sources) >= MIN_CHARS_PER_TOKEN * covered_tokens:
                lines = [line.rstrip() for line in summary.split("\n") if is_checkable(line)]
                recording.written.extend(
                    line for line in lines if not line.startswith(_CLIENT_WORDS)
                )
                yield Recording(
                    recording.name,
                    half,
                    f"{earlier_summary}\n{recording.sources}",
                    recording.said,
                    recording.asked,
                    recording.written,
                )
            earlier_summary = summary
        elif _is_message(event):
            messages_before.append(event["message"])


def _parse_events(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def _is_message(event: dict[str, Any]) -> bool:
    return (
        event.get("type") in ("user", "assistant")
        and not event.get("isSidechain")
        and not event.get("isApiErrorMessage")
        and isinstance(event.get("message"), dict)
    )


def _read_text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(
        block.get("text", "") for block in content or () if block.get("type") == "text"
    )


def _merge_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the blocks that a log writes as several lines into one message."""
    merged: list[dict[str, Any]] = []
    last_id = None
    for message in messages:
        content = message.get("content")
        blocks = (
            [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
        )
        blocks = [
            block for block in blocks if block.get("type") in ("text", "tool_use", "tool_result")
        ]
        if not blocks:
            continue
        if (
            merged
            and merged[-1]["role"] == message["role"]
            and (message["role"] == "user" or message.get("id") == last_id)
        ):
            merged[-1]["content"] += blocks
        else:
            merged.append({"role": message["role"], "content": blocks})
        last_id = message.get("id")
    return merged
