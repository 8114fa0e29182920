"""Recognise error messages that say a prompt or output cap is too large."""

from __future__ import annotations

import re
from typing import Literal

from everthread.core.provider_errors.error_sentences import OUTPUT_CAP_PLACEHOLDER

OverflowKind = Literal["prompt_too_long", "max_tokens_too_large"]

# Words that a sentence must and must not contain to be about the context.
TOKENS_PATTERN = re.compile(
    rf"(?:tokens?|jetons?)(?![a-z])|positions(?![a-z])|[ck]ontext|{OUTPUT_CAP_PLACEHOLDER}|n ctx|model len"
    r"|上下文|词元|コンテキスト|トークン|컨텍스트|토큰|токен"
)
LENGTH_PATTERN = re.compile(
    r"(?:prompts?|inputs?|conversation|messages?|model|sequence|eingabe|entrada|entrée|输入)"
    r".{0,40}?(?:len|long|lang|larg|长)"
)
_MEDIA_NOUN_PATTERN = re.compile(
    r"(?<![a-z])(?:images?|pixels?|dimensions?|pdf|pages?|documents?|files?|audio|video|headers?|ur[il])(?![a-z])"
    r"|图片|文件"
)
_OTHER_COUNTED_THING_PATTERN = re.compile(
    r"(?<![a-z])(?:tools?|functions?|arrays?|strings?|metadata|stop sequences?|schema|enum|field|items?|elements?"
    r"|retries|turns|deadline|(?:gpu|cuda|device|system|of|in) memory"
    r"|characters?|chars|bytes?|[kmg]i?b|(?:too many|number of) (?:messages|inputs))"
    r"(?![a-z])|字符|字数"
)
_SPECULATION_PATTERN = re.compile(
    r"possible causes?|possibly|time(?:d )?out|perhaps|\bmight\b|\bmay (?:be|have)|\bcould be|probably"
    r"|(?:vision|image|audio|video) tokens? (?:\w+ ){0,2}exceed|kv cache|gpu memory|api key"
    r"|(?:access|auth|bearer|refresh|session) token|jwt|oauth"
)

# The output cap at fault: how a sentence that names it says so, and how it says something else.
_CAP_TOO_LARGE_PATTERN = re.compile(
    r"too (?:large|high|big|long|many)|exceed|above|range|valid|illegal|incorrect|than\b|[<>≤]|at most|cannot"
    r"|not enough|must (?:not )?be|should be|up to|max(?:imum)?\b|limit|supports?|equal to"
    r"|非法|无效|超|范围|不能|最大|大于|错误"
)
_OTHER_CAP_FAULT_PATTERN = re.compile(
    rf"not supported|unsupported|unrecogni|unknown|unexpected|not permitted|extraneous|required|missing|deprecated"
    rf"|same time|use {OUTPUT_CAP_PLACEHOLDER}|(?:valid|expected an?|be an?) (?:integer|number)|below|too (?:low|small)"
    rf"|none is not"
    rf"|(?<!not )be (?:positive|greater|at least|>)|(?:with|a) (?:\w+ )?higher {OUTPUT_CAP_PLACEHOLDER}"
    r"|increas|reached|budget"
)
_SUM_TOO_LARGE_PATTERN = re.compile(r"\brequested tokens?(?: count)? exceed")

