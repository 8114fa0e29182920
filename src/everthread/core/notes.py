"""What the user wants remembered, in the user's own words."""

from __future__ import annotations

import re

from everthread.core.sentences import joined, sentences

MOST = 300
"""Characters of a note."""
KEEP = re.compile(
    r"\b(?:remember|note (?:it|that|this|down|:)|take note|keep in mind|for later|don't forget|"
    r"(?:need|use) (?:that|this|it|them|these) later|fyi|for the record|for reference|"
    r"merke? (?:dir|es)|denke? (?:dran|daran)|nicht vergessen|zur info|notier\w*|"
    r"recuerda\w*|ten en cuenta|anota\w*|no olvides|apunta\w*)\b"
    r"|记住|记下|请记|别忘|备注|覚えて|メモし|忘れないで|기억해|메모해|잊지",
    re.IGNORECASE | re.MULTILINE,
)
"""The user wants something remembered."""


def notes(text: str) -> list[str]:
    """Every sentence that says so, with the one before it where it only points back (`You will need that later.`)."""
    if not KEEP.search(text):
        return []
    spoken = sentences(text)
    found = []
    for place, sentence in enumerate(spoken):
        if KEEP.search(sentence.masked) and not sentence.text.endswith(("?", "？")):
            before = [spoken[place - 1].text] if place and not any(map(str.isdigit, sentence.text)) else []
            found.append(joined([*before, sentence.text])[:MOST])
    return found
