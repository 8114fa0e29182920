"""A disk without room: requests go through, and the metrics, `/readyz` and the answers say what is not stored."""

from __future__ import annotations

import asyncio
import json
import resource
from pathlib import Path

import httpx2

from everthread import open_store
from everthread.gateway.contracts import THREAD_HEADER
from tests.apis import CHAT_PATH
from tests.gateway.raw_http import JSON, open_raw_upstream
from tests.gateway.raw_http import fixed_answer as give
from tests.store.messages import texts_of
from tests.torture.fleet import Fleet

ANSWER = json.dumps(
    {
        "id": "c1",
        "object": "chat.completion",
        "model": "gpt-4o",
        "created": 1,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "yes"},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 1,
            "total_tokens": 10,
        },
    }
).encode()


def set_room(process: int, largest: int) -> None:
    """Limit the process's files to this many bytes: every write to the store fails, as on a full disk."""
    _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (largest, hard))


def count_failures(metrics: str) -> float:
    lines = [
        line for line in metrics.splitlines() if line.startswith("everthread_failed_open_total")
    ]
    return sum(float(line.split()[-1]) for line in lines)


async def until_ready(http: httpx2.AsyncClient, trouble: str | None) -> None:
    """Until `/readyz` says so: a busy machine may not answer in time, which it says too."""
    while True:
        ready = await http.get("/readyz")
        assert ready.status_code == (200 if ready.json()["status"] == "ok" else 503)
        if ready.json().get("reason") == trouble:
            return


async def until_stored(home: Path, thread: str, texts: list[str]) -> None:
    """Until the store holds it: an answer is written down after the client has it."""
    store = open_store(home / "everthread.db")
    try:
        while texts_of(await store.load_history(thread)) != texts:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)
    finally:
        await store.close()


async def test_reports_requests_that_a_full_disk_did_not_store(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    async with open_raw_upstream(give(200, JSON, ANSWER)) as upstream:
        fleet = Fleet(home, "--upstream", f"lab={upstream.url}")
        url = await fleet.start()
        process = fleet.processes[0][0].pid

        async def ask(text: str) -> httpx2.Response:
            body = {
                "model": "gpt-4o",
                "messages": [{"role": "user", "content": text}],
            }
            answer = await http.post(CHAT_PATH, json=body)
            assert answer.status_code == 200
            assert answer.content == ANSWER
            return answer

        async with httpx2.AsyncClient(base_url=url, timeout=60) as http:
            before = (await ask("stored")).headers[THREAD_HEADER]
            await until_ready(http, None)
            response = await http.get("/metrics")
            assert count_failures(response.text) == 0
            await until_stored(home, before, ["stored", "yes"])
            set_room(process, 1)
            for number in range(3):
                assert THREAD_HEADER not in (await ask(f"lost {number}")).headers, (
                    "it was never stored"
                )
            await until_ready(http, "the store takes nothing")
            body = {
                "model": "gpt-4o",
                "messages": [{"role": "user", "content": "lost too"}],
            }
            response = await http.post("/v1/compact", json=body)
            assert response.status_code == 503
            while count_failures((await http.get("/metrics")).text) < 3:  # noqa: ASYNC110 - counted after the answers
                await asyncio.sleep(0.05)
            set_room(process, resource.RLIM_INFINITY)
            await until_ready(http, None)
            after = (await ask("stored again")).headers[THREAD_HEADER]
        await fleet.close()
    store = open_store(home / "everthread.db")
    try:
        check = await store.check()
        assert check.problems == ()
        statuses = {
            row.first.id: texts_of(await store.load_history(row.first.id))
            for row in await store.list_threads()
        }
    finally:
        await store.close()
    assert statuses == {before: ["stored", "yes"], after: ["stored again", "yes"]}
