"""Schemathesis on the native API: no request that its document allows, or forbids, gets a 500."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.peers import PeerAbsentError, create_environment
from everthread.lab.provider import Provider, ServedModel
from tests.torture.fleet import Fleet

pytestmark = pytest.mark.timeout(1_800)
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


async def test_native_api_matches_its_document(tmp_path: Path) -> None:
    try:
        python = await asyncio.to_thread(create_environment, "schemathesis")
    except PeerAbsentError as error:
        pytest.skip(f"schemathesis cannot be installed here: {error}")
    home = tmp_path / "home"
    home.mkdir()
    async with Provider([ServedModel("gpt-4o", 60_000)]) as provider:
        (home / "config.yaml").write_text(
            f"model: {{default: gpt-4o, provider: custom, base_url: '{provider.url}/v1', context_length: 60000}}\n"
        )
        fleet = Fleet(home)
        url = await fleet.start()
        try:
            process = await asyncio.create_subprocess_exec(
                str(python.parent / "schemathesis"),
                "run",
                f"{url}/api/openapi.json",
                "--checks",
                CHECKS,
                "--max-examples",
                "40",
                "--seed",
                "7",
                "--request-timeout",
                "60",
                "--phases",
                "examples,coverage,fuzzing",
                cwd=tmp_path,
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await process.communicate()
        finally:
            await fleet.close()
    assert process.returncode == 0, out.decode()[-6_000:]
    print(out.decode()[-1_200:])
