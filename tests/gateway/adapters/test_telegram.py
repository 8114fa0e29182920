"""A Telegram bot against a server that speaks Telegram's API: each chat a thread, known people only, nothing lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.gateway.adapters.telegram import SECRET_HEADER, parts
from tests.gateway.adapters.services import TOKEN, BotApi, bridged, serving, until
from tests.gateway.api.house import Waiting

SECRET = "the-secret-of-the-hook"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOT_TOKEN", TOKEN)
    monkeypatch.setenv("BOT_SECRET", SECRET)


def bot(api: str, **more: Any) -> str:
    settings = {"token_env": "BOT_TOKEN", "api_url": api, "users": [7, 8], **more}
    return f"{{telegram: [{settings}]}}".replace("'", '"')


def texts(api: BotApi, chat: int) -> list[str]:
    return [message["text"] for message in api.sent if message["chat_id"] == chat]


async def test_known_people_talk_each_in_their_own_thread(tmp_path: Path) -> None:
    api = BotApi()
    async with serving(api.routes) as url, bridged(tmp_path, bot(url)) as here:
        api.says("Hello", user=7)
        api.says("Let me in", user=666)
        api.says("Hi", user=8)
        api.says("From the group", user=8, chat=-100, kind="supergroup")
        api.says("And more", user=7)
        await until(lambda: len(api.sent) == 4)
        assert texts(api, 7) == ["re: Hello", "re: And more"]
        assert texts(api, 8) == ["re: Hi"]
        assert texts(api, -100) == ["re: User8: From the group"], "in a group one must see who speaks"
        rows = await here.store.list_threads()
        assert len(rows) == 3
        assert len({row.first.tenant for row in rows}) == 3, "no chat sees another's threads"
        assert "Let me in" not in "".join(here.model.begun)
        await until(lambda: not api.updates)
        assert not texts(api, 666)


async def test_commands_work_and_a_new_conversation_is_a_new_thread(tmp_path: Path) -> None:
    api = BotApi()
    async with serving(api.routes) as url, bridged(tmp_path, bot(url, chats=[-5])) as here:
        api.says("Remember 4711", user=9, chat=-5, kind="group")
        api.says("/usage@my_bot", user=9, chat=-5, kind="group")
        await until(lambda: len(api.sent) == 2)
        assert "call" in texts(api, -5)[1]
        api.says("/new", user=9, chat=-5, kind="group")
        await until(lambda: len(api.sent) == 3)
        api.says("What was it?", user=9, chat=-5, kind="group")
        await until(lambda: len(api.sent) == 4)
        assert all(not said.startswith("/") for said in here.model.begun), "commands are not sent to the model"
        rows = await here.store.list_threads()
        assert len(rows) == 2
        assert {row.messages for row in rows} == {2}


async def test_long_answers_come_in_parts_and_a_full_line_is_waited_for(tmp_path: Path) -> None:
    long = "\n".join(f"Line {n} 😀 of the answer." for n in range(900))
    api = BotApi()
    flood = {
        "ok": False,
        "error_code": 429,
        "description": "Too Many Requests",
        "parameters": {"retry_after": 0.05},
    }
    api.refusals = [flood, flood]
    async with serving(api.routes) as url, bridged(tmp_path, bot(url), Waiting(lambda _: long)):
        api.says("Tell me all.")
        await until(lambda: sum(map(len, texts(api, 7))) >= len(long) - 10)
        assert "\n".join(texts(api, 7)) == long
        api.refusals = [{"ok": False, "error_code": 403, "description": "Forbidden: bot was blocked by the user"}]
        api.says("Blocked", user=8)
        api.says("Still here", user=7)
        await until(lambda: len(texts(api, 7)) > 6)


async def test_an_answer_that_was_not_sent_is_sent_after_a_restart(tmp_path: Path) -> None:
    api = BotApi()
    async with serving(api.routes) as url:
        api.refusals = [{"ok": False, "error_code": 500, "description": "Internal Server Error"}] * 9
        async with bridged(tmp_path, bot(url)) as here:
            api.says("Hello")
            await until(lambda: len(api.refusals) < 9)
            assert here.model.begun == ["Hello"]
            await until(lambda: api.confirmed)
        assert not api.sent
        api.refusals = []
        async with bridged(tmp_path, bot(url)) as here:
            await until(lambda: api.sent)
            await asyncio.sleep(0.1)
            assert texts(api, 7) == ["re: Hello"]
            assert here.model.begun == [], "it was answered before"


async def test_the_webhook_needs_its_secret_and_takes_each_update_once(tmp_path: Path) -> None:
    api = BotApi()
    async with (
        serving(api.routes) as url,
        bridged(tmp_path, bot(url, mode="webhook", secret_env="BOT_SECRET")) as here,
        httpx2.AsyncClient(base_url=here.url) as http,
    ):
        update = api.says("Hello")
        for shown in ({}, {SECRET_HEADER: "guess"}):
            assert (await http.post("/hooks/telegram", json=update, headers=shown)).status_code == 401
        right = {SECRET_HEADER: SECRET}
        for _ in range(3):
            assert (await http.post("/hooks/telegram", json=update, headers=right)).status_code == 200
        await until(lambda: api.sent)
        odd: list[Any] = [[], {}, {"update_id": "x"}, {"update_id": 1, "message": {"text": 5}}, {"message": None}]
        for body in odd:
            assert (await http.post("/hooks/telegram", json=body, headers=right)).status_code in (200, 400)
        assert (await http.get("/hooks/telegram")).status_code == 405
        assert texts(api, 7) == ["re: Hello"]
        assert here.model.begun == ["Hello"]


@given(st.text(max_size=300), st.integers(1, 40))
def test_parts_hold_every_word_and_fit(text: str, longest: int) -> None:
    made = parts(text, longest + 1)
    assert all(0 < len(part.encode("utf-16-le", "surrogatepass")) // 2 <= longest + 1 for part in made)
    assert "".join("".join(made).split()) == "".join(text.split())
