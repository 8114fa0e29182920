"""The token counts an error states, and which is which.

Providers word the same few facts in a hundred ways, so nothing here knows a provider. A number is read with the
words before it (back to the previous number or the sentence's start) and directly after it. Two questions decide:
is it a bound or a value (`at most`, `exceeds the limit of` / `resulted in`, `requested`), and of what (input,
output, both). Error codes, dates, request ids, model names, bytes, characters and seconds are no token counts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

CAP = "outcap"
"""Stands for the output cap, however a provider names the parameter (`max_tokens`, `maxOutputTokens` …)."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a text states, in tokens. `limit` bounds the input (or input and output together), `cap` the output."""

    limit: int | None = None
    input: int | None = None
    output: int | None = None
    total: int | None = None
    cap: int | None = None
    available: int | None = None

    @property
    def known(self) -> int:
        return sum(value is not None for value in (self.limit, self.input, self.output, self.total, self.cap))


# --- words -----------------------------------------------------------------------------------------------------

_UNICODE = re.compile(r"\\u([0-9a-fA-F]{4})")
_NOISE = re.compile(
    r"</?[a-zA-Z!][^<>]{0,300}>|https?://\S+"
    r"|(?:\n|\\n)\s{1,40}at [^\n\\]{1,300}|File \"[^\"\n]{1,300}\", line \d{1,7}"
    r"|(?<![\w./-])(?=\w{1,60}[./])[\w./-]{1,200}(?::[a-z_]{1,60})?(?::\d{1,7})+"
    r"|(?:request|trace|log)[ _-]?id\W{1,4}[\w-]{6,80}|\b\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?|\\[nrt]",
    re.IGNORECASE,
)
"""Markup, addresses, and when and where in a program an error was raised, with the ids it goes by."""
_FIELD = re.compile(
    r"""\\?["']?\b(?:error|message|msg|detail|object|type|param|code|status)\\?["']\s*:|\b(?:message|msg|detail):\s""",
    re.IGNORECASE,
)
"""The name of an error's field, as a printed object has it: what follows is a thought of its own."""
_CAP_NAME = re.compile(
    r"max(?:imum)?_(?:(?:output|completion|new|gen|generated|response)_)?tokens(?:_to_sample)?(?![a-z_])"
    r"|max_gen_len\b|n(?:um)?_predict\b|max(?:output|completion|new)?token(?:s|count)(?![a-z_])"
    r"|\bmax(?:imum)? tokens (?:you )?request(?:ed)?\b"
    r"|\bmax tokens(?= (?:must|should|is|are|value|parameter|cannot|exceed)| ?[:=(]* ?\d)",
    re.IGNORECASE,
)
_WORD = re.compile(r"[A-Za-z0-9_./@#\\-]+")
_NUMBERISH = re.compile(r"\d[\d,_.]*(?:(?:[kKmM]|[kKmMgG]i?[bB]|ms|px|[sSbBhH]|-?[kK]?-?tokens?|bytes)\.*)?")
_DATE = re.compile(r"\d+(?:[-/]\d+)+\.*")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_HYPHEN = re.compile(r"(?<=[a-zA-Z])-(?=[a-zA-Z])")
_QUOTES = str.maketrans("_\r\n", " ;;", "`'\"’‘“”*\\")
_SPACES = re.compile(r"\s+")
_BOILERPLATE = re.compile(
    r"input validation error|malformed input request|extra inputs are not permitted|input should(?= be| have)"
    r"|reformat your input"
)
_SENTENCE = re.compile(r"(?<![.;!?…])[.;!?…]+(?=\s|$)|[。；！？]|\s\|\s")


