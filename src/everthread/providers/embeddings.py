"""Vectors of texts from an endpoint: OpenAI's `/v1/embeddings`, which most servers of models have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everthread.core.vectors import MOST_CHARS, packed
from everthread.errors import InputError, ModelError
from everthread.providers.openai_chat import NO_KEY

if TYPE_CHECKING:
    import httpx2

BATCH = 64
SECONDS = 10.0
"""A call that waits for it should not wait long: recall goes on without."""
EMPTY = "(empty)"
"""Servers refuse a text without a character."""


class EndpointEmbedder:
    """One embedding model at one address."""

    def __init__(self, model: str, base_url: str, *, api_key: str | None = None, seconds: float = SECONDS) -> None:
        self.name = model
        self.base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._seconds = seconds
        self._client: httpx2.AsyncClient | None = None

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        found: list[bytes] = []
        for start in range(0, len(texts), BATCH):
            found += await self._ask([text[:MOST_CHARS].strip() or EMPTY for text in texts[start : start + BATCH]])
        return found

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _ask(self, texts: list[str]) -> list[bytes]:
        import httpx2  # noqa: PLC0415 - loaded only when somebody is asked

        if self._client is None:
            headers = {"authorization": f"Bearer {self._api_key or NO_KEY}"}
            self._client = httpx2.AsyncClient(timeout=self._seconds, headers=headers)
        url = f"{self.base_url}/embeddings"
        try:
            response = await self._client.post(
                url, json={"model": self.name, "input": texts, "encoding_format": "float"}
            )
            response.raise_for_status()
            return _vectors(response.json(), len(texts))
        except httpx2.HTTPStatusError as error:
            status, said = error.response.status_code, error.response.text[:200]
            raise ModelError(f"{url} answered {status} for the model {self.name!r}: {said}") from error
        except httpx2.HTTPError as error:
            raise ModelError(f"{url} cannot be asked for vectors: {type(error).__name__}: {error}") from error
        except (ValueError, TypeError, KeyError, InputError) as error:
            raise ModelError(f"{url} gave no vectors for {len(texts)} texts that could be read: {error}") from error


def _vectors(body: Any, count: int) -> list[bytes]:
    """In the order of the texts: `index` tells it."""
    rows = sorted(body["data"], key=lambda row: int(row["index"]))
    if [int(row["index"]) for row in rows] != list(range(count)):
        raise ValueError(f"{len(rows)} came")
    return [packed([float(number) for number in row["embedding"]]) for row in rows]
