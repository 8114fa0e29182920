"""Read the token counts and limits that an error states."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from everthread.core.provider_errors.phrases import TOKENS_PATTERN
from everthread.core.provider_errors.sentences import OUT_CAP


@dataclass(frozen=True, slots=True)
class Counts:
    """Stated figures, in tokens. `limit` bounds the input (or input and output together), `cap` the output."""

    limit: int | None = None
    input: int | None = None
    output: int | None = None
    total: int | None = None
    cap: int | None = None
    available: int | None = None

    @property
    def stated(self) -> int:
        return sum(
            value is not None
            for value in (self.limit, self.input, self.output, self.total, self.cap)
        )


_NUMBER = re.compile(
    r"(?<![a-z0-9.])(?P<whole>\d{1,3}(?:[, ]\d{3}){1,4}(?!\d) ?(?=tokens?|\W{0,4}$)"
    r"|\d{1,3}(?:[,.]\d{3}){1,4}(?!\.?\d)|\d++)"
    r"(?P<fraction>\.\d+)?(?: ?(?P<scale>[km万](?![a-z])))?"
)
_SCALE = {"k": 1000, "m": 1_000_000, "万": 10_000, None: 1}
_RANGE = re.compile(
    r"[\[(] ?\d{1,9} ?[,~] ?(?P<a>\d{1,9}) ?[\])]|between \d{1,9} and (?P<b>\d{1,9})"
    r"|from \d{1,9} (?:\(inclusive\) )?to (?P<c>\d{1,9})(?P<open> \(exclusive\))?"
)
_RATIO = re.compile(
    r"(?<!\d)(?P<total>\d{1,9}) ?(?:of|/|out of) ?(?P<limit>\d{1,9}) (?:input |prompt |context )?tokens?\b"
)
"""Tokens used, and the limit."""
_SUM = re.compile(
    r"(?<!\d)(?P<input>\d{1,9}) ?\+ ?(?P<output>\d{1,9}) ?(?:= ?\d{1,9} ?)?(?:>=?|≥|exceeds) ?(?P<limit>\d{1,9})"
)

_INPUT = (
    r"(?:inputs?|prompts?|messages?|conversation|history|functions?|n keep|eingaben?|entradas?|entrées?)(?![a-z])"
    r"|输入|提示词|入力|입력"
)
_OUTPUT = (
    rf"(?:{OUT_CAP}|outputs?|completions?|predictions?|generation|generate[sd]?|responses?|answers?|repl(?:y|ies)"
    r"|ausgaben?|salidas?|sorties?)"
    r"(?![a-z])|输出|出力|출력"
)
_CONTEXT = r"(?:[ck]ontexte?o?|window|n ctx|sequence)(?![a-z])|model len|上下文|コンテキスト|컨텍스트"
_NOUN = re.compile(
    rf"(?P<input>(?<![a-z])(?:{_INPUT}))|(?P<output>(?<![a-z])(?:{_OUTPUT}))"
    rf"|(?P<context>(?<![a-z])(?:{_CONTEXT}))|(?P<total>(?<![a-z])(?:requested|total)(?![a-z]))"
)
_BOUND = re.compile(
    r"(?P<limit>max(?:imum)?\b(?: \w+){0,3} (?:count|value|total|number)(?: (?:of|is))?"
    r"|max(?:imum)?\b|limit\w*|at most|(?<!add )(?<!adds )up to|exceed\w*|than\b|equal to|over\b|[<>≤≥]=?|\bonly\b"
    r"|supports?\b|allow\w*|ceiling|capacity|room for(?= ?$)"
    r"|context (?:length|window|size)|context(?= ?[:=] ?$)|n ctx|configured|expected"
    r"|window(?= (?:of|is|has))"
    r"|(?:model|window|server|endpoint) (?:\w+ ){0,2}has\b"
    r"|\b(?:holds?|takes?|accepts?|fits?|reads?|handles?)(?= ?(?:only|just)? ?[(:]? ?$)"
    r"|supera|excede|máxim|höchst|maximal|überschreit|dépass|上限|最大|最多|限制|超过|超出|以内|초과|최대)"
    r"|(?P<value>requested|asked for|resulted in(?: over)?|supplied|contain\w*|\bha(?:s|ve|d)\b|provided|given|received"
    r"|\bgot\b|passed|sent\b|used\b|current\w*|actual\w*|needs?\b|count (?:is|of)|total of|keep the first|n keep"
    r"|value (?:of|=|is)|too (?:long|large|big|high|many)(?: tokens?)?(?= ?[:(]* ?$)|当前|实际|现有)"
    r"|(?P<available>available(?: output)? tokens?|remaining|tokens left)"
)
_EXCEEDED_BY = re.compile(r"\bby(?: about| at least)? ?$")
_CODE_BEFORE = re.compile(
    r"(?:code|status|http|errno|\bid|port|line|version|#|error|text, value)[ :=(\[<]*$|\w\[$"
)
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
    r"[ )]*(?:tokens? )?(?:(?:is|are) )?(?:the )?"
    r"(?:max(?:imum)?\b|limit\b|token limit|context\b|window\b|allowed\b|上限)"
)
_AVAILABLE_AFTER = re.compile(
    r" ?(?:output )?(?:tokens? )?(?:remain|(?:are|is) (?:left|free|available)\b)"
)
_PART_AFTER = re.compile(
    r"[ )]*(?:tokens? )?(?:in|of|for|from)(?: (?:the|your|text|tool|image|audio|system|input))* "
    rf"(?:(?P<input>{_INPUT}|tools?|system)|(?P<output>{_OUTPUT}))\b"
)
_NOUN_AFTER = re.compile(
    rf"[ )]*(?:(?P<input>inputs?|prompt)"
    rf"|(?P<output>{OUT_CAP}|completion|output|generated|new|(?:tokens? )?to generate))\b"
)
_OPERATOR_ONLY = re.compile(r"[ )]*+(?:tokens?)?+[ )]*+(?:[<>]=?|≥|≤|exceeds)[ (]*")

_MIN_WINDOW = 64
"""Nothing smaller is a context; it is a count of something else."""
_MAX_COUNT = 10**8
"""Nothing larger is a count; it is an id."""
_MAX_EXCESS = 100
"""A value is at most this many times its bound, if the two are compared by size alone."""
_LOWER_BOUND = re.compile(
    r"at least|minimum|\bmin\b|too (?:small|few|short|low)|below|fewer|less than|≥|>="
)


@dataclass(frozen=True, slots=True)
class _Number:
    value: int
    role: str
    part: bool = False
    """Whether it is one of several inputs that add up."""
    sure: bool = False
    """Whether it is said to be the context's own length."""


