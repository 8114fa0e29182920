"""What must be true of provider, clients and store after a load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import text_of
from everthread.lab.provider.answers import RequestRecord
from everthread.lab.provider.faults import ANSWERED_FAULTS
from everthread.store.store import Store
from tests.gateway.load_clients import MARK, LoadClient, mark_of


def list_fail_open_metrics(metrics: str) -> list[str]:
    """Return the counts of decisions that failed.

    A header not known in time (`tells`) does not count: it depends on the machine.
    """
    lines = [
        line for line in metrics.splitlines() if line.startswith("everthread_failed_open_total{")
    ]
    return [line for line in lines if 'step="tells"' not in line]


def is_complete(record: RequestRecord) -> bool:
    """Return whether the provider sent its whole answer."""
    is_answered = record.status == 200 and not record.error and "gone" not in record.events
    return is_answered and (not record.fault or record.fault in ANSWERED_FAULTS)


def find_wrong_requests(log: Iterable[RequestRecord]) -> list[tuple[int, str]]:
    """Return requests that the provider refused without a planned fault."""
    return [(record.number, record.error) for record in log if record.error and not record.fault]


def find_foreign_answers(log: Iterable[RequestRecord], clients: Iterable[LoadClient]) -> list[str]:
    """Return answers that a client kept but never received."""
    given_answers = {
        (mark_of(record.request), text_of(record.reply.message))
        for record in log
        if record.request and record.reply
    }
    return [
        answer["content"]
        for client in clients
        for question, answer in zip(client.history[::2], client.history[1::2], strict=True)
        if (MARK.findall(question["content"])[-1], answer["content"]) not in given_answers
    ]


History = list[tuple[str, str]]
Threads = dict[str, History]


async def load_histories(store: Store) -> Threads:
    """Return the stored messages, by thread."""
    histories: Threads = {}
    while rows := await store.list_threads(limit=100, offset=len(histories)):
        for row in rows:
            stored = await store.load_history(row.first.id)
            histories[row.first.thread] = [
                (item.body["role"], text_of(item.body)) for item in stored
            ]
    return histories


async def find_problems(
    store: Store,
    log: Sequence[RequestRecord],
    clients: Sequence[LoadClient],
    *,
    allows_unread_answers: bool = False,
    max_lost_usages: int = 0,
) -> dict[str, list[Any]]:
    """Return what is wrong, by kind.

    `allows_unread_answers`: a thread may end with an answer that no client received.
    `max_lost_usages`: how many calls may lack their usage, because the gateway that would have stored it was killed.
    """
    threads = await load_histories(store)
    check = await store.check()
    by_kind: dict[str, list[Any]] = {
        "wrong requests": [*find_wrong_requests(log)],
        "answers of others": [*find_foreign_answers(log, clients)],
        "errors of ours": [error for client in clients for error in client.unexpected_errors],
        "histories": find_differing_histories(
            threads,
            clients,
            allows_unread_answers=allows_unread_answers,
        ),
        "usage": await find_differing_usage(
            store,
            threads,
            log=log,
            max_lost=max_lost_usages,
        ),
        "store": list(check.problems),
    }
    return {kind: problems for kind, problems in by_kind.items() if problems}


async def count_compactions(store: Store) -> int:
    count = 0
    for thread in await load_histories(store):
        count += len(await store.list_compactions(thread))
    return count


def find_differing_histories(
    threads: Threads, clients: Iterable[LoadClient], *, allows_unread_answers: bool
) -> list[Any]:
    """Return the clients whose messages are not each stored once, in one thread."""
    by_client: dict[str, list[History]] = {}
    for history in threads.values():
        by_client.setdefault(MARK.findall(history[0][1])[-1], []).append(history)
    differing: list[Any] = []
    for client in clients:
        expected = [(message["role"], message["content"]) for message in client.history]
        stored = by_client.pop(f"[c{client.number}-0]", [])
        others = [history for history in stored if history != expected]
        if allows_unread_answers:
            others = [history for history in others if history[:-1] != expected[: len(history) - 1]]
        if others or stored.count(expected) != 1:
            differing.append(
                (
                    client.number,
                    client.api,
                    len(expected),
                    [_comparable(history) for history in stored],
                )
            )
    return [*differing, *by_client.items()]


def _comparable(history: History) -> list[str]:
    return [f"{role} {''.join(MARK.findall(text)[-1:])}" for role, text in history]


async def find_differing_usage(
    store: Store,
    threads: Threads,
    log: Sequence[RequestRecord],
    max_lost: int,
) -> list[Any]:
    """Return calls that only the provider's log or only the store has.

    A broken answer counts as far as it was sent.
    """
    rows = [
        row
        for thread in threads
        for row in await store.usage.list_usage(thread)
        if row.task == "main"
    ]
    stored_calls = Counter(_figures(row.usage) for row in rows if not row.estimated)
    complete_calls = Counter(
        _figures(record.canonical_usage) for record in log if is_complete(record) and record.usage
    )
    broken_prompts = Counter(
        record.prompt_tokens for record in log if not is_complete(record) or not record.usage
    )
    unexpected_prompts = Counter(
        sum(figures) - figures[1] for figures in (stored_calls - complete_calls).elements()
    )
    estimate_count = sum(1 for row in rows if row.estimated)
    missing = complete_calls - stored_calls
    wrong: list[Any] = []
    if missing.total() > max_lost:
        wrong += missing.items()
    wrong += (unexpected_prompts - broken_prompts).items()
    if estimate_count > broken_prompts.total():
        wrong.append(f"{estimate_count} estimates")
    return wrong


def _figures(usage: CanonicalUsage) -> tuple[int, int, int, int]:
    return (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
    )
