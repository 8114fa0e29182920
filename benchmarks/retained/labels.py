"""What was said and done in the shared recordings, labelled by hand (`labels.jsonl`), without their text.

A label names a recording, a message, and the first and last character of the words that must be found, with a hash of
them; and one obvious question, written without a look at how search ranks. Kinds: `rule`, `decision`, `ask` and `said`
are the user's; `file`, `command`, `error` and `figure` are what the session did and met; a `finding` is a conclusion
of the agent: a cause, a figure, a commit, a file, a decision with its reason.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.retained.finding import text_of
from benchmarks.retained.recordings import recording

USER = frozenset({"rule", "decision", "ask", "said"})
MECHANICAL = frozenset({"file", "command", "error", "figure"})
FINDINGS = frozenset({"finding"})
_FILE = Path(__file__).with_name("labels.jsonl")


@dataclass(frozen=True, slots=True)
class Label:
    kind: str
    recording: str
    number: int
    words: str
    """As `normal` writes them."""
    question: str


def labels(names: Iterable[str]) -> list[Label]:
    """The labels of these recordings. A recording that changed since is refused, not measured wrongly."""
    wanted = dict.fromkeys(names)
    texts = {
        name: [None if found is None else text_of(found) for found in recording(name)]
        for name in wanted
    }
    made = []
    for line in _FILE.read_text("utf-8").splitlines():
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
                normal(words),
                entry["question"],
            )
        )
    return made


def normal(text: str) -> str:
    """Without what is a matter of typography: white space, kinds of quotes, capitals."""
    return " ".join(re.sub(r"[`\"“”’‘]", "'", text).lower().split())


def label_line(kind: str, name: str, number: int, words: str, question: str) -> str:
    """One line of the file, for whoever labels more."""
    text = text_of(recording(name)[number] or {"role": "user", "content": ""})
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
