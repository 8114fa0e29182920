"""What a setting may be: the kinds that several sections share."""

from __future__ import annotations

import math
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from everthread.core.tokens import budget
from everthread.gateway.base import Mode


def _environment_name(value: str) -> str:
    if not value.isidentifier() or not value.isascii():
        raise ValueError(
            "the name of an environment variable, such as OPENAI_API_KEY; the key itself stays out of the file"
        )
    return value


def _http_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
        raise ValueError("an http:// or https:// URL without a password in it")
    return value


def _origin(value: str) -> str:
    scheme, separator, host = value.partition("://")
    is_any = host == "*" and scheme not in ("http", "https")
    if value != "null" and not (scheme and separator and host and (is_any or not set(host) & set("/*?#@ "))):
        raise ValueError(
            "an origin without a path, such as https://app.example or http://localhost:3000; null; or a scheme of apps "
            "or extensions, such as chrome-extension://*"
        )
    return value


def _host_name(value: str) -> str:
    if not value or set(value) & set("/:*@ "):
        raise ValueError("a name without scheme and port, such as gateway.example")
    return value


def store_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("sqlite", "postgres", "postgresql"):
        raise ValueError("null (SQLite in the home), sqlite:///path or postgresql://user@host/database")
    if parts.password:
        raise ValueError("a URL without a password: put that into PGPASSWORD or ~/.pgpass")
    return value


def within(key: str) -> Any:
    """The range a setting may have; it is written once, where the setting is used."""
    low, high = budget.LIMITS[key]
    return Field(ge=low, le=None if math.isinf(high) else high)


EnvironmentName = Annotated[str, AfterValidator(_environment_name)]
HostName = Annotated[str, AfterValidator(_host_name)]
Origin = Annotated[str, AfterValidator(_origin)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
Window = Annotated[int, Field(ge=1_000)]
"""Tokens. A smaller number is a slip: 128 for 128,000."""
GatewayMode = Annotated[Mode, BeforeValidator(lambda value: "off" if value is False else value)]
"""YAML reads a bare `off` as false."""
Seconds = Annotated[float, Field(ge=0.01, le=86_400, strict=False)]


class Options(BaseModel):
    """A section of the configuration: strict, complete, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
