"""The workspace: nothing leads out of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.agent.workspace import Workspace, quote_name
from everthread.errors import InputError

PARTS = st.sampled_from(
    [
        "..",
        ".",
        "",
        "a",
        "b",
        "in",
        "out",
        "loop",
        "up",
        "~",
        "file",
        "etc",
        "...",
        " ",
        "\\..",
        "é",
    ]
)


@pytest.fixture(scope="module")
def linked_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with links of every kind, beside a secret."""
    base = tmp_path_factory.mktemp("place")
    work = base / "work"
    (work / "a" / "b").mkdir(parents=True)
    (base / "secret").mkdir()
    (base / "secret" / "file").write_text("secret")
    (base / "workshop").mkdir()
    (work / "file").write_text("mine")
    (work / "in").symlink_to("a/b")
    (work / "a" / "out").symlink_to(base / "secret")
    (work / "out").symlink_to("../secret/file")
    (work / "loop").symlink_to("loop")
    (work / "up").symlink_to("..")
    (work / "nowhere").symlink_to(base / "secret" / "new")
    return base


@given(parts=st.lists(PARTS, min_size=1, max_size=8), absolute=st.booleans())
def test_a_resolved_path_is_inside_the_workspace(
    linked_workspace: Path, parts: list[str], absolute: bool
) -> None:
    space = Workspace(linked_workspace / "work")
    given_path = ("/" if absolute else "") + "/".join(parts)
    try:
        real = space.resolve(given_path)
    except InputError:
        return
    assert os.path.realpath(real).startswith(f"{space.root}{os.sep}") or real == space.root
    assert not os.path.relpath(
        os.path.realpath(os.path.join(space.root, os.path.expanduser(given_path)))  # noqa: PTH111, PTH118
    ).startswith(os.path.relpath(linked_workspace / "secret"))


@given(text=st.text(max_size=60))
def test_any_text_is_a_path_inside_or_an_input_error(linked_workspace: Path, text: str) -> None:
    space = Workspace(linked_workspace / "work")
    try:
        real = space.resolve(text)
        assert real.is_relative_to(space.root)
        space.make_relative_name(real)
    except InputError as error:
        str(error).encode()


@pytest.mark.parametrize(
    "path",
    [
        "../secret/file",
        "a/out/file",
        "out",
        "up/secret/file",
        "up",
        "nowhere",
        "/etc/passwd",
        "~",
        "~/x",
        "a/../../x",
        "in/../../../secret",
        "../workshop/x",
        "../work/../secret/file",
        "./././../secret",
        "/proc/self/environ",
    ],
)
def test_paths_outside_are_refused(linked_workspace: Path, path: str) -> None:
    with pytest.raises(InputError, match="outside the workspace"):
        Workspace(linked_workspace / "work").resolve(path)


@pytest.mark.parametrize("path", ["", "  ", "a\0b", "x" * 5_000, "\ud800"])
def test_bad_paths_are_refused(linked_workspace: Path, path: str) -> None:
    with pytest.raises(InputError) as refused:
        Workspace(linked_workspace / "work").resolve(path)
    assert len(str(refused.value)) < 500
    str(refused.value).encode()


def test_a_long_chain_of_links_is_no_crash(tmp_path: Path) -> None:
    """However many links the interpreter follows, the result is inside, or an error with a reason."""
    for number in range(1_500):
        (tmp_path / str(number)).symlink_to(str(number + 1))
    space = Workspace(tmp_path)
    try:
        real = space.resolve("0")
    except InputError:
        return
    assert real.is_relative_to(space.root)


def test_links_inside_are_followed(linked_workspace: Path) -> None:
    space = Workspace(linked_workspace / "work")
    assert space.make_relative_name(space.resolve("in/x.py")) == "a/b/x.py"
    assert (
        space.make_relative_name(space.resolve(str(linked_workspace / "work" / "file"))) == "file"
    )
    assert space.resolve(".") == space.root


