"""From what a call used to dollars and to why the cache held less than it could."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from everthread.core.cost import cost, prices_for
from everthread.core.exchange import Request
from everthread.core.usage import CanonicalUsage
from everthread.lab.prefix_cache import SMALLEST, STEP
from everthread.lab.prompt_cache import CacheUse
from everthread.lab.replay import result
from everthread.lab.replay.result import Played
from everthread.lab.replay.simulator import by_marks, remembered


@dataclass(slots=True)
class Ledger:
    """Writes down the calls of one way of holding a conversation."""

    ttl: str
    began: float
    """When the first call is sent, in seconds since 1970: prices change."""
    caching: bool = True
    _before: tuple[Request, CacheUse, float] | None = None

    def played(self, request: Request, use: CacheUse, output: int, at: float, *, reshaped: str = "") -> Played:
        """The call. `reshaped`: why its history is not the one of the call before with more behind it."""
        cause, missed = self._miss(request, use, at, reshaped) if self.caching else ("", 0)
        self._before = request, use, at
        spent = self._costs(request.model, use, output, at)
        return Played(at, len(request.messages), use, output, *spent, cause, missed)

    def _costs(self, model: str, use: CacheUse, output: int, at: float) -> tuple[Decimal | None, Decimal | None]:
        moment = datetime.fromtimestamp(self.began + at, UTC)
        prices = prices_for(model, at=moment, prompt_tokens=use.prompt)
        if prices is None:
            return None, None
        prompt = CanonicalUsage(
            input_tokens=use.input,
            cache_read_tokens=use.read,
            cache_write_tokens=use.write,
            cache_write_1h_tokens=use.write_1h,
        )
        return cost(prompt, prices), cost(CanonicalUsage(output_tokens=output), prices)

    def _miss(self, request: Request, use: CacheUse, at: float, reshaped: str) -> tuple[result.Cause, int]:
        if self._before is None:
            return result.FIRST, 0
        before, left, then = self._before
        kept = _kept(before.model, left)
        if kept == 0:
            return (result.SHORT if use.read == 0 else ""), 0
        missed = kept - use.read
        if missed <= 0:
            return "", 0
        return self._cause(before, request, at - then, reshaped), missed

    def _cause(self, before: Request, request: Request, gap: float, reshaped: str) -> result.Cause:
        """The first of the reasons there may be, the ones that lose most before the others."""
        if before.model != request.model:
            return result.MODEL
        if gap >= remembered(request.model, self.ttl):
            return result.FORGOTTEN
        if before.tools != request.tools:
            return result.TOOLS
        if reshaped:
            return reshaped
        return result.SYSTEM if before.system != request.system else result.CHANGED


def _kept(model: str, use: CacheUse) -> int:
    """How much of a prompt the next one can read: with marks what was read and written, else all but the last step."""
    if by_marks(model):
        return use.read + use.write
    kept = use.prompt - 2 * STEP
    return kept if kept >= SMALLEST else 0
