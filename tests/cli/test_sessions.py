"""`everthread sessions …` against a real store."""

from __future__ import annotations

import json
import re
import stat
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from everthread.store.records import NewCompaction, NewMessage, NewSession
from everthread.store.store import Store
from tests.chat_messages import calls_message, function_call, result_message

SECRET = "ghp_" + "a1B2c3D4e5F6" * 3
HOSTILE = "see [bold]this[/bold] :fire: \x1b[2J\x1b]0;owned\x07 \x9b31m \u202eevil 你好世界 lone \ud800 end\\"
COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters that a terminal obeys. Output to a pipe must have none."""
MEGABYTES = 10_000_000


def text_message(role: str, content: Any, **more: Any) -> NewMessage:
    return NewMessage({"role": role, "content": content, **more}, tokens=7)  # type: ignore[typeddict-item]  # any shape


def call_message(call_id: str, tool: str, arguments: str) -> NewMessage:
    calls = [function_call(call_id, tool, arguments)]
    return text_message("assistant", None, tool_calls=calls)


@dataclass(frozen=True)
class Thread:
    """A thread that was compacted, branched and helped by a subagent; a compaction of it was taken back."""

    id: str
    tip: str
    reverted: str
    branch: str
    subagent: str
    ids: list[int]


async def store_story(store: Store) -> Thread:
    root = await store.create_session(
        NewSession(model="claude-sonnet-4-5", platform="cli", system="Be brief.")
    )
    first = await store.append(
        root.id,
        [
            text_message("user", "Repair the parser in src/app/main.py, please."),
            call_message("c1", "terminal", '{"command": "pytest -q"}'),
            text_message(
                "tool",
                "\n".join(f"FAILED line {n}" for n in range(500)),
                tool_call_id="c1",
            ),
            text_message("assistant", "The parser is repaired."),
        ],
    )
    ids = [message.id for message in first]
    helper = await store.create_session(
        NewSession(kind="subagent", parent=root.id, model="gpt-5")
    )
    await store.append(helper.id, [text_message("user", "Look for dead code.")])
    summary = NewMessage(
        {"role": "user", "content": "A summary of the beginning."}, kind="summary"
    )
    record = NewCompaction(
        covered=ids[1:3],
        tokens_before=100_000,
        tokens_after=25_000,
        author="journal",
        duration=2,
    )
    tip = (
        await store.continue_session(
            root.id, [ids[0], summary, ids[3]], seen_count=4, compaction=record
        )
    ).session
    later = await store.append(
        root.id,
        [
            text_message("user", "And the lexer?"),
            text_message("assistant", "Also repaired."),
        ],
    )
    undone = await store.continue_session(tip.id, [ids[0]], seen_count=5)
    await store.undo(root.id)
    branch = await store.branch(root.id, ids[0])
    await store.append(branch.id, [text_message("user", "Use another way.")])
    return Thread(
        root.id,
        tip.id,
        undone.session.id,
        branch.id,
        helper.id,
        [*ids, *(m.id for m in later)],
    )


@pytest.fixture
def thread(fill: Any) -> Thread:
    found: Thread = fill(store_story)
    return found


def create_sessions(*sessions: NewSession) -> Any:
    async def work(store: Store) -> None:
        for session in sessions:
            await store.create_session(session)

    return work


def create_leased_session(session: NewSession, *messages: NewMessage) -> Any:
    async def work(store: Store) -> list[int]:
        await store.create_session(session)
        return [message.id for message in await store.append(session.id, messages)]

    return work


class TestList:
    def test_threads_one_line_each(self, everthread: Any, thread: Thread) -> None:
        shown = everthread("sessions", "list").stdout
        ids = (thread.id[:8], thread.branch[:8], thread.subagent[:8])
        lines = {
            key: line
            for key in ids
            for line in shown.splitlines()
            if f" {key} " in line
        }
        assert set(lines) == set(ids)
        assert f" {thread.tip[:8]} " not in shown
        assert "state" not in shown, "all are live"
        for words in (
            "just now",
            "main",
            "6",
            "claude-sonnet-4-5",
            "Repair the parser in src/app/main.py",
        ):
            assert words in lines[thread.id[:8]]
        assert "branch" in lines[thread.branch[:8]]
        assert "Use another way." in lines[thread.branch[:8]]
        assert "Look for dead code." in lines[thread.subagent[:8]]

    def test_all_shows_continuations_and_reverted_sessions(
        self, everthread: Any, thread: Thread
    ) -> None:
        found = everthread.json("sessions", "list", "--all")["sessions"]
        kinds = {
            session["id"]: (session["kind"], session["state"]) for session in found
        }
        assert kinds == {
            thread.id: ("main", "ended (compression)"),
            thread.tip: ("continuation", "live"),
            thread.reverted: ("reverted", "ended (reverted)"),
            thread.branch: ("branch", "live"),
            thread.subagent: ("subagent", "live"),
        }

    def test_the_newest_first_in_pages(self, everthread: Any, fill: Any) -> None:
        fill(
            create_sessions(
                *(
                    NewSession(id=f"s{n:02}", title=f"number {n}", started=1_000.0 + n)
                    for n in range(25)
                )
            )
        )
        page = everthread.json("sessions", "list", "--limit", "3", "--offset", "2")
        assert [session["id"] for session in page["sessions"]] == ["s22", "s21", "s20"]
        assert page["more"] is True
        assert (
            datetime.fromisoformat(page["sessions"][0]["started"]).timestamp()
            == 1_022.0
        )
        shown = everthread("sessions", "list").stdout
        assert "number 24" in shown
        assert "number 4 " not in shown
        assert "--offset 20" in shown
        assert "--offset" not in everthread("sessions", "list", "--offset", "20").stdout

    def test_a_used_thread_moves_to_the_top(self, everthread: Any, fill: Any) -> None:
        async def work(store: Store) -> None:
            await store.create_session(NewSession(id="old", started=1_000.0))
            await store.create_session(NewSession(id="young", started=2_000.0))
            await store.append(
                "old", [text_message("user", "one"), text_message("assistant", "two")]
            )
            await store.continue_session("old", [], seen_count=2)

        fill(work)
        found = everthread.json("sessions", "list")["sessions"]
        assert [session["id"] for session in found] == ["old", "young"]
        assert [
            (row["messages"], row["tokens"], row["compactions"]) for row in found
        ] == [(2, 14, 1), (0, 0, 0)]
        shown = everthread("sessions", "list").stdout
        assert re.search(r"one +old +just now +2 +14 +1\b", shown)

    def test_by_tenant(self, everthread: Any, fill: Any) -> None:
        fill(
            create_sessions(
                NewSession(id="a", tenant="one"), NewSession(id="b", tenant="two")
            )
        )
        assert [
            s["id"]
            for s in everthread.json("sessions", "list", "--tenant", "two")["sessions"]
        ] == ["b"]

    def test_an_empty_store(self, everthread: Any) -> None:
        done = everthread("sessions", "list")
        assert (done.returncode, done.stdout) == (0, "no sessions yet\n")
        assert everthread.json("sessions", "list") == {
            "sessions": [],
            "offset": 0,
            "more": False,
        }

    def test_another_store(self, everthread: Any, fill: Any, tmp_path: Path) -> None:
        fill(create_sessions(NewSession(id="elsewhere")), tmp_path / "other.db")
        for url in (str(tmp_path / "other.db"), f"sqlite:///{tmp_path / 'other.db'}"):
            assert "elsewhere" in everthread("sessions", "list", "--store", url).stdout
        assert "elsewhere" not in everthread("sessions", "list").stdout


class TestShow:
    def test_show_prints_every_message_once_in_order(
        self, everthread: Any, thread: Thread
    ) -> None:
        for session in (thread.id, thread.tip, thread.reverted):
            report = everthread.json("sessions", "show", session)
            assert report["thread"] == thread.id
            assert [message["id"] for message in report["messages"]] == thread.ids
        shown = everthread("sessions", "show", thread.id[:10]).stdout
        places = [
            shown.index(words)
            for words in (
                "Repair the parser",
                "→ terminal",
                "← terminal",
                "is repaired",
                "lexer?",
            )
        ]
        assert places == sorted(places)
        assert "A summary" not in shown

    def test_context_shows_what_the_model_sees(
        self, everthread: Any, thread: Thread
    ) -> None:
        shown = everthread("sessions", "show", thread.id, "--context").stdout
        for words in (
            "Be brief.",
            "Repair the parser",
            "summary",
            "A summary of the beginning.",
            "And the lexer?",
        ):
            assert words in shown
        assert "FAILED line" not in shown
        report = everthread.json("sessions", "show", thread.id, "--context")
        assert report["system"] == "Be brief."
        assert [message["kind"] for message in report["messages"]] == [
            "message",
            "summary",
            *["message"] * 3,
        ]

    def test_long_results_are_cut_without_full(
        self, everthread: Any, thread: Thread
    ) -> None:
        shown = everthread("sessions", "show", thread.id).stdout
        assert "FAILED line 0" in shown
        assert "FAILED line 499" not in shown
        assert "more characters (--full shows them)" in shown
        assert (
            "FAILED line 499"
            in everthread("sessions", "show", thread.id, "--full").stdout
        )
        one = everthread(
            "sessions", "show", thread.id, "--message", str(thread.ids[2])
        ).stdout
        assert "FAILED line 499" in one
        assert "← terminal" in one
        assert "Repair" not in one

    def test_a_part(self, everthread: Any, thread: Thread) -> None:
        report = everthread.json(
            "sessions", "show", thread.id, "--offset", "3", "--limit", "2"
        )
        assert [message["id"] for message in report["messages"]] == thread.ids[3:5]

    def test_a_branch_begins_with_the_shared_messages(
        self, everthread: Any, thread: Thread
    ) -> None:
        shown = everthread("sessions", "show", thread.branch).stdout
        assert shown.index("Repair the parser") < shown.index("Use another way.")
        assert (
            everthread(
                "sessions", "show", thread.branch, "--message", str(thread.ids[0])
            ).returncode
            == 0
        )
        assert f"has no message {thread.ids[3]}" in everthread.refuses(
            "sessions", "show", thread.branch, "--message", str(thread.ids[3])
        )

    def test_a_stored_output(self, everthread: Any, fill: Any, thread: Thread) -> None:
        async def work(store: Store) -> str:
            return (
                await store.put_output(
                    thread.id, f"the log\ntoken {SECRET}\nits end", tool="terminal"
                )
            ).id

        output = fill(work)
        shown = everthread("sessions", "show", thread.id, "--output", output).stdout
        assert shown == "the log\ntoken [REDACTED]\nits end\n"
        assert (
            SECRET
            in everthread(
                "sessions", "show", thread.id, "--output", output, "--raw"
            ).stdout
        )
        everthread.refuses("sessions", "show", thread.branch, "--output", output)

    def test_secrets_are_redacted_without_raw(self, everthread: Any, fill: Any) -> None:
        blocks = [
            {
                "type": "tool_use",
                "id": "t",
                "name": "login",
                "input": {"password": "hunter2-9XkQ"},
            }
        ]
        secrets = (
            text_message("user", f"My token is {SECRET}"),
            text_message("assistant", blocks),
        )
        fill(
            create_leased_session(NewSession(id="s", title=f"token {SECRET}"), *secrets)
        )
        for arguments in (
            ["show", "s"],
            ["show", "s", "--json"],
            ["list"],
            ["list", "--json"],
            ["tree", "s", "--json"],
        ):
            shown = everthread("sessions", *arguments).stdout
            assert "[REDACTED]" in shown
            assert SECRET not in shown
            assert "hunter2" not in shown
        for arguments in (["show", "s", "--raw"], ["show", "s", "--raw", "--json"]):
            shown = everthread("sessions", *arguments).stdout
            assert SECRET in shown
            assert "hunter2-9XkQ" in shown

    def test_thoughts_and_images(self, everthread: Any, fill: Any) -> None:
        image = {
            "type": "image_url",
            "image_url": {"url": "data:image/png;base64," + "A" * 5_000},
        }
        thinking = {"type": "thinking", "thinking": "Let me see.", "signature": "x"}
        asked = text_message("user", [{"type": "text", "text": "What is this?"}, image])
        answered = text_message(
            "assistant", [thinking, {"type": "text", "text": "A cat."}]
        )
        fill(
            create_leased_session(
                NewSession(id="s"),
                asked,
                answered,
                text_message("assistant", "Sure.", reasoning_content="Hm."),
            )
        )
        shown = everthread("sessions", "show", "s", "--full").stdout
        for words in (
            "What is this?",
            "[1 image]",
            "(thinking) Let me see.",
            "A cat.",
            "(thinking) Hm.",
            "Sure.",
        ):
            assert words in shown
        assert "AAAA" not in shown

    def test_hostile_text_is_shown_not_obeyed(self, everthread: Any, fill: Any) -> None:
        messages = (
            text_message("user", HOSTILE),
            call_message("c", HOSTILE, HOSTILE),
            text_message("tool", HOSTILE, tool_call_id="c"),
        )
        odd = NewSession(
            id="odd",
            title=HOSTILE,
            model=HOSTILE.replace("\ud800", ""),
            platform="x\x1by",
        )
        fill(create_leased_session(odd, *messages, text_message("odd\x1b[1mrole", "x")))
        for arguments in (
            ["list"],
            ["show", "odd"],
            ["show", "odd", "--full"],
            ["tree", "odd"],
            ["search", "evil"],
        ):
            shown = everthread.succeeds("sessions", *arguments)
            assert "[bold]this[/bold] :fire:" in shown
            assert "你好世界" in shown
            assert not COMMANDS.search(shown)
        for arguments in (
            ["list"],
            ["show", "odd"],
            ["tree", "odd"],
            ["search", "evil"],
        ):
            done = everthread("sessions", *arguments, "--json")
            json.loads(done.stdout)
            assert not COMMANDS.search(done.stdout)
        assert (
            everthread.json("sessions", "show", "odd")["messages"][0]["body"]["content"]
            == HOSTILE
        )

    def test_a_huge_message(self, everthread: Any, fill: Any) -> None:
        fill(
            create_leased_session(
                NewSession(id="s"),
                text_message("user", "start " + "x" * MEGABYTES + " end"),
                text_message("assistant", "Read."),
            )
        )
        shown = everthread("sessions", "show", "s").stdout
        assert len(shown) < 10_000
        assert "start x" in shown
        assert "Read." in shown
        assert len(everthread("sessions", "show", "s", "--full").stdout) > MEGABYTES
        assert len(everthread("sessions", "list").stdout) < 10_000

    def test_one_view_at_a_time(self, everthread: Any, thread: Thread) -> None:
        assert "exclude each other" in everthread.refuses(
            "sessions", "show", thread.id, "--context", "--message", "1"
        )

    def test_at_a_terminal_through_the_pager(
        self, at_terminal: Any, thread: Thread
    ) -> None:
        code, shown = at_terminal("sessions", "show", thread.id)
        assert code == 0
        assert "Repair the parser" in shown
        assert "\x1b[" in shown

    def test_a_session_without_messages(self, everthread: Any, fill: Any) -> None:
        fill(create_sessions(NewSession(id="s")))
        assert "no messages" in everthread("sessions", "show", "s").stdout


class TestTree:
    def test_a_tree_shows_parents_and_branches(
        self, everthread: Any, thread: Thread
    ) -> None:
        for session in (thread.id, thread.tip):
            shown = everthread("sessions", "tree", session).stdout
            lines = {
                found[1]: line
                for line in shown.splitlines()
                if (found := re.search(r"\b([0-9a-f]{8}) \w+  \d", line))
            }
            assert set(lines) == {
                i[:8]
                for i in (
                    thread.id,
                    thread.tip,
                    thread.reverted,
                    thread.branch,
                    thread.subagent,
                )
            }
            assert (
                "100,000 → 25,000 tokens (75.0% saved, by the journal, 2.0 s)"
                in lines[thread.tip[:8]]
            )
            depth = {
                name: re.search(r"[0-9a-f]{8}", line).start()  # type: ignore[union-attr]
                for name, line in lines.items()
                if line
            }
            assert (
                depth[thread.tip[:8]]
                == depth[thread.id[:8]]
                < depth[thread.reverted[:8]]
            )
            assert (
                depth[thread.id[:8]]
                < depth[thread.subagent[:8]]
                == depth[thread.branch[:8]]
            )

    def test_for_programs(self, everthread: Any, thread: Thread) -> None:
        report = everthread.json("sessions", "tree", thread.id)
        found = {session["id"]: session for session in report["sessions"]}
        assert found[thread.tip]["compaction"]["tokens_before"] == 100_000
        assert found[thread.reverted]["kind"] == "reverted"
        assert found[thread.branch]["branched_at"] == thread.ids[0]
        assert found[thread.subagent]["parent"] == thread.id


class TestSearch:
    def test_hits_are_ranked_with_their_snippets(
        self, everthread: Any, thread: Thread
    ) -> None:
        hits = everthread.json("sessions", "search", "lexer")["hits"]
        assert [(hit["message"], hit["thread"], hit["role"]) for hit in hits] == [
            (thread.ids[4], thread.id, "user")
        ]
        assert "lexer" in hits[0]["snippet"]
        datetime.fromisoformat(hits[0]["created"])
        shown = everthread("sessions", "search", "lexer").stdout
        assert f"#{thread.ids[4]}" in shown
        assert "And the lexer?" in shown

    @pytest.mark.usefixtures("thread")
    def test_matches_are_highlighted_at_a_terminal(self, at_terminal: Any) -> None:
        assert re.search(
            r"\x1b\[[\d;]*7[\d;]*mlexer\x1b\[0m",
            at_terminal("sessions", "search", "LEXER")[1],
        )

    @pytest.mark.parametrize(
        ("options", "found"),
        [
            (["--role", "user"], 1),
            (["--role", "assistant"], 1),
            (["--tool", "terminal"], 0),
            (["--since", "1h"], 2),
            (["--until", "1h"], 0),
            (["--since", "2020-01-01", "--until", "2020-02-01"], 0),
            (["--tenant", "other"], 0),
            (["--limit", "1"], 1),
            (["--offset", "1"], 1),
        ],
    )
    @pytest.mark.usefixtures("thread")
    def test_narrowed(self, everthread: Any, options: list[str], found: int) -> None:
        assert (
            len(everthread.json("sessions", "search", "parser", *options)["hits"])
            == found
        )

    def test_in_a_thread_or_a_session_by_prefix(
        self, everthread: Any, thread: Thread
    ) -> None:
        for options, words, found in (
            (["--thread", thread.tip[:12]], "dead", 0),
            (["--thread", thread.subagent[:12]], "dead", 1),
            (["--session", thread.id[:12]], "lexer", 0),
            (["--session", thread.tip[:12]], "lexer", 1),
        ):
            hits = everthread.json("sessions", "search", words, *options)["hits"]
            assert len(hits) == found, options

    def test_the_closest_are_shown_where_nothing_holds_every_word(
        self, everthread: Any, fill: Any
    ) -> None:
        fill(
            create_leased_session(
                NewSession(id="s"),
                text_message("user", "The harbour uses port 8443."),
                text_message("user", "Rain tomorrow."),
            )
        )
        shown = everthread(
            "sessions", "search", "which port does the harbour listen on"
        ).stdout
        assert shown.startswith("No message holds every word. The closest:\n")
        assert "port 8443" in shown
        found = everthread.json("sessions", "search", "harbour port nonsense")
        assert (found["near"], [hit["snippet"] for hit in found["hits"]]) == (
            True,
            ["The harbour uses port 8443."],
        )
        phrase = everthread("sessions", "search", '"harbour port"').stdout
        assert phrase.startswith("nothing found in 1 thread of /"), (
            "a phrase is meant as typed"
        )

    def test_a_hit_is_shown_with_the_message_before_and_after(
        self, everthread: Any, thread: Thread
    ) -> None:
        first, _, result, last, lexer, end = thread.ids
        shown = everthread("sessions", "search", "lexer").stdout.splitlines()
        assert shown[1:] == [
            f"    before #{last} assistant: The parser is repaired.",
            "  And the lexer?",
            f"    after #{end} assistant: Also repaired.",
        ]
        start = everthread("sessions", "search", "please").stdout.splitlines()
        assert start[1:] == [
            "  Repair the parser in src/app/main.py, please.",
            f'    after #{first + 1} assistant: terminal {{"command": "pytest -q"}}',
        ]
        (hit,) = everthread.json("sessions", "search", "also")["hits"]
        lexers = {
            "message": lexer,
            "role": "user",
            "tool": "",
            "text": "And the lexer?",
        }
        assert (hit["before"], hit["after"]) == (lexers, None)
        (hit,) = everthread.json("sessions", "search", '"is repaired"')["hits"]
        assert (hit["before"]["message"], hit["before"]["tool"]) == (result, "terminal")
        assert hit["before"]["text"].startswith("FAILED line 0 FAILED line 1 ")

    def test_a_neighbour_that_is_found_too_is_only_named(
        self, everthread: Any, fill: Any
    ) -> None:
        ids = fill(
            create_leased_session(
                NewSession(id="s"),
                *(
                    text_message("user", text)
                    for text in ("One", "Pine a", "Pine b", SECRET)
                ),
            )
        )
        one, a, b, key = (f"#{number} user" for number in ids)
        lines = everthread("sessions", "search", "pine").stdout.splitlines()
        assert [line.strip() for line in lines if line.startswith("  ")] == [
            f"before {a} (also a match)",
            "Pine b",
            f"after {key}: [REDACTED]",
            f"before {one}: One",
            "Pine a",
            f"after {b} (also a match)",
        ]

    def test_a_neighbour_is_one_line_of_a_terminal(
        self, everthread: Any, at_terminal: Any, fill: Any
    ) -> None:
        fill(
            create_leased_session(
                NewSession(id="s"),
                text_message("user", "Pine"),
                text_message("tool", "wide " * 99, name="a" * 60),
            )
        )
        assert "wide wide wide wide…" in everthread("sessions", "search", "pine").stdout
        shown = at_terminal("sessions", "search", "pine")[1]
        assert re.search(
            r"\n\x1b\[2m    after #2 tool \(a{60}\): [wide ]+…\x1b\[0m\r\n$", shown
        ), "cut, not wrapped"

    def test_search_covers_all_tenants_unless_one_is_named(
        self, everthread: Any, fill: Any
    ) -> None:
        fill(
            create_leased_session(
                NewSession(id="s", tenant="two"),
                text_message("user", "The needle is in the third barn."),
            )
        )
        fill(
            create_leased_session(
                NewSession(id="t"), text_message("user", "Nothing else.")
            )
        )
        for words in ("needle", "where is the needle now"):
            assert "third barn" in everthread("sessions", "search", words).stdout
        assert (
            "third barn"
            in everthread("sessions", "search", "needle", "--tenant", "two").stdout
        )
        assert (
            "third barn"
            in everthread("sessions", "search", "needle", "--thread", "s").stdout
        )

    def test_nothing_found_says_where_it_looked(
        self, everthread: Any, fill: Any
    ) -> None:
        assert (
            everthread("sessions", "search", "needle").stdout
            == "nothing found (there are no threads yet)\n"
        )
        fill(
            create_leased_session(
                NewSession(id="s", tenant="two"), text_message("user", "A needle.")
            )
        )
        fill(
            create_leased_session(
                NewSession(id="t"), text_message("user", "Nothing else.")
            )
        )
        for options, where in (
            (
                ["--tenant", "default"],
                "in 1 thread of tenant default; 1 of other tenants were not searched",
            ),
            (["--thread", "t"], "in thread t; other threads were not searched"),
        ):
            assert (
                everthread("sessions", "search", "needle", *options).stdout
                == f"nothing found {where}\n"
            )
        assert everthread("sessions", "search", "haystack").stdout.startswith(
            "nothing found in 2 threads of /"
        )

    @pytest.mark.parametrize("text", ['"open', "a AND (", "", "'; DROP TABLE *"])
    @pytest.mark.usefixtures("thread")
    def test_any_text_can_be_searched(self, everthread: Any, text: str) -> None:
        shown = everthread.succeeds("sessions", "search", "--json", "--", text)
        assert isinstance(json.loads(shown)["hits"], list)

    def test_an_invalid_time_is_refused(self, everthread: Any) -> None:
        assert "'someday' is not a time" in everthread.refuses(
            "sessions", "search", "x", "--since", "someday"
        )


class TestExportAndImport:
    def test_round_trip(self, everthread: Any, thread: Thread, tmp_path: Path) -> None:
        first = str(tmp_path / "all.jsonl")
        other = str(tmp_path / "other.db")
        done = everthread("sessions", "export", "--all", "-o", first)
        assert done.stdout.startswith("3 threads, ")
        assert stat.S_IMODE(Path(first).stat().st_mode) == 0o600
        assert (
            "3 threads imported"
            in everthread("sessions", "import", first, "--store", other).stdout
        )
        again = everthread("sessions", "export", "--all", "--store", other).stdout
        assert sorted(again.splitlines()) == sorted(
            Path(first).read_text("utf-8").splitlines()
        )
        here, there = (
            everthread.json("sessions", "show", thread.id, "--context", *where)[
                "messages"
            ]
            for where in ([], ["--store", other])
        )
        assert [(m["kind"], m["body"], m["created"]) for m in here] == [
            (m["kind"], m["body"], m["created"]) for m in there
        ]

    def test_a_thread_brings_its_subagents(
        self, everthread: Any, thread: Thread
    ) -> None:
        lines = [
            json.loads(line)
            for line in everthread(
                "sessions", "export", thread.tip[:12]
            ).stdout.splitlines()
        ]
        assert [line["thread"] for line in lines if line["type"] == "everthread"] == [
            thread.id,
            thread.subagent,
        ]

    def test_any_text_survives_export_and_import_through_a_pipe(
        self, everthread: Any, fill: Any, tmp_path: Path
    ) -> None:
        fill(
            create_leased_session(
                NewSession(id="s"),
                text_message("user", HOSTILE),
                text_message("assistant", [{"type": "text", "text": HOSTILE}]),
            )
        )
        exported = everthread("sessions", "export", "s").stdout
        other = str(tmp_path / "other.db")
        done = everthread(
            "sessions",
            "import",
            "-",
            "--store",
            other,
            "--json",
            given=exported.encode(),
        )
        assert json.loads(done.stdout) == {"threads": ["s"], "skipped": [], "notes": []}
        assert (
            everthread("sessions", "export", "s", "--store", other).stdout == exported
        )

    @pytest.mark.parametrize(
        "garbage",
        [
            b"not json",
            b"[1, 2]",
            b"",
            b'{"type": "message"}',
            b"[" * 50_000,
            b'{"type": "nonsense"}',
            b'{"no": "type"}',
            b'{"type": []}',
        ],
        ids=lambda value: repr(value)[:24],
    )
    def test_garbage_imports_nothing(
        self, everthread: Any, thread: Thread, tmp_path: Path, garbage: bytes
    ) -> None:
        lines = (
            everthread("sessions", "export", thread.subagent)
            .stdout.encode()
            .splitlines()
        )
        file = tmp_path / "x.jsonl"
        other = str(tmp_path / "other.db")
        file.write_bytes(b"\n".join([*lines[:2], garbage, *lines[2:]]))
        everthread("db", "migrate", "--store", other)
        error = everthread.refuses("sessions", "import", str(file), "--store", other)
        assert error.startswith(f"everthread: {file}: ")
        assert error.count("\n") == 1
        assert re.search(r"\bline 3\b", error)
        assert (
            everthread("sessions", "list", "--store", other).stdout
            == "no sessions yet\n"
        )

    @pytest.mark.parametrize(
        "given", [b"", b"\xff\xfe\n", b"hello", b'{"type": "session"}']
    )
    def test_a_file_that_is_not_an_export_is_refused(
        self, everthread: Any, given: bytes
    ) -> None:
        error = everthread.refuses("sessions", "import", "-", given=given)
        assert error.startswith("everthread: standard input: ")
        assert error.count("\n") == 1

    def test_existing_threads_and_files_are_not_overwritten(
        self, everthread: Any, thread: Thread, tmp_path: Path
    ) -> None:
        exported = everthread("sessions", "export", thread.id).stdout
        done = everthread("sessions", "import", "-", given=exported.encode())
        assert done.returncode == 1
        assert "already" in done.stderr
        file = tmp_path / "x.jsonl"
        file.write_text("precious", "utf-8")
        assert (
            everthread("sessions", "export", thread.id, "-o", str(file)).returncode == 2
        )
        assert file.read_text("utf-8") == "precious"

    def test_bad_requests(
        self, everthread: Any, thread: Thread, tmp_path: Path
    ) -> None:
        new = tmp_path / "new.jsonl"
        for arguments in (
            ["export"],
            ["export", thread.id, "--all"],
            ["export", thread.id, "-o", str(tmp_path / "no" / "x")],
            ["export", thread.id, "nonsense", "-o", str(new)],
            ["import", str(tmp_path / "absent")],
            ["import", str(tmp_path)],
        ):
            assert everthread.refuses("sessions", *arguments).count("\n") == 1
        assert not new.exists()


class TestState:
    def test_files_commands_and_errors(self, everthread: Any, fill: Any) -> None:
        def called(
            name: str, arguments: dict[str, Any], result: str, call_id: str
        ) -> list[NewMessage]:
            call: Any = calls_message(
                function_call(call_id, name, json.dumps(arguments))
            )
            answer: Any = result_message(call_id, result)
            return [NewMessage(call), NewMessage(answer)]

        async def work(store: Store) -> None:
            await store.create_session(NewSession(id="t"))
            await store.append(
                "t",
                [
                    text_message("user", "Mend it."),
                    *called(
                        "write_file",
                        {"path": "src/a.py", "content": "x"},
                        "Written.",
                        "c1",
                    ),
                    *called(
                        "terminal",
                        {"command": "pytest -q"},
                        "exit code: 1\nE  ValueError: no\n1 failed",
                        "c2",
                    ),
                ],
            )

        fill(work)
        found = everthread.json("sessions", "state", "t")
        assert [(file["path"], file["last"]) for file in found["files"]] == [
            ("src/a.py", "changed")
        ]
        assert [(run["command"], run["ok"]) for run in found["commands"]] == [
            ("pytest -q", False)
        ]
        assert "ValueError: no" in " ".join(found["open_errors"][0]["lines"])
        for columns in (60, 80, 120):
            shown = everthread("sessions", "state", "t", columns=columns).stdout
            for words in ("src/a.py", "pytest -q", "open errors", "ValueError"):
                assert words in shown
        assert everthread("sessions", "state", "nobody").returncode == 2


class TestOtherPrograms:
    def test_their_sessions_are_found_and_searchable(
        self, everthread: Any, tmp_path: Path
    ) -> None:
        folder = tmp_path / "claude" / "projects" / "p"
        folder.mkdir(parents=True)
        entries = [
            {
                "type": "user",
                "sessionId": "s1",
                "message": {"role": "user", "content": "Mend the zeppelin."},
            },
            {
                "type": "assistant",
                "sessionId": "s1",
                "message": {"role": "assistant", "content": "Mended."},
            },
        ]
        (folder / "s1.jsonl").write_text("\n".join(map(json.dumps, entries)), "utf-8")
        (folder / "empty.jsonl").write_text('{"type": "summary"}', "utf-8")
        where = {"CLAUDE_CONFIG_DIR": str(tmp_path / "claude")}
        done = everthread("sessions", "import", "--from", "claude-code", env=where)
        assert done.returncode == 0, done.stderr
        assert "1 thread imported, 2 messages new" in done.stdout
        assert "skipped: " in done.stderr
        again = everthread(
            "sessions", "import", "--from", "claude-code", "--json", env=where
        )
        assert len(json.loads(again.stdout)["threads"]) == 1
        assert "zeppelin" in everthread("sessions", "search", "zeppelin").stdout
        assert (
            "0 messages new"
            in everthread("sessions", "import", str(folder / "s1.jsonl")).stdout
        )
        (listed,) = everthread.json("sessions", "list")["sessions"]
        assert listed["tokens"] > 0, "imported messages are counted"
        with (folder / "s1.jsonl").open("a", encoding="utf-8") as file:
            file.write('\n{"type": "assi')
        for command in (
            ["tokens"],
            ["inspect"],
            ["compress", "--window", "4000"],
            ["sessions", "import"],
        ):
            done = everthread(*command, str(folder / "s1.jsonl"))
            assert done.returncode == 0, done.stderr
            assert "line 3: no JSON object; skipped" in done.stderr, (
                "every command says what it could not read"
            )

    def test_bad_imports_are_refused(self, everthread: Any) -> None:
        for arguments, words in (
            (
                ["--from", "vim"],
                "is unknown; use one of: claude-code, codex, pi, opencode",
            ),
            ([], "give the files to import, or --from"),
            (["--from", "codex"], "no sessions of codex"),
        ):
            assert words in everthread.refuses(
                "sessions", "import", *arguments, env={"CODEX_HOME": "/nowhere"}
            )


class TestUndo:
    def test_undo_restores_every_message(self, everthread: Any, thread: Thread) -> None:
        done = everthread("sessions", "undo", thread.tip[:12])
        assert (
            f"thread {thread.id[:8]} goes on in session {thread.id[:8]}, with 6 messages"
            in done.stdout
        )
        report = everthread.json("sessions", "show", thread.id, "--context")
        assert [message["id"] for message in report["messages"]] == thread.ids

    def test_nothing_to_undo(self, everthread: Any, thread: Thread) -> None:
        assert everthread.json("sessions", "undo", thread.id)["messages"] == 6
        done = everthread("sessions", "undo", thread.id)
        assert done.returncode == 1
        assert "no compaction" in done.stderr


class TestDelete:
    def gone(self, everthread: Any, session: str) -> bool:
        return bool(everthread("sessions", "show", session).returncode == 2)

    def test_without_a_terminal_delete_needs_yes(
        self, everthread: Any, thread: Thread
    ) -> None:
        assert "--yes" in everthread.refuses(
            "sessions", "delete", thread.id, given=b"y\n"
        )
        assert not self.gone(everthread, thread.id)
        assert (
            "1 subagent thread ("
            in everthread("sessions", "delete", thread.tip, "--yes").stdout
        )
        assert self.gone(everthread, thread.id)
        assert self.gone(everthread, thread.subagent)
        assert (
            "Repair the parser" in everthread("sessions", "show", thread.branch).stdout
        )

    def test_asks_at_a_terminal(
        self, everthread: Any, at_terminal: Any, thread: Thread
    ) -> None:
        code, shown = at_terminal("sessions", "delete", thread.id[:12], typed=b"n\n")
        assert code == 1
        assert f"Delete thread {thread.id[:8]}" in shown
        assert "nothing was deleted" in shown
        assert not self.gone(everthread, thread.id)
        assert at_terminal("sessions", "delete", thread.id, typed=b"y\n")[0] == 0
        assert self.gone(everthread, thread.id)

    def test_for_programs(self, everthread: Any, thread: Thread) -> None:
        done = everthread("sessions", "delete", thread.id, "--yes", "--json")
        assert json.loads(done.stdout) == {"thread": thread.id, "sessions": 4}


BY_ID = ["show", "tree", "export", "undo", "delete"]


@pytest.mark.parametrize("command", BY_ID)
def test_ids_that_name_none_or_several(
    everthread: Any, fill: Any, command: str
) -> None:
    fill(
        create_sessions(
            NewSession(id="abc1"),
            NewSession(id="abc2"),
            NewSession(id="other", tenant="two"),
        )
    )
    for prefix, words in (
        ("zzz", "begins with 'zzz'"),
        ("abc", "give more of the id"),
        ("", "begins with ''"),
    ):
        error = everthread.refuses("sessions", command, "--", prefix)
        assert words in error
        assert error.count("\n") == 1
    assert everthread("sessions", command, "--tenant", "one", "other").returncode == 2


def test_an_id_that_is_not_valid_text(everthread: Any) -> None:
    assert "Traceback" not in everthread.refuses("sessions", "show", b"\xff\xfe")


@pytest.mark.parametrize("url", ["ftp://x", "mysql://user@host/db"])
def test_an_unknown_store_url_is_refused(everthread: Any, url: str) -> None:
    assert everthread.refuses("sessions", "list", "--store", url).count("\n") == 1


def test_a_file_that_is_not_a_store_is_refused(everthread: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    file.write_bytes(b"this is not a database at all" * 100)
    done = everthread("sessions", "list", "--store", str(file))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert file.read_bytes() == b"this is not a database at all" * 100
