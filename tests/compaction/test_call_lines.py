"""Calls of any agent in one line: tool, target, outcome, size."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.compaction.history.call_lines import (
    MAX_LINE_CHARS,
    Action,
    describe_outcome,
)
from everthread.compaction.history.tool_calls import describe_call
from everthread.core.messages import ToolCall
from everthread.core.text import clip, one_line
from everthread.core.tool_outputs import make_persisted_block, output_id


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall("c1", name, json.dumps(arguments))


LOG = "collecting\n" * 2_998 + "E   ValueError: bad port\nCommand exited with code 1"


@pytest.mark.parametrize(
    ("made", "text", "line"),
    [
        (
            call("terminal", command="pytest tests/"),
            "x\n" * 2_999 + "[exit 1]",
            "[terminal] ran `pytest tests/` -> exit 1, 3000 lines output",
        ),
        (
            call("run_command", cmd="make\n  all"),
            LOG,
            "[run_command] ran `make all` -> exit 1, ValueError: bad port, 3000 lines output",
        ),
        (
            call("shell", command=["bash", "-lc", "go test ./..."]),
            "ok  \ta/b\t1s\nexit code 0",
            "[shell] ran `go test ./...` -> exit 0, 1 package passed, 1 line output",
        ),
        (
            call("exec", command=["ls", "-l"]),
            "a",
            "[exec] ran `ls -l` -> 1 line output",
        ),
        (
            call("Read", filePath="/a/b.py", offset=16, limit=15),
            "a\nerror: no\nb",
            "[Read] read /a/b.py (offset=16, limit=15) -> 3 lines",
        ),
        (
            call("cat", path="a.py"),
            "Error: a.py is gone",
            "[cat] read a.py -> Error: a.py is gone, 19 chars",
        ),
        (
            call("write_file", path="a.py", content="1\n2\n3\n"),
            "Wrote it.\nLint:\n",
            "[write_file] wrote a.py (3 lines) -> Wrote it., 2 lines",
        ),
        (
            call("createFile", filename="a.py"),
            "done",
            "[createFile] wrote a.py -> done, 4 chars",
        ),
        (
            call("str_replace_editor", command="view", path="/w/a.py"),
            "1\n2",
            "[str_replace_editor] read /w/a.py -> 2 lines",
        ),
        (
            call("str_replace_editor", command="str_replace", path="/w/a.py", old_str="a"),
            "The file was edited.",
            "[str_replace_editor] changed /w/a.py -> The file was edited., 20 chars",
        ),
        (
            ToolCall("c1", "apply_patch", "*** Begin Patch\n*** Update File: src/a.py\n@@"),
            "Done!",
            "[apply_patch] changed src/a.py -> Done!, 5 chars",
        ),
        (
            call("apply_patch", input="*** Begin Patch\n*** Add File: src/b.py\n@@"),
            "Done!",
            "[apply_patch] changed src/b.py -> Done!, 5 chars",
        ),
        (
            call("Grep", pattern="def `f`", path="src"),
            "Found 17 files\na\nb",
            "[Grep] searched `def 'f'` in src -> 17 files, 3 lines",
        ),
        (
            call("web_search", query="python 3.13"),
            "a\nb",
            "[web_search] searched `python 3.13` -> 2 lines",
        ),
        (
            call("WebFetch", url="https://example.org/x"),
            "HTTP/1.1 404 Not here\n\nbody",
            "[WebFetch] fetched https://example.org/x -> HTTP 404, HTTP/1.1 404 Not here, 3 lines",
        ),
        (
            call("mcp__browser__open", url="https://example.org"),
            "Welcome",
            "[mcp__browser__open] fetched https://example.org -> Welcome, 7 chars",
        ),
        (
            call("list_files", path="src"),
            "a\nb\nc",
            "[list_files] listed src -> 3 lines",
        ),
        (call("scan", pattern="TODO"), "a\nb", "[scan] searched `TODO` -> 2 lines"),
        (
            call("put", path="a.txt", contents="x"),
            "ok",
            "[put] wrote a.txt (1 line) -> ok, 2 chars",
        ),
        (
            call("amend", file="a.txt", new_str="x"),
            "ok",
            "[amend] changed a.txt -> ok, 2 chars",
        ),
        (call("invoke", command="ls"), "a\nb", "[invoke] ran `ls` -> 2 lines output"),
        (
            call("get_order", orderId="A-1", lines=[{"n": 1}]),
            json.dumps({"id": "A-1", "status": "sent", "items": []}),
            "[get_order] order_id=A-1 -> status=sent, 44 chars",
        ),
        (
            call("search_flight", origin="SEA", destination="JFK"),
            json.dumps([{"n": 1}, {"n": 2}]),
            "[search_flight] origin=SEA, destination=JFK -> list of 2 items, 20 chars",
        ),
        (
            call("lookup", ids=[1, 2]),
            json.dumps({"names": [], "places": {}}),
            "[lookup] ids=[1, 2] -> names, places, 27 chars",
        ),
        (
            call("view", path="a.py", view_range=[1, 20]),
            "x\ny",
            "[view] read a.py (view_range=[1, 20]) -> 2 lines",
        ),
        (
            call("read_many_files", paths=["a.py", "b.py"]),
            "x\ny",
            "[read_many_files] read a.py b.py -> 2 lines",
        ),
        (
            call("search_files", pattern="x"),
            json.dumps({"total_count": 7, "matches": []}),
            "[search_files] searched `x` -> total_count=7, 33 chars",
        ),
        (call("plan"), "All set.", "[plan] -> All set., 8 chars"),
        (
            call("run_tests", suite="unit"),
            "1 failed, 2 passed",
            "[run_tests] suite=unit -> 1 failed, 2 passed, 18 chars",
        ),
        (ToolCall("c1", "bash", "{broken"), "a\nb", "[bash] -> a, 2 lines"),
        (
            call("sh", script="x"),
            json.dumps({"output": "a\nb", "exit_code": 3, "error": "it broke"}),
            "[sh] ran `x` -> exit 3, it broke, 2 lines output",
        ),
        (
            call("bash", command="sleep 99"),
            "Command timed out",
            "[bash] ran `sleep 99` -> timed out, 1 line output",
        ),
    ],
)
def test_calls_are_described_in_one_line(made: ToolCall, text: str, line: str) -> None:
    assert describe_call(made, text) == line


def test_an_error_is_searched_for_if_the_provider_reports_a_failure() -> None:
    text = "reading\nsomething was denied\nbye"
    assert describe_call(call("read", path="a"), text) == "[read] read a -> 3 lines"
    assert (
        describe_call(call("read", path="a"), text, failed=True)
        == "[read] read a -> something was denied, 3 lines"
    )


def test_a_stored_output_keeps_its_citation_and_its_real_size() -> None:
    text = "line\n" * 9_000 + "exit code 1\n"
    block = make_persisted_block(text, preview_chars=1_500)
    line = describe_call(call("bash", command="make " + "x" * 300), block)
    assert line is not None
    assert line.endswith(f"…` -> exit 1, 9001 lines output, stored as {output_id(text)}")
    assert (
        describe_call(None, block) == f"[tool] -> exit 1, 9001 lines, stored as {output_id(text)}"
    )


def test_a_short_line_keeps_size_and_outcome() -> None:
    made = call("bash", command="pytest " + "x" * 300)
    assert (
        describe_call(made, LOG, limit=60)
        == "[bash] ran `pytest…` -> exit 1, Value…, 3000 lines output"
    )
    assert describe_outcome("shell", LOG, max_chars=10) == "3000 lines output"


def test_unknown_facts_are_left_out() -> None:
    assert describe_call(None, "x" * 300) is None
    assert describe_call(ToolCall("c1", "", "{}"), "x" * 300) is None
    assert describe_call(None, "a\nb", name="bash") == "[bash] -> a, 2 lines"
    assert describe_call(ToolCall("c1", " \n", "{}"), "a\nb", name="bash") == "[bash] -> a, 2 lines"


def test_the_target_is_cut_if_room_is_short() -> None:
    line = Action("t" * 40, "shell", "ran", "word " * 100, "", is_quoted=True).format_line(
        "o" * 110
    )
    assert len(line) <= MAX_LINE_CHARS
    assert line.endswith("…` -> " + "o" * 110)
    assert Action("t", target="x" * 500, detail="d" * 300).format_line("o") == clip(
        f"[t] {'d' * 300} -> o", MAX_LINE_CHARS
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(["bash", "read_file", "edit", "Write", "grep", "fetch", "x", ""]) | st.text(
    max_size=60
)
KEYS = st.sampled_from(
    ["command", "path", "file_path", "pattern", "url", "content", "old_str", "offset"]
)


@given(NAMES, st.dictionaries(KEYS, JSON, max_size=4), st.text(max_size=400), st.booleans())
def test_any_call_is_one_short_line(
    name: str, arguments: dict[str, Any], text: str, failed: bool
) -> None:
    call = ToolCall("c", name, json.dumps(arguments))
    line = describe_call(call, text, failed=failed)
    assert (line is None) == (one_line(name) == "")
    if line is not None:
        assert len(line) <= MAX_LINE_CHARS
        assert line.splitlines() == [line]
