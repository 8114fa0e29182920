"""Find secrets by the name they are assigned to, or by the provider named beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from everthread.core.secrets.randomness import is_random
from everthread.core.secrets.secret_rules import (
    NameHint,
    Secret,
    find_match_end,
    find_name_hint,
    is_passphrase,
    is_provider_key,
    is_secret_value,
    load_rules,
)

_ASSIGNMENT_SIGN = r"""
    (?:["'\\]{0,4}+,?\s{1,40}+["'\\]{0,4}+value)?+                        # {"name": "…", "value": …}, name="…" value=…
    [ \t"'`\]\\)]{0,6}+                                                   # the name's closing quote
    (?:\??[=:>|,]{1,3}+|\?=|[是为は는은]?+：|[是为は는은]:?+|(?:is|was|ist|lautet|est?)(?::|(?=[ \t])))  # = : => , is
    (?:\$(?=["']))?+ [ \t"'`=\\«„“「『]{0,8}+                              # the value's opening quote
    """
_NAMED_VALUE_PATTERN = re.compile(
    rf"""([\w.-]{{0,40}}+) {_ASSIGNMENT_SIGN}
    (?:(?<=["'`])([^\s"'`\\]{{4,512}}+) | ([^\s"'`\\,;<>(){{}}\[\]|&=:\x80-\U0010ffff]{{4,512}}+))""",
    re.A | re.X,
)
_NAMED_PHRASE_PATTERN = re.compile(
    rf"""([\w.-]{{0,40}}+) {_ASSIGNMENT_SIGN} (?<=["'`])([^"'`\\\n]{{8,128}}+)(?=["'`])""",
    re.A | re.X,
)
_VALUE_REST_PATTERN = re.compile(
    r"(?:[^\s\"'`\\,;<>(){}\[\]|&\x80-\U0010ffff]|&(?!&|amp;|[\w.-]{1,64}+=))*+"
)
_NAME_BEFORE_PATTERN = re.compile(r"[\w.-]{0,40}+(?: [A-Za-z]{1,20}+)?", re.A)


def find_named_values(text: str, lower_text: str) -> Iterator[Secret]:
    """Yield the value given to a name that announces a secret: `API_KEY=…`, `"password": "…"`, `the token is …`."""
    claimed_end = 0
    for start, stem in find_name_stems(text, lower_text):
        if start < claimed_end:
            continue
        end = start + len(stem)
        match = _NAMED_VALUE_PATTERN.match(text, end)
        phrase = _NAMED_PHRASE_PATTERN.match(text, end)
        assignment = match or phrase
        if assignment:
            reversed_text = text[max(0, start - 64) : start][::-1]
            name = (
                reversed_text[: find_match_end(_NAME_BEFORE_PATTERN.match(reversed_text, 0), 0)][
                    ::-1
                ]
                + text[start : assignment.end(1)]
            )
            hint = load_rules().hint_by_foreign_name.get(stem) or find_name_hint(name)
            if phrase and is_passphrase(phrase[2], hint):
                claimed_end = phrase.end()
                yield Secret(phrase.start(2), claimed_end, "assignment")
            elif match and _is_assigned_secret(text, hint, match):
                claimed_end = find_match_end(
                    _VALUE_REST_PATTERN.match(text, match.end()), match.end()
                )
                yield Secret(match.start(2 if match[2] else 3), claimed_end, "assignment")


def find_name_stems(text: str, lower_text: str) -> list[tuple[int, str]]:
    """Find names that may announce a secret. Look for names in other scripts only if the text has their letters."""
    stems = _find_words(lower_text, load_rules().name_stems)
    if not text.isascii() and any(letter in text for letter in load_rules().foreign_letters):
        # İ alone becomes longer in lower case; places must agree.
        stems = sorted(
            [
                *stems,
                *_find_words(text.replace("İ", "i").lower(), load_rules().foreign_stems),
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


def _is_assigned_secret(text: str, hint: NameHint, match: re.Match[str]) -> bool:
    is_quoted = bool(match[2])
    value = match[2] or match[3]
    if not is_secret_value(value, hint, is_quoted=is_quoted):
        return False
    next_char = text[match.end() : match.end() + 1]
    if is_quoted:
        inner_name, _, inner_value = value.partition("=")
        is_sentence = next_char == " " and not is_random(value)
        # An inner name finds its own value.
        return not is_sentence and not (find_name_hint(inner_name) and inner_value.strip("="))
    is_call = next_char in ("(", "[", "{")
    is_argument = "," in text[match.end(1) : match.start(3)] and not is_random(value)
    return not is_call and not is_argument


_FLAG_PATTERN = re.compile(r"--([\w-]{2,40}+)[ \t]{1,4}+[\"']?([^\s\"'`\\]{4,512}+)", re.A)
_NETRC_PATTERN = re.compile(r"(password) [ \t]{0,3}+[\"']?([^\s\"'`\\]{4,512}+)", re.A)
_COMMANDS_WITH_PASSWORD = (
    "sshpass",
    "mysql",
    "mariadb",
    "redis-cli",
    "mongo",
    "ldap",
    "login",
    "openssl",
)
_SHORT_FLAG_PATTERN = re.compile(
    r"(?:(?:sshpass|mysql\w{0,9}+|mariadb\w{0,9}+)[^\n;|&]{0,200}?[ \t]-(p)"
    r"|(?:sshpass|redis-cli|mongo\w{0,6}+|ldap\w{2,8}+|login)[^\n;|&]{0,200}?[ \t]-([apw])[ \t]{1,4}+"
    r"|openssl[ \t]{1,4}+enc\b[^\n;|&]{0,200}?[ \t]-(k)[ \t]{1,4}+)"
    r"[\"']?([^\s\"'`\\]{6,512}+)",
    re.A,
)
"""A command whose short flag takes a password. `mysql -p` takes one only without a space."""
_WORD_CHARACTER_PATTERN = re.compile(r"[\w-]", re.A)


def find_flag_values(text: str, ascii_text: str) -> Iterator[Secret]:
    """Yield values after a flag: `--password value`, `docker login -p value`, `password value` in a netrc file."""
    if "--" in text:
        for match in _FLAG_PATTERN.finditer(text):
            if is_secret_value(match[2], find_name_hint(match[1]), is_quoted=False):
                yield Secret(
                    match.start(2),
                    find_match_end(_VALUE_REST_PATTERN.match(text, match.end()), match.end()),
                    "flag",
                )
    for match in _NETRC_PATTERN.finditer(text) if "password " in text else ():
        char_before = text[match.start() - 1 : match.start()]
        if char_before == "." or _WORD_CHARACTER_PATTERN.match(char_before):
            continue
        if is_secret_value(match[2], find_name_hint(match[1]), is_quoted=False) and is_random(
            match[2]
        ):
            yield Secret(
                match.start(2),
                find_match_end(_VALUE_REST_PATTERN.match(text, match.end()), match.end()),
                "flag",
            )
    claimed_end = 0
    has_flag = " -" in ascii_text or "\t-" in ascii_text
    for start, _ in _find_words(ascii_text, _COMMANDS_WITH_PASSWORD) if has_flag else ():
        if start < claimed_end or _WORD_CHARACTER_PATTERN.match(text[start - 1 : start]):
            continue
        flag = _SHORT_FLAG_PATTERN.match(text, start)
        if flag is not None:
            claimed_end = flag.end()
            if is_secret_value(flag[4], NameHint.PASSWORD, is_quoted=False):
                yield Secret(flag.start(4), claimed_end, "flag")


_POSSIBLE_KEY_PATTERN = re.compile(
    r"[=:>|,](?!//)[ \t\"'`=\\]{0,8}+(?=[A-Za-z_=+/.~%-]{0,40}+\d)[\w=+/.~%-]{14}", re.A
)
_PROVIDER_ASSIGNMENT_PATTERN = re.compile(
    rf"([ \t\w.-]{{0,30}}+) {_ASSIGNMENT_SIGN} ([\w=+/.~%-]{{14,512}}+)", re.A | re.X
)
_KEY_REST_PATTERN = re.compile(r"[\w=+/.~%-]*+", re.A)
_NOT_A_KEY_NAME_PATTERN = re.compile(
    r"(?<!client)[_.-](?:ids?|sha\d*|hash|commit|rev|revision|digest|checksum|integrity|version|ur[il]|path|file)$",
    re.I,
)


def find_provider_keys(text: str, ascii_text: str, lower_text: str) -> Iterator[Secret]:
    """Yield a key assigned beside its provider's name: `DATADOG=…`, `heroku: …`."""
    claimed_end = 0
    for provider in _find_provider_names(ascii_text, lower_text):
        if provider.start() < claimed_end:
            continue
        match = _PROVIDER_ASSIGNMENT_PATTERN.match(text, provider.end())
        # The name ends here: `sumO` is not a name in `sumOf`.
        is_whole_name = text[provider.end() - 1].islower() or text[provider.end() - 2].isupper()
        if (
            match
            and is_whole_name
            and not _NOT_A_KEY_NAME_PATTERN.search(match[1])
            and is_provider_key(match[2], provider[0])
        ):
            claimed_end = find_match_end(_KEY_REST_PATTERN.match(text, match.end()), match.end())
            yield Secret(match.start(2), claimed_end, provider[0])


def _find_provider_names(ascii_text: str, lower_text: str) -> Iterator[re.Match[str]]:
    """Find provider names before a value that could be a key: such values are rare, names are many."""
    search_start = 0
    for value in _POSSIBLE_KEY_PATTERN.finditer(ascii_text):
        start = max(search_start, value.start() - 100)
        text_before = lower_text[start : value.start()]
        if any(name in text_before for name in load_rules().provider_names):
            yield from load_rules().provider_pattern.finditer(lower_text, start, value.start())
        search_start = value.start()
