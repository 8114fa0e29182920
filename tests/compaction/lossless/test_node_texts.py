"""Writing a node: by a model, again more briefly, else from the transcript; and rewriting it later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from everthread.compaction.engine import Original
from everthread.compaction.lossless import LosslessEngine
from everthread.compaction.summarizers.summarizer import SummaryRequest
from everthread.compaction.summary.sections import Sections, parse_sections
from everthread.core.messages import Message
from everthread.core.search.search_results import Passage
from everthread.core.types import Node
from everthread.errors import UnknownIdError
from everthread.testing import ScriptedSummarizer
from tests.chat_messages import user_message
from tests.compaction.lossless.lossless_setup import (
    OPENING,
    compact_lossless,
    extend_history,
    make_services,
    visible_nodes,
)


def write_briefly(request: SummaryRequest) -> Sections:
    return {
        "Goal": f"Written about {len(request.messages)} messages.",
        "Critical Context": "No path is lost.",
    }


def write_too_much(request: SummaryRequest) -> Sections:
    return {"Goal": "\n".join("- a line of far too many" for _ in range(request.budget))}


class ListArchive:
    """An archive of messages in a list."""

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self.kept: dict[str, Node] = {}
        self.messages = list(messages)

    async def nodes(self) -> Sequence[Node]:
        return list(self.kept.values())

    async def originals(self, ids: Sequence[int]) -> list[Original]:
        return [Original(number, self.messages[number], 100.0 + number) for number in ids]

    async def covered(self) -> list[int]:
        return []

    async def expand(self, wanted: str, *, offset: int, limit: int) -> Passage:
        raise UnknownIdError(f"{wanted} {offset} {limit}")


async def test_a_model_writes_the_nodes_and_is_named() -> None:
    result = await compact_lossless(
        extend_history(OPENING), summarizer=ScriptedSummarizer(write_briefly)
    )
    assert result.author == "scripted"
    for node in result.nodes:
        assert node.author == "scripted"
        assert not node.degraded
    assert "Written about" in result.summary


async def test_a_node_that_is_too_long_twice_becomes_a_journal() -> None:
    writer = ScriptedSummarizer(write_too_much)
    result = await compact_lossless(extend_history(OPENING), summarizer=writer)
    budgets = [request.budget for request in writer.requests if request.messages]
    leaves = [node for node in result.nodes if node.level == 0]
    assert len(budgets) == 2 * len(leaves)
    assert len(set(budgets)) > 1
    for leaf in leaves:
        assert leaf.degraded
        assert leaf.author == "journal"
    for node in result.nodes:
        assert node.tokens < node.covered_tokens
    assert "far too many" not in result.summary
    assert "src/module_" in result.summary
    assert any("asked to be brief" in warning for warning in result.warnings)


async def test_without_a_model_the_nodes_are_journals() -> None:
    result = await compact_lossless(
        extend_history(OPENING), summarizer=ScriptedSummarizer(fails="no route")
    )
    assert result.changed
    assert {node.author for node in result.nodes} == {"journal"}
    assert any("no route" in warning for warning in result.warnings)


async def test_names_that_no_source_has_are_marked() -> None:
    def invents(request: SummaryRequest) -> Sections:
        return write_briefly(request) | {"Relevant Files": "- src/never_there.py was changed"}

    result = await compact_lossless(extend_history(OPENING), summarizer=ScriptedSummarizer(invents))
    assert "- src/never_there.py was changed (unverified)" in result.summary
    assert result.verification.unverified


async def test_a_joined_node_is_completed_from_its_children() -> None:
    def forgetful(request: SummaryRequest) -> Sections:
        if request.notes:
            return {"Goal": "All of it."}
        return write_briefly(request) | {
            "Key Decisions": f"- Bay {request.ids[0]} was chosen because it is dry."
        }

    writer = ScriptedSummarizer(forgetful)
    result = await compact_lossless(extend_history(OPENING), summarizer=writer, fan_in=2)
    leaves = {node.id: node for node in result.nodes if node.level == 0}
    parents = [node for node in result.nodes if node.level == 1]
    assert parents
    assert all(request.is_stretch for request in writer.requests if request.messages)
    notes_by_request = [request.notes for request in writer.requests if request.notes]
    for node, notes in zip(parents, notes_by_request[: len(parents)], strict=True):
        children = [leaves[source] for source in node.sources]
        child_sections = [parse_sections(leaf.body) for leaf in children]
        assert notes == child_sections
        decisions = [sections["Key Decisions"] for sections in child_sections]
        assert decisions[-1] in node.body, "the newest is added first if not all fit"
        kept_decisions = [line for line in decisions if line in node.body]
        assert parse_sections(node.body)["Key Decisions"].split("\n") == kept_decisions
        assert node.tokens < sum(leaf.tokens for leaf in children)


async def test_makeshift_nodes_are_rewritten_when_a_model_is_available() -> None:
    messages = extend_history(OPENING)
    archive = ListArchive(messages)
    writer = ScriptedSummarizer(write_briefly, fails="resting")
    engine = LosslessEngine(replace(make_services(writer), archive=archive))
    first = await engine.compress(messages, ids=range(len(messages)))
    assert all(node.degraded for node in first.nodes)
    assert all(node.since >= 100.0 for node in first.nodes)
    archive.kept = {node.id: node for node in first.nodes}
    engine.on_compacted(first)
    repeated = await engine.compress(messages, ids=range(len(messages)))
    assert repeated.summary == first.summary

    writer.fails = ""
    grown = extend_history(first.messages)
    ids = list(range(1_000, 1_000 + len(grown)))
    archive.messages += [user_message("")] * 2_000
    second = await engine.compress(grown, ids=ids)
    old_nodes = [archive.kept[part.node.id] for part in visible_nodes(first)]
    old_sources = {node.sources for node in old_nodes}
    rewritten_nodes = [node for node in second.nodes if node.sources in old_sources]
    assert rewritten_nodes
    for node in rewritten_nodes:
        assert node.author == "scripted"
        assert not node.degraded
        assert node not in old_nodes
    assert "makeshift" not in visible_nodes(second)[0].text
