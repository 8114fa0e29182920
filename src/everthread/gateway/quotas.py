"""What a key may use in a day, and what a call used: as the provider reported it, else estimated."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from everthread.core.messages import calls_of, text_of
from everthread.core.pricing import CanonicalUsage, cost_of, normalize_usage
from everthread.errors import EverthreadError
from everthread.gateway.base import Outcome, Outgoing
from everthread.gateway.encoding import UNREADABLE, decoder
from everthread.gateway.errors import Refused
from everthread.gateway.streaming import UsageReader, usage_of
from everthread.store.models import NO_USE, KeyUse, NewKey
from everthread.store.store import Store
from everthread.wire.common import SseParser

if TYPE_CHECKING:
    from everthread.gateway.requests import RequestHead, Upload

_LOG = logging.getLogger("everthread.gateway")
_DAY = 86_400
FLUSH_SECONDS = 0.1
"""Seconds: what is counted within this time is written together."""
RETRY_SECONDS = 5.0
"""Seconds until another attempt, when the store did not take it."""


def utc_day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"


class KeyLedger:
    """The accounts of the keys this process has seen. What is counted is written together, a little later."""

    def __init__(self, store: Store, *, wall: Callable[[], float] = time.time) -> None:
        self._store = store
        self._wall = wall
        self._stored: dict[str, KeyUse] = {}
        """As the store had them last, by key, of `_stored_day`."""
        self._stored_day = ""
        self._writing: dict[tuple[str, str], KeyUse] = {}
        """On their way there, by day and key."""
        self._waiting: dict[tuple[str, str], KeyUse] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[bool] | None = None

    @property
    def day(self) -> str:
        return utc_day(self._wall())

    def learn(self, key_id: str, day: str, use: KeyUse) -> None:
        """What the store says. While a write is under way it may hold that already, and the write itself will tell."""
        if day == self.day and (day, key_id) not in self._writing:
            stored = self._stored_of(day)
            known = stored.get(key_id, NO_USE)
            stored[key_id] = KeyUse(
                max(known.requests, use.requests), max(known.tokens, use.tokens), max(known.dollars, use.dollars)
            )

    def admit(self, key: NewKey) -> None:
        """Count a request; `Refused` where a limit is reached."""
        day = self.day
        entry = day, key.id
        used = self._stored_of(day).get(key.id, NO_USE)
        used += self._writing.get(entry, NO_USE) + self._waiting.get(entry, NO_USE)
        for what in ("requests", "tokens", "dollars"):
            limit, spent = getattr(key.limits, what), getattr(used, what)
            if limit is not None and spent >= limit:
                raise self._limit_error(key, what, limit, spent)
        self._add(entry, KeyUse(requests=1))

    def spend(self, key: NewKey, usage: CanonicalUsage, model: str) -> None:
        """Count what a call used. A model without a price adds no dollars; where those are limited, this is logged."""
        cost = cost_of(usage, model, at=datetime.fromtimestamp(self._wall(), UTC))
        if cost is None and key.limits.dollars is not None:
            _LOG.warning("the price of %.80r is not known; key %s is charged no dollars for it", model, key.id)
        self._add((self.day, key.id), KeyUse(tokens=usage.total_tokens, dollars=cost or Decimal(0)))

    async def close(self) -> None:
        """Write the counted uses, then stop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            await self._task
        while self._waiting and await self._write():
            pass

    def _limit_error(self, key: NewKey, what: str, limit: int | Decimal, spent: int | Decimal) -> Refused:
        wait = _DAY - self._wall() % _DAY
        figures = f"${spent:,.4f} of ${limit:,.4f}" if what == "dollars" else f"{spent:,} of {limit:,} {what}"
        return Refused(
            429,
            f"{what}_per_day_exceeded",
            f"The key et_{key.id} has used {figures} of this day (UTC); it may go on in {wait:,.0f} seconds.",
            retry_after=wait,
        )

    def _stored_of(self, day: str) -> dict[str, KeyUse]:
        if self._stored_day != day:
            self._stored_day, self._stored = day, {}
        return self._stored

    def _add(self, entry: tuple[str, str], use: KeyUse) -> None:
        self._waiting[entry] = self._waiting.get(entry, NO_USE) + use
        self._write_soon()

    def _write_soon(self, delay: float = FLUSH_SECONDS) -> None:
        if self._timer is None and (self._task is None or self._task.done()):
            self._timer = asyncio.get_running_loop().call_later(delay, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._write())
        self._task.add_done_callback(self._go_on)

    def _go_on(self, done: asyncio.Task[bool]) -> None:
        if self._waiting and not done.cancelled() and done.exception() is None:
            self._write_soon(FLUSH_SECONDS if done.result() else RETRY_SECONDS)

    async def _write(self) -> bool:
        """Write what waits, day by day. False where the store fails: the rest goes with a later write."""
        self._writing, self._waiting = self._waiting, {}
        for day in sorted({day for day, _ in self._writing}):
            uses = {key: use for (of_day, key), use in self._writing.items() if of_day == day}
            try:
                sums = await self._store.count_use(day, uses)
            except EverthreadError as error:
                _LOG.warning("what keys used cannot be written now; it is kept and tried again: %s", error)
                for entry, use in self._writing.items():
                    self._waiting[entry] = self._waiting.get(entry, NO_USE) + use
                self._writing = {}
                return False
            for key in uses:
                del self._writing[day, key]
            if day == self.day:
                self._stored_of(day).update(sums)
        return True


@dataclass(frozen=True, slots=True)
class KeyAccount:
    """`gateway.base.Account` of one key."""

    ledger: KeyLedger
    key: NewKey

    def admit(self) -> None:
        self.ledger.admit(self.key)

    def spend(self, usage: CanonicalUsage, model: str) -> None:
        self.ledger.spend(self.key, usage, model)


