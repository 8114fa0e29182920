"""Names in Use: names typed during the work are in every summary and survive compactions."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.engine import Services
from everthread.compaction.history.call_effects import read_effects
from everthread.compaction.history.compaction_history import MessageFacts
from everthread.compaction.lossless import LosslessEngine
from everthread.compaction.names.name_shapes import read_names
from everthread.compaction.names.names_in_use import (
    MAX_OUTPUT_AGE_MESSAGES,
    NamesInUse,
)
from everthread.compaction.names.names_section import NamesSection, parse_names
from everthread.compaction.planning_engine import PlanningEngine
from everthread.compaction.summary.sections import (
    DONE,
    FILES,
    NAMES,
    TemplateName,
)
from everthread.core.messages import Message, text_of
from everthread.core.summary_marks import recognize_summaries, strip_summary_marks
from everthread.testing import ScriptedSummarizer
from tests.chat_messages import assistant_message, user_message
from tests.compaction.histories import (
    COUNTER,
    JOURNAL,
    call_with_result,
    compact,
    flatten,
    make_services,
    read_sections,
    tool_turns,
)

WINDOW = 16_000
MakeEngine = Callable[[Services], PlanningEngine]


def edit_file(path: str, new: str) -> list[Message]:
    return call_with_result(
        "edit",
        {"path": path, "old_string": "a", "new_string": new},
        "The file was changed",
    )


def make_session() -> list[Message]:
    """Return a session that ends with much reading, so that earlier messages are covered."""
    return [
        user_message("Begin with the parser."),
        assistant_message("Yes."),
        user_message("Go on."),
        *edit_file(
            "/r/app/src/parser.py",
            "def readTokenStream(source): return lexer_state_of(source)",
        ),
        *call_with_result(
            "grep",
            {"pattern": "PaymentGateway", "path": "/r/app/src"},
            "no matches",
        ),
        *call_with_result(
            "fetch",
            {"url": "https://api.shop.example/v2/orders"},
            "HTTP 200",
        ),
        *call_with_result("bash", {"command": "git cherry-pick 4f2a9c1"}, "ok"),
        assistant_message("The stream is read."),
        user_message("And the rest."),
        *tool_turns(100, 60),
        assistant_message("Done with it."),
        user_message("What now?"),
    ]


def names_in(result: Compaction) -> str:
    return read_sections(result).get(NAMES, "")


@pytest.mark.parametrize("make", [ContextCompressor, LosslessEngine])
@pytest.mark.parametrize("summarizer", [None, ScriptedSummarizer()])
async def test_every_engine_and_summariser_lists_typed_names(
    make: MakeEngine, summarizer: ScriptedSummarizer | None
) -> None:
    result = await make(make_services(WINDOW, summarizer or JOURNAL)).compress(make_session())
    context = "\n".join(map(text_of, result.messages))
    assert names_in(result)
    for name in (
        "readTokenStream",
        "lexer_state_of",
        "https://api.shop.example/v2/orders",
        "4f2a9c1",
        "parser.py",
    ):
        assert name in context


async def test_a_name_shown_elsewhere_is_not_listed() -> None:
    result = await compact(make_session(), window=WINDOW, summarizer=JOURNAL)
    sections = read_sections(result)
    listed = set(read_names(sections.pop(NAMES)))
    assert listed.isdisjoint(read_names("\n".join(sections.values())))
    kept = [text_of(message) for message in result.messages if "_summary" not in message]
    assert listed.isdisjoint(read_names("\n".join(kept)))


@pytest.mark.parametrize("window", [4_096, 8_000, WINDOW, 64_000])
async def test_the_section_takes_at_most_a_fifth_of_the_budget(
    window: int,
) -> None:
    many = flatten(
        edit_file(
            f"src/part_{number}.py",
            " ".join(f"value_{number}_{at}" for at in range(40)),
        )
        for number in range(200)
    )
    conversation = [
        user_message("Begin."),
        assistant_message("Yes."),
        user_message("Go on."),
        *many,
        *tool_turns(300, 60),
        assistant_message("Done."),
        user_message("What now?"),
    ]
    result = await compact(conversation, window=window, summarizer=JOURNAL)
    sections = read_sections(result)
    room = next(phase.note for phase in result.phases if phase.name == "summarise")
    budget = int(room.split()[1].replace(",", ""))
    assert 0 < COUNTER.text(sections[NAMES]) <= budget / 5


@pytest.mark.parametrize(("budget", "continued_tokens"), [(1_000, 200), (4_000, 500), (8_000, 800)])
def test_a_later_summary_leaves_room_for_earlier_conclusions(
    budget: int, continued_tokens: int
) -> None:
    names = NamesInUse.from_list([f"cart_total_{number}" for number in range(600)])
    assert NamesSection.plan(names, budget).max_tokens == budget // 5
    assert NamesSection.plan(names, budget, continues=True).max_tokens == continued_tokens


async def test_the_newest_and_most_used_names_come_first() -> None:
    old = flatten(edit_file(f"src/old_{at}.py", f"old_value_{at:02}") for at in range(40))
    often = flatten(edit_file("src/often.py", "often_typed_name") for at in range(40, 46))
    new = flatten(edit_file(f"src/new_{at}.py", f"new_value_{at:02}") for at in range(50, 60))
    conversation = [
        user_message("Begin."),
        assistant_message("Yes."),
        user_message("Go on."),
        *often,
        *old,
        *new,
        *tool_turns(100, 12),
        assistant_message("Ok."),
        user_message("Now?"),
    ]
    result = await compact(conversation, window=8_000, summarizer=JOURNAL)
    identifiers = [name for name in read_names(names_in(result)) if "." not in name]
    assert identifiers[0] == "often_typed_name"
    numbers = [
        int(name.rpartition("_")[2])
        for name in identifiers
        if name.startswith(("old_value", "new_value"))
    ]
    assert len(numbers) > 10
    assert numbers == sorted(numbers, reverse=True)


@pytest.mark.parametrize("make", [ContextCompressor, LosslessEngine])
@pytest.mark.parametrize("is_bare", [False, True])
async def test_names_survive_compactions(make: MakeEngine, *, is_bare: bool) -> None:
    """The state travels as JSON; in a bare list the section itself is read back."""
    engine = make(make_services(WINDOW, JOURNAL))
    messages: list[Message] = make_session()
    for turn in range(3):
        result = await engine.compress(messages)
        engine.on_compacted(result)
        assert "readTokenStream" in "\n".join(map(text_of, result.messages)), (
            f"compaction {turn + 1}"
        )
        carried = json.loads(json.dumps(engine.dump_state()))
        engine = make(make_services(WINDOW, JOURNAL))
        messages = result.messages
        if is_bare:
            messages = recognize_summaries(strip_summary_marks(messages))
        else:
            engine.load_state(carried)
        messages = [
            *messages,
            assistant_message("Ok."),
            user_message(f"More {turn}."),
            *tool_turns(200 + 20 * turn, 20),
            assistant_message("Ok."),
            user_message("On."),
        ]


@pytest.mark.parametrize("template", ["handoff", "classic"])
async def test_names_end_the_files_in_the_classic_layout(
    template: TemplateName,
) -> None:
    result = await ContextCompressor(make_services(WINDOW, JOURNAL), template=template).compress(
        make_session()
    )
    sections = read_sections(result)
    if template == "handoff":
        assert "readTokenStream" in sections[DONE] + sections[NAMES]
    else:
        assert f"## {NAMES}" not in result.summary
        *_, last = sections[FILES].split("\n")
        assert last.startswith("- used: ")


async def test_secrets_are_not_names() -> None:
    secret = "s3cr3t_Pw9xQ2mZ"
    conversation = make_session()
    conversation[4:4] = [
        *call_with_result("login", {"user": "ann_of_ops", "password": secret}, "ok"),
        *call_with_result(
            "bash",
            {"command": "printenv"},
            f"API_TOKEN={secret}x9\nHOME=/r",
        ),
    ]
    engine = ContextCompressor(make_services(WINDOW, JOURNAL))
    result = await engine.compress(conversation)
    engine.on_compacted(result)
    assert "ann_of_ops" in result.summary
    assert secret not in result.summary
    assert secret not in json.dumps(engine.dump_state())


async def test_reading_a_history_in_steps_gives_the_same_summary() -> None:
    conversation = make_session()
    grown = ContextCompressor(make_services(WINDOW, JOURNAL))
    for end in range(20, len(conversation), 30):
        await grown.compress(conversation[:end])
    assert (await grown.compress(conversation)).summary == (
        await compact(conversation, window=WINDOW, summarizer=JOURNAL)
    ).summary


def test_names_are_recognised_by_their_shape() -> None:
    text = (
        "The well-known readTokenStream of src/app/main.rs:42 calls os.path.join, see https://a.example/b?c=1 and "
        "commit 4f2a9c1 of PROJ-1234 (order 8JX2WO), mail ann@b.example, host db.local:5432. At 12:30, version 1.2.3."
    )
    assert set(read_names(text)) == {
        "readTokenStream",
        "app/main.rs",
        "https://a.example/b",
        "4f2a9c1",
        "PROJ-1234",
        "8JX2WO",
        "ann@b.example",
        "db.local:5432",
    }
    assert read_names("请修改src/报告/main.py里的 loadUserTable 函数")[-1] == "loadUserTable"
    assert read_names("git switch feature-login-page", is_typed=True) == ["feature-login-page"]


def test_only_files_are_read_from_old_outputs() -> None:
    listing = "config/ledger_rules.toml: readLedgerRow is not used"
    call = json.dumps({"command": "make all"})
    spoken = [
        assistant_message(f"Step {number} is done.") for number in range(MAX_OUTPUT_AGE_MESSAGES)
    ]
    messages = [*call_with_result("bash", call, listing), *spoken]
    facts = [MessageFacts(message) for message in messages]
    names = NamesInUse()
    names.add_messages(facts, read_effects(facts))
    listed = names.with_outputs(facts).rank_names()
    assert "config/ledger_rules.toml" in listed
    assert "readLedgerRow" not in listed


async def test_json_field_names_are_not_listed() -> None:
    answer = json.dumps(
        {
            "flight_number": "HAT021",
            "departs_at_est": "2024-05-06T19:00:00",
            "seat_class": "basic_fare",
        }
    )
    conversation = make_session()
    conversation[4:4] = call_with_result("get_flight", {"flight_id": "LQ940Q"}, answer)
    conversation[-2:-2] = [
        assistant_message("Ok."),
        user_message("On."),
        *call_with_result("get_flight", {"flight_id": "LQ940R"}, answer),
        *tool_turns(300, 10),
    ]
    listed = read_names(names_in(await compact(conversation, window=WINDOW, summarizer=JOURNAL)))
    assert {"flight_number", "departs_at_est", "seat_class", "flight_id"}.isdisjoint(listed)
    assert "LQ940Q" in listed


async def test_a_name_in_a_part_of_the_tail_that_was_cut_is_listed() -> None:
    """The newest call stays, but its long argument is cut."""
    body = "\n".join(f"filler line number {at} of the file" for at in range(800))
    written = f"{body}\n{'-' * 20}\ndef resolveSessionFolder(): ...\n{body}"
    conversation = [
        *make_session()[:-1],
        user_message("Write it."),
        *call_with_result(
            "write",
            {"path": "/r/app/src/folders.py", "content": written},
            "ok",
        ),
        *tool_turns(901, 3),
    ]
    result = await compact(conversation, window=WINDOW, summarizer=JOURNAL)
    assert "resolveSessionFolder" in "\n".join(map(text_of, result.messages))


def write_section(names: list[str]) -> str:
    section = NamesSection.plan(NamesInUse.from_list(names), 10_000)
    return section.render("word " * 1_000, frozenset(), COUNTER.text)


def test_a_file_is_listed_with_its_folder_only_if_its_name_is_not_unique() -> None:
    paths = [
        "/r/app/src/shop/cart.py",
        "/r/app/src/shop/order.py",
        "/r/app/src/mail/cart.py",
        "/r/app/src/mail/order.py",
        "/r/app/tests/shop_tests/cart_test.py",
        "/etc/hosts.conf",
        "notes.md",
    ]
    text = write_section(read_names("\n".join(paths)))
    assert "shop/{cart.py order.py}" in text
    assert set(parse_names(text)) == {
        "shop/cart.py",
        "shop/order.py",
        "mail/cart.py",
        "mail/order.py",
        "cart_test.py",
        "hosts.conf",
        "notes.md",
    }


def test_folders_and_commands_are_read_back() -> None:
    names = ["shop/cart", "app/Makefile", "go test ./... -run Cart", "cart_total_sum"]
    assert set(parse_names(write_section(names))) == set(names)


async def test_a_file_in_the_middle_of_a_long_output_is_listed() -> None:
    filler = "word " * 3_000
    conversation = [
        user_message("Begin."),
        assistant_message("Yes."),
        user_message("Go on."),
        *call_with_result("bash", '{"command": "cat log"}', f"{filler}src/shop/cart.py {filler}"),
        *tool_turns(100, 20),
        assistant_message("Ok."),
        user_message("Now?"),
    ]
    result = await compact(conversation, window=WINDOW, summarizer=JOURNAL)
    assert "cart.py" in read_names(names_in(result))


def test_a_folder_ranks_below_identifiers_and_files() -> None:
    names = NamesInUse.from_list(["src/shop", "cart_total_sum", "shop/cart.py"])
    assert names.rank_names() == ["shop/cart.py", "cart_total_sum", "src/shop"]


def test_a_name_that_an_edit_only_repeats_counts_less() -> None:
    edits = [
        {"old_string": "keep_this = read_old()", "new_string": "keep_this = read_new()"}
        for _ in range(3)
    ]
    messages = flatten(call_with_result("edit", edit, "Done") for at, edit in enumerate(edits))
    facts = [MessageFacts(message) for message in messages]
    names = NamesInUse()
    names.add_messages(facts, read_effects(facts))
    assert names.rank_names()[-1] == "keep_this"
    assert len(names.rank_names()) == 3


def test_a_file_without_a_folder_counts_for_its_path() -> None:
    names = NamesInUse.from_list(["cart_total_sum", "cart.py", "shop/cart.py"])
    assert names.rank_names() == ["shop/cart.py", "cart_total_sum"]


def test_a_file_is_not_listed_if_its_path_is_shown_with_other_folders() -> None:
    others = [f"cart_total_{at}" for at in range(5)]
    names = NamesInUse.from_list([*read_names("/r/app/src/shop/cart.py"), *others])
    section = NamesSection.plan(names, 10_000)
    shown = frozenset(read_names("src/shop/cart.py"))
    text = section.render("word " * 1_000, shown, COUNTER.text)
    assert parse_names(text) == others


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        (
            "pytest tests/shop/test_cart.py::test_total",
            ["shop/test_cart.py", "test_total"],
        ),
        ("git show HEAD:src/shop/cart.py", ["shop/cart.py"]),
        ("ls /home/ann/shop/.config", ["shop/.config"]),
        ("cd /home/ann/shop", ["ann/shop"]),
        ("cat lib/views/cart.heex", ["views/cart.heex"]),
        ("find . -path **/cart_test.go", ["cart_test.go"]),
        ("redis-cli -u cache:6379", ["redis-cli", "cache:6379"]),
        ("border-radius:50", ["border-radius"]),
    ],
)
def test_files_folders_and_hosts_are_read_from_commands(typed: str, names: list[str]) -> None:
    assert read_names(typed, is_typed=True) == names


def test_text_that_only_looks_like_a_name_is_not_listed() -> None:
    escaped = 'printed "{\\"a\\": \\"x\\tnewHeadCommit\\nlastTestRun\\"}"'
    assert set(read_names(escaped)) == {"newHeadCommit", "lastTestRun"}
    quoted = '{\\"body\\":\\"Done\\nnewHeadCommit\\",\\"at\\":\\"2026-02-03T10:20:45.921Z\\"}'
    assert read_names(quoted) == ["newHeadCommit"]
    assert read_names(r"see C:\new_shop\cart_total") == ["new_shop", "cart_total"]
    assert read_names("see types.go:74 and rewind.go") == ["types.go", "rewind.go"]


async def test_words_of_a_commit_message_and_links_in_outputs_are_not_listed() -> None:
    conversation = make_session()
    conversation[4:4] = [
        *call_with_result(
            "bash",
            {"command": "git commit -m 'Fix mid-turn commits' && git push origin fix-turn-ends"},
            "https://api.example.com/users/ann/followers_page was shown",
        ),
    ]
    result = await compact(conversation, window=WINDOW, summarizer=JOURNAL)
    listed = names_in(result)
    assert "mid-turn" not in listed
    assert "followers_page" not in listed
    assert "fix-turn-ends" in result.summary
