"""Classify a provider's error: compact, lower the output cap, send fewer bytes, or neither.

Structured fields come before wording, and stated numbers before phrases: an input over the
stated limit is a prompt that is too long; an input that fits, with an output cap that does
not, is a cap that is too large. Wording is read as concepts, sentence by sentence, so that
unknown providers are understood too; if that fails, the figures are compared by size.
Errors that only look like an overflow are sorted out first: rate limits that count tokens,
money, images, fields, files.
"""

from __future__ import annotations

import contextlib
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

OUT_CAP = "outcap"
"""Stands for the output cap, however a provider names the parameter (`max_tokens`, `maxOutputTokens` …)."""


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
_NUMBERISH = re.compile(
    r"\d[\d,_.]*(?:(?:[kKmM]|[kKmMgG]i?[bB]|ms|px|[sSbBhH]|-?[kK]?-?tokens?|bytes)\.*)?"
)
_DATE = re.compile(r"\d+(?:[-/]\d+)+\.*")
_MISSING_SPACE = re.compile(
    r"(?<![\w.-])(?:is|of|to|than|has|was|are)(?=\d{2,9}(?![\w-]))"
    r"|(?<=\d)(?=tokens?\b)"
    r"|(?<![\w.-])(?:is|of|to|than|has|was|are)(?=\d{2,9}tokens?\b)",
    re.IGNORECASE,
)
"""A number without a space between it and its neighbours: `is4233tokens`."""
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
    """Return the text in plain lower-case words: identifiers split, quotes, markup and digits inside names gone."""
    text = _UNICODE.sub(lambda match: chr(int(match[1], 16)), text)
    text = _FIELD.sub(" ; ", _NOISE.sub(" ", unicodedata.normalize("NFKC", text)))
    text = _MISSING_SPACE.sub(
        lambda match: f"{match[0]} ", _CAP_NAME.sub(f" {OUT_CAP} ", text)
    )
    text = _WORD.sub(_strip_digits, text)
    text = _CAMEL.sub(" ", _HYPHEN.sub(" ", text)).lower().translate(_QUOTES)
    return _BOILERPLATE.sub(" ", _SPACES.sub(" ", text)).strip()


def sentences(text: str) -> list[str]:
    """Split a plain text into sentences."""
    return [part.strip() for part in _SENTENCE.split(text) if part.strip()]


def _strip_digits(match: re.Match[str]) -> str:
    word = match[0]
    if _DATE.fullmatch(word):
        return ""
    if word.isalpha() or _NUMBERISH.fullmatch(word) or not any(map(str.isdigit, word)):
        return word
    return re.sub(r"[^A-Za-z]+", " ", word) if re.search(r"[A-Za-z]", word) else word


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
    if _LOWER_BOUND.search(text) or not (nouns or _TOKENS.search(text)):
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


Overflow = Literal["prompt_too_long", "max_tokens_too_large"]

