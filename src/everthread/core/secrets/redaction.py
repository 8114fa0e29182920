"""Redact secrets: credentials become `[REDACTED]`, the context that a reader needs stays.

A secret is recognised by its own form (`secret_forms`: a documented prefix, a private key block), its context
(`secret_contexts`: the password of a URL, an `Authorization` header, `curl -u`), the name it is assigned to, or the
provider named beside it (`secret_names`: `API_KEY=`, `"password": `, `--token `). Form and context suffice; after a
name the value must also look generated rather than written. Placeholders, references to variables, hashes, UUIDs and
ids are kept unless a name says that they are secret. The module `secret_rules` classifies values.

Every pattern is bounded or possessive, so a scan is linear in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from everthread.core.secrets.secret_contexts import (
    find_bearer_tokens,
    find_cookies,
    find_curl_passwords,
    find_header_credentials,
    find_manifest_values,
    find_password_file_entries,
    find_shell_trace_secrets,
    find_url_secrets,
)
from everthread.core.secrets.secret_forms import (
    find_patterns,
    find_private_keys,
    find_tokens,
)
from everthread.core.secrets.secret_names import (
    find_flag_values,
    find_name_stems,
    find_named_values,
    find_provider_keys,
)
from everthread.core.secrets.secret_rules import Secret
from everthread.core.text import clip

MARK = "[REDACTED]"

_MAX_PASSES = 8
"""Maximum passes. A replacement changes the context of its neighbours, so the text is searched until nothing more is
found; the bound, beyond any real run of secrets without a space, keeps hostile text linear."""


def redact(text: str) -> str:
    """Return the text with every secret replaced by `[REDACTED]`; the same object if there is none."""
    for _ in range(_MAX_PASSES):
        secrets = find_secrets(text)
        if not secrets:
            break
        text = _cut_secrets(text, secrets)
    return text


def redact_part(text: str, start: int, end: int, *, margin: int) -> str:
    """Return a part of a text without secrets. Read `margin` characters around it: a secret may begin or end there."""
    window_start = max(0, start - margin)
    window = text[window_start : end + margin]
    part_start = start - window_start
    part_end = end - window_start
    return _cut_secrets(
        window,
        [
            secret
            for secret in find_secrets(window)
            if secret.end > part_start and secret.start < part_end
        ],
        part_start,
        part_end,
    )


_MARGIN_CHARS = 512
"""Characters to read after a cut: a secret that begins before the cut ends within them."""


def clip_words(text: str, max_chars: int) -> str:
    """Return the first words of a text in at most `max_chars` characters.

    No secret is cut in two: half of one would not be recognised. A word is cut only if it fills most of the room, and
    after the text was redacted.
    """
    if len(text) <= max_chars or max_chars < 2:  # nothing is cut, or all of it
        return clip(text, max_chars)
    text = text[: max_chars + _MARGIN_CHARS]
    if _cuts_phrase(text, max_chars):
        text = redact(text)
    words = text[:max_chars].rpartition(" ")[0].rstrip(" ,;")
    return f"{words}…" if 2 * len(words) >= max_chars else clip(redact(text), max_chars)


def _cuts_phrase(text: str, position: int) -> bool:
    """Return whether a cut may split a secret of several words: a quoted phrase after a name, or a private key."""
    text_before = text[:position]
    in_quotes = any(text_before.count(quote) % 2 for quote in "\"'`")
    return (
        bool(in_quotes and find_name_stems(text_before, text_before.lower()))
        or "-----BEGIN" in text_before
    )


def find_secrets(text: str) -> list[Secret]:
    """Return every secret, in order, without overlaps."""
    if not text or not isinstance(text, str):
        return []
    # Encode as one byte per character: positions stay the same, and ASCII patterns search it faster.
    ascii_text = text if text.isascii() else text.encode("ascii", "replace").decode("ascii")
    lower_text = ascii_text.lower()
    secrets = [
        *find_tokens(ascii_text),
        *find_patterns(ascii_text),
        *find_bearer_tokens(text, lower_text),
        *find_named_values(text, lower_text),
        *find_flag_values(text, ascii_text),
        *find_provider_keys(text, ascii_text, lower_text),
        *find_password_file_entries(text),
        *find_shell_trace_secrets(text),
    ]
    for literal, find in _FINDERS_BY_LITERAL:
        if literal in lower_text:
            secrets += find(text, lower_text)
    return _merge_overlaps(secrets) if secrets else secrets


_FINDERS_BY_LITERAL: tuple[tuple[str, Callable[[str, str], Iterator[Secret]]], ...] = (
    ("-----", find_private_keys),
    ("://", find_url_secrets),
    ("cookie", find_cookies),
    ("curl", find_curl_passwords),
    ("authorization", find_header_credentials),
    ("kind", find_manifest_values),
)
"""A text without the literal, in lower case, has no secret of this kind; most texts have none of the literals."""


def _merge_overlaps(secrets: list[Secret]) -> list[Secret]:
    """Merge overlapping secrets. The end of a password in a URL is certain: no overlap extends it to the host."""
    secrets.sort(key=lambda secret: (secret.start, secret.kind != "url", -secret.end))
    merged = secrets[:1]
    for secret in secrets[1:]:
        last = merged[-1]
        if secret.start >= last.end:
            merged.append(secret)
        elif secret.end > last.end and last.kind != "url":
            merged[-1] = Secret(last.start, secret.end, last.kind)
    return merged


def _cut_secrets(
    text: str, secrets: Iterable[Secret], start: int = 0, end: int | None = None
) -> str:
    """Return the text from start to end with its secrets replaced."""
    pieces = []
    position = start
    for secret in secrets:
        pieces += [text[position : secret.start], MARK]
        position = secret.end
    return "".join([*pieces, text[position:end]])
