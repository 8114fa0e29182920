"""What a compaction took out and is fetched again: noticed once, in whichever process, and worth more afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from everthread.conversation.conversation import Conversation
from everthread.conversation.events import Regretted
from everthread.core.exchange import Request
from everthread.testing import ScriptedModel
from tests.conversation.talk import Room, call, result, room, run, words

KEY = "The deployment key ring lives at vault_seven/ring-4411."
TESTS = "make test; TOKEN=" + "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"


class Caller:
    """A model that makes the call it is told to, and else talks."""

    def __init__(self) -> None:
        self.next: tuple[str, dict[str, Any]] | None = None
        self.model = ScriptedModel(self._say, window=8_000)
        self._count = 0

    def _say(self, _request: Request) -> Any:
        if self.next is None:
            return words(60, "answer")
        (name, arguments), self.next = self.next, None
        self._count += 1
        return call(name, json.dumps(arguments), f"call_{self._count}")

    async def calls(self, talk: Conversation, name: str, text: str = "fine", **arguments: Any) -> None:
        """The model calls a tool, gets a text, and goes on."""
        self.next = name, arguments
        answer = await talk.send(f"Please {name}.")
        await talk.add_results([result(text, answer.calls[0].id)])
        await talk.send()


async def fill(talk: Conversation) -> None:
    before, turn = talk.session.id, 0
    while talk.session.id == before:
        turn += 1
        await talk.send(f"Turn {turn}. {words(250, f'topic {turn}')}")


def told(place: Room) -> list[tuple[str, str]]:
    return [(event.action, event.what) for event in place.watch.of(Regretted)]


def test_what_is_fetched_again_is_counted_for_the_compaction_that_took_it_out(tmp_path: Path) -> None:
    async def story(place: Room) -> None:
        caller = Caller()
        talk = await place.open(caller.model, background=False)
        await caller.calls(talk, "read_file", f"{KEY} {words(200)}", path="ring.md")
        await caller.calls(talk, "terminal", words(100), command=TESTS)
        await caller.calls(talk, "read_file", path="other.md")
        await caller.calls(talk, "read_file", path="ring.md")
        assert told(place) == []  # nothing was taken out yet
        await fill(talk)
        made = talk.session.id
        gone = (await place.store.compactions(talk.id))[0].record.covered
        await caller.calls(talk, "read_file", KEY, path="./ring.md")
        await caller.calls(talk, "read_file", KEY, path="ring.md")
        await caller.calls(talk, "recall", f"[message:{gone[0]}] user", query="please")
        await caller.calls(talk, "read_file", path="unheard-of.md")
        again = await place.open(caller.model, resume=talk.id, background=False)  # another process
        await caller.calls(again, "read_file", KEY, path="ring.md")
        await caller.calls(again, "terminal", "ok", command=TESTS)
        await caller.calls(again, "patch", path="other.md", old_str="a", new_str="b")
        await caller.calls(again, "read_file", path="other.md")
        assert [action for action, _ in told(place)] == ["read", "recall", "run"]
        assert told(place)[0] == ("read", "./ring.md")
        assert told(place)[2][1].startswith("make test")
        assert "ghp_16C7" not in told(place)[2][1]
        found = await place.store.regrets(again.id)
        assert {record.session for record in found} == {made}
        assert sorted(record.kind for record in found) == ["read", "recall", "run"]

    run(in_room(tmp_path, story))


def test_a_change_is_remembered_by_another_process(tmp_path: Path) -> None:
    async def story(place: Room) -> None:
        caller = Caller()
        talk = await place.open(caller.model, background=False)
        await caller.calls(talk, "terminal", command="make test")
        await caller.calls(talk, "read_file", path="a.py")
        await fill(talk)
        await caller.calls(talk, "write_file", path="a.py", content="x")
        again = await place.open(caller.model, resume=talk.id, background=False)
        await caller.calls(again, "terminal", command="make test")
        await caller.calls(again, "read_file", path="a.py")
        assert told(place) == []
        await again.undo()
        await caller.calls(again, "read_file", path="a.py")
        assert told(place) == []

    run(in_room(tmp_path, story))


def test_what_was_fetched_again_is_quoted_by_the_next_compaction(tmp_path: Path) -> None:
    async def story(place: Room, *, twice: bool) -> str:
        caller = Caller()
        talk = await place.open(caller.model, background=False, keep_important=0.1)
        if twice:
            await caller.calls(talk, "read_file", KEY, path="ring.md")
        await fill(talk)
        await caller.calls(talk, "read_file", KEY, path="ring.md")
        assert bool(told(place)) == twice
        resumed = await place.open(caller.model, resume=talk.id, background=False, keep_important=0.1)
        await fill(resumed)
        await fill(resumed)
        return "\n".join(made.record.summary for made in await place.store.compactions(talk.id))

    summaries = {}
    for twice in (True, False):
        folder = tmp_path / str(twice)
        folder.mkdir()
        summaries[twice] = run(in_room(folder, story, twice=twice))
    assert f"tool: {KEY}" in summaries[True]
    assert f"tool: {KEY}" not in summaries[False]


async def in_room(folder: Path, story: Any, **more: Any) -> Any:
    async with room(folder) as place:
        return await story(place, **more)