def plain(text: str) -> str:
    """The text in plain lower-case words: identifiers split, quotes, markup and digits inside names gone."""
    text = _UNICODE.sub(lambda match: chr(int(match[1], 16)), text)
    text = _FIELD.sub(" ; ", _NOISE.sub(" ", unicodedata.normalize("NFKC", text)))
    text = _CAP_NAME.sub(f" {CAP} ", text)
    text = _WORD.sub(_without_digits, text)
    text = _CAMEL.sub(" ", _HYPHEN.sub(" ", text)).lower().translate(_QUOTES)
    return _BOILERPLATE.sub(" ", _SPACES.sub(" ", text)).strip()


def sentences(text: str) -> list[str]:
    """A plain text cut where a thought ends."""
    return [part.strip() for part in _SENTENCE.split(text) if part.strip()]


def _without_digits(match: re.Match[str]) -> str:
    word = match[0]
    if _DATE.fullmatch(word):
        return ""
    if word.isalpha() or _NUMBERISH.fullmatch(word) or not any(map(str.isdigit, word)):
        return word
    return re.sub(r"[^A-Za-z]+", " ", word) if re.search(r"[A-Za-z]", word) else word


# --- numbers ---------------------------------------------------------------------------------------------------

_NUMBER = re.compile(
    r"(?<![a-z0-9.])(?P<whole>\d{1,3}(?:[, ]\d{3}){1,4}(?!\d) ?(?=tokens?)|\d{1,3}(?:,\d{3}){1,4}(?!\d)|\d++)"
    r"(?P<fraction>\.\d+)?(?: ?(?P<scale>[km万](?![a-z])))?"
)
_SCALE = {"k": 1000, "m": 1_000_000, "万": 10_000, None: 1}
_RANGE = re.compile(
    r"[\[(] ?\d{1,9} ?[,~] ?(?P<a>\d{1,9}) ?[\])]|between \d{1,9} and (?P<b>\d{1,9})"
    r"|from \d{1,9} (?:\(inclusive\) )?to (?P<c>\d{1,9})(?P<open> \(exclusive\))?"
)
_SUM = re.compile(
    r"(?<!\d)(?P<input>\d{1,9}) ?\+ ?(?P<output>\d{1,9}) ?(?:= ?\d{1,9} ?)?(?:>=?|≥|exceeds) ?(?P<limit>\d{1,9})"
)

