"""`everthread sessions tree`."""

from __future__ import annotations

import re

from tests.cli.conftest import Command
from tests.cli.sessions.stored_thread import StoredThread


def test_a_tree_shows_parents_and_branches(everthread: Command, thread: StoredThread) -> None:
    for session in (thread.id, thread.tip):
        output = everthread(f"sessions tree {session}").stdout
        lines = {
            by_id[1]: line
            for line in output.splitlines()
            if (by_id := re.search(r"\b([0-9a-f]{8}) \w+  \d", line))
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
            "100,000 → 25,000 tokens (75.0% saved, by the journal, 2.0 s)" in lines[thread.tip[:8]]
        )
        depth = {
            name: re.search(r"[0-9a-f]{8}", line).start()  # type: ignore[union-attr]
            for name, line in lines.items()
            if line
        }
        assert depth[thread.tip[:8]] == depth[thread.id[:8]] < depth[thread.reverted[:8]]
        assert depth[thread.id[:8]] < depth[thread.subagent[:8]] == depth[thread.branch[:8]]


def test_prints_the_tree_as_json(everthread: Command, thread: StoredThread) -> None:
    report = everthread.json(f"sessions tree {thread.id}")
    by_id = {session["id"]: session for session in report["sessions"]}
    assert by_id[thread.tip]["compaction"]["tokens_before"] == 100_000
    assert by_id[thread.reverted]["kind"] == "reverted"
    assert by_id[thread.branch]["branched_at"] == thread.ids[0]
    assert by_id[thread.subagent]["parent"] == thread.id
