"""`everthread compress` in a real process."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from everthread import open_store
from everthread.core.summary_marks import is_summary, recognize_summaries
from everthread.core.validation import validate_messages
from everthread.factory.stores import STORE_FILE
from tests.chat_messages import (
    assistant_message,
    calls_message,
    function_call,
    result_message,
    user_message,
)
from tests.cli.conftest import Command, configure
from tests.compaction.histories import tool_turns

TALK = [
    user_message("Tidy up. Never touch the docs folder."),
    assistant_message("ok"),
    *tool_turns(0, 40),
    assistant_message("Done."),
    user_message("Now the tests."),
]
SMALL_WINDOW = "--window 16000"


def write(path: Path, value: Any) -> str:
    path.write_text(json.dumps(value), "utf-8")
    return str(path)


def test_a_table_and_the_compacted_messages(everthread: Command, tmp_path: Path) -> None:
    out = tmp_path / "small.json"
    output = everthread.succeeds(
        "compress", write(tmp_path / "talk.json", TALK), f"{SMALL_WINDOW} -o {out}"
    )
    for words in ("prune", "boundaries", "summarise", "tokens", "by the journal"):
        assert words in output
    assert "verification" not in output, "there is no table without anything to verify"
    messages = json.loads(out.read_text("utf-8"))
    assert isinstance(messages, list), "a list comes back as a list"
    assert validate_messages(messages) == []
    assert sum(map(is_summary, recognize_summaries(messages))) == 1


async def test_the_summary_tag_uses_the_key_of_the_home(
    everthread: Command, home: Path, tmp_path: Path
) -> None:
    home.mkdir()
    store = open_store(f"sqlite:///{home / STORE_FILE}")
    out = tmp_path / "small.json"
    key = await store.keys.load_shared_secret("summary")
    await store.close()
    everthread.succeeds("compress", write(tmp_path / "talk.json", TALK), f"{SMALL_WINDOW} -o {out}")
    messages = json.loads(out.read_text("utf-8"))
    assert sum(map(is_summary, recognize_summaries(messages, key))) == 1
    assert not any(map(is_summary, recognize_summaries(messages)))


def test_an_anthropic_file_is_written_back_as_anthropic(
    everthread: Command, tmp_path: Path
) -> None:
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 500,
        "system": "Be brief.",
        "messages": [],
    }
    for number in range(60):
        use = {
            "type": "tool_use",
            "id": f"t{number}",
            "name": "read",
            "input": {"path": f"src/m{number}.py"},
        }
        result = {
            "type": "tool_result",
            "tool_use_id": f"t{number}",
            "content": "x = 1\n" * 300,
        }
        body["messages"] += [  # type: ignore[operator] # a list
            {"role": "user", "content": f"Look at module {number}."},
            {
                "role": "assistant",
                "content": [use],
            },
            {
                "role": "user",
                "content": [result],
            },
            {"role": "assistant", "content": "Seen."},
        ]
    out = tmp_path / "small.json"
    everthread.succeeds("compress", write(tmp_path / "talk.json", body), f"{SMALL_WINDOW} -o {out}")
    small = json.loads(out.read_text("utf-8"))
    assert small["max_tokens"] == 500
    assert small["messages"][0]["role"] == "user"
    assert not any(message["role"] == "tool" for message in small["messages"])
    assert len(small["messages"]) < 240


def test_prints_json_of_previews_and_repeated_compactions(
    everthread: Command, tmp_path: Path
) -> None:
    path = write(tmp_path / "talk.json", TALK)
    (planned,) = everthread.json(f"compress {path} {SMALL_WINDOW} --preview")["compactions"]
    assert not planned["changed"]
    assert planned["covered"]
    assert planned["summary"] == ""
    reports = everthread.json(f"compress {path} {SMALL_WINDOW} --times 3")["compactions"]
    assert reports[0]["changed"]
    assert reports[0]["tokens_after"] < reports[0]["tokens_before"]
    assert not reports[-1]["changed"], "nothing more can be compacted"
    assert "would be summarised" in everthread(f"compress {path} {SMALL_WINDOW} --preview").stdout


def test_nothing_to_do_and_bad_options(everthread: Command, tmp_path: Path) -> None:
    short = write(tmp_path / "short.json", [user_message("Hi"), assistant_message("Hello!")])
    assert "nothing was changed" in everthread(f"compress {short}").stdout
    for wrong in (
        "--summarizer magic",
        "--template modern",
        "--window 0",
    ):
        assert everthread(f"compress {short}", wrong).returncode == 2
    assert everthread("compress -", stdin=b"[1]").returncode == 2


def test_disabled_compression_compacts_no_file(
    everthread: Command, home: Path, tmp_path: Path
) -> None:
    configure(home, "compression: {enabled: false}\n")
    out = tmp_path / "small.json"
    assert "compression.enabled: false" in everthread.refuses(
        "compress", write(tmp_path / "talk.json", TALK), f"{SMALL_WINDOW} -o {out}"
    )
    assert not out.exists()


def test_the_configured_layout_is_used(everthread: Command, home: Path, tmp_path: Path) -> None:
    configure(home, "compression: {template: classic}\n")
    talk = write(tmp_path / "talk.json", TALK)
    assert "## Progress" in everthread(f"compress {talk} {SMALL_WINDOW} --show").stdout
    assert (
        "## Progress"
        not in everthread(f"compress {talk} {SMALL_WINDOW} --show --template=handoff").stdout
    )


def test_cited_outputs_are_saved_beside_the_file_and_no_tool_is_named(
    everthread: Command, tmp_path: Path
) -> None:
    calls: list[Any] = [function_call("call_1", "terminal")]
    printed = " ".join(map(str, range(40_000)))
    talk: list[Any] = [
        *TALK,
        calls_message(*calls),
        result_message("call_1", printed),
    ]
    path = write(tmp_path / "talk.json", talk)
    out = tmp_path / "small.json"
    everthread(f"compress {path} {SMALL_WINDOW} -o {out}")
    text = out.read_text("utf-8")
    [cited] = re.findall(r"Stored as output:([0-9a-f]{16})\.", text)
    assert (tmp_path / "small.json.outputs" / f"{cited}.txt").read_text("utf-8") == printed
    assert "call read_file" not in text
    assert (
        "Not written: 1 cited output" in everthread(f"compress {path} {SMALL_WINDOW} -o -").stderr
    )


@pytest.mark.parametrize("command", ["compress", "tokens"])
def test_a_window_that_holds_no_conversation_is_refused(
    everthread: Command, tmp_path: Path, command: str
) -> None:
    file = tmp_path / "talk.json"
    file.write_text(
        '[{"role": "user", "content": "Hi"}, {"role": "narrator", "content": "x"}]',
        "utf-8",
    )
    assert "at least 1,000" in everthread.refuses(f"{command} --window 5 {file}")


def test_unknown_roles_are_named_and_plurals_are_right(everthread: Command, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    file.write_text(
        '[{"role": "user", "content": "Hi"}, {"role": "narrator", "content": "x"}]',
        "utf-8",
    )
    assert (
        "warning: unknown role narrator; known: assistant" in everthread(f"compress {file}").stderr
    )
    assert (
        "2 messages (openai_chat), 1 turn, 0 tool groups, 0 summaries"
        in everthread(f"inspect {file}").stdout
    )
