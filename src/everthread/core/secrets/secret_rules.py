"""Decide whether a value is a credential: by its form, by the name it is given, and by the provider beside it.

The forms, names and words are data (`data/secrets.toml`), read once; the judgements about them are here.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property, lru_cache
from hashlib import sha256
from importlib import resources
from typing import Any

from everthread.core.secrets.randomness import (
    ALPHANUMERIC_PATTERN,
    MAX_JUDGED_CHARS,
    is_random,
    is_sequence,
    shannon_entropy,
)

MIN_TOKEN_CHARS = 12
"""Minimum length of a token, its prefix included."""
PREFIX_CHARS = 3
"""Characters of a token's start that the pattern compares. A pattern of whole starts takes longer to compile."""
_WORD_PATTERN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_REFERENCE_PATTERN = re.compile(
    r"""
      \$[A-Za-z_]\w*$ | \$\d$ | .*?\$[({] | .*?\{\{ | .*?<% | .*?\#\{   # $NAME, $(command), ${{ … }}, <%= … %>, #{…}
    | %[A-Za-z_]+%?$ | @[A-Za-z_]+@$ | [{<\[].*[}>\]]$                    # %NAME%, %s, @NAME@, {name}, <name>, [name]
    | (?:https?|file|env|vault|op|ssm|arn|secret|data): | sha\d+[:-]      # kept elsewhere; a hash
    | [~.]{0,2}/[\w.-]+/(?![\w+/]{40,}+$)                                # a path, not the start of a Base64 key
    """,
    re.X | re.S | re.I,
)
_NON_LETTERS_PATTERN = re.compile(r"[^A-Za-z]+")
_UUID_PATTERN = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_ID_PATTERN = re.compile(
    r"(?:toolu|call|chatcmpl|msg|resp|req|run|thread|asst|fc|rs|item|sess|evt|batch|file)[_-]"
)
_HASH_PATTERN = re.compile(r"[0-9a-f]+|[0-9A-F]+")
_DOTTED_PATTERN = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_DECORATOR_OR_TAG_PATTERN = re.compile(r"[@!][A-Za-z_.-]+")
_ADDRESS_PATTERN = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*[A-Za-z]|[\w.-]+:\d{2,5}")
_MIXED_CHARACTERS_PATTERN = re.compile(r"(?=.*[A-Za-z])[!-~]*?(?:\d|[@#$%^&*+=~|!?][!-~])")
_LISTED_WORD_PATTERN = re.compile(r"[a-z]{3,10}")
"""A word as in word lists for passphrases."""
_WORD_OR_NUMBER_PATTERN = re.compile(r"[A-Za-z]{2,12}[!?]?|\d{1,8}[!?]?")
_STRONG_PASSWORD_PATTERN = re.compile(r"(?=.*[A-Za-z]).*[0-9!@#$%^&*+=?~|]|\d+$", re.S)


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret's span in a text, and the kind it was recognised by."""

    start: int
    end: int
    kind: str


def find_match_end(match: re.Match[str] | None, start: int) -> int:
    """Return the end of a match that began at `start`; `start` itself if nothing matched."""
    return match.end() if match else start


class NameHint(IntEnum):
    """How strongly a name suggests that its value is a secret."""

    NOTHING = 0
    KEY = 1
    """A key of some kind, perhaps a lookup key: secret only if random, and neither a hash nor a UUID."""
    SECRET = 2
    """A secret, token or API key: random values are secret."""
    PASSWORD = 3
    """A password, which a person may have made up: anything but a plain word is secret."""


