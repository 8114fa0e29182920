"""The names that clients give to threads and sessions, and the ids derived from them."""

from __future__ import annotations

from hashlib import blake2b, sha256

MAX_NAME_CHARS = 200
NAMED_SCOPE = "x-everthread-session:"
"""Prefix of the scope of a thread that the client names itself."""


def shorten_session_name(name: str) -> str:
    """Return a session's name, or a digest of a long one, because it is stored with every link."""
    if len(name) <= MAX_NAME_CHARS:
        return name
    return f"sha256:{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"


def get_session_name(session_scope: str) -> str:
    """Return the client's name for its session, or an empty string if it names none."""
    return session_scope.partition(":")[2]


def is_thread_named(session_scope: str) -> bool:
    """Return whether the client names the thread itself."""
    return session_scope.startswith(NAMED_SCOPE)


def derive_thread_id(tenant: str, session_scope: str, previous_digest: str, digest: str) -> str:
    """Return the id of a new thread. Two processes that see the same request derive the same id."""
    text = "\0".join([tenant, session_scope, previous_digest, digest])
    return blake2b(
        text.encode("utf-8", "surrogatepass"), digest_size=16, person=b"gateway"
    ).hexdigest()
