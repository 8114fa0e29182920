"""Addresses of providers."""

from __future__ import annotations

from urllib.parse import urlsplit


def host_of(base_url: str) -> str:
    """Return the host of an address, which may lack a scheme, or an empty string if it has none."""
    try:
        return urlsplit(base_url if "//" in base_url else f"//{base_url}").hostname or ""
    except ValueError:
        return ""
