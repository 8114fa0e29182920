"""The summary message and the list around it: the marker, what was pinned, the sections, checked and made to fit; then
head, summary and tail as one valid list; last the engine that does it. Texts of ours are files in `texts/`.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.history import Memory, MessageFacts
from everthread.compaction.journal import AUTHOR, JournalWriter, blocked_text, files_text
from everthread.compaction.plan import Earlier, Plan, make_plan, read_earlier, read_state, read_summary, reason_for
from everthread.compaction.pruning import redact_message
from everthread.compaction.state import ThreadState
from everthread.compaction.summary import (
    ANSWERED,
    ASKS,
    BLOCKED,
    CRITICAL,
    DECISIONS,
    FILES,
    GOAL,
    RULES,
    TASK,
    WORDS,
    Compaction,
    CompactionLevel,
    Sections,
    Summarizer,
    SummaryDraft,
    SummaryRequest,
    Verification,
    parse_sections,
    section_name,
)
from everthread.compaction.verification import is_refused, mark_sections, source_text
from everthread.compaction.words import Count, newest_lines
from everthread.core.messages import (
    Message,
    Messages,
    calls_of,
    clip,
    one_line,
    parts_of,
    text_of,
    tool_names,
    with_content,
)
from everthread.core.pricing import CanonicalUsage
from everthread.core.redaction import LineRedactor, redact
from everthread.core.transcript import (
    defuse,
    is_summary,
    is_user_message,
    lookup_tools,
    mark_summary,
    seal_summary,
    without_summary,
)
from everthread.core.types import System
from everthread.core.validation import repair
from everthread.errors import SummaryError


@functools.cache
def text_file(name: str) -> str:
    """A text of `texts/`."""
    return resources.files("everthread.compaction").joinpath(f"texts/{name}.txt").read_text("utf-8").strip()


# --- the summary message ----------------------------------------------------------------------------------------------


PINNED = "Pinned by the user:"
NAMES_TOO_MUCH = "named too much that no source says"
WROTE_TOO_MUCH = "wrote lines that are far longer than a summary"
WROTE_NOTHING = "wrote nothing in the sections of a summary"
_UNDERSTOOD = (GOAL, RULES, DECISIONS, ANSWERED, ASKS, CRITICAL)
"""Sections that only a model can write: the journal carries what an earlier one wrote there."""


def reading_tools(tools: Sequence[Mapping[str, Any]] | None) -> tuple[str, ...]:
    """The names of the model's tools that can read the covered messages."""
    return lookup_tools(name for tool in tools or () for name in tool_names(tool))


def tools_key(tools: Sequence[Mapping[str, Any]] | None) -> str:
    """A key for the tools that a summary names: it fits only requests with the same tools."""
    names = reading_tools(tools)
    return f" with {','.join(names)}" if names else ""


def marker_text(plan: Plan, name: str, services: Services, tools: Sequence[Mapping[str, Any]] | None) -> str:
    """The first lines of a summary, with how to read the covered messages where a tool can."""
    small = services.budget.small
    marker = text_file("marker_short" if small else name).format(count=f"{plan.message_count:,}")
    readers = reading_tools(tools) if services.is_stored else ()
    if not readers:
        return marker
    return f"{marker}\n{text_file('recall').format(tools=' and '.join(f'`{reader}`' for reader in readers))}"


def pinned_text(notes: Sequence[str], room: int, count: Count) -> tuple[str, tuple[str, ...]]:
    """The pinned notes within so many tokens, the newest first, and a warning where not all fit."""
    lines: list[str] = []
    remaining = room
    for note in reversed(notes):
        line = "- " + defuse(redact(note)).replace("\n", "\n  ")
        remaining -= count(line) + 1
        if remaining < 0:
            break
        lines.insert(0, line)
    missing = len(notes) - len(lines)
    warnings = (f"{missing} pinned notes had no room in the summary",) if missing else ()
    return "\n".join([PINNED, *lines]) if lines else "", warnings


def asks_model(services: Services) -> bool:
    """Whether a model is asked to write: what it is sent must be pruned and redacted."""
    return services.summarizer.name != AUTHOR


def request_messages(messages: Sequence[Message], services: Services) -> Sequence[Message]:
    """The messages for a summariser: redacted for a model, as they are for the journal, which redacts its own text."""
    return [redact_message(message) for message in messages] if asks_model(services) else messages


