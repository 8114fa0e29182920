"""Many clients at once before a provider with faults."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx2
import openai

from everthread.core.messages import text_of
from everthread.core.types import Api, ModelRequest
from everthread.lab.provider import ServedModel
from everthread.lab.provider.faults import FaultKind, FaultPlan
from tests.apis import APIS
from tests.gateway.gateway_setup import FILLER

NAMES: dict[Api, str] = {
    "openai_chat": "gpt-4o",
    "openai_responses": "gpt-5",
    "anthropic": "claude-sonnet-5",
}
RATES: dict[FaultKind, float] = {
    "rate_limit": 0.03,
    "server_error": 0.03,
    "overloaded": 0.02,
    "overflow": 0.02,
    "stream_overflow": 0.02,
    "payload_too_large": 0.01,
    "hang": 0.02,
    "delay": 0.02,
    "slow": 0.03,
    "reset": 0.04,
    "truncated": 0.04,
    "empty": 0.02,
    "stream_error": 0.02,
    "no_usage": 0.02,
}
MARK = re.compile(r"\[c\d+-\d+\]")
ENDS = {"stop", "end_turn", "completed"}


def served_models(window: int) -> list[ServedModel]:
    return [ServedModel(name, window, shows="max_model_len") for name in NAMES.values()]


def fault_plan(seed: int) -> FaultPlan:
    return FaultPlan(RATES, seed, seconds=0.02)


class NumberedAnswers:
    """Every answer is different: it holds its number and the mark of the last message."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, request: ModelRequest) -> str:
        self.count += 1
        return f"Answer {self.count} to {mark_of(request)}. It is entered in the book of the branch, on its own line."


def mark_of(request: ModelRequest) -> str:
    marks = MARK.findall(text_of(request.messages[-1]))
    return str(marks[-1]) if marks else "nobody"


class FailedError(Exception):
    """An attempt without a complete answer.

    `unexpected_error` holds an error that neither the provider nor an unreachable upstream explains.
    """

    def __init__(self, kind: str, problem: str = "") -> None:
        super().__init__(kind, problem)
        self.kind = kind
        self.unexpected_error = problem


@dataclass
class LoadClient:
    """A client that sends its whole history, again and again until it gets a complete answer."""

    number: int
    urls: Callable[[], str]
    """Returns the address to send to; called for each attempt."""
    sdk: Sdk
    stream: bool
    words: int = 14
    history: list[dict[str, str]] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    unexpected_errors: list[str] = field(default_factory=list)

    @property
    def api(self) -> Api:
        return APIS[self.number % len(APIS)]

    async def send_turn(self) -> None:
        mark = f"[c{self.number}-{len(self.history) // 2}]"
        self.history.append({"role": "user", "content": f"{FILLER * self.words}{mark}"})
        for attempt in range(200):
            try:
                answer = await self.sdk.ask(
                    self.urls(),
                    self.api,
                    self.history,
                    stream=self.stream,
                )
            except FailedError as failed:
                self.failures[failed.kind] += 1
                if failed.unexpected_error:
                    self.unexpected_errors.append(f"{mark}: {failed.unexpected_error}")
                await asyncio.sleep(min(0.01 * (attempt + 1), 0.5))
            else:
                self.history.append({"role": "assistant", "content": answer})
                return
        raise AssertionError(
            f"{mark} was never answered: {dict(self.failures)} {self.unexpected_errors}"
        )

    async def send_turns(self, turns: int, pause: float, seed: int) -> None:
        chance = random.Random(f"{seed} {self.number}")  # noqa: S311 - chance, not secrecy
        for _ in range(turns):
            await asyncio.sleep(chance.uniform(0, 2 * pause))
            await self.send_turn()


class Sdk:
    """The official clients, shared by many load clients."""

    def __init__(self, timeout: float = 60, key: str = "any") -> None:
        self._key = key
        self._gpts: dict[str, openai.AsyncOpenAI] = {}
        self._claudes: dict[str, anthropic.AsyncAnthropic] = {}
        self._timeout = timeout

    async def close(self) -> None:
        for gpt in self._gpts.values():
            await gpt.close()
        for claude in self._claudes.values():
            await claude.close()

    async def ask(self, url: str, api: Api, history: list[dict[str, str]], *, stream: bool) -> str:
        """Return the complete answer, or raise `FailedError`."""
        asking = {
            "openai_chat": self._chat,
            "openai_responses": self._responses,
            "anthropic": self._messages,
        }[api]
        try:
            text, end = await asking(url, NAMES[api], list(history), stream=stream)
        except (openai.APIStatusError, anthropic.APIStatusError) as error:
            theirs = error.response.headers.get("request-id") == "req_lab"
            ours = error.status_code == 502 and "upstream" in str(error.body)
            problem = "" if theirs or ours else f"{error.status_code} {error.body}"
            raise FailedError(str(error.status_code), problem) from error
        except (openai.APIError, anthropic.APIError, httpx2.HTTPError) as error:
            raise FailedError(type(error).__name__) from error
        except (
            ValueError,
            LookupError,
            TypeError,
        ) as error:  # JSON that breaks off, an answer that says nothing
            raise FailedError("unreadable") from error
        if end not in ENDS or not text:
            raise FailedError("cut")
        return text

    async def _chat(
        self, url: str, model: str, history: Any, *, stream: bool
    ) -> tuple[str, str | None]:
        create: Any = self._gpt(url).chat.completions.create
        if not stream:
            choice = (await create(model=model, messages=history)).choices[0]
            return choice.message.content or "", choice.finish_reason
        text = ""
        end = None
        async with await create(model=model, messages=history, stream=True) as chunks:
            async for choice in (choice async for chunk in chunks for choice in chunk.choices):
                text += choice.delta.content or ""
                end = choice.finish_reason or end
        return text, end

    async def _responses(
        self, url: str, model: str, history: Any, *, stream: bool
    ) -> tuple[str, str | None]:
        create: Any = self._gpt(url).responses.create
        if not stream:
            answer = await create(model=model, input=history)
            return answer.output_text, answer.status
        text = ""
        end = None
        async with await create(model=model, input=history, stream=True) as events:
            async for event in events:
                if event.type == "response.completed":
                    text = event.response.output_text
                    end = event.response.status
        return text, end

    async def _messages(
        self, url: str, model: str, history: Any, *, stream: bool
    ) -> tuple[str, str | None]:
        create: Any = self._claude(url).messages.create
        if not stream:
            answer = await create(model=model, messages=history, max_tokens=200)
            return answer.content[0].text, answer.stop_reason
        text = ""
        end = None
        async with await create(
            model=model, messages=history, max_tokens=200, stream=True
        ) as events:
            async for event in events:
                if event.type == "content_block_delta":
                    text += event.delta.text
                elif event.type == "message_delta":
                    end = event.delta.stop_reason
        return text, end

    def _gpt(self, url: str) -> openai.AsyncOpenAI:
        if url not in self._gpts:
            self._gpts[url] = openai.AsyncOpenAI(
                base_url=f"{url}/v1",
                api_key=self._key,
                max_retries=0,
                timeout=self._timeout,
            )
        return self._gpts[url]

    def _claude(self, url: str) -> anthropic.AsyncAnthropic:
        if url not in self._claudes:
            self._claudes[url] = anthropic.AsyncAnthropic(
                base_url=url, api_key=self._key, max_retries=0, timeout=self._timeout
            )
        return self._claudes[url]
