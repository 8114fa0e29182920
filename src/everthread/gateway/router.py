"""Which paths are a protocol's, and which upstream a model's requests go to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal
from urllib.parse import unquote_to_bytes

from everthread.core.types import Api
from everthread.errors import InputError
from everthread.gateway.base import Mode

Family = Literal["openai", "anthropic"]
PATHS: dict[str, Api] = {
    "/v1/chat/completions": "openai_chat",
    "/v1/responses": "openai_responses",
    "/v1/messages": "anthropic",
}
"""Where a conversation is sent, whole, to be answered."""


_OWN = frozenset({b"api", b"mcp", b"metrics", b"healthz", b"readyz"})
"""Where the gateway answers itself."""
_V1 = frozenset(
    b"assistants audio batches chat completions conversations embeddings files fine_tuning images messages models "
    b"moderations responses threads uploads vector_stores".split()
)
"""Where a provider's paths begin below `/v1`."""
_USUAL_PATHS = frozenset(path.encode() for path in PATHS)
"""Nothing is to be done for the paths of nearly every request."""


def normalize_path(raw: bytes) -> bytes:
    """The path as it is meant: one slash at a time, no dots, one `/v1` before a provider's own names.

    Two spellings of a path are one path, so that none goes around a check; clients whose base address lacks `/v1`, or
    has it twice, are understood.
    """
    if raw in _USUAL_PATHS:
        return raw
    parts: list[bytes] = []
    for part in raw.split(b"/"):
        plain = unquote_to_bytes(part)
        if plain == b"..":
            del parts[-1:]
        elif plain not in (b"", b"."):
            parts.append(part)
    first = unquote_to_bytes(parts[0]).lower() if parts else b""
    if first in _OWN:
        parts[0] = first
    else:
        while parts[:2] == [b"v1", b"v1"]:
            del parts[0]
        if first in _V1:
            parts.insert(0, b"v1")
    return b"/" + b"/".join(parts) + (b"/" if parts and raw.endswith(b"/") else b"")


LOGIN_PATH = "/backend-api/codex"
CHATGPT_URL = f"https://chatgpt.com{LOGIN_PATH}"
LOGIN_HEADER = "chatgpt-account-id"
"""A request with it carries a login with ChatGPT, which OpenAI's own API refuses."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """A provider behind the gateway."""

    name: str
    url: str
    """Its root; a `/v1` at the end is the path's and is left out."""
    models: tuple[str, ...] = ()
    """Patterns of model names, such as `claude-*`; the first upstream with one that fits gets the request."""
    family: Family | None = None
    """Whose protocol it speaks: it gets what no pattern decides. None: any."""
    api_key: str | None = None
    """Replaces the client's credential."""
    mode: Mode = "managed"

    @property
    def root(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def serves_logins(self) -> bool:
        """Whether it is the server of logins with ChatGPT, whose paths have no `/v1`."""
        return self.url.endswith(LOGIN_PATH)

    def own_target(self, target: bytes) -> bytes:
        """Path and query as this provider spells them."""
        return target.removeprefix(b"/v1") if self.serves_logins else target


class Routes:
    """The upstreams in their order."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        if not upstreams:
            raise InputError(
                "the gateway has no upstream; name one with --upstream NAME=URL or under gateway.upstreams"
            )
        self.upstreams = tuple(upstreams)
        self.mode: Mode = upstreams[0].mode if len({one.mode for one in upstreams}) == 1 else "managed"
        """The mode of all of them; `managed` where they differ."""
        self._by_login = {
            login: [one for one in upstreams if one.serves_logins is login] or self.upstreams for login in (False, True)
        }

    @property
    def differ(self) -> bool:
        return len(self.upstreams) > 1

    def choose(self, model: str | None, family: Family, *, login: bool = False) -> Upstream:
        """By the model's name, else by the protocol, else the first; of those that serve such a login or key."""
        upstreams = self._by_login[login]
        if model:
            for upstream in upstreams:
                if any(fnmatchcase(model.lower(), pattern.lower()) for pattern in upstream.models):
                    return upstream
        fitting = (upstream for upstream in upstreams if upstream.family in (None, family))
        return next(fitting, upstreams[0])


def family_of(api: Api) -> Family:
    return "anthropic" if api == "anthropic" else "openai"