_RATE = re.compile(
    r"rate limit|ratelimit|too many (?:\w+ )?requests|throttl|\bquotas?\b|please wait|slow down|request rate|concurren"
    r"|cool(?:ing )?down|enqueued|\b(?:per|each|every) \d* ?(?:sec|min|hour|day)"
    r"|\b[tr]p[mdh]\b|/ ?min\b|usage limits?|retry after \d"
    r"|tokens? (?:\w+ ){0,2}(?:today|this (?:minute|hour|day|week|month))\b"
    r"|capacity exceeded|(?:daily|weekly|monthly|hourly) (?:\w+ ){0,3}limit"
    r"|限流|限速|速率|频率|频繁|并发|配额|额度|访问量过大|请求过多|请求数过多"
)
_POSSIBLE_RATE = re.compile(r"resource (?:has been )?exhausted|request limit reached")
_MONEY = re.compile(
    r"insufficient (?:\w+ )?(?:credits?|balance|funds)|credit balance|more credits|only afford|billing"
    r"|payment required|paid account|plan limits|spend\w{0,5} limit|余额|欠费|充值"
)
_ONE_FIELD = re.compile(
    r"(?:string|array) (?:above|below) (?:max|min)|expected m(?:ax|in) (?:length|items)|text units?|guardrail"
)
_CHARACTERS = re.compile(
    r"(?:at most|up to|than|max\w{0,7}|limit)\b.{0,30}?\d[\d,]{0,12} ?(?:characters?|chars)\b"
    r"|string (?:too long|above max|value length)|must have length less than"
)
_CONTENT = re.compile(
    r"(?<![a-z])(?:messages?|contents?|inputs?|prompts?|body)(?![a-z])"
)
_LONG_STRING_CHARS = 100_000
"""Longer than any limit on a name, id or label; such a limit on one string is a limit on the content."""
_OTHER_FAULT = re.compile(
    r"(?:does not|doesn ?t) exist|not (?:one of|found)|must be one of|not a valid"
    r"|(?:invalid|unknown|unsupported|unrecogni[sz]ed) (?:role|model|temperature|type|enum|api key)"
)
"""The error quotes a value of the request, so words in that value are not evidence."""
_EMPTY_REFUSAL = re.compile(
    r"\W*+(?:(?:error code: |http )?400\b)?[\s:-]*+(?:bad request|status code \(no body\))?\W*+",
    re.IGNORECASE,
)
_EMPTY_ANSWER = re.compile(r"\W*+(?:http )?400\b.*\(no body\)\W*+", re.IGNORECASE)
_NO_OVERFLOW = frozenset({404, 405, 409})

# Words that a sentence must and must not contain to be about the context.
_TOKENS = re.compile(
    rf"(?:tokens?|jetons?)(?![a-z])|positions(?![a-z])|[ck]ontext|{OUT_CAP}|n ctx|model len"
    r"|上下文|词元|コンテキスト|トークン|컨텍스트|토큰|токен"
)
_LENGTH = re.compile(
    r"(?:prompts?|inputs?|conversation|messages?|model|sequence|eingabe|entrada|entrée|输入)"
    r".{0,40}?(?:len|long|lang|larg|长)"
)
_MEDIA = re.compile(
    r"(?<![a-z])(?:images?|pixels?|dimensions?|pdf|pages?|documents?|files?|audio|video|headers?|ur[il])(?![a-z])"
    r"|图片|文件"
)
_COUNTED = re.compile(
    r"(?<![a-z])(?:tools?|functions?|arrays?|strings?|metadata|stop sequences?|schema|enum|field|items?|elements?"
    r"|retries|turns|deadline|(?:gpu|cuda|device|system|of|in) memory"
    r"|characters?|chars|bytes?|[kmg]i?b|(?:too many|number of) (?:messages|inputs))"
    r"(?![a-z])|字符|字数"
)
_SPECULATION = re.compile(
    r"possible causes?|possibly|time(?:d )?out|perhaps|\bmight\b|\bmay (?:be|have)|\bcould be|probably"
    r"|(?:vision|image|audio|video) tokens? (?:\w+ ){0,2}exceed|kv cache|gpu memory|api key"
    r"|(?:access|auth|bearer|refresh|session) token|jwt|oauth"
)

# The output cap at fault: how a sentence that names it says so, and how it says something else.
_CAP_TOO_LARGE = re.compile(
    r"too (?:large|high|big|long|many)|exceed|above|range|valid|illegal|incorrect|than\b|[<>≤]|at most|cannot"
    r"|not enough|must (?:not )?be|should be|up to|max(?:imum)?\b|limit|supports?|equal to"
    r"|非法|无效|超|范围|不能|最大|大于|错误"
)
_OTHER_CAP_FAULT = re.compile(
    rf"not supported|unsupported|unrecogni|unknown|unexpected|not permitted|extraneous|required|missing|deprecated"
    rf"|same time|use {OUT_CAP}|(?:valid|expected an?|be an?) (?:integer|number)|below|too (?:low|small)|none is not"
    rf"|(?<!not )be (?:positive|greater|at least|>)|(?:with|a) (?:\w+ )?higher {OUT_CAP}|increas|reached|budget"
)
_SUM_TOO_LARGE = re.compile(r"\brequested tokens?(?: count)? exceed")

