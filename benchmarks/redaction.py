"""Measure redaction: the share of secrets removed, the share of look-alikes removed with them, and the speed.

440 secrets and look-alikes from the rule tests of gitleaks and detect-secrets, in two halves, split by hash. A public
address of the internet (`ip_public`), which detect-secrets lists, stays. Speed is by processor time.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from hashlib import sha512
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.shared import HALVES, find_shared, half_of
from benchmarks.table import Row, format_section, make_absent_row
from everthread.core.secrets.redaction import find_secrets, redact
from everthread.core.secrets.secret_rules import load_rules

MEGABYTE = 1_000_000
PROSE = (
    "the summary of what was said earlier keeps every decision, each open question and the names of all files that "
    "changed, so that whoever reads it next can go on without asking again; nothing else belongs there."
)


def run() -> list[Row]:
    return [*_quality(), *_speed()]


def _quality() -> list[Row]:
    path = find_shared("secrets.b64.jsonl")
    if path is None:
        return [make_absent_row("secrets and look-alikes")]
    cases = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    rows: list[Row] = []
    for half in HALVES:
        rows += _rows(half, [case for case in cases if half_of(case["text_b64"]) == half])
    return rows


def _rows(half: str, cases: list[dict[str, Any]]) -> list[Row]:
    secret_count = 0
    missed_labels = Counter[str]()
    lookalike_count = 0
    changed_labels = Counter[str]()
    for case in cases:
        text = _decode(case["text_b64"])
        redacted = redact(text)
        if case["is_secret"]:
            secret_count += 1
            missed_labels[case["label"]] += (
                _decode(case.get("secret_b64") or case["text_b64"]) in redacted
            )
        else:
            lookalike_count += 1
            changed_labels[case["label"]] += redacted != text
    recall = 1 - missed_labels.total() / secret_count
    changed_share = changed_labels.total() / lookalike_count
    secrets_text, changed_text = (
        f"{recall:.1%} of {secret_count}; missed: {_list_counts(missed_labels)}",
        f"{changed_share:.1%} of {lookalike_count}: {_list_counts(changed_labels)}",
    )
    return [
        Row(f"secrets gone, {half}", secrets_text, "≥ 95 %", recall >= 0.95),
        Row(f"look-alikes changed, {half}", changed_text, "≤ 5 %", changed_share <= 0.05),
    ]


def _decode(encoded: str) -> str:
    return base64.b64decode(encoded).decode("utf-8", "replace")


def _list_counts(counts: Counter[str]) -> str:
    return (
        ", ".join(f"{label} {count}" for label, count in sorted(counts.items()) if count) or "none"
    )


def _speed() -> list[Row]:
    rows = []
    for name, text in _texts().items():
        fast = _time_best_run(find_secrets, text)
        slow = _time_best_run(_search_one_by_one, text)
        rate = len(text) / MEGABYTE / fast
        rows.append(
            Row(
                f"speed, {name}",
                f"{rate:.1f} MB/s, {slow / fast:.1f} × the forms one after the other",
            )
        )
    return rows


def _texts() -> dict[str, str]:
    sources = sorted(Path(__file__).parents[1].glob("src/**/*.py"))
    noise = b"".join(sha512(str(i).encode()).digest() for i in range(MEGABYTE // 85))
    log = "".join(
        json.dumps(
            {
                "at": f"2026-01-02T03:04:{i % 60:02}Z",
                "id": noise[i : i + 16].hex(),
                "path": f"/v1/items/{i}",
            }
        )
        + "\n"
        for i in range(MEGABYTE // 100)
    )
    return {
        "prose": _repeat_to_megabyte(PROSE + "\n"),
        "code": _repeat_to_megabyte("\n".join(path.read_text("utf-8") for path in sources)),
        "JSON logs": _repeat_to_megabyte(log),
        "base64": _repeat_to_megabyte(base64.b64encode(noise).decode()),
    }


def _repeat_to_megabyte(text: str) -> str:
    return "".join(islice(cycle(text), MEGABYTE))


def _search_one_by_one(text: str) -> int:
    """Search for each token pattern in a separate pass over the text, without rules by name or context."""
    tokens = {
        form.pattern.pattern for forms in load_rules().forms_by_prefix.values() for _, form in forms
    }
    patterns = [form.pattern.pattern for form in load_rules().literal_forms]
    return sum(len(re.findall(rf"\b{pattern}", text, re.ASCII)) for pattern in tokens) + sum(
        len(re.findall(pattern, text, re.ASCII)) for pattern in patterns
    )


def _time_best_run(work: Callable[[str], object], text: str) -> float:
    """Return the CPU seconds of the best of three runs, after a short one that compiles the patterns."""
    work(text[:1000])
    times = []
    for _ in range(3):
        start = time.process_time()
        work(text)
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    print(format_section("Redaction", run()))
