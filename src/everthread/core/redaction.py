"""Redact secrets: credentials become `[REDACTED]`, the context that a reader needs stays.

Four ways to know a secret, each a scanner below: its own form (a documented prefix, a private key block), its place
(the password of a URL, an `Authorization` header, `curl -u`), the name it is assigned to (`API_KEY=`,
`"password": `, `--token `), and the provider named beside it. Form and place are believed; after a name the value must
also look issued rather than written. Placeholders, references to variables, hashes, UUIDs and ids stay unless a name
says that they are secret. The module `credentials` classifies values.

Every pattern is bounded or possessive, so a scan is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from everthread.core.credentials import (
    MIN_TOKEN,
    NameHint,
    is_issued,
    is_passphrase,
    is_placeholder,
    is_provider_key,
    is_published,
    rules,
    says,
)
from everthread.core.messages import clip
from everthread.core.randomness import is_random, shannon
from everthread.core.secret_places import (
    find_header_credentials,
    find_manifest_values,
    find_password_file_entries,
    find_traced_values,
)

MARK = "[REDACTED]"

_PASSES = 8
"""The most passes. A cut changes the context of its neighbours, so passes follow until nothing more is found; the
bound, beyond any real run of secrets without a space, keeps hostile text linear."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret's span in a text, and the kind it was recognised by."""

    start: int
    end: int
    kind: str


def redact(text: str) -> str:
    """The text with every secret replaced by `[REDACTED]`; the same object when there is none."""
    for _ in range(_PASSES):
        secrets = find_secrets(text)
        if not secrets:
            break
        text = _cut_secrets(text, secrets)
    return text


class LineRedactor:
    """Redacts a text that grows: of lines that were in the last one only those before a new line are read again."""

    def __init__(self) -> None:
        self._clean: frozenset[str] = frozenset()

    def redact(self, text: str) -> str:
        """The text with every secret replaced by `[REDACTED]`."""
        lines = text.split("\n")
        is_new = [line not in self._clean for line in lines]
        following = [*is_new[1:], False]
        if find_secrets(
            "\n".join(
                line
                for line, *new in zip(lines, is_new, following, strict=True)
                if any(new)
            )
        ):
            text = redact(text)
            lines = text.split("\n")
        self._clean = frozenset(lines)
        return text


def redact_part(text: str, start: int, end: int, *, margin: int) -> str:
    """Return a part of a text without secrets. Also reads its surroundings, since a secret may begin or end there."""
    before = max(0, start - margin)
    window = text[before : end + margin]
    first = start - before
    last = end - before
    return _cut_secrets(
        window,
        [s for s in find_secrets(window) if s.end > first and s.start < last],
        first,
        last,
    )


_IN_VIEW = 512
"""Characters read after a cut; a secret that begins before the cut ends within them."""


def clip_words(text: str, room: int) -> str:
    """Return the first words of a text in at most `room` characters.

    No secret is cut in two: half of one would not be recognised. A word is cut only if it fills most of the room, and
    after the text was redacted.
    """
    if len(text) <= room or room < 2:  # nothing is cut, or all of it
        return clip(text, room)
    text = text[: room + _IN_VIEW]
    if _cuts_phrase(text, room):
        text = redact(text)
    words = text[:room].rpartition(" ")[0].rstrip(" ,;")
    return f"{words}…" if 2 * len(words) >= room else clip(redact(text), room)


def _cuts_phrase(text: str, at: int) -> bool:
    """Return whether a cut may split a secret of several words: a quoted phrase after a name, or a private key."""
    before = text[:at]
    in_quotes = any(before.count(quote) % 2 for quote in "\"'`")
    return (
        bool(in_quotes and _find_stems(before, before.lower()))
        or "-----BEGIN" in before
    )


def find_secrets(text: str) -> list[Secret]:
    """Every secret, in order, none overlapping."""
    if not isinstance(text, str):
        return []
    # Encode as one byte per character: positions stay the same, and ASCII patterns search it faster.
    plain = text if text.isascii() else text.encode("ascii", "replace").decode("ascii")
    lowered = plain.lower()
    return _merge_overlaps(
        [
            *_tokens(plain),
            *_patterns(plain),
            *_private_keys(text, lowered),
            *_urls(text, lowered),
            *_headers(text, lowered),
            *_cookies(text, lowered),
            *_curl_users(text),
            *_named_values(text, lowered),
            *_flags(text, plain),
            *_provider_keys(text, plain, lowered),
            *_places(text, lowered),
        ]
    )