# The prompt at fault: in either order, and the same in other languages.
_LONG = (
    r"too (?:long|large|big)|exceed\w{0,5}|over (?:the )?(?:max|limit)"
    r"|(?<!must be )(?<!should be )(?:longer|greater|larger|bigger|more) than"
)
_WINDOW = (
    r"context (?:length|window|size|limit|budget|capacity)|max(?:imum)? context|model limit|n ctx"
    r"|(?:max(?:imum)?|model|input|prompt) (?:\w+ ){0,2}(?:len|length)\b"
)
_PLAIN_STATEMENT = re.compile(
    r"(?:prompts?|inputs?|conversation) (?:is |was )?too (?:long|large|big)(?![a-z])"
)
_PROMPT = re.compile(
    rf"(?:prompts?|inputs?|conversation|history|(?<!number of )messages)(?: [\w()]+){{0,4}}? (?:{_LONG})"
    r"|(?:(?:larger|bigger|longer|greater|more) than|fits?)\b.{0,60}?(?<![a-z])(?:context|window)(?![a-z])"
    rf"|(?:exceed\w{{0,5}}|than|over|beyond|overflow\w{{0,5}}|fits?)\b.{{0,60}}?(?:{_WINDOW}|tokens?(?![a-z]))"
    rf"|(?:{_WINDOW}).{{0,40}}?(?:exceed|overflow|too (?:long|large)|is full|reached)"
    rf"|reached (?:\w+ ){{0,2}}(?:{_WINDOW})"
    r"|tokens? (?:limit |count |number |length |budget )?(?:(?:is|are|has|have|been|was) )*(?:exceed|too (?:lo|la|ma))"
    r"|too many (?:\w+ )?tokens|tokens? limit reached|range of (?:\w+ )?(?:input|prompt)"
    r"|max(?:imum)? (?:context|input|prompt|sequence) (?:length|size|window) (?:is|of) \d"
    r"|(?:reduce|shorten|compress|truncate) (?:the |your )?(?:length of )?(?:the |your )?"
    r"(?:input|prompt|messages|context|conversation)|only \S+ (?:tokens? )?(?:of )?context"
    r"|(?:上下文|输入|提示词|prompt|对话|tokens?|内容|文本|长度).{0,20}?(?:过长|超|太长|过大)"
    r"|(?:超|压缩).{0,12}?(?:上下文|长度|tokens?)"
    r"|(?:コンテキスト|入力|プロンプト).{0,20}?(?:長すぎ|超)|(?:컨텍스트|입력|프롬프트).{0,20}?(?:초과|길)"
    r"|(?:eingabe|prompt|[ck]ontext|entrada|entrée).{0,40}?"
    r"(?:zu lang|überschreit|supera|excede|demasiad|trop long|dépass)"
)

_PAYLOAD = re.compile(
    rf"(?:payload|entity|body|content length|request size)\b.{{0,60}}?(?:{_LONG}|overflow)"
    r"|(?:request|message|content|upload) (?:is )?too (?:large|big)|message (?:larger|bigger) than"
    r"|max(?:imum)? (?:payload|request (?:size|length))"
    r"|request(?: \w+){0,4}? exceed\w{0,5}(?: \w+){0,5}? (?:size|upload)|exceed\w{0,5}(?: \w+){0,5}? bytes"
    r"|string value length|stream read constraints|too many total text bytes|length limit exceeded"
    r"|请求体?(?:内容)?(?:过大|太大)|报文过大"
)
_MEDIA_COUNT = re.compile(
    r"(?:too m(?:any|uch)|number of|\d|\d of(?: the)?) (?:\w+ ){0,2}?"
    r"(?:images?|documents?|pages?|pdfs?|files?|videos?|media|attachments?)(?![a-z])|图片(?:数量|过多)"
)
_MEDIA_BOUND = re.compile(
    r"too m(?:any|uch)|limit|max|exceed|at most|up to|than\b|[<>≤≥]|超|过多"
)
_MEDIA_SIZE = re.compile(
    r"\d ?(?:[kmg]i?b|bytes?|px|pixels?|tokens?|seconds?|s)(?![a-z])|pixel|dimension|resolution|\bsize\b|too large"
    r"|\b(?:file|image|document)\b[^;]{0,40}\bexceeds"
)
"""A count of images or documents over its bound, and the words of an error about the size of one of them."""
_BYTES_OF_REQUEST = (
    re.compile(r"\d ?(?:bytes?|[kmg]i?b)(?![a-z])"),
    re.compile(r"(?<![a-z])(?:request|body|payload|message)(?![a-z])"),
    re.compile(r"limit|max|exceed|over\b|than\b|at most|up to"),
)
"""A size in bytes, of the request, against a bound."""


