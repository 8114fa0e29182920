"""Find secrets by the name they are assigned to, or by the provider named beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from everthread.core.randomness import is_random
from everthread.core.secrets.secret_rules import (
    NameHint,
    Secret,
    hint_of_name,
    is_issued,
    is_passphrase,
    is_provider_key,
    match_end,
    rules,
)

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
_VALUE_REST = re.compile(
    r"(?:[^\s\"'`\\,;<>(){}\[\]|&\x80-\U0010ffff]|&(?!&|amp;|[\w.-]{1,64}+=))*+"
)
_NAME_BEFORE = re.compile(r"[\w.-]{0,40}+(?: [A-Za-z]{1,20}+)?", re.A)


def find_named_values(text: str, lowered: str) -> Iterator[Secret]:
    """Yield the value given to a name that announces a secret: `API_KEY=…`, `"password": "…"`, `the token is …`."""
    claimed_end = 0
    for start, stem in find_name_stems(text, lowered):
        if start < claimed_end:
            continue
        end = start + len(stem)
        match = _NAMED.match(text, end)
        phrase = _PHRASE.match(text, end)
        assignment = match or phrase
        if assignment:
            reversed_text = text[max(0, start - 64) : start][::-1]
            name = (
                reversed_text[: match_end(_NAME_BEFORE.match(reversed_text, 0), 0)][
                    ::-1
                ]
                + text[start : assignment.end(1)]
            )
            level = rules().foreign.get(stem) or hint_of_name(name)
            if phrase and is_passphrase(phrase[2], level):
                claimed_end = phrase.end()
                yield Secret(phrase.start(2), claimed_end, "assignment")
            elif match and _is_assigned(text, level, match):
                claimed_end = match_end(
                    _VALUE_REST.match(text, match.end()), match.end()
                )
                yield Secret(
                    match.start(2 if match[2] else 3), claimed_end, "assignment"
                )


def find_name_stems(text: str, lowered: str) -> list[tuple[int, str]]:
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
    for word in [word for word in words if word in text]:
        position = text.find(word)
        while position >= 0:
            positions.append((position, word))
            position = text.find(word, position + len(word))
    return sorted(positions)


def _is_assigned(text: str, level: NameHint, match: re.Match[str]) -> bool:
    is_quoted = bool(match[2])
    value = match[2] or match[3]
    if not is_issued(value, level, quoted=is_quoted):
        return False
    next_char = text[match.end() : match.end() + 1]
    if is_quoted:
        inner_name, _, inner_value = value.partition("=")
        is_sentence = next_char == " " and not is_random(value)
        # An inner name finds its own value.
        return not is_sentence and not (
            hint_of_name(inner_name) and inner_value.strip("=")
        )
    is_call = next_char in ("(", "[", "{")
    is_argument = "," in text[match.end(1) : match.start(3)] and not is_random(value)
    return not is_call and not is_argument


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


def find_flag_values(text: str, plain: str) -> Iterator[Secret]:
    """`--password value`, `--api-key value`, `password value` as in a netrc file, `docker login -p value`."""
    if "--" in text:
        for match in _FLAG.finditer(text):
            if is_issued(match[2], hint_of_name(match[1]), quoted=False):
                yield Secret(
                    match.start(2),
                    match_end(_VALUE_REST.match(text, match.end()), match.end()),
                    "flag",
                )
    for match in _NETRC.finditer(text) if "password " in text else ():
        char_before = text[match.start() - 1 : match.start()]
        if char_before == "." or _WORD_BEFORE.match(char_before):
            continue
        if is_issued(match[2], hint_of_name(match[1]), quoted=False) and is_random(
            match[2]
        ):
            yield Secret(
                match.start(2),
                match_end(_VALUE_REST.match(text, match.end()), match.end()),
                "flag",
            )
    claimed_end = 0
    has_flag = " -" in plain or "\t-" in plain
    for start, _ in _find_words(plain, _COMMANDS) if has_flag else ():
        if start < claimed_end or _WORD_BEFORE.match(text[start - 1 : start]):
            continue
        flag = _SHORT_FLAG.match(text, start)
        if flag is not None:
            claimed_end = flag.end()
            if is_issued(flag[4], NameHint.PASSWORD, quoted=False):
                yield Secret(flag.start(4), claimed_end, "flag")


_VALUE = re.compile(
    r"[=:>|,](?!//)[ \t\"'`=\\]{0,8}+(?=[A-Za-z_=+/.~%-]{0,40}+\d)[\w=+/.~%-]{14}", re.A
)
_PROVIDED = re.compile(
    rf"([ \t\w.-]{{0,30}}+) {_ASSIGNS} ([\w=+/.~%-]{{14,512}}+)", re.A | re.X
)
_KEY_REST = re.compile(r"[\w=+/.~%-]*+", re.A)
_NO_KEY = re.compile(
    r"(?<!client)[_.-](?:ids?|sha\d*|hash|commit|rev|revision|digest|checksum|integrity|version|ur[il]|path|file)$",
    re.I,
)


def find_provider_keys(text: str, plain: str, lowered: str) -> Iterator[Secret]:
    """Yield a key assigned beside its provider's name: `DATADOG=…`, `heroku: …`."""
    claimed_end = 0
    for provider in _providers(plain, lowered):
        match = (
            _PROVIDED.match(text, provider.end())
            if provider.start() >= claimed_end
            else None
        )
        # The name ends here: `sumO` is not a name in `sumOf`.
        is_whole = (
            text[provider.end() - 1].islower() or text[provider.end() - 2].isupper()
        )
        if (
            match
            and is_whole
            and not _NO_KEY.search(match[1])
            and is_provider_key(match[2], provider[0])
        ):
            claimed_end = match_end(_KEY_REST.match(text, match.end()), match.end())
            yield Secret(match.start(2), claimed_end, provider[0])


def _providers(plain: str, lowered: str) -> Iterator[re.Match[str]]:
    """Find provider names before a value that could be a key: such values are rare, names are many."""
    search_start = 0
    for value in _VALUE.finditer(plain):
        yield from rules().providers.finditer(
            lowered, max(search_start, value.start() - 100), value.start()
        )
        search_start = value.start()
