"""Errors as providers print them, with changed figures, and their meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CASES: list[dict[str, Any]] = [
    json.loads(line)
    for line in Path(__file__).with_name("error_cases.jsonl").read_text("utf-8").splitlines()
]