@dataclass(frozen=True)
class CredentialForm:
    """A credential with a form of its own. Its patterns are compiled on first use: few are ever used."""

    kind: str
    expression: str
    required_look: str
    """How a match must look: `random`, `varied` or `any`."""
    before_expression: str
    literal: str
    """A text without this literal has no match."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self.expression, re.A)

    @cached_property
    def before_pattern(self) -> re.Pattern[str]:
        """Pattern that the reversed text before the credential must match."""
        return re.compile(self.before_expression, re.A)

    def accepts(self, matched_text: str) -> bool:
        """Return whether the matched text looks as the form requires."""
        if self.required_look == "any":
            return True
        if self.required_look == "random":
            return is_random(matched_text)
        return shannon_entropy(matched_text[:MAX_JUDGED_CHARS]) >= 2.0


class Rules:
    """The rules of `data/secrets.toml`, as patterns and sets."""

    def __init__(self) -> None:
        file = resources.files("everthread.core").joinpath("data/secrets.toml")
        data: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
        self._read_forms(data)
        self._read_names(data["names"])
        self.published_key_hashes = frozenset(data["published"])
        providers = data["providers"]
        self.provider_names: list[str] = providers["names"]
        self.uuid_key_providers = frozenset(providers["uuid"])
        self.key_digits_by_provider: dict[str, int] = providers["digits"]
        placeholders = data["placeholders"]
        self.placeholder_pattern = re.compile("|".join(map(re.escape, placeholders["parts"])), re.I)
        self.plain_words = frozenset(placeholders["words"])
        self.sentence_words = frozenset(placeholders["sentence"])

    @cached_property
    def provider_pattern(self) -> re.Pattern[str]:
        """Pattern of the providers' names. Compiled on first use: few texts have one before a possible key."""
        return re.compile(trie_pattern(self.provider_names))

    def _read_forms(self, data: Mapping[str, Any]) -> None:
        """Read the credentials with a form of their own."""
        forms = [
            (
                start,
                _make_form(row, rf"{re.escape(start)}(?>{row['rest']})(?:(?<==)|(?![\w-]))"),
            )
            for row in data["token"]
            for start in row["starts"]
        ]
        self.forms_by_prefix = _group_by_prefix(forms)
        """The possible starts and forms by the first `PREFIX_CHARS` characters, the shortest start first."""
        self.prefix_pattern = _compile_prefix_pattern(self.forms_by_prefix)
        """Match the first characters of any token (group 1) after a non-word character."""
        self.literal_forms = [
            _make_form(row, re.escape(row["has"]) + row["after"]) for row in data["pattern"]
        ]
        """Forms whose patterns begin with a literal."""

    def _read_names(self, names: Mapping[str, Sequence[str]]) -> None:
        """Read the names that announce a secret."""
        self.hint_by_foreign_name = dict.fromkeys(names["foreign"], NameHint.PASSWORD)
        """How strongly a name in another language suggests a secret."""
        self.hint_by_foreign_name |= dict.fromkeys(names["foreign_secret"], NameHint.SECRET)
        self.name_stems = (
            "key",
            "pass",
            "pwd",
            "secret",
            "token",
            "auth",
            "cred",
            *filter(str.isascii, self.hint_by_foreign_name),
        )
        """Parts of names that announce a secret, in lower case."""
        self.foreign_stems = tuple(stem for stem in self.hint_by_foreign_name if not stem.isascii())
        self.foreign_letters = frozenset(
            letter for stem in self.foreign_stems for letter in _find_first_foreign_letter(stem)
        )
        """The first non-ASCII letter of each foreign stem, in both cases."""

        alternatives = {key: "|".join(words) for key, words in names.items()}
        trailing_pattern = rf"(?:_(?:\d+|{alternatives['trailing']}))*$"
        secret_pattern = (
            rf"{alternatives['secret']}"
            rf"|(?:^|_)(?:{alternatives['secret_word']}|(?:{alternatives['key']})_key)"
        )
        self.password_name = re.compile(
            rf"(?:{alternatives['password']}|(?:^|_)(?:{alternatives['password_word']})){trailing_pattern}"
        )
        self.secret_name = re.compile(rf"(?:{secret_pattern}){trailing_pattern}")
        self.harmless_name = re.compile(rf"(?:^|_)(?:{alternatives['harmless']})$")


def _group_by_prefix(
    forms: Iterable[tuple[str, CredentialForm]],
) -> dict[str, list[tuple[str, CredentialForm]]]:
    """Group starts and forms by the first characters of a start. A shorter start joins every group that it begins."""
    forms_by_prefix: dict[str, list[tuple[str, CredentialForm]]] = {}
    for start, form in sorted(forms, key=lambda pair: len(pair[0])):
        forms_by_prefix.setdefault(start[:PREFIX_CHARS], []).append((start, form))
    return {
        prefix: [
            pair
            for length in range(1, len(prefix) + 1)
            for pair in forms_by_prefix.get(prefix[:length], ())
        ]
        for prefix in forms_by_prefix
    }


@cache
def load_rules() -> Rules:
    return Rules()


def _find_first_foreign_letter(stem: str) -> str:
    """Return the first letter that ASCII does not have, in lower and upper case."""
    letter = next(letter for letter in stem if not letter.isascii())
    return letter + letter.upper()