def is_relevant(sentence: str) -> bool:
    """Return whether a sentence may be about the context, not about a file, field, bytes, a guess or a small cap."""
    if _SPECULATION.search(sentence) or (
        OUT_CAP in sentence and _OTHER_CAP_FAULT.search(sentence)
    ):
        return False
    if _TOKENS.search(sentence):
        return True
    return not (_MEDIA.search(sentence) or _COUNTED.search(sentence))


def find_overflow(sentence: str) -> Overflow | None:
    """Return what a sentence says is too large, if anything."""
    if _PLAIN_STATEMENT.search(sentence):
        return "prompt_too_long"
    if (
        OUT_CAP in sentence and _CAP_TOO_LARGE.search(sentence)
    ) or _SUM_TOO_LARGE.search(sentence):
        return "max_tokens_too_large"
    return "prompt_too_long" if _PROMPT.search(sentence) else None


def has_too_many_media(sentence: str) -> bool:
    """Return whether a sentence says that there are too many images or documents."""
    is_counted = _MEDIA_COUNT.search(sentence) and _MEDIA_BOUND.search(sentence)
    return bool(is_counted) and not _MEDIA_SIZE.search(sentence)


def is_payload_overflow(sentence: str) -> bool:
    """Return whether a sentence says that the request is too large in bytes or has too many images."""
    if _MEDIA.search(sentence):
        return has_too_many_media(sentence)
    return bool(
        _PAYLOAD.search(sentence)
        or all(part.search(sentence) for part in _BYTES_OF_REQUEST)
    )


_MAX_DEPTH = 16
_MAX_CHARS = 20_000
"""How much of one text is read: an error says what it has to say within this, an echoed prompt does not."""
_MAX_ITEMS = 50

_CODE_KEYS = frozenset(
    {
        "code",
        "type",
        "status",
        "reason",
        "name",
        "statuscode",
        "httpstatuscode",
        "httpstatus",
        "errortype",
    }
    | {"errorcode", "errcode", "providererrorcode", "stopreason", "finishreason"}
)
_SUBJECT_KEYS = ("param", "parameter", "loc", "field")
_MESSAGE_KEYS = frozenset({"message", "msg", "detail", "error"})
_ECHO_KEYS = frozenset(
    {
        "input",
        "instructions",
        "messages",
        "output",
        "tools",
        "content",
        "choices",
        "prompt",
        "request",
        "headers",
    }
    | {
        "failedgeneration",
        "inputvalue",
        "httpheaders",
        "url",
        "id",
        "requestid",
        *_SUBJECT_KEYS,
    }
)
_COUNT_KEYS = {"nctx": "limit", "nprompttokens": "input"}
_ATTRIBUTES = (
    "status_code",
    "status",
    "http_status",
    "code",
    "type",
    "message",
    "text",
)
_NESTED_ATTRIBUTES = ("body", "error", "response", "details", "exceptions")
_CODE_IN_TEXT = re.compile(
    r"""(?:["'](?:error_?)?(?:code|type|status|name|reason)\\?["']\s*:\s*\\?["']|(?:stop|finish)[ _]reason: )"""
    r"""([\w.\- ]{2,80})""",
    re.IGNORECASE,
)
_STATUS_IN_TEXT = re.compile(
    r"(?:error code|status code|http)[: ]+([1-5]\d\d)\b|^([45]\d\d) status code",
    re.IGNORECASE,
)
_COUNT_IN_TEXT = re.compile(r"""["'](n_ctx|n_prompt_tokens)\\?["']\s*:\s*(\d{1,9})""")