def _places(text: str, lowered: str) -> Iterator[Secret]:
    """Find values in places that hold only secrets: after a scheme, in password files, manifests and shell traces."""
    for kind, spans in (
        ("header", find_header_credentials(text, lowered)),
        ("password-file", find_password_file_entries(text)),
        ("manifest", find_manifest_values(text, lowered)),
        ("trace", find_traced_values(text)),
    ):
        for start, end in spans:
            yield Secret(start, end, kind)


def _merge_overlaps(secrets: list[Secret]) -> list[Secret]:
    """Merge overlapping finds. In a URL the end of a password is certain: no find in it reaches the host."""
    secrets.sort(key=lambda s: (s.start, s.kind != "url", -s.end))
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
    """The text from start to end, the secrets in it replaced."""
    pieces = []
    at = start
    for secret in secrets:
        pieces += [text[at : secret.start], MARK]
        at = secret.end
    return "".join([*pieces, text[at:end]])


# --- by form --------------------------------------------------------------------------------------------------------


_TOKEN_SIGNS = bytes(
    code
    if chr(code) in "\\_.~$/+=-" or (chr(code).isalnum() and code < 128)
    else ord(" ")
    for code in range(256)
)


def _tokens(plain: str) -> Iterator[Secret]:
    """Tokens with the prefix and the form of a provider's tokens."""
    # Each long run of signs that tokens have is looked at once: only a text with a token among them is read in order.
    runs = {
        run
        for run in plain.encode().translate(_TOKEN_SIGNS).split()
        if len(run) >= MIN_TOKEN
    }
    if any(_find_tokens(b" ".join(runs).decode())):
        yield from _find_tokens(plain)


def _find_tokens(text: str) -> Iterator[Secret]:
    claimed = 0
    for start in rules().starts.finditer(f" {text}"):
        at = start.start(1) - 1
        if at < claimed:
            continue
        for form in rules().tokens[start[1]]:
            match = form.pattern.match(text, at)
            if (
                match
                and form.accepts(match[0][len(start[1]) :])
                and not is_published(match[0])
            ):
                claimed = match.end()
                yield Secret(match.start(), match.end(), form.kind)


def _patterns(plain: str) -> Iterator[Secret]:
    """Secrets that are recognised by a literal in or around them, with which their pattern begins."""
    for form in rules().patterns:
        if form.literal not in plain:
            continue
        for match in form.pattern.finditer(plain):
            before = form.before.match(
                plain[max(0, match.start() - 64) : match.start()][::-1]
            )
            if before:
                group = form.pattern.groups
                start = match.start(group) - before.end()
                end = match.end(group)
                if form.accepts(plain[start:end]):
                    yield Secret(start, end, form.kind)


_KEY_EDGE = re.compile(
    r"-----(?:(begin)[ a-z0-9_-]{0,100}?(private )?key(?: block)?-----|end[ a-z0-9]{0,60}-----"
    r"|(?<=key-----)|(?<=key block-----))"
)
_KEY_LINES = re.compile(r"(?:(?:\s|\\[nr])*+[A-Za-z0-9+/=]{16,}+)*+")
_BLANK = re.compile(r"(?:\s|\\[nr])*+")


def _private_keys(text: str, lowered: str) -> Iterator[Secret]:
    """Find the text between the BEGIN and END lines; if END is cut off, as far as there are lines of key."""
    edges = list(_KEY_EDGE.finditer(lowered))
    for edge, following in zip_longest(edges, edges[1:]):
        if edge[2]:
            start = _end(_BLANK.match(text, edge.end()), edge.end())
            body = (
                text[start : following.start()]
                if following and not following[1]
                else ""
            )
            words = body.split()
            if sum(map(len, words)) < 12 * max(
                1, len(words)
            ):  # no END, or prose between two mentions of the lines
                body = text[start : _end(_KEY_LINES.match(text, start), start)]
            body = body.rstrip().removesuffix("\\n").rstrip()
            if len(body) >= 24 and shannon(body[:256]) >= 3:
                yield Secret(start, start + len(body), "private-key")


