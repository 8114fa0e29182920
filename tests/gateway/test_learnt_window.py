"""A window that one process learnt from a refusal holds for the next process on the same home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread.lab.provider import Provider, ServedModel
from tests.gateway.gateway_setup import FILLER
from tests.torture.fleet import Fleet

MODEL = "house-model"
WINDOW = 8_000


async def say(url: str, messages: list[Any], text: str, token: str) -> None:
    messages.append({"role": "user", "content": text})
    async with httpx2.AsyncClient(timeout=60) as http:
        answer = await http.post(
            f"{url}/v1/chat/completions",
            json={"model": MODEL, "messages": messages},
            headers={"authorization": f"Bearer {token}"},
        )
    assert answer.status_code == 200, answer.text
    messages.append(answer.json()["choices"][0]["message"])


@pytest.mark.parametrize("dialect", ["openai", "bedrock", "xai"])
async def test_the_next_process_is_not_refused_again(dialect: str, tmp_path: Path) -> None:
    """Stated by the provider, found by stepping down, and stated with a code that is a sentence."""
    home = tmp_path / "home"
    home.mkdir()
    messages: list[Any] = []
    async with Provider([ServedModel(MODEL, WINDOW, dialect)], lambda _: "Noted.") as provider:
        fleet = Fleet(home, "--upstream", f"lab={provider.url}")
        for token in ("first", "renewed"):
            before = len(provider.log)
            url = await fleet.start()
            for page in range(6):
                await say(
                    url,
                    messages,
                    text=f"Page {page}. {FILLER * 100}",
                    token=token,
                )
            refused = [record for record in provider.log[before:] if record.status == 400]
            assert bool(refused) == (token == "first")
            await fleet.close()
            fleet.processes.clear()
