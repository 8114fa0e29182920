"""When to offer the tool `recall` to a proxied model: dollars of whole recorded sessions.

`start` has the tool among the client's from the first call on; `compaction` adds it there at the first compaction,
which changes the cached prompt from its beginning; `addition` puts its definition after the cached part at the
first compaction, as an API with tool additions inside the messages could. Each recorded session is played once through
a conversation at default settings, with the cache as the log shows it; its prompts are then priced in the three ways,
and without the tool. Sessions that end before their first compaction are priced as well: the same logs, cut there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from benchmarks.shared import HALVES, half_of, shared
from benchmarks.table import Row, absent
from everthread.agent.tools.conversation_tools import RECALL_SCHEMA
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.registry import create_engine
from everthread.config import Config, home_directory
from everthread.conversation.conversation import Conversation
from everthread.conversation.requests import PreparedRequest
from everthread.core.tokens import TokenCounter
from everthread.factory.conversations import session_options
from everthread.lab.importers.log import CLIENT_NAMES
from everthread.lab.importers.read_logs import read_log
from everthread.lab.provider.cache import Block, Prompt
from everthread.lab.replay.baselines import (
    ReplayCaches,
    ReplayInputs,
    price_call,
)
from everthread.lab.replay.cache_lifetime import cache_seconds
from everthread.lab.replay.replay_plan import plan_replay
from everthread.lab.replay.runner import ReplayPlayer
from everthread.lab.replay.setting import DEFAULT_MODEL, prepare_inputs
from everthread.testing import SteppedClock

NEVER = "without recall"
START = "start"
COMPACTION = "compaction"
ADDITION = "addition"
WAYS = (START, COMPACTION, ADDITION)


@dataclass(frozen=True, slots=True)
class SentCall:
    """A call of a session: its prompt without the tool, and whether a compaction preceded."""

    prompt: Prompt
    model: str
    output: int
    at: float
    compactions: int
    """Compactions up to this call."""


@dataclass(frozen=True, slots=True)
class Session:
    """A recorded session as it is sent at default settings."""

    name: str
    client: str
    setting: ReplayInputs
    calls: Sequence[SentCall]

    @property
    def is_compacted(self) -> bool:
        return self.calls[-1].compactions > 0

    def until_compaction(self) -> Session:
        """Return the session as if it had ended before its first compaction."""
        return replace(
            self, calls=[call for call in self.calls if not call.compactions]
        )


class _CapturingPlayer(ReplayPlayer):
    """Keep the prompt of each call."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sent: list[SentCall] = []

    async def _prepare_call(
        self, conversation: Conversation, number: int
    ) -> tuple[PreparedRequest, Prompt]:
        prepared, prompt = await super()._prepare_call(conversation, number)
        call = self.setting.calls[number]
        self.sent.append(
            SentCall(
                prompt,
                prepared.request.model,
                output=call.output,
                at=call.sent_at,
                compactions=len(self.compactions),
            )
        )
        return prepared, prompt


def run() -> list[Row]:
    folder = shared("logs")
    if folder is None:
        return [absent("the recorded logs")]
    sessions = [asyncio.run(play(path)) for path in sorted(folder.glob("*.gz"))]
    rows: list[Row] = []
    for half in HALVES:
        chosen = [one for one in sessions if half_of(one.name) == half]
        rows += _rows(f"{half}, whole sessions", chosen)
        cut = [one.until_compaction() for one in chosen]
        rows += _rows(f"{half}, cut before the first compaction", cut)
    return rows


async def play(path: Path) -> Session:
    """Play a log at default settings, and keep the prompts."""
    log = read_log(str(path))
    options = replace(session_options(Config()), background=False)
    lifetime = cache_seconds(log.model or DEFAULT_MODEL, options.cache_ttl)
    plan = plan_replay(log, times=None, pause=60.0, step=8.0, ttl=lifetime)
    setting = prepare_inputs(
        log,
        plan,
        model=None,
        window=None,
        ttl=options.cache_ttl,
        is_ttl_given=False,
        step=lambda: None,
    )

    def make_engine(services: Services) -> ContextEngine:
        return create_engine("compressor", services, {}, home=home_directory())

    player = _CapturingPlayer(
        setting, replace(options, cache_ttl=setting.ttl), make_engine, ()
    )
    async with player.play():
        pass
    client = CLIENT_NAMES.get(log.kind, log.kind)
    return Session(path.name, client, setting, player.sent)


def _rows(what: str, sessions: Sequence[Session]) -> list[Row]:
    rows = []
    for client in sorted({one.client for one in sessions}):
        some = [one for one in sessions if one.client == client and one.calls]
        base = sum((price(one, NEVER) for one in some), Decimal(0))
        added = {
            way: sum((price(one, way) for one in some), Decimal(0)) - base
            for way in WAYS
        }
        calls = sum(len(one.calls) for one in some)
        compacted = sum(one.is_compacted for one in some)
        figures = ", ".join(f"{way} {_cents(cost)}" for way, cost in added.items())
        rows.append(
            Row(
                f"{what}: {client}, {len(some)} sessions ({compacted} compacted), {calls} calls",
                f"${base:.2f} {NEVER}; added: {figures}",
            )
        )
    return rows


def _cents(dollars: Decimal) -> str:
    return f"{float(100 * dollars):+.2f} cents"


def price(session: Session, way: str) -> Decimal:
    """Return the dollars of a session with the tool offered in this way."""
    clock = SteppedClock(0.0)
    recording = session.setting.recording
    if way == START and recording is not None and recording.shared:
        # Other sessions have left the prompt's beginning in the cache, with the tool.
        tool = recall_tokens(session.calls[0].model)
        recording = replace(recording, shared=recording.shared + tool)
    caches = ReplayCaches(clock, recording)
    insert = _Insertion(way)
    total = Decimal(0)
    for number, call in enumerate(session.calls):
        clock.now = call.at
        use = caches.use(number, call.model, insert(call))
        costs = price_call(
            call.model, use, call.output, timestamp=session.setting.started_at + call.at
        )
        total += sum((one for one in costs if one is not None), Decimal(0))
    return total


class _Insertion:
    """Put the tool into the prompts of a session, call by call."""

    def __init__(self, way: str) -> None:
        self._way = way
        self._is_compacted = False
        self._before: Sequence[Block] = ()
        self._place = 0

    def __call__(self, call: SentCall) -> Prompt:
        blocks = call.prompt.blocks
        if call.compactions and not self._is_compacted:
            self._is_compacted = True
            self._place = _count_same(self._before, blocks)
        self._before = blocks
        is_offered = self._way == START or (self._way != NEVER and self._is_compacted)
        if not is_offered:
            return call.prompt
        tools = sum(block.path.startswith("tools.") for block in blocks)
        place = self._place if self._way == ADDITION else tools
        block = Block(
            "recall", recall_tokens(call.model), kind="tool", path="tools.recall"
        )
        return Prompt(
            [*blocks[:place], block, *blocks[place:]], call.prompt.tokens + block.tokens
        )


def _count_same(before: Sequence[Block], after: Sequence[Block]) -> int:
    pairs = zip(before, after, strict=False)
    return next(
        (place for place, (one, other) in enumerate(pairs) if one.text != other.text),
        min(len(before), len(after)),
    )


def recall_tokens(model: str) -> int:
    """Return the tokens of the tool beside others."""
    counter = TokenCounter(model)
    count: Callable[[Sequence[dict[str, Any]]], int] = counter.tools
    return count([RECALL_SCHEMA, RECALL_SCHEMA]) - count([RECALL_SCHEMA])