def _end(match: re.Match[str] | None, at: int) -> int:
    """Where a match that began at a place ends."""
    return match.end() if match else at


# --- by place -------------------------------------------------------------------------------------------------------

_USERINFO = re.compile(
    r"""://(?:[^\s/?#@:"'<>`]{0,128}+:([^\s/"'<>`]{1,256})|([\w-]{20,256}+))@(?=[\w.\[%$-])""",
    re.A,
)
_SIGNATURE = re.compile(r"[?&][\w-]{0,20}?sig(?:nature)?=([\w%+/=.~-]{16,}+)", re.A)


def _urls(text: str, lowered: str) -> Iterator[Secret]:
    """The password in `scheme://user:password@host`, a token alone before the `@`, a signature in the query."""
    if "://" in lowered:
        for match in _USERINFO.finditer(text):
            group = 1 if match[1] else 2
            if not is_placeholder(match[group]) and (
                group == 1 or is_random(match[group])
            ):
                yield Secret(match.start(group), match.end(group), "url")
        for match in (
            _SIGNATURE.finditer(lowered)
            if "sig=" in lowered or "signature=" in lowered
            else ()
        ):
            if text[match.start()] in "?&" and is_random(match[1]):
                yield Secret(match.start(1), match.end(1), "url")


_HEADER = re.compile(
    r"""
    (?: authorization ["'\]\\)]{0,3}+ [ \t]{0,3}+ [:=,]{1,2}+ [ \t"'`\\]{0,4}+
        (?:(basic|bearer|token|api-?token|api-?key|key|digest|jwt|oauth|bot)[ \t]{1,5}+)?
      | bearer[ \t]{1,5}+ )
    ([\w=~@.+/%-]{8,}+)
    """,
    re.A | re.X,
)


def _headers(text: str, lowered: str) -> Iterator[Secret]:
    """What follows the scheme in an `Authorization` header, and what follows `Bearer` anywhere."""
    if "authorization" not in lowered and "bearer" not in lowered:
        return
    for match in _HEADER.finditer(lowered):
        value = text[match.start(2) : match.end(2)]
        issued = is_random(value) or (match[1] == "basic" and not value.islower())
        if issued and not is_placeholder(value):
            yield Secret(match.start(2), match.end(2), "header")


_COOKIE = re.compile(
    r"cookie[\"'\\]{0,2}+[ \t]{0,2}+[:=,][ \t\"'`\\]{0,4}+[^\n\"'`\\]{16,4096}+"
)
_CRUMB = re.compile(r"=([^\s;=\"'`\\]{16,}+)")


def _cookies(text: str, lowered: str) -> Iterator[Secret]:
    """The random values in a `Cookie` or `Set-Cookie` header."""
    if "cookie" in lowered:
        for line in _COOKIE.finditer(lowered):
            for crumb in _CRUMB.finditer(text, line.start(), line.end()):
                if is_random(crumb[1]):
                    yield Secret(crumb.start(1), crumb.end(1), "cookie")


_CURL_USER = re.compile(
    r"""-(?<!\S-)(?:u|-user|-proxy-user)(?:=|[ \t]{0,5}+)
        (?:"([^"\n:]{0,100}+):([^"\n]{0,300}+)"|'([^'\n:]{0,100}+):([^'\n]{0,300}+)'
          |([^\s"':]{1,100}+):(?:"([^"\n]{3,300}+)"|'([^'\n]{3,300}+)'|([^\s"']{3,300}+)))""",
    re.X,
)


def _curl_users(text: str) -> Iterator[Secret]:
    """The password in `curl -u user:password`; before an empty password, the user if it is random."""
    if "curl" in text:
        for match in _CURL_USER.finditer(text):
            group = next(g for g in (2, 4, 6, 7, 8) if match[g] is not None)
            user = next(g for g in (1, 3, 5) if match[g] is not None)
            if "curl" not in text[max(0, match.start() - 1000) : match.start()]:
                continue
            if len(match[group]) >= 3 and not is_placeholder(match[group]):
                yield Secret(match.start(group), match.end(group), "curl")
            elif not match[group] and is_random(match[user]):
                yield Secret(match.start(user), match.end(user), "curl")


# --- by name --------------------------------------------------------------------------------------------------------

