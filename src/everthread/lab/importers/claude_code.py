"""Claude Code's session files: `~/.claude/projects/<project>/<session>.jsonl`.

Each line is a JSON object. An answer of the model is spread over several lines with the same message id, one block
each. Each of these lines states the answer's usage, but while the answer streams the output tokens are only those of
its beginning.

Text that the client adds by itself (attachments, skills, notices of background tasks) is kept as injected text. A
command that waited in the queue while the model worked is a message of the user, and so is the text with which a user
rejects a call. Subagents (`isSidechain`) and error notices are left out with a warning. The client's own compactions
are described apart from the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from everthread.core.costs.canonical_usage import CanonicalUsage, normalize_usage
from everthread.core.json_values import iterate_strings
from everthread.core.messages import Message, kind_of
from everthread.errors import WireError
from everthread.lab.importers.client_log import ClientLogReader, NumberedLines
from everthread.lab.importers.log import (
    ClientCompaction,
    Log,
    LoggedMessage,
    LogStream,
    find_first_model,
)
from everthread.lab.importers.log_fields import (
    count_in,
    make_injected_message,
    object_in,
    parse_time,
    text_in,
)
from everthread.wire import anthropic

DEFAULT_CLAUDE_WINDOW = 200_000
LARGE_CLAUDE_WINDOW = 1_000_000

_SYNTHETIC_MODEL = "<synthetic>"
"""The model's name in messages that the client wrote itself."""
_REJECTION_PREFIX = "To tell you how to proceed, the user said:\n"
"""Comes before the user's words in the result of a call that the user rejected."""
_UNSENT_ATTACHMENTS = frozenset(
    {
        "hook_system_message",
        "command_permissions",
        "hook_cancelled",
        "hook_non_blocking_error",
    }
)
"""Attachments that the model does not see."""
_SENT_HOOK_EVENTS = frozenset({"SessionStart", "UserPromptSubmit"})
"""Hooks whose output the model sees."""


def _is_message_line(line: Mapping[str, Any]) -> bool:
    message = line.get("message")
    return (
        kind_of(line) in ("user", "assistant") and isinstance(message, dict) and "role" in message
    )


def _find_window(model: str, compactions: list[ClientCompaction]) -> int | None:
    """Derive the window from the model's name or from the tokens before a compaction."""
    sizes = [
        compaction.tokens_before
        for compaction in compactions
        if compaction.tokens_before is not None
    ]
    if model.endswith("[1m]") or any(size > DEFAULT_CLAUDE_WINDOW for size in sizes):
        return LARGE_CLAUDE_WINDOW
    if any(compaction.trigger == "auto" for compaction in compactions):
        return DEFAULT_CLAUDE_WINDOW
    return None


@dataclass
class _PartialAnswer:
    """The part of an answer that the lines read so far hold."""

    message: dict[str, Any]
    timestamp: float | None
    usage: CanonicalUsage | None


@dataclass
class _Boundary:
    """A compaction whose new context is still being read."""

    line: Mapping[str, Any]
    message_count_before: int
    """Number of messages before the compaction."""
    preserved_texts: list[str]
    summary: str | None = None
    restored_texts: list[str] = field(default_factory=list)


@dataclass
class _LogOverview:
    """Facts that a first pass over the file collects, because the second needs them before it reaches their lines."""

    session_id: str = ""
    title: str = ""
    abandoned_ids: set[str] = field(default_factory=set)
    """Ids of the lines of abandoned branches. If several prompts follow the same line, only the last is current.
    The first pass collects only the prompts; the lines after them are added as they are read."""
    preserved_ids: set[str] = field(default_factory=set)
    """Ids of lines that a compaction preserves."""
    last_line_numbers: dict[str, int] = field(default_factory=dict)
    """The number of the last line of each answer that has several, by message id."""
    model: str = ""

    @classmethod
    def from_lines(cls, lines: NumberedLines) -> Self:
        overview = cls()
        prompt_id_by_parent_id: dict[str, str] = {}
        message_ids: set[str] = set()
        for number, line in lines:
            overview.session_id = overview.session_id or text_in(line, "sessionId")
            title = text_in(line, "customTitle") or text_in(line, "summary")
            overview.title = overview.title or title
            overview.preserved_ids.update(_list_preserved_ids(line))
            uuid = text_in(line, "uuid")
            parent_id = text_in(line, "parentUuid")
            if line.get("type") == "assistant" and not line.get("isSidechain"):
                message = object_in(line, "message")
                message_id = text_in(message, "id")
                if message_id in message_ids:
                    overview.last_line_numbers[message_id] = number
                elif message_id:
                    message_ids.add(message_id)
                if text_in(message, "model") != _SYNTHETIC_MODEL:
                    overview.model = overview.model or text_in(message, "model")
            if parent_id and _is_prompt(line):
                if parent_id in prompt_id_by_parent_id:
                    overview.abandoned_ids.add(prompt_id_by_parent_id[parent_id])
                prompt_id_by_parent_id[parent_id] = uuid
        return overview


