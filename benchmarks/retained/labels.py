"""Load facts of the shared recordings, labelled by hand (`labels.jsonl`, without their text).

A label names a recording, a message, the positions of the words to find, their hash, and one obvious question, written
without regard to the ranking of searches. Kinds: `rule`, `decision`, `ask` and `said` are the user's; `file`,
`command`, `error` and `figure` are facts of the session; a `finding` is a conclusion of the agent: a cause, a figure, a
commit, a file, a decision with its reason.

"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.retained.context_facts import whole_text
from benchmarks.retained.recordings import load_recording
from everthread.core.messages import Message

USER = frozenset({"rule", "decision", "ask", "said"})
MECHANICAL = frozenset({"file", "command", "error", "figure"})
FINDINGS = frozenset({"finding"})
LABELS_FILE = Path(__file__).with_name("labels.jsonl")


@dataclass(frozen=True, slots=True)
class Label:
    kind: str
    recording: str
    number: int
    words: str
    """The words, normalized."""
    question: str


def load_labels(
    names: Iterable[str],
    *,
    file: Path = LABELS_FILE,
    load: Callable[[str], Sequence[Message | None]] = load_recording,
) -> list[Label]:
    """Return the labels of these recordings. Raise `ValueError` for a recording that has changed."""
    wanted = dict.fromkeys(names)
    texts = {
        name: [None if found is None else whole_text(found) for found in load(name)]
        for name in wanted
    }
    made = []
    for line in file.read_text("utf-8").splitlines():
        entry = json.loads(line)
        if entry["in"] not in wanted:
            continue
        text = texts[entry["in"]][entry["message"]] or ""
        words = text[entry["at"][0] : entry["at"][1]]
        if _hash(words) != entry["hash"]:
            raise ValueError(
                f"{entry['in']}, message {entry['message']}: the labelled words are no longer there"
            )
        made.append(
            Label(
                entry["kind"],
                entry["in"],
                entry["message"],
                normalize(words),
                entry["question"],
            )
        )
    return made


def normalize(text: str) -> str:
    """Return a text without differences of typography: white space, kinds of quotes, capitals."""
    return " ".join(re.sub(r"[`\"“”’‘]", "'", text).lower().split())


def make_label_line(kind: str, name: str, number: int, words: str, question: str) -> str:
    """Return a new line for the file of labels."""
    text = whole_text(load_recording(name)[number] or {"role": "user", "content": ""})
    start = text.index(words)
    entry = {
        "in": name,
        "message": number,
        "at": [start, start + len(words)],
        "hash": _hash(words),
        "kind": kind,
        "question": question,
    }
    return json.dumps(entry, ensure_ascii=False)


def _hash(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()[:12]
