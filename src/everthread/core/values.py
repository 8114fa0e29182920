"""Numbers that mean something: with a unit, a currency, or a name before them."""

from __future__ import annotations

import re
from collections.abc import Iterator


def values(text: str) -> Iterator[tuple[str, int]]:
    """Every such number with what gives it meaning (`timeout 30s`, `8 passed, 2 failed`), and where it begins."""
    for match in _NUMBER.finditer(text):
        start = _label(text, match.start())
        if start < match.start() or match["unit"] or match["money"]:
            yield " ".join(text[start : match.end()].split()), start


_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.#/\\-])(?P<money>[$€£¥])?\d[\d,.]*(?<=\d)"
    r"(?P<unit>(?: ?(?:%|‰|°C|[kKMGT]i?[Bb](?:/s)?|ms|µs|ns|s|px|fps|[kMG]?Hz|dpi)(?![\w])"
    r"|[ -](?:sec(?:ond)?s?|min(?:ute)?s?|h(?:ou)?rs?|days?|weeks?|months?|bytes?|rows?|lines?|files?|tests?|users?|"
    r"requests?|connections?|workers?|threads?|retries|attempts?|items?|tokens?|passed|failed|skipped|errors?|warnings?|"
    r"replicas?|nodes?|columns?|entries|records?|pages?|points?|dollars?|euros?|Sekunden?|Minuten?|Stunden?|Tagen?|Zeilen|"
    r"segundos?|minutos?|horas?|días?|líneas?)\b(?:, \d[\d,.]* (?:passed|failed|skipped|errors?|warnings?)\b){0,4}"
    r"| ?(?:秒|毫秒|分钟|小时|天|个|次|行|ミリ秒|分|時間|件|回|日|초|밀리초|분|시간|개|번|건|일)))?"
)
_LABELS = (
    "port", "timeout", "limit", "size", "count", "maximum", "minimum", "version", "line", "exit code", "status",
    "status code", "pid", "retries", "workers", "threads", "batch", "epoch", "seed", "rate", "ttl", "budget", "price",
    "cost", "total", "threshold", "score", "zeile", "puerto", "límite", "línea", "端口", "超时", "限制", "版本",
    "ポート", "タイムアウト", "上限", "バージョン", "포트", "타임아웃", "제한", "버전",
)  # fmt: skip
_COPULAS = (
    " is set to", " set to", " is", " was", " of", " to", " at", " ist", " auf", " es", " de",
    "是", "为", "は", "を", "는", "은", "를",
)  # fmt: skip


def _label(text: str, start: int) -> int:
    """Where the name of a number begins that stands before it (`timeout is 30`); the number's place if none does."""
    before = text[max(0, start - 40) : start].lower()
    stripped = before.rstrip(" :=：*`")
    if stripped.endswith(_COPULAS):
        stripped = stripped[: -max(len(word) for word in _COPULAS if stripped.endswith(word))].rstrip()
    if len(stripped) == len(before) or not stripped.endswith(_LABELS):
        return start
    begin = len(stripped) - max(len(label) for label in _LABELS if stripped.endswith(label))
    if begin and stripped[begin - 1].isalnum() and stripped[begin].isascii():
        return start
    return start - len(before) + begin
