"""Vectors of an endpoint and of this machine: in the order of the texts, bounded, and plain about what failed."""

from __future__ import annotations

import asyncio
import json

import pytest
from openai import OpenAI

from everthread.core.vectors import MOST_CHARS, packed
from everthread.errors import ModelError
from everthread.providers.embeddings import BATCH, EndpointEmbedder
from everthread.providers.local_embeddings import LocalEmbedder
from tests.providers.embedding_server import embedding_server, vector


def test_an_endpoint_gives_each_text_its_vector_in_batches() -> None:
    texts = [f"car number {number}" for number in range(BATCH + 3)]

    async def work(url: str) -> list[bytes]:
        embedder = EndpointEmbedder("embed-1", url, api_key="key-1")
        try:
            return await embedder.embed([*texts, "", "x" * 50_000])
        finally:
            await embedder.close()

    with embedding_server() as served:
        found = asyncio.run(work(served.url))
        assert found[: len(texts)] == [packed(vector(text)) for text in texts]
        assert [len(asked["input"]) for asked in served.asked] == [BATCH, 5]
        assert served.asked[0]["model"] == "embed-1"
        assert served.asked[0]["path"] == "/v1/embeddings"
        assert set(served.keys) == {"Bearer key-1"}
        assert max(len(text) for asked in served.asked for text in asked["input"]) == MOST_CHARS
        assert all(text for asked in served.asked for text in asked["input"]), "servers refuse empty texts"
        with OpenAI(base_url=served.url, api_key="x") as client:
            answer = client.embeddings.create(model="embed-1", input=["a car"], encoding_format="float")
        assert answer.data[0].embedding == vector("a car"), "the server speaks as OpenAI's client expects"


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (503, b"down for repair", "answered 503"),
        (200, b"not json", "no vectors"),
        (200, b"{}", "no vectors"),
        (200, json.dumps({"data": [{"index": 0, "embedding": []}]}).encode(), "no vectors"),
        (200, json.dumps({"data": [{"index": 3, "embedding": [1.0]}]}).encode(), "no vectors"),
        (200, json.dumps({"data": [{"index": 0, "embedding": ["x"]}]}).encode(), "no vectors"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(status: int, body: bytes, told: str) -> None:
    async def work(url: str) -> None:
        embedder = EndpointEmbedder("embed-1", url)
        try:
            await embedder.embed(["a car"])
        finally:
            await embedder.close()

    with embedding_server() as served:
        served.status, served.body = status, body
        with pytest.raises(ModelError, match=told):
            asyncio.run(work(served.url))
    with pytest.raises(ModelError, match="cannot be asked"):
        asyncio.run(work(served.url))


def test_word_vectors_of_this_machine_know_what_is_alike() -> None:
    pytest.importorskip("wordllama")
    np = pytest.importorskip("numpy")
    texts = ["The physician examined the child.", "A doctor looked at the kid.", "Compile the kernel module.", ""]
    rows = [np.frombuffer(row, dtype=np.int8).astype(float) for row in asyncio.run(LocalEmbedder().embed(texts))]
    assert {len(row) for row in rows} == {256}
    alike, unlike = (
        float(rows[0] @ rows[other] / np.linalg.norm(rows[0]) / np.linalg.norm(rows[other])) for other in (1, 2)
    )
    assert alike > 0.4 > unlike