async def ask_summarizer(
    summarizer: Summarizer, requests: Iterable[SummaryRequest], refuse: Callable[[SummaryDraft], str]
) -> SummaryDraft:
    """The first draft that is not refused, asked for with these requests in turn; else the journal's, without words.

    It carries the warnings and the usage of all calls. `refuse`: why a model's draft will not do; empty where it will.
    """
    warnings: list[str] = []
    usage: list[Mapping[str, Any]] = []
    for request in requests:
        try:
            draft = await summarizer.summarize(request)
            draft = draft if isinstance(summarizer, JournalWriter) else _clean_draft(draft)
        except SummaryError as error:
            usage += error.usage
            warnings.append(f"{summarizer.name} wrote no summary: {error}")
            break
        except Exception as error:  # noqa: BLE001 - somebody else's summariser; the journal always works
            warnings.append(f"{summarizer.name} failed: {type(error).__name__}: {error}")
            break
        usage += draft.usage
        warnings += draft.warnings
        why = "" if draft.author == AUTHOR else refuse(draft) if draft.sections else f"{draft.author} {WROTE_NOTHING}"
        if not why:
            return replace(draft, warnings=tuple(map(redact, warnings)), usage=tuple(usage))
        warnings.append(why)
    return SummaryDraft({}, AUTHOR, tuple(map(redact, warnings)), tuple(usage))


def _clean_draft(draft: SummaryDraft) -> SummaryDraft:
    """The draft with what it says under headings of ours; task and user's words are no summariser's to write.

    A heading inside of a section gets a backslash: it would be read back as the beginning of another section.
    """
    sections: Sections = {}
    for name, text in draft.sections.items():
        if isinstance(text, str):
            lines = (f"\\{line}" if section_name(line) else line for line in text.split("\n"))
            for known, body in parse_sections("\n".join([f"## {name}", *lines])).items():
                sections[known] = "\n".join(filter(None, (sections.get(known), body)))
    return replace(
        draft, sections={name: text for name, text in sections.items() if name not in (TASK, WORDS)},
        author=str(draft.author), warnings=tuple(map(str, draft.warnings)), usage=tuple(map(dict, draft.usage)),
    )  # fmt: skip


