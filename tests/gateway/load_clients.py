"""Many clients at once before a provider with faults, and what must be true of provider, clients and store after it."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx2
import openai

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import text_of
from everthread.core.types import Api, Request
from everthread.lab.provider import ServedModel
from everthread.lab.provider.answers import Record
from everthread.lab.provider.faults import ANSWERED_FAULTS, FaultKind, FaultPlan
from everthread.store.store import Store

APIS: tuple[Api, ...] = ("openai_chat", "openai_responses", "anthropic")
NAMES: dict[Api, str] = {
    "openai_chat": "gpt-4o",
    "openai_responses": "gpt-5",
    "anthropic": "claude-sonnet-5",
}
FILLER = "the ledger of the northern branch was settled and every entry was compared twice with its receipt. "
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

    def __call__(self, request: Request) -> str:
        self.count += 1
        return f"Answer {self.count} to {mark_of(request)}. It is entered in the book of the branch, on its own line."


def mark_of(request: Request) -> str:
    found = MARK.findall(text_of(request.messages[-1]))
    return str(found[-1]) if found else "nobody"


class FailedError(Exception):
    """An attempt without a whole answer; `problem` names the source of its words unless that is the provider."""

    def __init__(self, kind: str, problem: str = "") -> None:
        super().__init__(kind, problem)
        self.kind = kind
        self.unexpected_error = problem


@dataclass
class LoadClient:
    """One client: it sends its whole history each time, and again until there is a whole answer."""

    number: int
    urls: Callable[[], str]
    """Where to, asked for each attempt."""
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
                answer = await self.sdk.ask(self.urls(), self.api, self.history, stream=self.stream)
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
    """The official clients, which many talkers share."""

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
        """A whole answer, else `FailedError`."""
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


# What must be true afterwards


def list_fail_open_metrics(metrics: str) -> list[str]:
    """Decisions that failed. A header not known in time (`tells`) does not count: it depends on the machine."""
    lines = [
        line for line in metrics.splitlines() if line.startswith("everthread_failed_open_total{")
    ]
    return [line for line in lines if 'step="tells"' not in line]


def is_complete(record: Record) -> bool:
    """Whether the provider said all it had to say."""
    said = record.status == 200 and not record.error and "gone" not in record.events
    return said and (not record.fault or record.fault in ANSWERED_FAULTS)


def find_wrong_requests(log: Iterable[Record]) -> list[tuple[int, str]]:
    """Return requests that the provider refused without a planned fault."""
    return [(record.number, record.error) for record in log if record.error and not record.fault]


def find_foreign_answers(log: Iterable[Record], clients: Iterable[LoadClient]) -> list[str]:
    """Return answers that a client kept but never received."""
    said = {
        (mark_of(record.request), text_of(record.reply.message))
        for record in log
        if record.request and record.reply
    }
    return [
        answer["content"]
        for talker in clients
        for asked, answer in zip(talker.history[::2], talker.history[1::2], strict=True)
        if (MARK.findall(asked["content"])[-1], answer["content"]) not in said
    ]


History = list[tuple[str, str]]
Threads = dict[str, History]


async def load_histories(store: Store) -> Threads:
    """Return the stored messages, by thread."""
    found: Threads = {}
    while rows := await store.list_threads(limit=100, offset=len(found)):
        for row in rows:
            stored = await store.history(row.first.id)
            found[row.first.thread] = [(item.body["role"], text_of(item.body)) for item in stored]
    return found


async def find_problems(
    store: Store,
    log: Sequence[Record],
    clients: Sequence[LoadClient],
    *,
    allows_unread_answers: bool = False,
    max_lost_usages: int = 0,
) -> dict[str, list[Any]]:
    """What is wrong, by kind; `ends`: answers that no client got may be in the store, at the end of a thread each;
    `lost`: of so many calls the usage may be missing, because who would have stored it was killed."""
    threads = await load_histories(store)
    found: dict[str, list[Any]] = {
        "wrong requests": [*find_wrong_requests(log)],
        "answers of others": [*find_foreign_answers(log, clients)],
        "errors of ours": [problem for talker in clients for problem in talker.unexpected_errors],
        "histories": find_differing_histories(threads, clients, ends=allows_unread_answers),
        "usage": await _usage(store, threads, log, max_lost_usages),
        "store": list((await store.check()).problems),
    }
    return {kind: some for kind, some in found.items() if some}


async def count_compactions(store: Store) -> int:
    return sum([len(await store.compactions(thread)) for thread in await load_histories(store)])


def find_differing_histories(
    threads: Threads, talkers: Iterable[LoadClient], *, ends: bool
) -> list[Any]:
    """Clients of which the store has not each message once, in one thread."""
    by_client: dict[str, list[History]] = {}
    for history in threads.values():
        by_client.setdefault(MARK.findall(history[0][1])[-1], []).append(history)
    differing: list[Any] = []
    for talker in talkers:
        wanted = [(message["role"], message["content"]) for message in talker.history]
        stored = by_client.pop(f"[c{talker.number}-0]", [])
        others = [history for history in stored if history != wanted]
        if ends:
            others = [history for history in others if history[:-1] != wanted[: len(history) - 1]]
        if others or stored.count(wanted) != 1:
            differing.append(
                (
                    talker.number,
                    talker.api,
                    len(wanted),
                    [_comparable(history) for history in stored],
                )
            )
    return [*differing, *by_client.items()]


def _comparable(history: History) -> list[str]:
    return [f"{role} {''.join(MARK.findall(text)[-1:])}" for role, text in history]


async def _usage(store: Store, threads: Threads, log: Sequence[Record], lost: int) -> list[Any]:
    """Calls that are in the provider's log or in the store only. A broken answer counts as far as it was sent."""
    rows = [row for thread in threads for row in await store.usage(thread) if row.task == "main"]
    told = Counter(_figures(row.usage) for row in rows if not row.estimated)
    said = Counter(
        _figures(record.canonical_usage) for record in log if is_complete(record) and record.usage
    )
    broken = Counter(
        record.prompt_tokens for record in log if not is_complete(record) or not record.usage
    )
    surplus = Counter(sum(figures) - figures[1] for figures in (told - said).elements())
    guessed = sum(1 for row in rows if row.estimated)
    missing = said - told
    wrong: list[Any] = [
        *(missing.items() if missing.total() > lost else ()),
        *(surplus - broken).items(),
    ]
    return [*wrong, f"{guessed} estimates"] if guessed > broken.total() else wrong


def _figures(usage: CanonicalUsage) -> tuple[int, int, int, int]:
    return (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
    )
