"""Choose the protocol of a path, and the upstream for a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal
from urllib.parse import unquote_to_bytes

from everthread.core.types import Api
from everthread.errors import InputError
from everthread.gateway.contracts import Mode
from everthread.gateway.error_answers import RequestRefused

Provider = Literal["openai", "anthropic", "gemini"]
API_BY_PATH: dict[str, Api] = {
    "/v1/chat/completions": "openai_chat",
    "/v1/responses": "openai_responses",
    "/v1/messages": "anthropic",
}
"""Paths that answer a whole conversation."""


_OWN_PATHS = frozenset({b"api", b"mcp", b"metrics", b"healthz", b"readyz"})
"""Paths that the gateway answers itself."""
_V1_PATHS = frozenset(
    b"assistants audio batches chat completions conversations embeddings files fine_tuning images messages models "
    b"moderations responses threads uploads vector_stores".split()
)
"""First parts of providers' paths below `/v1`."""
_USUAL_PATHS = frozenset(path.encode() for path in API_BY_PATH)
"""Paths that are canonical already, those of nearly every request."""


_LOGIN_PARTS = [b"backend-api", b"codex"]
"""The last parts of a base address that has no `/v1`, as for logins with ChatGPT."""


def normalize_path(raw: bytes) -> bytes:
    """Return the canonical path: single slashes, no dots, one `/v1` before a provider's own names.

    All spellings of a path become the same, so that none bypasses a check. A client's base address may lack `/v1`, have
    it twice, or end with `/backend-api/codex`.
    """
    if raw in _USUAL_PATHS:
        return raw
    parts: list[bytes] = []
    for part in raw.split(b"/"):
        decoded_part = unquote_to_bytes(part)
        if decoded_part == b"..":
            del parts[-1:]
        elif decoded_part not in (b"", b"."):
            parts.append(part)
    if parts[:2] == _LOGIN_PARTS and parts[2:3] and parts[2] in _V1_PATHS:
        del parts[:2]
    first = unquote_to_bytes(parts[0]).lower() if parts else b""
    if first in _OWN_PATHS:
        parts[0] = first
    else:
        while parts[:2] == [b"v1", b"v1"]:
            del parts[0]
        if first in _V1_PATHS:
            parts.insert(0, b"v1")
    return b"/" + b"/".join(parts) + (b"/" if parts and raw.endswith(b"/") else b"")


MAX_PATH_DECODINGS = 8
"""Maximum number of times to decode a path; a path that still changes is refused."""


def decode_path(raw: bytes) -> str:
    """Return the canonical path after decoding it until it no longer changes.

    An upstream that decodes more than once, or treats `%2f` as a slash, reads the path in this way. Raise
    `RequestRefused` if it is encoded too often.
    """
    for _ in range(MAX_PATH_DECODINGS):
        decoded = unquote_to_bytes(raw)
        if decoded == raw:
            return normalize_path(decoded).decode("utf-8", "replace")
        raw = decoded
    raise RequestRefused(
        400,
        "invalid_path",
        f"The path is percent-encoded more than {MAX_PATH_DECODINGS} times; send it once.",
    )


CHATGPT_LOGIN_PATH = "/backend-api/codex"
CHATGPT_URL = f"https://chatgpt.com{CHATGPT_LOGIN_PATH}"
CHATGPT_LOGIN_HEADER = "chatgpt-account-id"
"""A header of requests with a login with ChatGPT, which OpenAI's own API refuses."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """A provider to which the gateway forwards requests."""

    name: str
    url: str
    """The root of its address; a `/v1` or `/v1beta` at the end is ignored."""
    models: tuple[str, ...] = ()
    """Patterns of model names, such as `claude-*`. The first upstream with a matching pattern gets the request."""
    provider: Provider | None = None
    """The provider of its protocol, for requests that match no pattern, or None for any."""
    api_key: str | None = None
    """Replaces the client's credential."""
    mode: Mode = "managed"

    @property
    def root_url(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1").removesuffix("/v1beta")

    @property
    def serves_chatgpt_logins(self) -> bool:
        """Whether it is the server for logins with ChatGPT, whose paths have no `/v1`."""
        return self.url.endswith(CHATGPT_LOGIN_PATH)

    def adapt_target(self, target: bytes) -> bytes:
        """Return path and query in the form that this provider expects."""
        return target.removeprefix(b"/v1") if self.serves_chatgpt_logins else target


class Routes:
    """Chooses an upstream for each request."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        if not upstreams:
            raise InputError(
                "the gateway has no upstream; name one with --upstream NAME=URL or under gateway.upstreams"
            )
        self.upstreams = tuple(upstreams)
        self.mode: Mode = (
            upstreams[0].mode if len({upstream.mode for upstream in upstreams}) == 1 else "managed"
        )
        """The mode of all upstreams; `managed` if they differ."""
        login_upstreams = [each for each in upstreams if each.serves_chatgpt_logins]
        key_upstreams = [each for each in upstreams if not each.serves_chatgpt_logins]
        self._login_upstreams = login_upstreams or self.upstreams
        self._key_upstreams = key_upstreams or self.upstreams

    @property
    def has_several(self) -> bool:
        return len(self.upstreams) > 1

    def choose(
        self, model: str | None, provider: Provider, *, has_chatgpt_login: bool = False
    ) -> Upstream:
        """Choose the upstream by the model's name, or else by the protocol, or else the first one.

        `has_chatgpt_login`: whether the request has a login with ChatGPT, which only some upstreams serve.
        """
        upstreams = self._login_upstreams if has_chatgpt_login else self._key_upstreams
        if model:
            for upstream in upstreams:
                if any(fnmatchcase(model.lower(), pattern.lower()) for pattern in upstream.models):
                    return upstream
        fitting = (upstream for upstream in upstreams if upstream.provider in (None, provider))
        return next(fitting, upstreams[0])


def find_provider(api: Api) -> Provider:
    return _PROVIDERS.get(api, "openai")


_PROVIDERS: dict[Api, Provider] = {"anthropic": "anthropic", "gemini": "gemini"}
