"""How people say that they put something off, and what is left to do: in six languages."""

from __future__ import annotations

import re

_FLAGS = re.IGNORECASE | re.MULTILINE

LATER = re.compile(
    r"\b(?:(?:do|fix|handle|look at|tackle) (?:that|it|this) later|later,? (?:we|you|please|i want)|"
    r"(?:after|once) (?:that|this)[^.!?]{0,40}\b(?:need|should|want|please|add|fix|write|do)|"
    r"then we (?:need|must|should (?!be\b))|not now[^.!?]{0,20}later|"
    r"(?:später|danach|anschließend|nachher) (?:noch|bitte|brauchen|müssen|machen|sollen|soll|kannst)\w*|"
    r"(?:más tarde|después|luego),? (?:hay que|tenemos que|necesit\w+|quiero|haz|añade))\b"
    r"|(?:之后|稍后|以后|回头)(?:再|还要|需要)|(?:後で|あとで|その後)[^。]{0,30}(?:して|お願い|必要)"
    r"|(?:나중에|다음에|그 후에)[^.]{0,30}(?:해|추가|필요)",
    _FLAGS,
)
"""The user wants something, but not now."""

NEXT_STEPS = re.compile(
    r"^[#*\s]{0,8}(?:next steps?|remaining(?: work| tasks| steps)?|still (?:to do|open|missing)|to-?dos?|"
    r"what(?:'|’)?s left|follow-?ups?|nächste schritte|noch (?:offen|zu tun)|offene punkte|"
    r"próximos pasos|pendientes?|queda por hacer|下一步|接下来|剩余(?:工作|任务)?|待办(?:事项)?|还需要|"
    r"次のステップ|残り(?:の作業|のタスク)?|今後の作業|다음 단계|남은 (?:작업|일))"
    r"[^\n]{0,40}?[:：*]{0,4}[ \t]{0,8}$",
    _FLAGS,
)
"""A line under which an assistant lists what is left to do."""
