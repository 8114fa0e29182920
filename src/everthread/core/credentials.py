"""What a credential looks like: its form, the name it is given, and what is only written in its place.

The forms, names and words are data (`data/secrets.toml`), read once; the judgements about them are here. Keys are drawn
at random; names, paths and words are not. Three things tell them apart: how many different characters there are, how
often neighbouring characters make a pair that words rarely have (a letter beside a digit, `xq`), and whether the
characters simply count up (`abcdef`, `123456`), which only an example does.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, lru_cache
from hashlib import sha256
from importlib import resources
from itertools import pairwise
from math import log2
from typing import Any

# --- chance -----------------------------------------------------------------------------------------------------------


ENOUGH = 128
"""What a string is shows in so many characters; judging more would cost without telling more."""

_PAIRS = (
    "er in re te on at le en ti st es nt de or se co ar al ed et li ri ta tr ra me ro io an ng it ex ec ma nd ge di pe "
    "ne is ns as ac ct el pr ca pa ve la lo to ce ic si fi ea ch ll un ol ss na rs il rt th ad ou am ts no ur pl mp em "
    "nc im po he om id ut od mm op sc ha ab ep ke ap sp oc ck da ig bl os ot so ty fo mo pt mi cl xe sh ef ni rr va ie "
    "tt su us ul ag cr ho ba ee rc ia rm ir eg yp um ow gr up ip ls hi tc ev be do if ai sa qu ff vi xt lu rd ry tu lt "
    "ci cu iv sl ui gi nv nf"
)
_COMMON_PAIRS = frozenset(_PAIRS.split())
"""The 160 letter pairs that make up four fifths of the words in code and its prose, but a quarter of random letters."""

_ALNUM = re.compile(r"[A-Za-z0-9]+")
_HEX = re.compile(r"[0-9a-fA-F]+")


def shannon(text: str) -> float:
    """Bits per character, from the text's own character counts; 0.0 for an empty text."""
    size = len(text)
    return sum(-n / size * log2(n / size) for n in Counter(text).values())


def is_sequence(text: str) -> bool:
    """Whether a third or more of the neighbours count up by one: the alphabet or the digits, written out."""
    steps = sum(ord(b) - ord(a) == 1 for a, b in pairwise(text))
    return steps >= 4 and steps * 3 >= len(text)


@lru_cache(1024)
def is_random(text: str) -> bool:
    """Whether an identifier-like string of eight characters or more was drawn by chance: most of its pairs are odd.

    Letters alone must be many to convince, sixteen in a row; digits alone never do: they are counts, dates and ids.
    """
    text = text[:ENOUGH]
    parts: list[str] = _ALNUM.findall(text)
    joined = "".join(parts)
    if len(text) < 8 or not joined or joined.isdigit() or shannon(text) < 2.6 or is_sequence(text):
        return False
    if joined.isalpha():
        if max(map(len, parts)) < 16:
            return False
    elif _HEX.fullmatch(joined):
        return True
    pairs = odd = 0
    for part in parts:
        lower = part.lower()
        for a, b in pairwise(lower):
            if a.isalpha() or b.isalpha():
                pairs += 1
                odd += a.isdigit() or b.isdigit() or a + b not in _COMMON_PAIRS
    return odd >= 4 and odd * 2 > pairs


# --- forms and names --------------------------------------------------------------------------------------------------


class NameHint(IntEnum):
    """What a name says about the value it is given."""

    NOTHING = 0
    KEY = 1
    """A key of some kind: a lookup key, perhaps. Only what is random and no hash or UUID is a secret."""
    SECRET = 2
    """A secret, token, API key: random values are."""
    PASSWORD = 3
    """A person may have made it up: whatever is no plain word."""


@dataclass(frozen=True, slots=True)
class CredentialForm:
    """A credential with a form of its own, and how what it matches must look: `random`, `varied` or `any`."""

    kind: str
    pattern: re.Pattern[str]
    looks: str
    before: re.Pattern[str]
    """What must stand before it, to be matched backwards."""

    def accepts(self, rest: str) -> bool:
        """Whether what a match found looks as it must."""
        return self.looks == "any" or (is_random(rest) if self.looks == "random" else shannon(rest[:ENOUGH]) >= 2.0)


