"""Every client past its window, with a provider that shares no code with Everthread.

It refuses unpaired or reordered calls and results, changed signatures, a fifth cache mark,
a longer cache lifetime after a shorter one, fields that no reference has, and prompts over
its window. Findings are in `build/torture/clients/strict-NAME.json`.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.torture.clients.model import FACT
from tests.torture.clients.programs import PROGRAMS
from tests.torture.clients.start import run_program
from tests.torture.strict.rules import CHECKS
from tests.torture.strict.signatures import call_text, sign

pytestmark = pytest.mark.timeout(1_800)


@pytest.mark.parametrize(
    "name", [name for name, program in PROGRAMS.items() if not program.mcp_search_tool]
)
def test_strict_provider_refuses_nothing(name: str, tmp_path: Path) -> None:
    found = run_program(
        PROGRAMS[name],
        tmp_path / "run",
        module="tests.torture.strict.run",
        name=f"strict-{name}",
    )
    assert found["violations"] == []
    # Gemini CLI 0.61: unpaired calls.
    is_client_at_fault = bool(found["side_violations"])
    assert found["refused"] == [] or is_client_at_fault
    assert len(found["too_long"]) <= 2, "limits are learnt from the first refusal"
    assert not any(found["codes"]), found["errors"]
    assert found["compactions"] >= 1
    assert found["cached"] >= (0.75 if PROGRAMS[name].changing_messages > 2 else 0.85)
    assert FACT in found["said"][-1]


_CALL = {"type": "tool_use", "id": "a", "name": "read", "input": {}}
_RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "text"}
_GEMINI_CALL: dict[str, Any] = {"name": "read", "args": {"path": "a"}}
VALID: dict[str, dict[str, Any]] = {
    "anthropic": {
        "model": "claude",
        "max_tokens": 100,
        "system": [
            {
                "type": "text",
                "text": "Be brief.",
                "cache_control": {"type": "ephemeral"},
            }
        ],
        "messages": [
            {"role": "user", "content": "Read it."},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": sign("Hm.")},
                    _CALL,
                ],
            },
            {"role": "user", "content": [_RESULT]},
        ],
    },
    "openai_chat": {
        "model": "gpt",
        "messages": [
            {"role": "user", "content": "Read it."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "a",
                        "type": "function",
                        "function": {"name": "read", "arguments": "{}"},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "text"},
        ],
    },
    "openai_responses": {
        "model": "gpt",
        "input": [
            {"role": "user", "content": "Read it."},
            {"type": "reasoning", "summary": [], "encrypted_content": f"x.{sign('x')}"},
            {
                "type": "function_call",
                "call_id": "a",
                "name": "read",
                "arguments": "{}",
            },
            {"type": "function_call_output", "call_id": "a", "output": "text"},
        ],
    },
    "gemini": {
        "contents": [
            {"role": "user", "parts": [{"text": "Read it."}]},
            {
                "role": "model",
                "parts": [
                    {
                        "functionCall": _GEMINI_CALL,
                        "thoughtSignature": sign(call_text(_GEMINI_CALL)),
                    }
                ],
            },
            {
                "role": "user",
                "parts": [{"functionResponse": {"name": "read", "response": {}}}],
            },
        ]
    },
}
BROKEN: list[tuple[str, str, list[Any], Any]] = [
    ("anthropic", "tool_use", ["messages", 2, "content", 0, "tool_use_id"], "b"),
    ("anthropic", "signature", ["messages", 1, "content", 0, "thinking"], "Ha."),
    ("anthropic", "extra inputs", ["surprise"], 1),
    ("anthropic", "non-empty", ["messages", 0, "content"], ""),
    (
        "anthropic",
        "must not come after",
        ["messages", 2, "content", 0, "cache_control"],
        {"type": "ephemeral", "ttl": "1h"},
    ),
    ("openai_chat", "no such call", ["messages", 2, "tool_call_id"], "b"),
    ("openai_chat", "extra inputs", ["messages", 0, "surprise"], 1),
    ("openai_responses", "no tool call", ["input", 3, "call_id"], "b"),
    ("openai_responses", "verified", ["input", 1, "encrypted_content"], "y.z"),
    (
        "gemini",
        "responses",
        ["contents", 2, "parts", 0, "functionResponse", "name"],
        "b",
    ),
    ("gemini", "signature", ["contents", 1, "parts", 0, "thoughtSignature"], "b"),
]


@pytest.mark.parametrize("api", CHECKS)
def test_a_valid_request_is_accepted(api: str) -> None:
    assert CHECKS[api](VALID[api]) == []


@pytest.mark.parametrize(("api", "words", "place", "value"), BROKEN)
def test_a_broken_request_is_refused(api: str, words: str, place: list[Any], value: Any) -> None:
    body = copy.deepcopy(VALID[api])
    inner: Any = body
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    assert words in " ".join(CHECKS[api](body))


def test_a_fifth_cache_mark_is_refused() -> None:
    body = copy.deepcopy(VALID["anthropic"])
    body["system"] *= 5
    assert "at most 4" in " ".join(CHECKS["anthropic"](body))
