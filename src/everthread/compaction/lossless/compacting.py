"""One compaction: the earlier nodes, leaves over what leaves the view, all of it within the summary's budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from everthread.compaction.engine import Services
from everthread.compaction.lossless.chunks import chunks
from everthread.compaction.lossless.growing import Growth
from everthread.compaction.lossless.numbering import Numbers, numbered
from everthread.compaction.lossless.options import Options
from everthread.compaction.lossless.parts import Part, whole
from everthread.compaction.lossless.quiet import quieted
from everthread.compaction.lossless.texts import text as text_file
from everthread.compaction.lossless.writing import LEAST, Order, Source, Words, Writer
from everthread.compaction.steps import pins
from everthread.compaction.steps.cutting import Plan
from everthread.compaction.steps.reading import Reader, without_secrets
from everthread.compaction.steps.writing import task_text
from everthread.core.boundaries import without_earlier_summary
from everthread.core.messages import Message
from everthread.core.nodes import Node
from everthread.core.pruning import prune
from everthread.core.redaction import redact
from everthread.core.summary import SUMMARY_END

SHARE = 5
"""A node may have this part of the room for all of them."""
AGAIN = 4
"""So many makeshift nodes are written again in one compaction."""


@dataclass(frozen=True, slots=True)
class Done:
    """The summary message's text, the nodes that are new, and what they took."""

    text: str
    nodes: tuple[Node, ...]
    words: tuple[Words, ...]
    warnings: tuple[str, ...]


