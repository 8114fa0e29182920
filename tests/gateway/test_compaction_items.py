"""Compaction items of the Responses protocol: passed through, or made here and expanded when they return."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread.gateway.compaction_items import (
    asks_for_compaction,
    expand_items,
    make_item,
    read_item,
)
from everthread.lab.provider import Provider, ServedModel
from everthread.wire.sse import SseParser
from tests.gateway.gateway_setup import Gateways, open_gateways
from tests.gateway.manager_setup import numbered_text, text_of_tokens

KEY = b"secret"
TRIGGER = {"type": "compaction_trigger"}
FACT = "The harbour master's boat is called Wilhelmina."


def history() -> list[Any]:
    """More than half of a window of 8,000 tokens."""
    items: list[Any] = [
        {"role": "user", "content": FACT},
        {"role": "assistant", "content": "Noted."},
    ]
    for turn in range(8):
        items.append(
            {
                "role": "user",
                "content": numbered_text(turn, 600, "ledger"),
            }
        )
        items.append({"role": "assistant", "content": f"Noted {turn}."})
    return items


@asynccontextmanager
async def open_served(
    folder: Path, *, compacts: bool
) -> AsyncIterator[tuple[Gateways, str, httpx2.AsyncClient]]:
    models = [
        ServedModel(
            "gpt-5",
            16_000,
            shows="max_model_len",
            compacts=compacts,
        )
    ]
    async with (
        open_gateways(folder) as gateways,
        Provider(models) as provider,
        httpx2.AsyncClient(timeout=120) as http,
    ):
        gateways.provider = provider
        yield gateways, await gateways.start("none", key=None), http


async def test_passes_an_upstreams_compaction_item_through(tmp_path: Path) -> None:
    async with open_served(tmp_path, compacts=True) as (gateways, url, http):
        request_body = {"model": "gpt-5", "input": [*history(), TRIGGER]}
        answer = await http.post(f"{url}/v1/responses", json=request_body)
        assert answer.headers["x-everthread-notice"] == "passed on unmanaged: compaction_trigger"
        [item] = answer.json()["output"]
        assert gateways.provider.log[-1].body == request_body
        at_path = await http.post(
            f"{url}/v1/responses/compact", json={"model": "gpt-5", "input": history()}
        )
        assert at_path.json()["id"].startswith("resp_lab")
        thread = answer.headers["x-everthread-thread"]
        while len(await gateways.store.usage.list_usage(thread)) < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # recorded after the client has the answer
        more = {
            "model": "gpt-5",
            "input": [item, {"role": "user", "content": "Go on"}],
        }
        following = await http.post(f"{url}/v1/responses", json=more)
        assert following.headers["x-everthread-thread"] == thread
        sent = gateways.provider.log[-1].body
        assert sent["input"] == more["input"]
        names = [tool["name"] for tool in sent["tools"]]
        assert names == ["recall"], "the model can look up what the item replaces"


@pytest.mark.parametrize("way", ["whole", "stream", "path"])
async def test_makes_and_expands_compaction_items_for_other_upstreams(
    way: str, tmp_path: Path
) -> None:
    async with open_served(tmp_path, compacts=False) as (gateways, url, http):
        if way == "path":
            answer = await http.post(
                f"{url}/v1/responses/compact",
                json={"model": "gpt-5", "input": history()},
            )
        else:
            body = {
                "model": "gpt-5",
                "input": [*history(), TRIGGER],
                "stream": way == "stream",
            }
            answer = await http.post(f"{url}/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        if way == "stream":
            events = [json.loads(event.data) for event in SseParser().feed(answer.content)]
            sequence_numbers = [event["sequence_number"] for event in events]
            assert sequence_numbers == list(range(len(events)))
            response = events[-1]["response"]
        else:
            response = answer.json()
        [item] = response["output"]
        assert item["type"] == "compaction"
        thread = (await gateways.store.list_threads())[0].first.id
        next_body: Any = {
            "model": "gpt-5",
            "input": [item, {"role": "user", "content": "What is the boat called?"}],
        }
        following = await http.post(f"{url}/v1/responses", json=next_body)
        assert following.status_code == 200, following.text
        sent = gateways.provider.log[-1].body["input"]
        assert "everthread1." not in json.dumps(sent)
        assert following.headers["x-everthread-thread"] == thread
        assert FACT in json.dumps(sent), "the first words of the user stay"
        assert sent[-1] == next_body["input"][-1]
        assert len(sent) < len(history())
        next_body["input"] += [
            *following.json()["output"],
            {"role": "user", "content": "Thanks"},
        ]
        last = await http.post(f"{url}/v1/responses", json=next_body)
        assert gateways.provider.log[-1].body["input"][: len(sent)] == sent, "the same each time"
        assert last.headers["x-everthread-thread"] == following.headers["x-everthread-thread"]


@pytest.mark.parametrize("path", ["/v1/responses", "/backend-api/codex/responses"])
async def test_codex_keeps_its_thread_through_compactions_made_here(
    path: str, tmp_path: Path
) -> None:
    """Codex keeps its instructions and the user's messages, and puts the item after them."""
    async with open_served(tmp_path, compacts=False) as (gateways, url, http):
        developer = {
            "type": "message",
            "role": "developer",
            "content": text_of_tokens(400, "rules"),
        }
        task = {
            "type": "message",
            "role": "user",
            "content": FACT,
        }
        messages: list[Any] = []
        threads = set()

        async def ask(*more: Any) -> Any:
            body = {"model": "gpt-5", "input": [developer, task, *messages, *more]}
            headers = {"session_id": "codex-1", "user-agent": "codex_exec/0.166"}
            answer = await http.post(f"{url}{path}", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            return answer

        for _ in range(3):
            for turn in range(5):
                answer = await ask()
                threads.add(answer.headers["x-everthread-thread"])
                messages += answer.json()["output"]
                text = f"Ledger {turn}: {text_of_tokens(400, f'ledger {turn} {len(threads)}')}"
                messages.append(
                    {
                        "type": "message",
                        "role": "user",
                        "content": text,
                    }
                )
            [item] = (await ask(TRIGGER)).json()["output"]
            messages = [item]
        messages.append(
            {
                "type": "message",
                "role": "user",
                "content": "The end.",
            }
        )
        threads.add((await ask()).headers["x-everthread-thread"])
        sent = gateways.provider.log[-1].body["input"]
        assert [one for one in sent if one.get("role") == "developer"] == [developer]
        assert [one.get("content") for one in sent].count(FACT) == 1
        assert len(threads) == 1
        [row] = await gateways.store.list_threads()
        assert row.compaction_count == 3


def test_leaves_an_item_of_another_maker_unchanged() -> None:
    values = [{"role": "user", "content": "hi"}]
    item = make_item(values, KEY)
    assert read_item(item, KEY) == values
    assert read_item(item, b"other") is None
    assert read_item({"type": "compaction", "encrypted_content": "gAAAA"}, KEY) is None
    assert read_item({"type": "compaction"}, KEY) is None
    forged = {**item, "encrypted_content": "everthread1.ä.x"}
    assert read_item(forged, KEY) is None
    body = {
        "input": [forged, item, {"role": "user", "content": "x"}],
    }
    expanded = expand_items(json.dumps(body).encode(), KEY)
    assert expanded is not None
    assert json.loads(expanded.body)["input"] == [
        forged,
        *values,
        {"role": "user", "content": "x"},
    ]
    assert expanded.end == 2
    item = make_item([*values, {"role": "user", "content": "more"}], KEY)
    kept = {
        "input": [*values, item, {"role": "user", "content": "x"}],
    }
    expanded = expand_items(json.dumps(kept).encode(), KEY)
    assert expanded is not None
    contents = [one["content"] for one in json.loads(expanded.body)["input"]]
    assert contents == ["hi", "more", "x"], "what the client keeps is not repeated"
    assert expand_items(json.dumps({"input": [forged]}).encode(), KEY) is None
    assert not asks_for_compaction(
        json.dumps(
            {
                "input": [TRIGGER, {"role": "user", "content": "x"}],
            }
        ).encode()
    )
    assert not asks_for_compaction(b'{"input": "compaction_trigger"}')
