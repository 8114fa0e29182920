"""The head of a request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

from starlette.types import Scope

from everthread.core.types import MAX_MODEL_NAME_CHARS, Api
from everthread.gateway.access.key_creation import KEY_PREFIX
from everthread.gateway.contracts import CREDENTIAL_HEADERS
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.request.gemini_path import find_path_model, read_path_fields
from everthread.gateway.router import API_BY_PATH, CHATGPT_LOGIN_HEADER, decode_path, normalize_path

if TYPE_CHECKING:
    from everthread.gateway.access.authentication import Caller


_CHARACTER = rb"(?:[A-Za-z0-9_-]|%[2-7][0-9A-Fa-f])"
_UNDERSCORE = rb"(?:_|%5[Ff])"
_ENCODED_KEY_PATTERN = re.compile(
    rb"(?:e|%65)(?:t|%74)"
    + _UNDERSCORE
    + _CHARACTER
    + rb"{12}"
    + _UNDERSCORE
    + _CHARACTER
    + rb"{43}"
)
"""Matches a key of a gateway (`KEY_PATTERN`) whose characters may be percent-encoded, which servers accept too."""


_MODELS = "/v1/models/"
_ENCODED_SLASH_PATTERN = re.compile("%2f", re.IGNORECASE)
_FORWARDED_HEADERS = frozenset({"forwarded", "via"})
_FORWARDED_PREFIX = "x-forwarded-"
_CREDENTIAL_NAMES = frozenset(name.encode() for name in CREDENTIAL_HEADERS)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The head of a request, read and checked once on arrival."""

    method: str
    path: str
    """The path, decoded until it no longer changes; used only for routing and access decisions."""
    raw_path: bytes
    """The path as sent by the client, without superfluous slashes and dots."""
    query: bytes
    raw_headers: list[tuple[bytes, bytes]]
    headers: Mapping[str, str]
    """The headers by lower-case name; of several with one name, the last."""
    caller: Caller
    """The sender, which has no rights until it is authenticated."""

    @classmethod
    def read_unchecked(cls, scope: Scope, caller: Caller) -> RequestHead:
        """Read a head without checks, to answer a request that is refused."""
        return cls(
            method=scope["method"],
            path=scope["path"],
            raw_path=scope["raw_path"],
            query=scope["query_string"],
            raw_headers=scope["headers"],
            headers=read_header_map(scope),
            caller=caller,
        )

    @classmethod
    def read(cls, scope: Scope, caller: Caller, *, max_bytes: int) -> RequestHead:
        """Read and check the head of a request. Raise `RequestRefused` if it is too large or ambiguous."""
        headers = scope["headers"]
        size = sum([len(name) + len(value) for name, value in headers])
        if size > max_bytes:
            message = f"The request's headers have {size:,} bytes, more than allowed here."
            raise RequestRefused(431, "headers_too_large", message)
        raw_path = normalize_path(scope["raw_path"])
        path = decode_path(raw_path) if b"%" in raw_path else raw_path.decode("utf-8", "replace")
        check_model_name(find_model_in_path(path))
        check_credentials(headers)
        return replace(cls.read_unchecked(scope, caller), path=path, raw_path=raw_path)

    @property
    def target(self) -> bytes:
        """Path and query for the upstream, in the client's own bytes, without gateway keys."""
        target = self.raw_path + (b"?" + self.query if self.query else b"")
        return target if self.caller.is_passthrough else remove_gateway_keys(target)

    @property
    def credentials(self) -> dict[str, str]:
        """The headers with credentials, by lower-case name."""
        return {name: self.headers[name] for name in CREDENTIAL_HEADERS if name in self.headers}

    @property
    def is_forwarded(self) -> bool:
        """Whether a header says that another server forwarded the request."""
        return any(
            name in _FORWARDED_HEADERS or name.startswith(_FORWARDED_PREFIX)
            for name in self.headers
        )

    @property
    def literal_path(self) -> str:
        """The path decoded once, except encoded slashes, as most upstreams read it."""
        return "%2F".join(
            unquote(part) for part in _ENCODED_SLASH_PATTERN.split(self.raw_path.decode("latin-1"))
        )

    @property
    def client_api(self) -> Api:
        return find_client_api(self.path, self.headers)

    @property
    def conversation_api(self) -> Api | None:
        """The protocol if the request has a whole conversation to answer; otherwise None."""
        return find_conversation_api(self.path) if self.method == "POST" else None

    @property
    def has_chatgpt_login(self) -> bool:
        """Whether the request has a login with ChatGPT instead of a key."""
        return CHATGPT_LOGIN_HEADER in self.headers

    @property
    def is_json(self) -> bool:
        return self.method == "POST" and self.headers.get("content-type", "").startswith(
            "application/json"
        )


def find_conversation_api(path: str) -> Api | None:
    """Return the protocol of a path that answers whole conversations, or None for other paths."""
    return API_BY_PATH.get(path.rstrip("/")) or (
        "gemini" if read_path_fields(path) is not None else None
    )


def check_credentials(headers: list[tuple[bytes, bytes]]) -> None:
    """Raise `RequestRefused` if a credential header occurs twice with different values: which one counts is unclear."""
    credentials: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _CREDENTIAL_NAMES and credentials.setdefault(name, value) != value:
            message = (
                f"The header `{name.decode()}` is given twice with different values; send it once."
            )
            raise RequestRefused(400, "duplicate_credential", message)


def find_model_in_path(path: str) -> str | None:
    """Return the model in a path of the models list or of Gemini, or None for other paths."""
    return find_path_model(path) or (
        path.removeprefix(_MODELS) or None if path.startswith(_MODELS) else None
    )


def check_model_name(model: str | None) -> None:
    """Raise `RequestRefused` if a name is too long to be a model's."""
    if model is not None and len(model) > MAX_MODEL_NAME_CHARS:
        message = f"The model's name has {len(model):,} characters; at most {MAX_MODEL_NAME_CHARS} are allowed."
        raise RequestRefused(400, "model_name_too_long", message)


def remove_gateway_keys(text: bytes) -> bytes:
    """Return a header's value or a query without gateway keys."""
    return (
        _ENCODED_KEY_PATTERN.sub(b"", text) if KEY_PREFIX.encode() in text or b"%" in text else text
    )


def find_client_api(path: str, headers: Mapping[str, str]) -> Api:
    """Return the client's protocol, determined by the path and the headers."""
    if path.startswith("/v1/messages") or "anthropic-version" in headers:
        return "anthropic"
    if path.startswith("/v1beta/") or "x-goog-api-key" in headers:
        return "gemini"
    return "openai_responses" if path.startswith("/v1/responses") else "openai_chat"


def read_header_map(scope: Scope) -> dict[str, str]:
    """Return a request's headers by their names, which are in lower case."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