@dataclass
class ClaudeCodeReader(ClientLogReader):
    """Reads the last branch of a session."""

    kind: ClassVar[str] = "claude-code"

    overview: _LogOverview = field(default_factory=_LogOverview)
    finished_count: int = 0
    """Number of messages that were already yielded; `messages` has the others."""
    open_answers: dict[str, tuple[int, _PartialAnswer]] = field(default_factory=dict)
    """Answers that later lines continue, by message id, each with the number of messages before it."""
    boundary: _Boundary | None = None
    preserved_text_by_id: dict[str, str] = field(default_factory=dict)
    """The texts of preserved lines, by id."""

    @staticmethod
    def is_own_line(line: Mapping[str, Any]) -> bool:
        return _is_message_line(line)

    def read(self, lines: NumberedLines, source: str) -> Log:
        stream = self.stream(lines, source)
        entries = list(stream.entries)
        model = find_first_model(entries)
        return replace(
            stream.log,
            entries=entries,
            model=model.removesuffix("[1m]"),
            window=_find_window(model, self.compactions),
        )

    def stream(self, lines: NumberedLines, source: str) -> LogStream:
        """Return the conversation one message at a time, after one pass over all lines."""
        self.overview = _LogOverview.from_lines(lines)
        log = Log(
            source,
            self.kind,
            [],
            model=self.overview.model.removesuffix("[1m]"),
            session_id=self.overview.session_id,
            title=self.overview.title,
            compactions=self.compactions,
        )

        def read_entries() -> Iterator[LoggedMessage]:
            yield from self._read_entries(lines)
            log.warnings.extend(self.describe_gaps())

        return LogStream(log, read_entries())

    def _read_entries(self, lines: NumberedLines) -> Iterator[LoggedMessage]:
        """Yield the messages in order, each when no later line can change it."""
        for self.line_number, line in lines:
            self.read_line(line)
            yield from self._take_finished()
        self._record_compaction()
        self.open_answers.clear()
        yield from self._take_finished()

    def read_line(self, line: dict[str, Any]) -> None:
        uuid = text_in(line, "uuid")
        if uuid and text_in(line, "parentUuid") in self.overview.abandoned_ids:
            self.overview.abandoned_ids.add(uuid)
        if line.get("isSidechain") is True:
            self.skipped_line_counts["a subagent's own conversation"] += _is_message_line(line)
        elif uuid in self.overview.abandoned_ids:
            self.skipped_line_counts["a branch that was given up"] += _is_message_line(line)
        elif line.get("subtype") == "compact_boundary":
            self._record_compaction()
            self.boundary = _Boundary(line, self._message_count, self._list_preserved_texts(line))
        elif kind_of(line) == "attachment":
            self._read_attachment(line)
        elif _is_message_line(line):
            self._read_entry(line)

    def _take_finished(self) -> list[LoggedMessage]:
        first_open_answer = min(
            (index for index, _ in self.open_answers.values()), default=self._message_count
        )
        finished_messages = self.messages[: first_open_answer - self.finished_count]
        del self.messages[: len(finished_messages)]
        self.finished_count = first_open_answer
        return finished_messages

    @property
    def _message_count(self) -> int:
        return self.finished_count + len(self.messages)

    def _record_compaction(self) -> None:
        """Record the last compaction, now that all lines of its new context are read."""
        if self.boundary is None:
            return
        boundary = self.boundary
        self.boundary = None
        figures = object_in(boundary.line, "compactMetadata")
        self.compactions.append(
            ClientCompaction(
                boundary.message_count_before,
                boundary.summary,
                "\n".join([*boundary.preserved_texts, *boundary.restored_texts]),
                timestamp=parse_time(boundary.line.get("timestamp")),
                trigger=text_in(figures, "trigger"),
                tokens_before=count_in(figures, "preTokens"),
            )
        )

    def _list_preserved_texts(self, line: Mapping[str, Any]) -> list[str]:
        return [
            self.preserved_text_by_id[uuid]
            for uuid in _list_preserved_ids(line)
            if uuid in self.preserved_text_by_id
        ]

    def _read_attachment(self, line: Mapping[str, Any]) -> None:
        attachment = object_in(line, "attachment")
        timestamp = parse_time(line.get("timestamp"))
        if kind_of(attachment) == "queued_command":
            for message in _read_queued_messages(attachment):
                self.add_message(message, timestamp)
            return
        text = _read_attachment_text(attachment)
        if self.boundary is not None:
            self.boundary.restored_texts.append(text)
        elif text:
            self.add_message(make_injected_message(text), timestamp)

    def _read_entry(self, line: Mapping[str, Any]) -> None:
        message = dict(line["message"])
        if line.get("isCompactSummary") is True:
            if self.boundary is None:  # the boundary's line is damaged
                self.boundary = _Boundary(line, self._message_count, [])
            self.boundary.summary = _text_of(message)
            return
        if line.get("isApiErrorMessage") is True or message.get("model") == _SYNTHETIC_MODEL:
            self.skipped_line_counts["a notice of the client, not of the model"] += 1
            return
        if text_in(line, "uuid") in self.overview.preserved_ids:
            self.preserved_text_by_id[text_in(line, "uuid")] = _text_of(message)
        if line["type"] == "assistant":
            self._read_answer(line, message)
            return
        if self.boundary is not None:
            self.boundary.restored_texts.append(_text_of(message))
        try:
            messages = anthropic.decode_messages(
                [
                    {
                        "role": message["role"],
                        "content": _mark_injected_content(line, message),
                    }
                ]
            )
        except WireError:
            self.bad_line_numbers.append(self.line_number)
            return
        timestamp = parse_time(line.get("timestamp"))
        for user_message in _split_rejections(messages):
            self.add_message(user_message, timestamp)

    def _read_answer(self, line: Mapping[str, Any], message: dict[str, Any]) -> None:
        """Read a line of an answer. Results of parallel calls between its lines come after the whole answer."""
        self._record_compaction()
        usage = (
            normalize_usage(message["usage"]) if isinstance(message.get("usage"), Mapping) else None
        )
        message_id = text_in(message, "id")
        open_answer = self.open_answers.get(message_id)
        if open_answer is None:
            answer = _PartialAnswer(message, parse_time(line.get("timestamp")), usage)
            index = self._message_count
        else:
            index, earlier_answer = open_answer
            blocks = _list_blocks(earlier_answer.message)
            new_blocks = [block for block in _list_blocks(message) if block not in blocks]
            joined_message = {
                **earlier_answer.message,
                **message,
                "content": [*blocks, *new_blocks],
            }
            answer = _PartialAnswer(
                joined_message,
                earlier_answer.timestamp,
                _choose_larger_output(earlier_answer.usage, usage),
            )
        entry = _decode_answer(answer)
        if entry is None:
            self.bad_line_numbers.append(self.line_number)
        elif open_answer is None:
            self.messages.append(entry)
        else:
            self.messages[index - self.finished_count] = entry
        if self.line_number >= self.overview.last_line_numbers.get(message_id, 0):
            self.open_answers.pop(message_id, None)
        elif entry is not None:
            self.open_answers[message_id] = index, answer