def _compile_prefix_pattern(prefixes: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern for any of these first characters of tokens (group 1) after a non-word character.

    At least `MIN_TOKEN_CHARS` characters of a token must follow. The cheap conditions come first; the prefixes are
    compared last, as few positions get that far.
    """
    char_class = r"[\w.~$/+=-]"
    return re.compile(
        rf"\W(?=(?:(?<=\\)[nrt])?(?={char_class}{{{MIN_TOKEN_CHARS}}})({trie_pattern(prefixes)}))",
        re.A,
    )


def _make_form(row: dict[str, Any], pattern: str) -> CredentialForm:
    return CredentialForm(
        row["kind"],
        pattern,
        required_look=row.get("looks", "varied"),
        before_expression=row.get("before", ""),
        literal=row.get("has", ""),
    )


def trie_pattern(words: Iterable[str]) -> str:
    """Return a pattern that matches the longest of many literals and looks at each character once."""
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}

    def pattern(node: dict[str, Any]) -> str:
        branches = [re.escape(char) + pattern(node[char]) for char in sorted(node) if char]
        if not branches:
            return ""
        return f"(?:{'|'.join(branches)})" + ("?" if "" in node else "")

    return pattern(tree)


@lru_cache(4096)
def find_name_hint(name: str) -> NameHint:
    """Return the hint in the last words of a name (`dbPassword`, `X-Api-Key`, `aws.secret_access_key`)."""
    words = "_".join(_WORD_PATTERN.findall(name)).lower()
    if load_rules().harmless_name.search(words):
        return NameHint.NOTHING
    if load_rules().password_name.search(words):
        return NameHint.PASSWORD
    if load_rules().secret_name.search(words):
        return NameHint.SECRET
    return NameHint.KEY if words == "key" or words.endswith("_key") else NameHint.NOTHING


@lru_cache(1024)
def is_placeholder(value: str) -> bool:
    """Return whether the value is a placeholder: `your-key`, `<token>`, `${VAR}`, `xxxx`, a path, a plain word."""
    value = value[:MAX_JUDGED_CHARS]
    return (
        _REFERENCE_PATTERN.match(value) is not None
        or shannon_entropy(value) < 1.5
        or is_sequence(value)
        or load_rules().placeholder_pattern.search(value) is not None
        or _NON_LETTERS_PATTERN.sub("", value).lower() in load_rules().plain_words
    )


def is_published(token: str) -> bool:
    """Return whether the key is a published example."""
    return (
        sha256(token.encode("utf-8", "replace")).hexdigest()[:16]
        in load_rules().published_key_hashes
    )


def is_secret_value(value: str, hint: NameHint, *, is_quoted: bool) -> bool:
    """Return whether a value is a secret, given the hint of its name. Unquoted values may be code."""
    value = value[:MAX_JUDGED_CHARS]
    if hint is NameHint.NOTHING or is_placeholder(value) or _ADDRESS_PATTERN.fullmatch(value):
        return False
    if not is_quoted and _is_code(value):
        return False
    if hint is NameHint.KEY:
        longest_run = max(ALPHANUMERIC_PATTERN.findall(value), key=len, default="")
        return (
            len(longest_run) >= 20
            and is_random(longest_run)
            and not _HASH_PATTERN.fullmatch(longest_run)
            and not _ID_PATTERN.match(value)
        )
    if hint is NameHint.SECRET or is_random(value):
        return is_random(value)
    return len(value) >= 6 and value.isascii() and _STRONG_PASSWORD_PATTERN.match(value) is not None


def is_passphrase(value: str, hint: NameHint) -> bool:
    """Return whether quoted words after a password's name are a passphrase.

    They are if one of them mixes letters with digits or signs, or if four or more of them contain no word of ordinary
    sentences and look drawn from a word list. Words that name a password are a label or a message.
    """
    words = value.split()
    if hint is not NameHint.PASSWORD or not 2 <= len(words) <= 12 or is_placeholder(value):
        return False
    letters = [_NON_LETTERS_PATTERN.sub("", word).lower() for word in words]
    if not load_rules().plain_words.isdisjoint(letters):
        return False
    unusual_words = [
        word
        for word, letters_of_word in zip(words, letters, strict=True)
        if letters_of_word not in load_rules().sentence_words
    ]
    if any(
        4 <= len(word) <= MAX_JUDGED_CHARS and _MIXED_CHARACTERS_PATTERN.match(word) is not None
        for word in unusual_words
    ):
        return True
    if len(unusual_words) < len(words) or len(words) < 4:
        return False
    form = _LISTED_WORD_PATTERN if all(letters) else _WORD_OR_NUMBER_PATTERN
    return all(form.fullmatch(word) for word in words)


def _is_code(value: str) -> bool:
    """Return whether a value is code: `config.db_password2`, `@decorator`, `!tag`."""
    if _DOTTED_PATTERN.fullmatch(value):
        part = max(value.split("."), key=len)
        return len(part) < 16 or not is_random(part)
    return _DECORATOR_OR_TAG_PATTERN.fullmatch(value) is not None


def is_provider_key(value: str, provider: str) -> bool:
    """Return whether a value assigned beside a provider's name is of the kind the provider issues."""
    if is_placeholder(value) or _ID_PATTERN.match(value):
        return False
    if _UUID_PATTERN.fullmatch(value):
        return provider in load_rules().uuid_key_providers
    return is_random(value) or (
        value.isdigit() and load_rules().key_digits_by_provider.get(provider) == len(value)
    )