_MOST, _END = 8 * 1024 * 1024, 64 * 1024
"""Of an answer longer than this only the end is read for its usage, so many bytes."""
_LARGEST = 1 << 40
_USAGE = re.compile(rb'"usage"\s*:\s*(?={)')
_FILE = re.compile(rb"[A-Za-z0-9+/=_-]{2000,}")
"""Base64: a picture or a document, which is not paid by the letter."""
_FILE_TOKENS = 1_500
_BYTES_PER_TOKEN = 4
_ONE = CanonicalUsage(1, 1)


def usage_to_charge(outcome: Outcome, sent: Outgoing) -> CanonicalUsage | None:
    """The usage of a call; None where nothing was answered. An answer that broke off counts by its text."""
    if not 200 <= outcome.status < 300:
        return outcome.usage
    reply = outcome.reply
    output_tokens = 0
    if reply is not None:
        words = [text_of(reply.message), *(f"{call.name} {call.arguments}" for call in calls_of(reply.message))]
        output_tokens = len("\n".join(words).encode("utf-8", "replace")) // _BYTES_PER_TOKEN
    if outcome.usage is None:
        return CanonicalUsage(rough_tokens(sent.body) if sent.tokens is None else sent.tokens, output_tokens)
    if reply is not None and reply.stop is None and outcome.usage.output_tokens < output_tokens:
        return replace(outcome.usage, output_tokens=output_tokens)
    return outcome.usage


def charged_model(requested: str, answered: str) -> str:
    """The model the answer names is the one that is paid; the one that was asked for where the other has no price."""
    return answered if answered and cost_of(_ONE, answered, at=datetime.now(UTC)) is not None else requested


def rough_tokens(body: bytes) -> int:
    """A rough count of a request's tokens, where the provider reported none."""
    text, files = _FILE.subn(b"", body)
    return len(text) // _BYTES_PER_TOKEN + files * _FILE_TOKENS


class StatedUsage:
    """Reads the `usage` in an answer that is no conversation's: in one object, or in the events of a stream."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._decoder = decoder(headers.get("content-encoding", ""), _LARGEST)
        self._events = SseParser() if headers.get("content-type", "").startswith("text/event-stream") else None
        self._text = b""
        self._is_whole = True
        self._usage: dict[str, Any] = {}
        self.count = 0
        """Events of a stream."""
        self.model = ""
        """That the answer names, which is the one that is paid."""

    def feed(self, piece: bytes) -> None:
        if self._decoder is None:
            return
        try:
            data = self._decoder.feed(piece)
        except (Refused, *UNREADABLE):
            self._decoder = None
            return
        if self._events is not None:
            for event in self._events.feed(data):
                self._read_event(event.data)
            return
        self._text += data
        if len(self._text) > (_MOST if self._is_whole else 2 * _END):
            self._text, self._is_whole = self._text[-_END:], False

    def usage(self) -> CanonicalUsage | None:
        if self._events is None and self._is_whole:
            self._read(self._text)
        for match in _USAGE.finditer(self._text) if not self._is_whole else ():
            with contextlib.suppress(ValueError, RecursionError):  # the word in somebody's text
                end = self._text[match.end() :].decode("utf-8", "replace")
                self._usage = json.JSONDecoder().raw_decode(end)[0]
        return normalize_usage(self._usage) if self._usage else None

    def _read_event(self, data: str) -> None:
        self.count += 1
        if '"usage"' in data or not self.model:
            self._read(data.encode("utf-8", "replace"))

    def _read(self, text: bytes) -> None:
        try:
            value: Any = json.loads(text)
        except (ValueError, RecursionError):
            return  # no JSON
        if not isinstance(value, dict):
            return
        for part in (value, value.get("response"), value.get("message")):  # where the providers' events have it
            if isinstance(part, dict):
                self.model = part["model"] if isinstance(part.get("model"), str) else self.model
                self._usage |= part["usage"] if isinstance(part.get("usage"), dict) else {}


class PassthroughMeter:
    """Reads the usage in an answer that is passed on unseen, for the account that pays. Without one it does nothing."""

    def __init__(
        self, call: RequestHead, model: str | None, body: bytes | Upload, status: int, headers: Mapping[str, str]
    ) -> None:
        self._account = call.caller.account if 200 <= status < 300 else None
        self._api = call.conversation
        self._model = model or ""
        self._sent = body
        self._status = status
        self._usage_reader = (
            UsageReader(self._api, status, headers, model=model) if self._account and self._api else None
        )
        self._stated = StatedUsage(headers)

    def feed(self, piece: bytes) -> None:
        if self._usage_reader is not None:
            self._usage_reader.feed(piece)
        elif self._account is not None:
            self._stated.feed(piece)

    def settle(self) -> None:
        """Charge the usage that was read to the account."""
        if self._account is None:
            return
        sent, stated = self._sent, self._stated
        if self._usage_reader is not None and self._api:
            reply = self._usage_reader.end()
            outcome = Outcome(self._status, reply, usage_of(self._api, reply))
            usage = usage_to_charge(outcome, Outgoing(sent if isinstance(sent, bytes) else b""))
            answered = reply.model if reply is not None else ""
        else:  # embeddings, completions and the like; a stream that states none counts by its size and its events
            usage, answered = stated.usage(), stated.model
            if usage is None and stated.count:
                size = rough_tokens(sent) if isinstance(sent, bytes) else sent.size // _BYTES_PER_TOKEN
                usage = CanonicalUsage(size, stated.count)
        if usage is not None:
            self._account.spend(usage, charged_model(self._model, answered))