async def write_summary(services: Services, request: SummaryRequest, plan: Plan) -> SummaryDraft:
    """Ask the summariser, check its draft, ask once more if it is refused; then the journal is used instead."""
    count = services.counter.text
    checked: list[SummaryDraft] = []

    def refuse(draft: SummaryDraft) -> str:
        written = _check_draft(draft, request, plan, count)
        if isinstance(written, str):
            return f"{draft.author} {written}; its summary was not used"
        checked.append(written)
        return ""

    draft = await ask_summarizer(services.summarizer, (request, request), refuse)
    if checked:
        return replace(checked[0], warnings=draft.warnings, usage=draft.usage)
    if not draft.sections:
        written = await JournalWriter(services.counter).summarize(request)
        draft = replace(written, warnings=draft.warnings, usage=draft.usage)
    # What an earlier model wrote in sections that the journal cannot write itself is carried on.
    carried = {name: text for name in _UNDERSTOOD if (text := without_pins(request.previous.get(name, "")))}
    if carried:
        used = section_tokens(draft.sections, count)
        carried = fit_sections(carried, max(request.budget - used, request.budget // 4), count)
    return replace(draft, sections={**carried, **draft.sections}, author=AUTHOR)


_READ_AT_MOST = 4
"""Budgets of a model's summary that are checked; a longer one is cut before it costs time."""


def _check_draft(draft: SummaryDraft, request: SummaryRequest, plan: Plan, count: Count) -> SummaryDraft | str:
    """A model's sections, marked and completed; where they are refused, why."""
    sections = {name: defuse(text) for name, text in draft.sections.items()}
    sections = fit_sections(sections, _READ_AT_MOST * request.budget, count)
    marked, checked, unknown = mark_sections(sections, source_text(plan.messages, plan.earlier.text))
    if not marked:
        return WROTE_TOO_MUCH
    if is_refused(checked, unknown):
        return NAMES_TOO_MUCH
    room = request.budget
    state = request.state or ThreadState()
    written = "\n".join(marked.values())
    errors = [
        line for line in blocked_text(state).split("\n") if line and line.rpartition("): ")[2][:80] not in written
    ]
    facts = len(state.changed_files()) + len(state.open_errors(state.turn))
    missing = [path for path in state.changed_files() if path not in written]
    added = len(missing) + len(errors)
    errors = newest_lines(errors, room // 6, count)
    named = files_text(state, room // 8, count, mentioned=written) if missing else ""
    changed = [line for line in named.split("\n") if line.startswith("- changed")]
    marked = fit_sections(marked, room - sum(count(line) + 2 for line in (*errors, *changed)), count)
    for name, lines in ((BLOCKED, errors), (FILES, changed)):
        if lines:
            marked[name] = "\n".join(filter(None, (marked.get(name, ""), *lines)))
    return SummaryDraft(marked, draft.author, verification=Verification(facts, facts - added, added, checked, unknown))


def without_pins(section: str) -> str:
    """The section without the pinned notes, which are written again in each summary."""
    lines = section.split("\n")
    if PINNED not in lines:
        return section
    start = lines.index(PINNED)
    end = next((at for at in range(start + 1, len(lines)) if not lines[at].startswith(("- ", "  "))), len(lines))
    return "\n".join([*lines[:start], *lines[end:]]).strip()


def section_tokens(sections: Mapping[str, str], count: Count) -> int:
    """Tokens of the sections with their headings, empty ones aside."""
    return sum(count(f"## {name}\n{text}\n\n") for name, text in sections.items() if text)


def fit_sections(sections: Mapping[str, str], room: int, count: Count) -> Sections:
    """The sections within so many tokens: lines go from the end of the longest ones."""
    lines = {name: [(line, count(line) + 1) for line in text.split("\n")] for name, text in sections.items()}
    sizes = {name: sum(size for _, size in pairs) for name, pairs in lines.items()}
    total = sum(sizes.values())
    while total > room and any(sizes.values()):
        name = max(sizes, key=lambda name: sizes[name])
        _, size = lines[name].pop()
        sizes[name] -= size
        total -= size
        if not lines[name]:
            sizes[name] = 0
    return {name: "\n".join(line for line, _ in pairs) for name, pairs in lines.items() if pairs}


# --- what the user still waits for ------------------------------------------------------------------------------------


MOST = 3
"""The most open requests that are listed: after so many new ones the user has moved on from the older ones."""
_BEGINNING = 240
_READ = 2_000
"""Characters of a request that are read to show its beginning: a secret in there is seen whole."""


def task_lines(plan: Plan) -> str:
    """The requests without a final answer, each with number and beginning. The full texts stand elsewhere."""
    lines = []
    for index in open_requests(plan.history.facts):
        one = plan.history.facts[index]
        if one.beginning is None:
            words = redact(one.words[:_READ]) if one.redacted is None else one.redacted
            one.beginning = words or "(an image or a file without words)"
        lines.append(f"[{plan.turns[index]}] {defuse(clip(one_line(one.beginning), _BEGINNING))}")
    return "\n".join(lines)


def open_requests(facts: Sequence[MessageFacts]) -> list[int]:
    """The indices of the requests without a final answer, oldest first.

    A turn is answered when it ends with the assistant speaking and calling nothing. Only the requests at the end of the
    conversation can be open: what stands before an answered turn was passed over or is done.
    """
    requests: list[int] = []
    end = len(facts)
    for index in range(len(facts) - 1, -1, -1):
        if facts[index].is_user:
            if len(requests) == MOST or _is_answered(facts[index + 1 : end]):
                break
            requests.append(index)
            end = index
    return requests[::-1]


def _is_answered(turn: Sequence[MessageFacts]) -> bool:
    """Whether the messages after a request end with an answer."""
    for one in reversed(turn):
        role = one.message.get("role")
        if one.rest is not None and role in ("assistant", "tool"):
            return role == "assistant" and not one.calls and bool(text_of(one.rest).strip())
    return False


# --- the compacted list -----------------------------------------------------------------------------------------------


def system_note(plan: Plan) -> str:
    """What the system prompt gains on a thread's first compaction."""
    return "" if plan.earlier.text else text_file("system_note")


def assemble(plan: Plan, text: str, note: str) -> tuple[list[Message], tuple[int | None, ...]]:
    """The compacted messages, and for each its index in the input (None for a new message)."""
    cut, work = plan.cut, plan.fit.messages
    head, tail = _keep_messages(work, range(cut.head_end)), _keep_messages(work, range(cut.tail_start, len(work)))
    user = cut.user(work)
    if user is not None:
        index = cut.kept_user if cut.kept_user is not None and user is work[cut.kept_user] else None
        tail.insert(0, (user, index))
    if note:
        head = _add_note(head, note)
    joined = _join(head, tail, text)
    mended = repair([message for message, _ in joined], in_flight=True)
    return mended.messages, tuple(None if index is None else joined[index][1] for index in mended.places)


KeptMessage = tuple[Message, int | None]
"""A message and its index in the input; None for a new message."""


def _keep_messages(work: list[Message], indices: range) -> list[KeptMessage]:
    """The messages at these indices, without an earlier summary that was merged into one."""
    rests = ((without_summary(work[index]), index) for index in indices)
    return [(rest, index if rest is work[index] else None) for rest, index in rests if rest is not None]


def _add_note(head: list[KeptMessage], note: str) -> list[KeptMessage]:
    """The system message in the list, with the note as a block of its own: the text before it stays cached."""
    for index, (message, _) in enumerate(head):
        if message["role"] in ("system", "developer"):
            if any(part.get("text") == note for part in parts_of(message)):
                return head
            marked = with_content(message, [*parts_of(message), {"type": "text", "text": note}])
            return [*head[:index], (marked, None), *head[index + 1 :]]
    return head


def _join(head: list[KeptMessage], after: list[KeptMessage], text: str) -> list[KeptMessage]:
    """Put the summary between: under a role neither neighbour has, else merged into one of them.

    The latest user message is the last choice for merging: it is best left exactly as it was.
    """
    before = head[-1][0] if head else None
    following = after[0][0] if after else None
    taken = {_speaker(message) for message in (before, following) if message is not None}
    if "user" not in taken:
        return [*head, _summary({"role": "user", "content": text}), *after]
    if "assistant" not in taken and any(message["role"] == "user" for message, _ in head) and after:
        return [*head, _summary({"role": "assistant", "content": text}), *after]
    if before is not None and before["role"] != "system" and not calls_of(before):
        is_latest = is_user_message(before) and not any(is_user_message(message) for message, _ in after)
        if not is_latest:
            return [*head[:-1], _summary(_add_text(before, text)), *after]
    if following is not None and following["role"] == "user":
        return [*head, _summary(_add_text(following, text, first=True)), *after[1:]]
    if before is not None and before["role"] == "user":
        return [*head[:-1], _summary(_add_text(before, text)), *after]
    return [*head, _summary({"role": "user", "content": text}), *after]


def _summary(message: Message) -> KeptMessage:
    return mark_summary(message), None


def _speaker(message: Message) -> str:
    """Who speaks: results are the user's side of the conversation, a system message nobody's."""
    return {"tool": "user", "function": "user"}.get(message["role"], message["role"])


def _add_text(message: Message, text: str, *, first: bool = False) -> Message:
    """The message with a text after its content, or before it."""
    content = message.get("content")
    if isinstance(content, list):
        part = {"type": "text", "text": text}
        return with_content(message, [part, *content] if first else [*content, part])
    pair = (text, content) if first else (content, text)
    return with_content(message, "\n\n".join(part for part in pair if part))


# --- an engine with one summary message -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SummaryOrder:
    """What a compaction asks of its engine, besides the plan."""

    marker: str
    """How the summary message begins."""
    notes: tuple[str, ...]
    """Texts somebody pinned."""
    focus: str | None
    ids: Sequence[int] | None
    manual: bool


class SummaryEngine(ContextEngine):
    """An engine that puts one summary message in the place of the middle."""

    marker: str
    """The text file the summary message begins with."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._prompt_tokens = 0
        """The prompt that the provider counted last."""
        self.compactions = 0
        self._memory = Memory()
        self._redactor = LineRedactor()
        self._notes: tuple[str, ...] = ()
        self._state: ThreadState | None = None
        """How things stood after the last compaction."""

    @abc.abstractmethod
    async def write(self, plan: Plan, order: SummaryOrder) -> tuple[str, Compaction]:
        """The summary message without its last line, and all else of the result that is the engine's to say."""

    def state_before(self, plan: Plan) -> ThreadState:
        """A copy of the state before this compaction; where it is not known, what the summary in the list says."""
        earlier = plan.earlier
        if earlier.state is not None:
            return earlier.state
        if self._state is not None and earlier.text:
            return self._state.copy()
        return self.read_summary_state(earlier)

    def read_summary_state(self, earlier: Earlier) -> ThreadState:
        """How things stood by a summary in the list."""
        return read_state(earlier.sections)

    # When

    def update_from_response(self, usage: CanonicalUsage) -> None:
        """Output and reasoning never count: they do not fill the next prompt as such."""
        self._prompt_tokens = usage.prompt_tokens or self._prompt_tokens

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        return (self._prompt_tokens if prompt_tokens is None else prompt_tokens) >= self._services.budget.threshold

    def has_content_to_compress(self, messages: Messages) -> bool:
        earlier = read_summary(messages)  # its numbers of turns, so that what is read for this holds for `compress`
        return make_plan(messages, self._services, earlier, self._memory, system=None, tools=None).has_work

    # What

    async def compress(  # noqa: PLR0913 - as every engine
        self,
        messages: Messages,
        *,
        current_tokens: int | None = None,
        focus_topic: str | None = None,
        system: System = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        level: CompactionLevel = CompactionLevel.NORMAL,
        manual: bool = False,
        dry_run: bool = False,
        ids: Sequence[int] | None = None,
    ) -> Compaction:
        """A smaller history; the input itself, with the reason, where there is nothing to win."""
        services, started = self._services, self._services.clock()
        earlier = await read_earlier(messages, services.archive)
        plan = make_plan(
            messages, services, earlier, self._memory, system=system, tools=tools, level=level, reported=current_tokens
        )
        if not plan.has_work:
            return plan.unchanged(plan.no_work_reason(services.budget), services.clock() - started)
        if dry_run:
            return plan.preview(services.clock() - started)
        if plan.only_prunes:
            result = plan.pruned_only(services.clock() - started)
        else:
            marker = marker_text(plan, self.marker, services, tools)
            text, result = await self.write(plan, SummaryOrder(marker, self._notes, focus_topic, ids, manual))
            result = self._assemble(plan, seal_summary(self._redactor.redact(text), services.summary_key), result)
        after = plan.fixed + plan.count(result.messages, result.kept, services.counter)
        return plan.settled(result, after, reason_for(manual=manual, level=level), services.clock() - started)

    def _assemble(self, plan: Plan, text: str, result: Compaction) -> Compaction:
        note, counter = system_note(plan), self._services.counter
        messages, origins = assemble(plan, text, note)
        summary = next(message for message in messages if is_summary(message))
        rest = without_summary(summary)
        tokens = counter.message(summary) - (0 if rest is None else counter.message(rest))
        return replace(
            result, messages=messages, summary=text, covered=plan.covered, kept=origins, to_store=plan.fit.to_store,
            phases=plan.phases(tokens), steps=plan.fit.steps, system_note=note,
        )  # fmt: skip

    # Life

    def pin(self, notes: Sequence[str]) -> None:
        self._notes = tuple(notes)

    def on_compacted(self, compaction: Compaction) -> None:
        if compaction.changed:
            self._prompt_tokens, self.compactions = 0, self.compactions + 1
        if compaction.changed and compaction.state:  # one that summarised nothing knows nothing new
            self._state = ThreadState.load(compaction.state)

    def update_model(self, services: Services) -> None:
        """Another window, another tokenizer: what was reported before no longer counts."""
        self._services = services
        self._prompt_tokens = 0

    def dump_state(self) -> dict[str, Any]:
        thread = {"thread": self._state.dump()} if self._state is not None else {}
        return {"prompt_tokens": self._prompt_tokens, "compactions": self.compactions, **thread}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._prompt_tokens, self.compactions = state.get("prompt_tokens", 0), state.get("compactions", 0)
        thread = state.get("thread")
        # A state of the version before has other fields: it is rebuilt with the summary.
        self._state = ThreadState.load(thread) if isinstance(thread, Mapping) and "todo" in thread else None
