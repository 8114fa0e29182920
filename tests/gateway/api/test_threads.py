"""Threads through the API: read whole and as the model sees them, compacted, taken back, branched, searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everthread import open_store
from everthread.config import parse_config
from everthread.core.messages import text_of
from everthread.core.types import Reply
from everthread.factory.gateways import open_gateway
from everthread.gateway.api.lost_turns import UNKNOWN_OUTCOME
from everthread.lab.provider import Provider, ServedModel
from everthread.store.records import NewMessage
from everthread.store.store import Store
from everthread.store.turn_records import NewQueuedTurn
from tests.agent.agent_setup import call_reply
from tests.gateway.api.api_setup import ApiSetup, WaitingModel, open_api

FILLER = "the ledger of the northern branch was settled and every entry was compared twice with its receipt. "


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder / 'store.db'}"


async def test_history_compaction_undo_branch_search_and_accounts(
    tmp_path: Path,
) -> None:
    async with open_api(
        url_in(tmp_path), WaitingModel(lambda _: "Noted.", window=16_000)
    ) as setup:
        ann = setup.of("ann")
        thread = await setup.thread(title="Ledger")
        at = f"/api/threads/{thread}"
        for number in range(12):
            await setup.say(thread, f"Entry {number} zebra{number}: {FILLER * 24}")
        preview = (await ann.post(f"{at}/compress", json={"preview": True})).json()
        assert "Nothing was changed" in preview["text"]
        assert len(await setup.history(thread, "current")) == 24
        done = (await ann.post(f"{at}/compress", json={"focus": "zebra3"})).json()
        assert done["data"]["changed"] is True, done["text"]
        whole = await setup.history(thread)
        current = await setup.history(thread, "current")
        assert (len(whole), whole[0].split(":")[0]) == (24, "Entry 0 zebra0")
        assert len(current) < 24
        page = (await ann.get(f"{at}/history?limit=10&offset=20")).json()
        assert (len(page["items"]), page["next"]) == (4, None)
        assert (await ann.get(f"{at}/history?limit=4")).json()["next"] == 4
        found = (await ann.get(f"{at}/search", params={"q": "zebra3"})).json()["items"]
        assert {hit["thread"] for hit in found} == {thread}
        (hit,) = [hit for hit in found if hit["role"] == "user"]
        assert (hit["before"]["role"], hit["before"]["text"]) == ("assistant", "Noted.")
        assert hit["after"] == {
            "message": hit["message"] + 1,
            "role": "assistant",
            "tool": "",
            "text": "Noted.",
        }
        everywhere = (
            await ann.get("/api/search", params={"q": "zebra3", "role": "user"})
        ).json()["items"]
        assert [hit["message"] for hit in everywhere] == [
            hit["message"] for hit in found if hit["role"] == "user"
        ]
        branch = (
            await ann.post(
                f"{at}/branch",
                json={"title": "Other way", "at_message": found[0]["message"]},
            )
        ).json()
        assert (branch["kind"], branch["title"]) == ("branch", "Other way")
        assert len(await setup.history(branch["id"])) == 7
        assert (await setup.say(branch["id"], "go on here")).json()["answer"][
            "text"
        ] == "Noted."
        assert (await ann.get(at)).json()["compactions"] == 1
        insights = (await ann.get("/api/insights?days=2")).json()
        assert (insights["threads"], insights["compactions"]) == (2, 1)
        assert insights["total"]["calls"] >= 13
        undone = (await ann.post(f"{at}/undo", json={})).json()
        assert undone["data"]["messages"] == 24
        none = await ann.post(f"{at}/undo", json={})
        assert (none.status_code, none.json()["data"]) == (200, {"undone": False})
        state = (await ann.get(f"{at}/state")).json()
        assert (state["thread"], state["messages"], state["open_errors"]) == (
            thread,
            24,
            [],
        )
        sums = (await ann.get(f"{at}/usage")).json()["sums"]
        assert sums["main"]["calls"] == 12
        listed = (await ann.get("/api/threads")).json()["items"]
        assert {item["id"]: item["messages"] for item in listed} == {
            thread: 24,
            branch["id"]: 9,
        }


async def test_commands_are_messages_that_no_model_sees(api: ApiSetup) -> None:
    thread = await api.thread()
    await api.say(thread, "hello")
    new = (await api.say(thread, "/new Another")).json()["answer"]
    assert (new["command"], new["failed"]) == ("new", False)
    assert new["thread"] != thread
    assert (await api.say(new["thread"], "hi")).json()["answer"]["text"] == "re: hi"
    wrong = (await api.say(thread, "/nothing of the kind")).json()["answer"]
    assert wrong["failed"] is True
    assert "no command /nothing" in wrong["text"]
    assert "hello" in (await api.say(thread, "/sessions")).json()["answer"]["text"]
    for name in ("../../etc/passwd.gguf", "gpt-4o"):
        await api.say(thread, f"/model {name}")
    asked = (
        await api.of("ann").post("/api/threads", json={"model": "/srv/secret.gguf"})
    ).json()
    assert asked["error"]["code"] == "model_not_allowed"
    assert api.model.begun == ["hello", "hi"]


@pytest.mark.parametrize(
    ("name", "keys", "tools", "has"),
    [
        ("ann", True, False, False),
        ("amy", True, False, True),
        ("", False, False, False),
        ("", False, True, True),
        ("ann", True, True, False),
    ],
)
async def test_tools_are_for_who_was_granted_them(
    name: str, keys: bool, tools: bool, has: bool, tmp_path: Path
) -> None:
    async with open_api(url_in(tmp_path), keys=keys, tools=tools) as setup:
        thread = await setup.thread(name)
        await setup.say(thread, "what can you do?", name)
        (request,) = setup.model.requests
        offered = {tool["function"]["name"] for tool in request.tools}
        assert {"recall", "todo", "memory"} <= offered
        assert ("terminal" in offered) is has
        assert ("read_file" in offered) is has
        assert ("workspace" in str(request.system)) is has


async def test_what_needs_leave_is_refused_where_nobody_can_be_asked(
    tmp_path: Path,
) -> None:
    script = iter(
        [
            call_reply(("terminal", {"command": f"touch {tmp_path / 'done'}"})),
            Reply({"role": "assistant", "content": "no"}, "stop"),
        ]
    )
    async with open_api(
        url_in(tmp_path), WaitingModel(lambda _: next(script))
    ) as setup:
        thread = await setup.thread("amy")
        assert (await setup.say(thread, "do it", "amy")).json()["answer"][
            "text"
        ] == "no"
        assert not (tmp_path / "done").exists()


async def test_memory_and_threads_stay_with_their_tenant(api: ApiSetup) -> None:
    thread = await api.thread()
    await api.say(thread, "the password of the vault is swordfish")
    await api.say(thread, "/memory add Ann likes heliotrope")
    foreign = await api.thread("bob")
    turn = (await api.say(thread, "and more")).json()["id"]
    bob = api.of("bob")
    headers = {"content-type": "application/json"}
    unknown = "0" * 32
    for method, path in (
        ("GET", ""),
        ("GET", "/history"),
        ("GET", "/turns"),
        ("GET", f"/turns/{turn}"),
        ("GET", f"/turns/{turn}/events"),
        ("GET", "/usage"),
        ("GET", "/search?q=swordfish"),
        ("POST", "/messages"),
        ("POST", "/cancel"),
        ("POST", "/compress"),
        ("POST", "/undo"),
        ("POST", "/branch"),
    ):
        body = {"content": "hi"} if path == "/messages" else {}
        more: dict[str, Any] = (
            {"json": body} if method == "POST" else {"headers": headers}
        )
        theirs = await bob.request(method, f"/api/threads/{thread}{path}", **more)
        nobody = await bob.request(method, f"/api/threads/{unknown}{path}", **more)
        assert (theirs.status_code, theirs.text) == (
            nobody.status_code,
            nobody.text,
        ), path
        assert theirs.status_code == 404
    for path in (f"/turns/{turn}", f"/turns/{turn}/events"):
        assert (await bob.get(f"/api/threads/{foreign}{path}")).status_code == 404
    gone = await bob.post(f"/api/threads/{foreign}/cancel", json={"turn": turn})
    assert gone.status_code == 404
    assert (await bob.get("/api/search?q=swordfish")).json()["items"] == []
    assert [item["id"] for item in (await bob.get("/api/threads")).json()["items"]] == [
        foreign
    ]
    assert (await bob.get("/api/insights")).json()["total"]["calls"] == 0
    for line in ("/memory", "/search swordfish", f"/resume {thread}", "/sessions"):
        said = (await api.say(foreign, line, "bob")).json()["answer"]["text"]
        assert "heliotrope" not in said
        assert "vault" not in said
    branch = (
        await api.of("ann").post(f"/api/threads/{foreign}/branch", json={})
    ).status_code
    assert branch == 404


async def test_who_is_not_let_in(api: ApiSetup) -> None:
    for name, status in (("nobody", 401), ("pat", 403)):
        for path in ("/api/threads", "/api", "/api/openapi.json"):
            answer = await api.of(name).get(path)
            assert answer.status_code == status
            assert set(answer.json()["error"]) == {"code", "message"}


async def test_a_turn_whose_process_vanished(tmp_path: Path, api: ApiSetup) -> None:
    """Its calls get an unknown outcome, it is marked and not run again; waiting messages continue."""

    async def vanish(store: Store, thread: str) -> tuple[str, str]:
        """As a process leaves it that is killed while a tool runs: its lease runs out."""
        lost, waits = [
            await store.queue_turn(
                NewQueuedTurn(
                    name * 4, thread, "acme", {"role": "user", "content": name}, name
                ),
                max_waiting=9,
            )
            for name in ("lost", "next")
        ]
        assert lost is not None
        assert waits is not None
        lease = await store.acquire(thread, "gone", 60)
        assert lease is not None
        await store.begin_turn(lease)
        body: Any = call_reply(("terminal", {"command": "pay 100"})).message
        message: Any = dict(lost.message)
        await store.append(
            thread,
            [NewMessage(message, event=f"{lost.id}.0"), NewMessage(body)],
            lease=lease,
        )
        await store.renew(lease, 0.1)
        return lost.id, waits.id

    async with open_api(url_in(tmp_path)) as first:
        thread = await first.thread()
        await first.say(thread, "hello")
    store = open_store(url_in(tmp_path))
    lost, waits = await vanish(store, thread)
    await store.close()
    ended = await api.queue.wait(await api.queue.turn("acme", waits), seconds=60)
    assert ended.state == "answered"
    told = (await api.of("ann").get(f"/api/threads/{thread}/turns/{lost}")).json()
    assert (told["state"], told["error"]["code"]) == ("interrupted", "interrupted")
    history = await api.history(thread)
    assert history[2] == "lost"
    assert history[4] == UNKNOWN_OUTCOME
    assert "interrupted" in history[5]
    assert history[6:] == ["next", "re: next"]
    begun_here = [text for text in api.model.begun if text != "hello"]
    assert begun_here == ["next"], "either gateway may answer the first message"


async def test_configured_and_with_a_provider(tmp_path: Path) -> None:
    """As `everthread serve` composes it, far past the model's window."""
    served = [ServedModel("gpt-4o", 6_000, shows="max_model_len")]
    async with Provider(served) as provider:
        text = f"""
model: {{default: gpt-4o, provider: custom, base_url: '{provider.url}/v1'}}
gateway: {{port: 0, upstreams: [{{name: lab, url: '{provider.url}'}}]}}
store: {{url: '{url_in(tmp_path)}'}}
"""
        async with open_gateway(parse_config(text)) as gateway:
            home = ApiSetup(gateway.url, None, None, None)  # type: ignore[arg-type]  # only its clients are used
            thread = await home.thread("")
            for number in range(16):
                answer = await home.say(thread, f"Entry {number}: {FILLER * 20}", "")
                assert answer.status_code == 200, answer.text
            found = (await home.of("").get(f"/api/threads/{thread}")).json()
            assert found["compactions"] >= 1
            assert len(await home.history(thread, name="")) == 32
            await home.of("").aclose()
        assert {record.status for record in provider.log} == {200}
        assert text_of(provider.log[-1].request.messages[-1]).startswith("Entry 15")  # type: ignore[union-attr]  # it answered
