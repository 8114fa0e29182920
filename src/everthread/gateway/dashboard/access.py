"""Who may look: a one-time link on this machine, or a key that is given once; then a signed cookie.

The cookie names the tenant and the key; it is signed with a secret of the store, so every gateway on it knows it, and
a revoked key ends it. A change needs a token of the same session in the form, and comes from our own pages only.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from everthread.gateway.access.key_creation import digest_of, is_key
from everthread.gateway.access.quotas import utc_day
from everthread.store.store import Store

LOGIN_SECONDS = 7 * 86_400.0
"""Seconds after which a key or a link must be given again."""
SECRET = "gateway.dashboard"  # noqa: S105  the secret's name  # nosec B105
MAX_LINKS = 20
"""The most unused links that stay valid."""

LoginMode = Literal["local", "keys", "operator", "off"]
"""How to log in: by a link, by a key of a tenant or the operator, by the operator's key alone, or not at all."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """An authenticated viewer. `tenant`: None for the operator, who sees the threads of all tenants."""

    tenant: str | None
    name: str
    csrf: str

    def sees(self, tenant: str) -> bool:
        return self.tenant is None or self.tenant == tenant


class LoginLinks:
    """Unused links, by the digests of their codes; the newest `MAX_LINKS` of them.

    In a folder, where several processes share them: a link is good while its file is there, and who removes it used it.
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
        for old in sorted(self._folder.iterdir(), key=_modified_time, reverse=True)[
            MAX_LINKS:
        ]:
            old.unlink(missing_ok=True)

    def take(self, digest: str) -> bool:
        """Whether it was there; it is not any more."""
        if self._folder is None:
            return self._digests.pop(digest, _MISSING) is None
        try:
            (self._folder / digest).unlink()
        except FileNotFoundError:
            return False
        return True


_MISSING: Any = object()


def _modified_time(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # used at this moment
        return 0.0


class Access:
    """Decides who sees the pages."""

    def __init__(  # noqa: PLR0913 - what decides, each by its name
        self,
        store: Store,
        secret: bytes,
        *,
        login: LoginMode,
        operator_key: str | None = None,
        wall: Callable[[], float] = time.time,
        links: LoginLinks | None = None,
    ) -> None:
        self._store = store
        self._secret = hmac.digest(secret, b"cookie", "sha256")
        self.login = login
        self._operator = digest_of(operator_key) if operator_key else None
        self.cookie = f"everthread_{hmac.digest(secret, b'name', 'sha256').hex()[:8]}"
        """Its own for each store: cookies know no ports."""
        self._wall = wall
        self._links = links or LoginLinks()

    # Letting in

    def new_link(self) -> str:
        """The path of a link that lets one browser in, once."""
        code = secrets.token_urlsafe(32)
        self._links.add(digest_of(code))
        return f"/dashboard/login?code={code}"

    def use_link(self, code: str) -> str | None:
        """A cookie for a valid link; None for a used or unknown one."""
        if self.login != "local" or not self._links.take(digest_of(code)):
            return None
        return self._sign({"kind": "local", "tenant": None, "who": "this machine"})

    async def use_key(self, key: str) -> str | None:
        """A cookie for a valid key; None for an unknown or revoked one."""
        key = key.strip()
        if self._operator and hmac.compare_digest(digest_of(key), self._operator):
            mark = self._mark(self._operator)
            return self._sign(
                {"kind": "operator", "tenant": None, "who": "operator", "key": mark}
            )
        if self.login != "keys" or not is_key(key):
            return None
        digest = digest_of(key)
        stored = await self._store.find_key(digest, utc_day(self._wall()))
        if stored is None or stored.revoked is not None:
            return None
        return self._sign(
            {
                "kind": "key",
                "tenant": stored.key.tenant,
                "who": stored.key.id,
                "key": digest,
            }
        )

    async def viewer(self, cookies: Mapping[str, str]) -> Viewer | None:
        """The viewer of a valid cookie; None without one."""
        claims = self._read(cookies.get(self.cookie, ""))
        if claims is None or not await self._is_valid(claims):
            return None
        return Viewer(
            claims["tenant"], str(claims["who"]), self._mark(f"csrf {claims['nonce']}")
        )

    def is_genuine(self, viewer: Viewer, token: str) -> bool:
        """Whether a form's token belongs to this session."""
        return hmac.compare_digest(
            viewer.csrf.encode(), token.encode("utf-8", "replace")
        )

    def set_cookie(self, value: str, *, life: float = LOGIN_SECONDS) -> str:
        return f"{self.cookie}={value}; Path=/; Max-Age={life:.0f}; HttpOnly; SameSite=Strict"

    async def _is_valid(self, claims: Mapping[str, Any]) -> bool:
        kind = claims["kind"]
        if kind == "local":
            return self.login == "local"
        if kind == "operator":
            return self._operator is not None and claims.get("key") == self._mark(
                self._operator
            )
        if self.login != "keys":
            return False
        stored = await self._store.find_key(
            str(claims.get("key")), utc_day(self._wall())
        )
        return (
            stored is not None
            and stored.revoked is None
            and stored.key.tenant == claims["tenant"]
        )

    # Signing

    def _sign(self, claims: dict[str, Any]) -> str:
        claims |= {
            "nonce": secrets.token_hex(12),
            "until": self._wall() + LOGIN_SECONDS,
        }
        text = (
            base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        )
        return f"{text}.{self._mark(f'cookie {text}')}"

    def _read(self, value: str) -> dict[str, Any] | None:
        text, _, mark = value.partition(".")
        if not hmac.compare_digest(
            mark.encode(), self._mark(f"cookie {text}").encode()
        ):
            return None
        claims: dict[str, Any] = json.loads(
            base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        )
        return claims if claims["until"] > self._wall() else None

    def _mark(self, text: str) -> str:
        return hmac.new(
            self._secret, text.encode("utf-8", "replace"), "sha256"
        ).hexdigest()