_INPUT = (
    r"(?:inputs?|prompts?|messages?|conversation|history|functions?|n keep|eingaben?|entradas?|entrées?)(?![a-z])"
    r"|输入|提示词|入力|입력"
)
_OUTPUT = (
    rf"(?:{CAP}|outputs?|completions?|predictions?|generation|generate[sd]?|responses?|ausgaben?|salidas?|sorties?)"
    r"(?![a-z])|输出|出力|출력"
)
_CONTEXT = r"(?:[ck]ontexte?o?|window|n ctx|sequence)(?![a-z])|model len|上下文|コンテキスト|컨텍스트"
_NOUN = re.compile(
    rf"(?P<input>(?<![a-z])(?:{_INPUT}))|(?P<output>(?<![a-z])(?:{_OUTPUT}))"
    rf"|(?P<context>(?<![a-z])(?:{_CONTEXT}))|(?P<total>(?<![a-z])(?:requested|total)(?![a-z]))"
)
_BOUND = re.compile(
    r"(?P<limit>max(?:imum)?\b(?: \w+){0,3} (?:count|value|total|number)(?: (?:of|is))?"
    r"|max(?:imum)?\b|limit\w*|at most|up to|exceed\w*|than\b|equal to|over\b|[<>≤≥]=?|\bonly\b|supports?\b"
    r"|allow\w*|context (?:length|window|size)|context(?= ?[:=] ?$)|n ctx|configured|expected"
    r"|supera|excede|máxim|höchst|maximal|überschreit|dépass|上限|最大|最多|限制|超过|超出|以内|초과|최대)"
    r"|(?P<value>requested|asked for|resulted in(?: over)?|supplied|contain\w*|\bha(?:s|ve|d)\b|provided|given|received"
    r"|\bgot\b|passed|sent\b|used\b|current\w*|actual\w*|count (?:is|of)|total of|keep the first|n keep"
    r"|value (?:of|=|is)|too (?:long|large|big|high|many)(?: tokens?)?(?= ?[:(]* ?$)|当前|实际|现有)"
    r"|(?P<available>available(?: output)? tokens?|remaining|tokens left)"
)
_BY = re.compile(r"\bby(?: about| at least)? ?$")
_CODE_BEFORE = re.compile(r"(?:code|status|http|errno|\bid|port|line|version|#|error|text, value)[ :=(\[<]*$|\w\[$")
_STATUS_BEFORE = re.compile(r"(?:code|status|http|errno|error|exception)[ :=(\[<-]*$")
_UNIT_AFTER = re.compile(
    r" ?(?:input |prompt )?(?:%|ms\b|s\b|sec|min|hours?|days?|h\b|b\b|[kmg]i?b\b|bytes?|char|字|px|pixel|images?"
    r"|pages?|messages?\b|requests?|items?|elements?|blocks?|turns?|documents?|times)"
)
_TOKENS_AFTER = re.compile(r" ?(?:input |prompt |output |completion )?tokens?\b")
_VALUE_AFTER = re.compile(
    r"[ )\],]*+(?:(?:input |prompt )?tokens?)?+[ )\],]*+(?:(?:which|that|is|are|has|have) )*"
    r"(?:exceed(?:s|ing)?(?= \S)|exceeded(?= (?:the|this|its|max|limit|context|model|allowed|available|\(?\d))"
    r"|>|≥|(?:longer|greater|larger|more|higher|bigger) than|over\b|超|大于"
    r"|too (?:long|large|many|big)|w(?:ere|as) (?:sent|given|provided|requested|received)"
    r"|(?:must|should) (?:not |be )|cannot (?:be|exceed))"
)
_LIMIT_AFTER = re.compile(
    r"[ )]*(?:tokens? )?(?:(?:is|are) )?(?:the )?(?:max(?:imum)?\b|limit\b|token limit|context\b|allowed\b|上限)"
)
_PART_AFTER = re.compile(
    r"[ )]*(?:tokens? )?(?:in|of|for|from)(?: (?:the|your|text|tool|image|audio|system|input))* "
    rf"(?:(?P<input>{_INPUT}|tools?|system)|(?P<output>{_OUTPUT}))\b"
)
_NOUN_AFTER = re.compile(
    rf"[ )]*(?:(?P<input>inputs?|prompt)|(?P<output>{CAP}|completion|output|generated|new|(?:tokens? )?to generate))\b"
)
_OPERATOR_ONLY = re.compile(r"[ )]*+(?:tokens?)?+[ )]*+(?:[<>]=?|≥|≤|exceeds)[ (]*")

_SMALLEST_WINDOW = 64
"""Nothing smaller is a context; it is a count of something else."""
_LARGEST = 10**8
"""Nothing larger is a count; it is an id."""


@dataclass(frozen=True, slots=True)
class _Number:
    value: int
    role: str
    part: bool = False
    """Whether it is one of several inputs that add up."""
    sure: bool = False
    """Whether it is said to be the context's own length."""


def read_counts(kept: list[str]) -> Counts:
    """The counts that these sentences state, taken together. Where only the output is spoken of, all is about it."""
    only_output = set(_nouns(" ; ".join(kept))) - {"total"} == {"output"}
    found: dict[str, list[_Number]] = {}
    for sentence in kept:
        numbers = list(_numbers(sentence, ["output"] if only_output else []))
        parts = [number.value for number in numbers if number.part]
        if parts:
            numbers.append(_Number(sum(parts), "input"))
        for number in numbers:
            found.setdefault(number.role, []).append(number)
    limits = sorted(found.get("limit", []), key=lambda number: not number.sure)
    return Counts(
        limit=limits[0].value if limits else None,
        **{side: max((n.value for n in found.get(side, [])), default=None) for side in ("input", "output", "total")},
        **{side: min((n.value for n in found.get(side, [])), default=None) for side in ("cap", "available")},
    )


