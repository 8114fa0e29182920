"""Secrets: how many go, how many look-alikes go with them, how fast.

440 secrets and look-alikes from the rule tests of gitleaks and detect-secrets, in two halves, split by hash. A public
address of the internet (`ip_public`), which detect-secrets lists, is left as it is. Speed is by processor time.
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

from benchmarks.shared import HALVES, half_of, shared
from benchmarks.table import Row, absent, markdown
from everthread.core.secrets.redaction import find_secrets, redact
from everthread.core.secrets.secret_rules import rules

MEGABYTE = 1_000_000
WORDS = (
    "the summary of what was said earlier keeps every decision, each open question and the names of all files that "
    "changed, so that whoever reads it next can go on without asking again; nothing else belongs there."
)


def run() -> list[Row]:
    return [*_quality(), *_speed()]


def _quality() -> list[Row]:
    path = shared("secrets.b64.jsonl")
    if path is None:
        return [absent("secrets and look-alikes")]
    cases = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    rows: list[Row] = []
    for half in HALVES:
        rows += _rows(
            half, [case for case in cases if half_of(case["text_b64"]) == half]
        )
    return rows


def _rows(half: str, cases: list[dict[str, Any]]) -> list[Row]:
    secrets = 0
    missed = Counter[str]()
    others = 0
    changed = Counter[str]()
    for case in cases:
        text = _plain(case["text_b64"])
        after = redact(text)
        if case["is_secret"]:
            secrets += 1
            missed[case["label"]] += (
                _plain(case.get("secret_b64") or case["text_b64"]) in after
            )
        else:
            others += 1
            changed[case["label"]] += after != text
    recall = 1 - missed.total() / secrets
    false = changed.total() / others
    gone, kept = (
        f"{recall:.1%} of {secrets}; missed: {_listed(missed)}",
        f"{false:.1%} of {others}: {_listed(changed)}",
    )
    return [
        Row(f"secrets gone, {half}", gone, "≥ 95 %", recall >= 0.95),
        Row(f"look-alikes changed, {half}", kept, "≤ 5 %", false <= 0.05),
    ]


def _plain(encoded: str) -> str:
    return base64.b64decode(encoded).decode("utf-8", "replace")


def _listed(counts: Counter[str]) -> str:
    return (
        ", ".join(
            f"{label} {count}" for label, count in sorted(counts.items()) if count
        )
        or "none"
    )


def _speed() -> list[Row]:
    rows = []
    for name, text in _texts().items():
        fast = _seconds(find_secrets, text)
        slow = _seconds(_naive, text)
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
        "prose": _filled(WORDS + "\n"),
        "code": _filled("\n".join(path.read_text("utf-8") for path in sources)),
        "JSON logs": _filled(log),
        "base64": _filled(base64.b64encode(noise).decode()),
    }


def _filled(text: str) -> str:
    return "".join(islice(cycle(text), MEGABYTE))


def _naive(text: str) -> int:
    """Every form with a start or a literal of its own, each with a pass over the text; nothing by name or place."""
    tokens = {
        form.pattern.pattern for forms in rules().tokens.values() for _, form in forms
    }
    patterns = [form.pattern.pattern for form in rules().patterns]
    return sum(
        len(re.findall(rf"\b{pattern}", text, re.ASCII)) for pattern in tokens
    ) + sum(len(re.findall(pattern, text, re.ASCII)) for pattern in patterns)


def _seconds(work: Callable[[str], object], text: str) -> float:
    """The better of three runs, after one on a little of the text that compiles what there is to compile."""
    work(text[:1000])
    times = []
    for _ in range(3):
        start = time.process_time()
        work(text)
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    print(markdown("Redaction", run()))