@dataclass(slots=True)
class Work:
    """One compaction in the making. `known` is the engine's memory of nodes: it only grows."""

    services: Services
    options: Options
    reader: Reader
    plan: Plan
    known: dict[str, Node]
    notes: Sequence[str]
    """Ids of messages that brought back what an earlier compaction took out."""

    async def run(self, ids: Sequence[int] | None, focus: str | None, *, manual: bool) -> Done:
        services, made, count = self.services, self.plan, self.services.counter.text
        numbers = await self._numbered(ids)
        earlier = await self._resolved(numbers)
        sources, turns = self._sources(numbers)
        budget = self._budget(earlier, sum(source.tokens for source in sources))
        # An answer that a summary was merged into is an answer all the same.
        spoken = [without_earlier_summary(message) or message for message in made.messages]
        task = redact(task_text(replace(made, messages=spoken), budget // 4, count))
        rules = pins.rules_in_force(numbers.rules, made.read, made.covered)
        pinned, warnings = self._pinned(rules, budget)
        marker = self._marker()
        room = max(budget - sum(map(count, (marker, task, pinned, SUMMARY_END))) - 60, LEAST)
        order = Order(max(room // SHARE, LEAST), task, focus, manual, rules)
        writer = Writer(services.summarizer, count, made)
        growth = Growth(writer, count, order, self.options.fan_in, services.archive)
        earlier = [await self._taken(part, growth) for part in earlier]
        earlier = await self._again(earlier, growth)
        parts = [*earlier, *await growth.leaves(sources, turns)]
        parts = await growth.condense(parts, room)
        text = whole(marker, parts, self._next_turn(numbers), task, pinned)
        told = dict.fromkeys(warning for words in growth.words for warning in words.warnings)
        return Done(text, tuple(growth.made.values()), tuple(growth.words), (*told, *warnings))

    # What is there

    async def _numbered(self, ids: Sequence[int] | None) -> Numbers:
        """The list's own numbers; of another engine's summary the store knows how many turns it stands for."""
        messages, lookup = self.plan.messages, self.services.lookup
        numbers = numbered(messages, ids)
        if lookup is None or ids is None or all(part.node.id for part in numbers.parts):
            return numbers
        last = len(messages) - 1
        turn = await lookup.turn_of(ids[last])
        return numbers if turn is None else numbered(messages, ids, hidden=max(turn - numbers.turns[last], 0))

    async def _resolved(self, numbers: Numbers) -> list[Part]:
        """The nodes in view as the store has them; those it does not have, as the context shows them."""
        archive = self.services.archive
        if archive is not None and any(part.node.id and part.node.id not in self.known for part in numbers.parts):
            self.known |= {node.id: replace(node, thread="") for node in await archive.nodes()}
        return [replace(part, node=self.known.get(part.node.id, part.node)) for part in numbers.parts]

    def _sources(self, numbers: Numbers) -> tuple[list[Source], list[tuple[int, int]]]:
        """The messages of each leaf to be, and its turns."""
        made, counter = self.plan, self.services.counter
        middle = dict(zip(made.covered, quieted(made.middle), strict=True))
        places = {place: number for number, place in enumerate(made.covered)}
        tokens = {place: counter.message(message) for place, message in middle.items()}
        size = self.options.leaf_size(self.services.budget.threshold)
        sources: list[Source] = []
        turns: list[tuple[int, int]] = []
        for run in chunks(made.messages, made.covered, size, tokens.__getitem__):
            said = [middle[place] for place in run]
            same = all(middle[place] is made.middle[places[place]] for place in run)
            read = [made.read[place] for place in run] if same else self.reader.read(said)
            pruned = [
                made.pruned[places[place]] if middle[place] is made.middle[places[place]] else middle[place]
                for place in run
            ]
            ids = [numbers.ids[place] for place in run]
            sources.append(Source(said, pruned, read, ids, sum(tokens[place] for place in run)))
            turns.append((min(numbers.turns[place] for place in run), max(numbers.turns[place] for place in run)))
        return sources, turns

    # How large, and what stands around

    def _budget(self, earlier: Sequence[Part], new: int) -> int:
        """Tokens for the whole summary message: nodes that are there keep their room as far as there is any."""
        budget, count = self.services.budget, self.services.counter.text
        there = sum(count(part.text) for part in earlier)
        return min(budget.summary_max, max(self.plan.budget, there + new // 4))

    def _marker(self) -> str:
        marker = text_file("marker_short" if self.services.budget.small else "marker")
        return f"{marker}\n{text_file('tools')}" if self.services.lookup and not self.services.budget.small else marker

    def _pinned(self, rules: Sequence[str], budget: int) -> tuple[str, tuple[str, ...]]:
        count = self.services.counter.text
        standing, left = pins.pinned_text(rules, budget // 4, count)
        noted, unnoted = pins.pinned_text(self.notes, budget // 8, count, pins.NOTED)
        kinds = ((left, "of the user's standing rules"), (unnoted, "of what was pinned"))
        warnings = tuple(f"{lacking} {kind} had no room in the summary" for lacking, kind in kinds if lacking)
        return "\n".join(filter(None, (standing, noted))), warnings

    def _next_turn(self, numbers: Numbers) -> int:
        """The turn of the first user message that stands after the summary."""
        cut = self.plan.descent.boundaries
        if cut.keep_after_summary is not None:
            return numbers.turns[cut.keep_after_summary]
        last = cut.tail_start - 1
        return (numbers.turns[last] if last >= 0 else 0) + 1

    # Earlier nodes

    async def _taken(self, part: Part, growth: Growth) -> Part:
        """Another engine's summary becomes a leaf over what the store knows it to cover."""
        node, archive = part.node, self.services.archive
        if node.id:
            return part
        ids = await archive.covered() if archive else []
        tokens = self.services.counter.text(node.body)
        node = replace(node, covered_tokens=tokens, sources=tuple(map(str, ids)))
        if ids:
            node = replace(node, first_message=ids[0], last_message=ids[-1])
        return growth.added(node, len(ids))

    async def _again(self, parts: list[Part], growth: Growth) -> list[Part]:
        """Makeshift nodes are written anew when a model is there; the first that it cannot write ends that."""
        archive = self.services.archive
        if archive is None or not growth.writer.has_model:
            return parts
        makeshift = [place for place, part in enumerate(parts) if part.node.degraded and part.node.sources][:AGAIN]
        for place in makeshift:
            new = await self._rewritten(parts[place], growth)
            if new is None:
                break
            parts = [*parts[:place], new, *parts[place + 1 :]]
        return parts

    async def _rewritten(self, part: Part, growth: Growth) -> Part | None:
        node, archive = part.node, self.services.archive
        order = replace(growth.order, room=max(min(growth.order.room, node.covered_tokens // 2), LEAST))
        if node.level:
            children = [self.known[source] for source in node.sources if source in self.known]
            if len(children) < len(node.sources):
                return None
            words = await growth.writer.condensed([Part(child, 0) for child in children], order)
        else:
            found = await archive.originals([int(source) for source in node.sources]) if archive else []
            if len(found) < len(node.sources):
                return None
            words = await growth.writer.leaf(self._source([original.message for original in found], node), order)
        if words.degraded:
            return None
        return growth.added(replace(node, body=words.body, author=words.author, degraded=False), part.messages, words)

    def _source(self, messages: Sequence[Message], node: Node) -> Source:
        said = quieted([without_secrets(message) for message in messages])
        pruned = prune(said, protect_from=len(said)).messages
        return Source(said, pruned, self.reader.read(said), list(map(int, node.sources)), node.covered_tokens)