class Rules:
    """What `data/secrets.toml` says, as patterns and sets."""

    def __init__(self) -> None:
        file = resources.files("everthread.core").joinpath("data/secrets.toml")
        data: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
        names, providers, placeholders = data["names"], data["providers"], data["placeholders"]
        forms = [
            (start, _form(row, rf"{re.escape(start)}(?>{row['rest']})(?:(?<==)|(?![\w-]))"))
            for row in data["token"]
            for start in row["starts"]
        ]
        starts = {start for start, _ in forms}
        self.starts = _start_pattern(starts)
        """Finds (group 1) what any of the tokens may begin with; something must stand before it."""
        self.tokens = {token: [form for start, form in forms if token.startswith(start)] for token in starts}
        """By the start that was found: the forms it may be."""
        self.patterns = [_form(row, re.escape(row["has"]) + row["after"]) for row in data["pattern"]]
        """Forms that stand around a literal, with which their patterns begin."""
        self.published = frozenset(data["published"])

        self.providers = re.compile(trie(providers["names"]))
        self.uuids = frozenset(providers["uuid"])
        self.digits: dict[str, int] = providers["digits"]

        self.foreign = dict.fromkeys(names["foreign"], NameHint.PASSWORD)
        """Names in other languages, and what they say."""
        self.foreign |= dict.fromkeys(names["foreign_secret"], NameHint.SECRET)
        self.stems = ("key", "pass", "pwd", "secret", "token", "auth", "cred", *filter(str.isascii, self.foreign))
        """What a name that announces a secret has in it, in lower case."""
        self.foreign_stems = tuple(stem for stem in self.foreign if not stem.isascii())
        self.foreign_letters = frozenset(letter for stem in self.foreign_stems for letter in _first_beyond_ascii(stem))
        """A letter of each of these that ASCII does not have, in both cases."""

        either = {key: "|".join(words) for key, words in names.items()}
        trailing = rf"(?:_(?:\d+|{either['trailing']}))*$"
        secret = rf"{either['secret']}|(?:^|_)(?:{either['secret_word']}|(?:{either['key']})_key)"
        self.password_name = re.compile(rf"(?:{either['password']}|(?:^|_)(?:{either['password_word']})){trailing}")
        self.secret_name = re.compile(rf"(?:{secret}){trailing}")
        self.harmless_name = re.compile(rf"(?:^|_)(?:{either['harmless']})$")

        self.placeholder = re.compile("|".join(map(re.escape, placeholders["parts"])), re.I)
        self.plain_words = frozenset(placeholders["words"])
        self.sentence_words = frozenset(placeholders["sentence"])


@cache
def rules() -> Rules:
    return Rules()


def _first_beyond_ascii(stem: str) -> str:
    """The first letter that ASCII does not have, in lower and upper case."""
    letter = next(letter for letter in stem if not letter.isascii())
    return letter + letter.upper()


LEAST_TOKEN = 12
"""So many characters of a token follow each other, its start included."""


def _start_pattern(starts: Iterable[str]) -> re.Pattern[str]:
    """Any of these (group 1) behind a sign that is no letter, `LEAST_TOKEN` characters or more of a token following.

    It begins with a set of few characters, which a scan skips to; which start it is is asked last, for few get there.
    """
    part = r"[\w.~$/+=-]"
    return re.compile(rf"\W(?=(?:(?<=\\)[nrt])?(?={part}{{{LEAST_TOKEN}}})({trie(starts)}))", re.A)


def _form(row: dict[str, Any], pattern: str) -> CredentialForm:
    before = re.compile(row.get("before", ""), re.A)
    return CredentialForm(row["kind"], re.compile(pattern, re.A), row.get("looks", "varied"), before)


def trie(words: Iterable[str]) -> str:
    """One pattern for many literals that looks at each character once, and takes the longest."""
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}

    def pattern(node: dict[str, Any]) -> str:
        ways = [re.escape(char) + pattern(node[char]) for char in sorted(node) if char]
        if not ways:
            return ""
        return f"(?:{'|'.join(ways)})" + ("?" if "" in node else "")

    return pattern(tree)


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@lru_cache(4096)
def says(name: str) -> NameHint:
    """What a name (`dbPassword`, `X-Api-Key`, `aws.secret_access_key`) announces: the words it ends in decide."""
    words = "_".join(_WORD.findall(name)).lower()
    if rules().harmless_name.search(words):
        return NameHint.NOTHING
    if rules().password_name.search(words):
        return NameHint.PASSWORD
    if rules().secret_name.search(words):
        return NameHint.SECRET
    return NameHint.KEY if words == "key" or words.endswith("_key") else NameHint.NOTHING


