"""Draws the two flows of docs/design/architecture.md: `python docs/flows.py`."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import wrap

FOLDER = Path(__file__).parent / "design"
COLUMNS = 4
WIDTH = 222
HEIGHT = 112
GAP = 34
EDGE = 18
COLOURS = {
    "gateway": "#0b6bcb",
    "conversation": "#0b6bcb",
    "thread": "#b45309",
    "compaction": "#7c3aed",
    "store": "#0f766e",
    "providers": "#475569",
}
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f2933}.file{font:600 11.5px ui-monospace,monospace}"
    ".step{font-weight:600;fill:#8a94a0;text-anchor:end}.arrow{stroke:#8a94a0;stroke-width:1.6;fill:none;marker-end:url(#tip)}"
)


@dataclass(frozen=True, slots=True)
class Box:
    """A step: the file under `src/everthread` where it happens, and what happens."""

    file: str
    text: str


GATEWAY = (
    Box("gateway/server.py", "Takes the connection. Headers must come in time."),
    Box(
        "gateway/app.py",
        "Makes one path of its spellings, checks Origin and Host, finds the caller, routes.",
    ),
    Box(
        "gateway/proxy.py",
        "Reads the body and starts the exchange. If the manager fails, the client's bytes go.",
    ),
    Box(
        "gateway/request/request_reader.py",
        "The messages with their bytes. Only what is new is read; the rest is hashed.",
    ),
    Box(
        "thread/matching/thread_index.py",
        "Which thread it continues; its new messages go into the store.",
    ),
    Box(
        "thread/caller/caller_prompt.py",
        "The rewrite that stands for the beginning of this history, if there is one.",
    ),
    Box(
        "thread/managed_thread.py",
        "Compact before this call? The policy decides: size, dollars, pause.",
    ),
    Box(
        "thread/engines/engine_jobs.py",
        "The engine plans and finishes in a process; in between a model may be asked.",
    ),
    Box(
        "gateway/managed/render.py",
        "The bytes that go upstream: the rewrite, then the client's own bytes.",
    ),
    Box(
        "gateway/upstream.py",
        "Sends. A refusal for its size goes through thread/recovery.py and back here.",
    ),
    Box(
        "gateway/exchange.py",
        "Relays the answer through the features in gateway/filters/: usage, recall, charges.",
    ),
    Box(
        "thread/caller/caller_threads.py",
        "Records reply and usage. From 80 % on it prepares the next summary.",
    ),
)
SEND = (
    Box(
        "conversation/conversation.py",
        "send: one turn at a time; the message goes into the store first.",
    ),
    Box(
        "conversation/conversation_prompt.py",
        "How large is the next prompt? The provider's count plus an estimate.",
    ),
    Box(
        "thread/managed_thread.py",
        "Compact before this call? The policy decides: size, dollars, pause.",
    ),
    Box(
        "thread/engines/engine_jobs.py",
        "The engine plans and finishes in a thread; in between a model may be asked.",
    ),
    Box(
        "compaction/cutting/cut_planner.py",
        "Prune old results, then cut: head, middle, tail. Groups stay whole.",
    ),
    Box(
        "compaction/summarizers/chain.py",
        "A model writes the summary, or the journal does; the user's words stay.",
    ),
    Box(
        "compaction/verification/unsupported_lines.py",
        "What the summary must hold is checked; what is missing is added.",
    ),
    Box(
        "conversation/compaction_commit.py",
        "Outputs first, then one transaction: the session ends, another goes on.",
    ),
    Box(
        "conversation/requests.py",
        "System, tools and messages, with cache breakpoints; recall for this call only.",
    ),
    Box(
        "providers/resilience.py",
        "Sends, with retry and fallback. A refusal for its size: thread/recovery.py.",
    ),
    Box(
        "conversation/answer_recorder.py",
        "Stores the answer, its usage and cost; judges what the compaction brought.",
    ),
    Box(
        "store/store.py",
        "Everything that was said, for good: history, search, undo, branch.",
    ),
)


def draw(title: str, boxes: tuple[Box, ...]) -> str:
    """The boxes row by row, every second row from right to left, with arrows between them."""
    rows = -(-len(boxes) // COLUMNS)
    width = 2 * EDGE + COLUMNS * WIDTH + (COLUMNS - 1) * GAP
    height = 2 * EDGE + rows * HEIGHT + (rows - 1) * GAP
    drawn = [_box(box, number, *_corner(number)) for number, box in enumerate(boxes)]
    drawn += [_arrow(_corner(number), _corner(number + 1)) for number in range(len(boxes) - 1)]
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#8a94a0"/></marker></defs>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}">'
        f'<style>{STYLE}</style>{tip}<rect width="{width}" height="{height}" fill="#fff"/>{"".join(drawn)}</svg>\n'
    )


def _corner(number: int) -> tuple[int, int]:
    row, place = divmod(number, COLUMNS)
    column = COLUMNS - 1 - place if row % 2 else place
    return EDGE + column * (WIDTH + GAP), EDGE + row * (HEIGHT + GAP)


def _box(box: Box, number: int, left: int, top: int) -> str:
    colour = COLOURS[box.file.partition("/")[0]]
    lines = "".join(
        f'<text x="{left + 14}" y="{top + 48 + 16 * place}">{escape(line)}</text>'
        for place, line in enumerate(wrap(box.text, 30))
    )
    name = box.file
    for folder in ("thread/caller/", "thread/matching/", "compaction/summarizers/"):
        short = folder.removesuffix("/").rpartition("/")[2]
        name = name.replace(folder, f"…/{short}/")
    return (
        f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#f8fafc" stroke="{colour}"/>'
        f'<rect x="{left}" y="{top}" width="5" height="{HEIGHT}" rx="2" fill="{colour}"/>'
        f'<text class="step" x="{left + WIDTH - 10}" y="{top + HEIGHT - 8}">{number + 1}</text>'
        f'<text class="file" x="{left + 14}" y="{top + 24}" fill="{colour}"><title>{box.file}</title>{name}</text>'
        f"{lines}"
    )


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    (left, top), (to_left, to_top) = start, end
    if top != to_top:
        middle = left + WIDTH // 2
        return f'<path class="arrow" d="M{middle} {top + HEIGHT}V{to_top}"/>'
    y = top + HEIGHT // 2
    return (
        f'<path class="arrow" d="M{left + WIDTH} {y}H{to_left}"/>'
        if to_left > left
        else f'<path class="arrow" d="M{left} {y}H{to_left + WIDTH}"/>'
    )


if __name__ == "__main__":
    pictures = {
        "flow-gateway.svg": ("A managed request", GATEWAY),
        "flow-send.svg": ("Conversation.send", SEND),
    }
    for name, (title, boxes) in pictures.items():
        (FOLDER / name).write_text(draw(title, boxes), "utf-8")
