"""A session of Claude Code in a user's home."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.gateway.manager_setup import text_of_tokens

CLAUDE = "claude-sonnet-4-5"


def write_session(home: Path, *, turns: int = 24, compacted_at: int = 16) -> Path:
    """A session of Claude Code in a person's home, with usage, and with one compaction of its own."""
    lines: list[dict[str, Any]] = []
    prompt = 14_000

    def add(kind: str, minute: int, message: dict[str, Any], **more: Any) -> None:
        stamp = f"2026-05-01T{8 + minute // 60:02d}:{minute % 60:02d}:00.000Z"
        lines.append(
            {
                "type": kind,
                "sessionId": "s1",
                "timestamp": stamp,
                "message": {"role": kind, **message},
                **more,
            }
        )

    for turn in range(turns):
        if turn == compacted_at:
            metadata = {"trigger": "auto", "preTokens": prompt}
            lines.append(
                {
                    "type": "system",
                    "subtype": "compact_boundary",
                    "compactMetadata": metadata,
                }
            )
            add(
                "user",
                2 * turn,
                {"content": "So far, part_3.py was changed."},
                isCompactSummary=True,
            )
        add(
            "user",
            2 * turn,
            {"content": f"Wish {turn}: change src/part_{turn}.py, mind setting_number_{turn}."},
        )
        path = f"src/part_{turn % compacted_at}.py setting_number_{turn % compacted_at}"
        call = {
            "type": "tool_use",
            "id": f"t{turn}",
            "name": "Bash",
            "input": {"command": f"cat {path}"},
        }
        usage = {
            "input_tokens": 4,
            "output_tokens": 30,
            "cache_creation_input_tokens": 900,
        }
        first = (
            {"cache_read_input_tokens": 0, "cache_creation_input_tokens": prompt}
            if not turn
            else {}
        )
        figures = {
            **usage,
            "cache_read_input_tokens": prompt - 900,
            **first,
        }
        add(
            "assistant",
            2 * turn,
            {
                "id": f"m{turn}",
                "model": CLAUDE,
                "content": [call],
                "usage": figures,
            },
        )
        result = {
            "type": "tool_result",
            "tool_use_id": f"t{turn}",
            "content": text_of_tokens(1_600, f"part {turn}"),
        }
        add(
            "user",
            2 * turn + 1,
            {
                "content": [result],
            },
        )
        prompt += 2_300
    add(
        "assistant",
        2 * turns,
        {
            "id": "end",
            "model": CLAUDE,
            "content": "Done.",
            "usage": {"input_tokens": prompt},
        },
    )
    file = home / ".claude" / "projects" / "p" / "s1.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    return file