def read_counts(sentences: list[str]) -> Counts:
    """Return the counts that these sentences state together. If only the output is mentioned, all are about it."""
    only_output = set(_nouns(" ; ".join(sentences))) - {"total"} == {"output"}
    by_role: dict[str, list[_Number]] = {}
    for sentence in sentences:
        numbers = list(_numbers(sentence, ["output"] if only_output else []))
        parts = [number.value for number in numbers if number.part]
        if parts:
            numbers.append(_Number(sum(parts), "input"))
        for number in numbers:
            by_role.setdefault(number.role, []).append(number)
    limits = sorted(by_role.get("limit", []), key=lambda number: not number.sure)
    return Counts(
        limit=limits[0].value if limits else None,
        **{
            side: max((n.value for n in by_role.get(side, [])), default=None)
            for side in ("input", "output", "total")
        },
        **{
            side: min((n.value for n in by_role.get(side, [])), default=None)
            for side in ("cap", "available")
        },
    )


def _numbers(sentence: str, default: list[str]) -> Iterator[_Number]:
    total = _SUM.search(sentence)
    if total:
        yield from (
            _Number(int(total[role]), role, sure=True)
            for role in ("input", "output", "limit")
        )
        return
    ratio = _RATIO.search(sentence)
    if ratio and int(ratio["total"]) > int(ratio["limit"]) >= _MIN_WINDOW:
        yield from (
            _Number(int(ratio[role]), role, sure=True) for role in ("total", "limit")
        )
        return
    bounds = _RANGE.search(sentence)
    if bounds:
        top = int(bounds["a"] or bounds["b"] or bounds["c"]) - bool(bounds["open"])
        yield _bound(top, _nouns(sentence[: bounds.start()])[-1:] or default)
        return
    nouns: list[str] = []
    for figure in _figures(sentence):
        if _OPERATOR_ONLY.fullmatch(figure.before) is None:
            nouns = _nouns(figure.before) or default
        yield from _role(figure, nouns)


@dataclass(frozen=True, slots=True)
class _Figure:
    """A number that may count tokens, with the words around it."""

    value: int
    before: str
    after: str
    is_alone: bool
    """It is the only number of its sentence."""