def _numbers(sentence: str, default: list[str]) -> Iterator[_Number]:
    total = _SUM.search(sentence)
    if total:
        yield from (_Number(int(total[role]), role, sure=True) for role in ("input", "output", "limit"))
        return
    bounds = _RANGE.search(sentence)
    if bounds:
        top = int(bounds["a"] or bounds["b"] or bounds["c"]) - bool(bounds["open"])
        yield _bound(top, _nouns(sentence[: bounds.start()])[-1:] or default)
        return
    matches = list(_NUMBER.finditer(sentence))
    nouns: list[str] = []
    taken = 0
    first = True
    for index, match in enumerate(matches):
        before = sentence[taken : match.start()][-160:]
        after = sentence[match.end() : matches[index + 1].start() if index + 1 < len(matches) else None][:80]
        value = _number(match)
        alone = first and index + 1 == len(matches)
        if value > _LARGEST or _is_foreign(before, after, first=first, alone=alone, value=value):
            taken = match.end()
            continue
        first = False
        own = _NOUN_AFTER.match(after)
        taken = match.end() + (own.end() if own else 0)
        if _OPERATOR_ONLY.fullmatch(before) is None:
            nouns = _nouns(before) or default
        yield from _role(value, before, after, nouns)


def _number(match: re.Match[str]) -> int:
    whole = re.sub(r"\D", "", match["whole"])
    return round(float(whole[:12] + (match["fraction"] or "")) * _SCALE[match["scale"]])


def _is_foreign(before: str, after: str, *, first: bool, alone: bool, value: int) -> bool:
    """Whether the number is no token count: a code, a status, a unit of something else, the size of an excess."""
    leads = first and not before.strip(" <[()]:-")
    if 100 <= value <= 599 and (leads or _STATUS_BEFORE.search(before)) and not after.startswith(" tokens"):
        return True
    if _TOKENS_AFTER.match(after):
        return bool(_BY.search(before))
    if _UNIT_AFTER.match(after) or _BY.search(before) or _CODE_BEFORE.search(before):
        return True
    if leads and after.startswith(":"):
        return True
    bracketed = before.rstrip().endswith(("(", "[")) and after.lstrip().startswith((")", "]"))
    return alone and bracketed and value < 10_000 and value % 256 != 0 and value % 1000 != 0


def _role(value: int, before: str, after: str, nouns: list[str]) -> Iterator[_Number]:
    part = _PART_AFTER.match(after)
    noun = part or _NOUN_AFTER.match(after)
    if noun:
        nouns = [str(noun.lastgroup)]
    last = ""
    for match in _BOUND.finditer(before):
        last = str(match.lastgroup)
    if last == "available":
        yield _Number(value, last)
    elif part and last != "limit":
        yield _Number(value, nouns[0], part=nouns == ["input"])
    elif _VALUE_AFTER.match(after):
        yield _value(value, nouns)
    elif last == "limit" or _LIMIT_AFTER.match(after):
        yield from (found for found in [_bound(value, nouns)] if found.role == "cap" or value >= _SMALLEST_WINDOW)
    elif last == "value" or nouns:
        yield _value(value, nouns)


def _bound(value: int, nouns: list[str]) -> _Number:
    """A bound of the output alone is its cap; any other bounds the context."""
    return _Number(value, "cap") if set(nouns) == {"output"} else _Number(value, "limit", sure="context" in nouns)


def _value(value: int, nouns: list[str]) -> _Number:
    """Of what a value is: both sides named before it, or none, make a total; else the noun nearest to it."""
    sides = [noun for noun in nouns if noun != "context"]
    return _Number(value, sides[-1] if sides and not {"input", "output"} <= set(sides) else "total")


def _nouns(text: str) -> list[str]:
    """What the words speak of, in order."""
    return [str(match.lastgroup) for match in _NOUN.finditer(text)]
