"""Compare moments to offer the tool `recall` to a proxied model, in dollars of whole recorded sessions.

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

from benchmarks.shared import HALVES, find_shared, half_of
from benchmarks.table import Row, make_absent_row
from everthread.agent.tools.recall import RECALL_SCHEMA
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.registry import create_engine
from everthread.config import Config, home_directory
from everthread.conversation.conversation import Conversation
from everthread.conversation.requests import PreparedRequest
from everthread.core.tokens import TokenCounter
from everthread.factory.conversations import make_session_options
from everthread.lab.importers.log import CLIENT_NAMES
from everthread.lab.importers.read_logs import read_log
from everthread.lab.provider.prompt_blocks import Block, Prompt
from everthread.lab.replay.cache_lifetime import find_cache_seconds
from everthread.lab.replay.call_recorder import price_call
from everthread.lab.replay.conversation_player import ConversationPlayer
from everthread.lab.replay.replay_inputs import (
    DEFAULT_MODEL,
    ReplayInputs,
    prepare_inputs,
)
from everthread.lab.replay.replay_plan import plan_replay
from everthread.lab.replay.simulated_cache import ReplayCaches
from everthread.testing import SteppedClock

NO_OFFER = "without recall"
OFFER_AT_START = "start"
OFFER_AT_COMPACTION = "compaction"
OFFER_AS_ADDITION = "addition"
OFFERS = (OFFER_AT_START, OFFER_AT_COMPACTION, OFFER_AS_ADDITION)


@dataclass(frozen=True, slots=True)
class SentCall:
    """A call of a session: its prompt without the tool, and whether a compaction preceded."""

    prompt: Prompt
    model: str
    output: int
    sent_at: float
    compactions: int
    """Compactions up to this call."""


@dataclass(frozen=True, slots=True)
class Session:
    """A recorded session, sent with default settings."""

    name: str
    client: str
    setting: ReplayInputs
    calls: Sequence[SentCall]

    @property
    def is_compacted(self) -> bool:
        return self.calls[-1].compactions > 0

    def cut_before_compaction(self) -> Session:
        """Return the session as if it had ended before its first compaction."""
        return replace(self, calls=[call for call in self.calls if not call.compactions])


class _CapturingPlayer(ConversationPlayer):
    """Keep the prompt of each call."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sent: list[SentCall] = []

    async def _prepare_call(
        self, conversation: Conversation, number: int
    ) -> tuple[PreparedRequest, Prompt]:
        prepared, prompt = await super()._prepare_call(conversation, number)
        call = self.inputs.calls[number]
        self.sent.append(
            SentCall(
                prompt,
                prepared.request.model,
                output=call.output_tokens,
                sent_at=call.sent_at,
                compactions=len(self.compactions),
            )
        )
        return prepared, prompt


def run() -> list[Row]:
    folder = find_shared("logs")
    if folder is None:
        return [make_absent_row("the recorded logs")]
    sessions = [asyncio.run(play(path)) for path in sorted(folder.glob("*.gz"))]
    rows: list[Row] = []
    for half in HALVES:
        half_sessions = [session for session in sessions if half_of(session.name) == half]
        rows += _rows(f"{half}, whole sessions", half_sessions)
        cut_sessions = [session.cut_before_compaction() for session in half_sessions]
        rows += _rows(f"{half}, cut before the first compaction", cut_sessions)
    return rows


async def play(path: Path) -> Session:
    """Play a log at default settings, and keep the prompts."""
    log = read_log(str(path))
    options = replace(make_session_options(Config()), background=False)
    lifetime = find_cache_seconds(log.model or DEFAULT_MODEL, options.cache_ttl)
    plan = plan_replay(log, times=None, pause=60.0, step=8.0, ttl=lifetime)
    setting = prepare_inputs(
        log,
        plan,
        model=None,
        window=None,
        ttl=options.cache_ttl,
        is_ttl_given=False,
        report_step=lambda: None,
    )

    def make_engine(services: Services) -> ContextEngine:
        return create_engine("compressor", services, {}, home=home_directory())

    player = _CapturingPlayer(setting, replace(options, cache_ttl=setting.ttl), make_engine, ())
    async with player.play():
        pass
    client = CLIENT_NAMES.get(log.kind, log.kind)
    return Session(path.name, client, setting, player.sent)


