"""Authenticators and accounts for gateways whose keys no store holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.gateway.access.authentication import Caller
from everthread.gateway.error_answers import RequestRefused


@dataclass
class FixedKeys:
    """Accepts these keys."""

    callers: dict[str, Caller]

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        key = headers.get("authorization", "").removeprefix("Bearer ")
        caller = self.callers.get(key)
        if caller is None:
            raise RequestRefused(401, "invalid_api_key", "This API key is not known here.")
        return caller


@dataclass
class RecordingAccount:
    """An account that refuses nothing and notes the usage and the model of each call."""

    calls: list[tuple[CanonicalUsage, str]] = field(default_factory=list)

    def admit(self) -> None:
        pass

    def authorize(self, usage: CanonicalUsage, model: str) -> None:
        pass

    def spend(self, usage: CanonicalUsage, model: str) -> None:
        self.calls.append((usage, model))


@dataclass
class AnyKey:
    """Accepts every key and charges one account."""

    account: Any

    async def authenticate(self, _headers: Mapping[str, str]) -> Caller:
        return Caller(
            "acme",
            "k",
            frozenset({"proxy"}),
            account=self.account,
        )


PROXY_KEYS = FixedKeys(
    {
        "et-good": Caller("acme", "et-good", frozenset({"proxy"})),
        "et-other": Caller("acme", "et-other", frozenset({"threads"})),
    }
)
"""`et-good` may use the proxy, `et-other` may not."""