def _figures(sentence: str) -> Iterator[_Figure]:
    """Yield the numbers of a sentence that may count tokens."""
    matches = list(_NUMBER.finditer(sentence))
    taken = 0
    first = True
    for index, match in enumerate(matches):
        before = sentence[taken : match.start()][-160:]
        is_last = index + 1 == len(matches)
        end = None if is_last else matches[index + 1].start()
        after = sentence[match.end() : end][:80]
        digits = re.sub(r"\D", "", match["whole"])[:12]
        value = round(
            float(digits + (match["fraction"] or "")) * _SCALE[match["scale"]]
        )
        alone = first and is_last
        if value > _MAX_COUNT or _is_foreign(
            before, after, first=first, alone=alone, value=value
        ):
            taken = match.end()
            continue
        first = False
        own = _NOUN_AFTER.match(after)
        taken = match.end() + (own.end() if own else 0)
        yield _Figure(value, before, after, is_alone=alone)


def compare_sizes(sentences: list[str]) -> Counts:
    """Return the counts by their sizes alone, for wording that is not understood.

    A request is refused because a value exceeds its bound. Of two figures the smaller one
    is the bound; of three, the largest is if the other two add up to more than it.
    """
    text = " ; ".join(sentences)
    nouns = set(_nouns(text)) - {"total"}
    if _LOWER_BOUND.search(text) or not (nouns or TOKENS_PATTERN.search(text)):
        return Counts()
    found = {figure.value for part in sentences for figure in _figures(part)}
    sizes = sorted(size for size in found if size >= _MIN_WINDOW)
    match sizes:
        case [bound, value] if value <= _MAX_EXCESS * bound:
            if nouns == {"output"}:
                return Counts(cap=bound, output=value)
            return Counts(limit=bound, total=value)
        case [output, prompt, bound] if "output" in nouns and prompt + output > bound:
            return Counts(limit=bound, input=prompt, output=output)
    return Counts()


def _is_foreign(
    before: str, after: str, *, first: bool, alone: bool, value: int
) -> bool:
    """Return whether the number is not a token count: a code, a status, another unit, the size of an excess."""
    leads = first and not before.strip(" <[()]:-")
    if (
        100 <= value <= 599
        and (leads or _STATUS_BEFORE.search(before))
        and not after.startswith(" tokens")
    ):
        return True
    if _TOKENS_AFTER.match(after):
        return bool(_EXCEEDED_BY.search(before))
    if (
        _UNIT_AFTER.match(after)
        or _EXCEEDED_BY.search(before)
        or _CODE_BEFORE.search(before)
    ):
        return True
    if leads and after.startswith(":"):
        return True
    bracketed = before.rstrip().endswith(("(", "[")) and after.lstrip().startswith(
        (")", "]")
    )
    return (
        alone
        and bracketed
        and value < 10_000
        and value % 256 != 0
        and value % 1000 != 0
    )


def _role(figure: _Figure, nouns: list[str]) -> Iterator[_Number]:
    value = figure.value
    after = figure.after
    part = _PART_AFTER.match(after)
    noun = part or _NOUN_AFTER.match(after)
    if noun:
        nouns = [str(noun.lastgroup)]
    last = ""
    for match in _BOUND.finditer(figure.before):
        last = str(match.lastgroup)
    if last == "available" or _AVAILABLE_AFTER.match(after):
        yield _Number(value, "available")
    elif part and last != "limit":
        yield _Number(value, nouns[0], part=nouns == ["input"])
    elif _VALUE_AFTER.match(after):
        yield _value(value, nouns)
    elif (
        last == "limit"
        or _LIMIT_AFTER.match(after)
        or (figure.is_alone and not last and nouns[-1:] == ["context"])
    ):
        yield from (
            number
            for number in [_bound(value, nouns)]
            if number.role == "cap" or value >= _MIN_WINDOW
        )
    elif last == "value" or nouns:
        yield _value(value, nouns)


def _bound(value: int, nouns: list[str]) -> _Number:
    """Return the role of a bound: of the output alone it is the cap, else the limit of the context."""
    return (
        _Number(value, "cap")
        if set(nouns) == {"output"}
        else _Number(value, "limit", sure="context" in nouns)
    )


def _value(value: int, nouns: list[str]) -> _Number:
    """Of what a value is: both sides named before it, or none, make a total; else the noun nearest to it."""
    sides = [noun for noun in nouns if noun != "context"]
    return _Number(
        value, sides[-1] if sides and not {"input", "output"} <= set(sides) else "total"
    )


def _nouns(text: str) -> list[str]:
    """Return the nouns in the words, in order."""
    return [str(match.lastgroup) for match in _NOUN.finditer(text)]
