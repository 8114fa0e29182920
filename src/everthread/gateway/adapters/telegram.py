"""Telegram: a bot whose chats are threads, by long polling or by webhook, against any address that speaks its API."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import httpx2

from everthread.core.redaction import redact
from everthread.errors import EverthreadError
from everthread.gateway.adapters.base import Inbound, NotDeliveredError, Outbound
from everthread.gateway.adapters.bridge import Bridge
from everthread.gateway.adapters.hooks import json_object
from everthread.gateway.errors import Refused

_LOG = logging.getLogger("everthread.gateway")

API_URL = "https://api.telegram.org"
SECRET_HEADER = "x-telegram-bot-api-secret-token"  # noqa: S105 - the header's name
LONGEST = 4_096
"""UTF-16 units of one message, as Telegram counts them."""
POLL_SECONDS = 25
LONGEST_WAIT = 60.0
_COMMAND = re.compile(r"^(/\w{1,64})@\w{1,64}")


@dataclass(frozen=True, slots=True)
class TelegramOptions:
    """Of one bot."""

    name: str
    token: str
    users: Collection[int] = ()
    """Who may write, by id; nobody else."""
    chats: Collection[int] = ()
    """Groups in which everybody may."""
    mode: Literal["polling", "webhook"] = "polling"
    secret: str = ""
    """What Telegram shows with each call of the webhook."""
    api_url: str = API_URL
    tenant: str | None = None


class TelegramCarrier:
    """Calls of the bot API. The token stands in the URL, so no URL is ever told."""

    platform = "telegram"

    def __init__(self, options: TelegramOptions) -> None:
        self.name = options.name
        self._base = f"{options.api_url.rstrip('/')}/bot{options.token}"
        self._http = httpx2.AsyncClient(timeout=POLL_SECONDS + 15, follow_redirects=False)

    async def call(self, method: str, **arguments: Any) -> Any:
        """The result. `NotDeliveredError` with the seconds to wait where Telegram asks for that."""
        try:
            got = await self._http.post(f"{self._base}/{method}", json=arguments)
        except httpx2.HTTPError as error:
            raise NotDeliveredError(f"Telegram cannot be reached ({type(error).__name__})") from None
        try:
            answer = got.json()
        except ValueError:
            raise NotDeliveredError(f"Telegram answered {got.status_code} without JSON") from None
        if isinstance(answer, dict) and answer.get("ok") is True:
            return answer.get("result")
        told = answer if isinstance(answer, dict) else {}
        code = told.get("error_code", got.status_code)
        wait = told.get("parameters", {}).get("retry_after") if isinstance(told.get("parameters"), dict) else None
        final = isinstance(code, int) and 400 <= code < 500 and code != 429
        why = redact(f"Telegram refused {method} ({code}): {told.get('description', '')}")
        raise NotDeliveredError(why, final=final, after=float(wait) if isinstance(wait, int | float) else None)

    async def deliver(self, answer: Outbound) -> None:
        """In parts, each tried by itself, so that none is sent again for another's sake."""
        chat, _, topic = answer.reply.partition("/")
        more = {"message_thread_id": int(topic)} if topic else {}
        for part in parts(answer.text):
            while True:
                try:
                    await self.call("sendMessage", chat_id=int(chat), text=part, **more)
                    break
                except NotDeliveredError as error:
                    if error.after is None:
                        raise
                    await asyncio.sleep(min(error.after, LONGEST_WAIT))

    async def close(self) -> None:
        await self._http.aclose()


class Telegram:
    """Lets messages of known people in, from updates however they come."""

    def __init__(
        self,
        options: TelegramOptions,
        carrier: TelegramCarrier,
        bridge: Bridge,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._options = options
        self._carrier = carrier
        self._bridge = bridge
        self._pause = pause
        self._polling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self._options.mode == "polling":
            self._polling = asyncio.get_running_loop().create_task(self._poll())

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    async def handle(self, headers: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
        """An update through the webhook. What cannot be taken now is refused, and Telegram sends it again."""
        shown, secret = headers.get(SECRET_HEADER, ""), self._options.secret
        if not secret or not hmac.compare_digest(shown.encode(), secret.encode()):
            raise Refused(401, "invalid_secret", "The secret token is not valid.")
        await self._take(json_object(body))
        return {"ok": True}

    async def _poll(self) -> None:
        """An update is confirmed by asking for the next ones: not before its message is stored."""
        offset = 0
        while True:
            try:
                updates = await self._carrier.call(
                    "getUpdates", offset=offset, timeout=POLL_SECONDS, allowed_updates=["message"]
                )
                for update in updates if isinstance(updates, list) else ():
                    await self._take(update)
                    offset = max(offset, _number(update) + 1)
            except NotDeliveredError as error:
                _LOG.warning("telegram %s: %s", self._options.name, error)
                await self._pause(LONGEST_WAIT if error.final else min(error.after or 5.0, LONGEST_WAIT))
            except Refused as refused:
                _LOG.info("telegram %s: %s", self._options.name, refused.message)
                await self._pause(refused.retry_after or 5.0)
            except EverthreadError as error:
                _LOG.warning("telegram %s: a message waits: %s", self._options.name, redact(str(error)))
                await self._pause(5.0)

    async def _take(self, update: Any) -> None:
        inbound = self._read(update) if isinstance(update, dict) else None
        if inbound is not None:
            await self._bridge.take(inbound)

    def _read(self, update: Mapping[str, Any]) -> Inbound | None:
        """The message in an update; None for what is none, and for people nobody named."""
        message = update.get("message")
        if not isinstance(message, dict) or not isinstance(update.get("update_id"), int):
            return None
        sender, chat, text = message.get("from"), message.get("chat"), message.get("text")
        if not isinstance(sender, dict) or not isinstance(chat, dict) or not isinstance(text, str) or not text.strip():
            return None
        user, place = sender.get("id"), chat.get("id")
        if not isinstance(user, int) or not isinstance(place, int) or sender.get("is_bot"):
            return None
        if user not in self._options.users and place not in self._options.chats:
            _LOG.info("telegram %s: a message of an unknown sender was left out", self._options.name)
            return None
        topic = message.get("message_thread_id") if message.get("is_topic_message") else None
        reply = f"{place}/{topic}" if isinstance(topic, int) else str(place)
        command = _COMMAND.sub(r"\1", text)
        said = text if chat.get("type") == "private" else f"{_name(sender)}: {text}"
        return Inbound(reply, str(update["update_id"]), command if text.startswith("/") else said, reply, str(user))


def _number(update: Any) -> int:
    """An update's number; -1 for what is none."""
    number = update.get("update_id") if isinstance(update, dict) else None
    return number if isinstance(number, int) else -1


def parts(text: str, longest: int = LONGEST) -> list[str]:
    """The text in pieces that Telegram takes, cut where a line or a word ends if one ends late enough."""
    found = []
    rest = text
    while rest:
        end = _fitting(rest, longest)
        if end < len(rest):
            seams = (rest.rfind(mark, end // 2, end) + 1 for mark in ("\n\n", "\n", " "))
            end = next((seam for seam in seams if seam), end)
        piece, rest = rest[:end].rstrip(), rest[end:]
        found += [piece] if piece else []
    return found


def _fitting(text: str, longest: int) -> int:
    """How many characters have at most so many UTF-16 units."""
    units = 0
    for index, char in enumerate(text):
        units += 1 if ord(char) < 0x10000 else 2
        if units > longest:
            return index
    return len(text)


def _name(sender: Mapping[str, Any]) -> str:
    shown = sender.get("first_name") or sender.get("username") or sender.get("id")
    return " ".join(str(shown).split())[:60]