def _choose_larger_output(
    earlier_usage: CanonicalUsage | None, usage: CanonicalUsage | None
) -> CanonicalUsage | None:
    """Return the usage that states more output: the figure grows while the answer streams."""
    if earlier_usage is None or usage is None:
        return usage or earlier_usage
    return usage if usage.output_tokens >= earlier_usage.output_tokens else earlier_usage


def _decode_answer(answer: _PartialAnswer) -> LoggedMessage | None:
    model = text_in(answer.message, "model")
    content = [_strip_display_input(block) for block in _list_blocks(answer.message)]
    try:
        messages = anthropic.decode_messages(
            [{"role": "assistant", "content": content}], model=model
        )
    except WireError:
        return None
    if len(messages) != 1:
        return None
    return LoggedMessage(messages[0], answer.timestamp, answer.usage, model=model)


def _strip_display_input(block: Any) -> Any:
    """Return a call without the plan that the client adds for display: the model wrote the plan to a file."""
    if (
        kind_of(block) != "tool_use"
        or block.get("name") != "ExitPlanMode"
        or not isinstance(block.get("input"), dict)
    ):
        return block
    return {
        **block,
        "input": {key: value for key, value in block["input"].items() if key != "plan"},
    }


def _mark_injected_content(line: Mapping[str, Any], message: Mapping[str, Any]) -> Any:
    """Return the content of a user line, with a mark around text that the client injected."""
    content = message.get("content")
    is_by_client = (
        line.get("isMeta") is True or object_in(line, "origin").get("kind", "human") != "human"
    )
    if not is_by_client:
        return content
    if isinstance(content, str):
        return make_injected_message(content)["content"]
    if not isinstance(content, list):
        return content
    marked_content = []
    for block in content:
        if kind_of(block) == "text" and isinstance(block.get("text"), str):
            marked_text = make_injected_message(block["text"])["content"]
            marked_content.append({**block, "text": marked_text})
        else:
            marked_content.append(block)
    return marked_content


