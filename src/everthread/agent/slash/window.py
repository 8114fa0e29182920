"""`/context` and `/model`: what fills the window, and whose window it is."""

from __future__ import annotations

from collections.abc import Mapping

from everthread.agent.slash.base import CommandResult, Here, paragraphs
from everthread.conversation.conversation import Conversation
from everthread.core.messages import Message, calls_of, results_of
from everthread.core.summary import is_summary
from everthread.core.tokens import TokenCounter
from everthread.errors import InputError

CELLS = 50
KINDS: Mapping[str, str] = {
    "system prompt": "S",
    "tools": "T",
    "summary": "Z",
    "user": "U",
    "assistant": "A",
    "tool calls": "C",
    "tool results": "R",
}


async def context(here: Here, _argument: str) -> CommandResult:
    talk = here.conversation
    sizes = filling(talk)
    used = sum(sizes.values())
    share = f"{100 * used / talk.window:.0f} %"
    kinds = [f"`{KINDS[name]}` {name}: {size:,} ({100 * size / talk.window:.1f} %)" for name, size in sizes.items()]
    text = paragraphs(
        f"{used:,} of {talk.window:,} tokens ({share}); compaction starts at {talk.threshold:,}.",
        f"`[{_bar(sizes, talk.window, talk.threshold)}]`",
        [*kinds, f"`·` free: {max(0, talk.window - used):,}; `|` where compaction starts"],
    )
    data = {"window": talk.window, "threshold": talk.threshold, "tokens": used, "kinds": sizes}
    return CommandResult(text, data)


async def model(here: Here, argument: str) -> CommandResult:
    if argument:
        if here.agent is None:
            raise InputError("this conversation cannot change its model")
        await here.agent.use_model(argument)
    talk = here.conversation
    route = talk.route
    size = f"{talk.window:,} tokens"
    window = route.source if route.source.startswith(size) else f"{size} ({route.source})"
    said = f"{'Now answering' if argument else 'Answering'}: `{route.name}`, {window}."
    if argument and talk.tokens >= talk.threshold:
        said += " The history is larger than it likes: it will be compacted before the next call."
    return CommandResult(said, {"model": route.name, "window": talk.window, "source": route.source, "api": route.api})


def filling(talk: Conversation) -> dict[str, int]:
    """The tokens of the next request by kind, in sum what the conversation counts."""
    counter = TokenCounter(talk.route.name)
    sizes = dict.fromkeys(KINDS, 0)
    sizes["system prompt"] = counter.system(talk.session.system)
    sizes["tools"] = counter.tools(talk.tools)
    for message in talk.messages:
        for kind, tokens in _parts(counter, message):
            sizes[kind] += tokens
    measured = sum(sizes.values())
    scale = talk.tokens / measured if measured and talk.messages else 1.0
    return {kind: round(tokens * scale) for kind, tokens in sizes.items()}


def _parts(counter: TokenCounter, message: Message) -> list[tuple[str, int]]:
    whole = counter.message(message)
    if is_summary(message):
        return [("summary", whole)]
    if results_of(message):
        return [("tool results", whole)]
    if message["role"] != "assistant":
        return [("user", whole)]
    called = sum(counter.text(f"{call.name} {call.arguments}") for call in calls_of(message))
    return [("tool calls", min(called, whole)), ("assistant", max(0, whole - called))]


def _bar(sizes: Mapping[str, int], window: int, threshold: int) -> str:
    """The window in cells: a letter for what fills it, in the order it is sent."""
    cells = ""
    reached = 0
    for kind, tokens in sizes.items():
        reached += tokens
        cells += KINDS[kind] * (round(CELLS * reached / window) - len(cells))
    cells = cells[:CELLS].ljust(CELLS, "·")
    mark = min(CELLS, round(CELLS * threshold / window))
    return f"{cells[:mark]}|{cells[mark:]}"
