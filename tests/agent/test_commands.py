"""Slash commands: text in, a result out; never a word to the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from everthread import Agent, open_store
from everthread.agent import commands
from everthread.agent.approval import Approvals
from everthread.agent.cache_misses import CacheMissLog
from everthread.agent.commands import COMMANDS, CommandResult, parse
from everthread.agent.commands.state_commands import describe_cache
from everthread.agent.tool_interface import ToolContext, ToolReply
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import text_of
from everthread.core.types import Request
from everthread.lab.provider import Provider, ServedModel
from everthread.providers.local import SMOLLM2
from everthread.store.records import NewSession
from everthread.testing import ScriptedModel, SteppedClock
from everthread.thread.events import (
    CompactionDone,
    Recovery,
    RequestReady,
    UsageRecorded,
)
from everthread.thread.used_window import describe_window
from tests.agent.agent_setup import (
    AgentSetup,
    FakeTool,
    call_reply,
    open_setup,
    text_tool,
)
from tests.conversation.conversation_setup import make_text, numbered_text, send_texts
from tests.conversation.http_setup import KEY, NAMES

SMALL = "compression: {background: false, protect_last_n: 2}"


async def run_command(agent: Any, text: str) -> CommandResult:
    """Run a command; check that its data are JSON and that the model was not asked."""
    conversation = getattr(agent, "conversation", agent)
    result = await commands.run(agent, conversation.store, text)
    json.dumps(result.data)
    assert result.text
    return result


async def open_with_turns(
    setup: AgentSetup, turns: int = 8, **more: Any
) -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel(lambda _: "Noted.", **more)
    agent = await setup.open(model, config=SMALL)
    await send_texts(agent, turns, 600, "page")
    return agent, model


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/help", ("help", "")),
        ("  /compress the  ports ", ("compress", "the  ports")),
        ("/Compact the ports", ("compress", "the ports")),
        ("/Search\nretry budget", ("search", "retry budget")),
        ("/etc/hosts is wrong", None),
        ("/usr/bin", None),
        ("hello /help", None),
        ("//comment", None),
        ("/", None),
        ("", None),
        ("/ help", None),
    ],
)
def test_slash_commands_are_parsed(text: str, found: tuple[str, str] | None) -> None:
    assert parse(text) == found


async def test_every_specified_command_exists_with_help(setup: AgentSetup) -> None:

    names = {command.name for command in COMMANDS}
    wanted = "compress undo usage insights new resume branch sessions search help model context pin memory why state"
    assert names == set(wanted.split())
    agent = await setup.open(ScriptedModel())
    result = await run_command(agent, "/help")
    assert all(command.usage in result.text for command in COMMANDS)
    one = await run_command(agent, "/help undo")
    assert one.text.count("\n") == 0
    assert (await run_command(agent, "/help compact")).text.startswith(
        "- `/compress"
    ), "an alias is the command"
    unknown = await run_command(agent, "/help nonsense")
    assert unknown.failed
    assert "no command /nonsense" in unknown.text


@pytest.mark.parametrize(
    ("config", "window"), [("", 8_192), ("model: {context_length: 4096}", 4_096)]
)
async def test_the_local_model_has_all_of_its_window_also_when_it_comes_later(
    setup: AgentSetup, home: Path, config: str, window: int
) -> None:
    file = SMOLLM2.path(home)
    file.parent.mkdir(parents=True)
    file.touch()  # nothing is loaded before the first call
    agent = await setup.open(ScriptedModel(), config=config)
    said = await run_command(agent, f"/model local/{SMOLLM2.name}")
    assert said.data["window"] == agent.conversation.window == window


async def test_no_command_reaches_the_model(setup: AgentSetup) -> None:
    agent, model = await open_with_turns(setup, 3)
    asked = len(model.requests)
    for command in COMMANDS:
        await run_command(agent, f"/{command.name}")
        await run_command(agent, f"/{command.name} something odd")
    assert len(model.requests) == asked
    said = [
        text_of(item.body) for item in await setup.store.history(agent.conversation.id)
    ]
    assert not any(text.startswith("/") for text in said)


async def test_while_a_turn_runs_nothing_is_changed_under_it(setup: AgentSetup) -> None:
    said: list[CommandResult] = []

    async def look(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        lines = (
            "/pin never use tabs",
            "/undo",
            "/compress",
            "/branch",
            "/usage",
            "/context",
        )
        said.extend([await run_command(agent, line) for line in lines])
        return ToolReply("looked")

    agent = await setup.open(
        ScriptedModel([call_reply(("look", {})), "Done."]),
        tools=[FakeTool("look", look)],
    )
    assert (await agent.send("Look.")).text == "Done."
    assert [result.failed for result in said] == [
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    assert "A turn is running" in said[0].text
    assert not (await run_command(agent, "/pin never use tabs")).failed


async def test_a_bare_conversation_has_them_too(setup: AgentSetup) -> None:
    agent, _ = await open_with_turns(setup, 2)
    failed = {
        c.name
        for c in COMMANDS
        if (await run_command(agent.conversation, f"/{c.name}")).failed
    }
    assert failed == {"pin", "memory", "search"}, "what lacks an argument or an agent"
    fresh = await setup.open(ScriptedModel())
    assert (await run_command(fresh.conversation, "/context")).data["kinds"][
        "user"
    ] == 0


async def test_an_unknown_command_suggests_near_names(setup: AgentSetup) -> None:
    agent = await setup.open(ScriptedModel())
    result = await run_command(agent, "/compres now")
    assert result.failed
    assert "/compress" in result.text
    assert "sessions" in (await run_command(agent, "/sess")).data["near"]
    assert (await run_command(agent, "/xyzzy")).data["near"] == []
    assert (await run_command(agent, "no command")).failed


async def test_compress_preview_and_undo(setup: AgentSetup) -> None:
    agent, _ = await open_with_turns(setup, window=24_000)
    before = list(agent.conversation.messages)
    session = agent.conversation.session.id
    preview = await run_command(agent, "/compress --preview page 3")
    assert "would be replaced by a summary" in preview.text
    assert "- user: Turn 2: page 2 0 is settled" in preview.text, (
        "it shows what would go"
    )
    assert agent.conversation.messages == before
    assert agent.conversation.session.id == session
    done = await run_command(agent, "/compress page 3")
    assert done.data["messages_before"] == 16
    assert done.data["messages_after"] == len(agent.conversation.messages) < 16
    assert done.data["tokens_after"] < done.data["tokens_before"]
    for said in (
        f"{done.data['tokens_before']:,} → {done.data['tokens_after']:,}",
        "journal",
        "16 messages",
    ):
        assert said in done.text
    assert setup.events_of(CompactionDone)[0].reason == "manual"
    undone = await run_command(agent, "/undo")
    assert agent.conversation.messages == before
    assert undone.data["messages"] == 16
    again = await run_command(agent, "/undo")
    assert (again.failed, again.data) == (False, {"undone": False})
    assert "nothing to undo" in again.text


async def test_no_compaction_follows_an_undo_at_once(setup: AgentSetup) -> None:
    agent = await setup.open(
        ScriptedModel(lambda _: "Noted.", window=24_000), config=SMALL
    )
    turn = await setup.send_until_compacted(agent, 1_000)
    undone = await run_command(agent, "/undo")
    assert agent.conversation.tokens >= agent.conversation.threshold
    assert "waits until it has grown by a tenth" in undone.text
    await agent.send("A short question.")
    assert len(setup.events_of(CompactionDone)) == 1
    while len(setup.events_of(CompactionDone)) == 1:
        turn += 1
        await agent.send(numbered_text(turn, 1_000, "page"))


async def test_an_undo_that_does_not_fit_is_compacted_by_the_next_message(
    setup: AgentSetup,
) -> None:
    agent = await setup.open(
        ScriptedModel(lambda _: "Noted.", window=24_000), config=SMALL
    )
    turn = await setup.send_until_compacted(agent, 1_000)
    for page in range(turn, turn + 12):
        await agent.send(numbered_text(page, 1_000, "page"))
    undone = await run_command(agent, "/undo")
    while not agent.conversation.is_full:
        undone = await run_command(agent, "/undo")
    assert "do not fit the window" in undone.text
    count = len(setup.events_of(CompactionDone))
    await agent.send("A short question.")
    assert len(setup.events_of(CompactionDone)) == count + 1
    assert not setup.events_of(Recovery)


async def test_resuming_a_conversation_of_another_model_says_so(
    setup: AgentSetup,
) -> None:
    first = await setup.open(
        ScriptedModel(lambda _: "Noted.", name="model-a", window=24_000)
    )
    await first.send("Hello.")
    thread = first.conversation.id
    second = await setup.open(
        ScriptedModel(lambda _: "Noted.", name="model-b", window=24_000)
    )
    await second.send("Hi.")
    said = await run_command(second, f"/resume {thread}")
    assert "It was with model-a; model-b answers now" in said.text


async def test_a_refused_command_is_not_a_failed_one(setup: AgentSetup) -> None:
    model = ScriptedModel(
        [call_reply(("terminal", {"command": "rm -r build"})), "Then not."]
    )
    agent = await setup.open(model, approve=Approvals([], None), yes=False)
    await agent.send("Clean up.")
    said = await run_command(agent, "/state")
    assert "– `rm -r build`: refused by the user" in said.text
    assert "Open errors" not in said.text


def test_why_counts_calls_that_were_stopped() -> None:
    journal = CacheMissLog()
    journal(RequestReady("s", _request("one")))
    assert "1 call ended without a report" in describe_cache(journal)
    _record_call(journal, _request("two"), prompt=10, cached=0)
    said = describe_cache(journal)
    assert "no miss in 1 reported call" in said
    assert "1 call ended without a report" in said


async def test_a_learnt_window_is_named_alone(setup: AgentSetup) -> None:
    agent = await setup.open(ScriptedModel(window=400_000))
    assert describe_window(agent.conversation.window, agent.conversation.route) == (
        "400,000 tokens (the model's own)"
    )
    assert describe_window(16_000, agent.conversation.route) == (
        "16,000 tokens, learnt from the provider"
    )


async def test_a_preview_never_grows_the_history(setup: AgentSetup) -> None:
    agent = await setup.open(
        ScriptedModel(lambda _: "Noted.", window=6_000), config=SMALL
    )
    offered = 0
    for turn in range(12):
        await agent.send(numbered_text(turn, 100, "page"))
        said = await run_command(agent, "/compress --preview")
        assert said.data["tokens_after"] <= said.data["tokens_before"]
        if said.data["covered"]:
            offered += 1
            assert f"at most {said.data['tokens_after']:,}" in said.text
    assert offered


async def test_compress_with_nothing_to_do_or_disabled(setup: AgentSetup) -> None:
    agent, _ = await open_with_turns(setup, 1)
    assert "Nothing was changed" in (await run_command(agent, "/compress")).text
    off = await setup.open(
        ScriptedModel(["ok"]), config="compression: {enabled: false}"
    )
    await off.send("Hi.")
    said = await run_command(off, "/compress")
    assert said.failed
    assert "disabled" in said.text


async def test_usage_and_insights_read_the_store(setup: AgentSetup) -> None:
    fresh = await setup.open(ScriptedModel())
    assert "No call" in (await run_command(fresh, "/usage")).text
    agent, _ = await open_with_turns(setup, 3)
    usage = await run_command(agent, "/usage")
    spent = await setup.store.usage(agent.conversation.id)
    assert usage.data["sums"]["all"]["prompt"] == sum(
        item.usage.prompt_tokens for item in spent
    )
    assert "3 calls" in usage.text
    unpriced = await setup.open(ScriptedModel(["hm"], name="nobody-knows-this-model"))
    await unpriced.send("Hi.")
    said = await run_command(unpriced, "/usage")
    assert said.data["sums"]["all"]["cost"] is None
    assert "cost unknown" in said.text
    insights = await run_command(agent, "/insights 7")
    assert insights.data["total"]["calls"] == 4
    assert "gpt-4o" in insights.text
    assert (await run_command(agent, "/insights never")).failed


async def test_new_resume_branch_and_sessions(setup: AgentSetup) -> None:
    agent, model = await open_with_turns(setup, 2)
    first = agent.conversation.id
    new = await run_command(agent, "/new Spring cleaning")
    assert new.next_session
    await agent.switch(new.next_session)
    await agent.send("A fresh start.")
    assert [text_of(m) for m in model.requests[-1].messages] == ["A fresh start."]
    assert model.requests[-1].system == model.requests[0].system, (
        "it has its system prompt"
    )
    assert model.requests[-1].tools == model.requests[0].tools
    listed = await run_command(agent, "/sessions")
    assert "Spring cleaning" in listed.text
    assert "Turn 0" in listed.text
    assert [row["here"] for row in listed.data["threads"]].count(True) == 1
    parent = agent.conversation.session
    other = await agent.conversation.open_another(
        new=NewSession(kind="subagent", parent=parent.id, title="A part")
    )
    await other.add("Count the files.")
    await other.close()
    assert (await run_command(agent, "/sessions")).data == listed.data, (
        "a subagent's thread is nobody's conversation"
    )
    assert "/resume ID" in (await run_command(agent, "/resume")).text
    back = await run_command(agent, f"/resume {first[:8]}")
    assert back.next_session == first
    await agent.switch(back.next_session)
    assert len(agent.conversation.messages) == 4
    branch = await run_command(agent, "/branch")
    await agent.switch(branch.next_session or "")
    await agent.send("Only here.")
    assert len(agent.conversation.messages) == 6
    assert len(await setup.store.history(first)) == 4
    assert (await run_command(agent, "/resume zzzz")).failed
    assert (await run_command(await setup.open(ScriptedModel()), "/branch")).failed, (
        "there is nothing to branch from"
    )


async def test_other_tenants_threads_are_not_shown(setup: AgentSetup) -> None:
    acme = await setup.open(ScriptedModel(["ok"]), session=NewSession(tenant="acme"))
    await acme.send("The vault is behind the mirror.")
    bolt = await setup.open(ScriptedModel(["ok"]), session=NewSession(tenant="bolt"))
    await bolt.send("Hello.")
    assert "vault" not in (await run_command(bolt, "/sessions")).text
    assert (await run_command(bolt, "/search vault")).data["hits"] == []
    assert (await run_command(bolt, f"/resume {acme.conversation.id}")).failed
    assert (await run_command(bolt, "/insights")).data["total"]["calls"] == 1
    assert (await run_command(acme, "/search vault")).data["hits"]


async def test_search_finds_in_every_conversation(setup: AgentSetup) -> None:
    agent, _ = await open_with_turns(setup, 1)
    other = await setup.open(ScriptedModel(["ok"]))
    await other.send("The hinge of gate 14 is loose.")
    found = await run_command(agent, "/search hinge")
    assert found.data["hits"][0]["thread"] == other.conversation.id
    assert "gate 14" in found.text
    asked = await run_command(agent, "/search which gate has a loose hinge?")
    assert asked.data["hits"][0]["thread"] == other.conversation.id
    assert "Nothing was found" in (await run_command(agent, "/search zeppelin")).text
    assert (await run_command(agent, "/search")).failed


async def test_search_shows_the_message_before_and_after(setup: AgentSetup) -> None:
    agent = await setup.open(
        ScriptedModel([call_reply(("dump", {})), "The hinge is loose.", "Noted."]),
        tools=[text_tool("dump", make_text(200))],
    )
    await agent.send("Which gate?")
    await agent.send("Mend the hinge.")
    asked, call, result, answer, mend, noted = (
        one.id for one in await setup.store.history(agent.conversation.id)
    )
    found = await run_command(agent, "/search hinge")
    lines = [line for line in found.text.splitlines() if line.startswith("  ")]
    assert lines[:2] == [
        f"  - before #{answer} assistant (also a match)",
        f"  - after #{noted} assistant: Noted.",
    ]
    assert lines[2].startswith(f"  - before #{result} tool (dump): ")
    assert lines[2].endswith("…")
    assert max(map(len, lines)) < 78
    assert lines[3:] == [f"  - after #{mend} user (also a match)"]
    assert found.data["hits"][1]["after"] == {
        "message": mend,
        "role": "user",
        "tool": "",
        "text": "Mend the hinge.",
    }
    first = await run_command(agent, "/search gate")
    assert first.data["hits"][0]["before"] is None
    assert first.data["hits"][0]["after"]["message"] == call == asked + 1


async def test_context_shows_the_window_by_kind(setup: AgentSetup) -> None:
    script: list[Any] = [
        call_reply(("dump", {"what": "x" * 400})),
        "Seen.",
        *["Noted."] * 20,
    ]
    agent = await setup.open(
        ScriptedModel(script, window=16_000),
        tools=[text_tool("dump", make_text(2_000))],
        config=SMALL,
    )
    await agent.send("Dump.")
    shown = await run_command(agent, "/context")
    kinds = shown.data["kinds"]
    assert abs(sum(kinds.values()) - agent.conversation.tokens) < 10
    assert kinds["tool results"] > kinds["tool calls"] > 0
    assert kinds["system prompt"] > 200
    assert kinds["summary"] == 0
    assert f"tool results{kinds['tool results']:>12,}  " in shown.text
    await send_texts(agent, 8, 1_000, "row")
    assert (await run_command(agent, "/context")).data["kinds"]["summary"] > 0


async def test_a_pinned_rule_is_in_every_request_word_for_word(
    setup: AgentSetup,
) -> None:
    rule = "the invoices folder is read only"
    model = ScriptedModel(lambda _: "Noted.", window=16_000)
    agent = await setup.open(model, config=SMALL)
    await agent.send("Let us tidy up.")
    assert rule in (await run_command(agent, f"/pin  {rule}")).text
    assert len(model.requests) == 1
    await setup.send_until_compacted(agent, 1_000, times=3)
    for request in model.requests[1:]:
        assert any(rule in text_of(message) for message in request.messages)
    assert (await run_command(agent, "/pin")).failed
    assert (await run_command(agent, f"/pin {'very ' * 500}long")).failed


@pytest.mark.parametrize("api", list(NAMES))
async def test_a_pin_keeps_the_history_valid_for_every_protocol(
    tmp_path: Path, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "sk-lab")
    async with (
        Provider([ServedModel(NAMES[api], 200_000)], lambda _: "Noted.") as provider,
        open_setup(tmp_path) as setup,
    ):
        address = provider.url if api == "anthropic" else f"{provider.url}/v1"
        route = f"model: {{default: {NAMES[api]}, provider: custom, base_url: '{address}', api_key_env: {KEY}}}"
        agent = await setup.open(None, config=route, api=api)
        await run_command(agent, "/pin never use tabs")
        await agent.send("Hello.")
        await run_command(agent, "/pin answer in rhyme")
        await agent.send("And now?")
        assert {record.status for record in provider.log} == {200}
        assert "answer in rhyme" in str(provider.log[-1].request)


async def test_memory_is_shown_and_changed(setup: AgentSetup, home: Path) -> None:
    agent = await setup.open(ScriptedModel())
    await run_command(agent, "/memory add The ledger is on 8443")
    await run_command(agent, "/memory add user Is called Ines")
    shown = await run_command(agent, "/memory")
    assert shown.data["memory"] == ["The ledger is on 8443"]
    assert shown.data["user"] == ["Is called Ines"]
    await run_command(agent, "/memory remove 8443")
    assert (await run_command(agent, "/memory show")).data["memory"] == []
    assert (await run_command(agent, "/memory remove nothing")).failed
    assert (await run_command(agent, "/memory eat it")).failed
    assert (await run_command(agent.conversation, "/memory")).failed, (
        "a bare conversation has none"
    )


async def test_model_shows_and_switches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "sk-lab")
    served = [
        ServedModel("gpt-4o", 64_000, shows="max_model_len"),
        ServedModel("gpt-4o-mini", 9_000, shows="max_model_len"),
    ]
    async with (
        Provider(served, lambda request: f"I am {request.model}.") as provider,
        open_setup(tmp_path) as setup,
    ):
        address = (
            f"model: {{default: gpt-4o, provider: custom, base_url: '{provider.url}/v1', api_key_env: {KEY}, "
            "context_length: 60_000}"
        )
        agent = await setup.open(None, config=f"{address}\n{SMALL}")
        assert (await agent.send("Who?")).text == "I am gpt-4o."
        assert agent.conversation.window == 60_000, (
            "the configured window is that of the configured model alone"
        )
        await send_texts(agent, 6, 1_000, "row")
        assert "gpt-4o" in (await run_command(agent, "/model")).text
        switched = await run_command(agent, "/model gpt-4o-mini")
        assert switched.data == {
            "model": "gpt-4o-mini",
            "window": 9_000,
            "source": switched.data["source"],
            "api": "openai_chat",
        }
        assert "compacted before the next call" in switched.text
        assert (await agent.send("And now?")).text == "I am gpt-4o-mini."
        assert setup.events_of(CompactionDone)
        branch = await run_command(agent, "/branch")
        await agent.switch(branch.next_session or "")
        assert (await agent.send("Here too?")).text == "I am gpt-4o-mini."
        assert (await run_command(agent.conversation, "/model gpt-4o")).failed


async def test_why_tells_of_the_last_compaction_even_after_a_restart(
    tmp_path: Path,
) -> None:

    async def talked_on(setup: AgentSetup, agent: Agent) -> None:
        await setup.send_until_compacted(agent, 9_000)

    async with open_setup(tmp_path) as setup:
        agent, _ = await open_with_turns(setup, 2)
        assert "never compacted" in (await run_command(agent, "/why")).text
        await talked_on(setup, agent)
        said = await run_command(agent, "/why")
        assert said.data["reason"] == "preflight"
        assert "took the prompt to the threshold" in said.text
        thread = agent.conversation.id
    again = open_store(tmp_path / "store.db")
    async with open_setup(tmp_path) as setup:
        resumed = await setup.open(ScriptedModel(), resume=thread)
        assert (
            "took the prompt to the threshold"
            in (await run_command(resumed, "/why")).text
        )
    await again.close()


def _record_call(
    journal: CacheMissLog,
    request: Request,
    *,
    prompt: int,
    cached: int,
    session: str = "s",
) -> None:
    journal(RequestReady(session, request))
    usage = CanonicalUsage(input_tokens=prompt - cached, cache_read_tokens=cached)
    journal(UsageRecorded(session, request.model, "main", usage, None))


def _last_miss_reason(journal: CacheMissLog) -> str:
    return journal.last_miss.reason if journal.last_miss else ""


def _request(*said: str, model: str = "m", system: str = "s") -> Request:
    return Request(model, [{"role": "user", "content": text} for text in said], system)


def test_why_names_the_reason_that_the_provider_gives() -> None:
    journal = CacheMissLog(SteppedClock())
    _record_call(journal, _request("a"), prompt=5_000, cached=0)
    request = _request("a", "b")
    journal(RequestReady("s", request))
    usage = CanonicalUsage(input_tokens=6_000, cache_miss="tools changed")
    journal(UsageRecorded("s", request.model, "main", usage, None))
    assert journal.last_miss is not None
    assert (journal.last_miss.reason, journal.last_miss.is_from_provider) == (
        "tools changed",
        True,
    )
    _record_call(journal, _request("x"), prompt=6_000, cached=0)
    assert not journal.last_miss.is_from_provider


def test_why_explains_a_cache_miss() -> None:
    clock = SteppedClock()
    journal = CacheMissLog(clock)
    _record_call(journal, _request("a"), prompt=5_000, cached=0)
    assert journal.last_miss is None, "the first call can hit nothing"
    _record_call(journal, _request("a", "b"), prompt=6_000, cached=5_000)
    assert journal.last_miss is None
    reasons = []
    for request, session in (
        (_request("a", "b", system="other"), "s"),
        (_request("x", "b", system="other"), "s"),
        (_request("x", "b", system="other", model="n"), "s"),
        (_request("x", "b", system="other", model="n"), "t"),
        (_request("x", "b", "c", system="other", model="n"), "t"),
    ):
        _record_call(journal, request, prompt=6_000, cached=0, session=session)
        reasons.append(_last_miss_reason(journal))
    clock.advance(301)
    _record_call(
        journal,
        _request("x", "b", "c", "d", system="other", model="n"),
        prompt=6_000,
        cached=0,
        session="t",
    )
    reasons.append(_last_miss_reason(journal))
    wanted = [
        "system",
        "messages[0]",
        "another model",
        "rewritten",
        "by itself",
        "301 s passed",
    ]
    assert all(word in reason for word, reason in zip(wanted, reasons, strict=True)), (
        reasons
    )


async def test_names_that_other_programs_use(setup: AgentSetup) -> None:
    agent, _ = await open_with_turns(setup, 2)
    assert (await run_command(agent, "/cost")).data["sums"] == (
        await run_command(agent, "/usage")
    ).data["sums"]
    assert (await run_command(agent, "/clear")).next_session


async def test_the_state_of_a_thread(setup: AgentSetup) -> None:
    script: list[Any] = [
        call_reply(
            ("write_file", {"path": "a.py", "content": "x = 1\n"}),
            ("terminal", {"command": "false"}),
        ),
        call_reply(("terminal", {"command": "mkdir fine"})),
        "Done.",
    ]
    agent = await setup.open(ScriptedModel(script))
    assert "no command was run" in (await run_command(agent, "/state")).text
    await agent.send("Go.")
    shown = await run_command(agent, "/state")
    assert [file["path"] for file in shown.data["files"]] == ["a.py"]
    assert {run["command"]: run["ok"] for run in shown.data["commands"]} == {
        "false": False,
        "mkdir fine": True,
    }
    assert "**Files changed**" in shown.text
    assert "✓ `mkdir fine`" in shown.text
    assert "✗ `false`" in shown.text