_ASSIGNS = r"""
    (?:["'\\]{0,4}+,?\s{1,40}+["'\\]{0,4}+value)?+                        # {"name": "…", "value": …}, name="…" value=…
    [ \t"'`\]\\)]{0,6}+                                                   # the name's closing quote
    (?:\??[=:>|,]{1,3}+|\?=|[是为は는은]?+：|[是为は는은]:?+|(?:is|was|ist|lautet|est?)(?::|(?=[ \t])))  # = : => , is
    (?:\$(?=["']))?+ [ \t"'`=\\«„“「『]{0,8}+                              # the value's opening quote
    """
_NAMED = re.compile(
    rf"""([\w.-]{{0,40}}+) {_ASSIGNS}
    (?:(?<=["'`])([^\s"'`\\]{{4,512}}+) | ([^\s"'`\\,;<>(){{}}\[\]|&=:\x80-\U0010ffff]{{4,512}}+))""",
    re.A | re.X,
)
_PHRASE = re.compile(
    rf"""([\w.-]{{0,40}}+) {_ASSIGNS} (?<=["'`])([^"'`\\\n]{{8,128}}+)(?=["'`])""",
    re.A | re.X,
)
_GOES_ON = re.compile(
    r"(?:[^\s\"'`\\,;<>(){}\[\]|&\x80-\U0010ffff]|&(?!&|amp;|[\w.-]{1,64}+=))*+"
)
_NAME_BEFORE = re.compile(r"[\w.-]{0,40}+(?: [A-Za-z]{1,20}+)?", re.A)


def _named_values(text: str, lowered: str) -> Iterator[Secret]:
    """The value given to a name that announces a secret: `API_KEY=…`, `"password": "…"`, `the token is …`."""
    claimed = 0
    for start, stem in _find_stems(text, lowered):
        if start < claimed:
            continue
        end = start + len(stem)
        match = _NAMED.match(text, end)
        phrase = _PHRASE.match(text, end)
        either = match or phrase
        if either:
            before = text[max(0, start - 64) : start][::-1]
            name = (
                before[: _end(_NAME_BEFORE.match(before, 0), 0)][::-1]
                + text[start : either.end(1)]
            )
            level = rules().foreign.get(stem) or says(name)
            if phrase and is_passphrase(phrase[2], level):
                claimed = phrase.end()
                yield Secret(phrase.start(2), claimed, "assignment")
            elif match and _is_assigned(text, level, match):
                claimed = _end(_GOES_ON.match(text, match.end()), match.end())
                yield Secret(match.start(2 if match[2] else 3), claimed, "assignment")


def _find_stems(text: str, lowered: str) -> list[tuple[int, str]]:
    """Find names that may announce a secret. Names in other scripts are sought only near their letters."""
    stems = _find_words(lowered, rules().stems)
    if not text.isascii() and any(letter in text for letter in rules().foreign_letters):
        # İ alone becomes longer in lower case; places must agree.
        stems = sorted(
            [
                *stems,
                *_find_words(text.replace("İ", "i").lower(), rules().foreign_stems),
            ]
        )
    return stems


def _find_words(text: str, words: Iterable[str]) -> list[tuple[int, str]]:
    """Find these words, in order. Searching for each alone is faster than one pattern for all."""
    positions = []
    for word in words:
        at = text.find(word)
        while at >= 0:
            positions.append((at, word))
            at = text.find(word, at + len(word))
    return sorted(positions)


def _is_assigned(text: str, level: NameHint, match: re.Match[str]) -> bool:
    quoted = bool(match[2])
    value = match[2] or match[3]
    if not is_issued(value, level, quoted=quoted):
        return False
    after = text[match.end() : match.end() + 1]
    if quoted:
        inner, _, rest = value.partition("=")
        sentence = after == " " and not is_random(value)
        return not sentence and not (
            says(inner) and rest.strip("=")
        )  # an inner name finds its own value
    call = after in ("(", "[", "{")
    argument = "," in text[match.end(1) : match.start(3)] and not is_random(value)
    return not call and not argument


