"""How errors speak of size, as vocabulary: who × relation × what, sentence by sentence, in plain lower-case words.

Every text here went through `overflow_numbers.plain`, so `context_length_exceeded`, `ContextLengthExceeded` and
"Context length exceeded" are one wording, and `outcap` is the output cap under any of its names.
"""

from __future__ import annotations

import re
from typing import Literal

from everthread.core.overflow_numbers import CAP

Overflow = Literal["prompt_too_long", "max_tokens_too_large"]

RATE = re.compile(
    r"rate limit|ratelimit|too many (?:\w+ )?requests|throttl|\bquotas?\b|please wait|slow down|request rate|concurren"
    r"|cool(?:ing )?down|enqueued|\bper \d* ?(?:sec|min|hour|day)|\b[tr]p[mdh]\b|/ ?min\b|usage limits?|retry after \d"
    r"|capacity exceeded|(?:daily|weekly|monthly|hourly) (?:\w+ ){0,3}limit"
    r"|限流|限速|速率|频率|频繁|并发|配额|额度|访问量过大|请求过多|请求数过多"
)
RATE_IF_NOTHING_ELSE = re.compile(r"resource (?:has been )?exhausted|request limit reached")
MONEY = re.compile(
    r"insufficient (?:\w+ )?(?:credits?|balance|funds)|credit balance|more credits|only afford|billing"
    r"|payment required|paid account|plan limits|spend\w{0,5} limit|余额|欠费|充值"
)
ONE_FIELD = re.compile(
    r"(?:string|array) (?:above|below) (?:max|min)|expected m(?:ax|in) (?:length|items)|text units?|guardrail"
)

# What a sentence must speak of, and what it must not, to be about the context.
_TOKENS = re.compile(rf"tokens?(?![a-z])|[ck]ontext|{CAP}|n ctx|model len|上下文|コンテキスト|컨텍스트")
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
    r"|retries|turns|deadline|memory|characters?|chars|bytes?|[kmg]i?b|(?:too many|number of) (?:messages|inputs))"
    r"(?![a-z])|字符|字数"
)
_ASIDE = re.compile(
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
_CAP_OTHERWISE = re.compile(
    rf"not supported|unsupported|unrecogni|unknown|unexpected|not permitted|extraneous|required|missing|deprecated"
    rf"|same time|use {CAP}|(?:valid|expected an?|be an?) (?:integer|number)|below|too (?:low|small)|none is not"
    rf"|(?<!not )be (?:positive|greater|at least|>)|(?:with|a) (?:\w+ )?higher {CAP}|increas|reached|budget"
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
_PLAINLY = re.compile(r"(?:prompts?|inputs?|conversation) (?:is |was )?too (?:long|large|big)(?![a-z])")
_PROMPT = re.compile(
    rf"(?:prompts?|inputs?|conversation|history|(?<!number of )messages)(?: [\w()]+){{0,4}}? (?:{_LONG})"
    rf"|(?:exceed\w{{0,5}}|than|over|beyond|overflow\w{{0,5}}|fit)\b.{{0,60}}?(?:{_WINDOW}|tokens?(?![a-z]))"
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
    rf"(?:payload|entity|body|content length|request size)\b.{{0,60}}?(?:{_LONG})"
    r"|(?:request|message|content|upload) (?:is )?too (?:large|big)|message (?:larger|bigger) than"
    r"|max(?:imum)? (?:payload|request (?:size|length))"
    r"|request(?: \w+){0,4}? exceed\w{0,5}(?: \w+){0,5}? (?:size|upload)|exceed\w{0,5}(?: \w+){0,5}? bytes"
    r"|string value length|stream read constraints|too many total text bytes|length limit exceeded"
    r"|value at body\b.{0,120}?length less|请求体?(?:内容)?(?:过大|太大)|报文过大"
)


def is_relevant(sentence: str) -> bool:
    """Whether a sentence can be about the context: not about a file, a field, bytes, a guess, a cap too small."""
    if _ASIDE.search(sentence) or (CAP in sentence and _CAP_OTHERWISE.search(sentence)):
        return False
    if _TOKENS.search(sentence):
        return True
    return not (_MEDIA.search(sentence) or _COUNTED.search(sentence))


def is_about_length(sentence: str) -> bool:
    """Whether its numbers may be token counts."""
    return bool(_TOKENS.search(sentence) or _LENGTH.search(sentence))


def overflow_said(sentence: str) -> Overflow | None:
    """What a relevant sentence says is too large, if anything."""
    if _PLAINLY.search(sentence):
        return "prompt_too_long"
    if (CAP in sentence and _CAP_TOO_LARGE.search(sentence)) or _SUM_TOO_LARGE.search(sentence):
        return "max_tokens_too_large"
    return "prompt_too_long" if _PROMPT.search(sentence) else None


def payload_said(sentence: str) -> bool:
    """Whether a sentence says that the request is too large in bytes."""
    return _PAYLOAD.search(sentence) is not None and _MEDIA.search(sentence) is None