def _split_rejections(messages: list[Message]) -> list[Message]:
    """Turn the words with which the user rejected a call into messages of the user, after all results."""
    results: list[Message] = []
    user_messages: list[Message] = []
    for message in messages:
        content = message.get("content")
        is_rejection = (
            message["role"] == "tool" and isinstance(content, str) and _REJECTION_PREFIX in content
        )
        result, marker, user_words = str(content).partition(_REJECTION_PREFIX)
        if is_rejection and user_words.strip():
            results.append({**message, "content": result + marker.rstrip()})
            user_messages.append({"role": "user", "content": user_words.strip()})
        else:
            results.append(message)
    return results + user_messages


def _read_queued_messages(attachment: Mapping[str, Any]) -> list[Message]:
    """Return the messages of a command that waited while the model worked."""
    prompt = attachment.get("prompt")
    is_by_user = object_in(attachment, "origin").get("kind", "human") == "human"
    if isinstance(prompt, str) and not (
        is_by_user and attachment.get("commandMode", "prompt") == "prompt"
    ):
        return [make_injected_message(prompt)]
    try:
        return list(anthropic.decode_messages([{"role": "user", "content": prompt}]))
    except WireError:
        return []


def _read_attachment_text(attachment: Mapping[str, Any]) -> str:
    """Return the text that the model gets with an attachment."""
    kind = kind_of(attachment)
    if kind in _UNSENT_ATTACHMENTS or (
        kind == "hook_success" and attachment.get("hookEvent") not in _SENT_HOOK_EVENTS
    ):
        return ""
    return "\n".join(_list_content_strings(attachment))


def _list_content_strings(value: Any) -> Iterator[str]:
    """Yield the strings of an attachment that are under keys with content, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _list_content_strings(item)
    elif isinstance(value, Mapping):
        for key in (
            "filename",
            "content",
            "file",
            "text",
            "snippet",
            "addedLines",
            "addedBlocks",
            "addedNames",
        ):
            if key in value and not (
                key == "addedNames" and ("addedLines" in value or "addedBlocks" in value)
            ):
                yield from _list_content_strings(value[key])


def _list_preserved_ids(line: Mapping[str, Any]) -> list[str]:
    preserved_messages = object_in(object_in(line, "compactMetadata"), "preservedMessages")
    ids = preserved_messages.get("allUuids")
    if not isinstance(ids, list):
        return []
    return [uuid for uuid in ids if isinstance(uuid, str)]


def _is_prompt(line: Mapping[str, Any]) -> bool:
    if (
        not _is_message_line(line)
        or line["type"] != "user"
        or line.get("isMeta") is True
        or line.get("isSidechain")
    ):
        return False
    return not any(kind_of(block) == "tool_result" for block in _list_blocks(line["message"]))


def _list_blocks(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


def _text_of(message: Mapping[str, Any]) -> str:
    """Return all text of a message: words, arguments of calls, results."""
    texts: list[str] = []
    for block in _list_blocks(message):
        kind = kind_of(block)
        if kind == "text":
            texts.append(text_in(block, "text"))
        elif kind == "tool_use":
            texts += iterate_strings(block.get("input"))
        elif kind == "tool_result":
            texts += [
                text_in(inner_block, "text")
                for inner_block in _list_blocks(block)
                if isinstance(inner_block, Mapping)
            ]
    return "\n".join(texts)
