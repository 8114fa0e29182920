"""The state as written in a summary is read back: a bare list of messages has no other memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everthread.compaction.history.open_errors import OpenError
from everthread.compaction.history.thread_state import (
    CHANGED,
    READ,
    CommandState,
    FileState,
    ThreadState,
)
from everthread.compaction.journal.journal import INTRO_START, Journal
from everthread.compaction.summary.earlier_summary import read_state_from_sections
from everthread.compaction.summary.sections import (
    BLOCKED,
    DONE,
    FILES,
    PROGRESS,
    REMAINING,
    STATE,
    parse_sections,
)
from everthread.compaction.summary.sections import render_sections as render
from everthread.compaction.summary.state_sections import render_state_sections
from everthread.core.messages import Message
from tests.chat_messages import assistant_message, user_message
from tests.compaction.histories import (
    call_with_result,
    compact,
    flatten,
    read_sections,
    run_command,
)

PIECES = st.sampled_from(
    [
        "`",
        "``",
        ": ",
        ", ",
        ",",
        " | ",
        "|",
        "→",
        " → ",
        " and 3 more",
        "- ",
        "## Goal",
        "\n",
        "…",
        "\\",
        "&&",
        "cd a",
    ]
)
TEXTS = st.lists(
    st.one_of(PIECES, st.text(max_size=8), st.sampled_from(["日本語", "код", "قائمة", "a.py"])),
    max_size=6,
)
WORDS = TEXTS.map("".join)
TURNS = st.integers(0, 9)
STATES = st.builds(
    ThreadState,
    files=st.dictionaries(
        WORDS, st.builds(FileState, st.sampled_from([CHANGED, READ]), TURNS), max_size=5
    ),
    commands=st.dictionaries(
        WORDS,
        st.builds(CommandState, WORDS, st.booleans(), TURNS, st.booleans()),
        max_size=3,
    ),
    errors=st.dictionaries(
        WORDS,
        st.builds(OpenError, WORDS, st.lists(WORDS, min_size=1, max_size=3), TURNS),
        max_size=3,
    ),
    todo=st.lists(
        st.fixed_dictionaries(
            {
                "text": WORDS,
                "status": st.sampled_from(["in_progress", "pending", "done"]),
            }
        ),
        max_size=4,
    ),
    directory=WORDS,
    branch=WORDS,
    processes=st.lists(WORDS, max_size=3),
)


def sections_of(state: ThreadState) -> dict[str, str]:
    return render_state_sections(state, 100_000, len)


@given(STATES)
def test_state_sections_are_parsed_and_written_again(state: ThreadState) -> None:
    file_turns = [file.turn for file in state.files.values()]
    command_turns = [command.turn for command in state.commands.values()]
    error_turns = [error.turn for error in state.errors.values()]
    state.latest_turn = max([*file_turns, *command_turns, *error_turns], default=0)
    first = sections_of(state)
    text = render({DONE: Journal().render_intro(), **first}, skip_empty=True)
    assert sections_of(read_state_from_sections(parse_sections(text))) == first


def test_names_are_read_back_unchanged() -> None:
    """Commas, backticks and text after a list may be part of a name."""
    names = ["a, b.py", "`odd`.py", "this and 3 more", "src/plain name.py", "日本.py"]
    state = ThreadState(
        files={name: FileState(CHANGED if at % 2 else READ, 1) for at, name in enumerate(names)}
    )
    again = read_state_from_sections(sections_of(state))
    assert {name: one.did for name, one in again.files.items()} == {
        n: f.did for n, f in state.files.items()
    }
    few = render_state_sections(
        ThreadState(files={f"f{n}.py": FileState(CHANGED, 1) for n in range(50)}),
        40,
        len,
    )
    assert few[FILES].endswith(" more")
    assert all(
        name.startswith("f") and name.endswith(".py")
        for name in read_state_from_sections(few).files
    )


def test_lines_written_by_a_model_are_not_state() -> None:
    sections = {
        DONE: "1. EDIT a.py — done",
        STATE: "- branch: main, I think",
        PROGRESS: "- the parser",
        REMAINING: "- docs",
        FILES: "- `src/a.py`: the parser\n- read: b.py",
        BLOCKED: "- Nothing much\n- `x` failed again",
    }
    state = read_state_from_sections(sections)
    assert state.branch == ""
    assert state.todo == []
    assert state.errors == {}
    assert {path: one.did for path, one in state.files.items()} == {
        "src/a.py": CHANGED,
        "b.py": READ,
    }
    assert Journal().render_intro().startswith(INTRO_START)


def chat(start: int) -> list[Message]:
    return flatten(
        (
            user_message(f"Tell {start}.{at}."),
            assistant_message(f"It is told, {at}. " * 150),
        )
        for at in range(40)
    )


async def test_a_list_compacted_repeatedly_keeps_the_state() -> None:
    failing = "Error: expected 3 got 4\nTests: 1 failed, 3 passed\nExit code: 1"
    long = "python -m checks " + " ".join(f"--option-{n}=value-{n}" for n in range(20))
    todos = '{"todos": [{"content": "write it", "status": "in_progress"}, {"content": "docs", "status": "pending"}]}'
    conversation = [
        user_message("Start."),
        assistant_message("ok"),
        user_message("Go."),
        *call_with_result("Read", '{"file_path": "/r/seen.py"}', "x = 1"),
        *call_with_result(
            "Edit",
            '{"file_path": "/r/made.py", "old_string": "a", "new_string": "b"}',
            "updated",
        ),
        *call_with_result(
            "Edit",
            '{"file_path": "/r/bad.py", "old_string": "a", "new_string": "b"}',
            "Error: not found",
        ),
        *call_with_result("TodoWrite", todos, "ok"),
        *run_command(
            "git checkout -b feature/pay",
            "Switched to a new branch 'feature/pay'",
            cwd="/r",
        ),
        *run_command("npm run dev", "started", run_in_background=True),
        *run_command("cd /r/app && npm test", failing),
        *run_command("psql -c `cat q.sql`", "ERROR: no such relation\nExit code: 1"),
        *run_command(long, "ValueError: the checks do not pass\nExit code: 1"),
        *run_command(
            "make all",
            "lib.c:3: error: no such header\nExit code: 2",
            cwd="/r/lib",
        ),
        assistant_message("Stopped."),
        *chat(0),
    ]
    parts: list[dict[str, str]] = []
    for at in range(3):
        result = await compact(conversation)
        parts.append(read_sections(result))
        conversation = [*result.messages, *chat(at + 1)]
    first, *later = parts
    assert "/r/seen.py" in first[FILES].split(f"\n- {READ}: ")[1]
    assert first[BLOCKED].count(" failed (message 2") == 5
    for name in (STATE, PROGRESS, BLOCKED, REMAINING):
        assert [one[name] for one in later] == [first[name]] * 2
    assert all("- changed: /r/made.py\n" in one[FILES] for one in parts)
    mended = [
        *call_with_result(
            "Edit",
            '{"file_path": "/r/bad.py", "old_string": "c", "new_string": "d"}',
            "updated",
        ),
        *run_command("cd /r/app && npm test", "Tests: 4 passed\nExit code: 0"),
        *run_command("psql -c `cat q.sql`", "1 row\nExit code: 0"),
        *run_command(long, "fine\nExit code: 0"),
        *run_command("make all", "built\nExit code: 0", cwd="/r/lib"),
    ]
    last = await compact([*conversation, *mended, assistant_message("Done."), *chat(9)])
    assert BLOCKED not in read_sections(last)
    assert last.summary.count("(fixed later)") == 5