_REFERENCE = re.compile(
    r"""
      \$[A-Za-z_]\w*$ | \$\d$ | .*?\$[({] | .*?\{\{ | .*?<% | .*?\#\{   # $NAME, $(command), ${{ … }}, <%= … %>, #{…}
    | %[A-Za-z_]+%?$ | @[A-Za-z_]+@$ | [{<\[].*[}>\]]$                    # %NAME%, %s, @NAME@, {name}, <name>, [name]
    | (?:https?|file|env|vault|op|ssm|arn|secret|data): | sha\d+[:-]      # kept elsewhere; a hash
    | [~.]{0,2}/[\w.-]+/(?![\w+/]{40,}+$)                                # a path, not the start of a Base64 key
    """,
    re.X | re.S | re.I,
)
_NO_LETTERS = re.compile(r"[^A-Za-z]+")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_ID = re.compile(r"(?:toolu|call|chatcmpl|msg|resp|req|run|thread|asst|fc|rs|item|sess|evt|batch|file)[_-]")
_HASH = re.compile(r"[0-9a-f]+|[0-9A-F]+")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_MARKED = re.compile(r"[@!][A-Za-z_.-]+")
_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*[A-Za-z]|[\w.-]+:\d{2,5}")
_MIXED = re.compile(r"(?=.*[A-Za-z])[!-~]*?(?:\d|[@#$%^&*+=~|!?][!-~])")
_DRAWN = re.compile(r"[a-z]{3,10}")
"""As words are drawn from a list for a passphrase."""
_BESIDE_FIGURES = re.compile(r"[A-Za-z]{2,12}[!?]?|\d{1,8}[!?]?")
_STRONG = re.compile(r"(?=.*[A-Za-z]).*[0-9!@#$%^&*+=?~|]|\d+$", re.S)


@lru_cache(1024)
def is_placeholder(value: str) -> bool:
    """Whether the value stands for one: `your-key`, `<token>`, `${VAR}`, `xxxx`, `abc123`, a path, a plain word."""
    value = value[:ENOUGH]
    return (
        _REFERENCE.match(value) is not None
        or shannon(value) < 1.5
        or is_sequence(value)
        or rules().placeholder.search(value) is not None
        or _NO_LETTERS.sub("", value).lower() in rules().plain_words
    )


def is_published(token: str) -> bool:
    """Whether the key is one that everybody has."""
    return sha256(token.encode("utf-8", "replace")).hexdigest()[:16] in rules().published


def is_issued(value: str, level: NameHint, *, quoted: bool) -> bool:
    """Whether a value is a secret after a name that says so much. Unquoted, it may as well be code."""
    value = value[:ENOUGH]
    if level is NameHint.NOTHING or is_placeholder(value) or _ADDRESS.fullmatch(value):
        return False
    if not quoted and _is_code(value):
        return False
    if level is NameHint.KEY:
        part = max(_ALNUM.findall(value), key=len, default="")
        return len(part) >= 20 and is_random(part) and not _HASH.fullmatch(part) and not _ID.match(value)
    if level is NameHint.SECRET or is_random(value):
        return is_random(value)
    return len(value) >= 6 and value.isascii() and _STRONG.match(value) is not None


def is_passphrase(value: str, level: NameHint) -> bool:
    """Whether quoted words after a password's name are one: one holds a figure or a sign, or they make no sentence.

    Four words or more without one that makes a sentence are a passphrase if one is a figure or all could be drawn.

    What names a password itself is a label or a message.
    """
    words = value.split()
    if level is not NameHint.PASSWORD or not 2 <= len(words) <= 12 or is_placeholder(value):
        return False
    letters = [_NO_LETTERS.sub("", word).lower() for word in words]
    if not rules().plain_words.isdisjoint(letters):
        return False
    own = [word for word, plain in zip(words, letters, strict=True) if plain not in rules().sentence_words]
    if any(4 <= len(word) <= ENOUGH and _MIXED.match(word) is not None for word in own):
        return True
    if len(own) < len(words) or len(words) < 4:
        return False
    form = _DRAWN if all(letters) else _BESIDE_FIGURES
    return all(form.fullmatch(word) for word in words)


def _is_code(value: str) -> bool:
    """`config.db_password2`, `@decorator`, `!tag`."""
    if _DOTTED.fullmatch(value):
        part = max(value.split("."), key=len)
        return len(part) < 16 or not is_random(part)
    return _MARKED.fullmatch(value) is not None


def is_provider_key(value: str, provider: str) -> bool:
    """Whether a value assigned beside a provider's name is of the kind the provider issues."""
    if is_placeholder(value) or _ID.match(value):
        return False
    if _UUID.fullmatch(value):
        return provider in rules().uuids
    return is_random(value) or (value.isdigit() and rules().digits.get(provider) == len(value))
