"""Log in to the pages with a one-time link on this machine or with a key, and stay logged in with a signed cookie.

The cookie names the tenant and the key. It is signed with a secret of the store, so that every gateway on the store
accepts it, and becomes invalid if the key is revoked. A form that changes something needs a token of the same session.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everthread.core.utc_days import DAY_SECONDS, format_utc_day
from everthread.gateway.access.key_creation import digest_of, is_key
from everthread.gateway.contracts import Auth
from everthread.store.store import Store

LOGIN_LIFETIME_SECONDS = 7.0 * DAY_SECONDS
"""How long a login is valid, in seconds."""
SECRET_NAME = "gateway.dashboard"  # noqa: S105  the secret's name  # nosec B105
MAX_LINKS = 20
"""Maximum unused links that stay valid."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """An authenticated viewer. The `tenant` is None for the operator, who sees the threads of all tenants."""

    tenant: str | None
    name: str
    csrf: str

    def may_see(self, tenant: str) -> bool:
        return self.tenant is None or self.tenant == tenant


class LoginLinks:
    """The newest `MAX_LINKS` unused links, by the digests of their codes.

    Processes that share links store them as files in a folder. A link is used by removing its file.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._digests: dict[str, None] = {}
        if folder is not None:
            folder.mkdir(mode=0o700, exist_ok=True)

    def add(self, digest: str) -> None:
        if self._folder is None:
            self._digests[digest] = None
            while len(self._digests) > MAX_LINKS:
                del self._digests[next(iter(self._digests))]
            return
        (self._folder / digest).touch(mode=0o600)
        for old_file in sorted(self._folder.iterdir(), key=_modified_time, reverse=True)[
            MAX_LINKS:
        ]:
            old_file.unlink(missing_ok=True)

    def remove(self, digest: str) -> bool:
        """Remove a link, and return whether it was there."""
        if self._folder is None:
            return self._digests.pop(digest, _NOT_FOUND) is None
        try:
            (self._folder / digest).unlink()
        except FileNotFoundError:
            return False
        return True


_NOT_FOUND: Any = object()


def _modified_time(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # the link was used meanwhile
        return 0.0


class DashboardLogin:
    """Decides who may see the pages.

    If the gateway's clients need no key (`auth: none`), people log in with a link. With `keys` they log in with a key
    of the gateway. The operator's own key always works, and with `passthrough` it is the only way.
    """

    def __init__(
        self,
        store: Store,
        secret: bytes,
        *,
        auth: Auth,
        operator_key: str | None,
        links: LoginLinks | None = None,
    ) -> None:
        self._store = store
        self._secret = hmac.digest(secret, b"cookie", "sha256")
        self.auth = auth
        self._operator_digest = digest_of(operator_key) if operator_key else None
        self.cookie_name = f"everthread_{hmac.digest(secret, b'name', 'sha256').hex()[:8]}"
        """The name of the cookie, which differs between stores, because all ports of a host share cookies."""
        self._links = links or LoginLinks()

    @property
    def is_off(self) -> bool:
        """Return whether nobody can log in."""
        return self.auth == "passthrough" and self._operator_digest is None

    def make_login_link(self) -> str:
        """Return the path of a link that logs in one browser and works only once."""
        code = secrets.token_urlsafe(32)
        self._links.add(digest_of(code))
        return f"/dashboard/login?code={code}"

    def redeem_link(self, code: str) -> str | None:
        """Return a cookie for a valid link; None for a used or unknown one."""
        if self.auth != "none" or not self._links.remove(digest_of(code)):
            return None
        return self._sign_cookie({"kind": "local", "tenant": None, "who": "this machine"})

    async def make_cookie_for_key(self, key: str) -> str | None:
        """Return a cookie for a valid key; None for an unknown or revoked one."""
        key = key.strip()
        if self._operator_digest and hmac.compare_digest(digest_of(key), self._operator_digest):
            signature = self._make_signature(self._operator_digest)
            return self._sign_cookie(
                {
                    "kind": "operator",
                    "tenant": None,
                    "who": "operator",
                    "key": signature,
                }
            )
        if self.auth != "keys" or not is_key(key):
            return None
        digest = digest_of(key)
        stored_key = await self._store.keys.find_key(digest, format_utc_day(time.time()))
        if stored_key is None or stored_key.revoked_at is not None:
            return None
        return self._sign_cookie(
            {
                "kind": "key",
                "tenant": stored_key.key.tenant,
                "who": stored_key.key.id,
                "key": digest,
            }
        )

    async def find_viewer(self, cookies: Mapping[str, str]) -> Viewer | None:
        """Return the viewer of a valid cookie; None without one."""
        claims = self._read_cookie(cookies.get(self.cookie_name, ""))
        if claims is None or not await self._is_valid(claims):
            return None
        return Viewer(
            claims["tenant"],
            str(claims["who"]),
            self._make_signature(f"csrf {claims['nonce']}"),
        )

    def is_valid_token(self, viewer: Viewer, token: str) -> bool:
        """Return whether a form's token belongs to this session."""
        return hmac.compare_digest(viewer.csrf.encode(), token.encode("utf-8", "replace"))

    def format_cookie(self, value: str, *, max_age: float = LOGIN_LIFETIME_SECONDS) -> str:
        return (
            f"{self.cookie_name}={value}; Path=/; Max-Age={max_age:.0f}; HttpOnly; SameSite=Strict"
        )

    async def _is_valid(self, claims: Mapping[str, Any]) -> bool:
        kind = claims["kind"]
        if kind == "local":
            return self.auth == "none"
        if kind == "operator":
            return self._operator_digest is not None and claims.get("key") == self._make_signature(
                self._operator_digest
            )
        if self.auth != "keys":
            return False
        stored_key = await self._store.keys.find_key(
            str(claims.get("key")), format_utc_day(time.time())
        )
        return (
            stored_key is not None
            and stored_key.revoked_at is None
            and stored_key.key.tenant == claims["tenant"]
        )

    def _sign_cookie(self, claims: dict[str, Any]) -> str:
        claims |= {
            "nonce": secrets.token_hex(12),
            "until": time.time() + LOGIN_LIFETIME_SECONDS,
        }
        text = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        return f"{text}.{self._make_signature(f'cookie {text}')}"

    def _read_cookie(self, value: str) -> dict[str, Any] | None:
        text, _, signature = value.partition(".")
        if not hmac.compare_digest(
            signature.encode(), self._make_signature(f"cookie {text}").encode()
        ):
            return None
        claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        return claims if claims["until"] > time.time() else None

    def _make_signature(self, text: str) -> str:
        return hmac.new(self._secret, text.encode("utf-8", "replace"), "sha256").hexdigest()