# The prompt at fault: in either order, and the same in other languages.
_TOO_LONG = (
    r"too (?:long|large|big)|exceed\w{0,5}|over (?:the )?(?:max|limit)"
    r"|(?<!must be )(?<!should be )(?:longer|greater|larger|bigger|more) than"
)
_WINDOW = (
    r"context (?:length|window|size|limit|budget|capacity)|max(?:imum)? context|model limit|n ctx"
    r"|(?:max(?:imum)?|model|input|prompt) (?:\w+ ){0,2}(?:len|length)\b"
)
_PROMPT_TOO_LONG_PATTERN = re.compile(
    r"(?:prompts?|inputs?|conversation) (?:is |was )?too (?:long|large|big)(?![a-z])"
)
_PROMPT_OVERFLOW_PATTERN = re.compile(
    rf"(?:prompts?|inputs?|conversation|history|(?<!number of )messages)(?: [\w()]+){{0,4}}? (?:{_TOO_LONG})"
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

_PAYLOAD_OVERFLOW_PATTERN = re.compile(
    rf"(?:payload|entity|body|content length|request size)\b.{{0,60}}?(?:{_TOO_LONG}|overflow)"
    r"|(?:request|message|content|upload) (?:is )?too (?:large|big)|message (?:larger|bigger) than"
    r"|max(?:imum)? (?:payload|request (?:size|length))"
    r"|request(?: \w+){0,4}? exceed\w{0,5}(?: \w+){0,5}? (?:size|upload)|exceed\w{0,5}(?: \w+){0,5}? bytes"
    r"|string value length|stream read constraints|too many total text bytes|length limit exceeded"
    r"|请求体?(?:内容)?(?:过大|太大)|报文过大"
)
_MEDIA_COUNT_PATTERN = re.compile(
    r"(?:too m(?:any|uch)|number of|\d|\d of(?: the)?) (?:\w+ ){0,2}?"
    r"(?:images?|documents?|pages?|pdfs?|files?|videos?|media|attachments?)(?![a-z])|图片(?:数量|过多)"
)
_MEDIA_BOUND_PATTERN = re.compile(
    r"too m(?:any|uch)|limit|max|exceed|at most|up to|than\b|[<>≤≥]|超|过多"
)
_MEDIA_SIZE_PATTERN = re.compile(
    r"\d ?(?:[kmg]i?b|bytes?|px|pixels?|tokens?|seconds?|s)(?![a-z])|pixel|dimension|resolution|\bsize\b|too large"
    r"|\b(?:file|image|document)\b[^;]{0,40}\bexceeds"
)
"""Phrases about the size of one image or document. In a sentence with one, the count of media is not at fault."""
_REQUEST_BYTES_PATTERNS = (
    re.compile(r"\d ?(?:bytes?|[kmg]i?b)(?![a-z])"),
    re.compile(r"(?<![a-z])(?:request|body|payload|message)(?![a-z])"),
    re.compile(r"limit|max|exceed|over\b|than\b|at most|up to"),
)
"""Patterns that together mean a request size in bytes that exceeds a bound."""


def is_relevant(sentence: str) -> bool:
    """Return whether a sentence may be about the context, not about a file, field, bytes, a guess or a small cap."""
    if _SPECULATION_PATTERN.search(sentence) or (
        OUTPUT_CAP_PLACEHOLDER in sentence and _OTHER_CAP_FAULT_PATTERN.search(sentence)
    ):
        return False
    if TOKENS_PATTERN.search(sentence):
        return True
    return not (
        _MEDIA_NOUN_PATTERN.search(sentence) or _OTHER_COUNTED_THING_PATTERN.search(sentence)
    )


def find_overflow(sentence: str) -> OverflowKind | None:
    """Return what a sentence says is too large, if anything."""
    if _PROMPT_TOO_LONG_PATTERN.search(sentence):
        return "prompt_too_long"
    if (
        OUTPUT_CAP_PLACEHOLDER in sentence and _CAP_TOO_LARGE_PATTERN.search(sentence)
    ) or _SUM_TOO_LARGE_PATTERN.search(sentence):
        return "max_tokens_too_large"
    return "prompt_too_long" if _PROMPT_OVERFLOW_PATTERN.search(sentence) else None


def has_too_many_media(sentence: str) -> bool:
    """Return whether a sentence says that there are too many images or documents."""
    is_counted = _MEDIA_COUNT_PATTERN.search(sentence) and _MEDIA_BOUND_PATTERN.search(sentence)
    return bool(is_counted) and not _MEDIA_SIZE_PATTERN.search(sentence)


def is_payload_overflow(sentence: str) -> bool:
    """Return whether a sentence says that the request is too large in bytes or has too many images."""
    if _MEDIA_NOUN_PATTERN.search(sentence):
        return has_too_many_media(sentence)
    return bool(
        _PAYLOAD_OVERFLOW_PATTERN.search(sentence)
        or all(pattern.search(sentence) for pattern in _REQUEST_BYTES_PATTERNS)
    )
