"""A Telegram bot whose chats are threads of `everthread serve`: `python examples/telegram_bot.py`.

TELEGRAM_TOKEN       the bot's token
TELEGRAM_USERS       ids of those who may write, with commas between them; nobody else is answered
EVERTHREAD_URL       the gateway, http://127.0.0.1:8484 by default
EVERTHREAD_KEY       a key with the scope `threads`, where the gateway needs one

Which thread a chat has, and how far Telegram was read, is kept in telegram_bot.json in the current directory. A message
that Telegram sends again is the same turn.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import httpx2

POLL_SECONDS = 25
LONGEST = 4_000
"""Characters of one message; Telegram takes 4,096."""


class Bot:
    """A bot that fetches messages from Telegram, sends each to its chat's thread, and sends the answer back."""

    def __init__(
        self,
        telegram: httpx2.AsyncClient,
        api: httpx2.AsyncClient,
        users: Collection[int],
        state: Path,
    ) -> None:
        self._telegram = telegram
        self._api = api
        self._users = users
        self._file = state
        self._state: dict[str, Any] = {"offset": 0, "threads": {}}
        if state.exists():
            self._state = json.loads(state.read_text("utf-8"))

    async def poll(self) -> None:
        """Answer the new messages, the chats in parallel. Telegram repeats them until all are answered."""
        updates = await self._call("getUpdates", offset=self._state["offset"], timeout=POLL_SECONDS)
        chats: dict[int, list[Any]] = defaultdict(list)
        for update in updates:
            message = update.get("message") or {}
            if message.get("text") and message.get("from", {}).get("id") in self._users:
                chats[message["chat"]["id"]].append(update)
        await asyncio.gather(
            *(self._answer(chat, waiting_updates) for chat, waiting_updates in chats.items())
        )
        if updates:
            self._state["offset"] = updates[-1]["update_id"] + 1
            self._save()

    async def _answer(self, chat: int, updates: list[Any]) -> None:
        for update in updates:
            thread = await self._find_thread(chat)
            answer = await self._api.post(
                f"/api/threads/{thread}/messages?wait=600",
                json={"content": update["message"]["text"]},
                headers={"idempotency-key": f"telegram-{update['update_id']}"},
            )
            result = answer.json()
            if answer.status_code == 200:
                text = (result.get("answer") or {}).get(
                    "text"
                ) or f"The turn ended as {result.get('state')}."
            else:
                text = result.get("error", {}).get(
                    "message", "That takes longer; ask again in a while."
                )
            for start in range(0, len(text), LONGEST):
                await self._call("sendMessage", chat_id=chat, text=text[start : start + LONGEST])

    async def _find_thread(self, chat: int) -> str:
        threads: dict[str, str] = self._state["threads"]
        if str(chat) not in threads:
            created = await self._api.post("/api/threads", json={"title": f"Telegram {chat}"})
            threads[str(chat)] = created.raise_for_status().json()["id"]
            self._save()
        return threads[str(chat)]

    async def _call(self, method: str, **arguments: Any) -> Any:
        """Call Telegram. The token is part of the address, so errors do not name the address."""
        answer = (await self._telegram.post(method, json=arguments)).json()
        if not answer.get("ok"):
            raise RuntimeError(f"Telegram refused {method}: {answer.get('description')}")
        return answer["result"]

    def _save(self) -> None:
        self._file.write_text(json.dumps(self._state), "utf-8")


async def main() -> None:
    token = os.environ["TELEGRAM_TOKEN"]
    key = os.environ.get("EVERTHREAD_KEY")
    users = {int(name) for name in os.environ["TELEGRAM_USERS"].split(",")}
    async with (
        httpx2.AsyncClient(
            base_url=f"https://api.telegram.org/bot{token}/", timeout=POLL_SECONDS + 15
        ) as telegram,
        httpx2.AsyncClient(
            base_url=os.environ.get("EVERTHREAD_URL", "http://127.0.0.1:8484"),
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=630,
        ) as api,
    ):
        bot = Bot(telegram, api, users, Path("telegram_bot.json"))
        while True:
            try:
                await bot.poll()
            except (httpx2.HTTPError, RuntimeError) as error:
                print(f"{type(error).__name__}; trying again in ten seconds")
                await asyncio.sleep(10)


if __name__ == "__main__":
    asyncio.run(main())