@dataclass(slots=True)
class Evidence:
    """What an error states. `structured`: it came as an object or JSON, not as bare text."""

    status: int | None = None
    codes: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    structured: bool = False

    def add(self, value: Any, depth: int = 0) -> None:
        """Read a value of any shape."""
        if value is None or isinstance(value, bool | int | float) or depth > _MAX_DEPTH:
            return
        if isinstance(value, bytes | bytearray):
            value = bytes(value[: 4 * _MAX_CHARS]).decode("utf-8", "replace")
        if isinstance(value, str):
            self._add_text(value, depth)
        elif isinstance(value, Mapping):
            self._add_mapping(value, depth)
        elif isinstance(value, list | tuple):
            for item in value[:_MAX_ITEMS]:
                self.add(item, depth + 1)
        else:
            self._add_object(value, depth)

    def _add_text(self, text: str, depth: int) -> None:
        """Wording, with the JSON inside it read as what it is."""
        text = text.strip()
        if len(text) > _MAX_CHARS:
            text = text[: _MAX_CHARS * 3 // 4] + "\n" + text[-_MAX_CHARS // 4 :]
        opening = text.find("{")
        closing = text.rfind("}")
        if 0 <= opening < closing:
            with contextlib.suppress(ValueError, RecursionError):
                self.add(json.loads(text[opening : closing + 1]), depth + 1)
                text = text[:opening].strip()
        self.codes += _CODE_IN_TEXT.findall(text)
        for status in _STATUS_IN_TEXT.findall(text):
            self._add_code(status[0] or status[1])
        for key, number in _COUNT_IN_TEXT.findall(text):
            self.counts.setdefault(_COUNT_KEYS[_bare(key)], int(number))
        if text and text not in self.texts[:_MAX_ITEMS]:
            self.texts.append(text)

    def _add_mapping(self, value: Mapping[Any, Any], depth: int) -> None:
        self.structured = True
        named = {
            _bare(key): item for key, item in value.items() if isinstance(key, str)
        }
        subject = _subject(named)
        for key, item in named.items():
            if key in _COUNT_KEYS and type(item) is int and 0 < item < 10**9:
                self.counts.setdefault(_COUNT_KEYS[key], item)
            elif key in _CODE_KEYS and isinstance(item, str | int):
                self._add_code(str(item))
            elif (
                key in _MESSAGE_KEYS
                and isinstance(item, str)
                and subject
                and "{" not in item
            ):
                self._add_text(f"{subject}: {item}", depth)
            elif key not in _ECHO_KEYS:
                self.add(item, depth + 1)

    def _add_code(self, code: str) -> None:
        number = int(code) if re.fullmatch("[0-9]{3}", code) else 0
        if 100 <= number <= 599:
            self.status = self.status or number
        else:
            self.codes.append(code[:200])

    def _add_object(self, value: Any, depth: int) -> None:
        """An exception or another object, by the attributes that SDKs give to errors and responses."""
        attributes: dict[str, Any] = {}
        for name in (*_ATTRIBUTES, *_NESTED_ATTRIBUTES):
            # A property of a foreign object may raise anything.
            with contextlib.suppress(Exception):
                item = getattr(value, name, None)
                if name in _NESTED_ATTRIBUTES or isinstance(item, str | int):
                    attributes[name] = item
        if isinstance(value, BaseException):
            self.codes.append(type(value).__name__)
            attributes["error text"] = str(value)
            attributes["cause"] = value.__cause__ or value.__context__
        if any(item is not None for item in attributes.values()):
            self._add_mapping(attributes, depth + 1)


def _bare(key: str) -> str:
    return re.sub(r"[^a-z]", "", key[:100].lower())


def _subject(named: Mapping[str, Any]) -> str:
    """Return the parameter that a message is about, if a field names it."""
    for key in _SUBJECT_KEYS:
        value = named.get(key)
        if isinstance(value, list | tuple):
            value = ".".join(str(part) for part in value[:10])
        if isinstance(value, str) and value:
            return value[:2000]
    return ""


ErrorKind = Literal[
    "prompt_too_long",
    "max_tokens_too_large",
    "payload_too_large",
    "rate_limit",
    "other",
]

_TOO_LONG_CODES = frozenset({"1261", "1039", "10907", "336007"})
"""Numbers that Zhipu, MiniMax, Spark and Qianfan document for a prompt over the limit."""


@dataclass(frozen=True, slots=True)
class ErrorVerdict:
    """The verdict, its reason, and the stated token figures: window, input, output that would fit."""

    kind: ErrorKind
    reason: str
    context_limit: int | None = None
    input_tokens: int | None = None
    available_output: int | None = None
    output_limit: int | None = None
    """The largest output cap that the model takes with any prompt."""


def classify_error(
    error: Any = None,
    *,
    status: Any = None,
    body: Any = None,
    message: Any = None,
    near_limit: bool | None = None,
) -> ErrorVerdict:
    """Classify an error: an exception of any SDK, a body, a stream event or text.

    Never raises. `near_limit`: whether the refused request nearly filled the window. If it
    did, a 400 without a message means that it was too long. If that is unknown (None),
    so does the text that an SDK prints for an empty answer.
    """
    evidence = Evidence(status=_http_status(status))
    for value in (error, body, message):
        # A foreign object that cannot be read says nothing.
        with contextlib.suppress(Exception):
            evidence.add(value)
    if isinstance(body, str | bytes) and not body and _ended_without_event(evidence):
        reason = "The stream ended without an event, as a local server's does when the prompt is too long."
        return ErrorVerdict("prompt_too_long", reason)
    if _is_wordless_refusal(evidence, near_limit=near_limit):
        reason = (
            "A request that may have filled the window was refused without a message."
        )
        return ErrorVerdict("prompt_too_long", reason)
    codes = [plain(code) for code in evidence.codes]
    texts = [plain(text) for text in evidence.texts]
    everything = " ; ".join([*codes, *texts])
    spoken = [[part for part in sentences(text) if is_relevant(part)] for text in texts]
    return (
        _classify_unrelated(evidence, everything)
        or _overflow(evidence, codes, spoken)
        or _payload_overflow(everything)
        or _overflow_by_size(evidence, spoken)
        or _classify_without_tokens(evidence, everything)
    )


def _ended_without_event(evidence: Evidence) -> bool:
    return not (evidence.texts or evidence.codes) and _is_success(evidence.status)


def _is_wordless_refusal(evidence: Evidence, *, near_limit: bool | None) -> bool:
    """Return whether a 400 without a message can mean that the prompt was too long."""
    is_empty = any(map(_EMPTY_ANSWER.fullmatch, evidence.texts))
    return (
        (near_limit or (near_limit is None and is_empty))
        and evidence.status == 400
        and all(map(_EMPTY_REFUSAL.fullmatch, evidence.texts))
    )


def _classify_unrelated(evidence: Evidence, everything: str) -> ErrorVerdict | None:
    """Return the verdict if the error is about something else than the size of the context."""
    is_rate = _RATE.search(_MONEY.sub(" ", everything)) is not None
    if evidence.status == 402 or (_MONEY.search(everything) and not is_rate):
        return ErrorVerdict("other", "It is about money, not about size.")
    if evidence.status == 429 or is_rate:
        return ErrorVerdict(
            "rate_limit", "The account or the server is out of allowance for now."
        )
    if evidence.status in _NO_OVERFLOW or _OTHER_FAULT.search(everything):
        return ErrorVerdict(
            "other", "It is about a value of the request, not about its size."
        )
    if _is_long_string(everything):
        return ErrorVerdict(
            "payload_too_large",
            "One text of the request is longer than the provider takes.",
        )
    if _ONE_FIELD.search(everything):
        return ErrorVerdict(
            "other", "It is a limit of one field or filter, not of the context."
        )
    return None


def _is_long_string(everything: str) -> bool:
    """Return whether a character limit on the content is at fault, not one on a name or label."""
    if not _CHARACTERS.search(everything) or _TOKENS.search(everything):
        return False
    stated = [
        int(number.replace(",", ""))
        for number in re.findall(r"\d[\d,]{3,12}", everything)
    ]
    return (
        max(stated, default=0) >= _LONG_STRING_CHARS
        and _CONTENT.search(everything) is not None
    )


def _overflow(
    evidence: Evidence, codes: list[str], relevant: list[list[str]]
) -> ErrorVerdict | None:
    """Return the verdict if tokens are at fault: by the numbers, the words or a code."""
    counts = max(
        map(read_counts, relevant), key=lambda counted: counted.stated, default=Counts()
    )
    counts = replace(counts, **evidence.counts)
    spoken = [part for text in relevant for part in text]
    if evidence.counts or any(
        _TOKENS.search(part) or _LENGTH.search(part) for part in spoken
    ):
        kind = _classify_counts(counts)
        if kind is not None:
            return _verdict(kind, counts, "The numbers it states say so.")
    coded = [kind for kind in map(find_overflow, codes) if kind]
    if _TOO_LONG_CODES & set(evidence.codes):
        coded.append("prompt_too_long")
    worded = [kind for kind in map(find_overflow, spoken) if kind]
    if worded and (coded or evidence.structured or not _is_success(evidence.status)):
        return _verdict(worded[0], counts, "Its wording says so.")
    if coded:
        return _verdict(coded[0], counts, "Its code says so.")
    return None


def _classify_counts(counts: Counts) -> Overflow | None:
    """Blame the prompt if the input alone exceeds the limit; the cap if the input fits or only a cap is stated.

    An input of exactly the limit fits; it is at fault only if no output was requested.
    """
    if counts.limit is None:
        is_beyond_room = (
            counts.available is not None and (counts.output or 0) > counts.available
        )
        return (
            "max_tokens_too_large" if counts.cap is not None or is_beyond_room else None
        )
    if counts.input is not None:
        if counts.input > counts.limit or (
            counts.input == counts.limit and not counts.output
        ):
            return "prompt_too_long"
        return "max_tokens_too_large" if counts.output or counts.total else None
    if counts.output is not None:
        return "max_tokens_too_large"
    return "prompt_too_long" if (counts.total or 0) > counts.limit else None


def _verdict(kind: Overflow, counts: Counts, reason: str) -> ErrorVerdict:
    if kind == "prompt_too_long":
        stated = counts.total if counts.input is None else counts.input
        return ErrorVerdict(
            kind, f"The prompt is too long. {reason}", counts.limit, stated
        )
    remaining = (
        None
        if counts.limit is None or counts.input is None
        else counts.limit - counts.input
    )
    rooms = [
        room
        for room in (counts.available, counts.cap, remaining)
        if room is not None and room > 0
    ]
    reason = f"The output cap is too large, the input fits. {reason}"
    return ErrorVerdict(
        kind,
        reason,
        context_limit=counts.limit,
        input_tokens=counts.input,
        available_output=min(rooms, default=None),
        output_limit=counts.cap,
    )


def _payload_overflow(everything: str) -> ErrorVerdict | None:
    if not any(map(is_payload_overflow, sentences(everything))):
        return None
    return ErrorVerdict(
        "payload_too_large", "The request has too many bytes, images or documents."
    )


def _overflow_by_size(
    evidence: Evidence, relevant: list[list[str]]
) -> ErrorVerdict | None:
    """Return the verdict of figures whose wording says nothing."""
    if _is_success(evidence.status):
        return None
    for spoken in relevant:
        counts = compare_sizes(spoken)
        kind = _classify_counts(counts)
        if kind is not None:
            return _verdict(kind, counts, "One figure exceeds the other.")
    return None


def _classify_without_tokens(evidence: Evidence, everything: str) -> ErrorVerdict:
    if evidence.status == 413:
        return ErrorVerdict(
            "payload_too_large", "Status 413, without a word about tokens."
        )
    if _POSSIBLE_RATE.search(everything):
        return ErrorVerdict(
            "rate_limit", "The account or the server is out of allowance for now."
        )
    return ErrorVerdict("other", "Nothing in it speaks of the context's size.")


def _is_success(status: int | None) -> bool:
    return status is not None and 200 <= status < 300


def _http_status(value: Any) -> int | None:
    text = (
        str(int(value))
        if isinstance(value, int) and not isinstance(value, bool)
        else value
    )
    return (
        int(text)
        if isinstance(text, str) and len(text) == 3 and text.isdecimal()
        else None
    )
