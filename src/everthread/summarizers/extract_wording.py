"""How people say that they change their mind, put something off or want it remembered: in six languages."""

from __future__ import annotations

import re

_FLAGS = re.IGNORECASE | re.MULTILINE

REVISES = re.compile(
    r"\b(?:chang\w+ my mind|second thoughts?|scratch that|forget (?:that|about|what|the)|no longer|instead|rather than|"
    r"(?:switch|revert)\w* (?:back |over )?to|(?:go|going|went|move|moving|moved) back to|not .{1,40} any ?more|"
    r"replac\w+ .{1,60} with|"
    r"actually,? (?:let|use|we|no)|let's not|we(?:'re| are) not|we (?:now )?drop)\b|, (?:and )?not \w"
    r"|\b(?:anders überlegt|umentschieden|meinung geändert|doch (?:lieber|nicht|kein\w*|wieder)|stattdessen|"
    r"(?:an)?statt|nicht mehr|zurück zu|vergiss)\b"
    r"|\b(?:cambi\w+ de (?:opinión|idea)|mejor (?:us|dej|volv)\w+|en (?:lugar|vez) de|ya no|olvida\w*|volv\w+ a)\b"
    r"|改(?:变)?主意|改用|换成|换用|不再|还是(?:用|改)|算了|撤回|取消(?:之前|原来)|而不是|退回"
    r"|やっぱり|やはり|考え(?:が|を)変|気が変わ|代わりに|ではなく|に戻|取り消|やめ"
    r"|생각(?:이|을) ?바|대신|취소|말고|더 이상|다시 .{1,20}로",
    _FLAGS,
)
"""What was settled is otherwise now."""

CHANGED_MIND = re.compile(
    r"\b(?:chang\w+ my mind|second thoughts?|scratch that|anders überlegt|umentschieden|meinung geändert|"
    r"cambi\w+ de (?:opinión|idea))\b|改(?:变)?主意|考え(?:が|を)変|気が変わ|생각(?:이|을) ?바",
    _FLAGS,
)
"""The same, said outright."""

SETTLES = re.compile(
    r"\b(?:we|i) (?:now )?(?:decide|agree|choose|settle|go with|stay with|stick with|stick to|drop|take)\b"
    r"|\b(?:rather than|instead of)\b|\b(?:so|ok|okay|then)\b.{0,60}\bit is[.!]*$"
    r"|\bwir (?:entscheiden|beschließen|legen fest|einigen uns)\b"
    r"|\b(?:decidimos|acordamos|elegimos|decido|elijo)\b",
    _FLAGS,
)
"""A user settles something by saying so."""

REASON = re.compile(
    r"\b(?:because|since|due to|so that|otherwise|too many|too much|weil|denn|wegen|damit|sonst|porque|ya que|debido|"
    r"para que)\b|因为|由于|以免|否则|ので|から|ため|때문|니까|위해",
    _FLAGS,
)

KEEP = re.compile(
    r"\b(?:remember|note (?:it|that|this|down|:)|take note|keep in mind|for later|don't forget|fyi|for the record|"
    r"merke? (?:dir|es)|denke? (?:dran|daran)|nicht vergessen|zur info|notier\w*|"
    r"recuerda\w*|ten en cuenta|anota\w*|no olvides|apunta\w*)\b"
    r"|记住|记下|请记|别忘|备注|覚えて|メモし|忘れないで|기억해|메모해|잊지",
    _FLAGS,
)
"""The user wants something remembered."""

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
