"""The lossless engine: what leaves the view is covered by a graph of summaries, and can be read word for word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from everthread.compaction import reporting
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.lossless.compacting import Work
from everthread.compaction.lossless.options import Options
from everthread.compaction.lossless.schemas import SCHEMAS
from everthread.compaction.lossless.tools import Tools
from everthread.compaction.lossless.words import figures, writers
from everthread.compaction.pacing import Pacing
from everthread.compaction.steps.assemble import assemble, note_for
from everthread.compaction.steps.cutting import Plan, plan
from everthread.compaction.steps.reading import Reader
from everthread.core.exchange import System
from everthread.core.ladder import Strength
from everthread.core.messages import Messages
from everthread.core.nodes import Node
from everthread.core.summary import Compaction
from everthread.core.usage import CanonicalUsage
from everthread.errors import InputError


class LosslessEngine(ContextEngine):
    """Nodes over the past, the recent end as it was said, and tools that give back the rest."""

    name = "lossless"

    def __init__(self, services: Services, options: Options | None = None) -> None:
        self._services = services
        self._options = options or Options()
        self._pacing = Pacing(services)
        self._reader = Reader()
        self._notes: tuple[str, ...] = ()
        self._known: dict[str, Node] = {}
        """Nodes that were read or made; the store has them all."""
        self._tools = Tools.of(services)

    # When

    def update_from_response(self, usage: CanonicalUsage) -> None:
        self._pacing.update_from_response(usage)

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        return self._pacing.should_compress(prompt_tokens)

    def has_content_to_compress(self, messages: Messages) -> bool:
        made = plan(messages, self._services, self._reader, system=None, tools=None)
        return made.descent.boundaries.has_middle or reporting.only_cites(made)

    # What

    async def compress(  # noqa: PLR0913 - as every engine
        self,
        messages: Messages,
        *,
        current_tokens: int | None = None,
        focus_topic: str | None = None,
        system: System = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        strength: Strength = Strength.NORMAL,
        manual: bool = False,
        dry_run: bool = False,
        ids: Sequence[int] | None = None,
    ) -> Compaction:
        """A smaller history; the input itself, with the reason, where there is nothing to win."""
        services, started = self._services, self._services.clock()
        made = plan(
            messages, services, self._reader, system=system, tools=tools, strength=strength, reported=current_tokens
        )
        has_middle = made.descent.boundaries.has_middle
        if not has_middle and not reporting.only_cites(made):
            return reporting.unchanged(made, reporting.NO_MIDDLE, services.clock() - started)
        if dry_run:
            return reporting.preview(made, services.clock() - started)
        if has_middle:
            result = await self._compact(made, ids, focus_topic, manual=manual)
        else:
            result = reporting.cited(made, services.clock() - started)
        after = services.counter.request(result.messages, system=system, tools=list(tools or ()))
        reason = reporting.reason_for(manual=manual, overflow=strength > Strength.NORMAL)
        return reporting.settled(result, made, after, reason, services.clock() - started)

    async def _compact(self, made: Plan, ids: Sequence[int] | None, focus: str | None, *, manual: bool) -> Compaction:
        work = Work(self._services, self._options, self._reader, made, self._known, self._notes)
        done = await work.run(ids, focus, manual=manual)
        note = note_for(made)
        result, kept = assemble(made, done.text, note)
        count = self._services.counter.text
        return Compaction(
            messages=result, summary=done.text, tokens_before=made.tokens_before, tokens_after=0, covered=made.covered,
            kept=kept, author=writers(done.words), phases=reporting.phases(made, count(done.text)),
            verification=figures(done.words), to_store=made.descent.to_store,
            steps=made.descent.steps, warnings=done.warnings, system_note=note,
            usage=tuple(used for words in done.words for used in words.usage), nodes=done.nodes,
        )  # fmt: skip

    # Tools

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return [dict(schema) for schema in SCHEMAS] if self._tools else []

    async def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self._tools is None:
            raise InputError(f"there is no tool {name[:60]!r} here: nothing is stored that it could look up")
        return await self._tools.call(name, arguments)

    # Life

    def pin(self, notes: Sequence[str]) -> None:
        self._notes = tuple(notes)

    def on_compacted(self, compaction: Compaction) -> None:
        if not compaction.changed:
            return
        self._pacing.on_compacted(compaction)
        self._known |= {node.id: replace(node, thread="") for node in compaction.nodes}

    def update_model(self, services: Services) -> None:
        """Another window, another tokenizer: what was reported before no longer counts."""
        self._services = services
        self._pacing.update_model(services)
        self._tools = Tools.of(services)

    @property
    def compactions(self) -> int:
        return self._pacing.compactions

    def dump_state(self) -> dict[str, Any]:
        """The graph is in the store, and what of it is in view is in the context: nothing of it is told again."""
        return self._pacing.dump()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._pacing.load(state)
