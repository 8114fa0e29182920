"""Changes and counts on the pages of proxied threads: undone compactions and failures that were passed through."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx2
import pytest

from everthread.errors import NothingToUndoError
from everthread.gateway.monitoring.event_reports import REFUSED
from everthread.store.records import NewCompaction
from everthread.store.rewrite_records import (
    ContextEntry,
    NewRewrite,
    ProxiedContext,
    Rewrite,
)
from tests.gateway.dashboard_setup import SUMMARY, make_thread, open_dashboard
from tests.gateway.gateway_setup import open_gateways
from tests.gateway.proxied_conversation import FACT, open_conversation


async def test_sends_the_full_history_after_undo_until_the_next_compaction(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    async with open_conversation(tmp_path, "openai_chat", streams=False) as conversation:
        await conversation.send_until_compacted()
        [row] = await conversation.gateways.store.list_threads()
        thread = row.first.id
        answer = await http.post(f"{conversation.url}/api/threads/{thread}/undo", json={})
        assert answer.status_code == 200, answer.text
        [receipt] = (await http.get(f"{conversation.url}/api/threads/{thread}/compactions")).json()[
            "items"
        ]
        assert receipt["tokens_before"] > receipt["tokens_after"] > 0
        assert receipt["messages"] > 0
        assert receipt["reverted"]
        assert "was undone" in answer.json()["text"]
        for question in ("And now?", "And then?"):
            await conversation.ask(question)
            assert conversation.messages_sent() == [
                _as_parts(message) for message in conversation.client.body()["messages"][:-1]
            ]
            assert conversation.response_headers["x-everthread-compactions"] == "0"
            assert FACT in json.dumps(conversation.body_sent())
        second_undo = await http.post(f"{conversation.url}/api/threads/{thread}/undo", json={})
        assert second_undo.status_code >= 400, "there is nothing left to take back"
        records = await conversation.gateways.store.list_compactions(thread)
        assert [record.reverted_at is not None for record in records] == [True]
        await conversation.ask(
            f"Much more: {'the ledger was settled and compared with its receipt. ' * 400}"
        )
        await conversation.ask("And at last?")
        assert conversation.response_headers["x-everthread-compactions"] == "1", (
            "it has grown, and another one is due"
        )


def _as_parts(message: dict[str, object]) -> dict[str, object]:
    content = message.get("content")
    return (
        {
            **message,
            "content": [{"type": "text", "text": content}],
        }
        if isinstance(content, str)
        else message
    )


async def test_stores_and_shows_failures_that_were_passed_through(
    tmp_path: Path,
) -> None:
    async with open_gateways(tmp_path) as gateways, httpx2.AsyncClient(timeout=60) as http:
        url = await gateways.start("none", key=None)
        body = {
            "model": "nobody-knows-it",
            "messages": [{"role": "user", "content": "hi"}],
        }
        response = await http.post(f"{url}/v1/chat/completions", json=body)
        assert response.status_code == 404
        while not await gateways.store.state.sum_failures():  # noqa: ASYNC110 - stored behind the answer
            await asyncio.sleep(0.05)
        failures = await gateways.store.state.sum_failures(tenant="default")
        assert failures == [(REFUSED, 1)]
    async with open_dashboard(tmp_path) as dashboard:
        await dashboard.store.state.add_failures({("default", "", REFUSED): 3})
        logged_in_browser = await dashboard.browser().log_in()
        page = await logged_in_browser.get("/dashboard/overview?days=1")
        assert "an upstream answered with an error" in page.visible_text


async def test_undoes_a_compaction_from_its_page(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        thread = await make_thread(dashboard.store, turns=4)
        history_before = await dashboard.store.load_history(thread)
        first = Rewrite(
            "default",
            "chat compressor",
            digest="digest",
            strength=0,
            replaced_count=8,
            loose_digest="loose",
            results="",
            thread=thread,
            replacement=b'{"role":"user"}',
        )
        new_compaction = NewCompaction(tokens_before=900, tokens_after=300, summary=SUMMARY)
        summary = ContextEntry(None, {"role": "user", "content": SUMMARY})
        context = ProxiedContext(
            [summary],
            range(len(history_before)),
            own_roles=["user"] * len(history_before),
            inherited_count=0,
        )
        compaction = NewRewrite(
            first,
            new_compaction,
            context,
            scope="",
            digest="",
        )
        await dashboard.store.client_histories.commit_rewrite(compaction)
        [record] = await dashboard.store.list_compactions(thread)
        logged_in_browser = await dashboard.browser().log_in()
        page = await logged_in_browser.get(f"/dashboard/threads/{thread}/compactions/{record.id}")
        response = await logged_in_browser.post(
            f"/dashboard/threads/{thread}/undo", page.form("/undo")
        )
        assert response.status == 303
        response = await logged_in_browser.get(f"/dashboard/threads/{thread}")
        assert "undone" in response.visible_text
        matches, *_ = await dashboard.store.client_histories.match_rewrites(
            "default",
            ["chat compressor"],
            digests=["digest"],
            loose_digests=["loose"] * len(history_before),
        )
        assert matches == [([], [])]
        history = await dashboard.store.load_history(thread)
        ids = [one.id for one in history]
        assert ids == [one.id for one in history_before]
        undone_page = await logged_in_browser.get(
            f"/dashboard/threads/{thread}/compactions/{record.id}"
        )
        assert "undone" in undone_page.visible_text, "it can still be read"
        await dashboard.store.client_histories.commit_rewrite(compaction)
        await dashboard.store.undo(thread)
        with pytest.raises(NothingToUndoError):
            await dashboard.store.undo(thread)
