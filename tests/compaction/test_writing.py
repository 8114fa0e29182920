"""The summary message: how its room is shared, and what it says of decisions that hold no longer."""

from __future__ import annotations

from everthread.compaction.summarizers.extractive import ExtractiveSummarizer
from everthread.core.decisions import SUPERSEDED
from everthread.core.messages import Message
from everthread.core.summary import CRITICAL, DECISIONS, GOAL, Sections, SummaryRequest, parse_sections
from everthread.core.tokens import TokenCounter
from everthread.testing import ScriptedSummarizer
from tests.compaction.talks import call, engine, run, says, user, work

COUNT = TokenCounter("gpt-4o").text
WINDOW = 200_000
BUDGET = 10_000


class Asked:
    """Notes the request down and writes next to nothing."""

    def __init__(self) -> None:
        self.requests: list[SummaryRequest] = []

    def __call__(self, request: SummaryRequest) -> Sections:
        self.requests.append(request)
        return {GOAL: "- Tidy up."}


def long_talk(*said: Message) -> list[Message]:
    return [
        user("Tidy up the modules."),
        says("I will."),
        *said,
        *work(0, 260),
        says("Tidy."),
        user("Go on."),
        *work(400, 3),
    ]


def test_an_eighth_of_the_room_is_left_for_facts_and_at_most_an_eighth_for_quotations() -> None:
    asked = Asked()
    run(engine(WINDOW, ScriptedSummarizer(asked)).compress(long_talk()))
    given = asked.requests[0].budget
    assert 0.60 * BUDGET <= given <= 0.875 * BUDGET


def test_more_is_left_where_there_are_more_facts_to_hold_on_to() -> None:
    asked = Asked()
    told = [user(f"We decided that part {n} is called kestrel_{n}, because {'of its age ' * 20}.") for n in range(60)]
    run(engine(WINDOW, ScriptedSummarizer(asked)).compress(long_talk()))
    run(engine(WINDOW, ScriptedSummarizer(asked)).compress(long_talk(*told)))
    little, much = (request.budget for request in asked.requests)
    assert 0.4 * BUDGET < much < little


def test_the_message_keeps_to_the_budget_and_uses_it() -> None:
    told = [user(f"The host of part {n} is host_{n}.internal, port {6000 + n}.") for n in range(300)]
    result = run(engine(WINDOW, ExtractiveSummarizer(TokenCounter("gpt-4o"))).compress(long_talk(*told)))
    assert 0.85 * BUDGET <= COUNT(result.summary) <= BUDGET


def test_the_summariser_is_told_which_rules_stand_beside_its_summary() -> None:
    asked = Asked()
    run(engine(WINDOW, ScriptedSummarizer(asked)).compress(long_talk(user("Never touch the vendor folder."))))
    assert list(asked.requests[0].rules) == ["Never touch the vendor folder."]


OLD = "Let's use Redis for the job queue of the importer."
NEW = "I changed my mind about the job queue: Redis loses jobs. Use Postgres for the importer instead."


def test_a_decision_that_was_taken_back_is_dropped_or_said_to_be() -> None:
    drafts = ScriptedSummarizer(lambda _: {DECISIONS: f"- {OLD}", GOAL: f"- {OLD}"})
    result = run(engine(WINDOW, drafts).compress(long_talk(user(OLD), says("Ok."), user(NEW), says("Ok."))))
    told = parse_sections(result.summary)
    assert OLD not in told.get(DECISIONS, "")
    assert NEW in result.summary
    assert told[GOAL] == f"- {OLD} {SUPERSEDED}"


def test_so_is_one_that_is_taken_back_in_what_is_kept() -> None:
    drafts = ScriptedSummarizer(lambda _: {DECISIONS: f"- {OLD}"})
    messages = [*long_talk(user(OLD), says("Ok.")), says("Done."), user(NEW)]
    result = run(engine(WINDOW, drafts).compress(messages))
    assert NEW in str(result.messages[-1]["content"])
    assert OLD not in result.summary


def test_facts_of_earlier_compactions_come_back_where_a_summary_lacks_them() -> None:
    made = engine(WINDOW, ScriptedSummarizer(Asked()))
    noise = "\n".join(f"12:00:{n:02d} worker idle n={n}" for n in range(9))
    logged = call(900, "bash", '{"command": "cat sync.log"}', f"{noise}\nsync done: 4411 rows, 12 conflicts")
    said = user("Booking QX7T2M is hers, QX7T2N his.")
    first = run(made.compress(long_talk(said, says("Ok."), *logged)))
    made.on_compacted(first)
    second = run(made.compress([*first.messages, *work(500, 260), says("Ok."), user("And now?")]))
    told = parse_sections(second.summary)[CRITICAL]
    for fact in ("QX7T2M", "QX7T2N", "sync done: 4411 rows, 12 conflicts"):
        assert fact in told