def _rows(name: str, sessions: Sequence[Session]) -> list[Row]:
    rows = []
    for client in sorted({session.client for session in sessions}):
        client_sessions = [
            session for session in sessions if session.client == client and session.calls
        ]
        base_cost = sum(
            (price_session(session, NO_OFFER) for session in client_sessions),
            Decimal(0),
        )
        added_costs = {
            offer: sum(
                (price_session(session, offer) for session in client_sessions),
                Decimal(0),
            )
            - base_cost
            for offer in OFFERS
        }
        calls = sum(len(session.calls) for session in client_sessions)
        compacted = sum(session.is_compacted for session in client_sessions)
        figures = ", ".join(f"{offer} {_cents(cost)}" for offer, cost in added_costs.items())
        rows.append(
            Row(
                f"{name}: {client}, {len(client_sessions)} sessions ({compacted} compacted), {calls} calls",
                f"${base_cost:.2f} {NO_OFFER}; added: {figures}",
            )
        )
    return rows


def _cents(dollars: Decimal) -> str:
    return f"{float(100 * dollars):+.2f} cents"


def price_session(session: Session, offer: str) -> Decimal:
    """Return the dollars of a session with the tool offered in this way."""
    clock = SteppedClock(0.0)
    recording = session.setting.recording
    if offer == OFFER_AT_START and recording is not None and recording.shared_tokens:
        # Other sessions have left the prompt's beginning in the cache, with the tool.
        tool = count_recall_tokens(session.calls[0].model)
        recording = replace(recording, shared_tokens=recording.shared_tokens + tool)
    caches = ReplayCaches(clock, recording)
    insert = _Insertion(offer)
    total = Decimal(0)
    for number, call in enumerate(session.calls):
        clock.now = call.sent_at
        use = caches.use(number, call.model, insert(call))
        costs = price_call(
            call.model,
            use,
            call.output,
            timestamp=session.setting.started_at + call.sent_at,
        )
        total += sum((cost for cost in costs if cost is not None), Decimal(0))
    return total


class _Insertion:
    """Put the tool into the prompts of a session, call by call."""

    def __init__(self, offer: str) -> None:
        self._offer = offer
        self._is_compacted = False
        self._previous_blocks: Sequence[Block] = ()
        self._insert_index = 0

    def __call__(self, call: SentCall) -> Prompt:
        blocks = call.prompt.blocks
        if call.compactions and not self._is_compacted:
            self._is_compacted = True
            self._insert_index = _count_same(self._previous_blocks, blocks)
        self._previous_blocks = blocks
        is_offered = self._offer == OFFER_AT_START or (
            self._offer != NO_OFFER and self._is_compacted
        )
        if not is_offered:
            return call.prompt
        tools = sum(block.path.startswith("tools.") for block in blocks)
        insert_index = self._insert_index if self._offer == OFFER_AS_ADDITION else tools
        block = Block("recall", count_recall_tokens(call.model), kind="tool", path="tools.recall")
        return Prompt(
            [*blocks[:insert_index], block, *blocks[insert_index:]],
            call.prompt.tokens + block.tokens,
        )


def _count_same(blocks_before: Sequence[Block], blocks_after: Sequence[Block]) -> int:
    pairs = zip(blocks_before, blocks_after, strict=False)
    return next(
        (
            index
            for index, (block_before, block_after) in enumerate(pairs)
            if block_before.text != block_after.text
        ),
        min(len(blocks_before), len(blocks_after)),
    )


def count_recall_tokens(model: str) -> int:
    """Return the tokens of the tool beside others."""
    counter = TokenCounter(model)
    count: Callable[[Sequence[dict[str, Any]]], int] = counter.tools
    return count([RECALL_SCHEMA, RECALL_SCHEMA]) - count([RECALL_SCHEMA])