_FLAG = re.compile(r"--([\w-]{2,40}+)[ \t]{1,4}+[\"']?([^\s\"'`\\]{4,512}+)", re.A)
_NETRC = re.compile(r"(password) [ \t]{0,3}+[\"']?([^\s\"'`\\]{4,512}+)", re.A)
_COMMANDS = (
    "sshpass",
    "mysql",
    "mariadb",
    "redis-cli",
    "mongo",
    "ldap",
    "login",
    "openssl",
)
_SHORT_FLAG = re.compile(
    r"(?:(?:sshpass|mysql\w{0,9}+|mariadb\w{0,9}+)[^\n;|&]{0,200}?[ \t]-(p)"
    r"|(?:sshpass|redis-cli|mongo\w{0,6}+|ldap\w{2,8}+|login)[^\n;|&]{0,200}?[ \t]-([apw])[ \t]{1,4}+"
    r"|openssl[ \t]{1,4}+enc\b[^\n;|&]{0,200}?[ \t]-(k)[ \t]{1,4}+)"
    r"[\"']?([^\s\"'`\\]{6,512}+)",
    re.A,
)
"""Of commands whose short flag takes a password. `mysql -p` takes one only without a space."""
_WORD_BEFORE = re.compile(r"[\w-]", re.A)


def _flags(text: str, plain: str) -> Iterator[Secret]:
    """`--password value`, `--api-key value`, `password value` as in a netrc file, `docker login -p value`."""
    if "--" in text:
        for match in _FLAG.finditer(text):
            if is_issued(match[2], says(match[1]), quoted=False):
                yield Secret(
                    match.start(2),
                    _end(_GOES_ON.match(text, match.end()), match.end()),
                    "flag",
                )
    for match in _NETRC.finditer(text) if "password " in text else ():
        before = text[match.start() - 1 : match.start()]
        if before == "." or _WORD_BEFORE.match(before):
            continue
        if is_issued(match[2], says(match[1]), quoted=False) and is_random(match[2]):
            yield Secret(
                match.start(2),
                _end(_GOES_ON.match(text, match.end()), match.end()),
                "flag",
            )
    claimed = 0
    has_flag = " -" in plain or "\t-" in plain
    for start, _ in _find_words(plain, _COMMANDS) if has_flag else ():
        if start < claimed or _WORD_BEFORE.match(text[start - 1 : start]):
            continue
        short = _SHORT_FLAG.match(text, start)
        if short is not None:
            claimed = short.end()
            if is_issued(short[4], NameHint.PASSWORD, quoted=False):
                yield Secret(short.start(4), claimed, "flag")


# --- by provider ----------------------------------------------------------------------------------------------------

_VALUE = re.compile(
    r"[=:>|,](?!//)[ \t\"'`=\\]{0,8}+(?=[A-Za-z_=+/.~%-]{0,40}+\d)[\w=+/.~%-]{14}", re.A
)
_PROVIDED = re.compile(
    rf"([ \t\w.-]{{0,30}}+) {_ASSIGNS} ([\w=+/.~%-]{{14,512}}+)", re.A | re.X
)
_KEY_GOES_ON = re.compile(r"[\w=+/.~%-]*+", re.A)
_NO_KEY = re.compile(
    r"(?<!client)[_.-](?:ids?|sha\d*|hash|commit|rev|revision|digest|checksum|integrity|version|ur[il]|path|file)$",
    re.I,
)


def _provider_keys(text: str, plain: str, lowered: str) -> Iterator[Secret]:
    """A key assigned beside its provider's name: `DATADOG=…`, `heroku: …`."""
    claimed = 0
    for provider in _providers(plain, lowered):
        match = (
            _PROVIDED.match(text, provider.end())
            if provider.start() >= claimed
            else None
        )
        is_whole = (
            text[provider.end() - 1].islower() or text[provider.end() - 2].isupper()
        )  # not the `sumO` of `sumOf`
        if (
            match
            and is_whole
            and not _NO_KEY.search(match[1])
            and is_provider_key(match[2], provider[0])
        ):
            claimed = _end(_KEY_GOES_ON.match(text, match.end()), match.end())
            yield Secret(match.start(2), claimed, provider[0])


def _providers(plain: str, lowered: str) -> Iterator[re.Match[str]]:
    """Find provider names before a value that could be a key: such values are rare, names are many."""
    looked = 0
    for value in _VALUE.finditer(plain):
        yield from rules().providers.finditer(
            lowered, max(looked, value.start() - 100), value.start()
        )
        looked = value.start()
