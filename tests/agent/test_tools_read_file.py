"""The tool `read_file`."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.agent.tool_interface import ToolContext
from everthread.agent.tools.read_file import MAX_ANSWER_CHARS
from everthread.errors import InputError
from tests.agent.tool_use import (
    call_tool,
    call_tool_in,
    closed_tool_context,
    open_tool_context,
    write_files,
)
from tests.chat_messages import call_reply
from tests.conversation.conversation_setup import open_conversations, scripted_model, tool_result


async def test_lines_have_numbers(tmp_path: Path) -> None:
    work = write_files(tmp_path, {"a.txt": "one\ntwo\r\n\nfour"})
    assert (
        await call_tool_in(tmp_path, "read_file", path="a.txt")
    ).text == "1\tone\n2\ttwo\n3\t\n4\tfour"
    assert (
        await call_tool_in(tmp_path, "read_file", path=str(work / "a.txt"), offset=4)
    ).text.startswith("4\tfour")


async def test_a_part_names_the_next_offset(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.txt": "".join(f"line {number}\n" for number in range(1, 101))})
    first = await call_tool_in(tmp_path, "read_file", path="a.txt", limit=2)
    assert first.text == "1\tline 1\n2\tline 2\n[lines 1-2 of 100; go on with offset 3]"
    last = await call_tool_in(
        tmp_path,
        "read_file",
        path="a.txt",
        offset=100,
        limit=5,
    )
    assert last.text == "100\tline 100\n[lines 100-100, the last of a.txt]"
    assert (
        await call_tool_in(tmp_path, "read_file", path="a.txt", offset=101)
    ).text == "[a.txt has 100 lines; there is nothing at line 101]"


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ToolContext:
    return asyncio.run(closed_tool_context(tmp_path_factory.mktemp("pages")))


@given(
    lines=st.lists(st.text("ab é", max_size=30), min_size=1, max_size=30),
    limit=st.integers(1, 7),
)
async def test_all_pages_together_are_the_file(
    context: ToolContext, lines: list[str], limit: int
) -> None:
    (context.workspace / "a.txt").write_text("\n".join([*lines, "end"]))

    read_lines = []
    offset = 1
    while True:
        reply = await call_tool(
            context,
            "read_file",
            path="a.txt",
            offset=offset,
            limit=limit,
        )
        read_lines += [
            line.partition("\t")[2]
            for line in reply.text.split("\n")
            if not line.startswith("[lines")
        ]
        more = re.search(r"go on with offset (\d+)\]$", reply.text)
        if more is None:
            break
        offset = int(more[1])
    assert read_lines == [*lines, "end"]


async def test_one_reading_is_bounded_and_nothing_is_lost(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {"a.txt": "".join(f"{number} {'x' * 500}\n" for number in range(1, 1_001))},
    )
    seen = 0
    offset = 1
    while True:
        text = (await call_tool_in(tmp_path, "read_file", path="a.txt", offset=offset)).text
        assert len(text) <= MAX_ANSWER_CHARS + 100
        seen += text.count("x" * 500)
        more = re.search(r"go on with offset (\d+)\]$", text)
        if more is None:
            break
        offset = int(more[1])
    assert seen == 1_000


async def test_a_very_long_line_is_cut_and_the_rest_follows(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {"a.txt": "x" * 3_000_000 + "\nsecond\n" + "y" * 2_500_000 + "\nfourth"},
    )
    text = (await call_tool_in(tmp_path, "read_file", path="a.txt")).text
    assert "[cut: the line has 3,000,001 bytes]\n2\tsecond\n3\tyyy" in text
    assert text.endswith("4\tfourth")
    assert len(text) < 12_000
    assert (await call_tool_in(tmp_path, "read_file", path="a.txt", offset=4)).text.startswith(
        "4\tfourth"
    )


async def test_binary_files_are_not_read(tmp_path: Path) -> None:
    work = write_files(tmp_path, {"empty.txt": ""})
    (work / "image.png").write_bytes(b"\x89PNG\0\0\0")
    (work / "latin.txt").write_bytes(b"caf\xe9")
    os.mkfifo(work / "pipe")
    binary = await call_tool_in(tmp_path, "read_file", path="image.png")
    assert binary.failed
    assert "binary file of 7 bytes" in binary.text
    assert (await call_tool_in(tmp_path, "read_file", path="latin.txt")).text == "1\tcaf�"
    assert (
        await call_tool_in(tmp_path, "read_file", path="empty.txt")
    ).text == "[empty.txt is empty]"
    with pytest.raises(InputError, match="no ordinary file"):
        await call_tool_in(tmp_path, "read_file", path="pipe")


async def test_folders_are_listed(tmp_path: Path) -> None:
    work = write_files(tmp_path, {"b.txt": "", "a/c.txt": ""})
    (work / "new\nline\x1b[31m").touch()
    (work / os.fsdecode(b"bad\xff")).touch()
    assert (await call_tool_in(tmp_path, "read_file", path=".")).text.split("\n") == [
        "a/",
        "b.txt",
        "bad\\udcff",
        "new\\nline\\x1b[31m",
    ]
    (work / "none").mkdir()
    assert (
        await call_tool_in(tmp_path, "read_file", path="none")
    ).text == "[none is an empty folder]"
    assert (
        await call_tool_in(tmp_path, "read_file", path=".", limit=1)
    ).text == "a/\n[lines 1-1 of 5; go on with offset 2]"


async def test_a_missing_file_suggests_near_names(tmp_path: Path) -> None:
    write_files(tmp_path, {"src/billing.py": ""})
    near, far = [
        await call_tool_in(tmp_path, "read_file", path=path)
        for path in ("src/biling.py", "src/x/y/z")
    ]
    assert near.failed
    assert near.text == "src/biling.py does not exist; near by name: billing.py"
    assert "does not exist (the folder src does" in far.text


async def test_stored_output_is_read_by_its_id(tmp_path: Path) -> None:
    """An output too large for the conversation is read in parts, each of which stays in it."""
    text = "".join(f"line {number}\n" for number in range(30_000))
    async with (
        open_conversations(tmp_path) as conversations,
        open_tool_context(tmp_path) as context,
    ):
        conversation = await conversations.open(
            scripted_model(
                [
                    call_reply(("terminal", '{"command": "x"}')),
                    call_reply(("read_file", "{}", "c2")),
                ]
            )
        )
        await conversation.send("Run it.")
        (kept,) = await conversation.add_results([tool_result(text)])
        found = re.search(r"output:\w+", str(kept["content"]))
        assert found is not None
        there = type(context)(context.workspace, context.home, conversation)
        read = await call_tool(there, "read_file", path=found[0], offset=6)
        assert read.text.startswith(text[6:40_000])
        assert "more characters; go on with offset 50006]" in read.text
        assert (await call_tool(there, "read_file", path=f" {found[0]} ", limit=6)).text.startswith(
            "line 0\n["
        )
        for unknown in (
            "output:0123456789abcdef",
            "output:../../etc/passwd",
            "output:",
            "output:\0",
        ):
            with pytest.raises(InputError, match="cannot be read"):
                await call_tool(there, "read_file", path=unknown)
