"""When the provider refuses a request for its size: compact harder, or lower the output cap; else say no."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from everthread.conversation import events
from everthread.conversation.recovery import ATTEMPTS, MOST_CAPS, TOO_LARGE, harder, output_room
from everthread.core.overflow import ErrorVerdict, classify_error
from everthread.errors import EverthreadError
from everthread.gateway.base import Outgoing
from everthread.gateway.turn import Turn

if TYPE_CHECKING:
    from everthread.gateway.manager import ProxyManager


@dataclass(slots=True)
class Recovery:
    """What can be done for one refused request. How often it was tried is kept with the request."""

    manager: ProxyManager
    turn: Turn

    async def meet(self, status: int, body: bytes) -> Outgoing | None:
        """What to send instead; None where size is not at fault or nothing is left to try."""
        verdict = classify_error(status=status, body=body.decode("utf-8", "replace"))
        if verdict.kind == "max_tokens_too_large" and self._lower_cap(verdict):
            return self.manager.send(self.turn)
        if verdict.kind not in TOO_LARGE:
            return None
        if not self.manager.setup.options.enabled or self.turn.sliced.single:
            return None
        if verdict.kind == "payload_too_large":
            slim = await self._slim()
            if slim is not None:
                return slim
        else:
            await self.manager.windows.learn(self.turn, verdict)
        return await self._compact(verdict)

    def _lower_cap(self, verdict: ErrorVerdict) -> bool:
        """A smaller answer for this call; history and window stay as they are."""
        turn = self.turn
        room = output_room(verdict, turn.cap or turn.asked_output)
        turn.caps += 1
        if room is None or turn.caps > MOST_CAPS:
            return False
        turn.cap = room
        self._tell("max_tokens_too_large", turn.caps, f"asked for at most {room:,} tokens of output")
        return True

    async def _slim(self) -> Outgoing | None:
        """Old images out, big results stored: fewer bytes, and no word lost. Once for a request."""
        manager, turn = self.manager, self.turn
        if turn.slimmed:
            return None
        turn.slimmed = turn.memory.slim = True
        before = turn.used
        await manager.look_up(turn, forced=True)
        if turn.used is not None and turn.used != before:
            self._tell("payload_too_large", 1, "used what was made smaller before")
            return manager.send(turn)
        made = await manager.slim(turn)
        if made is None:
            return None
        self._tell("payload_too_large", 1, "dropped old images and stored big results")
        turn.used, turn.ready = made, None
        return manager.send(turn)

    async def _compact(self, verdict: ErrorVerdict) -> Outgoing | None:
        manager, turn = self.manager, self.turn
        if turn.used is None:
            await manager.look_up(turn, forced=True)
            if turn.used is not None:
                return manager.send(turn)
        while turn.compactions < len(ATTEMPTS):
            strength = ATTEMPTS[turn.compactions]
            turn.compactions += 1
            self._tell(verdict.kind, turn.compactions, harder(strength))
            tokens = verdict.input_tokens or max(manager.tokens(turn, turn.used), turn.window)
            try:
                made = await manager.compact(turn, strength, tokens, reason="overflow")
            except EverthreadError as failure:
                manager.setup.listener(events.CompactionFailed(turn.place.thread, str(failure)))
                continue
            if made is not None:
                turn.used, turn.ready = made, None
                return manager.send(turn)
        return None

    def _tell(self, problem: str, attempt: int, action: str) -> None:
        self.manager.setup.listener(events.Recovery(self.turn.place.thread, problem, attempt, action))
