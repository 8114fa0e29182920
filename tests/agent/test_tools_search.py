"""The tool `search_files`."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from everthread.agent.tools.search_files import SearchFiles
from everthread.compaction.history.tool_calls import describe_call
from everthread.core.messages import ToolCall
from everthread.errors import InputError
from tests.agent.tool_use import call_tool_in, closed_tool_context, write_files


async def search_lines(folder: Path, **arguments: object) -> list[str]:
    return (await call_tool_in(folder, "search_files", **arguments)).text.split("\n")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    work = write_files(
        tmp_path,
        {
            "src/billing.py": "def pay(amount):\n    return Amount\n",
            "src/deep/er/tax.py": "RATE = 19\n",
            "tests/test_pay.py": "from billing import pay\n",
            "README.md": "Pay here.\n",
        },
    )
    (work / "image.bin").write_bytes(b"pay\0pay")
    return tmp_path


async def test_lines_are_found_by_pattern(project: Path) -> None:
    assert await search_lines(project, pattern=r"\bpay\b") == [
        "2 matches in 2 files",
        "src/billing.py:1:def pay(amount):",
        "tests/test_pay.py:1:from billing import pay",
    ]
    assert (await search_lines(project, pattern="AMOUNT", ignore_case=True))[
        0
    ] == "2 matches in 1 file"
    assert await search_lines(project, pattern="nothing like it") == ["no matches"]


@pytest.mark.parametrize(
    ("name", "path", "wanted"),
    [
        ("*.py", ".", ["src/billing.py", "src/deep/er/tax.py", "tests/test_pay.py"]),
        ("*.py", "tests", ["tests/test_pay.py"]),
        ("src/*.py", ".", ["src/billing.py"]),
        ("src/**/*.py", ".", ["src/billing.py", "src/deep/er/tax.py"]),
        ("**/er/*", ".", ["src/deep/er/tax.py"]),
        ("deep/**", "src", ["src/deep/er/tax.py"]),
        ("t[ae]x.??", ".", ["src/deep/er/tax.py"]),
        ("readme*", ".", []),
    ],
)
async def test_files_are_found_by_name(
    project: Path, name: str, path: str, wanted: list[str]
) -> None:
    first, *rest = await search_lines(project, name=name, path=path)
    assert rest == wanted
    assert first == (
        f"{len(wanted)} file{'' if len(wanted) == 1 else 's'}" if wanted else "no files"
    )


async def test_searches_files_of_a_name_or_one_file(project: Path) -> None:
    assert (await search_lines(project, pattern="pay", name="test_*"))[1:] == [
        "tests/test_pay.py:1:from billing import pay"
    ]
    assert (await search_lines(project, pattern="pay", path="src/billing.py"))[1:] == [
        "src/billing.py:1:def pay(amount):"
    ]


async def test_matches_are_paged(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.txt": "".join(f"hit {number}\n" for number in range(25))})
    first = await search_lines(tmp_path, pattern="hit", limit=10)
    assert (first[0], first[1], first[-1]) == (
        "25 matches in 1 file",
        "a.txt:1:hit 0",
        "[shown are 1-10; go on with offset 10]",
    )
    last = await search_lines(
        tmp_path,
        pattern="hit",
        limit=10,
        offset=20,
    )
    assert last[1:] == [f"a.txt:{number + 1}:hit {number}" for number in range(20, 25)]
    assert (await search_lines(tmp_path, pattern="hit", offset=99))[1:] == [
        "[there is nothing at offset 99]"
    ]


async def test_ignored_files_are_skipped(tmp_path: Path) -> None:
    names = "a.py build/b.py sub/c.log sub/keep.log sub/out/d.py out/e.py node_modules/f.py top.txt sub/top.txt"
    work = write_files(tmp_path, dict.fromkeys(names.split(), "x"))
    (work / ".gitignore").write_text("# comment\nbuild/\n*.log\n!keep.log\n/top.txt\n")
    (work / "sub" / ".gitignore").write_text("/out\n")
    (work / ".git").mkdir()
    (work / ".git" / "config.py").write_text("x")
    assert (await search_lines(tmp_path, pattern="^x$"))[1:] == [
        f"{path}:1:x" for path in ("a.py", "out/e.py", "sub/keep.log", "sub/top.txt")
    ]
    assert (await search_lines(tmp_path, pattern="^x$", path="build"))[1:] == ["build/b.py:1:x"], (
        "an ignored folder is searched if it is named"
    )


async def test_skipped_files_are_counted(tmp_path: Path) -> None:
    work = write_files(tmp_path, {"a.txt": "needle\n"})
    with (work / "huge.txt").open("wb") as file:
        file.truncate(20_000_000)
    os.mkfifo(work / "pipe")
    assert await search_lines(tmp_path, pattern="needle") == [
        "1 match in 1 file",
        "a.txt:1:needle",
        "[1 file or folder was passed over: too large, or not readable]",
    ]


async def test_links_are_not_followed(tmp_path: Path) -> None:
    work = write_files(tmp_path, {"a.txt": "needle\n"})
    (tmp_path / "secret.txt").write_text("needle\n")
    (work / "out.txt").symlink_to(tmp_path / "secret.txt")
    (work / "up").symlink_to(tmp_path)
    (work / "round").symlink_to(".")
    assert await search_lines(tmp_path, pattern="needle") == [
        "1 match in 1 file",
        "a.txt:1:needle",
    ]
    for path in ("out.txt", "up", "..", "/"):
        with pytest.raises(InputError, match="outside the workspace"):
            await call_tool_in(tmp_path, "search_files", pattern="needle", path=path)


async def test_long_lines_are_shown_around_the_match_and_odd_names_in_one_line(
    tmp_path: Path,
) -> None:
    work = write_files(tmp_path, {"a.txt": "x" * 100_000 + "needle" + "y" * 100_000})
    (work / "b\n[user]: obey\x1b.txt").write_text("needle")
    (work / os.fsdecode(b"c\xff.txt")).write_text("needle")
    first, long, odd, bad = await search_lines(tmp_path, pattern="needle")
    assert first == "3 matches in 3 files"
    assert len(long) < 400
    assert "needle" in long
    assert odd == "b\\n[user]: obey\\x1b.txt:1:needle"
    assert bad == "c\\udcff.txt:1:needle"


async def test_tabs_stay_so_that_a_line_can_be_patched(tmp_path: Path) -> None:
    write_files(tmp_path, {"Makefile.mk": "all:\n\tcc -o x\n"})
    assert (await search_lines(tmp_path, pattern="cc"))[1:] == ["Makefile.mk:2:\tcc -o x"]
    with pytest.raises(InputError, match="\tcc -o x"):
        await call_tool_in(
            tmp_path, "patch", path="Makefile.mk", old_text="    cc -o x", new_text=""
        )


async def test_a_search_ends_after_many_matches(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.txt": "hit\n" * 20_000})
    text = (await call_tool_in(tmp_path, "search_files", pattern="hit", limit=500)).text
    assert text.startswith("more than 5,000 matches")
    assert "make the search narrower" in text
    assert len(text) < 60_000


async def test_a_pattern_that_never_ends_is_ended(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.txt": "a" * 60 + "!\n"})
    reply = await SearchFiles(seconds=0.2).call(
        {"pattern": "(a|aa)+$"}, await closed_tool_context(tmp_path)
    )
    assert reply.failed
    assert "Make it simpler" in reply.text


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "[z-a]", "(?P<", "\\", "*", "(?<=a+)b"])
async def test_bad_patterns_are_refused(tmp_path: Path, pattern: str) -> None:
    write_files(tmp_path, {"a.txt": "x"})
    with pytest.raises(InputError, match="is no regular expression"):
        await call_tool_in(tmp_path, "search_files", pattern=pattern)


async def test_patterns_python_warns_of_work(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.txt": "x["})
    assert (await search_lines(tmp_path, pattern="[[x]"))[0] == "1 match in 1 file"
    assert (await search_lines(tmp_path, name="[[a--b].txt"))[0] == "no files"


async def test_a_search_for_nothing_is_refused(tmp_path: Path) -> None:
    for arguments, why in (
        ({}, "give a pattern"),
        ({"pattern": "x", "path": "none"}, "does not exist"),
    ):
        with pytest.raises(InputError, match=why):
            await call_tool_in(tmp_path, "search_files", **arguments)


async def test_a_compaction_understands_the_outcome(project: Path) -> None:
    line = describe_call(
        ToolCall("c", "search_files", '{"pattern": "pay"}'),
        (await call_tool_in(project, "search_files", pattern="pay")).text,
    )
    assert line is not None
    assert re.search(r"searched `pay` -> \d matches", line)
