"""The examples for chats of other services use the threads API as any client can."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2

from examples.telegram_bot import Bot
from examples.webhook import Webhook, signed_headers
from tests.gateway.api.api_setup import ApiGateway

SECRET = "both sides know it"
NOW = 1_000_000.0


class Telegram:
    """A fake bot API: its answers, and the requests it got."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.sent: list[tuple[int, str]] = []

    def write(self, number: int, chat: int, user: int, text: str) -> None:
        message = {
            "chat": {"id": chat},
            "from": {"id": user},
            "text": text,
        }
        self.updates.append({"update_id": number, "message": message})

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        request_body = json.loads(request.content)
        if request.url.path.endswith("getUpdates"):
            found = [
                update for update in self.updates if update["update_id"] >= request_body["offset"]
            ]
            return httpx2.Response(200, json={"ok": True, "result": found})
        self.sent.append((request_body["chat_id"], request_body["text"]))
        return httpx2.Response(200, json={"ok": True, "result": {}})


async def test_each_telegram_chat_is_a_thread(tmp_path: Path, api: ApiGateway) -> None:
    telegram = Telegram()
    transport = httpx2.MockTransport(telegram.answer)
    async with httpx2.AsyncClient(
        transport=transport, base_url="https://telegram.example/botx/"
    ) as client:
        bot = Bot(
            client,
            api.client_of("ann"),
            {7, 8},
            tmp_path / "bot.json",
        )
        telegram.write(
            1,
            chat=70,
            user=7,
            text="Hello",
        )
        telegram.write(
            2,
            chat=80,
            user=8,
            text="Good morning",
        )
        telegram.write(
            3,
            chat=70,
            user=7,
            text="Again",
        )
        telegram.write(
            4,
            chat=90,
            user=9,
            text="A stranger",
        )
        await bot.poll()
        assert [text for chat, text in telegram.sent if chat == 70] == [
            "re: Hello",
            "re: Again",
        ]
        assert [text for chat, text in telegram.sent if chat == 80] == ["re: Good morning"]
        assert not [text for chat, text in telegram.sent if chat == 90]
        # Another process continues, and an update that Telegram sends again is the same turn.
        state = json.loads((tmp_path / "bot.json").read_text())
        (tmp_path / "bot.json").write_text(json.dumps({**state, "offset": 3}))
        later = Bot(
            client,
            api.client_of("ann"),
            {7},
            tmp_path / "bot.json",
        )
        await later.poll()
        threads = state["threads"]
        history = await api.history(threads["70"])
        assert history == [
            "Hello",
            "re: Hello",
            "Again",
            "re: Again",
        ]


async def test_answers_a_signed_message_once(tmp_path: Path, api: ApiGateway) -> None:
    hook = Webhook(
        api.client_of("ann"),
        SECRET,
        tmp_path / "hook.json",
        clock=lambda: NOW,
    )
    transport = httpx2.ASGITransport(app=hook.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://hook.example") as service:
        body = json.dumps(
            {
                "event": "e-1",
                "chat": "room-7",
                "text": "Hello",
            }
        ).encode()
        thread = ""
        for _ in range(2):
            answer = await service.post(
                "/", content=body, headers=signed_headers(SECRET, NOW, body)
            )
            assert answer.status_code == 200
            assert answer.json()["text"] == "re: Hello"
            expected = signed_headers(SECRET, NOW, answer.content)
            assert expected.items() <= dict(answer.headers).items()
            thread = answer.json()["thread"]
        history = await api.history(thread)
        assert history == ["Hello", "re: Hello"]
        good = signed_headers(SECRET, NOW, body)
        for content, headers in [
            (body, {}),
            (body + b" ", good),
            (body, signed_headers("another", NOW, body)),
            (body, signed_headers(SECRET, NOW - 301, body)),
            (body, signed_headers(SECRET, NOW + 301, body)),
            (body, {**good, "x-everthread-timestamp": "soon"}),
        ]:
            response = await service.post("/", content=content, headers=headers)
            assert response.status_code == 401
        none = b"[]"
        response = await service.post(
            "/",
            content=none,
            headers=signed_headers(SECRET, NOW, none),
        )
        assert response.status_code == 400
