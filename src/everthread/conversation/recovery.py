"""When the provider refuses a request for its size: compact, lower the output cap, send fewer bytes; else give up.

At most three compactions for one request, each stronger than the one before. What the provider states about its
window is remembered; without a statement the next lower of a few usual windows is tried, for this process only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everthread.conversation import events
from everthread.conversation.compaction import Draft, commit, discard, draft
from everthread.conversation.state import ConversationState
from everthread.core.exchange import Request
from everthread.core.ladder import Strength
from everthread.core.messages import Message, results_of
from everthread.core.outputs import ToStore, edit_results, to_store, with_text
from everthread.core.overflow import ErrorVerdict, classify_error
from everthread.core.pruning import prune
from everthread.core.summary import Compaction
from everthread.core.transcript import latest_user_index
from everthread.errors import ContextOverflowError, EverthreadError
from everthread.providers.output_cap import output_cap

ATTEMPTS = (Strength.NORMAL, Strength.HALF_TAIL, Strength.LATEST_GROUP)
USUAL_WINDOWS = (128_000, 64_000, 32_000, 16_000, 8_000)
MOST_CAPS = 3
SMALLEST_CAP = 256
BIG_RESULT = 4_000
"""Characters; where bytes are the trouble, results beyond this are stored and cited."""


TOO_LARGE = frozenset({"prompt_too_long", "max_tokens_too_large", "payload_too_large"})
"""The kinds of refusal a smaller request may mend."""


def output_room(verdict: ErrorVerdict, asked: int | None) -> int | None:
    """The output cap to try next, after one that was too large; None where too little is left to be of use."""
    room = verdict.available_output
    if room is None and verdict.context_limit and verdict.input_tokens:
        room = verdict.context_limit - verdict.input_tokens
    if room is None:
        room = asked // 2 if asked else 0
    return room if room >= SMALLEST_CAP else None


def lower_window(window: int) -> int | None:
    """The next usual window below this one: a guess where the provider states no limit."""
    return next((usual for usual in USUAL_WINDOWS if usual < window), None)


def harder(strength: Strength) -> str:
    """What is done at this strength, in words."""
    return f"compaction, {strength.name.lower().replace('_', ' ')}"


@dataclass(slots=True)
class Recovery:
    """What was tried for one request."""

    live: ConversationState
    compactions: int = 0
    caps: int = 0
    cap: int | None = None
    """The output cap for the next try."""
    slimmed: bool = False

    async def meet(self, error: Exception, sent: Request | None) -> None:
        """Make the next try possible, or raise: the error itself where size is not at fault."""
        verdict = classify_error(error)
        if verdict.kind == "max_tokens_too_large" and self._lower_cap(verdict, sent):
            return
        if verdict.kind not in TOO_LARGE:
            raise error
        if not self.live.setup.options.enabled:
            raise ContextOverflowError(
                f"{self.live.route.name} refused the request for its size ({verdict.reason}) and compression is "
                "disabled (compression.enabled). Nothing was changed; /new starts afresh."
            ) from error
        if verdict.kind == "payload_too_large":
            if not self.slimmed and await self._slim():
                return
        else:
            await self._learn(verdict)
        await self._compact(verdict, error)

    def _lower_cap(self, verdict: ErrorVerdict, sent: Request | None) -> bool:
        """A smaller answer for this call; history and window stay as they are."""
        room = output_room(verdict, self.cap or (output_cap(sent) if sent else None))
        self.caps += 1
        if room is None or self.caps > MOST_CAPS:
            return False
        self.cap = room
        self._tell("max_tokens_too_large", self.caps, f"asked for at most {room:,} tokens of output")
        return True

    async def _learn(self, verdict: ErrorVerdict) -> None:
        live = self.live
        if live.answering != live.route.name:
            return  # another model stepped in: its limit says nothing about the window of this one
        limit = verdict.context_limit
        if limit is not None and limit < live.window:
            stored = await live.setup.store.learn_limit(
                live.route.base_url, live.route.name, limit, source=verdict.reason, headers=live.route.headers
            )
            live.learnt = stored.limit
            live.fit(limit)
            live.emit(
                events.LimitLearnt(live.session.id, live.route.name, limit, "the provider stated it", stored=True)
            )
        elif limit is None:
            lower = lower_window(live.window)
            if lower is not None:
                live.fit(lower)
                live.emit(
                    events.LimitLearnt(
                        live.session.id, live.route.name, lower, "a guess: the provider stated no limit", stored=False
                    )
                )

    async def _slim(self) -> bool:
        """Old images out, big results stored: fewer bytes, and no word lost."""
        live = self.live
        self.slimmed = True
        made = slimmed(live)
        if made is None:
            return False
        self._tell("payload_too_large", 1, "dropped old images and stored big results")
        await commit(live, made, reason="payload")
        return True

    async def _compact(self, verdict: ErrorVerdict, error: Exception) -> None:
        live = self.live
        while self.compactions < len(ATTEMPTS):
            strength = ATTEMPTS[self.compactions]
            self.compactions += 1
            self._tell(verdict.kind, self.compactions, harder(strength))
            try:
                made = await draft(live, reason="overflow", strength=strength, tokens=verdict.input_tokens)
            except EverthreadError as failure:
                live.emit(events.CompactionFailed(live.session.id, str(failure)))
                continue
            if made.compaction.changed:
                await commit(live, made, reason="overflow")
                return
            await discard(live, made, made.compaction.reason)
        raise ContextOverflowError(
            f"The request does not fit into {live.route.name} ({live.window:,} tokens), even after "
            f"{len(ATTEMPTS)} compactions. Your message and the history are stored; try /new for a fresh "
            f"conversation or /compress with a focus. The provider said: {error}"
        ) from error

    def _tell(self, problem: str, attempt: int, action: str) -> None:
        self.live.emit(events.Recovery(self.live.session.id, problem, attempt, action))


def slimmed(live: ConversationState) -> Draft | None:
    """The context with old images dropped and big results cited; None where there is neither."""
    bodies = list(live.bodies)
    slim, stored = slim_messages(bodies, live.budget.preview_chars)
    kept = tuple(range(len(bodies)))
    if all(new is old for new, old in zip(slim, bodies, strict=True)):
        return None
    made = Compaction(
        messages=slim, summary="", tokens_before=live.tokens,
        tokens_after=live.counter.request(slim, system=live.system, tools=live.tools),
        kept=kept, author="none", reason="payload", to_store=tuple(stored),
        steps=("dropped old images and stored big results",),
    )  # fmt: skip
    return Draft(made, live.session.id, tuple(live.stored), tuple(bodies))


def slim_messages(bodies: Sequence[Message], preview_chars: int) -> tuple[list[Message], list[ToStore]]:
    """The same messages in fewer bytes, and what must be stored first; those that stay as they are are the same."""
    latest = latest_user_index(bodies)
    slim = prune(bodies, protect_from=len(bodies) if latest is None else latest, results=False).messages
    stored: list[ToStore] = []
    return [_cited(index, message, preview_chars, stored) for index, message in enumerate(slim)], stored


def _cited(index: int, message: Message, preview_chars: int, stored: list[ToStore]) -> Message:
    if not any(len(result.text) > BIG_RESULT for result in results_of(message)):
        return message

    def replaced(result: Any, _holder: object) -> Any:
        big = len(result.text) > BIG_RESULT
        item = to_store(index, result.call_id, result.text, preview_chars=preview_chars) if big else None
        if item is None:
            return result.content
        stored.append(item)
        return with_text(result.content, item.replacement)

    return edit_results(message, replaced)
