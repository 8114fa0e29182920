"""The tools `write_file` and `patch`."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.agent.tool_interface import Permission, ToolContext
from everthread.errors import InputError
from tests.agent.tool_use import (
    TOOLS,
    call_tool,
    call_tool_in,
    closed_tool_context,
    open_tool_context,
    write_files,
)


async def test_a_file_is_written_with_its_folders(tmp_path: Path) -> None:
    reply = await call_tool_in(tmp_path, "write_file", path="a/b/c.txt", content="one\ntwo\n")
    assert reply.text == "Wrote a/b/c.txt: 2 lines, 8 bytes (a new file)."
    assert (tmp_path / "work/a/b/c.txt").read_text() == "one\ntwo\n"
    again = await call_tool_in(tmp_path, "write_file", path="a/b/c.txt", content="")
    assert again.text == "Wrote a/b/c.txt: 0 lines, 0 bytes (it had 8 bytes)."


async def test_a_link_inside_stays_a_link(tmp_path: Path) -> None:
    work = write_files(tmp_path, {"real.txt": "old"})
    (work / "link.txt").symlink_to("real.txt")
    assert (
        await call_tool_in(tmp_path, "write_file", path="link.txt", content="new")
    ).text.startswith("Wrote real.txt")
    assert (work / "link.txt").is_symlink()
    assert (work / "real.txt").read_text() == "new"


async def test_a_patch_keeps_the_mode_of_a_file(tmp_path: Path) -> None:
    work = write_files(tmp_path, {"run.sh": "echo old\n"})
    (work / "run.sh").chmod(0o755)
    await call_tool_in(
        tmp_path,
        "patch",
        path="run.sh",
        old_text="old",
        new_text="new",
    )
    assert stat.S_IMODE((work / "run.sh").stat().st_mode) == 0o755


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x", "/etc/motd", "out/x", "gone", "~/x"])
async def test_nothing_is_written_outside(tmp_path: Path, path: str) -> None:
    work = write_files(tmp_path, {"a/b.txt": ""})
    (work / "out").symlink_to(tmp_path / "home")
    (work / "gone").symlink_to(tmp_path / "made")
    before = sorted(tmp_path.iterdir())
    for name, more in (
        ("write_file", {"content": "x"}),
        ("patch", {"old_text": "a", "new_text": "b"}),
    ):
        with pytest.raises(InputError, match="outside the workspace"):
            await call_tool_in(tmp_path, name, path=path, **more)
    assert sorted({*tmp_path.iterdir()} - {tmp_path / "home"}) == sorted(
        {*before} - {tmp_path / "home"}
    )
    assert not (tmp_path / "home" / "x").exists()


async def test_a_refused_write_says_why(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.txt": "x"})
    for path, why in (
        (".", "folder"),
        ("a.txt/b", "cannot be used: Not a directory"),
        ("n" * 300, "File name too long"),
    ):
        with pytest.raises(InputError, match=why):
            await call_tool_in(tmp_path, "write_file", path=path, content="x")


async def test_writes_need_permission(tmp_path: Path) -> None:
    """The permission shows the resolved path and the change; an impossible patch does not ask."""
    work = write_files(tmp_path, {"src/a.py": "a = 1\n"})
    (work / "link").symlink_to("src")
    async with open_tool_context(tmp_path) as context:
        with pytest.raises(InputError, match="nowhere"):
            TOOLS["patch"].needs(
                {
                    "path": "link/a.py",
                    "old_text": "b",
                    "new_text": "c",
                },
                context,
            )
        written = TOOLS["write_file"].needs({"path": "link/a.py", "content": "a = 2\n"}, context)
        patched = TOOLS["patch"].needs(
            {
                "path": "link/a.py",
                "old_text": "1",
                "new_text": "3",
            },
            context,
        )
        binary = TOOLS["write_file"].needs({"path": "new.bin", "content": "\0" * 10}, context)
    changed = "--- src/a.py\n+++ src/a.py\n@@ -1 +1 @@\n-a = 1\n+a = "
    assert written == Permission("write", "src/a.py", changed + "2")
    assert patched == Permission("write", "src/a.py", changed + "3")
    assert binary == Permission("write", "new.bin", "10 bytes")


async def test_an_ambiguous_patch_is_refused(tmp_path: Path) -> None:
    work = write_files(tmp_path, {"a.py": "x = 1\ny = 1\nz = 1\n"})
    with pytest.raises(
        InputError, match=r"occurs 3 times in a\.py, at lines 1, 2, 3; give more lines"
    ):
        await call_tool_in(
            tmp_path,
            "patch",
            path="a.py",
            old_text="= 1",
            new_text="= 2",
        )
    assert (
        await call_tool_in(
            tmp_path,
            "patch",
            path="a.py",
            old_text="y = 1",
            new_text="y = 2",
        )
    ).text == ("Changed a.py: 1 replacement at line 2.")
    everywhere = await call_tool_in(
        tmp_path, "patch", path="a.py", old_text="= 1", new_text="= 3", replace_all=True
    )
    assert everywhere.text == "Changed a.py: 2 replacements at lines 1, 3."
    assert (work / "a.py").read_text() == "x = 3\ny = 2\nz = 3\n"


@pytest.mark.parametrize(
    ("old", "hint"),
    [
        ("def pay(amount):\n        return amount", "only the white space differs"),
        (
            "def pay(amounts):\n    return amounts",
            "At lines 3-4 it has (the nearest):\ndef pay(amount):\n    return amount",
        ),
        ("something else altogether, long", "Nothing in it is like it"),
    ],
)
async def test_a_patch_without_a_match_shows_the_nearest_lines(
    tmp_path: Path, old: str, hint: str
) -> None:
    write_files(tmp_path, {"a.py": "import os\n\ndef pay(amount):\n    return amount\n"})
    with pytest.raises(InputError) as refused:
        await call_tool_in(
            tmp_path,
            "patch",
            path="a.py",
            old_text=old,
            new_text="",
        )
    assert hint in str(refused.value)


async def test_windows_line_ends_and_odd_bytes_stay(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    file = tmp_path / "work" / "a.txt"
    file.write_bytes(b"caf\xe9\r\none\r\ntwo\r\n")
    await call_tool_in(
        tmp_path,
        "patch",
        path="a.txt",
        old_text="one\ntwo",
        new_text="1\n2\n3",
    )
    assert file.read_bytes() == b"caf\xe9\r\n1\r\n2\r\n3\r\n"


async def test_bad_patches_are_refused(tmp_path: Path) -> None:
    work = write_files(tmp_path, {"a.txt": "x"})
    (work / "b.bin").write_bytes(b"x\0y")
    each = (
        (
            {
                "path": "a.txt",
                "old_text": "",
                "new_text": "y",
            },
            "old_text is empty",
        ),
        (
            {
                "path": "a.txt",
                "old_text": "x",
                "new_text": "x",
            },
            "nothing would change",
        ),
        (
            {
                "path": "b.bin",
                "old_text": "x",
                "new_text": "y",
            },
            "binary",
        ),
        (
            {
                "path": "none",
                "old_text": "x",
                "new_text": "y",
            },
            "does not exist",
        ),
        (
            {
                "path": ".",
                "old_text": "x",
                "new_text": "y",
            },
            "is a folder",
        ),
    )
    for arguments, why in each:
        with pytest.raises(InputError, match=why):
            await call_tool_in(tmp_path, "patch", **arguments)


async def test_concurrent_patches_are_all_applied(tmp_path: Path) -> None:
    work = write_files(tmp_path, {"a.txt": "".join(f"<{number}>" for number in range(20))})
    async with open_tool_context(tmp_path) as context:
        each = (
            {
                "path": "a.txt",
                "old_text": f"<{number}>",
                "new_text": f"[{number}]",
            }
            for number in range(20)
        )
        await asyncio.gather(*(call_tool(context, "patch", **arguments) for arguments in each))
    assert (work / "a.txt").read_text() == "".join(f"[{number}]" for number in range(20))


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ToolContext:
    return asyncio.run(closed_tool_context(tmp_path_factory.mktemp("patched")))


@given(
    before=st.text(max_size=40),
    old=st.text(min_size=1, max_size=10),
    new=st.text(max_size=10),
    after=st.text(max_size=40),
)
async def test_a_patch_changes_only_its_text(
    context: ToolContext, before: str, old: str, new: str, after: str
) -> None:
    text = before + old + after
    file = context.workspace / "a.txt"
    file.write_bytes(text.encode())
    try:
        await call_tool(
            context,
            "patch",
            path="a.txt",
            old_text=old,
            new_text=new,
        )
    except InputError:
        assert file.read_bytes() == text.encode()
        assert text.count(old) > 1 or old == new or "\0" in text
    else:
        assert file.read_bytes() == (before + new + after).encode()