def test_a_workspace_that_is_itself_reached_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    space = Workspace(tmp_path / "link")
    assert space.resolve(str(tmp_path / "link" / "x")) == space.resolve(
        str(tmp_path / "real" / "x")
    )


def test_a_link_created_after_resolving_is_not_followed(tmp_path: Path) -> None:
    """A file, and a folder on the way to one, become links to the outside between the check and the use."""
    work = tmp_path / "work"
    secret = tmp_path / "secret"
    (work / "sub").mkdir(parents=True)
    secret.mkdir()
    (secret / "x").write_text("secret")
    (work / "sub" / "x").write_text("mine")
    (work / "y").write_text("mine")
    space = Workspace(work)
    below = space.resolve("sub/x")
    plain = space.resolve("y")
    (work / "sub").rename(work / "was")
    (work / "sub").symlink_to(secret)
    (work / "y").unlink()
    (work / "y").symlink_to(secret / "x")
    for path in (below, plain):
        with (
            pytest.raises(OSError, match=r"symbolic links|Not a directory"),
            space.open_file(path),
        ):
            pass
    with pytest.raises(OSError, match="Not a directory"):
        space.replace(below, b"written")
    with pytest.raises(InputError, match="no ordinary file"):
        space.replace(plain, b"written")
    assert (secret / "x").read_text() == "secret"
    assert sorted(path.name for path in secret.iterdir()) == ["x"]


def test_replacing_keeps_the_mode_and_leaves_nothing_behind(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    space = Workspace(tmp_path)
    space.replace(space.resolve("run.sh"), b"new")
    assert (script.read_text(), stat.S_IMODE(script.stat().st_mode)) == ("new", 0o750)
    assert [path.name for path in tmp_path.iterdir()] == ["run.sh"]


def test_replacing_does_not_change_another_name_of_the_file(tmp_path: Path) -> None:
    """A hard link to a file outside: that file does not change."""
    (tmp_path / "work").mkdir()
    (tmp_path / "outside").write_text("theirs")
    (tmp_path / "work" / "linked").hardlink_to(tmp_path / "outside")
    space = Workspace(tmp_path / "work")
    space.replace(space.resolve("linked"), b"mine")
    assert (tmp_path / "outside").read_text() == "theirs"


def test_folders_devices_and_read_only_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "kept").write_text("as it is")
    (tmp_path / "kept").chmod(0o444)
    space = Workspace(tmp_path)
    for name, why in (
        ("folder", "is a folder"),
        ("pipe", "no ordinary file"),
        ("kept", "read-only"),
        (".", "folder"),
    ):
        with pytest.raises(InputError, match=why):
            space.replace(space.resolve(name), b"new")
    assert (tmp_path / "kept").read_text() == "as it is"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    space = Workspace(tmp_path)
    with (
        pytest.raises(InputError, match="no ordinary file"),
        space.open_file(space.resolve("pipe")),
    ):
        pass


def test_the_home_inside_a_workspace_is_not_written(tmp_path: Path) -> None:
    (tmp_path / ".everthread").mkdir()
    space = Workspace(tmp_path)
    with pytest.raises(InputError, match="belongs to Everthread"):
        space.check_writable(space.resolve(".everthread/approvals.txt"), tmp_path / ".everthread")
    space.check_writable(space.resolve("src/x"), tmp_path / ".everthread")
    space.check_writable(space.resolve("x"), tmp_path)
    space.check_writable(space.resolve("x"), tmp_path.parent)


@given(text=st.text(st.characters(), max_size=300))
def test_any_name_is_shown_in_printable_characters(text: str) -> None:
    shown = quote_name(text)
    shown.encode()
    assert shown.isprintable()
    printable = "".join(char for char in text[:200] if char.isprintable())
    remaining = iter(shown)
    assert all(char in remaining for char in printable), "printable characters keep their order"
