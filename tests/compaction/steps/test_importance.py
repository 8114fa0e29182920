"""Which messages are quoted beside a summary."""

from __future__ import annotations

from everthread.compaction.steps.importance import HEADING, quotes, scores, worth_quoting
from everthread.core.facts import MessageFacts, facts_of_message, rank
from everthread.core.messages import Message
from tests.compaction.talks import says, user

TALK: list[Message] = [
    user("Good morning to you, how are you?"),
    user("Never touch the ledger tables. The test host is db_seven, port 6001."),
    says("We decided to keep the ledger because the audit needs it."),
    says("I looked at the ledger and it is large, larger than expected."),
]


def candidates() -> list[str]:
    found: list[MessageFacts] = [facts_of_message(message) for message in TALK]
    return [quote.line for quote in worth_quoting(TALK, [7, 8, 9, 10], scores(found, rank(found)), found)]


def test_rules_facts_and_what_settles_something_is_worth_quoting() -> None:
    assert candidates() == [
        "> #8 user: Never touch the ledger tables. The test host is db_seven, port 6001.",
        "> #9 assistant: We decided to keep the ledger because the audit needs it.",
    ]


def test_what_the_draft_tells_is_not_quoted_and_the_room_holds() -> None:
    found = [facts_of_message(message) for message in TALK]
    worth = worth_quoting(TALK, [7, 8, 9, 10], scores(found, rank(found)), found)
    told = "- Never touch the ledger tables. The test host is db_seven, port 6001."

    def count(text: str) -> int:
        return len(text.split())

    assert quotes(worth, told, 100, count) == f"{HEADING}\n{worth[1].line}"
    assert quotes(worth, "", 100, count) == "\n".join([HEADING, worth[0].line, worth[1].line])
    assert quotes(worth, "", 20, count) == f"{HEADING}\n{worth[0].line}"
    assert quotes(worth, "", 5, count) == ""
