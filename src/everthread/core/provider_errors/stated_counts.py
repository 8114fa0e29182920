"""Read the token counts and limits that an error states."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from everthread.core.provider_errors.error_sentences import OUTPUT_CAP_PLACEHOLDER
from everthread.core.provider_errors.phrases import TOKENS_PATTERN


@dataclass(frozen=True, slots=True)
class Counts:
    """The figures that an error states, in tokens. A figure that is not stated is None."""

    limit: int | None = None
    """Maximum of the input, or of input and output together."""
    input: int | None = None
    output: int | None = None
    total: int | None = None
    cap: int | None = None
    """Maximum of the output."""
    available: int | None = None
    """Tokens that the input leaves for the output."""

    @property
    def stated_count(self) -> int:
        return sum(
            value is not None
            for value in (self.limit, self.input, self.output, self.total, self.cap)
        )


_NUMBER_PATTERN = re.compile(
    r"(?<![a-z0-9.])(?P<whole>\d{1,3}(?:[, ]\d{3}){1,4}(?!\d) ?(?=tokens?|\W{0,4}$)"
    r"|\d{1,3}(?:[,.]\d{3}){1,4}(?!\.?\d)|\d++)"
    r"(?P<fraction>\.\d+)?(?: ?(?P<scale>[km万](?![a-z])))?"
)
_SCALE = {"k": 1000, "m": 1_000_000, "万": 10_000, None: 1}
_RANGE_PATTERN = re.compile(
    r"[\[(] ?\d{1,9} ?[,~] ?(?P<a>\d{1,9}) ?[\])]|between \d{1,9} and (?P<b>\d{1,9})"
    r"|from \d{1,9} (?:\(inclusive\) )?to (?P<c>\d{1,9})(?P<open> \(exclusive\))?"
)
_RATIO_PATTERN = re.compile(
    r"(?<!\d)(?P<total>\d{1,9}) ?(?:of|/|out of) ?(?P<limit>\d{1,9}) (?:input |prompt |context )?tokens?\b"
)
"""Tokens used, and the limit."""
_SUM_PATTERN = re.compile(
    r"(?<!\d)(?P<input>\d{1,9}) ?\+ ?(?P<output>\d{1,9}) ?(?:= ?\d{1,9} ?)?(?:>=?|≥|exceeds) ?(?P<limit>\d{1,9})"
)

_INPUT = (
    r"(?:inputs?|prompts?|messages?|conversation|history|functions?|n keep|eingaben?|entradas?|entrées?)(?![a-z])"
    r"|输入|提示词|入力|입력"
)
_OUTPUT = (
    rf"(?:{OUTPUT_CAP_PLACEHOLDER}|outputs?|completions?|predictions?|generation|generate[sd]?|responses?|answers?|repl(?:y|ies)"
    r"|ausgaben?|salidas?|sorties?)"
    r"(?![a-z])|输出|出力|출력"
)
_CONTEXT = (
    r"(?:[ck]ontexte?o?|window|n ctx|sequence)(?![a-z])|model len|上下文|コンテキスト|컨텍스트"
)
_NOUN_PATTERN = re.compile(
    rf"(?P<input>(?<![a-z])(?:{_INPUT}))|(?P<output>(?<![a-z])(?:{_OUTPUT}))"
    rf"|(?P<context>(?<![a-z])(?:{_CONTEXT}))|(?P<total>(?<![a-z])(?:requested|total)(?![a-z]))"
)
_BOUND_PATTERN = re.compile(
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
_EXCEEDED_BY_PATTERN = re.compile(r"\bby(?: about| at least)? ?$")
_CODE_BEFORE_PATTERN = re.compile(
    r"(?:code|status|http|errno|\bid|port|line|version|#|error|text, value)[ :=(\[<]*$|\w\[$"
)
_STATUS_BEFORE_PATTERN = re.compile(r"(?:code|status|http|errno|error|exception)[ :=(\[<-]*$")
_UNIT_AFTER_PATTERN = re.compile(
    r" ?(?:input |prompt )?(?:%|ms\b|s\b|sec|min|hours?|days?|h\b|b\b|[kmg]i?b\b|bytes?|char|字|px|pixel|images?"
    r"|pages?|messages?\b|requests?|items?|elements?|blocks?|turns?|documents?|times)"
)
_TOKENS_AFTER_PATTERN = re.compile(r" ?(?:input |prompt |output |completion )?tokens?\b")
_VALUE_AFTER_PATTERN = re.compile(
    r"[ )\],]*+(?:(?:input |prompt )?tokens?)?+[ )\],]*+(?:(?:which|that|is|are|has|have) )*"
    r"(?:exceed(?:s|ing)?(?= \S)|exceeded(?= (?:the|this|its|max|limit|context|model|allowed|available|\(?\d))"
    r"|>|≥|(?:longer|greater|larger|more|higher|bigger) than|over\b|超|大于"
    r"|too (?:long|large|many|big)|w(?:ere|as) (?:sent|given|provided|requested|received)"
    r"|(?:must|should) (?:not |be )|cannot (?:be|exceed))"
)
_LIMIT_AFTER_PATTERN = re.compile(
    r"[ )]*(?:tokens? )?(?:(?:is|are) )?(?:the )?"
    r"(?:max(?:imum)?\b|limit\b|token limit|context\b|window\b|allowed\b|上限)"
)
_AVAILABLE_AFTER_PATTERN = re.compile(
    r" ?(?:output )?(?:tokens? )?(?:remain|(?:are|is) (?:left|free|available)\b)"
)
_PART_AFTER_PATTERN = re.compile(
    r"[ )]*(?:tokens? )?(?:in|of|for|from)(?: (?:the|your|text|tool|image|audio|system|input))* "
    rf"(?:(?P<input>{_INPUT}|tools?|system)|(?P<output>{_OUTPUT}))\b"
)
_NOUN_AFTER_PATTERN = re.compile(
    rf"[ )]*(?:(?P<input>inputs?|prompt)"
    rf"|(?P<output>{OUTPUT_CAP_PLACEHOLDER}|completion|output|generated|new|(?:tokens? )?to generate))\b"
)
_OPERATOR_ONLY_PATTERN = re.compile(r"[ )]*+(?:tokens?)?+[ )]*+(?:[<>]=?|≥|≤|exceeds)[ (]*")

_MIN_WINDOW = 64
"""A smaller number counts something else than a context."""
_MAX_COUNT = 10**8
"""A larger number is an id, not a count."""
_MAX_EXCESS_FACTOR = 100
"""A value is at most this many times its bound, if the two are compared by size alone."""
_LOWER_BOUND_PATTERN = re.compile(
    r"at least|minimum|\bmin\b|too (?:small|few|short|low)|below|fewer|less than|≥|>="
)


@dataclass(frozen=True, slots=True)
class _Number:
    """A token count that a sentence states, and its role: a field of `Counts`."""

    value: int
    role: str
    is_part: bool = False
    """Whether it is one of several inputs that add up."""
    is_certain: bool = False
    """Whether the text names it as the context length."""


def read_counts(sentences: list[str]) -> Counts:
    """Return the counts that these sentences state together; all are of the output if only the output is mentioned."""
    is_output_only = set(_find_nouns(" ; ".join(sentences))) - {"total"} == {"output"}
    by_role: dict[str, list[_Number]] = {}
    for sentence in sentences:
        numbers = list(_read_numbers(sentence, ["output"] if is_output_only else []))
        parts = [number.value for number in numbers if number.is_part]
        if parts:
            numbers.append(_Number(sum(parts), "input"))
        for number in numbers:
            by_role.setdefault(number.role, []).append(number)
    limits = sorted(by_role.get("limit", []), key=lambda number: not number.is_certain)
    return Counts(
        limit=limits[0].value if limits else None,
        **{
            role: max((number.value for number in by_role.get(role, [])), default=None)
            for role in ("input", "output", "total")
        },
        **{
            role: min((number.value for number in by_role.get(role, [])), default=None)
            for role in ("cap", "available")
        },
    )


def _read_numbers(sentence: str, default_nouns: list[str]) -> Iterator[_Number]:
    """Yield the numbers of a sentence with the role of each: input, output, limit, cap or room left.

    `default_nouns`: the nouns of the sentences before, for a number that has no noun of its own.
    """
    sum_match = _SUM_PATTERN.search(sentence)
    if sum_match:
        yield from (
            _Number(int(sum_match[role]), role, is_certain=True)
            for role in ("input", "output", "limit")
        )
        return
    ratio_match = _RATIO_PATTERN.search(sentence)
    if ratio_match and int(ratio_match["total"]) > int(ratio_match["limit"]) >= _MIN_WINDOW:
        yield from (
            _Number(int(ratio_match[role]), role, is_certain=True) for role in ("total", "limit")
        )
        return
    range_match = _RANGE_PATTERN.search(sentence)
    if range_match:
        upper_bound = int(range_match["a"] or range_match["b"] or range_match["c"]) - bool(
            range_match["open"]
        )
        yield _classify_bound(
            upper_bound,
            _find_nouns(sentence[: range_match.start()])[-1:] or default_nouns,
        )
        return
    nouns: list[str] = []
    for figure in _find_figures(sentence):
        if _OPERATOR_ONLY_PATTERN.fullmatch(figure.text_before) is None:
            nouns = _find_nouns(figure.text_before) or default_nouns
        yield from _assign_role(figure, nouns)


@dataclass(frozen=True, slots=True)
class _Figure:
    """A number that may count tokens, with the words around it."""

    value: int
    text_before: str
    text_after: str
    is_alone: bool
    """Whether it is the only number of its sentence."""


def _find_figures(sentence: str) -> Iterator[_Figure]:
    """Yield the numbers of a sentence that may count tokens."""
    matches = list(_NUMBER_PATTERN.finditer(sentence))
    consumed_end = 0
    is_first = True
    for index, match in enumerate(matches):
        text_before = sentence[consumed_end : match.start()][-160:]
        is_last = index + 1 == len(matches)
        end = None if is_last else matches[index + 1].start()
        text_after = sentence[match.end() : end][:80]
        digits = re.sub(r"\D", "", match["whole"])[:12]
        value = round(float(digits + (match["fraction"] or "")) * _SCALE[match["scale"]])
        is_alone = is_first and is_last
        if value > _MAX_COUNT or _is_not_token_count(
            text_before, text_after, is_first=is_first, is_alone=is_alone, value=value
        ):
            consumed_end = match.end()
            continue
        is_first = False
        own_noun = _NOUN_AFTER_PATTERN.match(text_after)
        consumed_end = match.end() + (own_noun.end() if own_noun else 0)
        yield _Figure(value, text_before, text_after, is_alone=is_alone)


def compare_sizes(sentences: list[str]) -> Counts:
    """Return the counts by their sizes alone, for wording that is not understood.

    A request is refused because a value exceeds its bound. If two figures are stated, the smaller one is the bound. If
    three are stated, the largest is, provided that the other two add up to more.
    """
    text = " ; ".join(sentences)
    nouns = set(_find_nouns(text)) - {"total"}
    if _LOWER_BOUND_PATTERN.search(text) or not (nouns or TOKENS_PATTERN.search(text)):
        return Counts()
    values = {figure.value for sentence in sentences for figure in _find_figures(sentence)}
    sizes = sorted(size for size in values if size >= _MIN_WINDOW)
    match sizes:
        case [bound, value] if value <= _MAX_EXCESS_FACTOR * bound:
            if nouns == {"output"}:
                return Counts(cap=bound, output=value)
            return Counts(limit=bound, total=value)
        case [output, prompt, bound] if "output" in nouns and prompt + output > bound:
            return Counts(limit=bound, input=prompt, output=output)
    return Counts()


def _is_not_token_count(
    text_before: str, text_after: str, *, is_first: bool, is_alone: bool, value: int
) -> bool:
    """Return whether the number is not a token count: a code, a status, another unit, the size of an excess."""
    is_at_start = is_first and not text_before.strip(" <[()]:-")
    if (
        100 <= value <= 599
        and (is_at_start or _STATUS_BEFORE_PATTERN.search(text_before))
        and not text_after.startswith(" tokens")
    ):
        return True
    if _TOKENS_AFTER_PATTERN.match(text_after):
        return bool(_EXCEEDED_BY_PATTERN.search(text_before))
    if (
        _UNIT_AFTER_PATTERN.match(text_after)
        or _EXCEEDED_BY_PATTERN.search(text_before)
        or _CODE_BEFORE_PATTERN.search(text_before)
    ):
        return True
    if is_at_start and text_after.startswith(":"):
        return True
    is_bracketed = text_before.rstrip().endswith(("(", "[")) and text_after.lstrip().startswith(
        (")", "]")
    )
    return is_alone and is_bracketed and value < 10_000 and value % 256 != 0 and value % 1000 != 0


def _assign_role(figure: _Figure, nouns: list[str]) -> Iterator[_Number]:
    """Yield the figure with its role, or nothing if the words around it give it none.

    A noun right after the figure says more than `nouns`, the nouns before it. A word such as "maximum" makes the figure
    a limit, and one such as "requested" a value.
    """
    value = figure.value
    text_after = figure.text_after
    part_match = _PART_AFTER_PATTERN.match(text_after)
    noun_match = part_match or _NOUN_AFTER_PATTERN.match(text_after)
    if noun_match:
        nouns = [str(noun_match.lastgroup)]
    last_bound = ""
    for match in _BOUND_PATTERN.finditer(figure.text_before):
        last_bound = str(match.lastgroup)
    if last_bound == "available" or _AVAILABLE_AFTER_PATTERN.match(text_after):
        yield _Number(value, "available")
    elif part_match and last_bound != "limit":
        yield _Number(value, nouns[0], is_part=nouns == ["input"])
    elif _VALUE_AFTER_PATTERN.match(text_after):
        yield _classify_value(value, nouns)
    elif (
        last_bound == "limit"
        or _LIMIT_AFTER_PATTERN.match(text_after)
        or (figure.is_alone and not last_bound and nouns[-1:] == ["context"])
    ):
        yield from (
            number
            for number in [_classify_bound(value, nouns)]
            if number.role == "cap" or value >= _MIN_WINDOW
        )
    elif last_bound == "value" or nouns:
        yield _classify_value(value, nouns)


def _classify_bound(value: int, nouns: list[str]) -> _Number:
    """Return the role of a bound: the output cap if only the output is named, else the context limit."""
    if set(nouns) == {"output"}:
        return _Number(value, "cap")
    return _Number(value, "limit", is_certain="context" in nouns)


def _classify_value(value: int, nouns: list[str]) -> _Number:
    """Return the role of a value: the nearest noun, or the total if both sides or none are named before it."""
    sides = [noun for noun in nouns if noun != "context"]
    return _Number(value, sides[-1] if sides and not {"input", "output"} <= set(sides) else "total")


def _find_nouns(text: str) -> list[str]:
    """Return the kinds of nouns in a text, in order."""
    return [str(match.lastgroup) for match in _NOUN_PATTERN.finditer(text)]
